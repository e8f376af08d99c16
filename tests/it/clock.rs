//! The wall clock is set while the daemon runs, as time synchronisation and people do: no wait becomes longer or
//! shorter, and nothing is lost.

use std::time::{Instant, SystemTime};

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::ElicitationState;
use mcp_sidecar_tests::wall_clock::WallClock;

use crate::questions::{Way, asking, start_call, with_forms};
use crate::updates::{register, rename, until};

const DAY: i64 = 24 * 60 * 60;

/// What takes `wanted` by the monotonic clock has taken about that, and neither nothing nor a day.
fn took(what: &str, start: Instant, wanted: Duration) {
    let elapsed = start.elapsed();
    assert!(elapsed >= wanted.mul_f64(0.8), "{what}: {elapsed:?}");
    assert!(elapsed <= wanted + PATIENCE / 2, "{what}: {elapsed:?}");
}

#[tokio::test]
async fn a_clock_that_is_set_is_the_daemons_clock() {
    let clock = WallClock::right();
    let daemon = clock.wind(TestDaemon::builder()).await.start().await;
    let app = daemon.clients().await;
    for (id, days) in [("ahead", 1), ("behind", -1), ("right", 0)] {
        clock.set(days * DAY);
        register(&app, id).await;
        let created = app.get(id).await.unwrap().create_time.unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let apart = created.seconds - i64::try_from(now.unwrap().as_secs()).unwrap();
        assert!((apart - days * DAY).abs() < 60, "{id}: {apart}");
    }
}

#[tokio::test]
async fn no_wait_goes_by_the_wall_clock() {
    for days in [1, -1] {
        let clock = WallClock::right();
        let expiry = Duration::from_secs(2);
        let builder = TestDaemon::builder()
            .set("questions.expiry", "2s")
            .set("reconnect.max_delay", "2s")
            .set("reconnect.liveness_interval", "300ms");
        one_and_two_with(clock.wind(builder).await, async |stage| {
            clock.set(0);
            let (asker, silent, legacy) = (
                asking(Way::Result).await,
                FakeMcp::echo(true).await,
                FakeMcp::echo(false).await,
            );
            silent.reply("tools/call", |_| Reply::Hang);
            stage
                .add("s", with_forms(http_spec("S", &asker.url())))
                .await;
            stage
                .add("silent", http_spec("Silent", &silent.url()))
                .await;
            stage
                .add("legacy", http_spec("Legacy", &legacy.url()))
                .await;
            let mut updates = stage.other().updates("").await;
            let start = Instant::now();
            let asked = start_call(stage.app(), "s");
            let question = updates.pending().await;
            let hanging = stage.everyone(async |app, _| {
                let mut call = app.call("silent", "echo", "{}");
                call.idle_timeout = Some(seconds(1));
                app.call_with(call).await
            });
            let set = async {
                silent.wait_method("tools/call").await;
                clock.set(days * DAY);
            };
            let (hanging, ()) = tokio::join!(hanging, set);
            for outcome in hanging {
                ErrorFacts::expect(outcome, Code::DeadlineExceeded, "UPSTREAM_TIMEOUT");
            }
            took("an idle call", start, Duration::from_secs(1));
            let end = updates.end_of(&question.id).await;
            assert_eq!(end, ElicitationState::Expired);
            took("a question", start, expiry);
            within("the end of the call", asked).await.unwrap().unwrap();

            // The session goes on, and a server that is lost comes back in its time.
            for app in &stage.apps {
                app.call_tool("legacy", "echo", "{}").await.unwrap();
            }
            assert_eq!(legacy.seen_of("initialize").len(), 1);
            let addr = silent.addr();
            silent.stop().await;
            clock.set(0);
            stage
                .app()
                .wait_for("silent", ConnectionState::Failed)
                .await;
            clock.set(-days * DAY);
            let refused = stage.other().call_tool("silent", "echo", "{}").await;
            let facts = ErrorFacts::expect(refused, Code::Unavailable, "UPSTREAM_UNREACHABLE");
            let delay = facts.retry.unwrap();
            assert!(delay <= Duration::from_secs(10), "{days}: {delay:?}");
            let builder = FakeMcp::modern().tool(tool("echo")).at(addr);
            let _back = builder.start().await;
            let start = Instant::now();
            stage
                .other()
                .wait_for("silent", ConnectionState::Ready)
                .await;
            assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
        })
        .await;
    }
}

#[tokio::test]
async fn a_place_in_the_updates_holds_though_the_clock_is_set() {
    let clock = WallClock::right();
    let builder = TestDaemon::builder().set("updates.keep_age", "1m");
    one_and_two_with(clock.wind(builder).await, async |mut stage| {
        // Changes of a clock that is two hours ahead, then of the right one, then of a few minutes later.
        clock.set(2 * 60 * 60);
        register(stage.app(), "s").await;
        let mut updates = stage.other().updates("").await;
        updates.snapshot().await;
        rename(stage.app(), "s", "ahead".to_owned()).await;
        until(&mut updates, "s").await;
        let token = updates.token();
        clock.set(0);
        register(stage.app(), "behind").await;
        clock.set(5 * 60);
        for number in 0..100 {
            rename(stage.app(), "s", format!("later {number}")).await;
        }
        register(stage.app(), "last").await;
        // Only the disk knows now. Whatever is kept, nothing in the middle is missing.
        stage.restart().await;
        let mut resumed = stage.other().updates(&token).await;
        let seen = until(&mut resumed, "last").await;
        assert!(seen.contains(&"behind".to_owned()), "{seen:?}");
    })
    .await;
}
