//! What the operations change, what the log says of it, and how long it says so.

use super::*;

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
async fn a_reader_takes_no_more_than_a_mebibyte_at_once() {
    // From memory, and from the database.
    for tail in [100, 0] {
        let root = TempDir::new().unwrap();
        let (store, _) = open(&StoreConfig {
            tail,
            ..config(&root)
        });
        for _ in 0..6 {
            let mut large = question("a");
            large.message = "?".repeat(300_000);
            store.put_question(large, LIMITS).await.unwrap();
        }
        let mut sizes = Vec::new();
        let mut at = Revision(0);
        while at < *store.head().borrow() {
            let updates = store.updates_after(at, 100).await.unwrap();
            sizes.push(updates.len());
            at = updates.last().unwrap().revision;
        }
        assert_eq!(sizes, [4, 2]);
    }
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
        store.put_question(question.clone(), LIMITS).await.unwrap();
    }
    store
        .end_question(
            ended.id.clone(),
            Namespace::default(),
            QuestionState::Declined,
            None,
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
    store.put_question(asked.clone(), LIMITS).await.unwrap();
    let end = |namespace: &str, state| {
        store.end_question(asked.id.clone(), Namespace::new(namespace), state, None)
    };
    let foreign = end("other", QuestionState::Declined).await.unwrap_err();
    assert_eq!(foreign.reason(), Reason::ElicitationNotFound);
    let first = end("default", QuestionState::Answered).await.unwrap();
    assert_eq!(first.state, QuestionState::Answered);
    assert!(first.resolved.is_some());
    let second = end("default", QuestionState::Expired).await.unwrap_err();
    assert_eq!(second.reason(), Reason::AlreadyResolved);
    assert!(second.message().contains("answered"), "{second}");
    assert!(
        second
            .facts()
            .contains(&("state".into(), "ANSWERED".to_owned()))
    );
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
        store.put_question(asked, LIMITS).await.unwrap();
    }
    let list = async |servers: &[&str], states: &[QuestionState], after: Option<usize>, limit| {
        let servers = servers.iter().map(|id| ServerId::new(*id)).collect();
        let after = after.map(|at| ids[at].clone());
        let page = store.questions(
            Namespace::default(),
            &[],
            servers,
            states.to_vec(),
            after,
            limit,
        );
        let (page, _) = page.await.unwrap();
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
    store.put_question(asked.clone(), LIMITS).await.unwrap();
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
    store.put_question(question("a"), LIMITS).await.unwrap();
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
    let (first, second) = (
        store.put_question(twice.clone(), LIMITS),
        store.put_question(twice, LIMITS),
    );
    let sealer = Arc::clone(&store.0.sealer);
    let panics = store.durable(move |changes| -> Result<()> {
        servers::remove(changes, &sealer, &key("a"), KeepCalls::default())?;
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
            // The snapshot may be ahead of what is published: what it holds is on its way.
            store.head().wait_for(|head| *head >= at).await.unwrap();
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
    store.put_question(question("a"), LIMITS).await.unwrap();
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
