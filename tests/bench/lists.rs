//! Listing many tools, beside the server's own list.

use std::time::{Duration, Instant};

use mcp_sidecar_client::Client;
use mcp_sidecar_tests::prelude::*;
use rmcp::ServiceExt as _;
use rmcp::transport::StreamableHttpClientTransport;
use serde_json::json;

use crate::budget::Row;
use crate::load::percentile;
use crate::paths::{self, Sidecar};
use crate::server::Manner;

const SIZES: &[usize] = &[10, 1000, 10_000];
const ROUNDS: usize = 15;

/// From the daemon, and from the server by the official Rust SDK's client.
struct Times {
    tools: usize,
    sidecar: Duration,
    rmcp: Duration,
}

async fn listed(client: &Client, tools: usize) -> Duration {
    let began = Instant::now();
    let all = client.list_tools().await.unwrap();
    assert_eq!(all.items.len(), tools);
    began.elapsed()
}

async fn times(tools: usize) -> Times {
    let manner = Manner {
        modern: true,
        sse: false,
        tools,
    };
    let server = paths::http_server(manner).await;
    let sidecar = Sidecar::start().await;
    sidecar.add_http("s", &server.url).await;
    let transport = StreamableHttpClientTransport::from_uri(server.url.as_str());
    let service = ().serve(transport).await.unwrap();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(listed(&sidecar.client, tools).await);
        let began = Instant::now();
        let all = service.list_all_tools().await.unwrap();
        assert_eq!(all.len(), tools);
        theirs.push(began.elapsed());
    }
    ours.sort();
    theirs.sort();
    Times {
        tools,
        sidecar: percentile(&ours, 50),
        rmcp: percentile(&theirs, 50),
    }
}

/// Many servers with few tools each.
async fn over_servers(servers: usize) -> Duration {
    let manner = Manner {
        modern: true,
        sse: false,
        tools: 10,
    };
    let server = paths::http_server(manner).await;
    let sidecar = Sidecar::start().await;
    let app = sidecar.daemon.clients().await;
    for number in 0..servers {
        let spec = http_spec("S", &format!("{}/{number}", server.url));
        let id = format!("s{number}");
        app.add(&id, spec).await.unwrap();
        app.wait_for(&id, ConnectionState::Ready).await;
    }
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(listed(&sidecar.client, servers * 10).await);
    }
    times.sort();
    percentile(&times, 50)
}

/// Every size.
pub(crate) async fn measure(as_json: bool) {
    let mut all = Vec::new();
    for &tools in SIZES {
        all.push(times(tools).await);
    }
    let spread = over_servers(1000).await;
    if as_json {
        let lists: Vec<_> = all
            .iter()
            .map(|times| {
                json!({
                    "tools": times.tools, "sidecar_us": times.sidecar.as_micros(),
                    "rmcp_us": times.rmcp.as_micros(),
                })
            })
            .collect();
        let over = spread.as_micros();
        println!(
            "{}",
            json!({ "lists": lists, "ten_of_1000_servers_us": over })
        );
        return;
    }
    println!(
        "{:>8}  {:>12}  {:>14}",
        "tools", "the daemon", "rmcp directly"
    );
    for times in &all {
        println!(
            "{:>8}  {:>12.2?}  {:>14.2?}",
            times.tools, times.sidecar, times.rmcp
        );
    }
    println!("10 tools of each of 1000 servers: {spread:.2?}");
}

/// The budget of a long list.
pub(crate) async fn budgets() -> Vec<Row> {
    let times = times(10_000).await;
    vec![Row::at_most(
        &format!(
            "ListTools over 10,000 tools (rmcp directly: {:.1?})",
            times.rmcp
        ),
        " ms",
        20.0,
        times.sidecar.as_secs_f64() * 1e3,
    )]
}
