//! One call, by every way to the same server: how long it takes, how many there are per second, and what the daemon spends.

use std::time::Duration;

use crate::budget::Row;
use crate::load::{Figures, Path, Plan, in_turns};
use crate::paths::{self, Floor, Pipe, Sidecar, arguments};
use crate::server::Manner;
use serde_json::{Value, json};

const MODERN: Manner = Manner {
    modern: true,
    sse: false,
    tools: 10,
};

/// The ways over HTTP, and what they need.
struct Stage {
    floor: Floor,
    sidecar: Sidecar,
}

impl Stage {
    async fn set() -> Self {
        let (floor, sidecar) = tokio::join!(Floor::start(), Sidecar::start());
        Self { floor, sidecar }
    }
}

/// Whether the answers of the server are event streams, and which era it is of.
const MANNERS: &[(&str, Manner)] = &[
    ("http", MODERN),
    (
        "http, event streams",
        Manner {
            sse: true,
            ..MODERN
        },
    ),
    (
        "http, 2025-11-25",
        Manner {
            modern: false,
            ..MODERN
        },
    ),
    (
        "http, 2025-11-25, event streams",
        Manner {
            modern: false,
            sse: true,
            ..MODERN
        },
    ),
];

const SIZES: &[(&str, usize)] = &[("100 B", 100), ("10 KiB", 10 << 10), ("1 MiB", 1 << 20)];
const CONCURRENCY: &[usize] = &[1, 16, 64, 256];

/// Every transport, size and concurrency.
pub(crate) async fn measure(as_json: bool) {
    let stage = Stage::set().await;
    let mut cells = Vec::new();
    for (index, (name, manner)) in MANNERS.iter().enumerate() {
        let server = paths::http_server(*manner).await;
        let id = format!("http{index}");
        stage.sidecar.add_http(&id, &server.url).await;
        for (size, bytes) in SIZES {
            let arguments = arguments(*bytes);
            let ways = [
                paths::bare_http(&server.url, *manner, &arguments),
                stage.floor.unary(&arguments),
                paths::rmcp(&server.url, &arguments).await,
                stage.sidecar.unary(&id, &arguments),
                stage.sidecar.streamed(&id, &arguments),
            ];
            cell(&mut cells, (name, size), &ways, *bytes, as_json).await;
        }
    }
    let pipe = Pipe::start(MODERN);
    let child = paths::stdio_server(MODERN);
    stage.sidecar.add_stdio("child", &child).await;
    for (size, bytes) in SIZES {
        let arguments = arguments(*bytes);
        let ways = [
            pipe.path(MODERN, &arguments),
            stage.floor.unary(&arguments),
            stage.sidecar.unary("child", &arguments),
            stage.sidecar.streamed("child", &arguments),
        ];
        cell(&mut cells, ("stdio", size), &ways, *bytes, as_json).await;
    }
    if as_json {
        println!("{}", json!({ "calls": cells }));
    }
}

async fn cell(
    cells: &mut Vec<Value>,
    (transport, size): (&str, &str),
    ways: &[Path],
    bytes: usize,
    as_json: bool,
) {
    for &concurrency in CONCURRENCY {
        // So many large messages at once measure the memory of the machine.
        if bytes > 100_000 && concurrency > 16 {
            continue;
        }
        let plan = Plan {
            concurrency,
            rounds: 5,
            turn: Duration::from_millis(300),
        };
        let figures = in_turns(ways, plan).await;
        if !as_json {
            println!("\n{transport}, {size}, {concurrency} at a time");
            println!(
                "  {:16}  {:>10}  {:>10}  {:>9}  {:>6}  {:>9}  {:>14}",
                "", "p50", "p99", "calls/s", "spread", "CPU/call", "p50 to floors"
            );
        }
        let floors = figures[0].p50 + figures[1].p50;
        for (way, seen) in ways.iter().zip(&figures) {
            let ratio = seen.p50.as_secs_f64() / floors.as_secs_f64();
            let cpu = seen.cpu.map(|cpu| format!("{cpu:.1?}"));
            if as_json {
                cells.push(json!({
                    "transport": transport, "size": size, "concurrency": concurrency, "path": way.name,
                    "p50_us": micros(seen.p50), "p99_us": micros(seen.p99), "calls_per_s": seen.rate,
                    "spread": seen.spread, "cpu_us_per_call": seen.cpu.map(micros),
                    "p50_to_floors": ratio,
                }));
            } else {
                println!(
                    "  {:16}  {:>10.1?}  {:>10.1?}  {:>9.0}  {:>5.0}%  {:>9}  {ratio:>14.2}",
                    way.name,
                    seen.p50,
                    seen.p99,
                    seen.rate,
                    seen.spread * 100.0,
                    cpu.unwrap_or_default(),
                );
            }
        }
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// What the design says of agentgateway, on the machine on which the floors were first measured: calls per second with 64 at a
/// time, as a share of those of a bare POST, and of a bare pipe's over a stdio server.
const AGENTGATEWAY: f64 = 4_400.0 / 52_000.0;
const AGENTGATEWAY_STDIO: f64 = 9_300.0 / 470_000.0;

/// The budgets of a call.
pub(crate) async fn budgets() -> Vec<Row> {
    let stage = Stage::set().await;
    let server = paths::http_server(MODERN).await;
    let pipe = Pipe::start(MODERN);
    let child = paths::stdio_server(MODERN);
    tokio::join!(
        stage.sidecar.add_http("http", &server.url),
        stage.sidecar.add_stdio("child", &child)
    );
    let arguments = arguments(100);
    let ways = [
        paths::bare_http(&server.url, MODERN, &arguments),
        stage.floor.unary(&arguments),
        stage.sidecar.unary("http", &arguments),
        stage.sidecar.streamed("http", &arguments),
        pipe.path(MODERN, &arguments),
        stage.sidecar.unary("child", &arguments),
    ];
    let run = async |concurrency| {
        let plan = Plan {
            concurrency,
            rounds: 15,
            turn: Duration::from_millis(400),
        };
        in_turns(&ways, plan).await
    };
    let (one, many) = (run(1).await, run(64).await);
    let [http, grpc, unary, streamed, bare, stdio] = [0, 1, 2, 3, 4, 5];
    let p50 = |figures: &[Figures], way: usize| figures[way].p50.as_secs_f64();
    let to_floors = |way, floor| p50(&one, way) / (p50(&one, floor) + p50(&one, grpc));
    let both = 1.0 / (1.0 / many[http].rate + 1.0 / many[grpc].rate);
    vec![
        Row::at_most(
            "CallTool, HTTP: p50 to the sum of the floors",
            "x",
            1.4,
            to_floors(unary, http),
        ),
        Row::at_least(
            "CallTool, HTTP: calls/s at 64 to what the floors leave",
            "x",
            0.9,
            many[unary].rate / both,
        ),
        Row::at_most(
            "CallTools, HTTP: p50 to the sum of the floors",
            "x",
            1.1,
            to_floors(streamed, http),
        ),
        Row::at_least(
            "CallTools, HTTP: calls/s at 64 to a bare POST's",
            "x",
            0.75,
            many[streamed].rate / many[http].rate,
        ),
        Row::at_most(
            "CallTool, stdio: p50 to the sum of the floors",
            "x",
            1.1,
            to_floors(stdio, bare),
        ),
        Row::at_least(
            "CallTool, stdio: calls/s at 64 to agentgateway's (by its recorded share of a bare pipe)",
            "x",
            3.0,
            many[stdio].rate / (many[bare].rate * AGENTGATEWAY_STDIO),
        ),
        Row::at_least(
            "CallTool, HTTP: calls/s at 64 to agentgateway's (by its recorded share of a bare POST)",
            "x",
            5.0,
            many[unary].rate / (many[http].rate * AGENTGATEWAY),
        ),
    ]
}
