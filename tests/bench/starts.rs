//! Starting with many registered servers.

use std::time::{Duration, Instant};

use mcp_sidecar_tests::prelude::*;

use crate::budget::Row;
use crate::paths::{self, Sidecar};
use crate::server::Manner;

const SERVERS: usize = 1000;
const ROUNDS: usize = 5;

/// The budgets of a start.
pub(crate) async fn budgets() -> Vec<Row> {
    let server = paths::http_server(Manner {
        modern: true,
        sse: false,
        tools: 10,
    })
    .await;
    let mut sidecar = Sidecar::start().await;
    let app = sidecar.daemon.clients().await;
    for number in 0..SERVERS {
        let spec = http_spec("S", &format!("{}/{number}", server.url));
        app.add(&format!("s{number}"), spec).await.unwrap();
    }
    let (mut ready, mut connected) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        sidecar.daemon.terminate().await;
        let began = Instant::now();
        sidecar.daemon.restart().await;
        ready.push(began.elapsed());
        let app = sidecar.daemon.clients().await;
        eventually("all servers are connected", PATIENCE, async || {
            let all = app.list().await;
            let up = all
                .iter()
                .filter(|server| server.state() == ConnectionState::Ready);
            (up.count() == SERVERS).then_some(())
        })
        .await;
        connected.push(began.elapsed());
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_secs_f64()
    };
    vec![
        Row::at_most(
            &format!("{SERVERS} registered servers: gRPC ready after the start"),
            " ms",
            300.0,
            median(&mut ready) * 1e3,
        ),
        Row::at_most(
            &format!("{SERVERS} registered servers: all connected"),
            " s",
            5.0,
            median(&mut connected),
        ),
    ]
}
