//! What an answer is made of below JSON: content encodings, and bytes that are no UTF-8 (relatives of cases B16, B22 and
//! B23). Gzip and its bombs are in `answers`.

use std::io::Write as _;

use bytes::Bytes;
use mcp_sidecar_tests::fake::{body, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;

use crate::answers::gzip;
use crate::streams::{DONE, all_done, all_unknown, answer, both_eras, calls};

fn brotli(text: &[u8]) -> Vec<u8> {
    let parameters = brotli::enc::BrotliEncoderParams {
        quality: 1,
        ..Default::default()
    };
    let mut packed = Vec::new();
    brotli::BrotliCompress(&mut &*text, &mut packed, &parameters).unwrap();
    packed
}

fn encoded(encoding: &str, media_type: &str, body: impl Into<Bytes>) -> Reply {
    let headers = vec![
        ("content-type", media_type.to_owned()),
        ("content-encoding", encoding.to_owned()),
    ];
    Reply::Raw(200, headers, body.into())
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

#[tokio::test]
async fn b16_and_b23_brotli_is_read_and_its_bombs_are_not() {
    let builder = TestDaemon::builder().set("limits.message_bytes", 1_u64 << 20);
    let bomb = Bytes::from(brotli(&vec![b'1'; 32 << 20]));
    one_and_two_with(builder, async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        fake.reply("tools/call", |seen| {
            assert!(seen.header("accept-encoding").contains("br"));
            encoded("br", JSON, brotli(answer(seen).as_bytes()))
        });
        all_done(&stage, "JSON").await;
        fake.reply("tools/call", |seen| {
            let event = format!("data: {}\n\n", answer(seen));
            encoded("br", EVENTS, brotli(event.as_bytes()))
        });
        all_done(&stage, "an event").await;
        for media_type in [JSON, EVENTS] {
            let bomb = bomb.clone();
            fake.reply("tools/call", move |_| {
                encoded("br", media_type, bomb.clone())
            });
            for outcome in calls(&stage).await {
                ErrorFacts::expect(outcome, Code::ResourceExhausted, "MESSAGE_TOO_LARGE");
            }
        }
        fake.reply("tools/call", |seen| {
            let mut packed = brotli(answer(seen).as_bytes());
            packed.truncate(packed.len() / 2);
            encoded("br", JSON, packed)
        });
        all_unknown(&stage, "cut off").await;
    })
    .await;
}

#[tokio::test]
async fn b16_an_encoding_that_nobody_asked_for_is_named() {
    both_eras(async |stage, fake, _| {
        // No encoding at all, spelt out.
        fake.reply("tools/call", |seen| encoded("identity", JSON, answer(seen)));
        all_done(stage, "identity").await;
        for encoding in ["zstd", "deflate", "gzip, gzip", "br, gzip", "rot13"] {
            for media_type in [JSON, EVENTS] {
                fake.reply("tools/call", move |seen| {
                    let once = gzip(answer(seen).as_bytes(), 1);
                    let headers = vec![
                        ("content-type", media_type.to_owned()),
                        ("content-encoding", encoding.to_owned()),
                    ];
                    // The stream stays open: nothing may wait for its end.
                    let twice = gzip(&once, 1);
                    Reply::Body(
                        200,
                        headers,
                        Box::new(|writer| {
                            Box::pin(async move {
                                writer.bytes(twice).await;
                                writer.closed().await;
                            })
                        }),
                    )
                });
                for outcome in calls(stage).await {
                    let facts = ErrorFacts::expect(outcome, Code::Unavailable, "OUTCOME_UNKNOWN");
                    assert!(facts.message.contains(encoding), "{facts:?}");
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn b16_a_compressed_stream_is_read_as_it_comes() {
    both_eras(async |stage, fake, _| {
        fake.reply("tools/call", |seen| {
            let token = seen.params()["_meta"]["progressToken"].clone();
            let result = answer(seen);
            let headers = [("content-type", EVENTS), ("content-encoding", "gzip")];
            body(200, &headers, async move |writer| {
                let mut packed =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                for step in 1..=3 {
                    let progress = json!({
                        "jsonrpc": "2.0", "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": step},
                    });
                    write!(packed, "data: {progress}\n\n").unwrap();
                    packed.flush().unwrap();
                    writer.bytes(std::mem::take(packed.get_mut())).await;
                }
                write!(packed, "data: {result}\n\n").unwrap();
                packed.flush().unwrap();
                writer.bytes(std::mem::take(packed.get_mut())).await;
                // Never finished: the answer is there all the same.
                writer.closed().await;
            })
        });
        let all = stage.everyone(async |app, _| {
            let events = app.call_stream("s", "echo", "{}").await.unwrap();
            within("the end of the call", events.collect())
                .await
                .unwrap()
        });
        for events in all.await {
            let progress = events
                .iter()
                .filter(|one| matches!(one, Event::Progress(_)));
            assert_eq!(progress.count(), 3, "{events:?}");
            assert!(
                matches!(events.last(), Some(Event::Result(_))),
                "{events:?}"
            );
        }
    })
    .await;
}

/// An answer with a byte in its text that is no UTF-8.
fn broken(seen: &Seen) -> Vec<u8> {
    let text = answer(seen).replace("dé", "d#");
    text.bytes()
        .map(|byte| if byte == b'#' { 0xff } else { byte })
        .collect()
}

#[tokio::test]
async fn b22_an_answer_that_is_not_utf8_ends_its_call_at_once_and_no_other() {
    for number in 0..3 {
        one_and_two(async |stage| {
            let builder = [
                FakeMcp::modern(),
                FakeMcp::legacy(),
                FakeMcp::legacy().http_sse(),
            ];
            let builder = builder.into_iter().nth(number).unwrap();
            let fake = builder.tool(tool("echo")).start().await;
            stage.add_http(&fake.url()).await;
            let forms: [fn(Vec<u8>) -> Vec<u8>; 2] = [
                |broken| [&b"data: "[..], &broken, b"\n\n"].concat(),
                // Half of it: the event ends too early.
                |broken| [&b"data: "[..], &broken[..broken.len() - 8], b"\n\n"].concat(),
            ];
            for form in forms {
                fake.reply("tools/call", move |seen| {
                    if seen.params()["arguments"]["fine"] == true {
                        return Reply::Default;
                    }
                    let event = form(broken(seen));
                    // The stream stays open: nobody waits for more.
                    stream(async move |writer| {
                        writer.bytes(event).await;
                        writer.closed().await;
                    })
                });
                let fine = stage.other().call_tool("s", "echo", r#"{"fine":true}"#);
                let (fine, ()) = tokio::join!(fine, all_unknown(&stage, "no UTF-8"));
                fine.unwrap();
            }
            if number < 2 {
                fake.reply("tools/call", |seen| {
                    Reply::Raw(
                        200,
                        vec![("content-type", JSON.to_owned())],
                        broken(seen).into(),
                    )
                });
                all_unknown(&stage, "a body that is no UTF-8").await;
            }
            fake.reset("tools/call");
            for outcome in calls(&stage).await {
                outcome.unwrap();
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b22_a_notification_that_is_not_utf8_is_skipped() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(false).await;
        let server = fake.clone();
        fake.on("GET", move |_| {
            let server = server.clone();
            std::future::ready(stream(async move |writer| {
                // Wait until the lists have been read, so that only the news leads to another reading.
                server.wait_method("tools/list").await;
                server.set_list("tools", vec![tool("echo"), tool("new")]);
                let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
                let mut bytes =
                    b"data: {\"jsonrpc\":\"2.0\",\"method\":\"x\xff\xfe\"}\n\n".to_vec();
                bytes.extend_from_slice(b"data: {\"jsonrpc\"\n\ndata: \xc3\n\n");
                bytes.extend_from_slice(format!(": {}\n", "y".repeat(1 << 20)).as_bytes());
                bytes.extend_from_slice(format!("data: {changed}\n\n").as_bytes());
                writer.bytes(bytes).await;
                writer.closed().await;
            }))
        });
        stage.add_http(&fake.url()).await;
        stage
            .everyone(async |app, _| {
                let mut updates = app.updates("").await;
                updates
                    .server_where("two tools", |server| server.tool_count() == 2)
                    .await;
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn b23_a_comment_may_be_long_and_an_answer_small() {
    let builder = TestDaemon::builder().set("limits.message_bytes", 65_536_u64);
    one_and_two_with(builder, async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        for (comment, fits) in [(32 << 10, true), (1 << 20, false)] {
            fake.reply("tools/call", move |seen| {
                let text = format!(": {}\ndata: {}\n\n", "c".repeat(comment), answer(seen));
                Reply::Sse(vec![Step::Bytes(text.into())])
            });
            for outcome in calls(&stage).await {
                if fits {
                    assert!(DONE.contains(&text_of(&outcome.unwrap())));
                } else {
                    ErrorFacts::expect(outcome, Code::ResourceExhausted, "MESSAGE_TOO_LARGE");
                }
            }
        }
    })
    .await;
}
