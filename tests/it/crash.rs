//! A daemon that is killed at any moment.

use std::collections::BTreeSet;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::stream_updates_response::Event;

/// A small generator with a seed that can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What the daemon has acknowledged, and what it may or may not have done when it was killed.
#[derive(Default)]
struct Ledger {
    kept: BTreeSet<String>,
    removed: BTreeSet<String>,
    unsure: BTreeSet<String>,
}

/// Adds, calls and removes servers until the daemon is gone.
async fn work(
    app: Clients,
    url: String,
    round: u32,
    mut random: Random,
    mut ledger: Ledger,
) -> Ledger {
    for n in 0_u32.. {
        let id = format!("s-{round}-{n}");
        let request = v1::AddServerRequest {
            server_id: id.clone(),
            spec: Some(http_spec(&id, &url)),
            register_only: random.below(3) == 0,
            wait_timeout: Some(millis(random.below(2) * 50)),
            ..Default::default()
        };
        if app.add_with(request).await.is_err() {
            ledger.unsure.insert(id);
            break;
        }
        ledger.kept.insert(id.clone());
        // A call may meet a server that is still connecting.
        let _answer = app.call_tool(&id, "echo", "{}").await;
        if random.below(3) == 0 {
            let place = random.below(ledger.kept.len() as u64);
            let old = ledger
                .kept
                .iter()
                .nth(place.try_into().unwrap())
                .cloned()
                .unwrap();
            ledger.kept.remove(&old);
            if app.remove(&old).await.is_err() {
                ledger.unsure.insert(old);
                break;
            }
            ledger.removed.insert(old);
        }
    }
    ledger
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_acknowledged_is_lost() {
    let seed: u64 = match std::env::var("CRASH_SEED") {
        Ok(seed) => seed.parse().expect("CRASH_SEED is a number"),
        Err(_) => std::process::id().into(),
    };
    println!("to repeat: CRASH_SEED={seed}");
    let mut random = Random(seed | 1);
    let mut daemon = TestDaemon::start().await;
    let fake = FakeMcp::echo(true).await;
    let mut ledger = Ledger::default();
    let app = daemon.clients().await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;
    let mut token = updates.token();
    let start = std::time::Instant::now();
    for round in 0..12 {
        if start.elapsed() > Duration::from_secs(20) {
            break;
        }
        let app = daemon.clients().await;
        let work = tokio::spawn(work(
            app,
            fake.url(),
            round,
            Random(random.below(u64::MAX) | 1),
            ledger,
        ));
        // The random moment is what this is about.
        tokio::time::sleep(Duration::from_millis(20 + random.below(400))).await;
        daemon.kill9().await;
        ledger = within("the end of the work", work).await.unwrap();

        daemon.restart().await;
        let app = daemon.clients().await;
        let listed: BTreeSet<_> = app
            .list()
            .await
            .into_iter()
            .map(|server| server.id)
            .collect();
        for id in &ledger.kept {
            assert!(
                listed.contains(id),
                "seed {seed}, round {round}: `{id}` is lost"
            );
        }
        for id in &ledger.removed {
            assert!(
                !listed.contains(id),
                "seed {seed}, round {round}: `{id}` is back"
            );
        }
        // What was under way is there completely or not at all.
        for id in std::mem::take(&mut ledger.unsure) {
            if listed.contains(&id) {
                let server = app.get(&id).await.unwrap();
                assert_eq!(server.spec.unwrap().name, id);
                ledger.kept.insert(id);
            } else {
                ledger.removed.insert(id);
            }
        }

        // The stream goes on from a token of before, and shows the same.
        let marker = format!("marker-{round}");
        let request = v1::AddServerRequest {
            server_id: marker.clone(),
            spec: Some(http_spec(&marker, &fake.url())),
            register_only: true,
            ..Default::default()
        };
        app.add_with(request).await.unwrap();
        let mut updates = app.updates(&token).await;
        let mut gone = BTreeSet::new();
        let deleted = |response: &v1::StreamUpdatesResponse| match &response.event {
            Some(Event::Delete(delete)) => {
                gone.insert(delete.id.clone());
                None
            }
            _ => match mcp_sidecar_tests::updates::upsert(response)? {
                v1::upsert::Resource::Server(server) => (server.id == marker).then_some(()),
                _ => None,
            },
        };
        updates.find("the marker", deleted).await;
        assert!(gone.is_disjoint(&ledger.kept), "seed {seed}, round {round}");
        ledger.kept.insert(marker);
        token = updates.token();
    }
    let (kept, removed) = (ledger.kept.len(), ledger.removed.len());
    assert!(
        kept > 12 && removed > 0,
        "too little happened: {kept} kept, {removed} removed"
    );
}

#[tokio::test]
async fn a_stop_is_orderly_and_leaves_no_process() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let scripts = tempfile::tempdir().unwrap();
    let pids = scripts.path().join("pids");
    let register = StdioFault::Register(pids.to_str().unwrap().to_owned());
    let spec = Script::faulty(register).spec("s", scripts.path()).await;
    app.add_ready(spec).await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;

    let status = daemon.terminate().await;
    assert!(status.success(), "{status}: {}", daemon.log());
    let pid: i32 = std::fs::read_to_string(&pids)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let gone = rustix::process::test_kill_process(pid);
    assert_eq!(
        gone,
        Err(rustix::io::Errno::SRCH),
        "the child is still there"
    );
    // The open stream ends by itself rather than hanging.
    while let Ok(Some(_)) = updates.try_next().await {}
}

#[tokio::test]
async fn a_full_disk_beneath_log_and_database_stops_no_call() {
    let mut daemon = TestDaemon::builder().limitable().start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    daemon.limit_files(Some(1));
    let lines = daemon.log().len();
    for _ in 0..20 {
        app.call_tool("s", "echo", "{}").await.unwrap();
    }
    let refused = app.add("t", http_spec("T", "https://example.com/")).await;
    ErrorFacts::expect(refused, Code::Internal, "STORE_FAILED");
    assert_eq!(daemon.log().len(), lines, "no line could be written");
    daemon.limit_files(None);
    app.add("t", http_spec("T", &fake.url())).await.unwrap();
    assert!(daemon.terminate().await.success());
    assert!(daemon.log().len() > lines);
}
