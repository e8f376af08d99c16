//! Results that are checked against the output schemas of their tools, where the registration wants it (case B31).

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;

/// What a check says of a result.
enum Finding {
    /// It was not looked at.
    Nothing,
    /// It is valid.
    Valid,
    /// Something is wrong at these places.
    Wrong(&'static [&'static str]),
    /// Nothing can be said, for a reason with these words.
    Unclear(&'static str),
}
use Finding::{Nothing, Unclear, Valid, Wrong};

const POINT: &str = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;
const TREE: &str = r##"{"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/node"}}}},"$ref":"#/$defs/node"}"##;

/// Tools by name, with their output schemas.
fn tools(elsewhere: &FakeMcp) -> Vec<Value> {
    let far = format!("{}/schema.json", elsewhere.url());
    let schemas = [
        ("point", POINT.to_owned()),
        ("tree", TREE.to_owned()),
        ("any", "{}".to_owned()),
        ("zero", r#"{"const":0}"#.to_owned()),
        (
            "far",
            json!({"properties": {"n": {"$ref": far}}}).to_string(),
        ),
        ("far_whole", json!({"$ref": far}).to_string()),
        ("odd", r#"{"type":"int"}"#.to_owned()),
        ("endless", r##"{"$ref":"#"}"##.to_owned()),
        ("text", r#"{"pattern":"^(a+)+$"}"#.to_owned()),
    ];
    let with_schema = schemas.into_iter().map(|(name, schema)| {
        let mut tool = tool(name);
        tool["outputSchema"] = serde_json::from_str(&schema).unwrap();
        tool
    });
    with_schema.chain([tool("plain")]).collect()
}

/// Tool, members of its result, the structured result as it must arrive, and what is found when it is checked.
fn cases() -> Vec<(&'static str, String, Option<String>, Finding)> {
    let structured = |tool, json: &str, finding| {
        let member = format!(r#","structuredContent":{json}"#);
        (tool, member, Some(json.to_owned()), finding)
    };
    let long = format!("\"{}\"", "a".repeat(1_000));
    let evil = format!("\"{}!\"", "a".repeat(5_000));
    let many = format!("[{}]", vec!["0"; 200_000].join(","));
    let mut failed = structured("point", r#"{"oops":true}"#, Nothing);
    failed.1.push_str(r#","isError":true"#);
    let mut deep = structured(
        "tree",
        r#"{"v":1,"next":{"v":2,"next":{"v":"3"}}}"#,
        Wrong(&["/next/next/v"]),
    );
    deep.1.push_str(r#","vendor":1.0"#);
    vec![
        structured("point", r#"{"n": 1.0, "more":[1.10]}"#, Valid),
        structured("point", r#"{"n":"one"}"#, Wrong(&["/n"])),
        structured("point", "{}", Wrong(&[""])),
        failed,
        ("point", r#","isError":true"#.to_owned(), None, Nothing),
        ("point", String::new(), None, Wrong(&[""])),
        structured("point", "0", Wrong(&[""])),
        structured("point", "[]", Wrong(&[""])),
        structured("point", "null", Wrong(&[""])),
        structured("any", "0", Valid),
        structured("any", "[]", Valid),
        structured("any", "null", Valid),
        structured("any", "false", Valid),
        structured("any", "\"\"", Valid),
        ("any", String::new(), None, Wrong(&[""])),
        structured("zero", "0", Valid),
        structured("zero", "false", Wrong(&[""])),
        structured("plain", r#"{"n":"one"}"#, Nothing),
        ("plain", String::new(), None, Nothing),
        structured("tree", r#"{"v":1,"next":{"v":2}}"#, Valid),
        deep,
        structured("far", r#"{"n":1}"#, Unclear("nothing is fetched")),
        structured("far_whole", r#"{"n":1}"#, Unclear("nothing is fetched")),
        structured("odd", "1", Unclear("unusable")),
        structured("endless", "1", Unclear("without end")),
        structured("point", r#"{"n":18446744073709551615}"#, Valid),
        structured(
            "point",
            r#"{"n":123456789012345678901234567890}"#,
            Unclear("123456789012345678901234567890"),
        ),
        structured("point", r#"{"n":1e400}"#, Unclear("1e400")),
        structured("text", &long, Valid),
        structured("text", &evil, Wrong(&[""])),
        structured("any", &many, Valid),
        structured("point", &many, Wrong(&[""])),
    ]
}

/// The result of a call, the same both ways.
async fn result_of(app: &Clients, tool: &str) -> v1::ToolResult {
    let unary = app.call_tool("s", tool, "{}").await.expect("CallTool");
    let events = app
        .call_stream("s", tool, "{}")
        .await
        .expect("CallToolStream");
    let events = events.collect().await.expect("the events");
    let Some(Event::Result(streamed)) = events.last() else {
        panic!("no result in {events:?}");
    };
    assert_eq!(&unary, streamed);
    unary
}

#[track_caller]
fn compare(found: Option<&v1::ResultCheck>, expected: &Finding, what: &str) {
    let paths = |check: &v1::ResultCheck| -> Vec<String> {
        assert!(!check.more_violations, "{what}");
        let all = check.violations.iter();
        all.map(|violation| {
            assert!(
                !violation.message.is_empty() && violation.message.len() <= 500,
                "{what}"
            );
            violation.instance_path.clone()
        })
        .collect()
    };
    match (found, expected) {
        (None, Nothing) => {}
        (Some(check), Valid) => assert_eq!(check, &v1::ResultCheck::default(), "{what}"),
        (Some(check), Wrong(places)) => {
            assert_eq!(&paths(check), places, "{what}");
            assert_eq!(check.not_checked, "", "{what}");
        }
        (Some(check), Unclear(why)) => {
            assert!(check.not_checked.contains(why), "{what}: {check:?}");
            assert!(
                check.not_checked.len() <= 500 && check.violations.is_empty(),
                "{what}"
            );
        }
        (found, _) => panic!("{what}: {found:?}"),
    }
}

#[tokio::test]
async fn b31_a_check_annotates_a_result_and_changes_nothing() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let elsewhere = FakeMcp::echo(true).await;
            let fake = FakeMcp::echo(modern).await;
            fake.set_list("tools", tools(&elsewhere));
            let server = stage.add_http(&fake.url()).await;
            assert!(!server.spec.as_ref().unwrap().check_results, "it is off");
            for checked in [false, true, false] {
                let spec = ServerSpec {
                    check_results: checked,
                    ..Default::default()
                };
                let server = stage
                    .other()
                    .update("s", spec, &["check_results"])
                    .await
                    .unwrap();
                assert_eq!(server.spec.as_ref().unwrap().check_results, checked);
                for (tool, members, structured, finding) in cases() {
                    let complete = if modern {
                        r#""resultType":"complete","#
                    } else {
                        ""
                    };
                    let reply = format!(
                        r#"{{{complete}"content":[{{"type":"text","text":"said"}}]{members}}}"#
                    );
                    fake.reply("tools/call", move |_| Reply::Text(reply.clone()));
                    let what = format!("{tool} {members:.80} checked: {checked}");
                    for result in stage
                        .everyone(async |app, _| result_of(&app, tool).await)
                        .await
                    {
                        // Byte for byte as it was sent, whatever is found.
                        assert!(result.structured_content_json == structured, "{what}");
                        assert_eq!(text_of(&result), "said", "{what}");
                        assert_eq!(result.is_error, members.contains("isError"), "{what}");
                        assert_eq!(
                            result.extra_json.contains("1.0"),
                            members.contains("vendor")
                        );
                        let expected = if checked { &finding } else { &Nothing };
                        compare(result.check.as_ref(), expected, &what);
                    }
                }
                fake.reply("tools/call", |_| {
                    Reply::Error(-32602, "bad", json!({"path": ["n"]}))
                });
                let outcome = stage.app().call_tool("s", "point", "{}").await;
                let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "UPSTREAM_ERROR");
                assert_eq!(facts.metadata["data_json"], r#"{"path":["n"]}"#);
            }
            assert!(elsewhere.seen().is_empty(), "no reference is fetched");
            let lists = fake.seen_of("tools/list").len();
            assert_eq!(lists, 1, "a change of the setting reconnects nothing");
        })
        .await;
    }
}

#[tokio::test]
async fn b31_a_check_goes_by_the_definition_that_the_call_was_made_with() {
    one_and_two(async |mut stage| {
        let fake = FakeMcp::echo(true).await;
        let define = |schema: Value| {
            let mut tool = tool("echo");
            tool["outputSchema"] = schema;
            fake.set_list("tools", vec![tool]);
        };
        define(json!({"type": "integer"}));
        fake.reply("tools/call", |_| {
            Reply::Json(json!({"resultType": "complete", "content": [], "structuredContent": 1}))
        });
        let mut spec = http_spec("S", &fake.url());
        spec.check_results = true;
        let server = stage.add("s", spec).await;
        let digest = |server: &Server| server.facts().tools.as_ref().unwrap().digest.clone();
        let valid = async |app: &Clients| {
            let result = app.call_tool("s", "echo", "{}").await.unwrap();
            let check = result.check.expect("a check");
            assert_eq!(check.not_checked, "");
            check.violations.is_empty()
        };
        assert!(valid(stage.app()).await);

        let mut updates = stage.other().updates("").await;
        define(json!({"type": "string"}));
        fake.notify("notifications/tools/list_changed").await;
        updates
            .server_where("the other definition", |now| digest(now) != digest(&server))
            .await;
        assert!(!valid(stage.other()).await);
        stage.restart().await;
        stage.other().wait_for("s", ConnectionState::Ready).await;
        assert!(!valid(stage.other()).await, "the setting survives");
    })
    .await;
}

#[tokio::test]
async fn b31_what_a_check_may_cost_is_configured() {
    let builder = TestDaemon::builder()
        .set("checks.result_bytes", 1024_u64)
        .set("checks.schema_bytes", 1024_u64)
        .set("checks.steps", 1_000_u64)
        .set("checks.schemas", 1_u64);
    one_and_two_with(builder, async |stage| {
        let fake = FakeMcp::echo(true).await;
        let schemas = [
            ("list", json!({"items": {"type": "integer", "minimum": 0}})),
            ("large", json!({"title": "x".repeat(1024)})),
            ("small", json!({"type": "array"})),
        ];
        let tools = schemas.map(|(name, schema)| {
            let mut tool = tool(name);
            tool["outputSchema"] = schema;
            tool
        });
        fake.set_list("tools", tools.to_vec());
        let mut spec = http_spec("S", &fake.url());
        spec.check_results = true;
        stage.add("s", spec).await;
        for (tool, items, key) in [
            ("list", 10, ""),
            ("list", 400, "checks.steps"),
            ("small", 400, ""),
            ("small", 600, "checks.result_bytes"),
            ("large", 1, "checks.schema_bytes"),
            ("list", 11, ""),
        ] {
            fake.reply("tools/call", move |_| {
                let list = vec![1; items];
                Reply::Json(
                    json!({"resultType": "complete", "content": [], "structuredContent": list}),
                )
            });
            let finding = if key.is_empty() { Valid } else { Unclear(key) };
            for result in stage
                .everyone(async |app, _| result_of(&app, tool).await)
                .await
            {
                compare(result.check.as_ref(), &finding, &format!("{tool} {items}"));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn behaviour_106_what_is_stored_is_the_setting_and_no_validator() {
    // An app hands over data and no objects: what checks is made anew by each daemon, and finds the same.
    one_and_two(async |mut stage| {
        let elsewhere = FakeMcp::echo(true).await;
        let fake = FakeMcp::echo(true).await;
        fake.set_list("tools", tools(&elsewhere));
        let mut spec = http_spec("S", &fake.url());
        spec.check_results = true;
        let server = stage.add("s", spec).await;
        for restarted in [false, true] {
            if restarted {
                stage.restart().await;
                stage.other().wait_for("s", ConnectionState::Ready).await;
            }
            // Small ones: what a check may cost is the matter of other stories.
            let small = |(_, members, ..): &(_, String, _, _)| members.len() < 500;
            for (tool, members, _, finding) in cases().into_iter().filter(small) {
                let reply = format!(
                    r#"{{"resultType":"complete","content":[{{"type":"text","text":"said"}}]{members}}}"#
                );
                fake.reply("tools/call", move |_| Reply::Text(reply.clone()));
                let results = stage.everyone(async |app, _| result_of(&app, tool).await);
                for result in results.await {
                    let what = format!("{tool} {members:.80} restarted: {restarted}");
                    compare(result.check.as_ref(), &finding, &what);
                }
            }
            // What a call brings along is its own: the next one, of whatever app, has the bounds of the settings.
            fake.reply("tools/call", |seen| match seen.arguments().as_str() {
                r#"{"slow":true}"# => Reply::Hang,
                _ => Reply::Default,
            });
            let mut bounded = stage.app().call("s", "point", r#"{"slow":true}"#);
            bounded.timeout = Some(millis(200));
            let ended = stage.app().call_with(bounded).await;
            ErrorFacts::expect(ended, Code::DeadlineExceeded, "UPSTREAM_TIMEOUT");
            let now = stage.other().get("s").await.unwrap();
            assert_eq!(now.spec, server.spec);
        }
    })
    .await;
}
