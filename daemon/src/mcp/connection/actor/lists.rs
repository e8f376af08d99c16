//! The lists of a connection: which have changed, reading them, and what comes of it.

use std::pin::Pin;
use std::sync::Arc;

use super::Actor;
use crate::base::Clock;
use crate::catalog::{Catalog, Pages};
use crate::error::Result;
use crate::mcp::listing::read_list;
use crate::mcp::protocol::method;
use crate::mcp::state::{Event, State};
use crate::model::status::TransportKind;

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

    pub(super) async fn listed(&mut self, lists: Lists) {
        let at = Clock.wall();
        let over_http = self.status.transport == Some(TransportKind::StreamableHttp);
        let mut catalog = Catalog::clone(&self.catalog);
        let first = matches!(self.state, State::Discovering { .. }) && self.ready_since.is_none();
        let mut dead = None;
        match lists.tools {
            Some(Ok(pages)) => catalog.set_tools(&self.key.id, &pages, over_http, at),
            Some(Err(error)) => {
                catalog.tools.status.incomplete_reason = Some(error.to_string());
                dead = Some(error).filter(|error| first && error.rpc().is_none());
            }
            None => {}
        }
        match lists.resources {
            Some(Ok(pages)) => catalog.set_resources(&pages, at),
            Some(Err(error)) => {
                catalog.resources.status.incomplete_reason = Some(error.to_string());
            }
            None => {}
        }
        match lists.templates {
            Some(Ok(pages)) => catalog.set_resource_templates(&pages, at),
            Some(Err(error)) => {
                catalog.resource_templates.status.incomplete_reason = Some(error.to_string());
            }
            None => {}
        }
        match lists.prompts {
            Some(Ok(pages)) => catalog.set_prompts(&pages, at),
            Some(Err(error)) => catalog.prompts.status.incomplete_reason = Some(error.to_string()),
            None => {}
        }
        self.status.tools = catalog.tools.status.clone();
        self.status.resources = catalog.resources.status.clone();
        self.status.resource_templates = catalog.resource_templates.status.clone();
        self.status.prompts = catalog.prompts.status.clone();
        self.status.withheld.clone_from(&catalog.withheld);
        self.catalog = Arc::new(catalog);
        for waiting in self.refreshers.drain(..) {
            let _ = waiting.send(());
        }
        if let Some(error) = dead {
            // A server whose tools cannot even be asked for is not READY, whatever it said before.
            self.lost(&error).await;
        } else if matches!(self.state, State::Discovering { .. }) {
            self.handle(Event::Listed).await;
        } else {
            self.publish().await;
        }
    }
}
