//! HTTP/1 as it should not be: what libraries do not let a server send, byte by byte (relatives of case B16). Elsewhere:
//! `answers` has media types, framing and compression.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mcp_sidecar_tests::fake::proxy::{Proxy, ProxyRequest};
use mcp_sidecar_tests::prelude::*;
use tokio::io::AsyncWriteExt as _;

use crate::streams::{DONE, all_done, all_unknown, calls};

/// The story with one and with two apps: a modern server `s` that offers `echo`, behind a proxy.
async fn behind_a_proxy(story: impl AsyncFn(&Stage, &FakeMcp, &Proxy)) {
    let builder = TestDaemon::builder().set("reconnect.liveness_interval", "1h");
    one_and_two_with(builder, async |stage| {
        let fake = FakeMcp::modern()
            .without_push()
            .tool(tool("echo"))
            .start()
            .await;
        let proxy = Proxy::before(&fake).await;
        stage.add_http(&proxy.url()).await;
        story(&stage, &fake, &proxy).await;
    })
    .await;
}

/// Writes an answer from the media type's line, the length's line and the body.
type Form = fn(&str, &str, &str) -> String;
/// Writes an answer that is broken from the body.
type Broken = Box<dyn Fn(&str) -> String + Send + Sync>;

/// A complete answer that leaves the connection open.
fn kept(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn b16_old_and_sloppy_http_is_understood() {
    behind_a_proxy(async |stage, _, proxy| {
        // The proxy closes after each answer. What it did not announce could meet the next call on its way, and then nobody
        // knows whether that one was carried out.
        let json = "content-type: application/json\r\nconnection: close\r\n";
        let length = |text: &str| format!("content-length: {}\r\n", text.len());
        let forms: [(&str, Form); 7] = [
            ("HTTP/1.0 up to the end", |json, _, text| {
                format!("HTTP/1.0 200 OK\r\n{json}\r\n{text}")
            }),
            ("HTTP/1.0 with a length", |json, length, text| {
                format!("HTTP/1.0 200 OK\r\n{json}{length}\r\n{text}")
            }),
            ("no reason", |json, length, text| {
                format!("HTTP/1.1 200\r\n{json}{length}\r\n{text}")
            }),
            ("a folded header", |json, length, text| {
                format!("HTTP/1.1 200 OK\r\nx-folded: a\r\n\tb\r\n  c\r\n{json}{length}\r\n{text}")
            }),
            ("the same length twice", |json, length, text| {
                format!("HTTP/1.1 200 OK\r\n{length}{json}{length}\r\n{text}")
            }),
            ("more than was announced", |json, length, text| {
                format!("HTTP/1.1 200 OK\r\n{json}{length}\r\n{text}, and more")
            }),
            ("trailers", |json, _, text| {
                let trailers = format!("x-trailer: {}\r\n", "y".repeat(1000)).repeat(8);
                format!(
                    "HTTP/1.1 200 OK\r\n{json}transfer-encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n0\r\n{trailers}\r\n",
                    text.len()
                )
            }),
        ];
        for (name, form) in forms {
            proxy.reply("tools/call", move |call| {
                let text = call.answer(DONE);
                form(json, &length(&text), &text).into_bytes()
            });
            all_done(stage, name).await;
        }
    })
    .await;
}

#[tokio::test]
async fn b16_http_that_is_none_ends_the_call_at_once() {
    behind_a_proxy(async |stage, _, proxy| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n");
        let (mega, many) = ("y".repeat(1 << 20), "x-t: y\r\n".repeat(20_000));
        let answers: Vec<(&str, Broken)> = vec![
            ("a line without a colon", {
                Box::new(move |text| format!("{head}nothing\r\n\r\n{text}"))
            }),
            ("a huge reason", {
                let mega = mega.clone();
                Box::new(move |text| format!("HTTP/1.1 200 {mega}\r\n\r\n{text}"))
            }),
            ("a huge head", {
                let lines = format!("x-long: {}\r\n", "y".repeat(10_000)).repeat(100);
                Box::new(move |text| format!("{head}{lines}\r\n{text}"))
            }),
            ("a status that is none", {
                Box::new(|text| format!("HTTP/1.1 2x0 OK\r\n\r\n{text}"))
            }),
            ("two different lengths", {
                Box::new(move |text| {
                    let length = text.len();
                    format!(
                        "{head}content-length: {length}\r\ncontent-length: {}\r\n\r\n{text}",
                        length - 1
                    )
                })
            }),
            ("a length that is none", {
                Box::new(move |text| format!("{head}content-length: -1\r\n\r\n{text}"))
            }),
            ("less than the answer is long", {
                Box::new(move |text| {
                    format!("{head}content-length: {}\r\n\r\n{text}", text.len() - 1)
                })
            }),
            ("a size that is none", {
                let chunked = chunked.clone();
                Box::new(move |text| format!("{chunked}zz\r\n{text}\r\n0\r\n\r\n"))
            }),
            ("a size beyond all bounds", {
                let chunked = chunked.clone();
                Box::new(move |text| format!("{chunked}fffffffffffffffff\r\n{text}"))
            }),
            ("an extension beyond all bounds", {
                let (chunked, mega) = (chunked.clone(), mega.clone());
                Box::new(move |text| format!("{chunked}{:x};{mega}\r\n{text}", text.len()))
            }),
            ("no last chunk", {
                let chunked = chunked.clone();
                Box::new(move |text| format!("{chunked}{:x}\r\n{text}\r\n", text.len()))
            }),
            ("trailers beyond all bounds", {
                let chunked = chunked.clone();
                Box::new(move |text| {
                    format!("{chunked}{:x}\r\n{text}\r\n0\r\n{many}\r\n", text.len())
                })
            }),
        ];
        for (name, form) in answers {
            proxy.reply("tools/call", move |call| {
                form(&call.answer(DONE)).into_bytes()
            });
            all_unknown(stage, name).await;
        }
        proxy.reset("tools/call");
        for outcome in calls(stage).await {
            outcome.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn b16_interim_answers_without_end_are_silence() {
    behind_a_proxy(async |stage, _, proxy| {
        let well = FakeMcp::echo(true).await;
        stage.add("well", http_spec("Well", &well.url())).await;
        let interim = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".repeat(100);
        let ended = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ended);
        proxy.on("tools/call", move |_, mut stream| {
            let (interim, count) = (interim.clone(), Arc::clone(&count));
            async move {
                // As fast as a network may be; the library takes whatever is there in one turn.
                while stream.write_all(interim.as_bytes()).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let slow = stage.everyone(async |app, _| {
            let mut call = app.call("s", "echo", "{}");
            call.idle_timeout = Some(millis(300));
            app.call_with(call).await
        });
        let quick = async {
            for _ in 0..20 {
                stage.other().call_tool("well", "echo", "{}").await.unwrap();
            }
        };
        let (slow, ()) = within("the end of the calls", async { tokio::join!(slow, quick) }).await;
        for outcome in slow {
            ErrorFacts::expect(outcome, Code::DeadlineExceeded, "UPSTREAM_TIMEOUT");
        }
        eventually("the end of the floods", PATIENCE, async || {
            (ended.load(Ordering::SeqCst) == stage.apps.len()).then_some(())
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn b16_an_answer_that_was_sent_ahead_is_not_taken() {
    behind_a_proxy(async |stage, _, proxy| {
        proxy.on("tools/call", |call, mut stream| async move {
            let mut next = Some(call);
            while let Some(call) = next {
                let following = call.id.parse::<u64>().unwrap() + 1;
                let forged = DONE.replace("dé", "forged");
                let ahead = format!(r#"{{"jsonrpc":"2.0","id":{following},"result":{forged}}}"#);
                let both = format!("{}{}", kept(&call.answer(DONE)), kept(&ahead));
                let _gone = stream.write_all(both.as_bytes()).await;
                next = ProxyRequest::read(&mut stream).await.unwrap_or_default();
            }
        });
        for _ in 0..20 {
            all_done(stage, "the right answer").await;
        }
    })
    .await;
}

#[tokio::test]
async fn b16_a_connection_that_was_closed_meanwhile_costs_no_call() {
    // The server ends every connection with its first answer, and does not say so.
    behind_a_proxy(async |stage, _, proxy| {
        let served = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&served);
        proxy.on("tools/call", move |call, mut stream| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                // The end travels with the answer: whoever has read one has seen the other.
                rustix::net::sockopt::set_tcp_cork(&stream, true).unwrap();
                let _gone = stream.write_all(kept(&call.answer(DONE)).as_bytes()).await;
                let _gone = stream.shutdown().await;
                if let Ok(Some(_)) = ProxyRequest::read(&mut stream).await {
                    panic!("a request on a connection that was closed");
                }
            }
        });
        for _ in 0..100 {
            all_done(stage, "a closed connection").await;
        }
        assert_eq!(served.load(Ordering::SeqCst), 100 * stage.apps.len());
    })
    .await;
}

#[tokio::test]
async fn b16_a_connection_that_closes_under_a_call_never_makes_it_twice() {
    // The server takes every second call of a connection and closes it without an answer. Of such a call nobody can tell
    // whether it was made: its outcome is unknown, and it is not made again.
    behind_a_proxy(async |stage, _, proxy| {
        let ran = Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = Arc::clone(&ran);
        proxy.on("tools/call", move |call, mut stream| {
            let log = Arc::clone(&log);
            async move {
                log.lock().unwrap().push(call.id.clone());
                let _gone = stream.write_all(kept(&call.answer(DONE)).as_bytes()).await;
                let Ok(Some(second)) = ProxyRequest::read(&mut stream).await else {
                    return;
                };
                if second.method == "tools/call" {
                    // Read, made, and the connection is gone.
                    log.lock().unwrap().push(second.id);
                } else {
                    // Only a look whether the server is there.
                    let refusal =
                        b"HTTP/1.1 400 Bad\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                    let _gone = stream.write_all(refusal).await;
                }
            }
        });
        let mut unknown = 0;
        for _ in 0..20 {
            for outcome in calls(stage).await {
                match outcome {
                    Ok(result) => assert_eq!(text_of(&result), "dé€😀"),
                    Err(status) => {
                        let facts = ErrorFacts::of(&status);
                        assert_eq!(facts.reason, "OUTCOME_UNKNOWN", "{facts:?}");
                        unknown += 1;
                    }
                }
            }
        }
        let ran = ran.lock().unwrap();
        assert!(unknown > 0, "the connection was never used again");
        assert_eq!(ran.len(), 20 * stage.apps.len(), "each call ran once");
        let different: std::collections::BTreeSet<_> = ran.iter().collect();
        assert_eq!(different.len(), ran.len(), "no call ran twice");
    })
    .await;
}
