//! Complete lists from pages.

use std::future::Future;

use crate::error::{Error, Result};
use crate::proto::ListingIssue;

/// Entries of all matching servers, and the servers whose entries are missing or may be out of date.
#[derive(Clone, PartialEq, Debug)]
pub struct Listing<T> {
    /// The entries, in order of server id and then in the server's own order.
    pub items: Vec<T>,
    /// Servers that match and whose entries are missing or incomplete. An empty list means: this is everything.
    pub issues: Vec<ListingIssue>,
}

/// One page: entries, issues (first page only), token of the next page.
pub(crate) type Page<T> = (Vec<T>, Vec<ListingIssue>, String);

/// Fetches pages until the last one. The daemon bounds the number of entries.
pub(crate) async fn all_pages<T, F, Fut>(mut fetch: F) -> Result<Listing<T>>
where
    F: FnMut(String) -> Fut,
    Fut: Future<Output = Result<Page<T>>>,
{
    let mut listing = Listing {
        items: Vec::new(),
        issues: Vec::new(),
    };
    let mut token = String::new();
    loop {
        let (items, issues, next) = fetch(token.clone()).await?;
        listing.items.extend(items);
        listing.issues.extend(issues);
        if next.is_empty() {
            return Ok(listing);
        }
        if next == token {
            return Err(Error::Contract("a page names itself as the next one"));
        }
        token = next;
    }
}
