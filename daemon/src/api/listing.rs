//! A page of what several servers offer, with what is wrong with their lists: the walk of every listing of the catalog.

use mcp_sidecar_proto::v1;

use super::convert;
use super::page::Page;
use crate::error::Result;
use crate::model::status::{ConnectionState, ListStatus};
use crate::registry::Server;

/// Entries of a page by default.
const PAGE: usize = 500;

/// A page that is being filled, and the issues that its first page tells.
#[derive(Debug)]
pub(super) struct Listing<T> {
    page: Page<T>,
    issues: Vec<v1::ListingIssue>,
}

impl<T: prost::Message> Listing<T> {
    /// An empty page at the place of a token.
    ///
    /// # Errors
    /// As [`Page::start`].
    pub(super) fn start(page_token: &str, page_size: u32) -> Result<Self> {
        Ok(Self {
            page: Page::start(page_token, page_size, PAGE)?,
            issues: Vec::new(),
        })
    }

    /// Offers entries of one list of a server, each with its index in that list. Servers must come in the order of their
    /// ids.
    pub(super) fn offer<'a, E: 'a>(
        &mut self,
        server: &Server,
        list: &ListStatus,
        entries: impl Iterator<Item = (usize, &'a E)>,
        convert: impl Fn(&E) -> T,
    ) {
        if self.page.is_first() {
            server.handle.look_again_if_stale();
            self.issues.extend(issue(server, list));
        }
        let id = server.record.key.id.as_str();
        self.page.offer(id, entries, convert);
    }

    /// The entries, the token of the next page (empty on the last), and the issues.
    pub(super) fn finish(self) -> (Vec<T>, String, Vec<v1::ListingIssue>) {
        let (entries, next_page_token) = self.page.finish();
        (entries, next_page_token, self.issues)
    }
}

/// Why a server's entries are missing or may be out of date; `None` if they are not.
fn issue(server: &Server, list: &ListStatus) -> Option<v1::ListingIssue> {
    let status = server.live().status;
    let (reason, message) = match (status.state, &list.incomplete_reason) {
        (ConnectionState::Ready, None) => return None,
        (ConnectionState::Ready, Some(incomplete)) => ("LIST_INCOMPLETE", incomplete.clone()),
        _ => {
            let error = server.why_not_usable();
            (error.reason().as_str(), error.message().to_owned())
        }
    };
    Some(v1::ListingIssue {
        server_id: server.record.key.id.to_string(),
        state: convert::connection_state(status.state).into(),
        reason: reason.to_owned(),
        message,
    })
}
