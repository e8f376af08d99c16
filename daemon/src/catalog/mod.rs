//! What a server offers, as one immutable snapshot per connection: tools, resources, templates, prompts.
//!
//! Every entry is read on its own: a bad one is withheld with a reason and spoils nothing. A tool that the rules of the
//! registration do not admit leaves no trace but a number. Snapshots are replaced as a
//! whole and shared by reference, so a listing never waits for a server and never sees half of a change.

pub mod entry;
pub mod names;
pub mod output;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};

use crate::base::{Clock, ServerId, Timestamp};
use crate::mcp::protocol::RawJson;
use crate::model::rules::ToolRules;
use crate::model::status::{CacheScope, ListStatus, Withheld};
use entry::{Prompt, Resource, ResourceTemplate, Tool};

/// One list with what is known about it.
#[derive(Clone, Debug)]
pub struct List<T> {
    /// The entries, in the server's order.
    pub entries: Arc<[T]>,
    /// What the status shows of it.
    pub status: ListStatus,
    /// Until when the server vouches for it; `None` if it does not.
    pub fresh_until: Option<Instant>,
}

impl<T> List<T> {
    /// Whether the server no longer vouches for it, so that it is to be read again by whoever needs it.
    #[must_use]
    pub fn is_stale(&self, now: Instant) -> bool {
        self.fresh_until.is_some_and(|end| end <= now)
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self {
            entries: Arc::from([]),
            status: ListStatus::default(),
            fresh_until: None,
        }
    }
}

/// What a server says about how long and for whom a list may be kept (MCP 2026-07-28 server/utilities/caching).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheHints {
    /// For how long it may be taken as it is: the shortest of its pages. `None` if a page says nothing, or zero.
    pub ttl: Option<Duration>,
    /// Until when that is, for the page that ends first.
    pub fresh_until: Option<Instant>,
    /// Whom it may be shown to; `None` if no page says so.
    pub scope: Option<CacheScope>,
    pages: usize,
}

impl CacheHints {
    /// Takes note of a page that was just received.
    pub fn add(&mut self, page: &RawJson) {
        let ttl = page.get("ttlMs").and_then(|ttl| ttl.read::<i64>());
        let ttl = ttl
            .and_then(|ttl| u64::try_from(ttl).ok())
            .filter(|ttl| *ttl > 0);
        let ttl = ttl.map(Duration::from_millis);
        let end = ttl.and_then(|ttl| Clock.now().checked_add(ttl));
        let scope = page
            .get("cacheScope")
            .and_then(|scope| scope.read::<String>());
        let scope = match scope.as_deref() {
            Some("public") => Some(CacheScope::Public),
            Some("private") => Some(CacheScope::Private),
            _ => None,
        };
        if self.pages == 0 {
            (self.ttl, self.fresh_until, self.scope) = (ttl, end, scope);
        } else {
            // `None` is the least.
            self.ttl = self.ttl.min(ttl);
            self.fresh_until = self.fresh_until.min(end);
            self.scope = self.scope.max(scope);
        }
        self.pages += 1;
    }
}

/// What the pages of one list held.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// The raw entries, in order.
    pub items: Vec<RawJson>,
    /// Why there may be more.
    pub incomplete: Option<String>,
    /// Whether a page failed, as opposed to a bound that was reached.
    pub broken: bool,
    /// What the server says about keeping the list.
    pub hints: CacheHints,
}

/// The snapshot of one server.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// The tools.
    pub tools: List<Tool>,
    /// The resources.
    pub resources: List<Resource>,
    /// The resource templates.
    pub resource_templates: List<ResourceTemplate>,
    /// The prompts.
    pub prompts: List<Prompt>,
    /// Tools that are not offered because something is wrong with them.
    pub withheld: Vec<Withheld>,
    /// How many tools the rules keep from apps.
    pub not_allowed: u32,
    rules: Arc<ToolRules>,
    /// The tools as they were read, to follow a change of the rules.
    source: Option<Arc<ToolSource>>,
    by_name: HashMap<String, usize>,
    by_model_name: HashMap<String, usize>,
}

/// The tools as a server told them.
#[derive(Debug)]
struct ToolSource {
    pages: Pages,
    over_http: bool,
    at: Timestamp,
}

impl Catalog {
    /// An empty snapshot for a server with these rules.
    #[must_use]
    pub fn new(rules: ToolRules) -> Self {
        Self {
            rules: Arc::new(rules),
            ..Self::default()
        }
    }

    /// Which tools may be seen and called.
    #[must_use]
    pub fn rules(&self) -> &ToolRules {
        &self.rules
    }

    /// Replaces the rules; what is known of the tools follows them.
    pub fn set_rules(&mut self, server: &ServerId, rules: ToolRules) {
        self.rules = Arc::new(rules);
        if let Some(source) = self.source.clone() {
            let incomplete = self.tools.status.incomplete_reason.take();
            self.read_tools(server, &source);
            self.tools.status.incomplete_reason = incomplete;
        }
    }

    /// Replaces the tools. `over_http` decides whether bad `x-mcp-header` annotations matter.
    pub fn set_tools(&mut self, server: &ServerId, pages: Pages, over_http: bool, at: Timestamp) {
        let source = Arc::new(ToolSource {
            pages,
            over_http,
            at,
        });
        self.read_tools(server, &source);
        self.source = Some(source);
    }

    fn read_tools(&mut self, server: &ServerId, source: &ToolSource) {
        let items = &source.pages.items;
        let mut tools: Vec<Tool> = Vec::with_capacity(items.len());
        let mut withheld = Vec::new();
        let mut by_name = HashMap::new();
        let mut seen = Vec::with_capacity(items.len());
        self.not_allowed = 0;
        for item in items {
            let read = entry::read_tool(item, source.over_http);
            let name = read
                .as_ref()
                .map_or_else(|bad| &bad.name, |tool| &tool.name);
            if !name.is_empty() && !self.rules.admit(name) {
                self.not_allowed = self.not_allowed.saturating_add(1);
                continue;
            }
            seen.push(item);
            match read {
                Ok(tool) if by_name.contains_key(&tool.name) => {
                    let reason = "another tool of the server has the same name".to_owned();
                    withheld.push(Withheld {
                        name: tool.name,
                        reason,
                    });
                }
                Ok(tool) => {
                    by_name.insert(tool.name.clone(), tools.len());
                    tools.push(tool);
                }
                Err(bad) => withheld.push(bad),
            }
        }
        for bad in &withheld {
            tracing::warn!(%server, tool = %bad.name, reason = %bad.reason, "a tool is withheld");
        }
        self.by_name = by_name;
        self.withheld = withheld;
        self.tools = list(tools, &seen, &source.pages, source.at);
        self.rename(server);
    }

    /// Derives the model names anew, for the server's id.
    pub fn rename(&mut self, server: &ServerId) {
        self.by_model_name = HashMap::with_capacity(self.tools.entries.len() * 2);
        for (index, tool) in self.tools.entries.iter().enumerate() {
            for style in names::Style::ALL {
                let name = names::model_name(style, server, &tool.name);
                self.by_model_name.insert(name, index);
            }
        }
    }

    /// Replaces the resources.
    pub fn set_resources(&mut self, pages: &Pages, at: Timestamp) {
        self.resources = whole(pages, entry::read_resource, at);
    }

    /// Replaces the resource templates.
    pub fn set_resource_templates(&mut self, pages: &Pages, at: Timestamp) {
        self.resource_templates = whole(pages, entry::read_template, at);
    }

    /// Replaces the prompts.
    pub fn set_prompts(&mut self, pages: &Pages, at: Timestamp) {
        self.prompts = whole(pages, entry::read_prompt, at);
    }

    /// Whether a list is stale; see [`List::is_stale`].
    #[must_use]
    pub fn is_stale(&self, now: Instant) -> bool {
        self.tools.is_stale(now)
            || self.resources.is_stale(now)
            || self.resource_templates.is_stale(now)
            || self.prompts.is_stale(now)
    }

    /// The longest time for which the server vouched for a list.
    #[must_use]
    pub fn longest_ttl(&self) -> Option<Duration> {
        [
            self.tools.status.ttl,
            self.resources.status.ttl,
            self.resource_templates.status.ttl,
            self.prompts.status.ttl,
        ]
        .into_iter()
        .max()
        .flatten()
    }

    /// A tool by its name at the server.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.by_name
            .get(name)
            .and_then(|index| self.tools.entries.get(*index))
    }

    /// A tool by its model name, in either style.
    #[must_use]
    pub fn tool_by_model_name(&self, model_name: &str) -> Option<&Tool> {
        self.by_model_name
            .get(model_name)
            .and_then(|index| self.tools.entries.get(*index))
    }
}

/// A list of everything that can be read.
fn whole<T>(pages: &Pages, read: impl Fn(&RawJson) -> Option<T>, at: Timestamp) -> List<T> {
    let entries = pages.items.iter().filter_map(read).collect();
    let items: Vec<&RawJson> = pages.items.iter().collect();
    list(entries, &items, pages, at)
}

/// A list of entries that were made of these items of its pages.
fn list<T>(entries: Vec<T>, items: &[&RawJson], pages: &Pages, at: Timestamp) -> List<T> {
    let mut hash = Context::new(&SHA256);
    for item in items {
        hash.update(item.bytes());
        hash.update(b"\n");
    }
    let digest = hash.finish();
    let head = digest
        .as_ref()
        .iter()
        .take(8)
        .fold(0_u64, |head, byte| (head << 8) | u64::from(*byte));
    let status = ListStatus {
        count: u32::try_from(entries.len()).unwrap_or(u32::MAX),
        digest: format!("{head:016x}"),
        incomplete_reason: pages.incomplete.clone(),
        fetched: Some(at),
        ttl: pages.hints.ttl,
        cache_scope: pages.hints.scope,
    };
    List {
        entries: entries.into(),
        status,
        fresh_until: pages.hints.fresh_until,
    }
}
