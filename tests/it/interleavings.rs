//! Calls and questions under everything that can happen to them, in random order: no question is lost or answered twice, and
//! no call is left without an end.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::updates::upsert;
use mcp_sidecar_tests::v1::upsert::Resource;
use mcp_sidecar_tests::v1::{CallState, ElicitationAction, ElicitationState};
use proptest::prelude::{Strategy, any, prop, prop_oneof};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::questions::{complete, form, with_forms};

/// Something that happens. Numbers choose among what there is at that moment.
#[derive(Clone, Debug)]
enum Event {
    /// A call begins.
    Call {
        modern: bool,
        detached: bool,
        rounds: u8,
        at_once: u8,
    },
    /// Somebody answers a question, rightly, wrongly or not at all.
    Answer(usize, Say),
    /// Two apps answer the same question at the same time.
    Race(usize),
    /// Somebody cancels a call.
    Cancel(usize),
    /// The app leaves that made a call.
    Leave(usize),
    /// The daemon is killed and started again.
    Kill,
    /// The daemon is stopped and started again.
    Restart,
    /// A server is removed and registered anew.
    Remove(bool),
}

#[derive(Clone, Copy, Debug)]
enum Say {
    Accept,
    Decline,
    Cancel,
    Malformed,
}

fn event() -> impl Strategy<Value = Event> {
    let reply = prop_oneof![
        6 => prop::strategy::Just(Say::Accept),
        1 => prop::strategy::Just(Say::Decline),
        1 => prop::strategy::Just(Say::Cancel),
        1 => prop::strategy::Just(Say::Malformed),
    ];
    prop_oneof![
        8 => (any::<bool>(), any::<bool>(), 1..4_u8, 1..4_u8).prop_map(
            |(modern, detached, rounds, at_once)| Event::Call { modern, detached, rounds, at_once }
        ),
        14 => (any::<usize>(), reply).prop_map(|(which, reply)| Event::Answer(which, reply)),
        3 => any::<usize>().prop_map(Event::Race),
        2 => any::<usize>().prop_map(Event::Cancel),
        2 => any::<usize>().prop_map(Event::Leave),
        1 => prop::strategy::Just(Event::Kill),
        1 => prop::strategy::Just(Event::Restart),
        1 => any::<bool>().prop_map(Event::Remove),
    ]
}

/// What a server has been told: how often each round of each call came, by the call's number.
type Told = Arc<Mutex<HashMap<(u64, String), usize>>>;

/// A server that asks so many questions at once, for so many rounds.
async fn asker(modern: bool, told: &Told) -> FakeMcp {
    let builder = if modern {
        FakeMcp::modern()
    } else {
        FakeMcp::legacy()
    };
    let fake = builder.tool(tool("ask")).start().await;
    let (server, told) = (fake.clone(), Arc::clone(told));
    fake.on("tools/call", move |seen| {
        let (server, told) = (server.clone(), Arc::clone(&told));
        let arguments = seen.params()["arguments"].clone();
        let number = |name: &str| arguments[name].as_u64().unwrap();
        let (n, rounds, at_once) = (number("n"), number("rounds"), number("at_once"));
        let state = seen.params()["requestState"]
            .as_str()
            .unwrap_or("0")
            .to_owned();
        *told.lock().unwrap().entry((n, state.clone())).or_default() += 1;
        async move {
            if !modern {
                return stream(async move |writer: SseWriter| {
                    for round in 0..rounds {
                        let id = json!(format!("q-{n}-{round}"));
                        let question = json!({
                            "jsonrpc": "2.0", "id": id, "method": "elicitation/create",
                            "params": form("Who?"),
                        });
                        writer.message(&question).await;
                        tokio::select! {
                            _answer = server.wait("an answer", |seen| seen.answers(&id)) => {}
                            () = writer.closed() => return,
                        }
                    }
                    writer.result(complete(&json!(n))).await;
                });
            }
            let round: u64 = state.parse().unwrap();
            if round == rounds {
                return Reply::Json(complete(&json!(n)));
            }
            let questions = (0..at_once).map(|one| {
                let question = json!({"method": "elicitation/create", "params": form("Who?")});
                (format!("k-{one}"), question)
            });
            Reply::Json(json!({
                "resultType": "input_required", "requestState": (round + 1).to_string(),
                "inputRequests": questions.collect::<serde_json::Map<_, _>>(),
            }))
        }
    });
    fake
}

type Attached = tokio::task::JoinHandle<Result<v1::CallToolResponse, tonic::Status>>;

struct World {
    daemon: TestDaemon,
    app: Clients,
    modern: FakeMcp,
    legacy: FakeMcp,
    told: Told,
    calls: u64,
    detached: Vec<String>,
    attached: Vec<Attached>,
    /// Where the log began.
    token: String,
}

impl World {
    async fn begin() -> Self {
        let daemon = TestDaemon::builder()
            .set("questions.expiry", "3s")
            .start()
            .await;
        let app = daemon.clients().await;
        let told = Told::default();
        let (modern, legacy) = (asker(true, &told).await, asker(false, &told).await);
        let mut updates = app.updates("").await;
        updates.snapshot().await;
        let mut world = Self {
            token: updates.token(),
            daemon,
            app,
            modern,
            legacy,
            told,
            calls: 0,
            detached: Vec::new(),
            attached: Vec::new(),
        };
        world.register().await;
        world
    }

    async fn register(&mut self) {
        for (id, fake) in [("modern", &self.modern), ("legacy", &self.legacy)] {
            let spec = with_forms(http_spec(id, &fake.url()));
            self.app.add(id, spec).await.unwrap();
            self.app.wait_for(id, ConnectionState::Ready).await;
        }
    }

    async fn pending(&self) -> Vec<v1::Elicitation> {
        let request = v1::ListElicitationsRequest {
            namespace: self.app.namespace(),
            page_size: 1000,
            ..Default::default()
        };
        let listed = self.app.elicitations().list_elicitations(request).await;
        listed.unwrap().into_inner().elicitations
    }

    async fn happen(&mut self, event: Event) {
        match event {
            Event::Call {
                modern,
                detached,
                rounds,
                at_once,
            } => {
                let server = if modern { "modern" } else { "legacy" };
                let arguments = json!({"n": self.calls, "rounds": rounds, "at_once": at_once});
                self.calls += 1;
                let call = v1::ToolCall {
                    detach: detached,
                    ..self.app.call(server, "ask", &arguments.to_string())
                };
                let mut tools = self.app.tools();
                let request = v1::CallToolRequest { call: Some(call) };
                if detached {
                    let made = tools.call_tool(request).await.unwrap();
                    self.detached.push(made.into_inner().call_id);
                } else {
                    self.attached.push(tokio::spawn(async move {
                        tools
                            .call_tool(request)
                            .await
                            .map(tonic::Response::into_inner)
                    }));
                }
            }
            Event::Answer(which, reply) => {
                let pending = self.pending().await;
                let Some(question) = choose(&pending, which) else {
                    return;
                };
                let (action, content) = match reply {
                    Say::Accept => (ElicitationAction::Accept, Some(r#"{"name":"Ada"}"#)),
                    Say::Malformed => (ElicitationAction::Accept, Some(r#"{"name":7}"#)),
                    Say::Decline => (ElicitationAction::Decline, None),
                    Say::Cancel => (ElicitationAction::Cancel, None),
                };
                let answered = self.app.respond(&question.id, action, content).await;
                if matches!(reply, Say::Malformed) {
                    assert!(answered.is_err());
                }
            }
            Event::Race(which) => {
                let pending = self.pending().await;
                let Some(question) = choose(&pending, which) else {
                    return;
                };
                let other = self.daemon.clients().await;
                let content = r#"{"name":"Ada"}"#;
                let (one, two) = tokio::join!(
                    self.app.accept(&question.id, content),
                    other.accept(&question.id, content)
                );
                assert!(one.is_err() || two.is_err(), "a question is answered once");
            }
            Event::Cancel(which) => {
                let calls = self.app.list_calls().await;
                if let Some(call) = choose(&calls, which) {
                    // It may end at the same moment.
                    let _cancelled = self.app.cancel_call(&call.id).await;
                }
            }
            Event::Leave(which) => {
                if !self.attached.is_empty() {
                    let which = which % self.attached.len();
                    self.attached.swap_remove(which).abort();
                }
            }
            Event::Kill => {
                self.daemon.kill9().await;
                self.again().await;
            }
            Event::Restart => {
                self.daemon.terminate().await;
                self.again().await;
            }
            Event::Remove(modern) => {
                let id = if modern { "modern" } else { "legacy" };
                self.app.remove(id).await.unwrap();
                self.register().await;
            }
        }
    }

    async fn again(&mut self) {
        self.daemon.restart().await;
        self.app = self.daemon.clients().await;
        for id in ["modern", "legacy"] {
            self.app.wait_for(id, ConnectionState::Ready).await;
        }
    }

    /// Everything comes to its end by itself, and the log tells one story of it.
    async fn end(mut self) {
        for id in &self.detached {
            let call = self.app.wait_call(id).await;
            assert!(call.end_time.is_some() && call.outcome.is_some());
        }
        for attached in std::mem::take(&mut self.attached) {
            let _outcome = within("the end of a call", attached).await.unwrap();
        }
        eventually("nothing to be left", PATIENCE, async || {
            let left = self.app.list_calls().await.len() + self.pending().await.len();
            (left == 0).then_some(())
        })
        .await;
        self.daemon.comes_to_rest().await;

        let marker = self.app.add("marker", http_spec("M", &self.modern.url()));
        marker.await.unwrap();
        let mut questions: BTreeMap<String, Vec<ElicitationState>> = BTreeMap::new();
        let mut calls: BTreeMap<String, Vec<CallState>> = BTreeMap::new();
        let mut updates = self.app.updates(&self.token).await;
        let read = updates.find("the marker", |response| match upsert(response)? {
            Resource::Server(server) => (server.id == "marker").then_some(()),
            Resource::Elicitation(question) => {
                let states = questions.entry(question.id.clone()).or_default();
                states.push(question.state());
                None
            }
            Resource::Call(call) => {
                calls.entry(call.id.clone()).or_default().push(call.state());
                None
            }
            Resource::SamplingRequest(_) => None,
        });
        read.await;
        for (id, states) in &questions {
            let [ElicitationState::Pending, end] = states.as_slice() else {
                panic!("question {id} is asked once and ends once: {states:?}");
            };
            assert_ne!(*end, ElicitationState::Pending);
        }
        for (id, states) in &calls {
            let ends = states
                .iter()
                .filter(|state| !matches!(state, CallState::Running | CallState::InputRequired));
            assert_eq!(ends.count(), 1, "call {id} ends once: {states:?}");
        }
        for (round, times) in &*self.told.lock().unwrap() {
            assert_eq!(*times, 1, "round {round:?} was made more than once");
        }
    }
}

fn choose<T>(all: &[T], which: usize) -> Option<&T> {
    (!all.is_empty()).then(|| &all[which % all.len()])
}

async fn play(seed: u8) {
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let events = prop::collection::vec(event(), 60).new_tree(&mut runner);
    let events = events.unwrap().current();
    let mut world = World::begin().await;
    for event in events {
        world.happen(event).await;
    }
    world.end().await;
}

#[tokio::test]
async fn no_order_of_events_loses_a_question_or_leaves_a_call_without_an_end() {
    for seed in 0..4 {
        Box::pin(play(seed)).await;
    }
}

#[tokio::test]
async fn nor_does_any_other_order() {
    for seed in 4..8 {
        Box::pin(play(seed)).await;
    }
}
