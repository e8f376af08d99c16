//! The apps that do not call: they follow, answer, add and remove.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::updates::upsert;
use mcp_sidecar_tests::v1::ElicitationAction;
use mcp_sidecar_tests::v1::stream_updates_response::Event;
use mcp_sidecar_tests::v1::upsert::Resource;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::World;
use crate::dice::Dice;
use crate::servers::RESOURCE;

/// What a reader of updates has seen.
#[derive(Default)]
pub(crate) struct Seen {
    /// The revision at which its snapshot ended.
    pub(crate) since: u64,
    /// Revisions of the changes, in order.
    pub(crate) revisions: Vec<u64>,
    /// What exists: whether it is a server, and its id.
    pub(crate) exists: BTreeSet<(bool, String)>,
}

/// Reads updates until `stop` has been cancelled and `head` was read; a reader that resumes leaves again and again, or
/// stops to read for a while.
pub(crate) async fn read_updates(
    world: Arc<World>,
    number: usize,
    resumes: bool,
    stop: CancellationToken,
) -> Seen {
    let mut dice = world.dice.of("reader", number);
    let mut seen = Seen::default();
    let mut token = String::new();
    loop {
        let app = Clients::connect(&world.socket).await;
        let mut updates = match app.try_updates(&token).await {
            Ok(updates) => updates,
            Err(status) => {
                world
                    .ledger
                    .fail(format!("reader {number} cannot resume: {status:?}"));
                return seen;
            }
        };
        let leave = tokio::time::sleep(if resumes {
            dice.millis(500..10_000)
        } else {
            Duration::from_hours(24)
        });
        tokio::pin!(leave);
        loop {
            let next = tokio::select! {
                next = updates.try_next_unbounded() => next,
                () = &mut leave, if !updates.token().is_empty() => break,
                () = stop.cancelled() => {
                    if resumes {
                        world.ledger.event("updates resumed to the end");
                    }
                    return seen;
                }
            };
            match next {
                Ok(Some(response)) => take(&world, number, &mut seen, &response),
                other => {
                    world
                        .ledger
                        .fail(format!("the updates of reader {number} ended: {other:?}"));
                    return seen;
                }
            }
            if resumes && dice.percent(1) {
                tokio::time::sleep(dice.millis(10..2_000)).await;
            }
        }
        world.ledger.event("updates resumed");
        token = updates.token();
    }
}

fn take(world: &World, number: usize, seen: &mut Seen, response: &v1::StreamUpdatesResponse) {
    let key = match (&response.event, upsert(response)) {
        (_, Some(Resource::Server(server))) => (true, server.id.clone()),
        (_, Some(Resource::Elicitation(question))) => (false, question.id.clone()),
        (_, Some(Resource::SamplingRequest(request))) => (false, request.id.clone()),
        (Some(Event::Delete(gone)), _) => (gone.kind() == v1::UpdateKind::Server, gone.id.clone()),
        (Some(Event::SnapshotEnd(_)), _) => {
            seen.since = response.revision;
            world.read[number].store(response.revision, Ordering::Relaxed);
            return;
        }
        _ => return,
    };
    if matches!(response.event, Some(Event::Delete(_))) {
        seen.exists.remove(&key);
    } else {
        seen.exists.insert(key);
    }
    if response.resume_token.is_empty() {
        return;
    }
    if seen
        .revisions
        .last()
        .is_some_and(|last| *last >= response.revision)
    {
        let revision = response.revision;
        world
            .ledger
            .fail(format!("reader {number} got revision {revision} again"));
    }
    seen.revisions.push(response.revision);
    world.read[number].store(response.revision, Ordering::Relaxed);
}

/// Follows one resource after the other, for a while each.
pub(crate) async fn follow(world: Arc<World>, number: usize, stop: CancellationToken) {
    let mut dice = world.dice.of("follower", number);
    let app = Clients::connect(&world.socket).await;
    while !stop.is_cancelled() {
        let request = v1::SubscribeResourceRequest {
            namespace: app.namespace(),
            server_id: dice.pick(&world.servers).id.clone(),
            uri: RESOURCE.to_owned(),
        };
        let length = dice.millis(100..8_000);
        let following = async {
            let mut events = app
                .resources()
                .subscribe_resource(request)
                .await?
                .into_inner();
            while let Some(event) = events.message().await? {
                world.ledger.event(match event.event {
                    Some(v1::subscribe_resource_response::Event::Updated(_)) => "resource updated",
                    _ => "resource followed",
                });
            }
            Ok(())
        };
        tokio::select! {
            outcome = following => expect_typed(&world, "SubscribeResource", outcome),
            () = tokio::time::sleep(length) => {}
            () = stop.cancelled() => {}
        }
        tokio::time::sleep(dice.millis(0..300)).await;
    }
}

/// Answers questions: most with the name that is asked for, some with a refusal, some not at all.
pub(crate) async fn answer(world: Arc<World>, number: usize, stop: CancellationToken) {
    let mut dice = world.dice.of("human", number);
    let app = Clients::connect(&world.socket).await;
    while !stop.is_cancelled() {
        let request = v1::ListElicitationsRequest {
            namespace: app.namespace(),
            ..Default::default()
        };
        let pending = app.elicitations().list_elicitations(request).await;
        let pending = match pending {
            Ok(page) => page.into_inner().elicitations,
            Err(status) => {
                expect_typed(&world, "ListElicitations", Err(status));
                Vec::new()
            }
        };
        for question in pending {
            let name = question.message.rsplit(' ').next().unwrap_or_default();
            let content = json!({"name": name}).to_string();
            let outcome = match dice.within(0..10) {
                0 => continue,
                1 => {
                    app.respond(&question.id, ElicitationAction::Decline, None)
                        .await
                }
                2 => {
                    app.respond(&question.id, ElicitationAction::Cancel, None)
                        .await
                }
                _ => app.accept(&question.id, &content).await,
            };
            if outcome.is_ok() {
                world.ledger.event("question answered");
            }
            expect_typed(&world, "RespondElicitation", outcome.map(|_| ()));
        }
        tokio::time::sleep(dice.millis(20..400)).await;
    }
}

/// Removes servers and adds them again, disconnects, connects, refreshes, lists.
pub(crate) async fn manage(world: Arc<World>, number: usize, stop: CancellationToken) {
    let mut dice = world.dice.of("manager", number);
    let app = Clients::connect(&world.socket).await;
    while !stop.is_cancelled() {
        tokio::time::sleep(dice.millis(50..1_000)).await;
        let server = dice.pick(&world.servers);
        let id = server.id.as_str();
        let (what, outcome) = match dice.within(0..12) {
            0..3 => {
                let removed = app.remove(id).await;
                expect_typed(&world, "RemoveServer", removed);
                tokio::time::sleep(dice.millis(0..1_500)).await;
                ("AddServer", add(&app, id, server.spec.clone()).await)
            }
            3..6 => ("RefreshServer", refresh(&app, id).await),
            6 => {
                let ended = app.disconnect_server(id).await;
                expect_typed(&world, "DisconnectServer", ended);
                ("ConnectServer", app.connect_server(id).await.map(|_| ()))
            }
            7 => ("GetServerLog", app.log(id).await.map(|_| ())),
            8 => ("ReadResource", app.read(id, RESOURCE).await.map(|_| ())),
            9 => ("UpdateServer", update(&app, id, &mut dice).await),
            _ => {
                let request = v1::ListToolsRequest::default();
                ("ListTools", app.tools_where(request).await.map(|_| ()))
            }
        };
        world.ledger.event(what);
        expect_typed(&world, what, outcome);
    }
}

/// Registers a server without waiting for it.
pub(crate) async fn add(app: &Clients, id: &str, spec: ServerSpec) -> Result<(), Status> {
    let request = v1::AddServerRequest {
        server_id: id.to_owned(),
        spec: Some(spec),
        wait_timeout: Some(mcp_sidecar_tests::clients::millis(0)),
        ..Default::default()
    };
    app.add_with(request).await.map(|_| ())
}

async fn refresh(app: &Clients, id: &str) -> Result<(), Status> {
    let request = v1::RefreshServerRequest {
        namespace: app.namespace(),
        server_id: id.to_owned(),
        wait_timeout: None,
    };
    app.servers().refresh_server(request).await.map(|_| ())
}

/// Changes a bound that needs no new connection.
async fn update(app: &Clients, id: &str, dice: &mut Dice) -> Result<(), Status> {
    let mut spec = app.get(id).await?.spec.unwrap_or_default();
    let timeouts = spec.timeouts.get_or_insert_default();
    timeouts.call = Some(mcp_sidecar_tests::clients::millis(
        dice.within(14_000..15_000),
    ));
    let request = v1::UpdateServerRequest {
        namespace: app.namespace(),
        server_id: id.to_owned(),
        spec: Some(spec),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["timeouts.call".to_owned()],
        }),
        etag: String::new(),
    };
    app.servers().update_server(request).await.map(|_| ())
}

/// Errors are part of the weather, but they have reasons, and none is our own fault.
fn expect_typed(world: &World, what: &str, outcome: Result<(), Status>) {
    let Err(status) = outcome else { return };
    let facts = ErrorFacts::of(&status);
    if facts.domain != "mcpsidecar" || ["", "INTERNAL", "STORE_FAILED"].contains(&&*facts.reason) {
        world.ledger.fail(format!("{what}: {status:?}"));
    }
}
