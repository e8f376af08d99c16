//! The catalog: names for models, filters, pages, bad entries.

use std::collections::{HashMap, HashSet};

use mcp_sidecar_tests::prelude::*;

#[tokio::test]
async fn behaviour_103_model_names_are_unique_short_and_stable() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let long = "l".repeat(128);
    let names = [
        "b__c",
        "_c",
        "c",
        "a.b/c",
        "a-b-c",
        "Äpfel",
        "Apfel",
        "",
        long.as_str(),
    ];
    let mut fakes = Vec::new();
    for id in ["a", "a-b", "a-b-c", "b"] {
        let mut fake = FakeMcp::modern();
        for name in names.iter().filter(|name| !name.is_empty()) {
            fake = fake.tool(tool(name));
        }
        let fake = fake.start().await;
        app.add(id, http_spec(id, &fake.url())).await.unwrap();
        fakes.push(fake);
    }
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
    let count = 4 * (names.len() - 1);
    for style in [v1::ModelNameStyle::Tool, v1::ModelNameStyle::Mcp] {
        let names = listed(&app, style).await;
        assert_eq!(names.len(), count, "names do not collide");
        let pairs: HashSet<_> = names.values().collect();
        assert_eq!(pairs.len(), count);
        for (model_name, (server, name)) in &names {
            let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            assert!(
                model_name.chars().all(valid) && (1..=64).contains(&model_name.len()),
                "{model_name}"
            );
            let call = v1::ToolCall {
                model_name: model_name.clone(),
                ..app.call("", "", "{}")
            };
            app.call_with(call).await.unwrap();
            let fake = &fakes[["a", "a-b", "a-b-c", "b"]
                .iter()
                .position(|id| id == server)
                .unwrap()];
            assert_eq!(fake.seen_of("tools/call").last().unwrap().tool(), name);
        }
    }
    let plain = listed(&app, v1::ModelNameStyle::Unspecified).await;
    assert!(plain.contains_key("tool_b_c"), "{plain:?}");
    daemon.restart().await;
    let app = daemon.clients().await;
    for id in ["b", "a-b-c", "a-b", "a"] {
        app.wait_for(id, ConnectionState::Ready).await;
    }
    assert_eq!(listed(&app, v1::ModelNameStyle::Tool).await, plain);
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
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    let tools = app.list_tools().await;
    let named = |name: &str| tools.iter().find(|tool| tool.name == name);
    assert!(named("good").is_some(), "{tools:#?}");
    let vendor = named("vendor").expect("a tool with unknown members is fine");
    assert!(
        vendor.input_schema_json.contains("18446744073709551615"),
        "{vendor:?}"
    );
    assert!(vendor.extra_json.contains("x-extra"), "{vendor:?}");
    let server = app.get("s").await.unwrap();
    let withheld = &server.facts().withheld_tools;
    assert!(withheld.len() >= 3, "{withheld:?}");
    assert!(
        withheld.iter().all(|tool| !tool.reason.is_empty()),
        "{withheld:?}"
    );
    assert_eq!(tools.len() + withheld.len(), 7);
}
