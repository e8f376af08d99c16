//! Calling tools: results as they are, errors as they are.

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use crate::streams::{all_unknown, calls};

/// Numbers that a double cannot hold, or that change when they are decoded.
const NUMBERS: &str = r#"{"a":9007199254740993,"b":1915883588174806058,"c":-9223372036854775808,"d":18446744073709551615,"e":1e400,"f":0.1000000000000000055,"g":1.0,"z":1,"y":null,"x":"\u00e9é\ud83d\ude00"}"#;

pub(crate) async fn app_with(fake: &FakeMcp) -> (TestDaemon, Clients) {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    (daemon, app)
}

/// What a result with this text around it must look like in its era.
fn result(modern: bool, members: &str) -> String {
    let complete = if modern {
        r#""resultType":"complete","#
    } else {
        ""
    };
    format!("{{{complete}{members}}}")
}

#[tokio::test]
async fn b26_json_passes_unchanged_both_ways() {
    for (modern, sse) in [(true, false), (true, true), (false, false), (false, true)] {
        one_and_two(async |stage| {
            let mut builder = if modern {
                FakeMcp::modern()
            } else {
                FakeMcp::legacy()
            };
            if sse {
                builder = builder.sse();
            }
            let fake = builder.tool(tool("echo")).start().await;
            let block = r#"{"type":"hologram","size":9007199254740993,"deep":{"b":1,"a":1.0}}"#;
            let odd = r#"{"type":"text","text":5}"#;
            let members = format!(
                r#""content":[{{"type":"text","text":"hi","annotations":{{"priority":1.0}}}},{block},{odd}],"structuredContent":{NUMBERS},"_meta":{{"vendor/x":18446744073709551615}},"vendorField":1.10"#
            );
            let reply = result(modern, &members);
            fake.reply("tools/call", move |_| Reply::Text(reply.clone()));
            stage.add_http(&fake.url()).await;

            let results = stage.everyone(async |app, _| {
                let mut call = app.call("s", "echo", NUMBERS);
                call.meta_json = r#"{"vendor/trace":18446744073709551615}"#.to_owned();
                app.call_with(call).await.unwrap()
            });
            let results = results.await;
            for seen in fake.seen_of("tools/call") {
                let text = seen.text();
                assert!(text.contains(&format!("\"arguments\":{NUMBERS}")), "{text}");
                assert!(
                    text.contains(r#""vendor/trace":18446744073709551615"#),
                    "{text}"
                );
            }
            for result in results {
                assert_eq!(result.structured_content_json.as_deref(), Some(NUMBERS));
                assert_eq!(result.meta_json, r#"{"vendor/x":18446744073709551615}"#);
                assert!(
                    result.extra_json.contains(r#""vendorField":1.10"#),
                    "{}",
                    result.extra_json
                );
                let blocks: Vec<_> = result
                    .content
                    .into_iter()
                    .filter_map(|block| block.block)
                    .collect();
                match &blocks[..] {
                    [
                        v1::content_block::Block::Text(text),
                        v1::content_block::Block::RawJson(unknown),
                        v1::content_block::Block::RawJson(malformed),
                    ] => {
                        assert_eq!(text.text, "hi");
                        assert!(text.extra_json.contains(r#""priority":1.0"#), "{text:?}");
                        assert_eq!((unknown.as_str(), malformed.as_str()), (block, odd));
                    }
                    other => panic!("unexpected blocks: {other:?}"),
                }
            }
        })
        .await;
    }
}

#[test]
fn b26_any_json_passes_unchanged() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        fake.reply("tools/call", |seen| {
            let arguments = seen.arguments();
            Reply::Text(result(
                true,
                &format!(r#""content":[],"structuredContent":{arguments}"#),
            ))
        });
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let number = "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?";
        let strings = any::<String>().prop_map(|text| Value::from(text).to_string());
        let leaf = prop_oneof![
            number,
            strings,
            Just("null".to_owned()),
            Just("true".to_owned())
        ];
        let json = leaf.prop_recursive(4, 40, 6, |inner| {
            let key = any::<String>().prop_map(|text| Value::from(text).to_string());
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6)
                    .prop_map(|items| format!("[{}]", items.join(","))),
                proptest::collection::btree_map(key, inner, 0..6).prop_map(|members| {
                    let members = members.iter().map(|(key, value)| format!("{key}:{value}"));
                    format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
                }),
            ]
        });
        for _ in 0..100 {
            let values = stage.apps.iter().map(|app| {
                let value = json.new_tree(&mut runner).unwrap().current();
                (app, format!("{{\"mark\":{value}}}"))
            });
            let values: Vec<_> = values.collect();
            let calls = values.iter().map(async |(app, arguments)| {
                let result = app.call_tool("s", "echo", arguments).await;
                let result = result.unwrap_or_else(|status| panic!("{arguments}: {status:?}"));
                assert_eq!(result.structured_content_json.as_ref(), Some(arguments));
            });
            futures_util::future::join_all(calls).await;
        }
    }));
}

#[tokio::test]
async fn b31_absent_null_and_falsy_structured_results_differ() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        for given in [
            None,
            Some("null"),
            Some("0"),
            Some("[]"),
            Some("false"),
            Some("\"\""),
        ] {
            let member = given
                .map(|json| format!(",\"structuredContent\":{json}"))
                .unwrap_or_default();
            let reply = result(true, &format!("\"content\":[]{member}"));
            fake.reply("tools/call", move |_| Reply::Text(reply.clone()));
            for outcome in calls(&stage).await {
                let result = outcome.unwrap();
                assert_eq!(result.structured_content_json.as_deref(), given);
            }
        }
        // Absent arguments stay absent.
        stage.other().call_tool("s", "echo", "").await.unwrap();
        let last = fake.seen_of("tools/call").pop().unwrap();
        assert!(last.params().get("arguments").is_none(), "{}", last.text());
    })
    .await;
}

#[tokio::test]
async fn a_streamed_call_starts_reports_and_ends_with_its_result() {
    for modern in [true, false] {
        let fake = FakeMcp::echo(modern).await;
        fake.reply("tools/call", move |seen| {
            let token = seen.params()["_meta"]["progressToken"].clone();
            assert!(!token.is_null(), "a streamed call asks for progress: {}", seen.text());
            let progress = |step: u32| {
                Step::Message(json!({
                    "jsonrpc": "2.0", "method": "notifications/progress",
                    "params": {"progressToken": token, "progress": step, "total": 2, "message": "on it"},
                }))
            };
            let log = json!({
                "jsonrpc": "2.0", "method": "notifications/message",
                "params": {"level": "warning", "logger": "l", "data": {"n": 1}},
            });
            let complete = json!({"resultType": "complete", "content": [{"type": "text", "text": "done"}]});
            Reply::Sse(vec![progress(1), Step::Message(log), progress(2), Step::Result(complete)])
        });
        let (_daemon, app) = app_with(&fake).await;
        let mut call = app.call("s", "echo", "{}");
        call.log_level = v1::LogLevel::Info.into();
        let events = app
            .stream_with(call)
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        match &events[..] {
            [
                Event::Started(start),
                Event::Progress(one),
                Event::Log(log),
                Event::Progress(two),
                Event::Result(result),
            ] => {
                assert!(!start.call_id.is_empty());
                assert_eq!(
                    (one.progress, two.progress, two.total),
                    (1.0, 2.0, Some(2.0))
                );
                assert_eq!(two.message, "on it");
                assert_eq!(log.level(), v1::LogLevel::Warning);
                assert_eq!(log.data_json, r#"{"n":1}"#);
                assert_eq!(text_of(result), "done");
            }
            other => panic!("unexpected events: {other:#?}"),
        }
    }
}

#[tokio::test]
async fn a_server_has_a_log_level_of_its_own() {
    use v1::LogLevel::{Debug, Error, Notice, Unspecified};

    for modern in [true, false] {
        let fake = if modern {
            FakeMcp::modern()
        } else {
            FakeMcp::legacy().sse()
        };
        let fake = fake.tool(tool("echo")).capability("logging", json!({}));
        let fake = fake.start().await;
        fake.reply("tools/call", |_| {
            let log = |level: &str| {
                Step::Message(json!({
                    "jsonrpc": "2.0", "method": "notifications/message",
                    "params": {"level": level, "data": level},
                }))
            };
            let done = json!({"resultType": "complete", "content": []});
            Reply::Sse(vec![
                log("debug"),
                log("notice"),
                log("error"),
                Step::Result(done),
            ])
        });
        let daemon = TestDaemon::start().await;
        let (app, other) = (daemon.clients().await, daemon.clients().await);
        let mut spec = http_spec("S", &fake.url());
        spec.log_level = v1::LogLevel::Notice.into();
        app.add("s", spec).await.unwrap();
        let shown = app.wait_for("s", ConnectionState::Ready).await;
        assert_eq!(shown.spec.unwrap().log_level(), v1::LogLevel::Notice);
        let heard = async |app: &Clients, level: v1::LogLevel| {
            let mut call = app.call("s", "echo", "{}");
            call.log_level = level.into();
            let events = app
                .stream_with(call)
                .await
                .unwrap()
                .collect()
                .await
                .unwrap();
            let logs = events.into_iter().filter_map(|event| match event {
                Event::Log(log) => Some(log.level()),
                _ => None,
            });
            logs.collect::<Vec<_>>()
        };
        let wanted = |app| heard(app, Unspecified);
        let both = tokio::join!(wanted(&app), wanted(&other));
        assert_eq!(both, (vec![Notice, Error], vec![Notice, Error]), "{modern}");
        assert_eq!(heard(&app, Error).await, [Error]);
        assert_eq!(heard(&app, Debug).await, [Debug, Notice, Error]);
        // What nobody sees is not asked for.
        app.call_tool("s", "echo", "{}").await.unwrap();
        if modern {
            let calls = fake.seen_of("tools/call");
            let asked = calls.iter().map(|call| {
                let level = &call.params()["_meta"]["io.modelcontextprotocol/logLevel"];
                level.as_str().unwrap_or_default().to_owned()
            });
            let asked: Vec<_> = asked.collect();
            assert_eq!(asked, ["notice", "notice", "error", "debug", ""]);
        } else {
            let set = fake.seen_of("logging/setLevel");
            let levels = set
                .iter()
                .map(|set| set.params()["level"].as_str().unwrap());
            assert_eq!(levels.collect::<Vec<_>>(), ["notice", "debug"]);
        }
    }
}

#[tokio::test]
async fn a_log_level_is_raised_though_the_call_that_wanted_it_gave_up() {
    let fake = FakeMcp::legacy().sessionless().tool(tool("echo"));
    let fake = fake.start().await;
    fake.reply("initialize", |seen| {
        Reply::Json(json!({
            "protocolVersion": seen.params()["protocolVersion"],
            "capabilities": {"tools": {}, "logging": {}},
            "serverInfo": {"name": "fake", "version": "1.0"},
        }))
    });
    let (release, held) = tokio::sync::watch::channel(false);
    let (answered, mut took) = tokio::sync::watch::channel(false);
    fake.on("logging/setLevel", move |_| {
        let (mut held, answered) = (held.clone(), answered.clone());
        async move {
            held.wait_for(|released| *released).await.unwrap();
            answered.send_replace(true);
            Reply::Json(json!({}))
        }
    });
    let (_daemon, app) = app_with(&fake).await;
    let call = || {
        let mut call = app.call("s", "echo", "{}");
        call.log_level = v1::LogLevel::Info.into();
        v1::CallToolRequest { call: Some(call) }
    };

    let mut impatient = tonic::Request::new(call());
    impatient.set_timeout(Duration::from_millis(500));
    let refused = app.tools().call_tool(impatient).await.unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded);

    release.send_replace(true);
    let took = took.wait_for(|took| *took);
    within("the level, although its call is over", took)
        .await
        .unwrap();
    app.tools().call_tool(call()).await.unwrap();
    assert_eq!(fake.seen_of("logging/setLevel").len(), 1);
}

#[tokio::test]
async fn b31_a_tools_error_is_an_answer_and_a_json_rpc_error_is_a_status() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        fake.reply("tools/call", |_| {
            Reply::Json(json!({
                "resultType": "complete", "isError": true,
                "content": [{"type": "text", "text": "no luck"}], "structuredContent": {"code": 7},
            }))
        });
        for outcome in calls(&stage).await {
            let result = outcome.unwrap();
            assert!(result.is_error);
            assert_eq!(text_of(&result), "no luck");
            assert_eq!(
                result.structured_content_json.as_deref(),
                Some(r#"{"code":7}"#)
            );
        }
        for (code, grpc) in [
            (-32602, Code::InvalidArgument),
            (-32000, Code::Unknown),
            (-1, Code::Unknown),
        ] {
            fake.reply("tools/call", move |_| {
                Reply::Error(code, "it broke", json!({"why": [1, 2]}))
            });
            for outcome in calls(&stage).await {
                let facts = ErrorFacts::expect(outcome, grpc, "UPSTREAM_ERROR");
                assert_eq!(facts.metadata["jsonrpc_code"], code.to_string());
                assert_eq!(facts.metadata["jsonrpc_message"], "it broke");
                assert_eq!(facts.metadata["data_json"], r#"{"why":[1,2]}"#);
                assert!(facts.message.contains("it broke"), "{facts:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn b14_a_call_without_an_answer_is_never_sent_twice() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        fake.reply("tools/call", |_| Reply::Reset);
        all_unknown(&stage, "reset").await;
        fake.reply("tools/call", |_| Reply::Sse(Vec::new()));
        all_unknown(&stage, "nothing").await;
        assert_eq!(fake.seen_of("tools/call").len(), 2 * stage.apps.len());
    })
    .await;
}

#[tokio::test]
async fn behaviour_33_a_process_that_dies_in_a_call_ends_it_and_comes_back() {
    one_and_two(async |stage| {
        let scripts = tempfile::tempdir().unwrap();
        let spec = Script::faulty(StdioFault::CrashOnCall)
            .spec("crash", scripts.path())
            .await;
        stage.add("crash", spec).await;
        // Each app in its turn.
        for app in stage.apps.iter().cycle().take(2) {
            let call = app.call_tool("crash", "echo", "{}");
            let outcome = within("the end of the call", call).await;
            ErrorFacts::expect(outcome, Code::Unavailable, "OUTCOME_UNKNOWN");
            for app in &stage.apps {
                app.wait_for("crash", ConnectionState::Ready).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn b22_every_kind_of_odd_process_is_understood() {
    let garbage = [
        "",
        "\u{1b}[1mbanner\u{1b}[0m",
        "null",
        "[]",
        "[{\"jsonrpc\":\"2.0\"}]",
        "{\"id\":",
        "\u{feff}{}",
    ];
    one_and_two_at_once(TestDaemon::builder(), async |stage| {
        let scripts = tempfile::tempdir().unwrap();
        let lock = scripts.path().join("lock").to_str().unwrap().to_owned();
        let faults = [
            (
                "garbage",
                StdioFault::Garbage(garbage.map(str::to_owned).to_vec()),
            ),
            ("swallow", StdioFault::SwallowDiscover),
            ("params", StdioFault::RefuseDiscover(-32602)),
            ("method", StdioFault::RefuseDiscover(-32601)),
            ("flood", StdioFault::StderrFlood(1024)),
            ("slow", StdioFault::SlowStart(700)),
            ("lock", StdioFault::LockFile(lock)),
        ];
        for (name, fault) in faults {
            let spec = Script::faulty(fault).spec(name, scripts.path()).await;
            let server = stage.add(name, spec).await;
            assert_eq!(server.facts().era(), Era::Legacy, "{name}");
            let results = stage.everyone(async |app, _| app.call_tool(name, "echo", NUMBERS).await);
            for result in results.await {
                let result = result.unwrap();
                assert!(text_of(&result) == NUMBERS, "{name}: {result:?}");
            }
        }
        let flooded = stage.other().get("flood").await.unwrap();
        let tail = flooded.facts().stderr_tail.clone();
        assert!(
            tail.contains("the flood is over") && tail.len() <= 4096,
            "{} bytes",
            tail.len()
        );
    })
    .await;
}

#[tokio::test]
async fn b23_large_arguments_and_results_pass() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        let arguments = format!("{{\"text\":\"{}\"}}", "x".repeat(3 << 20));
        let results = stage.everyone(async |app, _| app.call_tool("s", "echo", &arguments).await);
        for result in results.await {
            assert_eq!(text_of(&result.unwrap()).len(), arguments.len());
        }
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_called_is_refused_with_a_reason() {
    let fake = FakeMcp::echo(true).await;
    let (_daemon, app) = app_with(&fake).await;
    let facts = ErrorFacts::expect(
        app.call_tool("s", "nope", "{}").await,
        Code::NotFound,
        "TOOL_NOT_FOUND",
    );
    assert!(facts.message.contains("nope"), "{facts:?}");
    let facts = ErrorFacts::expect(
        app.call_tool("x", "echo", "{}").await,
        Code::NotFound,
        "SERVER_NOT_FOUND",
    );
    assert!(facts.message.contains('x'), "{facts:?}");
    let by_name = v1::ToolCall {
        model_name: "tool_nobody_nothing".to_owned(),
        ..app.call("", "", "{}")
    };
    let facts = ErrorFacts::expect(
        app.call_with(by_name).await,
        Code::NotFound,
        "TOOL_NOT_FOUND",
    );
    assert!(facts.message.contains("tool_nobody_nothing"), "{facts:?}");
    for arguments in ["{", "[]", "5", "null", "{\"a\":}", "{} {}"] {
        let outcome = app.call_tool("s", "echo", arguments).await;
        let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "INVALID_FIELD");
        assert_eq!(facts.field, "call.arguments_json", "{arguments}: {facts:?}");
    }
    // The protocol's own keys cannot be forged.
    let forged = v1::ToolCall {
        meta_json: r#"{"io.modelcontextprotocol/protocolVersion":"1900-01-01"}"#.to_owned(),
        ..app.call("s", "echo", "{}")
    };
    let facts = ErrorFacts::expect(
        app.call_with(forged).await,
        Code::InvalidArgument,
        "INVALID_FIELD",
    );
    assert_eq!(facts.field, "call.meta_json", "{facts:?}");
    assert!(fake.seen_of("tools/call").is_empty());
}

/// Servers of every kind that echo.
async fn echoing(app: &Clients) -> (Vec<FakeMcp>, tempfile::TempDir, Vec<String>) {
    let scripts = tempfile::tempdir().unwrap();
    let (mut fakes, mut ids) = (Vec::new(), Vec::new());
    for modern in [true, false] {
        let fake = FakeMcp::echo(modern).await;
        ids.push(
            app.add_http(&format!("http {modern}"), &fake.url())
                .await
                .id,
        );
        fakes.push(fake);
        let name = format!("stdio-{modern}");
        let spec = Script::healthy(modern).spec(&name, scripts.path()).await;
        ids.push(app.add_ready(spec).await.id);
    }
    (fakes, scripts, ids)
}

#[tokio::test]
async fn b38_simultaneous_calls_get_their_own_answers() {
    one_and_two(async |stage| {
        let (_fakes, _scripts, ids) = echoing(stage.app()).await;
        let apps = &stage.apps;
        let calls = (0..1000).map(|n| {
            let (app, id) = (&apps[n % apps.len()], &ids[n / 2 % ids.len()]);
            async move {
                let arguments = format!(r#"{{"n":{n}}}"#);
                let result = app.call_tool(id, "echo", &arguments).await.unwrap();
                assert_eq!(text_of(&result), arguments);
            }
        });
        futures_util::future::join_all(calls).await;
    })
    .await;
}
