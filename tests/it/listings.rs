//! The catalog: names for models, filters, pages, bad entries.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use std::collections::{HashMap, HashSet};

use mcp_sidecar_tests::prelude::*;

/// A modern server that vouches for its tools for some time, and says when they were read.
async fn vouching(ttl: Duration) -> (FakeMcp, Arc<Mutex<Vec<Instant>>>) {
    let fake = FakeMcp::modern()
        .tool(tool("t0"))
        .without_push()
        .start()
        .await;
    let reads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&reads);
    fake.reply("tools/list", move |_| {
        let mut reads = seen.lock().unwrap();
        reads.push(Instant::now());
        let name = format!("t{}", reads.len());
        let millis = u64::try_from(ttl.as_millis()).unwrap();
        Reply::Json(json!({
            "resultType": "complete", "tools": [tool(&name)], "ttlMs": millis, "cacheScope": "private",
        }))
    });
    (fake, reads)
}

#[tokio::test]
async fn a_list_is_read_again_when_somebody_looks_and_it_is_stale() {
    one_and_two(async |stage| {
        let ttl = Duration::from_secs(1);
        let (fake, reads) = vouching(ttl).await;
        stage.add_http(&fake.url()).await;
        let status = stage.other().get("s").await.unwrap();
        let tools = status.facts().tools.clone().unwrap();
        assert_eq!(tools.ttl, Some(seconds(1)));
        assert_eq!(tools.cache_scope(), v1::CacheScope::Private);
        let resources = status.facts().resources.clone().unwrap();
        assert_eq!(
            (resources.ttl, resources.cache_scope()),
            (None, v1::CacheScope::Private)
        );

        // Looked at all the time, it is read again once it is stale, and not before.
        eventually("the next list", PATIENCE, async || {
            let lists = stage.everyone(async |app, _| app.list_tools().await).await;
            lists
                .iter()
                .all(|tools| tools[0].name == "t3")
                .then_some(())
        })
        .await;
        let reads = reads.lock().unwrap().clone();
        for pair in reads.windows(2) {
            assert!(pair[1] - pair[0] >= ttl, "{reads:?}");
        }
        // The others are not read again, because the server does not vouch for them.
        assert_eq!(fake.seen_of("prompts/list").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_list_that_is_vouched_for_is_not_polled() {
    let daemon = TestDaemon::builder()
        .set("reconnect.list_refresh_interval", "1s")
        .start()
        .await;
    let app = daemon.clients().await;
    let (fresh, reads) = vouching(Duration::from_hours(1)).await;
    let other = FakeMcp::modern()
        .tool(tool("t"))
        .without_push()
        .start()
        .await;
    app.add_http("fresh", &fresh.url()).await;
    app.add_http("other", &other.url()).await;
    eventually("some polls of the other", PATIENCE, async || {
        (other.seen_of("tools/list").len() >= 3).then_some(())
    })
    .await;
    assert_eq!(reads.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_stale_list_that_cannot_be_read_is_kept() {
    let (fake, reads) = vouching(Duration::from_secs(1)).await;
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    assert_eq!(reads.lock().unwrap().len(), 1);
    fake.reply("tools/list", |_| {
        Reply::Error(-32603, "not now", Value::Null)
    });
    eventually("two attempts", PATIENCE, async || {
        assert_eq!(app.list_tools().await[0].name, "t1");
        (fake.seen_of("tools/list").len() >= 3).then_some(())
    })
    .await;
    let status = app.get("s").await.unwrap();
    let tools = status.facts().tools.clone().unwrap();
    assert!(tools.incomplete_reason.contains("not now"), "{tools:?}");
}

#[tokio::test]
async fn behaviour_103_model_names_are_unique_short_and_stable() {
    let long = "l".repeat(128);
    let tools = [
        "b__c",
        "_c",
        "c",
        "a.b/c",
        "a-b-c",
        "Äpfel",
        "Apfel",
        long.as_str(),
    ];
    let ids = ["a", "a-b", "a-b-c", "b"];
    let listed = async |app: &Clients, style: v1::ModelNameStyle| {
        let request = v1::ListToolsRequest {
            model_name_style: style.into(),
            ..Default::default()
        };
        let tools = app.tools_where(request).await.unwrap();
        let names: HashMap<_, _> = tools
            .into_iter()
            .map(|tool| (tool.model_name, (tool.server_id, tool.name)))
            .collect();
        names
    };
    one_and_two(async |mut stage| {
        let mut fakes = HashMap::new();
        for (number, id) in ids.into_iter().enumerate() {
            let builder = tools
                .iter()
                .fold(FakeMcp::modern(), |fake, name| fake.tool(tool(name)));
            let fake = builder.start().await;
            let app = &stage.apps[number % stage.apps.len()];
            app.add(id, http_spec(id, &fake.url())).await.unwrap();
            fakes.insert(id, fake);
        }
        for style in [v1::ModelNameStyle::Tool, v1::ModelNameStyle::Mcp] {
            let names = listed(stage.app(), style).await;
            assert_eq!(names.len(), ids.len() * tools.len(), "names do not collide");
            let pairs: HashSet<_> = names.values().collect();
            assert_eq!(pairs.len(), names.len());
            let calls = stage.everyone(async |app, number| {
                assert_eq!(listed(&app, style).await, names, "the same for every app");
                let mark = format!("{{\"app\":{number},\"style\":{}}}", style as i32);
                for (model_name, (server, name)) in &names {
                    let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                    assert!(
                        model_name.chars().all(valid) && (1..=64).contains(&model_name.len()),
                        "{model_name}"
                    );
                    let call = v1::ToolCall {
                        model_name: model_name.clone(),
                        ..app.call("", "", &mark)
                    };
                    app.call_with(call).await.unwrap();
                    let seen = fakes[server.as_str()].seen_of("tools/call").into_iter();
                    let mut seen = seen.filter(|seen| seen.arguments() == mark);
                    assert!(seen.any(|seen| seen.tool() == name), "{server} {name}");
                }
            });
            calls.await;
        }
        let plain = listed(stage.other(), v1::ModelNameStyle::Unspecified).await;
        assert!(plain.contains_key("tool_b_c"), "{plain:?}");
        stage.restart().await;
        for id in ids.iter().rev() {
            stage.other().wait_for(id, ConnectionState::Ready).await;
        }
        let again = stage.everyone(async |app, _| listed(&app, v1::ModelNameStyle::Tool).await);
        for names in again.await {
            assert_eq!(names, plain);
        }
    })
    .await;
}

#[tokio::test]
async fn listings_filter_page_and_name_what_is_missing() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let one = FakeMcp::modern()
        .tool(tool("x"))
        .tool(tool("y"))
        .start()
        .await;
    let two = FakeMcp::modern()
        .tool(tool("x"))
        .tool(tool("z"))
        .start()
        .await;
    app.add("one", http_spec("one", &one.url())).await.unwrap();
    app.add("two", http_spec("two", &two.url())).await.unwrap();
    let names = async |request: v1::ListToolsRequest| {
        let tools = app.tools_where(request).await.unwrap();
        tools
            .into_iter()
            .map(|tool| format!("{}/{}", tool.server_id, tool.name))
            .collect::<Vec<_>>()
    };
    let all = ["one/x", "one/y", "two/x", "two/z"];
    assert_eq!(names(v1::ListToolsRequest::default()).await, all);
    let paged = v1::ListToolsRequest {
        page_size: 1,
        ..Default::default()
    };
    assert_eq!(names(paged).await, all);
    let filtered = v1::ListToolsRequest {
        server_ids: vec!["two".to_owned()],
        names: vec!["x".to_owned(), "y".to_owned()],
        states: vec![ConnectionState::Ready.into()],
        ..Default::default()
    };
    assert_eq!(names(filtered).await, ["two/x"]);
    let unknown = v1::ListToolsRequest {
        server_ids: vec!["three".to_owned()],
        ..Default::default()
    };
    ErrorFacts::expect(
        app.tools_where(unknown).await,
        Code::NotFound,
        "SERVER_NOT_FOUND",
    );
}

#[tokio::test]
async fn behaviour_104_one_bad_tool_hides_no_other() {
    one_and_two(async |stage| {
        let fake = FakeMcp::modern()
            .tool(tool("good"))
            .tool(json!({"name": "null", "inputSchema": null}))
            .tool(json!({"name": "missing"}))
            .tool(json!({"name": 5, "inputSchema": {"type": "object"}}))
            .tool(json!({"inputSchema": {"type": "object"}}))
            .tool(json!("not even an object"))
            .tool(json!({"name": "vendor", "inputSchema": {"type": "object", "x-n": 18_446_744_073_709_551_615_u64}, "x-extra": {"b": 1, "a": 2}}))
            .start()
            .await;
        stage.add_http(&fake.url()).await;
        stage
            .everyone(async |app, _| {
                let tools = app.list_tools().await;
                let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
                assert_eq!(names, ["good", "vendor"]);
                for name in names {
                    app.call_tool("s", name, "{}").await.unwrap();
                }
                // A tool with unknown members is fine.
                let vendor = &tools[1];
                assert!(vendor.input_schema_json.contains("18446744073709551615"), "{vendor:?}");
                assert!(vendor.extra_json.contains("x-extra"), "{vendor:?}");
                let server = app.get("s").await.unwrap();
                let withheld = &server.facts().withheld_tools;
                assert_eq!(withheld.len(), 5, "{withheld:?}");
                assert!(withheld.iter().all(|tool| !tool.reason.is_empty()), "{withheld:?}");
            })
            .await;
    })
    .await;
}
