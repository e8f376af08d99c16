//! Servers that speak HTTP/2: one connection carries everything, so what happens to one stream must not spoil the others
//! (case B41, its last clause; B14 and B35 where streams are reset).

use mcp_sidecar_tests::daemon::Builder;
use mcp_sidecar_tests::fake::{SseWriter, stream, tls};
use mcp_sidecar_tests::prelude::*;
use tokio_util::sync::CancellationToken;

use crate::streams::{all_done, all_unknown, answer, calls};

fn trusting() -> Builder {
    let roots = tls::roots();
    TestDaemon::builder().env(tls::TRUST, roots.to_str().unwrap())
}

async fn fake(modern: bool) -> FakeMcp {
    let builder = if modern {
        FakeMcp::modern()
    } else {
        FakeMcp::legacy()
    };
    builder.tls().tool(tool("echo")).start().await
}

/// A call that ends when the test says so.
fn slow(fake: &FakeMcp, release: &CancellationToken) {
    let release = release.clone();
    fake.reply("tools/call", move |seen| {
        let (release, result) = (release.clone(), answer(seen));
        match seen.params()["arguments"]["slow"].as_bool() {
            Some(true) => stream(async move |writer: SseWriter| {
                tokio::select! {
                    () = release.cancelled() => writer.bytes(format!("data: {result}\n\n")).await,
                    () = writer.closed() => {}
                }
            }),
            _ => Reply::Raw(200, Vec::new(), result.into()),
        }
    });
}

/// Starts slow calls, and waits until they are there.
async fn start_slow(
    stage: &Stage,
    fake: &FakeMcp,
    count: usize,
) -> Vec<tokio::task::JoinHandle<Result<v1::ToolResult, tonic::Status>>> {
    let app = stage.app().clone();
    let tasks = (0..count).map(|_| {
        let app = app.clone();
        tokio::spawn(async move { app.call_tool("s", "echo", r#"{"slow":true}"#).await })
    });
    let tasks = tasks.collect();
    eventually("the slow calls", PATIENCE, async || {
        (fake.seen_of("tools/call").len() >= count).then_some(())
    })
    .await;
    tasks
}

#[tokio::test]
async fn b41_calls_that_are_given_up_in_masses_harm_no_other_over_http2() {
    for modern in [true, false] {
        one_and_two_with(trusting(), async |stage| {
            let fake = fake(modern).await;
            stage.add_http(&fake.url()).await;
            let release = CancellationToken::new();
            slow(&fake, &release);
            let kept = start_slow(&stage, &fake, 5).await;
            let rounds = 5000 / stage.apps.len() / 500;
            stage
                .everyone(async |app, _| {
                    for _ in 0..rounds {
                        let burst = (0..500_u64).map(async |number| {
                            let call = app.call_tool("s", "echo", "{}");
                            // Before, while and after the answer comes.
                            let patience = Duration::from_micros(number * 40);
                            let _given_up = tokio::time::timeout(patience, call).await;
                        });
                        futures_util::future::join_all(burst).await;
                    }
                })
                .await;
            for call in &kept {
                assert!(!call.is_finished(), "a slow call has ended");
            }
            stage.other().calls_in_flight("s", 5).await;
            release.cancel();
            for call in kept {
                let result = within("a slow call", call).await.unwrap();
                assert_eq!(text_of(&result.unwrap()), "dé€😀");
            }
            // The stream of notifications has survived, too.
            fake.set_list("tools", vec![tool("echo"), tool("new")]);
            fake.notify("notifications/tools/list_changed").await;
            let mut updates = stage.other().updates("").await;
            updates
                .server_where("two tools", |server| server.tool_count() == 2)
                .await;
            let first = if modern {
                "server/discover"
            } else {
                "initialize"
            };
            assert_eq!(fake.seen_of(first).len(), 1, "the link was never lost");
        })
        .await;
    }
}

#[tokio::test]
async fn b41_streams_that_the_server_resets_harm_no_other() {
    one_and_two_with(trusting(), async |stage| {
        let fake = fake(true).await;
        stage.add_http(&fake.url()).await;
        let release = CancellationToken::new();
        slow(&fake, &release);
        let kept = start_slow(&stage, &fake, 5).await;
        for reset in [false, true] {
            fake.reply("tools/call", move |_| {
                if reset {
                    // Behind the head of the answer.
                    Reply::Sse(vec![Step::Bytes(": hi\n\n".into()), Step::Reset])
                } else {
                    Reply::Reset
                }
            });
            let before = fake.seen_of("tools/call").len();
            for _ in 0..100 {
                all_unknown(&stage, "a stream that is reset").await;
            }
            let sent = fake.seen_of("tools/call").len() - before;
            assert_eq!(sent, 100 * stage.apps.len(), "nothing is sent twice");
        }
        release.cancel();
        for call in kept {
            let result = within("a slow call", call).await.unwrap();
            assert_eq!(text_of(&result.unwrap()), "dé€😀");
        }
        assert_eq!(
            fake.seen_of("server/discover").len(),
            fake.seen_of("server/discover").len()
        );
        slow(&fake, &release);
        all_done(&stage, "after all that").await;
    })
    .await;
}

#[tokio::test]
async fn b41_a_server_that_says_goodbye_ends_nothing_that_is_under_way() {
    for modern in [true, false] {
        one_and_two_with(trusting(), async |stage| {
            let fake = fake(modern).await;
            stage.add_http(&fake.url()).await;
            let release = CancellationToken::new();
            slow(&fake, &release);
            let kept = start_slow(&stage, &fake, 5).await;
            for _ in 0..10 {
                // Calls race with the goodbye: each is made exactly once, on the old connection or on a new one.
                let before = fake.seen_of("tools/call").len();
                let racing = calls(&stage);
                fake.go_away();
                for outcome in racing.await {
                    assert_eq!(text_of(&outcome.unwrap()), "dé€😀");
                }
                let made = fake.seen_of("tools/call").len() - before;
                assert_eq!(made, stage.apps.len());
            }
            release.cancel();
            for call in kept {
                let result = within("a slow call", call).await.unwrap();
                assert_eq!(text_of(&result.unwrap()), "dé€😀");
            }
        })
        .await;
    }
}
