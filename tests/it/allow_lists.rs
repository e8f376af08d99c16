//! Which tools of a server apps may see and call: allow-lists and deny-lists (case B32).

use std::collections::{BTreeMap, BTreeSet};

use mcp_sidecar_tests::prelude::*;

const TOOLS: [&str; 12] = [
    "b__c",
    "_c",
    "c",
    "b_c",
    "a.b",
    "a/b",
    "a*b",
    "p\u{430}ypal",
    "paypal",
    "e\u{301}",
    "\u{e9}",
    "B__c",
];

fn rules(allowed: &[&str], denied: &[&str]) -> ServerSpec {
    let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
    ServerSpec {
        allowed_tools: owned(allowed),
        denied_tools: owned(denied),
        ..Default::default()
    }
}

/// Sets both lists.
async fn set(app: &Clients, id: &str, allowed: &[&str], denied: &[&str]) -> Server {
    let paths = ["allowed_tools", "denied_tools"];
    let updated = app.update(id, rules(allowed, denied), &paths).await;
    updated.expect("UpdateServer")
}

/// The pairs of server and tool that a listing shows, by their model names.
async fn names(app: &Clients) -> BTreeMap<String, (String, String)> {
    let mut all = BTreeMap::new();
    for style in [v1::ModelNameStyle::Tool, v1::ModelNameStyle::Mcp] {
        let request = v1::ListToolsRequest {
            model_name_style: style.into(),
            ..Default::default()
        };
        for tool in app.tools_where(request).await.expect("ListTools") {
            let clash = all.insert(tool.model_name, (tool.server_id, tool.name));
            assert_eq!(clash, None, "a model name means one pair");
        }
    }
    all
}

async fn listed(app: &Clients, id: &str) -> BTreeSet<String> {
    let request = v1::ListToolsRequest {
        server_ids: vec![id.to_owned()],
        ..Default::default()
    };
    let tools = app.tools_where(request).await.expect("ListTools");
    tools.into_iter().map(|tool| tool.name).collect()
}

/// Every way to call it is refused, and what the refusal says depends on nothing but the name.
async fn refused(app: &Clients, call: v1::ToolCall) {
    let unary = app.call_with(call.clone()).await.map(drop);
    let streamed = app.stream_with(call.clone()).await.map(drop);
    for outcome in [unary, streamed] {
        let facts = ErrorFacts::expect(outcome, Code::PermissionDenied, "TOOL_NOT_ALLOWED");
        let (kind, name) = if call.model_name.is_empty() {
            ("tool_name", &call.tool_name)
        } else {
            ("model_name", &call.model_name)
        };
        assert_eq!(&facts.metadata[kind], name, "{facts:?}");
        assert!(!facts.metadata["server_id"].is_empty(), "{facts:?}");
        assert_eq!(facts.metadata.len(), 2, "{facts:?}");
    }
}

fn by_model_name(app: &Clients, model_name: &str) -> v1::ToolCall {
    let mut call = app.call("", "", "{}");
    model_name.clone_into(&mut call.model_name);
    call
}

#[tokio::test]
async fn b32_an_allow_list_names_one_pair_and_admits_no_other() {
    let long = "l".repeat(128);
    let tools: Vec<&str> = TOOLS.into_iter().chain([long.as_str()]).collect();
    // `a--b` is normalised, so that a joined name of one server could be that of a tool of another; the last id is so long
    // that not even the beginning of a model name shows it whole.
    let wide = format!("w{}", "-w".repeat(31));
    let servers = [("a", "a"), ("a--b", "a-b"), ("b", "b"), (&wide, &wide)];
    Box::pin(one_and_two(async |mut stage| {
        let mut fakes = BTreeMap::new();
        for (wanted, id) in servers {
            let builder = tools
                .iter()
                .fold(FakeMcp::modern(), |fake, name| fake.tool(tool(name)));
            let fake = builder.start().await;
            let added = stage
                .app()
                .add(wanted, http_spec(id, &fake.url()))
                .await
                .unwrap();
            assert_eq!(added.server.unwrap().id, id);
            stage.other().wait_for(id, ConnectionState::Ready).await;
            fakes.insert(id, fake);
        }
        let all = names(stage.other()).await;
        assert_eq!(all.len(), 2 * servers.len() * tools.len());

        // One app sets the lists; the other one sees them in force when the first has its answer.
        let mut updates = stage.other().updates("").await;
        let before = stage.other().get("a").await.unwrap();
        let names_of_a = ["b__c", "paypal", "\u{e9}", &long, "a.b", "ghost", r"a\*b"];
        let after = set(stage.app(), "a", &names_of_a, &[]).await;
        set(stage.app(), "a-b", &["*c"], &["b*", "?_c"]).await;
        set(stage.app(), &wide, &["c"], &[]).await;
        let mut expected = BTreeSet::new();
        let admitted = ["b__c", "paypal", "\u{e9}", long.as_str(), "a.b", "a*b"];
        expected.extend(admitted.map(|name| ("a", name)));
        expected.extend(["_c", "c", "B__c"].map(|name| ("a-b", name)));
        expected.extend(tools.iter().map(|name| ("b", *name)));
        expected.insert((wide.as_str(), "c"));

        let status = after.facts();
        assert_eq!(after.spec.as_ref().unwrap().allowed_tools, names_of_a);
        assert_ne!(after.etag, before.etag);
        assert_eq!(after.tool_count() as usize, admitted.len());
        assert_eq!(
            status.tools_not_allowed as usize,
            tools.len() - admitted.len()
        );
        assert_eq!(status.withheld_tools, [], "nothing is named");
        let digest = |server: &Server| server.facts().tools.as_ref().unwrap().digest.clone();
        assert_ne!(digest(&before), digest(&after), "the listing has changed");
        assert_eq!(
            status.state_time,
            before.facts().state_time,
            "it stays connected"
        );
        updates
            .server_where("the lists of `a`", |server| {
                server.id == "a" && server.facts().tools_not_allowed > 0
            })
            .await;

        let check = async |app: Clients, number: usize| {
            let mark = format!("{{\"app\":{number}}}");
            let shown = names(&app).await;
            let pairs: BTreeSet<(&str, &str)> = shown
                .values()
                .map(|(server, name)| (server.as_str(), name.as_str()))
                .collect();
            assert_eq!(pairs, expected);
            assert!(
                shown.iter().all(|(name, pair)| all[name] == *pair),
                "names stay"
            );
            for (model_name, (server, name)) in &all {
                let mut call = by_model_name(&app, model_name);
                call.arguments_json = Some(mark.clone());
                if expected.contains(&(server.as_str(), name.as_str())) {
                    app.call_tool(server, name, &mark).await.unwrap();
                    app.call_with(call).await.unwrap();
                } else {
                    refused(&app, app.call(server, name, &mark)).await;
                    refused(&app, call).await;
                }
            }
            for (server, fake) in &fakes {
                let seen = fake.seen_of("tools/call").into_iter();
                let seen: BTreeSet<String> = seen.map(|seen| seen.tool().to_owned()).collect();
                let wanted = expected.iter().filter(|(id, _)| id == server);
                let wanted: BTreeSet<String> = wanted.map(|(_, name)| (*name).to_owned()).collect();
                assert_eq!(seen, wanted, "nothing else reaches {server}");
            }
            // What does not exist is refused in the same words, or not found where it would be admitted.
            refused(&app, app.call("a", "nothing", "{}")).await;
            refused(&app, by_model_name(&app, "tool_a_nothing")).await;
            refused(&app, by_model_name(&app, "mcp__a-b__b_nothing_0123456789")).await;
            for call in [
                app.call("a", "ghost", "{}"),
                by_model_name(&app, "tool_a_ghost"),
            ] {
                ErrorFacts::expect(app.call_with(call).await, Code::NotFound, "TOOL_NOT_FOUND");
            }
        };
        stage.everyone(check).await;

        // The lists and the names survive a restart, whatever the order of connecting.
        let shown = names(stage.other()).await;
        for (_, id) in servers {
            stage.app().disconnect_server(id).await.unwrap();
        }
        stage.restart().await;
        for (_, id) in servers.iter().rev() {
            refused(stage.other(), stage.other().call("a", "c", "{}")).await;
            stage.other().connect_server(id).await.unwrap();
            stage.other().wait_for(id, ConnectionState::Ready).await;
        }
        assert_eq!(names(stage.other()).await, shown);
        stage.everyone(check).await;

        // Without lists everything is there again.
        let cleared = set(stage.other(), "a", &[], &[]).await;
        assert_eq!(cleared.facts().tools_not_allowed, 0);
        assert_eq!(digest(&cleared), digest(&before));
        assert_eq!(listed(stage.app(), "a").await.len(), tools.len());
        stage.app().call_tool("a", "_c", "{}").await.unwrap();
    }))
    .await;
}

#[tokio::test]
async fn b32_what_a_server_says_later_is_under_the_same_lists() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        let mut spec = http_spec("S", &fake.url());
        spec.allowed_tools = vec!["echo*".to_owned()];
        spec.denied_tools = vec!["echo_secret".to_owned()];
        stage.add("s", spec).await;
        // Odd tools outside the lists are not named either, and a change of theirs is no change of the list.
        let odd = json!({"name": "odd", "inputSchema": null});
        let more = ["echo", "echo_2", "echo_secret", "other"];
        let mut list: Vec<Value> = more.iter().map(|name| tool(name)).collect();
        list.extend([odd, tool("other"), json!({"name": "echo_odd"}), json!({})]);
        fake.set_list("tools", list.clone());
        fake.notify("notifications/tools/list_changed").await;
        let mut updates = stage.other().updates("").await;
        let server = updates
            .server_where("two tools", |server| server.tool_count() == 2)
            .await;
        let status = server.facts();
        assert_eq!(status.tools_not_allowed, 4, "{status:?}");
        let named: Vec<&str> = status
            .withheld_tools
            .iter()
            .map(|odd| odd.name.as_str())
            .collect();
        assert_eq!(named, ["echo_odd", ""]);
        list.push(tool("another"));
        fake.set_list("tools", list);
        fake.notify("notifications/tools/list_changed").await;
        let later = updates
            .server_where("one more", |server| server.facts().tools_not_allowed == 5)
            .await;
        let digest = |server: &Server| server.facts().tools.as_ref().unwrap().digest.clone();
        assert_eq!(digest(&later), digest(&server));

        // What may be on a page that is lost can be called, within the lists.
        fake.reply("tools/list", |seen| match seen.params().get("cursor") {
            None => Reply::Json(json!({"tools": [tool("echo")], "nextCursor": "2"})),
            Some(_) => Reply::Error(-32000, "the rest is lost", Value::Null),
        });
        stage.app().disconnect_server("s").await.unwrap();
        stage.app().connect_server("s").await.unwrap();
        stage
            .everyone(async |app, _| {
                assert_eq!(
                    listed(&app, "s").await.len(),
                    2,
                    "a list that broke off replaces none"
                );
                app.call_tool("s", "echo_2", "{}").await.unwrap();
                refused(&app, app.call("s", "echo_secret", "{}")).await;
                refused(&app, app.call("s", "elsewhere", "{}")).await;
                let long = app.call_tool("s", &"echo".repeat(300), "{}").await;
                ErrorFacts::expect(long, Code::PermissionDenied, "TOOL_NOT_ALLOWED");
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn b32_a_call_that_waits_for_its_server_meets_the_lists_of_the_end_of_its_wait() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        let (release, held) = tokio::sync::watch::channel(false);
        fake.on("tools/list", move |_| {
            let mut held = held.clone();
            async move {
                held.wait_for(|released| *released).await.unwrap();
                Reply::Default
            }
        });
        let spec = http_spec("S", &fake.url());
        let added = stage.app().add_with(v1::AddServerRequest {
            namespace: stage.app().namespace(),
            server_id: "s".to_owned(),
            spec: Some(spec),
            wait_timeout: Some(millis(0)),
            ..Default::default()
        });
        added.await.unwrap();
        fake.wait_method("tools/list").await;
        let waiting = stage.everyone(async |app, _| {
            let mut events = app.call_stream("s", "echo", "{}").await.unwrap();
            events.next().await.unwrap();
            events
        });
        let waiting = waiting.await;
        set(stage.other(), "s", &[], &["echo"]).await;
        release.send_replace(true);
        for events in waiting {
            let end = events.collect().await;
            ErrorFacts::expect(end, Code::PermissionDenied, "TOOL_NOT_ALLOWED");
        }
        assert!(fake.seen_of("tools/call").is_empty());
    })
    .await;
}

#[tokio::test]
async fn b32_patterns_are_checked_when_they_are_set() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        let (long, many) = ("x".repeat(513), vec!["x"; 1_001]);
        let wrong: [(&[&str], &[&str], &str); 5] = [
            (&["echo", ""], &[], "spec.allowed_tools[1]"),
            (&[], &[""], "spec.denied_tools[0]"),
            (&[&long], &[], "spec.allowed_tools[0]"),
            (&["a", r"b\c"], &[], "spec.allowed_tools[1]"),
            (&[], &many, "spec.denied_tools"),
        ];
        for (allowed, denied, field) in wrong {
            let spec = rules(allowed, denied);
            let paths = ["allowed_tools", "denied_tools"];
            let updated = stage.other().update("s", spec.clone(), &paths).await;
            let facts = ErrorFacts::expect(updated, Code::InvalidArgument, "INVALID_FIELD");
            assert_eq!(facts.field, field, "{facts:?}");
            let spec = ServerSpec {
                allowed_tools: spec.allowed_tools,
                denied_tools: spec.denied_tools,
                ..http_spec("T", &fake.url())
            };
            let added = stage.other().add("t", spec).await;
            let facts = ErrorFacts::expect(added, Code::InvalidArgument, "INVALID_FIELD");
            assert_eq!(facts.field, field, "{facts:?}");
        }
        assert_eq!(
            listed(stage.app(), "s").await.len(),
            1,
            "nothing has changed"
        );
        // One list is changed without the other.
        set(stage.app(), "s", &["e*"], &["x"]).await;
        let spec = rules(&["ignored"], &["echo"]);
        let server = stage
            .other()
            .update("s", spec, &["denied_tools"])
            .await
            .unwrap();
        let spec = server.spec.as_ref().unwrap();
        assert_eq!(
            (&spec.allowed_tools[..], &spec.denied_tools[..]),
            (&["e*".to_owned()][..], &["echo".to_owned()][..])
        );
        assert_eq!(server.tool_count(), 0);
        // Every setting of the same server is what was given last, when it is added again.
        let again = stage
            .app()
            .add("s", http_spec("S", &fake.url()))
            .await
            .unwrap();
        assert_eq!(again.outcome(), AddOutcome::Updated);
        assert_eq!(listed(stage.other(), "s").await.len(), 1);
    })
    .await;
}
