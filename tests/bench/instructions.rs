//! How many instructions the daemon executes for one unary call: a count that does not depend on what else the machine does.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use mcp_sidecar_tests::daemon::daemon_binary;
use mcp_sidecar_tests::prelude::*;

use crate::budget::Row;
use crate::paths::{self, Sidecar, arguments};
use crate::server::Manner;

/// Calls of the two runs: what differs between them is the calls.
const FEW: u64 = 200;
const MANY: u64 = 2200;

/// Where the guard keeps what was counted when it was last looked at.
const REFERENCE: &str = "tests/bench/instructions.txt";
/// How much more than that is a regression, as a share.
const TOLERANCE: f64 = 0.02;
/// The budget.
const BUDGET: f64 = 150_000.0;

/// Instructions of a whole run with so many calls, by callgrind.
async fn run(calls: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let (program, counted) = (dir.path().join("daemon"), dir.path().join("counted"));
    // The allocator's settings are there already, so that the daemon has no reason to execute itself once more.
    let script = format!(
        "#!/bin/sh\nexport MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072\nexec valgrind --tool=callgrind --callgrind-out-file='{}' '{}' \"$@\"\n",
        counted.display(),
        daemon_binary().await.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let manner = Manner {
        modern: true,
        sse: false,
        tools: 10,
    };
    let server = paths::http_server(manner).await;
    let mut sidecar = Sidecar::start_with(TestDaemon::builder().program(&program)).await;
    sidecar.add_http("s", &server.url).await;
    let way = sidecar.unary("s", &arguments(100));
    for _ in 0..calls {
        (way.call)().await;
    }
    sidecar.daemon.terminate().await;
    total(&counted)
}

fn total(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines();
    let mut totals = lines.filter_map(|line| {
        line.strip_prefix("totals: ")
            .or_else(|| line.strip_prefix("summary: "))
    });
    totals.next_back().unwrap().trim().parse().unwrap()
}

/// Instructions per call, if valgrind is there.
async fn per_call() -> Option<f64> {
    std::process::Command::new("valgrind")
        .arg("--version")
        .output()
        .ok()?;
    let (few, many) = (run(FEW).await, run(MANY).await);
    Some((many - few) as f64 / (MANY - FEW) as f64)
}

/// Compares with what was counted before; whether it is no regression. `update` writes down what is counted now instead.
pub(crate) async fn guard(update: bool) -> bool {
    let Some(now) = per_call().await else {
        eprintln!("valgrind is not installed: nothing was counted");
        return false;
    };
    let file = mcp_sidecar_tests::process::workspace_dir().join(REFERENCE);
    if update {
        std::fs::write(&file, format!("{now:.0}\n")).unwrap();
        println!("{now:.0} instructions per call, written to {REFERENCE}");
        return true;
    }
    let before: f64 = std::fs::read_to_string(&file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let limit = before * (1.0 + TOLERANCE);
    println!(
        "{now:.0} instructions per call; {before:.0} when it was last updated, at most {limit:.0}"
    );
    if now > limit {
        println!("if that is meant: cargo bench-sidecar instructions --update");
    }
    now <= limit
}

/// The budget of a call.
pub(crate) async fn budgets() -> Vec<Row> {
    let what = "instructions per unary call";
    vec![match per_call().await {
        Some(counted) => Row::at_most(what, "", BUDGET, counted),
        None => Row::unknown(what, "valgrind is not installed"),
    }]
}
