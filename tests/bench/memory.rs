//! What the daemon keeps in memory: by itself, and for each connected server.

use std::time::Duration;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::{anonymous, resident};

use crate::budget::Row;
use crate::paths::{self, Sidecar};
use crate::server::Manner;

const HTTP: usize = 500;
const STDIO: usize = 50;
const MANNER: Manner = Manner {
    modern: true,
    sse: false,
    tools: 1,
};

/// Memory when nothing has moved for a while.
async fn settled(sidecar: &Sidecar, of: fn(i32) -> u64) -> u64 {
    let pid = sidecar.daemon.pid();
    let mut before = of(pid);
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = of(pid);
        if now.abs_diff(before) < 64 * 1024 {
            return now;
        }
        before = now;
    }
}

/// Memory of the daemon per server, with so many of them.
async fn per_server(count: usize, spec: impl Fn(usize) -> ServerSpec) -> u64 {
    let sidecar = Sidecar::start().await;
    let app = sidecar.daemon.clients().await;
    // One of them brings along what all of them share.
    app.add("first", spec(0)).await.unwrap();
    app.wait_for("first", ConnectionState::Ready).await;
    let before = settled(&sidecar, anonymous).await;
    for number in 1..=count {
        let id = format!("s{number}");
        app.add(&id, spec(number)).await.unwrap();
        app.wait_for(&id, ConnectionState::Ready).await;
    }
    let after = settled(&sidecar, anonymous).await;
    after.saturating_sub(before) / count as u64
}

/// The budgets of memory.
pub(crate) async fn budgets() -> Vec<Row> {
    let idle = {
        let sidecar = Sidecar::start().await;
        settled(&sidecar, |pid| resident(pid).0).await
    };
    let server = paths::http_server(MANNER).await;
    let http = per_server(HTTP, |number| {
        http_spec("S", &format!("{}/{number}", server.url))
    });
    let http = http.await;
    let child = paths::stdio_server(MANNER);
    let stdio = per_server(STDIO, |number| child.spec(&format!("S{number}"))).await;
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    vec![
        Row::at_most("idle daemon, resident", " MiB", 15.0, kib(idle) / 1024.0),
        Row::at_most(
            &format!("each connected HTTP server (of {HTTP})"),
            " KiB",
            45.0,
            kib(http),
        ),
        Row::at_most(
            &format!("each stdio server (of {STDIO}), beside its own process"),
            " KiB",
            60.0,
            kib(stdio),
        ),
    ]
}
