//! `cargo soak [--seed N] [--duration 10m]`: 50 servers of all kinds that crash, stall,
//! flood and change, under 20 apps that call, cancel and subscribe. At the end nothing may be left over, and every call
//! must have been answered exactly once.
//!
//! The same seed makes the same choices; what meets what is up to the clock. A failure ends the program with 1.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test for people: it prints, reads the clock and fails by panicking"
)]

mod apps;
mod dice;
mod ledger;
mod measure;
mod others;
mod servers;
mod verdict;
mod weather;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::stream_updates_response::Event;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::apps::Manner;
use crate::dice::Dice;
use crate::ledger::Ledger;
use crate::measure::Sample;
use crate::others::Seen;
use crate::servers::Server;
use crate::verdict::{Evidence, Verdict};

const USAGE: &str = "usage: cargo soak [--seed N] [--duration 10m|30s]";
/// How many apps there are.
const APPS: usize = 20;
/// Readers of updates; the first never leaves.
const READERS: usize = 4;
/// How long running calls, and whatever else the apps do, may take to end.
const LAST_CALLS: Duration = Duration::from_mins(2);
/// How long the daemon may take to come to rest: idle connections are kept for half a minute.
const REST: Duration = Duration::from_secs(75);

/// What everybody sees.
pub(crate) struct World {
    /// The source of all choices.
    pub(crate) dice: Dice,
    /// The calls.
    pub(crate) ledger: Ledger,
    /// The servers.
    pub(crate) servers: Vec<Server>,
    /// Where the daemon listens.
    pub(crate) socket: PathBuf,
    /// The daemon's process.
    pub(crate) daemon_pid: i32,
    /// The last revision of every reader of updates.
    pub(crate) read: [AtomicU64; READERS],
}

struct Options {
    seed: u64,
    duration: Duration,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut options = Self {
            seed: now.map_or(0, |now| u64::from(now.subsec_nanos()) ^ now.as_secs()),
            duration: Duration::from_mins(10),
        };
        while let Some(arg) = args.next() {
            let value = args.next()?;
            match arg.as_str() {
                "--seed" => options.seed = value.parse().ok()?,
                "--duration" => options.duration = duration(&value)?,
                _ => return None,
            }
        }
        Some(options)
    }
}

fn duration(text: &str) -> Option<Duration> {
    let (number, seconds) = if let Some(minutes) = text.strip_suffix('m') {
        (minutes, 60)
    } else {
        (text.strip_suffix('s')?, 1)
    };
    let number: u64 = number.parse().ok().filter(|number| *number > 0)?;
    Some(Duration::from_secs(number * seconds))
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(options) = Options::parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    println!("seed {}, {:?} of load", options.seed, options.duration);
    let verdict = run(&options).await;
    if verdict.print() {
        ExitCode::SUCCESS
    } else {
        println!("the seed was {}", options.seed);
        ExitCode::FAILURE
    }
}

async fn run(options: &Options) -> Verdict {
    let dir = tempfile::tempdir().expect("make a directory");
    let ledger = Ledger::default();
    let servers = servers::start(&ledger, dir.path()).await;
    let mut daemon = TestDaemon::builder()
        .set("log.filter", "info")
        .set("timeouts.close", "1s")
        .set("questions.expiry", "4s")
        .set("reconnect.max_delay", "5s")
        .set("reconnect.liveness_interval", "5s")
        .set("reconnect.list_refresh_interval", "10s")
        .set("updates.bookmark_interval", "1s")
        .start()
        .await;
    describe(&servers);
    let world = Arc::new(World {
        dice: Dice::new(options.seed),
        ledger: ledger.clone(),
        servers,
        socket: daemon.socket().to_owned(),
        daemon_pid: daemon.pid(),
        read: Default::default(),
    });
    let before = baseline(&world, &daemon).await;
    let begun = Instant::now();

    let (watching, interval) = (CancellationToken::new(), options.duration / 120);
    let interval = interval.clamp(Duration::from_secs(1), Duration::from_secs(5));
    let shown = options.duration.as_secs() / interval.as_secs() / 24;
    let shown = usize::try_from(shown.max(1)).unwrap();
    let (samples, readers) = tokio::join!(
        measure::watch(&daemon, &ledger, interval, shown, watching.clone()),
        async {
            let readers = load(&world, options.duration).await;
            watching.cancel();
            readers
        }
    );
    let load_ended = begun.elapsed();
    let idle = idle(&world, &daemon, begun).await;
    drop_servers(&world).await;
    let (seen, head) = end_of_updates(&world, readers).await;
    let after = rest(&daemon, &before, begun).await;
    after.row(&ledger);
    for server in &world.servers {
        if let Some(record) = &server.record {
            read_record(&ledger, record);
        }
    }
    let left = mcp_sidecar_tests::process::with_variable(&daemon.data_dir().display().to_string());
    let left = left.into_iter().filter(|pid| *pid != daemon.pid()).count();
    let status = daemon.terminate().await;
    println!("\nload of {load_ended:?}, whole run {:?}", begun.elapsed());
    verdict::judge(&Evidence {
        ledger: &ledger,
        duration: options.duration,
        samples: &samples,
        before: &before,
        after: &after,
        idle: &idle,
        listening: listening(&world),
        marked_processes: left,
        seen: &seen,
        head,
        clean_end: status.success(),
        log: &daemon.log(),
    })
}

fn describe(servers: &[Server]) {
    let mut kinds: BTreeMap<_, BTreeMap<_, usize>> = BTreeMap::new();
    for server in servers {
        *kinds
            .entry(server.way)
            .or_default()
            .entry(server.version)
            .or_default() += 1;
    }
    for (way, versions) in kinds {
        println!("  {way:?}: {versions:?}");
    }
}

/// The daemon before the load, after it has started a process and dialled a socket once: what it opens then for good is
/// no leak.
async fn baseline(world: &World, daemon: &TestDaemon) -> Sample {
    let app = daemon.clients().await;
    for way in [servers::Way::Child, servers::Way::SocketLines] {
        let server = world.servers.iter().find(|server| server.way == way);
        let server = server.expect("a server of every kind");
        let added = app.add(&server.id, server.spec.clone()).await;
        added.expect("AddServer");
        app.wait_for(&server.id, ConnectionState::Ready).await;
        app.remove(&server.id).await.expect("RemoveServer");
    }
    drop(app);
    let since = Instant::now();
    let sample = eventually("the daemon at rest", PATIENCE, async || {
        let sample = Sample::take(daemon, since).await;
        let rest = ["rpcs", "links", "calls", "waiting"].map(|name| sample.count(name));
        // One connection is that of the app, on its way out.
        (rest == [0; 4] && sample.children.0 <= 1).then_some(sample)
    });
    sample.await
}

type Readers = (JoinSet<(usize, Seen)>, CancellationToken);

/// The whole load, from the first server to the last call; readers go on.
async fn load(world: &Arc<World>, length: Duration) -> Readers {
    let (storm, apps) = (CancellationToken::new(), CancellationToken::new());
    let reading = CancellationToken::new();
    let mut readers = JoinSet::new();
    for number in 0..READERS {
        let (world, reading) = (Arc::clone(world), reading.clone());
        readers.spawn(async move {
            let seen = others::read_updates(world, number, number > 0, reading).await;
            (number, seen)
        });
    }
    let app = Clients::connect(&world.socket).await;
    for server in &world.servers {
        others::add(&app, &server.id, server.spec.clone())
            .await
            .expect("AddServer");
    }
    drop(app);
    let (mut busy, mut spoiling) = (JoinSet::new(), JoinSet::new());
    for number in 0..world.servers.len() {
        spoiling.spawn(weather::weather(Arc::clone(world), number, storm.clone()));
    }
    for number in 0..APPS {
        let manner = match number {
            12..16 => Manner::Reconnecting,
            16..18 => Manner::Slow,
            _ => Manner::Steady,
        };
        busy.spawn(apps::live(Arc::clone(world), number, manner, apps.clone()));
    }
    for number in 0..4 {
        busy.spawn(others::follow(Arc::clone(world), number, apps.clone()));
    }
    for number in 0..2 {
        busy.spawn(others::manage(Arc::clone(world), number, apps.clone()));
        busy.spawn(others::answer(Arc::clone(world), number, apps.clone()));
    }
    tokio::time::sleep(length).await;
    apps.cancel();
    let joined = tokio::time::timeout(LAST_CALLS, join(world, &mut busy)).await;
    if joined.is_err() {
        let count = busy.len();
        world
            .ledger
            .fail(format!("{count} apps did not end within {LAST_CALLS:?}"));
        busy.shutdown().await;
    }
    storm.cancel();
    join(world, &mut spoiling).await;
    (readers, reading)
}

async fn join(world: &World, tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            world.ledger.fail(format!("a task of the soak: {error}"));
        }
    }
}

/// Requests that may wait while nobody calls: every modern server on a shared channel is listened to.
fn listening(world: &World) -> u64 {
    let modern = world.servers.iter().filter(|server| {
        let shared = matches!(
            server.way,
            servers::Way::Child | servers::Way::Program | servers::Way::SocketLines
        );
        shared && server.version == mcp_sidecar_tests::fake::MODERN
    });
    modern.count() as u64
}

/// Waits until nothing of the calls is left while the servers are still there; a leftover would end with its link.
async fn idle(world: &World, daemon: &TestDaemon, begun: Instant) -> Sample {
    let end = Instant::now() + PATIENCE;
    loop {
        let sample = Sample::take(daemon, begun).await;
        if verdict::is_idle(&sample, listening(world)) || Instant::now() > end {
            return sample;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn drop_servers(world: &World) {
    let app = Clients::connect(&world.socket).await;
    let servers = app.list().await;
    println!("removing {} servers", servers.len());
    let removals = servers.iter().map(|server| app.remove(&server.id));
    for outcome in futures_util::future::join_all(removals).await {
        if let Err(status) = outcome {
            world
                .ledger
                .fail(format!("RemoveServer at the end: {status:?}"));
        }
    }
}

/// Lets the readers read to the head of the log, and returns what they saw and the head.
async fn end_of_updates(world: &World, (mut readers, reading): Readers) -> (Vec<Seen>, u64) {
    let app = Clients::connect(&world.socket).await;
    let mut updates = app.updates("").await;
    let head = updates
        .find("the end of the snapshot", |response| {
            matches!(response.event, Some(Event::SnapshotEnd(_))).then_some(response.revision)
        })
        .await;
    let caught_up = tokio::time::timeout(PATIENCE, async {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        while world
            .read
            .iter()
            .any(|read| read.load(Ordering::Relaxed) < head)
        {
            ticks.tick().await;
        }
    });
    if caught_up.await.is_err() {
        let read = &world.read;
        world.ledger.fail(format!(
            "readers stopped at {read:?} before the head {head}"
        ));
    }
    reading.cancel();
    let mut all = BTreeMap::new();
    while let Some(ended) = readers.join_next().await {
        match ended {
            Ok((number, seen)) => drop(all.insert(number, seen)),
            Err(error) => world.ledger.fail(format!("a reader: {error}")),
        }
    }
    (all.into_values().collect(), head)
}

/// Waits until the daemon is where it was before, and returns its state then, or when the patience is over.
async fn rest(daemon: &TestDaemon, before: &Sample, begun: Instant) -> Sample {
    let end = Instant::now() + REST;
    loop {
        let sample = Sample::take(daemon, begun).await;
        if verdict::at_rest(before, &sample) || Instant::now() > end {
            return sample;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What a program was asked to carry out.
fn read_record(ledger: &Ledger, record: &std::path::Path) {
    let text = std::fs::read(record).unwrap_or_default();
    for line in String::from_utf8_lossy(&text).lines() {
        let message = mcp_sidecar_tests::json::lenient(line);
        if message["method"] == "tools/call"
            && let Some(id) = message["params"]["arguments"]["id"].as_u64()
        {
            ledger.executed(id);
        }
    }
}
