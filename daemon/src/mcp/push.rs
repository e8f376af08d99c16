//! The stream on which a server says that something has changed: GET in the legacy era (MCP 2025-11-25
//! basic/transports, "Listening for Messages"), `subscriptions/listen` in the modern one (MCP 2026-07-28
//! basic/patterns/subscriptions). Over a legacy child's output notifications come by themselves.
//!
//! A stream that breaks is opened again, with back-off, for as long as the link lives; after a gap everything that could
//! have changed meanwhile is reported as changed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::mcp::era::Request;
use crate::mcp::link::{Link, News};
use crate::mcp::protocol::{Message, ObjectWriter, RawJson, method};
use crate::mcp::transport::http::{Http, StreamEnd};
use crate::mcp::transport::{Loss, Transport};
use crate::model::status::{Era, Push};

/// Shortest and longest pause before a broken stream is opened again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(1));

/// Starts to listen and waits, at most `patience`, until the server has accepted or refused the stream, so that
/// nothing which the first call provokes is missed.
pub async fn start(link: &Arc<Link>, patience: Duration) {
    let (ready_tx, ready) = oneshot::channel();
    match (link.dialect.era(), &link.transport) {
        (Era::Legacy, Transport::Http(http)) => {
            let (link_for_task, http) = (Arc::clone(link), Arc::clone(http));
            link.tasks.spawn(async move {
                let closed = link_for_task.closed.clone();
                tokio::select! {
                    () = legacy(&link_for_task, &http, ready_tx) => {}
                    () = closed.cancelled() => {}
                }
            });
        }
        (Era::Legacy, Transport::Stdio(_)) => {
            link.report(|news| news.push = Some(Push::Open));
            return;
        }
        (Era::Modern, _) => {
            let Some(filter) = filter(link) else {
                link.report(|news| news.push = Some(Push::None));
                return;
            };
            let link_for_task = Arc::clone(link);
            link.tasks.spawn(async move {
                let closed = link_for_task.closed.clone();
                tokio::select! {
                    () = modern(&link_for_task, filter, ready_tx) => {}
                    () = closed.cancelled() => {}
                }
            });
        }
    }
    // Either way the link is usable; a slow stream keeps opening in the background.
    let _ = tokio::time::timeout(patience, ready).await;
}

fn everything_changed(news: &mut News) {
    (news.tools, news.resources, news.prompts) = (true, true, true);
}

fn pause_after(failures: u32) -> Duration {
    PAUSE.0.saturating_mul(1 << failures.min(7)).min(PAUSE.1)
}

async fn legacy(link: &Arc<Link>, http: &Http, ready: oneshot::Sender<()>) {
    let mut ready = Some(ready);
    let mut last_event_id: Option<String> = None;
    let mut failures = 0_u32;
    let mut gap = false;
    loop {
        let mut pause = pause_after(failures);
        match http.open_stream(last_event_id.as_deref()).await {
            Ok(mut stream) => {
                failures = 0;
                let resumed = last_event_id.is_some();
                link.report(|news| {
                    news.push = Some(Push::Open);
                    if gap && !resumed {
                        everything_changed(news);
                    }
                });
                ready.take().map(|ready| ready.send(()));
                let end = loop {
                    match stream.next().await {
                        Ok(message) => link.receive(message, None),
                        Err(end) => break end,
                    }
                };
                if let StreamEnd::TooLarge(error) = end {
                    tracing::warn!(%error, "the notification stream was dropped");
                }
                if let Some(id) = stream.last_event_id() {
                    last_event_id = Some(id.to_owned());
                }
                pause = stream.retry();
            }
            Err(loss) if offers_no_stream(&loss) => {
                link.report(|news| news.push = Some(Push::None));
                return;
            }
            Err(loss) => {
                tracing::debug!(error = %loss.error, "the notification stream cannot be opened");
                failures += 1;
                // The server may have forgotten the stream: begin a new one next time.
                last_event_id = None;
            }
        }
        gap = true;
        link.report(|news| {
            news.push = Some(Push::Lost);
            news.suspect = true;
        });
        tokio::time::sleep(pause).await;
    }
}

/// A server that answers GET with a client error, or without an event stream, offers no stream. An ended session and
/// missing authorization are other matters: the connection deals with them.
fn offers_no_stream(loss: &Loss) -> bool {
    match &loss.refusal {
        Some(refusal) => {
            (400..500).contains(&refusal.status) && refusal.status != 401 && !refusal.session_gone
        }
        None => loss.error.reason() == crate::error::Reason::NotSupported,
    }
}

/// What to listen to: only what the server says it announces. `None` if that is nothing.
fn filter(link: &Link) -> Option<RawJson> {
    let mut filter = ObjectWriter::new();
    for (capability, member) in [
        ("tools", "toolsListChanged"),
        ("prompts", "promptsListChanged"),
        ("resources", "resourcesListChanged"),
    ] {
        if link.peer.has_flag(capability, "listChanged") {
            filter.raw(member, "true");
        }
    }
    (!filter.is_empty()).then(|| filter.finish())
}

async fn modern(link: &Arc<Link>, filter: RawJson, ready: oneshot::Sender<()>) {
    let mut ready = Some(ready);
    let mut failures = 0_u32;
    let mut gap = false;
    loop {
        let request = Request::new(method::LISTEN).param("notifications", filter.clone());
        let frame = link.dialect.encode(&request, link.fresh_id());
        let mut refused = false;
        match link.transport.request(frame).await {
            Ok(mut exchange) => loop {
                if matches!(link.transport, Transport::Stdio(_)) {
                    // On a shared channel the acknowledgement and all that follows arrive with everything else.
                    ready.take().map(|ready| ready.send(()));
                }
                match exchange.next().await {
                    Ok(Message::Notification { method, .. }) if method == method::ACKNOWLEDGED => {
                        failures = 0;
                        link.report(|news| {
                            news.push = Some(Push::Open);
                            if gap {
                                everything_changed(news);
                            }
                        });
                        ready.take().map(|ready| ready.send(()));
                    }
                    // A result is the server's graceful end of the stream; an error before any notification refuses it.
                    Ok(Message::Response { outcome, .. }) => {
                        refused = outcome.is_err() && ready.is_some();
                        break;
                    }
                    Ok(message) => link.receive(message, None),
                    Err(loss) => {
                        tracing::debug!(error = %loss.error, "the notification stream broke");
                        break;
                    }
                }
            },
            Err(loss) => {
                refused = loss
                    .refusal
                    .as_ref()
                    .is_some_and(|refusal| (400..500).contains(&refusal.status));
                tracing::debug!(error = %loss.error, "the notification stream cannot be opened");
            }
        }
        if refused {
            link.report(|news| news.push = Some(Push::None));
            return;
        }
        gap = true;
        link.report(|news| {
            news.push = Some(Push::Lost);
            news.suspect = true;
        });
        tokio::time::sleep(pause_after(failures)).await;
        failures += 1;
    }
}
