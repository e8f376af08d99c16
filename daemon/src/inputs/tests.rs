//! Every question ends exactly once, and its answer arrives exactly once.

use std::sync::Arc;

use futures_util::future::{join_all, poll_immediate};
use proptest::prelude::{Just, ProptestConfig, Strategy, prop, prop_oneof, proptest};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::base::Revision;
use crate::model::update::{Body, Update};
use crate::store::StoreConfig;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_mins(1);
const CONTENT: &str = r#"{"branch": "main", "n": 12345678901234567890}"#;

struct Setup {
    root: TempDir,
    store: Store,
    inputs: Inputs,
}

impl Setup {
    fn new(config: InputsConfig) -> Self {
        let root = TempDir::new().unwrap();
        let (store, _) = Store::open(StoreConfig::new(root.path().join("data"))).unwrap();
        let inputs = Inputs::new(store.clone(), config);
        Self {
            root,
            store,
            inputs,
        }
    }

    async fn respond(&self, id: &ElicitationId, answer: Answer) -> Result<Question> {
        self.inputs
            .respond(Mode::ELICITATION, Namespace::default(), id.clone(), answer)
            .await
    }

    async fn updates(&self) -> Vec<Arc<Update>> {
        self.store.updates_after(Revision(0), 10_000).await.unwrap()
    }

    /// The states that a question went through.
    async fn states(&self, id: &ElicitationId) -> Vec<QuestionState> {
        let updates = self.updates().await;
        let states = updates.iter().filter_map(|update| match &update.body {
            Body::Elicitation(question) if question.id == *id => Some(question.state),
            _ => None,
        });
        states.collect()
    }

    /// Waits until the only question of the log has ended, and returns its states.
    async fn only_one_ended(&self) -> Vec<QuestionState> {
        let mut head = self.store.head();
        head.wait_for(|head| head.0 >= 2).await.unwrap();
        let updates = self.updates().await;
        let Some(Body::Elicitation(question)) = updates.first().map(|update| &update.body) else {
            panic!("{updates:?}");
        };
        self.states(&question.id).await
    }

    fn assert_nobody_waits(&self) {
        let waiting = self.inputs.0.waiting();
        assert!(waiting.entries.is_empty());
    }
}

fn server(id: &str) -> ServerKey {
    ServerKey::new(Namespace::default(), ServerId::new(id))
}

fn form() -> NewQuestion {
    NewQuestion {
        server: server("git"),
        server_name: "Git".to_owned(),
        call_id: None,
        mode: Mode::Form,
        message: "Which branch?".to_owned(),
        requested_schema: Some("{}".to_owned()),
        url: None,
        request: "{}".to_owned(),
        server_elicitation_id: None,
        expiry: None,
    }
}

fn accept() -> Answer {
    Answer::Accept(Some(CONTENT.to_owned()))
}

#[tokio::test]
async fn the_first_answer_arrives_and_is_stored_nowhere() {
    let setup = Setup::new(InputsConfig::default());
    let mut ticket = setup.inputs.ask(form(), Vec::new()).await.unwrap();
    let id = ticket.id().clone();
    let asked = setup
        .inputs
        .get(Mode::ELICITATION, Namespace::default(), id.clone())
        .await
        .unwrap();
    assert_eq!(asked.state, QuestionState::Pending);
    let ended = setup.respond(&id, accept()).await.unwrap();
    assert_eq!(ended.state, QuestionState::Answered);
    let second = setup.respond(&id, Answer::Decline).await.unwrap_err();
    assert_eq!(second.reason(), Reason::AlreadyResolved);
    assert_eq!(ticket.answered().await, accept());
    assert_eq!(ticket.answered().await, Answer::Cancel);
    drop(ticket);
    setup.inputs.close(PATIENCE).await;
    assert_eq!(
        setup.states(&id).await,
        [QuestionState::Pending, QuestionState::Answered]
    );
    setup.assert_nobody_waits();
    for entry in std::fs::read_dir(setup.root.path().join("data")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(10).any(|part| part == b"1234567890"));
    }
}

#[tokio::test]
async fn a_refused_answer_leaves_the_question_pending() {
    let setup = Setup::new(InputsConfig::default());
    let mut ask = form();
    ask.mode = Mode::Url;
    let url = setup.inputs.ask(ask, Vec::new()).await.unwrap();
    let mut form = setup.inputs.ask(form(), Vec::new()).await.unwrap();
    let content = |text: &str| Answer::Accept(Some(text.to_owned()));
    for (ticket, answer) in [
        (&url, content("{}")),
        (&form, Answer::Accept(None)),
        (&form, content("[1]")),
        (&form, content("\"{}\"")),
        (&form, content("{\"a\":")),
        (&form, content("{} {}")),
        (&form, content("")),
    ] {
        let refused = setup
            .respond(ticket.id(), answer.clone())
            .await
            .unwrap_err();
        assert_eq!(refused.reason(), Reason::InvalidField, "{answer:?}");
        assert_eq!(refused.field(), Some("content_json"));
    }
    assert_eq!(setup.states(form.id()).await, [QuestionState::Pending]);
    setup.respond(url.id(), Answer::Accept(None)).await.unwrap();
    let id = form.id().clone();
    setup.respond(&id, Answer::Decline).await.unwrap();
    assert_eq!(form.answered().await, Answer::Decline);
    let unknown = setup
        .respond(&ElicitationId::generate(), accept())
        .await
        .unwrap_err();
    assert_eq!(unknown.reason(), Reason::ElicitationNotFound);
}

#[tokio::test]
async fn every_wrong_member_is_named_and_none_is_quoted() {
    let setup = Setup::new(InputsConfig::default());
    let mut ask = form();
    ask.requested_schema = Some(
        r#"{"type": "object", "required": ["name", "mail"], "properties": {
            "name": {"type": "string"}, "mail": {"type": "string", "format": "email"},
            "age": {"type": "integer", "minimum": 18}}}"#
            .to_owned(),
    );
    let mut ticket = setup.inputs.ask(ask, Vec::new()).await.unwrap();
    let bad = Answer::Accept(Some(r#"{"age": 17, "mail": "not-a-mail"}"#.to_owned()));
    let refused = setup.respond(ticket.id(), bad).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::InvalidField);
    let told: Vec<_> = refused.violations().iter().collect();
    let told: Vec<_> = told
        .iter()
        .map(|one| (one.field.as_ref(), one.message.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            ("content_json.name", "is required"),
            ("content_json.mail", "must be an email address"),
            ("content_json.age", "must be at least 18"),
        ]
    );
    assert_eq!(
        refused.message(),
        "the content does not fit the form: `name` is required, `mail` must be an email address, \
         `age` must be at least 18"
    );
    assert!(!format!("{refused:?}").contains("not-a-mail"));
    assert_eq!(setup.states(ticket.id()).await, [QuestionState::Pending]);
    let good = Answer::Accept(Some(r#"{"name": "", "mail": "a@b.example"}"#.to_owned()));
    setup
        .respond(&ticket.id().clone(), good.clone())
        .await
        .unwrap();
    assert_eq!(ticket.answered().await, good);
}

#[tokio::test]
async fn an_expired_question_is_cancelled() {
    let setup = Setup::new(InputsConfig {
        expiry: Duration::ZERO,
        ..InputsConfig::default()
    });
    let mut ticket = setup.inputs.ask(form(), Vec::new()).await.unwrap();
    assert_eq!(ticket.answered().await, Answer::Cancel);
    assert_eq!(
        setup.states(ticket.id()).await,
        [QuestionState::Pending, QuestionState::Expired]
    );
}

#[tokio::test]
async fn an_abandoned_question_ends() {
    for void in [false, true] {
        let setup = Setup::new(InputsConfig::default());
        let gone = CancellationToken::new();
        let asking = setup.inputs.ask(form(), vec![gone.clone()]);
        let ticket = asking.await.unwrap();
        let end = if void {
            gone.cancel();
            QuestionState::Void
        } else {
            QuestionState::Cancelled
        };
        drop(ticket);
        assert_eq!(setup.only_one_ended().await, [QuestionState::Pending, end]);
        setup.inputs.close(PATIENCE).await;
        setup.assert_nobody_waits();
    }
}

#[tokio::test]
async fn a_question_that_nobody_waited_for_ends() {
    for (is_gone, end) in [
        (false, QuestionState::Cancelled),
        (true, QuestionState::Void),
    ] {
        let setup = Setup::new(InputsConfig::default());
        let gone = CancellationToken::new();
        let mut asking = Box::pin(setup.inputs.ask(form(), vec![gone.clone()]));
        assert!(poll_immediate(&mut asking).await.is_none());
        if is_gone {
            gone.cancel();
        }
        drop(asking);
        let ended = setup.only_one_ended().await;
        assert_eq!(ended, [QuestionState::Pending, end]);
        setup.inputs.close(PATIENCE).await;
    }
}

#[tokio::test]
async fn an_app_that_leaves_does_not_take_its_answer_along() {
    let setup = Setup::new(InputsConfig::default());
    let mut ticket = setup.inputs.ask(form(), Vec::new()).await.unwrap();
    let id = ticket.id().clone();
    let mut head = setup.store.head();
    head.mark_unchanged();
    tokio::select! {
        biased;
        _ = head.changed() => {}
        _ = setup.respond(&id, accept()) => {}
    }
    assert_eq!(ticket.answered().await, accept());
}

#[tokio::test]
async fn void_questions_wake_their_tickets() {
    let setup = Setup::new(InputsConfig::default());
    let mut ours = setup.inputs.ask(form(), Vec::new()).await.unwrap();
    let mut other = form();
    other.server = server("other");
    let other = setup.inputs.ask(other, Vec::new()).await.unwrap();
    let ended = setup.store.void_questions(server("git")).await.unwrap();
    assert_eq!(ended, [ours.id().clone()]);
    assert_eq!(ours.answered().await, Answer::Cancel);
    assert_eq!(setup.states(other.id()).await, [QuestionState::Pending]);
}

#[tokio::test]
async fn questions_of_one_server_are_bounded() {
    let setup = Setup::new(InputsConfig {
        max_pending_per_server: 2,
        ..InputsConfig::default()
    });
    let first = setup.inputs.ask(form(), Vec::new()).await.unwrap();
    let _second = setup.inputs.ask(form(), Vec::new()).await.unwrap();
    let third = setup.inputs.ask(form(), Vec::new()).await.unwrap_err();
    assert_eq!(third.reason(), Reason::TooMany);
    let mut other = form();
    other.server = server("other");
    let _other = setup.inputs.ask(other, Vec::new()).await.unwrap();
    setup.respond(first.id(), accept()).await.unwrap();
    setup.inputs.ask(form(), Vec::new()).await.unwrap();
}

#[tokio::test]
async fn closing_ends_what_is_pending() {
    let setup = Setup::new(InputsConfig::default());
    let mut ticket = setup.inputs.ask(form(), Vec::new()).await.unwrap();
    setup.inputs.close(PATIENCE).await;
    assert_eq!(ticket.answered().await, Answer::Cancel);
    assert_eq!(
        setup.states(ticket.id()).await,
        [QuestionState::Pending, QuestionState::Void]
    );
    let late = setup.inputs.ask(form(), Vec::new()).await.unwrap_err();
    assert_eq!(late.reason(), Reason::Draining);
    setup.assert_nobody_waits();
    setup.store.close().await.unwrap();
}

/// What happens to a question, all at once.
#[derive(Clone, Debug)]
enum Act {
    Answer(Answer),
    Misanswer,
    VoidServer,
}

#[derive(Clone, Debug)]
enum Holder {
    Waits,
    Drops,
    Voids,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => prop_oneof![Just(accept()), Just(Answer::Decline), Just(Answer::Cancel)]
            .prop_map(Act::Answer),
        1 => Just(Act::Misanswer),
        1 => Just(Act::VoidServer),
    ]
}

fn life() -> impl Strategy<Value = (Holder, Option<u64>, usize, Vec<(usize, Act)>)> {
    let holder = prop_oneof![
        3 => Just(Holder::Waits),
        1 => Just(Holder::Drops),
        1 => Just(Holder::Voids),
    ];
    let acts = prop::collection::vec((0_usize..40, act()), 0..4);
    (holder, prop::option::of(0_u64..3), 0_usize..40, acts)
}

async fn pause(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

type Life = (Holder, Option<u64>, usize, Vec<(usize, Act)>);

/// One question: asked, answered and abandoned at random moments. Returns its id, the answers that were accepted, and
/// what the ticket gave.
async fn live(setup: &Setup, life: Life) -> (ElicitationId, Vec<Answer>, Option<Answer>) {
    let (holder, expiry, patience, acts) = life;
    let mut question = form();
    question.expiry = expiry.map(Duration::from_millis);
    let gone = CancellationToken::new();
    let asking = setup.inputs.ask(question, vec![gone.clone()]);
    let mut ticket = asking.await.unwrap();
    let id = ticket.id().clone();
    let waits = expiry.is_some() || !acts.is_empty();
    let hold = async move {
        match holder {
            // Somebody will end it; closing does if all were refused.
            Holder::Waits if waits => Some(ticket),
            Holder::Waits | Holder::Drops => {
                pause(patience).await;
                drop(ticket);
                None
            }
            Holder::Voids => {
                // A wait that is given up, then the end.
                poll_immediate(ticket.answered()).await;
                pause(patience).await;
                gone.cancel();
                drop(ticket);
                None
            }
        }
    };
    let act = async |(turns, act): (usize, Act)| {
        pause(turns).await;
        match act {
            Act::Answer(answer) => {
                let outcome = setup.respond(&id, answer.clone()).await;
                outcome.is_ok().then_some(answer)
            }
            Act::Misanswer => {
                setup.respond(&id, Answer::Accept(None)).await.unwrap_err();
                None
            }
            Act::VoidServer => {
                setup.inputs.void_server(server("git")).await.unwrap();
                None
            }
        }
    };
    let (ticket, accepted) = tokio::join!(hold, join_all(acts.into_iter().map(act)));
    let accepted: Vec<_> = accepted.into_iter().flatten().collect();
    let answer = match ticket {
        Some(mut ticket) => {
            let closing = async {
                if accepted.is_empty() {
                    setup.inputs.void_server(server("git")).await.unwrap();
                }
            };
            Some(tokio::join!(ticket.answered(), closing).0)
        }
        None => None,
    };
    (id, accepted, answer)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn every_question_ends_exactly_once(lives in prop::collection::vec(life(), 1..12)) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let setup = Setup::new(InputsConfig::default());
            let ended = join_all(lives.into_iter().map(|life| live(&setup, life))).await;
            setup.inputs.close(PATIENCE).await;
            setup.assert_nobody_waits();
            for (id, accepted, answer) in ended {
                let states = setup.states(&id).await;
                let [QuestionState::Pending, end] = states.as_slice() else {
                    panic!("{states:?}");
                };
                let by_answer = match accepted.as_slice() {
                    [] => None,
                    [Answer::Accept(_)] => Some(QuestionState::Answered),
                    [Answer::Decline] => Some(QuestionState::Declined),
                    [Answer::Cancel] => Some(QuestionState::Cancelled),
                    more => panic!("{more:?}"),
                };
                match by_answer {
                    Some(state) => assert_eq!(*end, state),
                    None => assert!(!matches!(end, QuestionState::Answered | QuestionState::Declined)),
                }
                if let Some(answer) = answer {
                    let expected = accepted.first().cloned().unwrap_or(Answer::Cancel);
                    assert_eq!(answer, expected);
                }
            }
        });
    }
}
