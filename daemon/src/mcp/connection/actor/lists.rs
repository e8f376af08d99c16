//! The lists of a connection: which have changed, reading them, and what comes of it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Actor, soon};
use crate::base::Clock;
use crate::catalog::{Catalog, Pages};
use crate::error::Result;
use crate::mcp::listing::read_list;
use crate::mcp::protocol::method;
use crate::mcp::state::{Event, State};
use crate::model::status::{Era, ListStatus};

/// Most withheld tools that a status names.
const MAX_WITHHELD: usize = 100;

/// Longest time for which a server is believed that its lists do not change.
const LONGEST_TTL: Duration = Duration::from_hours(24);
/// Lists are not read again sooner than this because they are stale; longer after each time that they could not be.
const REREAD: Duration = Duration::from_secs(1);

/// Which lists are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Dirty {
    pub(super) tools: bool,
    pub(super) resources: bool,
    pub(super) prompts: bool,
}

impl Dirty {
    pub(super) const ALL: Self = Self {
        tools: true,
        resources: true,
        prompts: true,
    };

    pub(super) fn any(self) -> bool {
        self.tools || self.resources || self.prompts
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            tools: self.tools || other.tools,
            resources: self.resources || other.resources,
            prompts: self.prompts || other.prompts,
        }
    }
}

/// The outcome of reading lists; `None` for one that was not asked for.
#[derive(Debug, Default)]
pub(super) struct Lists {
    tools: Option<Result<Pages>>,
    resources: Option<Result<Pages>>,
    templates: Option<Result<Pages>>,
    prompts: Option<Result<Pages>>,
}

impl Lists {
    fn failed(&self) -> bool {
        [&self.tools, &self.resources, &self.templates, &self.prompts]
            .into_iter()
            .flatten()
            .any(|read| read.as_ref().map_or(true, |pages| pages.broken))
    }

    fn are_all(&self) -> bool {
        self.tools.is_some() && self.resources.is_some() && self.prompts.is_some()
    }
}

pub(super) struct Listing {
    what: Dirty,
    pub(super) reading: Pin<Box<dyn Future<Output = Lists> + Send>>,
}

impl Actor {
    /// Starts to read lists; a reading that runs is superseded.
    pub(super) fn read_lists(&mut self, what: Dirty) {
        let Some(link) = self.link.clone() else {
            return;
        };
        self.dialer.load.refreshes.count();
        let what = what.and(self.listing.take().map(|old| old.what).unwrap_or_default());
        let settings = Arc::clone(&self.dialer.settings);
        let reading = Box::pin(async move {
            let has = |name: &str| link.peer.capabilities.is_none() || link.peer.has(name);
            let read = |wanted: bool, capability: &str, method: &'static str, key: &'static str| {
                let (link, settings, offered) =
                    (Arc::clone(&link), Arc::clone(&settings), has(capability));
                async move {
                    match (wanted, offered) {
                        (false, _) => None,
                        (true, false) => Some(Ok(Pages::default())),
                        (true, true) => Some(read_list(&link, method, key, &settings).await),
                    }
                }
            };
            let (tools, resources, templates, prompts) = tokio::join!(
                read(what.tools, "tools", method::TOOLS_LIST, "tools"),
                read(
                    what.resources,
                    "resources",
                    method::RESOURCES_LIST,
                    "resources"
                ),
                read(
                    what.resources,
                    "resources",
                    method::TEMPLATES_LIST,
                    "resourceTemplates"
                ),
                read(what.prompts, "prompts", method::PROMPTS_LIST, "prompts"),
            );
            Lists {
                tools,
                resources,
                templates,
                prompts,
            }
        });
        self.listing = Some(Listing { what, reading });
    }

    /// Reads lists again that somebody looked at and the server no longer vouches for.
    pub(super) fn read_stale_lists(&mut self) {
        let now = Clock.now();
        let ready = matches!(self.state, State::Ready { .. });
        if !ready || self.listing.is_some() || now < self.reread_after {
            return;
        }
        let catalog = &self.catalog;
        let stale = Dirty {
            tools: catalog.tools.is_stale(now),
            resources: catalog.resources.is_stale(now) || catalog.resource_templates.is_stale(now),
            prompts: catalog.prompts.is_stale(now),
        };
        if stale.any() {
            self.read_lists(stale);
        }
    }

    /// When the lists are read again of a server that does not announce changes: not before it stops to vouch for them.
    pub(super) fn refresh_time(&self) -> Option<Instant> {
        let interval = self.dialer.settings.list_refresh;
        let vouched = self
            .catalog
            .longest_ttl()
            .unwrap_or_default()
            .min(LONGEST_TTL);
        soon(interval.max(vouched.mul_f64(4.0 / 3.0)))
    }

    /// Follows the rules of changed settings.
    pub(super) fn apply_rules(&mut self) {
        if *self.catalog.rules() == self.spec.tools {
            return;
        }
        let mut catalog = Catalog::clone(&self.catalog);
        catalog.set_rules(&self.key.id, self.spec.tools.clone());
        self.note_tools(&catalog);
        self.catalog = Arc::new(catalog);
    }

    /// Takes what the status says of the tools from a catalog.
    fn note_tools(&mut self, catalog: &Catalog) {
        self.status.tools = catalog.tools.status.clone();
        self.status.not_allowed = catalog.not_allowed;
        let named = catalog.withheld.iter().take(MAX_WITHHELD);
        self.status.withheld = named.cloned().collect();
    }

    pub(super) async fn listed(&mut self, lists: Lists) {
        self.failed_readings = if lists.failed() {
            self.failed_readings.saturating_add(1)
        } else {
            0
        };
        let pause = REREAD.saturating_mul(1 << self.failed_readings.min(12));
        let pause = pause.min(self.dialer.settings.list_refresh.max(REREAD));
        self.reread_after = Clock.now().checked_add(pause).unwrap_or(self.reread_after);
        let are_all = lists.are_all();
        let at = Clock.wall();
        // Only modern HTTP servers have headers to mirror arguments into.
        let link = self.link.as_ref();
        let mirrored = link
            .is_some_and(|link| link.over_streamable_http() && link.dialect.era() == Era::Modern);
        let mut catalog = Catalog::clone(&self.catalog);
        let first = matches!(self.state, State::Discovering { .. }) && self.ready_since.is_none();
        let mut dead = None;
        if let Some(read) = lists.tools {
            dead = read
                .as_ref()
                .err()
                .filter(|error| first && error.rpc().is_none())
                .cloned();
            if let Some(pages) = usable(read, &mut catalog.tools.status) {
                catalog.set_tools(&self.key.id, pages, mirrored, at);
            }
        }
        if let Some(pages) = lists
            .resources
            .and_then(|read| usable(read, &mut catalog.resources.status))
        {
            catalog.set_resources(&pages, at);
        }
        if let Some(pages) = lists
            .templates
            .and_then(|read| usable(read, &mut catalog.resource_templates.status))
        {
            catalog.set_resource_templates(&pages, at);
        }
        if let Some(pages) = lists
            .prompts
            .and_then(|read| usable(read, &mut catalog.prompts.status))
        {
            catalog.set_prompts(&pages, at);
        }
        self.note_tools(&catalog);
        self.status.resources = catalog.resources.status.clone();
        self.status.resource_templates = catalog.resource_templates.status.clone();
        self.status.prompts = catalog.prompts.status.clone();
        self.catalog = Arc::new(catalog);
        if are_all && self.next_refresh.is_some() {
            self.next_refresh = self.refresh_time();
        }
        if let Some(error) = dead {
            // A server whose tools cannot even be asked for is not READY, whatever it said before.
            self.lost(&error).await;
        } else if matches!(self.state, State::Discovering { .. }) {
            self.handle(Event::Listed).await;
        } else {
            self.publish().await;
        }
        // Only now: whoever waited for the lists may look at once.
        for waiting in self.refreshers.drain(..) {
            let _ = waiting.send(());
        }
    }
}

/// What was read, unless it is worse than what is there: a list that broke off never replaces a complete one
/// (behaviour 98). The status says what is the matter.
fn usable(read: Result<Pages>, status: &mut ListStatus) -> Option<Pages> {
    let complete = status.fetched.is_some() && status.incomplete_reason.is_none();
    match read {
        Ok(pages) if !(pages.broken && complete) => Some(pages),
        Ok(pages) => {
            status.incomplete_reason = pages.incomplete;
            None
        }
        Err(error) => {
            status.incomplete_reason = Some(error.to_string());
            None
        }
    }
}
