//! What a server offers, as one immutable snapshot per connection: tools, resources, templates, prompts.
//!
//! Every entry is read on its own: a bad one is withheld with a reason and spoils nothing. Snapshots are replaced as a
//! whole and shared by reference, so a listing never waits for a server and never sees half of a change.

pub mod entry;
pub mod names;

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};

use crate::base::{ServerId, Timestamp};
use crate::mcp::protocol::RawJson;
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
    /// Tools that are not offered.
    pub withheld: Vec<Withheld>,
    by_name: HashMap<String, usize>,
    by_model_name: HashMap<String, usize>,
}

impl Catalog {
    /// Replaces the tools. `over_http` decides whether bad `x-mcp-header` annotations matter.
    pub fn set_tools(&mut self, server: &ServerId, pages: &Pages, over_http: bool, at: Timestamp) {
        let mut tools: Vec<Tool> = Vec::with_capacity(pages.items.len());
        let mut withheld = Vec::new();
        let mut by_name = HashMap::new();
        for item in &pages.items {
            match entry::read_tool(item, over_http) {
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
        self.tools = list(tools, pages, at);
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
        self.resources = list(
            pages
                .items
                .iter()
                .filter_map(entry::read_resource)
                .collect(),
            pages,
            at,
        );
    }

    /// Replaces the resource templates.
    pub fn set_resource_templates(&mut self, pages: &Pages, at: Timestamp) {
        let templates = pages
            .items
            .iter()
            .filter_map(entry::read_template)
            .collect();
        self.resource_templates = list(templates, pages, at);
    }

    /// Replaces the prompts.
    pub fn set_prompts(&mut self, pages: &Pages, at: Timestamp) {
        self.prompts = list(
            pages.items.iter().filter_map(entry::read_prompt).collect(),
            pages,
            at,
        );
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

fn list<T>(entries: Vec<T>, pages: &Pages, at: Timestamp) -> List<T> {
    let mut hash = Context::new(&SHA256);
    for item in &pages.items {
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
    };
    List {
        entries: entries.into(),
        status,
    }
}
