//! Real servers of other makers that ask.

use mcp_sidecar_tests::calls::result_of;
use mcp_sidecar_tests::peers::{CommandLine, HttpPeer, catalogue};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{Elicitation, ElicitationAction, ElicitationState};

fn asked_anything(mut spec: ServerSpec) -> ServerSpec {
    spec.client_capabilities = Some(v1::ClientCapabilities {
        elicitation_form: true,
        elicitation_url: true,
        sampling: true,
        ..Default::default()
    });
    spec
}

/// A server of this era that may ask anything, an app that calls, and one that follows and answers.
struct Play {
    _daemon: TestDaemon,
    app: Clients,
    updates: Updates,
    server: Server,
}

impl Play {
    async fn new(spec: ServerSpec, era: Era) -> Self {
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let server = app.add_ready(asked_anything(spec)).await;
        assert_eq!(server.facts().era(), era);
        let mut updates = app.updates("").await;
        updates.snapshot().await;
        Self {
            _daemon: daemon,
            app,
            updates,
            server,
        }
    }

    async fn of_process(line: CommandLine, era: Era) -> Self {
        Self::new(line.spec("peer"), era).await
    }

    async fn of_peer(peer: &HttpPeer, era: Era) -> Self {
        Self::new(http_spec("peer", &peer.url), era).await
    }

    async fn detach(&self, tool: &str, arguments: &Value) -> String {
        let arguments = arguments.to_string();
        self.app.detach(&self.server.id, tool, &arguments).await
    }

    async fn question(&mut self, call: &str) -> Elicitation {
        let question = self.updates.pending().await;
        assert_eq!(question.call_id, call);
        question
    }

    async fn accept(&mut self, question: &Elicitation, content: &Value) {
        let accepted = self.app.accept(&question.id, &content.to_string()).await;
        accepted.unwrap();
        let end = self.updates.end_of(&question.id).await;
        assert_eq!(end, ElicitationState::Answered);
    }

    /// What the call says in the end.
    async fn text(&self, call: &str) -> String {
        let ended = self.app.wait_call(call).await;
        let result = result_of(&ended);
        assert!(!result.is_error, "{result:?}");
        format!("{result:?}")
    }

    /// One form is asked, and accepted with this content.
    async fn one_form(mut self, tool: &str, content: &Value) -> String {
        let call = self.detach(tool, &json!({})).await;
        let question = self.question(&call).await;
        assert_eq!(question.mode(), v1::ElicitationMode::Form);
        assert!(!question.fields.is_empty(), "{question:?}");
        self.accept(&question, content).await;
        self.text(&call).await
    }
}

#[tokio::test]
async fn the_everything_server_asks_for_every_kind_of_field() {
    for http in [false, true] {
        let mut peer = None;
        let mut play = if http {
            let peer = peer.insert(catalogue::everything_http().await);
            Play::of_peer(peer, Era::Legacy).await
        } else {
            Play::of_process(catalogue::everything_stdio().await, Era::Legacy).await
        };
        let call = play.detach("trigger-elicitation-request", &json!({})).await;
        let question = play.question(&call).await;
        let kinds = |wanted: fn(&v1::form_field::Kind) -> bool| {
            let mut kinds = question
                .fields
                .iter()
                .filter_map(|field| field.kind.as_ref());
            kinds.any(wanted)
        };
        assert!(kinds(|kind| matches!(kind, v1::form_field::Kind::Text(_))));
        assert!(kinds(|kind| matches!(
            kind,
            v1::form_field::Kind::Number(_)
        )));
        assert!(kinds(|kind| matches!(
            kind,
            v1::form_field::Kind::Integer(_)
        )));
        assert!(kinds(|kind| matches!(
            kind,
            v1::form_field::Kind::Boolean(_)
        )));
        assert!(kinds(|kind| matches!(
            kind,
            v1::form_field::Kind::Choice(_)
        )));
        assert!(!kinds(|kind| matches!(
            kind,
            v1::form_field::Kind::OtherJson(_)
        )));
        let wrong = play.app.accept(&question.id, r#"{"check":true}"#).await;
        let facts = ErrorFacts::expect(wrong, Code::InvalidArgument, "INVALID_FIELD");
        assert_eq!(facts.field, "content_json.name");
        play.accept(&question, &json!({"name": "Ada", "check": true}))
            .await;
        let text = play.text(&call).await;
        assert!(text.contains("- Name: Ada"), "{text}");
        assert!(text.contains("- Agreed to terms: true"), "{text}");

        // Another call, and somebody who does not want to say.
        let call = play.detach("trigger-elicitation-request", &json!({})).await;
        let question = play.question(&call).await;
        let declined = play
            .app
            .respond(&question.id, ElicitationAction::Decline, None);
        declined.await.unwrap();
        let text = play.text(&call).await;
        assert!(text.contains("User declined"), "{text}");
    }
}

#[tokio::test]
async fn the_everything_server_wants_a_url_opened_by_request_and_by_error() {
    for by_error in [false, true] {
        let line = catalogue::everything_stdio().await;
        let mut play = Play::of_process(line, Era::Legacy).await;
        let url = "https://connect.example.com/x";
        let arguments = json!({"url": url, "message": "Connect", "elicitationId": "el-1", "errorPath": by_error});
        let call = play.detach("trigger-url-elicitation", &arguments).await;
        if by_error {
            let first = play.question(&call).await;
            assert_eq!(first.url, "https://modelcontextprotocol.io");
            let opened = play.app.respond(&first.id, ElicitationAction::Accept, None);
            opened.await.unwrap();
        }
        let question = play
            .updates
            .question_where("the URL of the call itself", |question| question.url == url)
            .await;
        assert_eq!(question.url_host, "connect.example.com");
        let opened = play
            .app
            .respond(&question.id, ElicitationAction::Accept, None);
        opened.await.unwrap();
        let text = play.text(&call).await;
        assert!(
            text.contains("User completed the URL elicitation flow"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn the_everything_server_asks_a_model() {
    let line = catalogue::everything_stdio().await;
    let mut play = Play::of_process(line, Era::Legacy).await;
    let arguments = json!({"prompt": "Say hello", "maxTokens": 10});
    let call = play.detach("trigger-sampling-request", &arguments).await;
    let request = play.updates.sampling().await;
    assert_eq!(request.call_id, call);
    let said = json!({
        "role": "assistant", "model": "m", "stopReason": "endTurn",
        "content": {"type": "text", "text": "hello there"},
    });
    play.app
        .sampled(&request.id, &said.to_string())
        .await
        .unwrap();
    let text = play.text(&call).await;
    assert!(text.contains("hello there"), "{text}");
}

#[tokio::test]
async fn python_sdk_1_asks() {
    let content = json!({"name": "Ada"});
    let play = Play::of_process(catalogue::py1_stdio().await, Era::Legacy).await;
    assert!(play.one_form("ask", &content).await.contains("accept"));
    let peer = catalogue::py1_http("http").await;
    let play = Play::of_peer(&peer, Era::Legacy).await;
    assert!(play.one_form("ask", &content).await.contains("accept"));
}

#[tokio::test]
async fn python_sdk_2_asks_in_both_eras() {
    let content = json!({"name": "Ada", "age": 36});
    let play = Play::of_process(catalogue::py2_stdio().await, Era::Modern).await;
    assert!(play.one_form("era_ask", &content).await.contains("Ada:36"));
    let peer = catalogue::py2_http("http-stateless").await;
    let play = Play::of_peer(&peer, Era::Modern).await;
    assert!(play.one_form("era_ask", &content).await.contains("Ada:36"));
    let peer = catalogue::py2_http("sse").await;
    let play = Play::of_peer(&peer, Era::Legacy).await;
    assert!(play.one_form("era_ask", &content).await.contains("Ada:36"));
}

#[tokio::test]
async fn fastmcp_asks() {
    let peer = catalogue::fastmcp_sse().await;
    let play = Play::of_peer(&peer, Era::Legacy).await;
    let content = json!({"name": "Ada", "age": 36});
    assert!(play.one_form("ask", &content).await.contains("accept"));
}

#[tokio::test]
async fn typescript_sdk_2_asks_in_two_rounds_and_keeps_nothing_between_them() {
    let peer = catalogue::ts2_http("modern-only").await;
    let mut play = Play::of_peer(&peer, Era::Modern).await;
    let call = play.detach("order", &json!({})).await;
    let question = play.question(&call).await;
    assert_eq!(question.message, "Which size?");
    play.accept(&question, &json!({"size": "large"})).await;
    let question = play.question(&call).await;
    assert_eq!(question.message, "Really large?");
    play.accept(&question, &json!({"sure": true})).await;
    let text = play.text(&call).await;
    assert!(text.contains("ordered large"), "{text}");
}
