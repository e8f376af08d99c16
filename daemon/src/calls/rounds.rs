//! From what a server asks to the next request: rounds of one call, until it is done or has to wait for people.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::Calls;
use super::attempt::{Attempt, Reached, moved};
use super::plan::{Plan, Slot, Wait};
use crate::base::{AppConnection, CallId, Clock};
use crate::catalog::Catalog;
use crate::error::{Error, Reason, Result};
use crate::inputs::NewQuestion;
use crate::mcp::asker::Need;
use crate::mcp::era::{InputRequired, Replies};
use crate::mcp::link::{Answered, CallOptions, Link, Patience, not_answered};
use crate::mcp::protocol::RawJson;
use crate::model::question::Question;
use crate::registry::Server;

/// How often a server may ask for exactly the same in a row, with the same state: it does not look at the answers.
const MAX_SAME: u32 = 5;
/// Shortest and longest pause before a call is made again whose server waits for a page to be done with.
const AGAIN: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// How far a call has come.
pub(super) enum Advance {
    /// It has a result, made with this catalog.
    Done(RawJson, Arc<Catalog>),
    /// It waits for the answers to these questions; its plan says for what.
    Rest(Vec<Question>),
}

/// What a server asks for, by its keys, and what of it is a question.
type Sorted = (Vec<(String, Slot)>, Vec<Question>);

impl Calls {
    /// Makes rounds until the call is done or has to rest. `replies` is `None` in the first round of all. Dropping the future
    /// cancels the call at the server.
    ///
    /// # Errors
    /// Why there is no result.
    pub(super) async fn advance(
        &self,
        server: &Server,
        app: &AppConnection,
        options: &CallOptions,
        plan: &mut Plan,
        mut replies: Option<Replies>,
    ) -> Result<Advance> {
        // What a server wanted to know is no other server's affair.
        if plan.target != server.record.spec.target() {
            return Err(moved().with("server_id", server.record.key.id.as_str()));
        }
        let mut patience = Patience::with(options, plan.left);
        let mut waits = 0;
        loop {
            let operation = &plan.operation;
            let attempt = Attempt {
                server,
                app,
                options,
                meta: &plan.meta,
                log_level: plan.log_level,
                wait_for_sign_in: plan.wait_for_sign_in,
                replies: replies.as_ref(),
            };
            let made = attempt.make(
                self,
                &mut patience,
                |catalog| operation.is_harmless(catalog),
                |link, catalog| operation.request(server, link, catalog),
            );
            let Reached {
                answered,
                link,
                catalog,
            } = made.await?;
            let asked = match answered {
                Answered::Complete(result) => return Ok(Advance::Done(result, catalog)),
                Answered::Asked(asked) => asked,
            };
            if still_open(plan, &asked) {
                let pause = AGAIN.0.saturating_mul(1 << waits.min(8)).min(AGAIN.1);
                tokio::time::sleep(pause).await;
                waits += 1;
                continue;
            }
            count(plan, &asked, link.max_rounds())?;
            let (slots, questions) = self.consider(&link, &options.call_id, &asked).await?;
            plan.wait = Some(Wait {
                slots,
                state: asked.state,
                by_error: asked.by_error,
            });
            if !questions.is_empty() {
                plan.left = patience.left();
                return Ok(Advance::Rest(questions));
            }
            replies = Some(plan.replies(&[])?);
        }
    }

    /// Sorts what a server asks for: what needs nobody, and the questions.
    async fn consider(&self, link: &Link, call: &CallId, asked: &InputRequired) -> Result<Sorted> {
        let (mut slots, mut questions) = (Vec::new(), Vec::new());
        for request in &asked.requests {
            let asker = link.asker();
            let need = asker.consider(&request.method, &request.params, asked.told);
            let slot = match need.map_err(|refused| not_answered(&request.method, refused))? {
                Need::Nobody(answer) => Slot::Answer(answer),
                Need::Human(question) => {
                    let question = self.0.inputs.prepare(NewQuestion {
                        call_id: Some(call.clone()),
                        ..question
                    })?;
                    let id = question.id.clone();
                    questions.push(question);
                    Slot::Question(id, request.method.clone())
                }
                Need::Declined(question) => {
                    let answer = asker.decline(&request.method, question, Some(call)).await;
                    if asked.by_error {
                        return Err(unattended());
                    }
                    Slot::Answer(answer.map_err(|why| not_answered(&request.method, why))?)
                }
            };
            slots.push((request.key.clone(), slot));
        }
        Ok((slots, questions))
    }
}

fn unattended() -> Error {
    Error::new(
        Reason::InputDeclined,
        "what the server needs nobody is there to give, and it does not go on without",
    )
}

/// Whether the server still waits for pages to be done with that were opened for it.
fn still_open(plan: &Plan, asked: &InputRequired) -> bool {
    let Some((opened, until)) = &plan.opened else {
        return false;
    };
    let all = asked
        .requests
        .iter()
        .all(|request| opened.contains(&request.key));
    asked.by_error && all && Clock.wall() < *until
}

/// Counts a round of questions.
///
/// # Errors
/// `UPSTREAM_PROTOCOL` for one too many, or when the server does not look at what it is told.
fn count(plan: &mut Plan, asked: &InputRequired, max_rounds: usize) -> Result<()> {
    if plan.rounds >= max_rounds {
        return Err(Error::new(
            Reason::UpstreamProtocol,
            format!(
                "the server asked for more input {} times (limits.rounds)",
                plan.rounds + 1
            ),
        ));
    }
    plan.rounds += 1;
    let mut hasher = DefaultHasher::new();
    asked.state.as_ref().map(RawJson::as_str).hash(&mut hasher);
    for request in &asked.requests {
        (&request.key, &request.method, request.params.as_str()).hash(&mut hasher);
    }
    let round = hasher.finish();
    let times = match plan.last {
        Some((last, times)) if last == round => times + 1,
        _ => 1,
    };
    plan.last = Some((round, times));
    if times > MAX_SAME {
        return Err(Error::new(
            Reason::UpstreamProtocol,
            format!("the server asked the same {times} times in a row, whatever it was told"),
        ));
    }
    Ok(())
}
