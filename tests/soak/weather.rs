//! What happens to the servers: crashes, stalls, floods, changes, lost sessions, slow and broken answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::children;
use rustix::process::{Pid, Signal, kill_process};
use tokio_util::sync::CancellationToken;

use crate::World;
use crate::dice::Dice;
use crate::servers::{RESOURCE, Server};

#[derive(Clone, Copy, Debug)]
enum Event {
    Crash,
    Kill,
    Stall,
    Flood,
    Change,
    LoseSession,
    Slow,
    Break,
}

const EVENTS: &[Event] = &[
    Event::Crash,
    Event::Kill,
    Event::Stall,
    Event::Flood,
    Event::Change,
    Event::Change,
    Event::LoseSession,
    Event::Slow,
    Event::Break,
];

/// Spoils one server again and again until `stop`, and leaves it in good health.
pub(crate) async fn weather(world: Arc<World>, number: usize, stop: CancellationToken) {
    let mut dice = world.dice.of("weather", number);
    loop {
        let calm = dice.millis(2_000..12_000);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(calm) => {}
        }
        let event = *dice.pick(EVENTS);
        happen(&world, number, event, &mut dice, &stop).await;
    }
}

async fn happen(
    world: &World,
    number: usize,
    event: Event,
    dice: &mut Dice,
    stop: &CancellationToken,
) {
    let server = &world.servers[number];
    // Programs only ever die; what else they do is in their scripts.
    let Some(fake) = &server.fake else {
        world.ledger.event("Kill");
        return kill(world, server);
    };
    let mood = &server.mood;
    let pause = async |length: Duration| {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(length) => {}
        }
    };
    world.ledger.event(&format!("{event:?}"));
    match event {
        Event::Crash => {
            fake.crash().await;
            pause(dice.millis(100..5_000)).await;
            fake.revive().await;
        }
        Event::Kill => kill(world, server),
        Event::Stall => {
            mood.stalled.send_replace(true);
            pause(dice.millis(500..7_000)).await;
            mood.stalled.send_replace(false);
        }
        Event::Slow => {
            mood.delay.store(dice.within(50..800), Ordering::Relaxed);
            pause(dice.millis(1_000..5_000)).await;
            mood.delay.store(0, Ordering::Relaxed);
        }
        Event::Break => {
            mood.broken.store(true, Ordering::Relaxed);
            pause(dice.millis(200..3_000)).await;
            mood.broken.store(false, Ordering::Relaxed);
        }
        Event::Flood => flood(fake, dice).await,
        Event::Change => {
            let count = dice.within(0..30);
            let more = (0..count).map(|_| tool(&format!("tool-{}", mood.fresh())));
            fake.set_list("tools", [tool("work")].into_iter().chain(more).collect());
            fake.shout(notification(
                "notifications/tools/list_changed",
                &Value::Null,
            ));
            fake.shout(updated());
        }
        Event::LoseSession => {
            fake.end_sessions();
            fake.end_streams();
        }
    }
}

async fn flood(fake: &FakeMcp, dice: &mut Dice) {
    let text = "flood ".repeat(100);
    for _ in 0..dice.within(50..500) {
        // Whoever passes this on keeps only the last few.
        tokio::task::yield_now().await;
        let log = json!({"level": "warning", "data": text});
        fake.shout(notification("notifications/message", &log));
        fake.shout(updated());
        fake.shout(notification(
            "notifications/resources/list_changed",
            &Value::Null,
        ));
    }
}

fn updated() -> Value {
    notification("notifications/resources/updated", &json!({"uri": RESOURCE}))
}

fn notification(method: &str, params: &Value) -> Value {
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    if !params.is_null() {
        message["params"] = params.clone();
    }
    message
}

/// Kills the server's process, if it is one.
fn kill(world: &World, server: &Server) {
    let Some(command) = &server.command else {
        return;
    };
    for pid in children(world.daemon_pid, false) {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(command.as_str())
            && let Some(pid) = Pid::from_raw(pid)
        {
            // It may have ended by itself.
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
}
