//! The stream on which a server says that something has changed: GET in the legacy era (MCP 2025-11-25
//! basic/transports, "Listening for Messages"), `subscriptions/listen` in the modern one (MCP 2026-07-28
//! basic/patterns/subscriptions). On a channel that carries everything, such as a legacy child's output, notifications
//! come by themselves.
//!
//! A stream that breaks is opened again, with back-off, for as long as the link lives; after a gap everything that could
//! have changed meanwhile is reported as changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::base::Clock;
use crate::error::Reason;
use crate::mcp::era::Request;
use crate::mcp::link::Link;
use crate::mcp::protocol::{Message, ObjectWriter, RawJson, method};
use crate::mcp::transport::http::{Http, StreamEnd};
use crate::mcp::transport::{Loss, Transport};
use crate::model::status::{Era, Push};

/// Shortest and longest pause before a stream is opened again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(1));
/// A stream that lived this long, or that brought anything, was a good one: the back-off begins anew.
const GOOD_AFTER: Duration = Duration::from_secs(5);
/// Longest wait for a stream before the link is used without it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Starts to listen and waits a moment until the server has accepted or refused the stream, so that nothing which the
/// first call provokes is missed.
pub async fn start(link: &Arc<Link>) {
    let (ready_tx, ready) = oneshot::channel();
    let listener = Listener {
        link: Arc::clone(link),
        ready: Some(ready_tx),
        failures: 0,
        gap: false,
    };
    let closed = link.closed.clone();
    match (link.dialect.era(), &link.transport) {
        (Era::Legacy, Transport::Http(http)) => {
            let http = Arc::clone(http);
            link.tasks.spawn(async move {
                tokio::select! {
                    () = listener.legacy(&http) => {}
                    () = closed.cancelled() => {}
                }
            });
        }
        (Era::Legacy, Transport::HttpSse(_) | Transport::Stdio(_) | Transport::UnixLines(_)) => {
            let all = announces_all(link);
            link.report(|news| (news.push, news.announces_all) = (Some(Push::Open), Some(all)));
            return;
        }
        (Era::Modern, _) => {
            let Some(filter) = filter(link) else {
                link.report(|news| news.push = Some(Push::None));
                return;
            };
            link.tasks.spawn(async move {
                tokio::select! {
                    () = listener.modern(&filter) => {}
                    () = closed.cancelled() => {}
                }
            });
        }
    }
    // Either way the link is usable; a slow stream keeps opening in the background.
    let _ = tokio::time::timeout(PATIENCE, ready).await;
}

/// Lists that a server can announce changes of: the capability, and the member of a modern filter.
const ANNOUNCED: [(&str, &str); 3] = [
    ("tools", "toolsListChanged"),
    ("prompts", "promptsListChanged"),
    ("resources", "resourcesListChanged"),
];

/// Whether the server says that it announces changes of every list that it has.
fn announces_all(link: &Link) -> bool {
    let mut lists = ANNOUNCED
        .iter()
        .filter(|(capability, _)| link.peer.has(capability));
    lists.all(|(capability, _)| link.peer.has_flag(capability, "listChanged"))
}

/// What to listen to: only what the server says it announces. `None` if that is nothing.
fn filter(link: &Link) -> Option<RawJson> {
    let mut filter = ObjectWriter::new();
    for (capability, member) in ANNOUNCED {
        if link.peer.has_flag(capability, "listChanged") {
            filter.raw(member, "true");
        }
    }
    (!filter.is_empty()).then(|| filter.finish())
}

/// One listening task.
struct Listener {
    link: Arc<Link>,
    ready: Option<oneshot::Sender<()>>,
    /// Streams in a row that were no good.
    failures: u32,
    /// Something may have been missed since the last stream.
    gap: bool,
}

impl Listener {
    /// Lets the link be used; the first outcome counts.
    fn settle(&mut self) {
        self.ready.take().map(|ready| ready.send(()));
    }

    /// A stream is open. After a gap everything that could have changed meanwhile counts as changed.
    fn open(&mut self, complete: bool, all: bool) {
        let missed = self.gap && !complete;
        self.link.report(|news| {
            (news.push, news.announces_all) = (Some(Push::Open), Some(all));
            if missed {
                (news.tools, news.resources, news.prompts) = (true, true, true);
            }
        });
        self.gap = false;
        self.settle();
    }

    /// The server has no such stream.
    fn none(&mut self) {
        self.link.report(|news| news.push = Some(Push::None));
        self.settle();
    }

    /// A stream cannot be opened.
    fn lost(&mut self) {
        self.failures += 1;
        self.link
            .report(|news| (news.push, news.suspect) = (Some(Push::Lost), true));
        self.settle();
    }

    /// A stream has ended; it was good if it brought something or lived for a while.
    fn ended(&mut self, since: Instant, brought: bool) {
        self.gap = true;
        if brought || Clock.now().saturating_duration_since(since) >= GOOD_AFTER {
            self.failures = 0;
        } else {
            self.failures += 1;
        }
    }

    /// The pause before the next stream, not shorter than the server wants it.
    fn pause(&self, wanted: Duration) -> Duration {
        let backoff = PAUSE
            .0
            .saturating_mul(1 << self.failures.min(7))
            .min(PAUSE.1);
        backoff.max(wanted)
    }

    async fn legacy(mut self, http: &Http) {
        let mut last_event_id: Option<String> = None;
        loop {
            let mut wanted = PAUSE.0;
            match http.open_stream(last_event_id.as_deref()).await {
                Ok(mut stream) => {
                    let (since, mut brought) = (Clock.now(), false);
                    // A server that resumes a stream sends what was missed, if it can: only a new stream has a gap.
                    self.open(last_event_id.is_some(), announces_all(&self.link));
                    let end = loop {
                        match stream.next().await {
                            Ok(message) => {
                                brought = true;
                                self.link.receive(message, None);
                            }
                            Err(end) => break end,
                        }
                    };
                    self.ended(since, brought);
                    wanted = stream.retry();
                    last_event_id = stream.last_event_id().map(str::to_owned).or(last_event_id);
                    match end {
                        StreamEnd::Closed => {}
                        StreamEnd::Broken => self.link.report(|news| news.suspect = true),
                        StreamEnd::Unusable(error) => {
                            tracing::warn!(%error, "the notification stream was dropped");
                            // Behind the same event the same message would come again.
                            last_event_id = None;
                        }
                    }
                }
                Err(loss) if offers_no_stream(&loss) => return self.none(),
                Err(loss) => {
                    tracing::debug!(error = %loss.error, "the notification stream cannot be opened");
                    self.lost();
                    // The server may have forgotten the stream: begin a new one next time.
                    last_event_id = None;
                }
            }
            tokio::time::sleep(self.pause(wanted)).await;
        }
    }

    async fn modern(mut self, filter: &RawJson) {
        loop {
            let request = Request::new(method::LISTEN).param("notifications", filter.clone());
            let frame = self.link.encode(&request);
            let (since, mut brought) = (Clock.now(), false);
            match self.link.transport.request(frame).await {
                Ok(mut exchange) => loop {
                    match exchange.next().await {
                        Ok(Message::Notification { method, params })
                            if method == method::ACKNOWLEDGED =>
                        {
                            let accepted = params.and_then(|params| params.get("notifications"));
                            let all =
                                announces_all(&self.link) && covers(accepted.as_ref(), filter);
                            self.open(false, all);
                        }
                        // A result is the server's graceful end of the stream; an error before anything else refuses it.
                        Ok(Message::Response { outcome, .. }) => {
                            if outcome.is_err() && !brought && self.ready.is_some() {
                                return self.none();
                            }
                            break;
                        }
                        Ok(message) => {
                            brought = true;
                            self.link.receive(message, None);
                        }
                        Err(loss) => {
                            tracing::debug!(error = %loss.error, "the notification stream broke");
                            self.link.report(|news| news.suspect = true);
                            break;
                        }
                    }
                },
                Err(loss) if offers_no_stream(&loss) => return self.none(),
                Err(loss) => {
                    tracing::debug!(error = %loss.error, "the notification stream cannot be opened");
                    self.lost();
                    tokio::time::sleep(self.pause(PAUSE.0)).await;
                    continue;
                }
            }
            self.ended(since, brought);
            self.settle();
            tokio::time::sleep(self.pause(PAUSE.0)).await;
        }
    }
}

/// Whether the server accepted everything that was asked for.
fn covers(accepted: Option<&RawJson>, asked: &RawJson) -> bool {
    let members = asked.members().unwrap_or_default();
    members.iter().all(|(name, _)| {
        let member = accepted.and_then(|accepted| accepted.get(name));
        member
            .and_then(|member| member.read::<bool>())
            .unwrap_or(false)
    })
}

/// Whether a refusal means that there is no such stream, now and later. Overload, an ended session and missing
/// authorization are other matters.
fn offers_no_stream(loss: &Loss) -> bool {
    match &loss.refusal {
        Some(refusal) => {
            matches!(refusal.status, 400 | 403..=406 | 410 | 501) && !refusal.session_gone
        }
        None => loss.error.reason() == Reason::NotSupported,
    }
}
