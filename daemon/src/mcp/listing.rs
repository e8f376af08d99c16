//! Walks the pages of a server's lists, within bounds (MCP 2026-07-28 server/utilities/pagination).

use std::sync::Arc;
use std::time::Duration;

use crate::base::Deadline;
use crate::catalog::Pages;
use crate::error::Result;
use crate::mcp::Settings;
use crate::mcp::era::Request;
use crate::mcp::link::Link;
use crate::mcp::protocol::{RawJson, code};

/// Bound on reading one list, over all its pages.
const LONGEST_WALK: Duration = Duration::from_mins(2);

/// Reads a list to its end, or to a bound, or to the first page that fails: what was read stays usable and the reason is
/// noted. A server that does not know the method has an empty list (behaviour 91).
///
/// # Errors
/// When not even the first page could be read.
pub async fn read_list(
    link: &Arc<Link>,
    method: &'static str,
    key: &str,
    settings: &Settings,
) -> Result<Pages> {
    let mut pages = Pages::default();
    let mut cursor: Option<RawJson> = None;
    let end = Deadline::after(LONGEST_WALK);
    let mut bytes = 0_usize;
    for page in 0..settings.list_pages {
        let mut request = Request::new(method);
        if let Some(cursor) = &cursor {
            request = request.param("cursor", cursor.clone());
        }
        let result = match link.request(&request).await {
            Ok(result) => result,
            Err(error)
                if error
                    .rpc()
                    .is_some_and(|rpc| rpc.code == code::METHOD_NOT_FOUND) =>
            {
                return Ok(pages);
            }
            Err(error) if page == 0 => return Err(error),
            Err(error) => {
                pages.broken = true;
                pages.incomplete = Some(format!("page {} could not be read: {error}", page + 1));
                return Ok(pages);
            }
        };
        bytes = bytes.saturating_add(result.as_str().len());
        pages.hints.add(&result);
        match result.get(key).and_then(|list| list.elements()) {
            Some(items) => pages.items.extend(items),
            None => pages.incomplete = Some(format!("page {} has no `{key}` array", page + 1)),
        }
        if pages.items.len() > settings.list_items {
            pages.items.truncate(settings.list_items);
            pages.incomplete = Some(format!(
                "only the first {} entries are kept (limits.list_items)",
                settings.list_items
            ));
            return Ok(pages);
        }
        if bytes > settings.message_bytes {
            pages.incomplete = Some(format!(
                "the list is larger than {} bytes (limits.message_bytes)",
                settings.message_bytes
            ));
            return Ok(pages);
        }
        let next = result
            .get("nextCursor")
            .filter(|next| next.as_str() != "null");
        let Some(next) = next else { return Ok(pages) };
        if end.remaining().is_some_and(|left| left.is_zero()) {
            pages.incomplete = Some(format!("reading took longer than {LONGEST_WALK:?}"));
            return Ok(pages);
        }
        cursor = Some(next);
    }
    pages.incomplete = Some(format!(
        "only the first {} pages were read (limits.list_pages)",
        settings.list_pages
    ));
    Ok(pages)
}
