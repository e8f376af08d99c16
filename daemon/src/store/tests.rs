//! The store as a whole: what survives, what is refused, what is never written.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::base::{Secret, Timestamp};
use crate::model::question::Mode;
use crate::model::spec::{
    ClientCapabilities, HttpSpec, NamedSecret, RetryPolicy, ServerSpec, Timeouts, TransportSpec,
};
use crate::model::status::{ConnectionState, Era};
use crate::model::update::Kind;

const SECRET: &str = "Bearer correct-horse-battery-staple";

/// A fresh private directory with a store in it.
fn config(root: &TempDir) -> StoreConfig {
    StoreConfig {
        credentials_dir: None,
        ..StoreConfig::new(root.path().join("data"))
    }
}

/// A key in the default namespace.
fn key(id: &str) -> ServerKey {
    ServerKey::new(Namespace::default(), ServerId::new(id))
}

/// A server with one secret header.
fn record(id: &str) -> ServerRecord {
    let http = HttpSpec {
        url: "https://example.com/mcp".parse().unwrap(),
        headers: vec![NamedSecret {
            name: "authorization".to_owned(),
            value: Secret::new(SECRET.to_owned()),
        }],
    };
    ServerRecord {
        key: key(id),
        generated_id: false,
        spec: ServerSpec {
            name: id.to_uppercase(),
            transport: TransportSpec::Http(http),
            protocol_version: None,
            capabilities: ClientCapabilities::default(),
            roots: Vec::new(),
            retry: RetryPolicy::default(),
            timeouts: Timeouts::default(),
        },
        connect: true,
        generation: 1,
        created: Timestamp(1_000),
        updated: Timestamp(2_000),
        verdict: None,
    }
}

fn status(state: ConnectionState) -> ServerStatus {
    ServerStatus {
        state,
        ..ServerStatus::default()
    }
}

fn question(id: &str) -> Question {
    Question {
        id: ElicitationId::generate(),
        server: key(id),
        server_name: id.to_uppercase(),
        call_id: None,
        mode: Mode::Form,
        message: "Which branch?".to_owned(),
        requested_schema: Some("{}".to_owned()),
        url: None,
        state: QuestionState::Pending,
        created: Timestamp(1),
        expires: Timestamp(2),
        resolved: None,
        request: "{\"a\": 1.10}".to_owned(),
    }
}

fn open(config: &StoreConfig) -> (Store, Vec<ServerRecord>) {
    Store::open(config.clone()).unwrap()
}

/// What a power-independent end of the process leaves behind: the files as they are now.
fn copy_files(from: &Path, to: &Path) -> StoreConfig {
    lock::prepare_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    StoreConfig {
        credentials_dir: None,
        ..StoreConfig::new(to)
    }
}

/// Opens the database beside a store, as an operator or an attacker would.
fn raw(dir: &Path) -> Connection {
    connect(&dir.join(DATABASE), Access::Write).unwrap()
}

async fn all(store: &Store) -> Vec<Arc<Update>> {
    store.updates_after(Revision(0), 10_000).await.unwrap()
}

fn said(update: &Update) -> String {
    let what = match &update.body {
        Body::Server(view) => format!("{:?}", view.status.state),
        Body::Elicitation(question) => format!("question {:?}", question.state),
        Body::Deleted { kind, .. } => format!("deleted {kind:?}"),
    };
    format!("{} {what}", update.server_id)
}

async fn story(store: &Store) -> Vec<String> {
    all(store).await.iter().map(|update| said(update)).collect()
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let (store, none) = open(&config);
    assert!(none.is_empty());
    let mut a = record("a");
    a.verdict = Some(Verdict {
        era: Era::Modern,
        version: "2026-07-28".to_owned(),
        target: a.spec.target_fingerprint(),
    });
    let mut b = record("b");
    b.connect = false;
    for record in [&a, &b] {
        let revision = store
            .put_server(record.clone(), ServerStatus::default())
            .await;
        assert!(revision.unwrap() <= *store.head().borrow());
    }
    let asked = question("a");
    store.put_question(asked.clone()).await.unwrap();
    let token = store.resume_token(*store.head().borrow());
    store.close().await.unwrap();
    store.close().await.unwrap();
    let late = store.put_question(question("a")).await.unwrap_err();
    assert_eq!(late.reason(), Reason::StoreFailed);
    drop(store);

    let (store, records) = open(&config);
    assert_eq!(records, [a, b]);
    let since = store.parse_resume_token(&token).unwrap();
    let news = store.updates_after(since, 100).await.unwrap();
    let news: Vec<_> = news.iter().map(|update| said(update)).collect();
    assert_eq!(news, ["a question Void", "a Connecting", "b Disconnected"]);
    let ended = store
        .question(asked.server.namespace.clone(), asked.id.clone())
        .await
        .unwrap();
    assert_eq!(ended.state, QuestionState::Void);
    assert_eq!(
        Question {
            state: QuestionState::Pending,
            resolved: None,
            ..ended
        },
        asked
    );
    assert!(store.namespace_exists(Namespace::default()).await.unwrap());
    assert!(
        !store
            .namespace_exists(Namespace::new("other"))
            .await
            .unwrap()
    );
    assert_eq!(
        store.namespaces(None, 9).await.unwrap(),
        [Namespace::default()]
    );
}

#[tokio::test]
async fn a_killed_daemon_keeps_what_was_acknowledged() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let (store, _) = open(&config);
    store
        .put_server(record("a"), ServerStatus::default())
        .await
        .unwrap();
    store
        .set_status(key("a"), status(ConnectionState::Ready), None)
        .await
        .unwrap();
    let token = store.resume_token(*store.head().borrow());
    let copy = copy_files(&config.data_dir, &root.path().join("copy"));
    let (after, records) = open(&copy);
    assert_eq!(records, [record("a")]);
    let since = after.parse_resume_token(&token).unwrap();
    assert_eq!(after.updates_after(since, 9).await.unwrap().len(), 1);
    assert_eq!(
        story(&after).await,
        ["a Disconnected", "a Ready", "a Connecting"]
    );
}

#[tokio::test]
async fn a_torn_journal_leaves_a_prefix() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let (store, _) = open(&config);
    for round in 0..20_u64 {
        let mut record = record("a");
        record.generation = round;
        store
            .put_server(record, ServerStatus::default())
            .await
            .unwrap();
    }
    let wal = config.data_dir.join("sidecar.db-wal");
    let length = std::fs::metadata(&wal).unwrap().len();
    let mut last = 0;
    for part in 0..=12 {
        let copy = copy_files(&config.data_dir, &root.path().join(part.to_string()));
        // The index is rebuilt from the journal, as after a loss of power.
        std::fs::remove_file(copy.data_dir.join("sidecar.db-shm")).unwrap();
        let torn = std::fs::File::options()
            .write(true)
            .open(copy.data_dir.join("sidecar.db-wal"));
        torn.unwrap().set_len(length * part / 12).unwrap();
        let (after, records) = open(&copy);
        let head = after.head().borrow().0;
        // One update per write, and one for the restart: the row and its log entry came or went together.
        let kept = records.first().map_or(0, |record| record.generation + 2);
        assert_eq!(head, kept);
        assert!(head >= last);
        last = head;
        let checked: String = raw(&copy.data_dir)
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(checked, "ok");
    }
    assert_eq!(last, 21);
}

#[tokio::test]
async fn lost_power_makes_old_tokens_foreign_and_a_clean_stop_does_not() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let boot = |id: &str| Store::open_on_boot(config.clone(), id).unwrap().0;
    let store = boot("one");
    let token = store.resume_token(Revision(0));
    drop(store);
    let store = boot("one");
    store.parse_resume_token(&token).unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = boot("two");
    store.parse_resume_token(&token).unwrap();
    drop(store);
    let store = boot("three");
    let refused = store.parse_resume_token(&token).unwrap_err();
    assert_eq!(refused.reason(), Reason::ResumeTokenExpired);
}

#[tokio::test]
async fn no_secret_is_in_any_file_or_update() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let (store, _) = open(&config);
    store
        .put_server(record("a"), ServerStatus::default())
        .await
        .unwrap();
    store
        .rename_server(key("a"), record("b"), ServerStatus::default())
        .await
        .unwrap();
    let (_, bodies) = store.snapshot(Filter::default()).await.unwrap();
    assert!(!json(&bodies).unwrap().contains("staple"));
    assert!(!format!("{:?}{bodies:?}", all(&store).await).contains("staple"));
    let look = || {
        let mut seen = 0;
        for entry in std::fs::read_dir(&config.data_dir).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            assert!(!bytes.windows(6).any(|part| part == b"staple"));
            seen += bytes.windows(7).filter(|part| part == b"example").count();
        }
        assert!(seen > 0);
    };
    look();
    store.close().await.unwrap();
    look();
    drop(store);
    assert_eq!(open(&config).1, [record("b")]);
}

#[tokio::test]
async fn files_are_private() {
    use std::os::unix::fs::MetadataExt;
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let (store, _) = open(&config);
    store
        .put_server(record("a"), ServerStatus::default())
        .await
        .unwrap();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&config.data_dir).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().mode() & 0o777, 0o600, "{entry:?}");
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(
        names,
        [
            "lock",
            "sidecar.db",
            "sidecar.db-shm",
            "sidecar.db-wal",
            "vault.key"
        ]
    );
}

#[tokio::test]
async fn a_lost_or_wrong_key_is_refused_and_nothing_is_lost() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let key_path = config.data_dir.join("vault.key");
    let (store, _) = open(&config);
    store
        .put_server(record("a"), ServerStatus::default())
        .await
        .unwrap();
    drop(store);
    let right = std::fs::read(&key_path).unwrap();

    std::fs::remove_file(&key_path).unwrap();
    let missing = Store::open(config.clone()).err().unwrap();
    assert_eq!(missing.reason(), Reason::StoreFailed);
    assert!(missing.message().contains("missing"), "{missing}");
    assert!(!key_path.exists());

    let mut file = lock::private_file(&key_path).unwrap();
    std::io::Write::write_all(&mut file, &[9; 32]).unwrap();
    let wrong = Store::open(config.clone()).err().unwrap();
    assert!(wrong.message().contains("not the one"), "{wrong}");

    std::fs::write(&key_path, right).unwrap();
    let (store, records) = open(&config);
    assert_eq!(records, [record("a")]);
    store.remove_server(key("a")).await.unwrap();
    drop(store);
    // With nothing sealed a new key may come.
    std::fs::remove_file(&key_path).unwrap();
    let (store, _) = open(&config);
    store
        .put_server(record("b"), ServerStatus::default())
        .await
        .unwrap();
    drop(store);
    assert_eq!(open(&config).1, [record("b")]);
}

#[tokio::test]
async fn a_moved_blob_does_not_open() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let (store, _) = open(&config);
    for id in ["a", "b"] {
        store
            .put_server(record(id), ServerStatus::default())
            .await
            .unwrap();
    }
    drop(store);
    let moved =
        "UPDATE servers SET sealed = (SELECT sealed FROM servers WHERE id = 'a') WHERE id = 'b'";
    raw(&config.data_dir).execute_batch(moved).unwrap();
    let (store, records) = open(&config);
    assert_eq!(records.first(), Some(&record("a")));
    let b = records.last().unwrap();
    assert!(!b.connect && b.spec.secrets()[0].value.expose().is_empty());
    let (_, bodies) = store.snapshot(Filter::default()).await.unwrap();
    let Some(Body::Server(view)) = bodies.last() else {
        panic!("{bodies:?}");
    };
    assert_eq!(view.status.state, ConnectionState::Disconnected);
    assert_eq!(
        view.status.last_failure.as_ref().unwrap().reason,
        "STORE_FAILED"
    );
}

#[tokio::test]
async fn one_directory_has_one_daemon() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let (store, _) = open(&config);
    let refused = Store::open(config.clone()).err().unwrap();
    assert_eq!(refused.reason(), Reason::StoreFailed);
    assert!(
        refused.message().contains(&std::process::id().to_string()),
        "{refused}"
    );
    store.close().await.unwrap();
    open(&config);
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    drop(open(&config));
    raw(&config.data_dir)
        .execute_batch("PRAGMA user_version = 2")
        .unwrap();
    let refused = Store::open(config.clone()).err().unwrap();
    assert!(refused.message().contains("schema version 2"), "{refused}");
}

#[tokio::test]
async fn the_log_is_bounded_and_says_so() {
    let root = TempDir::new().unwrap();
    let config = StoreConfig {
        keep_updates: 50,
        tail: 4,
        ..config(&root)
    };
    let (store, _) = open(&config);
    store
        .put_server(record("a"), ServerStatus::default())
        .await
        .unwrap();
    for _ in 0..400 {
        store
            .set_status(key("a"), status(ConnectionState::Ready), None)
            .await
            .unwrap();
    }
    let head = *store.head().borrow();
    assert_eq!(head, Revision(401));
    let old = store.updates_after(Revision(1), 10).await.unwrap_err();
    assert_eq!(old.reason(), Reason::ResumeTokenExpired);
    let beyond = store.updates_after(Revision(402), 10).await.unwrap_err();
    assert_eq!(beyond.reason(), Reason::ResumeTokenExpired);
    assert!(store.updates_after(head, 10).await.unwrap().is_empty());
    // From the database, from memory, and where the two meet.
    for behind in [40, 20, 5, 4, 3, 1] {
        let after = Revision(head.0 - behind);
        let updates = store.updates_after(after, 1_000).await.unwrap();
        let revisions: Vec<_> = updates.iter().map(|update| update.revision.0).collect();
        assert_eq!(revisions, (after.0 + 1..=head.0).collect::<Vec<_>>());
        assert_eq!(store.updates_after(after, 1).await.unwrap().len(), 1);
    }
    store.close().await.unwrap();
    let rows: i64 = raw(&config.data_dir)
        .query_row("SELECT count(*) FROM updates", [], |row| row.get(0))
        .unwrap();
    assert!((50..200).contains(&rows), "{rows}");
}

#[tokio::test]
async fn the_log_is_bounded_by_age_and_size() {
    for (keep_age, keep_bytes) in [(Duration::ZERO, u64::MAX), (Duration::MAX, 1)] {
        let root = TempDir::new().unwrap();
        let config = StoreConfig {
            keep_age,
            keep_bytes,
            tail: 0,
            ..config(&root)
        };
        let (store, _) = open(&config);
        store
            .put_server(record("a"), ServerStatus::default())
            .await
            .unwrap();
        for _ in 0..200 {
            store
                .set_status(key("a"), status(ConnectionState::Ready), None)
                .await
                .unwrap();
        }
        let old = store.updates_after(Revision(1), 10).await.unwrap_err();
        assert_eq!(old.reason(), Reason::ResumeTokenExpired);
    }
}

#[tokio::test]
async fn ended_questions_are_forgotten_in_time() {
    let root = TempDir::new().unwrap();
    let config = StoreConfig {
        keep_ended_questions: Duration::ZERO,
        ..config(&root)
    };
    let (store, _) = open(&config);
    let (ended, pending) = (question("a"), question("a"));
    for question in [&ended, &pending] {
        store.put_question(question.clone()).await.unwrap();
    }
    store
        .end_question(
            ended.id.clone(),
            Namespace::default(),
            QuestionState::Declined,
        )
        .await
        .unwrap();
    store
        .put_server(record("a"), ServerStatus::default())
        .await
        .unwrap();
    for _ in 0..200 {
        store
            .set_status(key("a"), status(ConnectionState::Ready), None)
            .await
            .unwrap();
    }
    let gone = store
        .question(Namespace::default(), ended.id)
        .await
        .unwrap_err();
    assert_eq!(gone.reason(), Reason::ElicitationNotFound);
    store
        .question(Namespace::default(), pending.id)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_question_has_one_end() {
    let root = TempDir::new().unwrap();
    let (store, _) = open(&config(&root));
    let asked = question("a");
    store.put_question(asked.clone()).await.unwrap();
    let end = |namespace: &str, state| {
        store.end_question(asked.id.clone(), Namespace::new(namespace), state)
    };
    let foreign = end("other", QuestionState::Declined).await.unwrap_err();
    assert_eq!(foreign.reason(), Reason::ElicitationNotFound);
    let first = end("default", QuestionState::Answered).await.unwrap();
    assert_eq!(first.state, QuestionState::Answered);
    assert!(first.resolved.is_some());
    let second = end("default", QuestionState::Expired).await.unwrap_err();
    assert_eq!(second.reason(), Reason::AlreadyResolved);
    assert!(second.message().contains("answered"), "{second}");
    assert!(second.facts().contains(&("state", "ANSWERED".to_owned())));
    assert_eq!(
        story(&store).await,
        ["a question Pending", "a question Answered"]
    );
}

#[tokio::test]
async fn questions_are_listed_in_pages() {
    let root = TempDir::new().unwrap();
    let (store, _) = open(&config(&root));
    let mut ids = Vec::new();
    for round in 0..10 {
        let asked = question(if round % 2 == 0 { "a" } else { "b" });
        ids.push(asked.id.clone());
        store.put_question(asked).await.unwrap();
    }
    let list = async |servers: &[&str], states: &[QuestionState], after: Option<usize>, limit| {
        let servers = servers.iter().map(|id| ServerId::new(*id)).collect();
        let after = after.map(|at| ids[at].clone());
        let page = store.questions(Namespace::default(), servers, states.to_vec(), after, limit);
        let page = page.await.unwrap();
        let place = |question: &Question| ids.iter().position(|id| *id == question.id).unwrap();
        page.iter().map(place).collect::<Vec<_>>()
    };
    let pending = [QuestionState::Pending];
    assert_eq!(list(&[], &pending, None, 4).await, [0, 1, 2, 3]);
    assert_eq!(list(&[], &pending, Some(3), 4).await, [4, 5, 6, 7]);
    assert_eq!(list(&["b"], &pending, Some(3), 2).await, [5, 7]);
    assert_eq!(list(&["a", "b"], &[], Some(7), 9).await, [8, 9]);
    assert_eq!(store.void_questions(key("a")).await.unwrap().len(), 5);
    assert!(store.void_questions(key("a")).await.unwrap().is_empty());
    assert_eq!(list(&[], &pending, None, 3).await, [1, 3, 5]);
    let both = [QuestionState::Void, QuestionState::Pending];
    assert_eq!(list(&[], &both, None, 3).await, [0, 1, 2]);
    assert_eq!(list(&[], &[QuestionState::Void], Some(4), 3).await, [6, 8]);
}

#[tokio::test]
async fn a_renamed_server_takes_its_questions_along() {
    let root = TempDir::new().unwrap();
    let (store, _) = open(&config(&root));
    for id in ["a", "taken"] {
        store
            .put_server(record(id), ServerStatus::default())
            .await
            .unwrap();
    }
    let asked = question("a");
    store.put_question(asked.clone()).await.unwrap();
    let before = *store.head().borrow();
    let rename = |old, new| store.rename_server(key(old), record(new), ServerStatus::default());
    let taken = rename("a", "taken").await.unwrap_err();
    assert_eq!(taken.reason(), Reason::ServerIdTaken);
    let absent = rename("x", "y").await.unwrap_err();
    assert_eq!(absent.reason(), Reason::ServerNotFound);
    assert_eq!(*store.head().borrow(), before);
    let last = rename("a", "b").await.unwrap();
    assert_eq!(last, *store.head().borrow());
    let news = store.updates_after(before, 10).await.unwrap();
    let news: Vec<_> = news.iter().map(|update| said(update)).collect();
    let expected = [
        "a deleted Server",
        "b Disconnected",
        "a deleted Elicitation",
        "b question Pending",
    ];
    assert_eq!(news, expected);
    let moved = store
        .question(Namespace::default(), asked.id)
        .await
        .unwrap();
    assert_eq!(moved.server, key("b"));
}

#[tokio::test]
async fn a_removed_server_stays_removed() {
    let root = TempDir::new().unwrap();
    let (store, _) = open(&config(&root));
    store
        .put_server(record("a"), ServerStatus::default())
        .await
        .unwrap();
    store.put_question(question("a")).await.unwrap();
    store.remove_server(key("a")).await.unwrap();
    let late = store
        .set_status(key("a"), status(ConnectionState::Ready), None)
        .await;
    assert_eq!(late, Ok(None));
    let again = store.remove_server(key("a")).await.unwrap_err();
    assert_eq!(again.reason(), Reason::ServerNotFound);
    let expected = [
        "a Disconnected",
        "a question Pending",
        "a question Void",
        "a deleted Server",
    ];
    assert_eq!(story(&store).await, expected);
    let (revision, bodies) = store.snapshot(Filter::default()).await.unwrap();
    assert_eq!((revision, bodies.len()), (Revision(4), 0));
}

#[tokio::test]
async fn a_failing_write_harms_no_other_in_its_group() {
    let root = TempDir::new().unwrap();
    let (store, _) = open(&config(&root));
    store
        .put_server(record("a"), ServerStatus::default())
        .await
        .unwrap();
    // Holds the thread until everything is queued, so that all of it is one group.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let gate = store.durable(move |_| {
        wait.recv().ok();
        Ok(())
    });
    let twice = question("a");
    let (first, second) = (store.put_question(twice.clone()), store.put_question(twice));
    let panics = store.durable(|changes| -> Result<()> {
        servers::remove(changes, &key("a"))?;
        panic!("on purpose");
    });
    let absent = store.remove_server(key("x"));
    let last = store.set_status(key("a"), status(ConnectionState::Ready), None);
    let release = async {
        tokio::task::yield_now().await;
        go.send(()).unwrap();
    };
    let (gate, first, second, panics, absent, last, ()) =
        tokio::join!(gate, first, second, panics, absent, last, release);
    gate.unwrap();
    first.unwrap();
    assert_eq!(second.unwrap_err().reason(), Reason::StoreFailed);
    let panics = panics.unwrap_err();
    assert!(panics.message().contains("panicked"), "{panics}");
    assert_eq!(absent.unwrap_err().reason(), Reason::ServerNotFound);
    assert_eq!(last, Ok(Some(Revision(3))));
    assert_eq!(
        story(&store).await,
        ["a Disconnected", "a question Pending", "a Ready"]
    );
}

#[tokio::test]
async fn a_full_disk_is_an_error_that_loses_nothing() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let (store, _) = open(&config);
    store
        .put_server(record("a"), ServerStatus::default())
        .await
        .unwrap();
    let limit = |pages: u32| {
        store.0.writes.write(Durability::Lazy, move |changes| {
            let sql = format!("PRAGMA max_page_count = {pages}");
            Ok(changes.connection.query_row(&sql, [], |_| Ok(()))?)
        })
    };
    limit(1).await.unwrap();
    let mut big = question("a");
    big.message = "x".repeat(1 << 20);
    let full = store.put_question(big.clone()).await.unwrap_err();
    assert_eq!(full.reason(), Reason::StoreFailed);
    assert!(full.message().contains("the disk is full"), "{full}");
    assert_eq!(*store.head().borrow(), Revision(1));
    limit(1 << 20).await.unwrap();
    store.put_question(big).await.unwrap();
    assert_eq!(
        story(&store).await,
        ["a Disconnected", "a question Pending"]
    );
    drop(store);
    assert_eq!(open(&config).1, [record("a")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_and_what_follows_it_is_everything() {
    let root = TempDir::new().unwrap();
    let config = StoreConfig {
        tail: 16,
        ..config(&root)
    };
    let (store, _) = open(&config);
    let writer = async {
        for round in 0..100_u64 {
            let mut changed = record(&format!("s{}", round % 7));
            changed.generation = round;
            store
                .put_server(changed, ServerStatus::default())
                .await
                .unwrap();
            if round % 5 == 0 {
                store
                    .remove_server(key(&format!("s{}", round % 7)))
                    .await
                    .unwrap();
            }
        }
    };
    let reader = async {
        let mut at = Revision(0);
        while at.0 < 60 {
            let (revision, bodies) = store.snapshot(Filter::default()).await.unwrap();
            assert!(revision >= at);
            at = revision;
            let mut state = std::collections::BTreeMap::new();
            for body in bodies {
                let Body::Server(view) = body else {
                    panic!("{body:?}")
                };
                state.insert(view.key.id.clone(), view.etag);
            }
            let mut replayed = std::collections::BTreeMap::new();
            for update in all(&store)
                .await
                .iter()
                .filter(|update| update.revision <= at)
            {
                match &update.body {
                    Body::Server(view) => {
                        replayed.insert(update.server_id.clone(), view.etag.clone())
                    }
                    _ => replayed.remove(&update.server_id),
                };
            }
            assert_eq!(state, replayed);
            // The snapshot may be ahead of what is published; that is no error.
            store.updates_after(at, 10).await.unwrap();
        }
    };
    tokio::join!(writer, reader);
}

#[tokio::test]
async fn a_snapshot_holds_what_the_filter_admits() {
    let root = TempDir::new().unwrap();
    let (store, _) = open(&config(&root));
    let mut foreign = record("a");
    foreign.key.namespace = Namespace::new("other");
    for record in [record("a"), record("b"), foreign] {
        store
            .put_server(record, ServerStatus::default())
            .await
            .unwrap();
    }
    store.put_question(question("a")).await.unwrap();
    let counted = async |filter: Filter| store.snapshot(filter).await.unwrap().1.len();
    assert_eq!(counted(Filter::default()).await, 4);
    let filter = Filter {
        namespaces: vec![Namespace::default()],
        ..Filter::default()
    };
    assert_eq!(counted(filter.clone()).await, 3);
    let filter = Filter {
        server_ids: vec![ServerId::new("a")],
        ..filter
    };
    assert_eq!(counted(filter.clone()).await, 2);
    assert_eq!(
        counted(Filter {
            kinds: vec![Kind::Elicitation],
            ..filter
        })
        .await,
        1
    );
}

#[test]
fn the_key_file_can_be_elsewhere() {
    let root = TempDir::new().unwrap();
    let elsewhere: PathBuf = root.path().join("key");
    let config = StoreConfig {
        key_file: Some(elsewhere.clone()),
        ..config(&root)
    };
    drop(open(&config));
    assert!(elsewhere.exists());
    assert!(!config.data_dir.join("vault.key").exists());
}
