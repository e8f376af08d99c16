//! Lists that are odd, late, endless or broken, and names that could be confused (cases B29 and B32, behaviours 91 to
//! 104). Elsewhere: `allow_lists`, `lifecycle::behaviour_99_quick_attempts_are_counted`,
//! `lifecycle::behaviour_100_retry_options_are_validated`,
//! `lifecycle::behaviour_101_waiting_has_the_bound_that_was_asked_for`,
//! `listings::behaviour_103_model_names_are_unique_short_and_stable`,
//! `listings::behaviour_104_one_bad_tool_hides_no_other`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mcp_sidecar_tests::fake::body;
use mcp_sidecar_tests::prelude::*;
use tokio::sync::watch;

/// The story in both eras, with one and with two apps, and a server `s` that offers `echo`.
async fn both_eras(story: impl AsyncFn(&mut Stage, &FakeMcp)) {
    for modern in [true, false] {
        one_and_two(async |mut stage| {
            let fake = FakeMcp::echo(modern).await;
            stage.add_http(&fake.url()).await;
            story(&mut stage, &fake).await;
        })
        .await;
    }
}

async fn refresh(app: &Clients) -> Server {
    let request = v1::RefreshServerRequest {
        namespace: app.namespace(),
        server_id: "s".to_owned(),
        ..Default::default()
    };
    let answer = app
        .servers()
        .refresh_server(request)
        .await
        .expect("RefreshServer");
    answer.into_inner().server.expect("the server")
}

async fn tool_names(app: &Clients) -> Vec<String> {
    let tools = app.list_tools().await.into_iter();
    tools.map(|tool| tool.name).collect()
}

/// Why the tools are incomplete; empty if they are not.
fn incomplete(server: &Server) -> &str {
    let tools = server.facts().tools.as_ref();
    tools.map_or("", |tools| &tools.incomplete_reason)
}

fn nested(levels: usize, inside: &str) -> String {
    let open = r#"{"type":"object","properties":{"p":"#.repeat(levels);
    format!("{open}{inside}{}", "}}".repeat(levels))
}

#[tokio::test]
async fn b29_one_odd_tool_hides_no_other() {
    let elsewhere = FakeMcp::echo(true).await;
    let far = format!(
        r#"{{"type":"object","properties":{{"x":{{"$ref":"{}"}}}}}}"#,
        elsewhere.url()
    );
    let (deep, deeper) = (
        nested(200, r#"{"type":"string"}"#),
        nested(5_000, r#"{"x-mcp-header":"A"}"#),
    );
    let schemas = [
        ("plain", r#"{"type":"object"}"#),
        ("int", r#"{"type":"int"}"#),
        ("any", r#"{"anyOf":[{"type":"object"},{"type":"string"}]}"#),
        (
            "recursive",
            r##"{"$defs":{"n":{"$ref":"#/$defs/n"}},"$ref":"#/$defs/n"}"##,
        ),
        ("unresolved", r##"{"$ref":"#/$defs/nowhere"}"##),
        ("far", far.as_str()),
        ("deep", deep.as_str()),
        (
            "dialect",
            r#"{"$schema":"urn:x:unknown","type":["object"],"required":5}"#,
        ),
        ("empty", "{}"),
    ];
    let good =
        schemas.map(|(name, schema)| format!(r#"{{"name":"{name}","inputSchema":{schema}}}"#));
    let bad = [
        r#"{"name":"null","inputSchema":null}"#.to_owned(),
        r#"{"name":"missing"}"#.to_owned(),
        r#"{"name":"true","inputSchema":true}"#.to_owned(),
        r#"{"name":"text","inputSchema":"{}"}"#.to_owned(),
        r#"{"inputSchema":{"type":"object"}}"#.to_owned(),
        r#"{"name":"","inputSchema":{"type":"object"}}"#.to_owned(),
        r#"{"name":7,"inputSchema":{"type":"object"}}"#.to_owned(),
        // The same name again: the first one counts.
        r#"{"name":"plain","inputSchema":{"type":"object","x":1}}"#.to_owned(),
        "null".to_owned(),
        "[]".to_owned(),
        format!(r#"{{"name":"deeper","inputSchema":{deeper}}}"#),
    ];
    let described = r#"{"name":"described","description":5,"title":[],"annotations":"x","inputSchema":{"type":"object"}}"#;
    let all = [&bad[..5], &good[..], &[described.to_owned()], &bad[5..]]
        .concat()
        .join(",");
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        let list = format!(
            r#"{{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{all}]}}"#
        );
        fake.reply("tools/list", move |_| Reply::Text(list.clone()));
        stage.add_http(&fake.url()).await;
        stage
            .everyone(async |app, _| {
                let tools = app.list_tools().await;
                assert_eq!(tools.len(), good.len() + 1, "{tools:#?}");
                for (tool, (name, schema)) in tools.iter().zip(schemas) {
                    assert_eq!(tool.name, name);
                    assert!(
                        tool.input_schema_json == schema,
                        "the schema of {name} is as it was"
                    );
                    app.call_tool("s", name, "{}").await.unwrap();
                }
                let odd = tools.last().unwrap();
                assert_eq!(
                    (odd.name.as_str(), odd.description.as_str()),
                    ("described", "")
                );
                assert!(odd.extra_json.contains(r#""description":5"#), "{odd:?}");
                // Every withheld tool has a reason, in the status and for whoever calls it.
                let server = app.get("s").await.unwrap();
                assert_eq!(server.tool_count() as usize, tools.len());
                assert_eq!(incomplete(&server), "");
                let withheld = &server.facts().withheld_tools;
                assert_eq!(withheld.len(), bad.len(), "{withheld:#?}");
                assert!(withheld.iter().all(|tool| !tool.reason.is_empty()));
                let refused = app.call_tool("s", "missing", "{}").await;
                let facts = ErrorFacts::expect(refused, Code::Unimplemented, "NOT_SUPPORTED");
                assert!(facts.message.contains("inputSchema"), "{facts:?}");
            })
            .await;
        assert!(elsewhere.seen().is_empty(), "no reference is fetched");
    })
    .await;
}

#[tokio::test]
async fn b32_names_that_could_be_confused_stay_apart() {
    let long = "l".repeat(128);
    let tools = [
        "b__c",
        "_c",
        "c",
        "b_c",
        long.as_str(),
        "a.b",
        "a/b",
        "pаypal",
        "paypal",
        "e\u{301}",
        "é",
    ];
    let ids = ["a", "a-b", "b", "b-c"];
    let fakes = async || {
        let mut fakes = BTreeMap::new();
        for id in ids {
            let builder = tools
                .iter()
                .fold(FakeMcp::modern(), |fake, name| fake.tool(tool(name)));
            fakes.insert(id, builder.start().await);
        }
        fakes
    };
    one_and_two(async |mut stage| {
        let fakes = fakes().await;
        for id in ids {
            stage.add(id, http_spec(id, &fakes[id].url())).await;
        }
        // Ids that are alike after they were normalised are one id, and it belongs to one server.
        for (alike, holder) in [("a_", "a"), ("A", "a"), ("a__b", "a-b"), ("_a b_", "a-b")] {
            let spec = http_spec("another", &fakes["b"].url());
            let refused = stage.other().add(alike, spec).await;
            let facts = ErrorFacts::expect(refused, Code::AlreadyExists, "SERVER_ID_TAKEN");
            assert!(facts.message.contains(&format!("`{holder}`")), "{facts:?}");
            assert!(facts.message.contains("another"), "{facts:?}");
        }
        let names = async |app: &Clients| -> BTreeMap<String, (String, String)> {
            let tools = app.list_tools().await.into_iter();
            tools
                .map(|tool| (tool.model_name, (tool.server_id, tool.name)))
                .collect()
        };
        let before = names(stage.other()).await;
        assert_eq!(before.len(), ids.len() * tools.len());
        let pairs: BTreeSet<_> = before.values().collect();
        assert_eq!(pairs.len(), before.len());
        stage
            .everyone(async |app, number| {
                let mark = format!("{{\"app\":{number}}}");
                for (model_name, (server, name)) in &before {
                    // By its pair, and by the name for models: always the same one.
                    app.call_tool(server, name, &mark).await.unwrap();
                    let mut call = app.call("", "", &mark);
                    call.model_name.clone_from(model_name);
                    app.call_with(call).await.unwrap();
                    let seen = fakes[server.as_str()].seen_of("tools/call").into_iter();
                    let seen = seen.filter(|seen| seen.arguments() == mark && seen.tool() == name);
                    assert_eq!(seen.count(), 2, "{server} {name}");
                }
            })
            .await;
        // The names depend on nothing but the pairs: not on a restart, not on the order of connecting.
        stage.restart().await;
        for id in ids.iter().rev() {
            stage.other().wait_for(id, ConnectionState::Ready).await;
        }
        assert_eq!(names(stage.other()).await, before);
        for id in ids {
            stage.app().remove(id).await.unwrap();
        }
        for id in ids.iter().rev() {
            stage.add(id, http_spec(id, &fakes[id].url())).await;
        }
        assert_eq!(names(stage.other()).await, before);
    })
    .await;
}

#[tokio::test]
async fn behaviour_91_a_list_that_is_not_known_is_empty() {
    both_eras(async |stage, fake| {
        for list in ["resources/list", "resources/templates/list", "prompts/list"] {
            fake.reply(list, |_| Reply::Error(-32601, "what?", Value::Null));
        }
        // When lists are read again, and when they are read first.
        for restarted in [false, true] {
            if restarted {
                stage.restart().await;
                stage.other().wait_for("s", ConnectionState::Ready).await;
            } else {
                refresh(stage.other()).await;
            }
            stage
                .everyone(async |app, _| {
                    let server = app.get("s").await.unwrap();
                    assert_eq!(server.state(), ConnectionState::Ready);
                    let status = server.facts();
                    for list in [&status.resources, &status.prompts] {
                        let list = list.as_ref().unwrap();
                        let found = (list.count, list.incomplete_reason.as_str());
                        assert_eq!(found, (0, ""), "restarted: {restarted}");
                    }
                    assert!(app.list_resources("s").await.is_empty());
                    assert!(app.list_prompts("s").await.is_empty());
                    assert_eq!(tool_names(&app).await, ["echo"]);
                    app.call_tool("s", "echo", "{}").await.unwrap();
                })
                .await;
        }
    })
    .await;
}

#[tokio::test]
async fn behaviour_92_another_error_of_a_list_is_told_and_harms_no_other() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let fake = FakeMcp::echo(modern).await;
            fake.reply("resources/list", |_| {
                Reply::Error(-32603, "database down", Value::Null)
            });
            fake.reply("prompts/list", |_| {
                Reply::Raw(200, Vec::new(), "<html>".into())
            });
            let server = stage.add_http(&fake.url()).await;
            let status = server.facts();
            for list in [&status.resources, &status.prompts] {
                assert_ne!(list.as_ref().unwrap().incomplete_reason, "", "{status:?}");
            }
            let reason = &status.resources.as_ref().unwrap().incomplete_reason;
            assert!(reason.contains("database down"), "{reason}");
            stage
                .everyone(async |app, _| {
                    assert_eq!(tool_names(&app).await, ["echo"]);
                    app.call_tool("s", "echo", "{}").await.unwrap();
                    let request = v1::ListResourcesRequest {
                        namespace: app.namespace(),
                        ..Default::default()
                    };
                    let listed = app.resources().list_resources(request).await.unwrap();
                    assert!(
                        listed.into_inner().issues[0]
                            .message
                            .contains("database down")
                    );
                })
                .await;
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_92_a_second_page_that_fails_leaves_the_first() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        fake.reply("tools/list", |seen| match seen.params().get("cursor") {
            None => Reply::Json(json!({"tools": [tool("echo")], "nextCursor": "2"})),
            Some(_) => Reply::Error(-32000, "the rest is lost", Value::Null),
        });
        let server = stage.add_http(&fake.url()).await;
        assert!(
            incomplete(&server).contains("the rest is lost"),
            "{server:?}"
        );
        stage
            .everyone(async |app, _| {
                assert_eq!(tool_names(&app).await, ["echo"]);
                app.call_tool("s", "echo", "{}").await.unwrap();
                // What may be on the lost page can be called: the server decides.
                app.call_tool("s", "elsewhere", "{}").await.unwrap();
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn behaviour_94_a_second_discovery_supersedes_the_first() {
    both_eras(async |stage, fake| {
        let (release, held) = watch::channel(false);
        let count = Arc::new(AtomicUsize::new(0));
        fake.on("tools/list", move |_| {
            let (mut held, first) = (held.clone(), count.fetch_add(1, Ordering::SeqCst) == 0);
            async move {
                if first {
                    let _ = held.wait_for(|released| *released).await;
                    return Reply::Json(json!({"tools": [tool("stale")]}));
                }
                Reply::Json(json!({"tools": [tool("echo"), tool("fresh")]}))
            }
        });
        let known = fake.seen_of("tools/list").len();
        let second = async {
            eventually("the first discovery", PATIENCE, async || {
                (fake.seen_of("tools/list").len() > known).then_some(())
            })
            .await;
            refresh(stage.other()).await
        };
        let first = refresh(stage.app());
        let (first, second) = tokio::join!(Box::pin(first), Box::pin(second));
        for server in [first, second] {
            assert_eq!(server.tool_count(), 2, "{server:?}");
        }
        release.send_replace(true);
        assert_eq!(tool_names(stage.other()).await, ["echo", "fresh"]);
    })
    .await;
}

#[tokio::test]
async fn behaviour_95_endless_pages_are_bounded() {
    let builder = TestDaemon::builder().set("limits.list_pages", 5_u64);
    // Repeated, growing, and not even texts.
    let cursors: [fn(usize) -> Value; 3] = [
        |_| json!("again"),
        |page| json!(page.to_string()),
        |page| json!(page),
    ];
    for (modern, cursor) in [(true, cursors[0]), (false, cursors[1]), (false, cursors[2])] {
        one_and_two_with(builder.clone(), async |mut stage| {
            let fake = FakeMcp::echo(modern).await;
            let pages = AtomicUsize::new(0);
            fake.reply("tools/list", move |_| {
                let page = pages.fetch_add(1, Ordering::SeqCst);
                let name = format!("t{}", page % 5);
                Reply::Json(json!({"tools": [tool(&name)], "nextCursor": cursor(page)}))
            });
            let server = stage.add_http(&fake.url()).await;
            assert!(
                incomplete(&server).contains("limits.list_pages"),
                "{server:?}"
            );
            assert_eq!(
                tool_names(stage.other()).await,
                ["t0", "t1", "t2", "t3", "t4"]
            );
            assert_eq!(fake.seen_of("tools/list").len(), 5);
            // The same on a resumed session.
            stage.restart().await;
            let server = stage.other().wait_for("s", ConnectionState::Ready).await;
            assert!(
                incomplete(&server).contains("limits.list_pages"),
                "{server:?}"
            );
            assert_eq!(fake.seen_of("tools/list").len(), 10);
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_95_a_walk_stops_when_it_is_not_wanted() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        fake.on("tools/list", |_| async {
            // Slow enough that the walk is under way for a while.
            tokio::time::sleep(Duration::from_millis(5)).await;
            Reply::Json(json!({"tools": [], "nextCursor": "on"}))
        });
        stage
            .app()
            .add_with(v1::AddServerRequest {
                server_id: "s".to_owned(),
                spec: Some(http_spec("S", &fake.url())),
                wait_timeout: Some(millis(0)),
                ..Default::default()
            })
            .await
            .unwrap();
        fake.wait("a walk", |seen| seen.params()["cursor"] == "on")
            .await;
        stage.other().remove("s").await.unwrap();
        let walked = fake.seen_of("tools/list").len();
        assert!(walked < 200, "{walked} pages");
        // Nothing of it goes on beside other work.
        let other = FakeMcp::echo(true).await;
        stage.add("other", http_spec("Other", &other.url())).await;
        assert!(fake.seen_of("tools/list").len() <= walked + 1);
    })
    .await;
}

#[tokio::test]
async fn behaviour_96_a_burst_of_changes_leads_to_one_reading() {
    both_eras(async |stage, fake| {
        let known = fake.seen_of("tools/list").len();
        let prompts = fake.seen_of("prompts/list").len();
        fake.set_list("tools", vec![tool("echo"), tool("new")]);
        let mut updates = stage.other().updates("").await;
        for _ in 0..5 {
            fake.notify("notifications/tools/list_changed").await;
        }
        updates
            .server_where("two tools", |server| server.tool_count() == 2)
            .await;
        // A later reading of another list comes after whatever is still to be read.
        fake.notify("notifications/prompts/list_changed").await;
        eventually("the prompts", PATIENCE, async || {
            (fake.seen_of("prompts/list").len() > prompts).then_some(())
        })
        .await;
        assert_eq!(fake.seen_of("tools/list").len(), known + 1);
    })
    .await;
}

#[tokio::test]
async fn behaviour_98_a_reading_that_fails_leaves_the_old_list() {
    both_eras(async |stage, fake| {
        let failures: [fn() -> Reply; 4] = [
            || Reply::Error(-32000, "not now", Value::Null),
            || Reply::Raw(500, Vec::new(), "not now".into()),
            || Reply::Raw(200, Vec::new(), "not now".into()),
            || {
                body(
                    200,
                    &[("content-type", "application/json")],
                    async |writer| writer.reset().await,
                )
            },
        ];
        for failure in failures {
            fake.reply("tools/list", move |_| failure());
            let server = refresh(stage.app()).await;
            assert_eq!(server.state(), ConnectionState::Ready, "{server:?}");
            assert_ne!(incomplete(&server), "");
            stage
                .everyone(async |app, _| {
                    assert_eq!(tool_names(&app).await, ["echo"]);
                    assert_ne!(incomplete(&app.get("s").await.unwrap()), "");
                    app.call_tool("s", "echo", "{}").await.unwrap();
                })
                .await;
            fake.reset("tools/list");
            assert_eq!(incomplete(&refresh(stage.other()).await), "");
        }
    })
    .await;
}

#[tokio::test]
async fn behaviour_98_a_change_that_cannot_be_read_leaves_the_old_list() {
    both_eras(async |stage, fake| {
        let mut streams = Vec::new();
        for app in &stage.apps {
            let mut updates = app.updates("").await;
            updates.snapshot().await;
            streams.push(updates);
        }
        fake.reply("tools/list", |_| {
            Reply::Error(-32000, "not now", Value::Null)
        });
        fake.notify("notifications/tools/list_changed").await;
        for updates in &mut streams {
            let told = |server: &Server| incomplete(server).contains("not now");
            let server = updates.server_where("the error", told).await;
            assert_eq!(server.state(), ConnectionState::Ready, "{server:?}");
            assert_eq!(server.tool_count(), 1);
        }
        stage
            .everyone(async |app, _| {
                assert_eq!(tool_names(&app).await, ["echo"]);
                app.call_tool("s", "echo", "{}").await.unwrap();
            })
            .await;
        // The next change is read, and the error is over.
        fake.set_list("tools", vec![tool("echo"), tool("new")]);
        fake.reset("tools/list");
        fake.notify("notifications/tools/list_changed").await;
        for updates in &mut streams {
            let healed = |server: &Server| server.tool_count() == 2;
            let server = updates.server_where("two tools", healed).await;
            assert_eq!(incomplete(&server), "");
        }
    })
    .await;
}

#[tokio::test]
async fn behaviour_99_a_sign_in_that_is_wanted_is_dialled_once() {
    one_and_two(async |mut stage| {
        let fake = FakeMcp::echo(true).await;
        fake.reply("*", |_| Reply::Raw(401, Vec::new(), Vec::new().into()));
        let mut spec = http_spec("S", &fake.url());
        spec.retry = Some(v1::RetryPolicy {
            max_attempts: Some(3),
            base_delay: Some(millis(1)),
            max_delay: Some(millis(1)),
        });
        stage.app().add("s", spec).await.unwrap();
        stage
            .other()
            .wait_for("s", ConnectionState::Authenticating)
            .await;
        // It is asked once, and then for what would let a sign-in begin, which it has not got.
        let asked = || fake.seen_of("server/discover").len();
        assert_eq!(asked(), 1);
        stage.restart().await;
        stage
            .other()
            .wait_for("s", ConnectionState::Authenticating)
            .await;
        assert_eq!(asked(), 2);
    })
    .await;
}
