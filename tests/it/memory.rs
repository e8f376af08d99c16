//! The memory of the daemon: how its allocator is set.

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::{children, environment};

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
