//! One round of a call: made on the server's link, and the one place that ever makes it twice.
//!
//! A call that the server refused before looking at it is made once more: on a new link when the session was gone, with fresh
//! tool definitions when mirrored headers did not match (MCP 2026-07-28 basic/transports/streamable-http, "Client Behavior"). A
//! call whose answer was cut off is made once more if the operator allows it and the tool says that it may be carried out
//! twice. Nothing else is ever repeated. A task whose link was lost is waited for on the next one.

use std::sync::Arc;

use super::Calls;
use crate::base::AppConnection;
use crate::catalog::Catalog;
use crate::error::{Error, Reason, Result};
use crate::mcp::era::{Replies, Request};
use crate::mcp::link::{
    Answered, CallFailure, CallOptions, Link, Patience, Repeat, Unfinished, closed_error,
};
use crate::mcp::protocol::{RawJson, method};
use crate::model::spec::{LogLevel, TransportSpec};
use crate::registry::Server;
use crate::traces::Traced;

/// Sign-ins that one call waits for.
const MAX_SIGN_INS: u32 = 5;

/// One round.
pub(super) struct Attempt<'a> {
    pub(super) server: &'a Server,
    /// On whose behalf.
    pub(super) app: &'a AppConnection,
    pub(super) options: &'a CallOptions,
    pub(super) meta: &'a [(String, RawJson)],
    pub(super) log_level: Option<LogLevel>,
    pub(super) wait_for_sign_in: bool,
    /// What the server wanted in the round before; `None` in the first.
    pub(super) replies: Option<&'a Replies>,
}

/// What a round has come to.
pub(super) struct Reached {
    pub(super) answered: Answered,
    /// Where it was made.
    pub(super) link: Arc<Link>,
    pub(super) catalog: Arc<Catalog>,
}

impl Attempt<'_> {
    /// Makes the round. `build` makes the request for the catalog of the link that is used; `harmless` says whether it may be
    /// carried out twice. Dropping the future cancels the call at the server.
    ///
    /// # Errors
    /// Those of `build`; why the server cannot be used; `UPSTREAM_ERROR`; `OUTCOME_UNKNOWN`.
    pub(super) async fn make(
        &self,
        calls: &Calls,
        patience: &mut Patience,
        harmless: impl Fn(&Catalog) -> bool,
        build: impl Fn(&Link, &Catalog) -> Result<Request>,
    ) -> Result<Reached> {
        let Self {
            server, options, ..
        } = self;
        let mut refused = false;
        // What is known of the call since its answer was cut off, or its task lost its link.
        let mut cut_off: Option<Error> = None;
        let mut task: Option<Unfinished> = None;
        let mut target: Option<Arc<TransportSpec>> = None;
        let mut sign_ins = 0;
        loop {
            let mut used = None;
            let before = server.handle.sign_ins();
            let attempt = async {
                let (link, catalog) = server.handle.link_for(self.app, options.deadline).await?;
                // What may have had an effect goes on where it began, with the same credentials, or nowhere.
                let before = target.replace(Arc::clone(link.target()));
                if cut_off.is_some() && before.is_some_and(|before| before != *link.target()) {
                    return Err(moved().into());
                }
                let (link, catalog) = used.insert((link, catalog));
                if let Some(task) = task.take() {
                    let outcome = Box::pin(link.resume(task, options, patience)).await;
                    return outcome.map(Answered::Complete);
                }
                let mut request = build(link, catalog)?;
                request.meta = self.meta.to_vec();
                let traced = self.traced(&mut request);
                request.log_level = self.log_level;
                if let Some(replies) = self.replies {
                    request.replies = replies.clone();
                }
                let first = self.replies.is_none();
                let outcome = link.call(request, options, patience, first).await;
                let failed = outcome.as_ref().err();
                traced.outcome(failed.map(|failure| failure.error.reason()));
                outcome
            };
            let outcome: std::result::Result<Answered, CallFailure> = attempt.await;
            let (link, catalog) = match used {
                Some((link, catalog)) => (Some(link), catalog),
                None => (None, Arc::default()),
            };
            let failure = match outcome {
                Ok(answered) => {
                    let link = link.ok_or_else(closed_error)?;
                    return Ok(Reached {
                        answered,
                        link,
                        catalog,
                    });
                }
                Err(failure) => failure,
            };
            if self.wait_for_sign_in
                && failure.error.reason() == Reason::SignInRequired
                && cut_off.is_none()
                && sign_ins < MAX_SIGN_INS
                && server.handle.signed_in(before, options.deadline).await
            {
                // It was refused before it was looked at.
                sign_ins += 1;
                continue;
            }
            let fresh_tools = failure.repeat == Some(Repeat::WithFreshTools);
            match failure.repeat {
                Some(Repeat::GoOn(unfinished)) => {
                    cut_off = Some(failure.error.clone());
                    task = Some(unfinished);
                }
                Some(Repeat::OnNewLink | Repeat::WithFreshTools) if !refused => refused = true,
                Some(Repeat::IfHarmless)
                    if calls.0.settings.repeat_safe && cut_off.is_none() && harmless(&catalog) =>
                {
                    cut_off = Some(failure.error.clone());
                }
                _ => {
                    let error = cut_off
                        .filter(|_| !is_about_the_call(failure.error.reason()))
                        .unwrap_or(failure.error);
                    return Err(error.with("server_id", server.record.key.id.as_str()));
                }
            }
            tracing::debug!(error = %failure.error, "a call is made again");
            if fresh_tools {
                let refreshed = server.handle.refresh().await.done();
                let _ = tokio::time::timeout(options.idle_timeout, refreshed).await;
            }
        }
    }
}

impl Attempt<'_> {
    /// The span of this request, below the one that its `_meta` names, which from then on is this one.
    fn traced(&self, request: &mut Request) -> Traced {
        const KEY: &str = "traceparent";
        let known = request.meta.iter().position(|(key, _)| key == KEY);
        let parent: Option<String> = known
            .and_then(|at| request.meta.get(at))
            .and_then(|(_, value)| serde_json::from_str(value.as_str()).ok());
        let server = self.server.record.key.id.as_str();
        let tool = (request.method == method::TOOLS_CALL).then_some(request.name.as_deref());
        let tool = tool.flatten();
        let traced = Traced::request(request.method, server, tool, parent.as_deref());
        if let Some(traceparent) = traced.traceparent() {
            let value = RawJson::encode(&traceparent);
            match known.and_then(|at| request.meta.get_mut(at)) {
                Some((_, known)) => *known = value,
                None => request.meta.push((KEY.to_owned(), value)),
            }
        }
        traced
    }
}

/// The server is another one than when the call began.
pub(super) fn moved() -> Error {
    Error::new(
        Reason::UpstreamUnreachable,
        "the server was moved while the call was under way",
    )
}

/// Whether a failed repetition says more about a call than that its first answer was cut off. What kept the repetition from
/// being sent does not: the first one may have had its effect all the same.
fn is_about_the_call(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::UpstreamError
            | Reason::UpstreamTimeout
            | Reason::UpstreamProtocol
            | Reason::DeadlineExceeded
            | Reason::OutcomeUnknown
            | Reason::MessageTooLarge
    )
}
