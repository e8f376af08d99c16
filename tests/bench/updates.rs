//! Changes on their way to many subscribers, some of which do not read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::resident;
use mcp_sidecar_tests::v1::stream_updates_response::Event;
use serde_json::json;
use tokio::sync::Barrier;

use crate::budget::Row;
use crate::load::percentile;
use crate::paths::Sidecar;

const CHANGES: usize = 300;
const PER_SECOND: u32 = 100;
/// Streams of one connection.
const SHARE: usize = 100;

/// One change: who has not seen it yet, and when the last one did.
struct Change {
    left: AtomicUsize,
    seen: OnceLock<Instant>,
}

struct Fanned {
    readers: usize,
    idle: usize,
    /// From the change to the last reader, in order.
    delays: Vec<Duration>,
    /// Resident memory of the daemon when all had subscribed, and after the changes.
    memory: (u64, u64),
}

fn number(response: &v1::StreamUpdatesResponse) -> Option<usize> {
    let Some(Event::Upsert(upsert)) = &response.event else {
        return None;
    };
    let Some(v1::upsert::Resource::Server(server)) = &upsert.resource else {
        return None;
    };
    let name = &server.spec.as_ref()?.name;
    name.strip_prefix("change ")?.parse().ok()
}

fn request() -> v1::StreamUpdatesRequest {
    v1::StreamUpdatesRequest {
        kinds: vec![v1::UpdateKind::Server.into()],
        ..Default::default()
    }
}

async fn fan_out(readers: usize, idle: usize) -> Fanned {
    let sidecar = Sidecar::start().await;
    let app = sidecar.daemon.clients().await;
    // Nobody listens there; what changes is what is registered.
    let spec = |name: String| http_spec(&name, "http://127.0.0.1:1/mcp");
    app.add("s", spec("S".to_owned())).await.unwrap();
    app.disconnect_server("s").await.unwrap();
    let changes: Arc<Vec<Change>> = Arc::new(
        (0..CHANGES)
            .map(|_| Change {
                left: AtomicUsize::new(readers),
                seen: OnceLock::new(),
            })
            .collect(),
    );
    let ready = Arc::new(Barrier::new(readers + 1));
    let mut connection = sidecar.daemon.clients().await;
    let mut tasks = Vec::new();
    let mut silent = Vec::new();
    for subscriber in 0..readers + idle {
        if subscriber % SHARE == 0 {
            connection = sidecar.daemon.clients().await;
        }
        let stream = connection.update_service().stream_updates(request()).await;
        let mut stream = stream.unwrap().into_inner();
        if subscriber >= readers {
            silent.push((stream, connection.clone()));
            continue;
        }
        let (changes, ready, held) = (Arc::clone(&changes), Arc::clone(&ready), connection.clone());
        tasks.push(tokio::spawn(async move {
            let _held = held;
            while !matches!(
                stream.message().await.unwrap().unwrap().event,
                Some(Event::SnapshotEnd(_))
            ) {}
            ready.wait().await;
            loop {
                let update = stream.message().await.unwrap().unwrap();
                let Some(number) = number(&update) else {
                    continue;
                };
                let change = &changes[number];
                if change.left.fetch_sub(1, Ordering::Relaxed) == 1 {
                    change.seen.set(Instant::now()).unwrap();
                }
                if number + 1 == CHANGES {
                    return;
                }
            }
        }));
    }
    ready.wait().await;
    let before = resident(sidecar.daemon.pid()).0;
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / PER_SECOND);
    let mut made = Vec::new();
    for number in 0..CHANGES {
        ticks.tick().await;
        made.push(Instant::now());
        let change = spec(format!("change {number}"));
        app.update("s", change, &["name"]).await.unwrap();
    }
    for task in tasks {
        within("the last change", task).await.unwrap();
    }
    let after = resident(sidecar.daemon.pid()).0;
    drop(silent);
    let mut delays: Vec<_> = made
        .iter()
        .zip(changes.iter())
        .map(|(made, change)| *change.seen.get().unwrap() - *made)
        .collect();
    delays.sort();
    Fanned {
        readers,
        idle,
        delays,
        memory: (before, after),
    }
}

/// One, a hundred and a thousand subscribers; a tenth more that do not read.
pub(crate) async fn measure(as_json: bool) {
    let mut all = Vec::new();
    for (readers, idle) in [(1, 0), (100, 0), (1000, 0), (900, 100)] {
        all.push(fan_out(readers, idle).await);
    }
    if as_json {
        let all: Vec<_> = all
            .iter()
            .map(|fanned| {
                json!({
                    "readers": fanned.readers, "not_reading": fanned.idle,
                    "p50_us": percentile(&fanned.delays, 50).as_micros(),
                    "p99_us": percentile(&fanned.delays, 99).as_micros(),
                    "rss_before_kib": fanned.memory.0 >> 10, "rss_after_kib": fanned.memory.1 >> 10,
                })
            })
            .collect();
        println!("{}", json!({ "updates": all }));
        return;
    }
    println!("readers  not reading  last one has it, p50  p99       rss before   after");
    for fanned in &all {
        println!(
            "{:>7}  {:>11}  {:>20.2?}  {:>8.2?}  {:>6} KiB  {:>6} KiB",
            fanned.readers,
            fanned.idle,
            percentile(&fanned.delays, 50),
            percentile(&fanned.delays, 99),
            fanned.memory.0 >> 10,
            fanned.memory.1 >> 10,
        );
    }
}

/// The budgets of subscribers.
pub(crate) async fn budgets() -> Vec<Row> {
    let fanned = fan_out(1000, 0).await;
    let idle = fan_out(10, 1000).await;
    let grown = idle.memory.1.saturating_sub(idle.memory.0) as f64 / 1024.0;
    vec![
        Row::at_most(
            &format!("1,000 subscribers, {PER_SECOND} changes/s: the last one has it, p99"),
            " ms",
            50.0,
            percentile(&fanned.delays, 99).as_secs_f64() * 1e3,
        ),
        Row::at_most(
            &format!(
                "1,000 subscribers that do not read: memory grown after {CHANGES} changes, each"
            ),
            " KiB",
            // What HTTP/2 buffers for each until its window is full.
            64.0,
            grown / 1000.0,
        ),
    ]
}
