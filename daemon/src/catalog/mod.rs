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

use aws_lc_rs::digest::{Context, SHA256};

use crate::base::{ServerId, Timestamp};
use crate::mcp::protocol::RawJson;
use crate::model::rules::ToolRules;
use crate::model::status::{ListStatus, Withheld};
use entry::{Prompt, Resource, ResourceTemplate, Tool};

/// One list with what is known about it.
#[derive(Clone, Debug)]
pub struct List<T> {
    /// The entries, in the server's order.
    pub entries: Arc<[T]>,
    /// What the status shows of it.
    pub status: ListStatus,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self {
            entries: Arc::from([]),
            status: ListStatus::default(),
        }
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
        let incomplete = source.pages.incomplete.clone();
        self.tools = list(tools, &seen, incomplete, source.at);
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
    list(entries, &items, pages.incomplete.clone(), at)
}

fn list<T>(
    entries: Vec<T>,
    items: &[&RawJson],
    incomplete_reason: Option<String>,
    at: Timestamp,
) -> List<T> {
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
        incomplete_reason,
        fetched: Some(at),
    };
    List {
        entries: entries.into(),
        status,
    }
}
