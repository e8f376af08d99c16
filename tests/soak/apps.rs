//! The apps that call: every kind of call, given up in every way, over connections that come and go.

use std::sync::Arc;
use std::time::Duration;

use mcp_sidecar_tests::clients::millis;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use crate::World;
use crate::dice::Dice;
use crate::ledger::Ticket;
use crate::servers::{ACTS, Server, Way, expected};

/// Calls that one app has under way at the same time.
const CALLERS: usize = 8;
/// What a call without a deadline may take at most: its server is dialled anew, its questions wait.
const LONGEST: Duration = Duration::from_secs(90);
/// What a call may take beyond its deadline.
const MARGIN: Duration = Duration::from_secs(10);
/// And what it may take where the app itself reads slowly: what one stream leaves unread fills the window of the connection,
/// and the other streams wait until it goes on.
const SLOW_MARGIN: Duration = Duration::from_mins(1);

/// How an app behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// Stays.
    Steady,
    /// Breaks its connection off, with everything on it, and comes back.
    Reconnecting,
    /// Takes its time between the events of a stream, or stops to read for a while.
    Slow,
}

/// How a call is to end, if it is up to us.
enum End {
    /// By itself.
    Itself,
    /// It is dropped after so long.
    Drop(Duration),
    /// At its deadline.
    Deadline(Duration),
    /// At the timeout that the daemon is asked to keep.
    Timeout(Duration),
}

/// Lives until `stop`.
pub(crate) async fn live(
    world: Arc<World>,
    number: usize,
    manner: Manner,
    stop: CancellationToken,
) {
    let mut dice = world.dice.of("app", number);
    let mut life = 0;
    while !stop.is_cancelled() {
        let app = Clients::connect(&world.socket).await;
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let dice = world.dice.of("caller", (life * 100 + number) * 10 + caller);
            let (world, app, stop) = (Arc::clone(&world), app.clone(), stop.clone());
            callers.spawn(async move { call_on(&world, &app, dice, manner, stop).await });
        }
        drop(app);
        if manner == Manner::Reconnecting {
            let length = dice.millis(1_000..20_000);
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(length) => {
                    world.ledger.event("connection broken off");
                    callers.abort_all();
                }
            }
        }
        while let Some(ended) = callers.join_next().await {
            if ended.is_err_and(|error| error.is_panic()) {
                world
                    .ledger
                    .fail(format!("a caller of app {number} panicked"));
            }
        }
        life += 1;
    }
}

async fn call_on(
    world: &World,
    app: &Clients,
    mut dice: Dice,
    manner: Manner,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let server = dice.pick(&world.servers);
        let act = if server.way == Way::Program {
            "echo"
        } else {
            dice.pick(ACTS)
        };
        let pauses = match (manner, dice.percent(20)) {
            (Manner::Slow, true) => (dice.millis(1_000..5_000), Duration::ZERO),
            (Manner::Slow, false) => (Duration::ZERO, Duration::from_millis(5)),
            _ => (Duration::ZERO, Duration::ZERO),
        };
        let one = Call {
            world,
            app,
            server,
            act,
            slow: manner == Manner::Slow,
            pauses,
        };
        one.make(&mut dice).await;
        tokio::time::sleep(dice.millis(0..60)).await;
    }
}

struct Call<'a> {
    world: &'a World,
    app: &'a Clients,
    server: &'a Server,
    act: &'static str,
    /// Whether the app reads slowly.
    slow: bool,
    /// The pause after the first event of a stream, and after each of the others.
    pauses: (Duration, Duration),
}

/// What came back.
struct Back {
    text: String,
    is_error: bool,
}

impl Call<'_> {
    async fn make(&self, dice: &mut Dice) {
        let ticket = self.world.ledger.start(self.act);
        let size = match dice.within(0..100) {
            0 => dice.within(1_000_000..4_000_000),
            1..10 => dice.within(100_000..1_000_000),
            _ => dice.within(0..20_000),
        };
        let (token, id) = (dice.roll(), ticket.id);
        let arguments = format!(
            r#"{{"id":{id},"act":"{}","size":{size},"token":"{token:x}"}}"#,
            self.act
        );
        let tool = if self.server.way == Way::Program {
            "echo"
        } else {
            "work"
        };
        let mut call = self.app.call(&self.server.id, tool, &arguments);
        if dice.percent(30) {
            call.log_level = v1::LogLevel::Debug.into();
        }
        let end = match dice.within(0..100) {
            0..60 => End::Itself,
            60..75 => End::Drop(dice.millis(0..600)),
            75..90 => End::Deadline(dice.millis(20..3_000)),
            _ => End::Timeout(dice.millis(100..2_000)),
        };
        let (mut deadline, mut bound) = (None, LONGEST);
        match end {
            End::Deadline(after) => {
                let margin = if self.slow { SLOW_MARGIN } else { MARGIN };
                (deadline, bound) = (Some(after), after + margin);
            }
            End::Timeout(after) => {
                call.timeout = Some(millis(u64::try_from(after.as_millis()).unwrap()));
            }
            End::Itself | End::Drop(_) => {}
        }
        let streamed = dice.percent(50);
        let work = async {
            if streamed {
                self.stream(call, deadline).await
            } else {
                self.unary(call, deadline).await
            }
        };
        if let End::Drop(after) = end {
            tokio::select! {
                outcome = work => self.settle(ticket, outcome, &arguments, deadline),
                () = tokio::time::sleep(after) => ticket.cancelled("by dropping it"),
            }
            return;
        }
        if let Ok(outcome) = tokio::time::timeout(bound, work).await {
            self.settle(ticket, outcome, &arguments, deadline);
        } else {
            let server = &self.server.id;
            ticket.wrong(&format!(
                "no end within {bound:?} at {server} (streamed: {streamed})"
            ));
        }
    }

    /// `Err(Ok(status))` is a refusal, `Err(Err(text))` what must not be.
    async fn unary(
        &self,
        call: v1::ToolCall,
        deadline: Option<Duration>,
    ) -> Result<Back, Result<Status, String>> {
        let mut request = Request::new(v1::CallToolRequest { call: Some(call) });
        if let Some(deadline) = deadline {
            request.set_timeout(deadline);
        }
        let answer = self.app.tools().call_tool(request).await;
        let answer = answer.map_err(Ok)?.into_inner();
        let result = answer.result.ok_or_else(|| Err("no result".to_owned()))?;
        Ok(back(&result))
    }

    async fn stream(
        &self,
        call: v1::ToolCall,
        deadline: Option<Duration>,
    ) -> Result<Back, Result<Status, String>> {
        let mut request = Request::new(v1::CallToolStreamRequest { call: Some(call) });
        if let Some(deadline) = deadline {
            request.set_timeout(deadline);
        }
        let events = self.app.tools().call_tool_stream(request).await;
        let mut events = events.map_err(Ok)?.into_inner();
        let (mut started, mut result) = (0, None);
        let (mut pause, next_pause) = self.pauses;
        while let Some(message) = events.message().await.map_err(Ok)? {
            if result.is_some() {
                return Err(Err(format!("{message:?} behind the result")));
            }
            match message.event {
                Some(Event::Started(_)) => started += 1,
                Some(Event::Result(last)) => result = Some(back(&last)),
                Some(_) if started == 1 => {}
                other => return Err(Err(format!("{other:?} before the start"))),
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            pause = next_pause;
        }
        if started != 1 {
            return Err(Err(format!("started {started} times")));
        }
        result.ok_or_else(|| Err("the stream ended without a result".to_owned()))
    }

    fn settle(
        &self,
        ticket: Ticket,
        outcome: Result<Back, Result<Status, String>>,
        arguments: &str,
        deadline: Option<Duration>,
    ) {
        let status = match outcome {
            Ok(back) => {
                return match self.check(ticket.id, &back, arguments) {
                    Ok(()) => ticket.result(self.server.way != Way::Program),
                    Err(details) => ticket.wrong(&details),
                };
            }
            Err(Ok(status)) => status,
            Err(Err(details)) => return ticket.wrong(&details),
        };
        let facts = ErrorFacts::of(&status);
        if facts.domain == "mcpsidecar" && !facts.reason.is_empty() {
            ticket.error(&facts.reason, &facts.message);
        } else if deadline.is_some() && facts.message.contains("Timeout expired") {
            ticket.cancelled("by our own clock at the deadline");
        } else {
            ticket.wrong(&format!("an error without a reason: {status:?}"));
        }
    }

    fn check(&self, id: u64, back: &Back, arguments: &str) -> Result<(), String> {
        let head = |text: &str| text.chars().take(200).collect::<String>();
        match self.act {
            "ask" => answered(id, &back.text),
            "error" | "broken" | "reset" | "hang" => {
                Err(format!("a result of `{}`: {}", self.act, head(&back.text)))
            }
            act => {
                let wanted = expected(act, arguments);
                if back.text != wanted {
                    let (got, server) = (head(&back.text), &self.server.id);
                    return Err(format!(
                        "{server} gave `{got}`, expected `{}`",
                        head(&wanted)
                    ));
                }
                if back.is_error != (act == "failed") {
                    return Err(format!("is_error is {}", back.is_error));
                }
                Ok(())
            }
        }
    }
}

fn back(result: &v1::ToolResult) -> Back {
    Back {
        text: text_of(result),
        is_error: result.is_error,
    }
}

/// The answer that a server got must be the one that was given to this call's question.
fn answered(id: u64, text: &str) -> Result<(), String> {
    let told: Value = serde_json::from_str(text).map_err(|error| format!("{error}: {text}"))?;
    let given = &told["given"];
    let good = told["id"] == id
        && match given["action"].as_str() {
            Some("accept") => given["content"]["name"].as_str() == Some(&*id.to_string()),
            Some("decline" | "cancel") => true,
            _ => false,
        };
    good.then_some(())
        .ok_or_else(|| format!("the answer to {id} was {told}"))
}
