//! The memory of the daemon: how its allocator is set, and what servers can make it hold with questions.

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::{children, environment};
use mcp_sidecar_tests::v1::ListElicitationsRequest;

use crate::questions::{add, complete, form, start_call};

/// What a process was told about the allocator of the C library.
fn told(pid: i32) -> Vec<String> {
    let mut told = environment(pid);
    told.retain(|variable| variable.starts_with("MALLOC_"));
    told.sort();
    told
}

fn of_process(pid: i32, what: &str) -> String {
    let text = std::fs::read(format!("/proc/{pid}/{what}")).expect("a running process");
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn a_daemon_from_a_shell_gives_memory_back_and_its_children_know_nothing_of_it() {
    let daemon = TestDaemon::start().await;
    let pid = daemon.pid();
    assert_eq!(
        told(pid),
        [
            "MALLOC_ARENA_MAX=2",
            "MALLOC_MMAP_THRESHOLD_=131072",
            "MALLOC_TRIM_THRESHOLD_=131072"
        ]
    );
    // Whoever started it finds it again: by its id, its name, and its arguments.
    assert_eq!(of_process(pid, "comm").trim(), "mcp-sidecard");
    let line = of_process(pid, "cmdline");
    let words: Vec<_> = line.split_terminator('\0').collect();
    assert_eq!(words.len(), 3, "{words:?}");
    assert!(words[0].ends_with("/mcp-sidecard") && words[1] == "--config");

    let scripts = tempfile::tempdir().unwrap();
    let script = Script {
        modern: false,
        faults: Vec::new(),
    };
    let app = daemon.clients().await;
    app.add_ready(script.spec("child", scripts.path()).await)
        .await;
    let born = children(pid, false);
    assert_eq!(born.len(), 2, "the server and the guard");
    for child in born {
        let known = environment(child);
        assert_eq!(told(child), [""; 0], "{known:?}");
        assert!(!known.iter().any(|one| one.contains("ALLOCATOR")));
    }
}

#[tokio::test]
async fn what_the_operator_says_about_the_allocator_is_left_alone() {
    let builder = TestDaemon::builder().env("MALLOC_ARENA_MAX", "7");
    let daemon = builder.start().await;
    assert_eq!(told(daemon.pid()), ["MALLOC_ARENA_MAX=7"]);
    assert!(!daemon.log().contains("allocator"));

    let tunables = "glibc.malloc.arena_max=7";
    let builder = TestDaemon::builder().env("GLIBC_TUNABLES", tunables);
    let daemon = builder.start().await;
    assert_eq!(told(daemon.pid()), [""; 0]);
}

/// A server whose `ask` asks a question of that many bytes of text.
async fn wordy(bytes: usize) -> FakeMcp {
    let fake = FakeMcp::modern().tool(tool("ask")).start().await;
    fake.reply(
        "tools/call",
        move |seen| match seen.params()["inputResponses"]["who"].clone() {
            Value::Null => Reply::Json(json!({
                "resultType": "input_required", "requestState": "s",
                "inputRequests": {
                    "who": {"method": "elicitation/create", "params": form(&"x".repeat(bytes))},
                },
            })),
            answer => Reply::Json(complete(&answer)),
        },
    );
    fake
}

/// The pages of all questions; a page may have a thousand.
async fn pages(app: &Clients) -> Vec<Vec<v1::Elicitation>> {
    let (mut pages, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListElicitationsRequest {
            page_size: 1_000,
            page_token,
            ..ListElicitationsRequest::default()
        };
        let page = app.elicitations().list_elicitations(request).await;
        let page = page.expect("ListElicitations").into_inner();
        pages.push(page.elicitations);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return pages;
        }
    }
}

#[tokio::test]
async fn a_question_that_is_too_large_never_gets_on_the_queue() {
    let daemon = TestDaemon::builder()
        .set("questions.max_bytes", 8_192)
        .start()
        .await;
    let app = daemon.clients().await;
    let fake = wordy(8_192).await;
    add(&app, &fake).await;
    let refused = app.call_tool("s", "ask", "{}").await;
    let facts = ErrorFacts::expect(refused, Code::ResourceExhausted, "MESSAGE_TOO_LARGE");
    assert!(facts.message.contains("questions.max_bytes"), "{facts:?}");
    assert_eq!(pages(&app).await, [[]]);
}

#[tokio::test]
async fn questions_of_all_servers_share_a_bound_in_bytes() {
    let daemon = TestDaemon::builder()
        .set("questions.max_bytes", 8_192)
        .set("questions.max_sampling_bytes", 4096)
        .set("questions.max_pending_bytes", 10_000)
        .start()
        .await;
    let app = daemon.clients().await;
    let fake = wordy(2_500).await;
    add(&app, &fake).await;
    let mut updates = app.updates("").await;
    let first = start_call(&app, "s");
    let question = updates.pending().await;
    let second = app.call_tool("s", "ask", "{}").await;
    let facts = ErrorFacts::expect(second, Code::ResourceExhausted, "TOO_MANY");
    assert!(
        facts.message.contains("questions.max_pending_bytes"),
        "{facts:?}"
    );

    // What has ended counts no more.
    app.accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
    within("the end of the call", first).await.unwrap().unwrap();
    let third = start_call(&app, "s");
    let question = updates.pending().await;
    app.accept(&question.id, r#"{"name":"Bob"}"#).await.unwrap();
    within("the end of the call", third).await.unwrap().unwrap();
}

#[tokio::test]
async fn pages_of_questions_end_where_a_message_would_grow_too_large() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = wordy(100_000).await;
    add(&app, &fake).await;
    let mut updates = app.updates("").await;
    let mut calls = Vec::new();
    let mut asked = Vec::new();
    for _ in 0..13 {
        calls.push(start_call(&app, "s"));
        asked.push(updates.pending().await.id);
    }
    let pages = pages(&app).await;
    let sizes: Vec<_> = pages.iter().map(Vec::len).collect();
    // Text and request are 200 kB of each.
    assert_eq!(sizes, [6, 6, 1]);
    let listed: Vec<_> = pages.into_iter().flatten().map(|one| one.id).collect();
    assert_eq!(listed, asked);

    // A reader from the beginning gets all of them too.
    let mut fresh = app.updates("").await;
    for id in &asked {
        assert_eq!(fresh.pending().await.id, *id);
    }
    for call in calls {
        call.abort();
    }
}
