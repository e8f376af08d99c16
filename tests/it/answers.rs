//! Answers as they are on the proxy: media types, framing, chunk borders, compression, oddities of HTTP, limits.

use std::io::Write as _;

use bytes::Bytes;
use http::Method;
use mcp_sidecar_tests::fake::proxy::Proxy;
use mcp_sidecar_tests::fake::{body, stream};
use mcp_sidecar_tests::prelude::*;
use tokio::io::AsyncWriteExt as _;

use crate::streams::{DONE, all_done, all_unknown, answer, both_eras, calls};

/// A spelling of a media type; `None`: no header.
type MediaType = Option<&'static str>;

const JSON_TYPES: [MediaType; 4] = [
    Some("application/json"),
    Some("Application/JSON; charset=utf-8"),
    Some("application/json;charset=\"utf-8\""),
    None,
];
const EVENT_TYPES: [MediaType; 4] = [
    Some("text/event-stream"),
    Some("text/event-stream; charset=utf-8"),
    Some("TEXT/Event-Stream;charset=UTF-8"),
    None,
];

/// Every form in which an answer can come: its name, whether it is an event stream, and the bytes.
fn shapes(answer: &str) -> Vec<(&'static str, bool, String)> {
    let (head, tail) = answer.split_once(",\"result\"").unwrap();
    vec![
        ("json", false, answer.to_owned()),
        (
            "json with space around it",
            false,
            format!("\r\n {answer} \n"),
        ),
        (
            "json with a byte order mark",
            false,
            format!("\u{feff}{answer}"),
        ),
        ("a batch of one", false, format!("[{answer}]")),
        (
            "an event",
            true,
            format!("event: message\ndata: {answer}\n\n"),
        ),
        (
            "an event without a name",
            true,
            format!("data: {answer}\n\n"),
        ),
        (
            "no space behind the colon",
            true,
            format!("data:{answer}\n\n"),
        ),
        (
            "comments",
            true,
            format!(": hi\n:\n\n: {{\ndata: {answer}\n: x\n\n"),
        ),
        (
            "carriage returns",
            true,
            format!("event: message\r\ndata: {answer}\r\n\r\n"),
        ),
        (
            "old line ends",
            true,
            format!("event: message\rdata: {answer}\r\r"),
        ),
        (
            "mixed line ends",
            true,
            format!("event: message\r\ndata: {answer}\n\r\n"),
        ),
        (
            "a byte order mark",
            true,
            format!("\u{feff}data: {answer}\n\n"),
        ),
        (
            "data in two lines",
            true,
            format!("data: {head}\ndata: ,\"result\"{tail}\n\n"),
        ),
        (
            "unknown fields",
            true,
            format!("foo: bar\nbaz\nretry: soon\nid: 1\ndata: {answer}\n\n"),
        ),
        (
            "other events first",
            true,
            format!("event: ping\ndata: {{}}\n\ndata: nonsense\n\ndata\n\ndata: {answer}\n\n"),
        ),
        (
            "other events behind",
            true,
            format!("data: {answer}\n\ndata: {{\n\nevent: end\n\n"),
        ),
        (
            "empty events",
            true,
            format!("data:\n\nid\n\nevent:\n\ndata\ndata\n\n\n\ndata: {answer}\n\n"),
        ),
        (
            "a byte order mark in the middle",
            true,
            format!(": hi\n\n\u{feff}data: {{}}\n\ndata: {answer}\n\n"),
        ),
        (
            "odd fields",
            true,
            format!(
                "id: a\0b\nretry: -1\nretry: 1e9\nretry:\n: \0\nDATA: x\n data: x\nevent: message\ndata: {answer}\n\n"
            ),
        ),
        (
            "data in three lines",
            true,
            format!("data:\ndata: {answer}\ndata\n\n"),
        ),
        ("a batch in an event", true, format!("data: [{answer}]\n\n")),
    ]
}

#[tokio::test]
async fn b16_every_form_of_an_answer_is_understood() {
    both_eras(async |stage, fake, _| {
        for (place, (name, events, _)) in shapes("{,\"result\"}").into_iter().enumerate() {
            let types = if events { EVENT_TYPES } else { JSON_TYPES };
            for media_type in types {
                for status in [200, 202] {
                    fake.reply("tools/call", move |seen| {
                        let (_, _, text) = shapes(&answer(seen)).swap_remove(place);
                        let headers = media_type.map(|it| ("content-type", it.to_owned()));
                        Reply::Raw(status, headers.into_iter().collect(), text.into())
                    });
                    all_done(stage, &format!("{name}, {media_type:?}, {status}")).await;
                }
            }
        }
        // Nothing at all is no answer, whatever it is called.
        for status in [200, 202, 204] {
            fake.reply("tools/call", move |_| {
                Reply::Raw(status, Vec::new(), Bytes::new())
            });
            all_unknown(stage, &format!("nothing, {status}")).await;
        }
    })
    .await;
}

#[tokio::test]
async fn b16_chunk_borders_mean_nothing() {
    both_eras(async |stage, fake, _| {
        for (place, (name, events, _)) in shapes("{,\"result\"}").into_iter().enumerate() {
            fake.reply("tools/call", move |seen| {
                let (_, _, text) = shapes(&answer(seen)).swap_remove(place);
                let media_type = if events {
                    EVENT_TYPES[0]
                } else {
                    JSON_TYPES[0]
                };
                // One byte at a time: within characters, within line ends, within the byte order mark.
                body(
                    200,
                    &[("content-type", media_type.unwrap())],
                    async move |writer| {
                        for byte in text.into_bytes() {
                            writer.bytes(vec![byte]).await;
                        }
                    },
                )
            });
            all_done(stage, name).await;
        }
    })
    .await;
}

#[tokio::test]
async fn b16_any_success_acknowledges_a_notification() {
    for status in [200, 202, 204] {
        one_and_two(async |stage| {
            let fake = FakeMcp::echo(false).await;
            fake.reply("notifications/initialized", move |_| {
                Reply::Raw(status, Vec::new(), Bytes::new())
            });
            stage.add_http(&fake.url()).await;
            fake.reply("tools/call", |seen| {
                Reply::Raw(200, Vec::new(), answer(seen).into())
            });
            all_done(&stage, "acknowledged").await;
        })
        .await;
    }
}

/// Refuses whatever is not exactly as the specification wants it.
fn refusal(seen: &Seen) -> Option<Reply> {
    let refuse = |status: u16| Some(Reply::Raw(status, Vec::new(), "strict".into()));
    let accept = seen.header("accept");
    if seen.http == Method::POST {
        let accepts = |wanted| accept.split(',').any(|one| one.trim() == wanted);
        if !accepts("application/json") || !accepts("text/event-stream") {
            return refuse(406);
        }
        return (seen.header("content-type") != "application/json").then(|| refuse(415))?;
    }
    if seen.headers.contains_key("content-type") || !seen.body.is_empty() {
        return refuse(415);
    }
    if seen.http == Method::GET && accept != "text/event-stream" {
        return refuse(406);
    }
    None
}

#[tokio::test]
async fn b16_a_strict_server_finds_nothing_to_refuse() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let fake = FakeMcp::echo(modern).await;
            fake.reply("*", |seen| refusal(seen).unwrap_or(Reply::Default));
            stage.add_http(&fake.url()).await;
            fake.notify("notifications/tools/list_changed").await;
            for outcome in calls(&stage).await {
                outcome.unwrap();
            }
            let gone = Duration::from_millis(100);
            fake.reply("tools/call", |seen| refusal(seen).unwrap_or(Reply::Hang));
            let given_up = stage.everyone(async |app, _| {
                let call = app.call_tool("s", "echo", "{}");
                tokio::time::timeout(gone, call).await.is_err()
            });
            assert!(given_up.await.into_iter().all(|given_up| given_up));
            if !modern {
                fake.wait_method("notifications/cancelled").await;
            }
            stage.other().remove("s").await.unwrap();
            for seen in fake.seen() {
                assert!(refusal(&seen).is_none(), "{seen:?}");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b16_an_error_in_a_refusal_is_passed_on() {
    both_eras(async |stage, fake, _| {
        for status in [400, 403, 422, 500] {
            fake.reply("tools/call", move |seen| {
                let error = json!({"code": -32099, "message": "not today", "data": {"n": 1}});
                let text = json!({"jsonrpc": "2.0", "id": seen.json["id"], "error": error});
                Reply::Raw(status, Vec::new(), text.to_string().into())
            });
            for outcome in calls(stage).await {
                let facts = ErrorFacts::expect(outcome, Code::Unknown, "UPSTREAM_ERROR");
                assert_eq!(facts.metadata["jsonrpc_code"], "-32099", "{facts:?}");
                assert_eq!(facts.metadata["data_json"], r#"{"n":1}"#, "{facts:?}");
                assert_eq!(facts.metadata["http_status"], status.to_string());
            }
        }
    })
    .await;
}

/// An HTTP answer with these header lines and this body.
fn http(head: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{head}\r\n{body}").into_bytes()
}

#[tokio::test]
async fn b16_oddities_of_http_are_understood() {
    let json = "content-type: application/json\r\n";
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        let proxy = Proxy::before(&fake).await;
        stage.add_http(&proxy.url()).await;
        proxy.reply("tools/call", move |call| {
            let text = call.answer(DONE);
            let (one, two) = text.split_at(10);
            let chunks = format!(
                "{:x};ext=1\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\nx-checksum: 1\r\nx-more: 2\r\n\r\n",
                one.len(),
                two.len()
            );
            http(
                &format!("{json}transfer-encoding: chunked\r\ntrailer: x-checksum\r\n"),
                &chunks,
            )
        });
        all_done(&stage, "chunks and trailers").await;
        proxy.reply("tools/call", move |call| http(json, &call.answer(DONE)));
        all_done(&stage, "a body up to the end of the connection").await;
        proxy.reply("tools/call", move |call| {
            let early =
                "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
            [early.as_bytes(), &http(json, &call.answer(DONE))].concat()
        });
        all_done(&stage, "interim answers").await;
    })
    .await;
}

#[tokio::test]
async fn b16_broken_http_ends_the_call_at_once() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        let proxy = Proxy::before(&fake).await;
        stage.add_http(&proxy.url()).await;
        let long = "y".repeat(2 << 20);
        let many = "x-many: y\r\n".repeat(5000);
        let broken: [(&str, String); 6] = [
            (
                "a short body",
                "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_owned(),
            ),
            (
                "a short chunk",
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\n{".to_owned(),
            ),
            ("no HTTP", "\u{16}\u{3}\u{1} hello\r\n\r\n".to_owned()),
            ("nothing", String::new()),
            (
                "a long header",
                format!("HTTP/1.1 200 OK\r\nx-long: {long}\r\n\r\n"),
            ),
            ("many headers", format!("HTTP/1.1 200 OK\r\n{many}\r\n")),
        ];
        for (name, bytes) in broken {
            proxy.reply("tools/call", move |_| bytes.clone().into_bytes());
            all_unknown(&stage, name).await;
        }
        proxy.reset("tools/call");
        for outcome in calls(&stage).await {
            outcome.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn b16_an_answer_that_trickles_ends_in_time_and_holds_up_nobody() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        let proxy = Proxy::before(&fake).await;
        stage.add_http(&proxy.url()).await;
        let well = FakeMcp::echo(true).await;
        stage.add("well", http_spec("Well", &well.url())).await;
        let starts = [
            "HTTP/1.1 200 ",
            "HTTP/1.1 200 OK\r\nx-slow: ",
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: ",
            "HTTP/1.1 503 Unavailable\r\n\r\n",
        ];
        let patience = millis(300);
        for (start, refused) in starts.into_iter().zip([false, false, false, false, true]) {
            proxy.on("tools/call", move |_, mut stream| async move {
                let mut sent = stream.write_all(start.as_bytes()).await;
                while sent.is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    sent = stream.write_all(b"{").await;
                }
            });
            let slow = stage.everyone(async |app, _| {
                let mut call = app.call("s", "echo", "{}");
                call.idle_timeout = Some(patience);
                app.call_with(call).await
            });
            let quick = stage.other().call_tool("well", "echo", "{}");
            let (slow, quick) = tokio::join!(slow, quick);
            quick.unwrap();
            for outcome in slow {
                let facts = ErrorFacts::of(&outcome.expect_err(start));
                // The status of a refusal is known before its body.
                let known = refused && facts.reason == "OUTCOME_UNKNOWN";
                assert!(
                    known || facts.reason == "UPSTREAM_TIMEOUT",
                    "{start}: {facts:?}"
                );
            }
        }
    })
    .await;
}

/// Compressed `times` over, one member behind the other.
pub(crate) fn gzip(text: &[u8], times: usize) -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap().repeat(times).into()
}

fn compressed(status: u16, media_type: &str, body: Bytes) -> Reply {
    let headers = vec![
        ("content-type", media_type.to_owned()),
        ("content-encoding", "gzip".to_owned()),
    ];
    Reply::Raw(status, headers, body)
}

/// Memory that the daemon holds, in MiB.
fn resident(daemon: &TestDaemon) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse::<usize>();
    kilobytes.unwrap() / 1024
}

#[tokio::test]
async fn b16_and_b23_compressed_answers_are_read_and_bombs_are_not() {
    let builder = TestDaemon::builder().set("limits.message_bytes", 1_u64 << 20);
    one_and_two_with(builder, async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        for events in [false, true] {
            fake.reply("tools/call", move |seen| {
                assert!(seen.header("accept-encoding").contains("gzip"));
                let (json, event) = (answer(seen), format!("data: {}\n\n", answer(seen)));
                if events {
                    compressed(200, "text/event-stream", gzip(event.as_bytes(), 1))
                } else {
                    compressed(200, "application/json", gzip(json.as_bytes(), 1))
                }
            });
            all_done(&stage, "compressed").await;
        }
        // 256 MiB in a few hundred kilobytes.
        let bomb = gzip(&vec![b'1'; 4 << 20], 64);
        let before = resident(&stage.daemon);
        for media_type in ["application/json", "text/event-stream"] {
            let bomb = bomb.clone();
            fake.reply("tools/call", move |_| {
                compressed(200, media_type, bomb.clone())
            });
            for outcome in calls(&stage).await {
                ErrorFacts::expect(outcome, Code::ResourceExhausted, "MESSAGE_TOO_LARGE");
            }
        }
        let error = bomb.clone();
        fake.reply("tools/call", move |_| {
            compressed(500, "text/plain", error.clone())
        });
        all_unknown(&stage, "an error that is a bomb").await;
        let grown = resident(&stage.daemon).saturating_sub(before);
        assert!(grown < 64, "the daemon grew by {grown} MiB");
        // What is not compressed as it says is no answer.
        fake.reply("tools/call", |_| {
            compressed(200, "application/json", "plain".into())
        });
        all_unknown(&stage, "not compressed").await;
        fake.reset("tools/call");
        for outcome in calls(&stage).await {
            outcome.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn b16_and_b23_an_event_without_an_end_is_too_large() {
    let builder = TestDaemon::builder().set("limits.message_bytes", 1_u64 << 20);
    one_and_two_with(builder, async |stage| {
        let fake = FakeMcp::echo(false).await;
        stage.add_http(&fake.url()).await;
        for piece in [
            "data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n",
            "xxxxxxxxxxxxxxx",
            "id: 1\ndata:\n",
        ] {
            fake.reply("tools/call", move |_| {
                stream(async move |writer| {
                    let chunk = Bytes::from(piece.repeat(1 << 12));
                    writer.flood(chunk).await;
                })
            });
            for outcome in calls(&stage).await {
                ErrorFacts::expect(outcome, Code::ResourceExhausted, "MESSAGE_TOO_LARGE");
            }
        }
        fake.reset("tools/call");
        for outcome in calls(&stage).await {
            outcome.unwrap();
        }
    })
    .await;
}
