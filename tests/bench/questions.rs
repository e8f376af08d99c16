//! Questions that wait for people: what 10,000 of them cost, beside 10 in another daemon.

use std::time::{Duration, Instant};

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::resident;
use mcp_sidecar_tests::v1::{ElicitationState, UpdateKind};

/// How many wait in the two daemons.
const FEW: usize = 10;
const MANY: usize = 10_000;
/// Answers that are timed in each.
const SAMPLES: usize = 200;

/// A daemon whose server asks in every call.
struct Side {
    daemon: TestDaemon,
    app: Clients,
    updates: Updates,
    _server: FakeMcp,
}

/// What was seen of one side.
struct Figures {
    waiting: usize,
    rss_before: u64,
    rss_after: u64,
    answer: Vec<Duration>,
    listing: Duration,
    pages: usize,
    snapshot: Duration,
    restart: Duration,
}

async fn server() -> FakeMcp {
    let fake = FakeMcp::modern().tool(tool("ask")).start().await;
    fake.reply("tools/call", |seen| {
        if seen.params()["inputResponses"].is_null() {
            let question = json!({"method": "elicitation/create", "params": {
                "mode": "form", "message": "Who are you?",
                "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
            }});
            return Reply::Json(json!({
                "resultType": "input_required", "requestState": "s",
                "inputRequests": {"who": question},
            }));
        }
        Reply::Json(
            json!({"resultType": "complete", "content": [{"type": "text", "text": "done"}]}),
        )
    });
    fake
}

impl Side {
    async fn begin() -> Self {
        let daemon = TestDaemon::builder()
            .set("questions.max_pending_per_server", 100_000_u32)
            .set("log.filter", "warn")
            .start()
            .await;
        let app = daemon.clients().await;
        let server = server().await;
        let mut spec = http_spec("S", &server.url());
        spec.client_capabilities = Some(v1::ClientCapabilities {
            elicitation_form: true,
            ..Default::default()
        });
        app.add("s", spec).await.unwrap();
        app.wait_for("s", ConnectionState::Ready).await;
        let mut updates = app
            .updates_with(v1::StreamUpdatesRequest {
                namespaces: vec![app.namespace()],
                kinds: vec![UpdateKind::Elicitation.into()],
                ..Default::default()
            })
            .await
            .unwrap();
        updates.snapshot().await;
        Self {
            daemon,
            app,
            updates,
            _server: server,
        }
    }

    fn rss(&self) -> u64 {
        resident(self.daemon.pid()).0
    }

    async fn ask(&mut self) -> v1::Elicitation {
        let call = self.app.detach("s", "ask", "{}").await;
        self.updates
            .question_where("the question", |question| {
                question.call_id == call && question.state() == ElicitationState::Pending
            })
            .await
    }

    /// From the answer to the result of the call.
    async fn answer(&mut self) -> Duration {
        let question = self.ask().await;
        let began = Instant::now();
        self.app
            .accept(&question.id, r#"{"name":"Ada"}"#)
            .await
            .unwrap();
        self.app.wait_call(&question.call_id).await;
        began.elapsed()
    }

    async fn listing(&self) -> (Duration, usize, usize) {
        let began = Instant::now();
        let (mut pages, mut all, mut token) = (0, 0, String::new());
        loop {
            let request = v1::ListElicitationsRequest {
                namespace: self.app.namespace(),
                page_size: 1000,
                page_token: token,
                ..Default::default()
            };
            let page = self.app.elicitations().list_elicitations(request).await;
            let page = page.unwrap().into_inner();
            pages += 1;
            all += page.elicitations.len();
            token = page.next_page_token;
            if token.is_empty() {
                return (began.elapsed(), pages, all);
            }
        }
    }

    async fn finish(mut self, rss_before: u64, waiting: usize, answer: Vec<Duration>) -> Figures {
        let rss_after = self.rss();
        let (listing, pages, all) = self.listing().await;
        assert_eq!(all, waiting, "every question is listed once");
        let began = Instant::now();
        let held = self.app.updates("").await.snapshot().await;
        let snapshot = began.elapsed();
        // The server, the questions and their calls.
        assert_eq!(held.len(), 1 + 2 * waiting);
        self.daemon.kill9().await;
        let began = Instant::now();
        self.daemon.restart().await;
        let restart = began.elapsed();
        Figures {
            waiting,
            rss_before,
            rss_after,
            answer,
            listing,
            pages,
            snapshot,
            restart,
        }
    }
}

fn at(sorted: &[Duration], share: usize) -> Duration {
    sorted[(sorted.len() - 1) * share / 100]
}

/// Runs the case and prints it.
pub(crate) async fn measure(json: bool) {
    let (mut few, mut many) = (Side::begin().await, Side::begin().await);
    let (few_before, many_before) = (few.rss(), many.rss());
    for _ in 0..FEW {
        few.ask().await;
    }
    for _ in 0..MANY {
        many.ask().await;
    }
    let (mut few_answers, mut many_answers) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        few_answers.push(few.answer().await);
        many_answers.push(many.answer().await);
    }
    few_answers.sort();
    many_answers.sort();
    let few = few.finish(few_before, FEW, few_answers).await;
    let many = many.finish(many_before, MANY, many_answers).await;
    let ratio = at(&many.answer, 50).as_secs_f64() / at(&few.answer, 50).as_secs_f64();
    if json {
        let show = |side: &Figures| {
            json!({
                "waiting": side.waiting,
                "rss_before_kib": side.rss_before >> 10, "rss_after_kib": side.rss_after >> 10,
                "answer_p50_us": at(&side.answer, 50).as_micros(),
                "answer_p99_us": at(&side.answer, 99).as_micros(),
                "listing_us": side.listing.as_micros(), "pages": side.pages,
                "snapshot_us": side.snapshot.as_micros(),
                "restart_us": side.restart.as_micros(),
            })
        };
        println!(
            "{}",
            json!({"few": show(&few), "many": show(&many), "answer_ratio": ratio})
        );
        return;
    }
    println!(
        "waiting  rss before  rss after  per question  answer p50  p99       all pages       snapshot  restart"
    );
    for side in [&few, &many] {
        let grown = side.rss_after.saturating_sub(side.rss_before);
        println!(
            "{:>7}  {:>6} KiB  {:>6} KiB  {:>8} B    {:>8.2?}  {:>8.2?}  {:>8.1?} ({:>2})  {:>7.1?}  {:>7.1?}",
            side.waiting,
            side.rss_before >> 10,
            side.rss_after >> 10,
            grown / side.waiting as u64,
            at(&side.answer, 50),
            at(&side.answer, 99),
            side.listing,
            side.pages,
            side.snapshot,
            side.restart,
        );
    }
    println!("answering one of {MANY} takes {ratio:.2} times as long as one of {FEW}");
}
