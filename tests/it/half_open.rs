//! Peers that vanish without a word: nothing is closed, nothing is refused, nothing comes.

use std::time::Instant;

use mcp_sidecar_tests::daemon::Builder;
use mcp_sidecar_tests::fake::line::Line;
use mcp_sidecar_tests::prelude::*;

/// Settings under which silence is noticed soon.
fn quick() -> Builder {
    TestDaemon::builder()
        .set("reconnect.liveness_interval", "200ms")
        .set("reconnect.max_delay", "1s")
        .set("timeouts.probe", "300ms")
        .set("timeouts.connect", "1s")
        .set("timeouts.close", "200ms")
}

/// A server of each kind that has streams: both eras of Streamable HTTP, and HTTP+SSE.
async fn kinds() -> [FakeMcp; 3] {
    [
        FakeMcp::echo(true).await,
        FakeMcp::echo(false).await,
        FakeMcp::legacy()
            .http_sse()
            .tool(tool("echo"))
            .start()
            .await,
    ]
}

#[tokio::test]
async fn behaviour_33_a_server_that_vanishes_is_noticed_and_found_again() {
    one_and_two_with(quick(), async |stage| {
        let fakes = kinds().await;
        let mut lines = Vec::new();
        for (number, fake) in fakes.iter().enumerate() {
            let line = Line::before(fake).await;
            let name = format!("s-{number}");
            stage.add(&name, http_spec(&name, &line.url())).await;
            lines.push(line);
        }
        let mut all = Vec::new();
        for app in &stage.apps {
            let mut updates = app.updates("").await;
            updates.snapshot().await;
            all.push(updates);
        }
        // A call is under way on each of them, and each has an open stream.
        for fake in &fakes {
            fake.reply("tools/call", |_| Reply::Hang);
        }
        let start = Instant::now();
        let calls = stage.everyone(async |app, _| {
            let calls = (0..3).map(async |number| {
                let mut call = app.call(&format!("s-{number}"), "echo", "{}");
                call.idle_timeout = Some(millis(500));
                app.call_with(call).await
            });
            futures_util::future::join_all(calls).await
        });
        let vanish = async {
            for fake in &fakes {
                fake.wait_method("tools/call").await;
            }
            for line in &lines {
                line.die();
            }
        };
        let (ended, ()) = tokio::join!(calls, vanish);
        for outcome in ended.into_iter().flatten() {
            let facts = ErrorFacts::of(&outcome.unwrap_err());
            assert_eq!(facts.reason, "UPSTREAM_TIMEOUT", "{facts:?}");
        }
        for updates in &mut all {
            for number in 0..3 {
                let id = format!("s-{number}");
                let gone = updates
                    .server_where("the silence", |server| {
                        server.id == id && server.state() != ConnectionState::Ready
                    })
                    .await;
                assert!(gone.failure().1.contains("sign of life"), "{gone:?}");
                assert!(start.elapsed() < Duration::from_secs(10), "{id}");
                // The next one was noticed at about the same time: look from the beginning.
                *updates = stage.app().updates("").await;
            }
        }
        for (line, fake) in lines.iter().zip(&fakes) {
            line.revive();
            fake.reset("tools/call");
        }
        for number in 0..3 {
            let id = format!("s-{number}");
            for app in &stage.apps {
                app.wait_for(&id, ConnectionState::Ready).await;
                app.call_tool(&id, "echo", "{}").await.unwrap();
            }
        }
    })
    .await;
}

/// Timers of the established connections to a port, as the kernel shows them: the kind, and what is left of it.
fn timers(daemon: &TestDaemon, port: u16) -> Vec<(u8, Duration)> {
    let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", daemon.pid())).unwrap();
    let rows = table.lines().skip(1).filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let to_port = columns[2].ends_with(&format!(":{port:04X}"));
        if !to_port || columns[3] != "01" {
            return None;
        }
        let (kind, left) = columns[5].split_once(':')?;
        let left = u64::from_str_radix(left, 16).ok()? * 10;
        Some((kind.parse().ok()?, Duration::from_millis(left)))
    });
    rows.collect()
}

#[tokio::test]
async fn behaviour_33_the_system_probes_connections_on_which_nothing_happens() {
    // A stream of notifications may be silent for hours. That its other end has vanished only probes can tell, and a
    // connection within one host cannot vanish: what is seen here is that the probes are on, and how often.
    let builder = TestDaemon::builder()
        .set("reconnect.keepalive_interval", "2s")
        .set("reconnect.liveness_interval", "1h");
    one_and_two_with(builder, async |stage| {
        for (number, fake) in kinds().await.iter().enumerate() {
            let name = format!("s-{number}");
            stage.add(&name, http_spec(&name, &fake.url())).await;
            let port = fake.addr().port();
            let timers = eventually("connections that only wait", PATIENCE, async || {
                let timers = timers(&stage.daemon, port);
                let waiting = timers.iter().all(|(kind, _)| *kind == 2);
                (waiting && !timers.is_empty()).then_some(timers)
            });
            for (_, left) in timers.await {
                assert!(left <= Duration::from_secs(2), "{left:?}");
            }
        }
    })
    .await;
}
