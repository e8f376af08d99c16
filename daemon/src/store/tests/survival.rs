//! What survives a restart, a kill, a torn journal, a full disk; and what is refused at the start.

use std::path::PathBuf;

use super::*;
use crate::model::spec::Abilities;

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let (store, none) = open(&config);
    assert!(none.is_empty());
    let mut a = record("a");
    a.verdict = Some(Verdict {
        transport: None,
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
    store.put_question(asked.clone(), LIMITS).await.unwrap();
    let token = store.resume_token(*store.head().borrow());
    store.close().await.unwrap();
    store.close().await.unwrap();
    let late = store.put_question(question("a"), LIMITS).await.unwrap_err();
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
async fn a_session_is_kept_sealed_for_its_server_and_settings_only() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let session = Session {
        id: Secret::new("very-secret-session".to_owned()),
        version: "2025-11-25".to_owned(),
        hello: "{}".to_owned(),
        told: Some(Abilities::NOTHING),
    };
    let (store, _) = open(&config);
    for id in [
        "same",
        "renamed",
        "changed",
        "moved",
        "removed",
        "forgotten",
    ] {
        let put = store.put_server(record(id), ServerStatus::default()).await;
        put.unwrap();
        let kept = store.set_session(key(id), Some(session.clone())).await;
        kept.unwrap();
    }
    // A late report brings nothing back.
    store
        .set_session(key("nobody"), Some(session.clone()))
        .await
        .unwrap();
    let before = *store.head().borrow();
    store.set_session(key("forgotten"), None).await.unwrap();
    assert_eq!(
        *store.head().borrow(),
        before,
        "apps never hear of sessions"
    );
    let mut again = record("same");
    again.connect = false;
    let mut changed = record("changed");
    changed.generation += 1;
    for record in [again, changed] {
        store
            .put_server(record, ServerStatus::default())
            .await
            .unwrap();
    }
    let target = record("target");
    store
        .rename_server(key("renamed"), target, ServerStatus::default())
        .await
        .unwrap();
    store.remove_server(key("removed")).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    for file in std::fs::read_dir(&config.data_dir).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let needle = b"very-secret-session";
        assert!(!bytes.windows(needle.len()).any(|part| part == needle));
    }
    // A blob that was copied to another row does not open there.
    raw(&config.data_dir)
        .execute_batch(
            "UPDATE sessions SET sealed = (SELECT sealed FROM sessions WHERE server_id = 'same')
             WHERE server_id = 'moved'",
        )
        .unwrap();
    let (_store, records) = open(&config);
    for record in records {
        let wanted = (record.key == key("same")).then_some(&session);
        assert_eq!(record.session.as_ref(), wanted, "{}", record.key);
    }
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
        .execute_batch("PRAGMA user_version = 900")
        .unwrap();
    let refused = Store::open(config.clone()).err().unwrap();
    assert!(
        refused.message().contains("schema version 900"),
        "{refused}"
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
    let full = store.put_question(big.clone(), LIMITS).await.unwrap_err();
    assert_eq!(full.reason(), Reason::StoreFailed);
    assert!(full.message().contains("the disk is full"), "{full}");
    assert_eq!(*store.head().borrow(), Revision(1));
    limit(1 << 20).await.unwrap();
    store.put_question(big, LIMITS).await.unwrap();
    assert_eq!(
        story(&store).await,
        ["a Disconnected", "a question Pending"]
    );
    drop(store);
    assert_eq!(open(&config).1, [record("a")]);
}

#[tokio::test]
async fn a_write_that_could_not_begin_says_why() {
    let root = TempDir::new().unwrap();
    let (store, _) = open(&config(&root));
    let read_only = store.0.writes.write(Durability::Lazy, |changes| {
        Ok(changes.connection.execute_batch("PRAGMA query_only = 1")?)
    });
    read_only.await.unwrap();
    let refused = store.put_question(question("a"), LIMITS).await.unwrap_err();
    assert!(refused.message().contains("cannot be written"), "{refused}");
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
