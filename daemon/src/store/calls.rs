//! Rows of calls that are kept.
//!
//! Never changes a call that has ended, and never lets a call end without its questions. What a call is about in detail and
//! what came of it are sealed, bound to the row.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::log::Changes;
use super::questions;
use super::seal::Sealer;
use super::servers;
use super::{count, json, unreadable};
use crate::base::{CallId, Clock, Namespace, ServerId, ServerKey, Timestamp};
use crate::error::{Error, Reason, Result};
use crate::model::call::{
    Begun, Call, CallState, GoneOn, KeepCalls, NewCall, Outcome, QuestionLimits, Resting, Unended,
};
use crate::model::question::{Question, QuestionState};
use crate::model::update::{Body, Filter, Kind};

/// What the details of a call are sealed for.
pub(super) const CALL: &str = "call";

const COLUMNS: &str = "id, namespace, server_id, subject, request_id, detached, state, created, ended, expires, began";

const STATES: [(CallState, &str); 5] = [
    (CallState::Running, "running"),
    (CallState::InputRequired, "input_required"),
    (CallState::Completed, "completed"),
    (CallState::Failed, "failed"),
    (CallState::Cancelled, "cancelled"),
];

fn state_text(state: CallState) -> &'static str {
    let known = STATES.iter().find(|(known, _)| *known == state);
    known.map_or("failed", |(_, text)| text)
}

fn read(row: &Row<'_>) -> Result<Call> {
    let id = CallId::new(row.get::<_, String>(0)?);
    let subject = row.get_ref(3)?.as_str().ok();
    let subject = subject.and_then(|text| serde_json::from_str(text).ok());
    let state = row.get_ref(6)?.as_str().ok();
    let state = STATES.iter().find(|(_, text)| Some(*text) == state);
    let (state, _) = state.ok_or_else(|| unreadable("state of call", &id))?;
    Ok(Call {
        server: ServerKey::new(
            Namespace::new(row.get::<_, String>(1)?),
            ServerId::new(row.get::<_, String>(2)?),
        ),
        subject: subject.ok_or_else(|| unreadable("subject of call", &id))?,
        request_id: row.get(4)?,
        detached: row.get(5)?,
        state: *state,
        created: Timestamp(row.get(7)?),
        ended: row.get::<_, Option<i64>>(8)?.map(Timestamp),
        expires: row.get::<_, Option<i64>>(9)?.map(Timestamp),
        began: row
            .get_ref(10)?
            .as_str()
            .ok()
            .and_then(|text| serde_json::from_str(text).ok()),
        id,
    })
}

/// Seals a text for the row of a call.
pub(super) fn seal(sealer: &Sealer, call: (&Namespace, &CallId), text: &str) -> Result<Vec<u8>> {
    sealer.seal_text(CALL, &[call.0.as_str(), call.1.as_str()], text)
}

fn open(sealer: &Sealer, call: &Call, sealed: Option<&[u8]>) -> Option<String> {
    let row = [call.server.namespace.as_str(), call.id.as_str()];
    sealer.open_text(CALL, &row, sealed?)
}

/// Puts a call on disk that begins now, unless it was made before.
///
/// # Errors
/// INVALID_FIELD if its request id belongs to another call; SERVER_NOT_FOUND if the server is gone.
pub(super) fn begin(changes: &mut Changes<'_>, new: NewCall, sealed: &[u8]) -> Result<Begun> {
    expect_server(changes.connection, &new.call.server)?;
    if let Some(request_id) = &new.call.request_id {
        let named = (&new.call.server.namespace, request_id.as_str());
        if let Some(id) = known(changes.connection, named, &new.digest)? {
            return Ok(Begun::Known(id));
        }
    }
    insert(changes, &new, sealed, false)?;
    changes.call(new.call)?;
    Ok(Begun::New)
}

/// The call that an app has named so before, if it asks for the same.
///
/// # Errors
/// INVALID_FIELD if it asks for something else.
pub(super) fn known(
    connection: &Connection,
    (namespace, request_id): (&Namespace, &str),
    digest: &[u8],
) -> Result<Option<CallId>> {
    let known: Option<(String, Vec<u8>)> = connection
        .prepare_cached("SELECT id, digest FROM calls WHERE namespace = ?1 AND request_id = ?2")?
        .query_row([namespace.as_str(), request_id], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    match known {
        Some((id, known)) if known != digest => Err(Error::invalid(
            "call.request_id",
            format!(
                "`{request_id}` names the call `{id}`, which asks for something else: give every call an id of its own"
            ),
        )
        .with("call_id", id)),
        known => Ok(known.map(|(id, _)| CallId::new(id))),
    }
}

/// Nothing is kept for a server that was removed, or has another id since it was looked for: nobody would ever end it.
fn expect_server(connection: &Connection, server: &ServerKey) -> Result<()> {
    if servers::exists(connection, server)? {
        return Ok(());
    }
    Err(Error::new(
        Reason::ServerNotFound,
        format!(
            "server `{}` was removed or got another id while the call was made",
            server.id
        ),
    )
    .with("server_id", server.id.as_str()))
}

fn insert(changes: &Changes<'_>, new: &NewCall, sealed: &[u8], rests: bool) -> Result<()> {
    let call = &new.call;
    changes
        .connection
        .prepare_cached(
            "INSERT INTO calls (id, namespace, server_id, subject, request_id, digest, detached, state, rests, created,
                 sealed, began)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?
        .execute(params![
            call.id.as_str(),
            call.server.namespace.as_str(),
            call.server.id.as_str(),
            json(&call.subject)?,
            call.request_id,
            new.digest,
            call.detached,
            state_text(call.state),
            rests,
            call.created.0,
            sealed,
            call.began.as_ref().map(json).transpose()?,
        ])?;
    Ok(())
}

/// Lays a call to rest until its questions have ended: the call, which may be on disk already, with its questions.
///
/// # Errors
/// ALREADY_RESOLVED if it has ended meanwhile; SERVER_NOT_FOUND if the server is gone; TOO_MANY if too many questions are
/// pending.
pub(super) fn rest(
    changes: &mut Changes<'_>,
    new: NewCall,
    sealed: &[u8],
    asked: Vec<Question>,
    limits: QuestionLimits,
) -> Result<()> {
    expect_server(changes.connection, &new.call.server)?;
    questions::admit(changes.connection, &asked, limits)?;
    let call = match one(changes.connection, &new.call.server.namespace, &new.call.id)? {
        None => {
            let mut new = new;
            new.call.state = CallState::InputRequired;
            insert(changes, &new, sealed, true)?;
            new.call
        }
        Some(known) if known.state.is_end() => return Err(already_ended(&known)),
        Some(mut known) => {
            changes
                .connection
                .prepare_cached(
                    "UPDATE calls SET state = 'input_required', rests = 1, sealed = ?2 WHERE id = ?1",
                )?
                .execute(params![known.id.as_str(), sealed])?;
            known.state = CallState::InputRequired;
            known
        }
    };
    for question in asked {
        questions::insert(changes, question)?;
    }
    changes.call(call)?;
    Ok(())
}

/// Takes a call up again whose questions have all ended. `None` if it does not rest, or waits for more. From then on the
/// daemon no longer knows the answers.
pub(super) fn go_on(
    changes: &mut Changes<'_>,
    sealer: &Sealer,
    id: &CallId,
) -> Result<Option<GoneOn>> {
    let sql = format!(
        "SELECT {COLUMNS}, sealed FROM calls WHERE id = ?1 AND rests = 1
         AND NOT EXISTS (SELECT 1 FROM elicitations WHERE call_id = ?1 AND state = 'pending')"
    );
    let found = changes
        .connection
        .prepare_cached(&sql)?
        .query_row([id.as_str()], |row| Ok((read(row), row.get(11)?)))
        .optional()?;
    let Some((call, sealed)) = found else {
        return Ok(None);
    };
    let (mut call, sealed): (Call, Option<Vec<u8>>) = (call?, sealed);
    let plan = open(sealer, &call, sealed.as_deref()).ok_or_else(|| {
        Error::new(
            Reason::StoreFailed,
            format!("what is kept of the call `{id}` does not open"),
        )
    })?;
    let answers = questions::take_answers(changes.connection, sealer, id)?;
    changes
        .connection
        .prepare_cached("UPDATE calls SET state = 'running', rests = 0 WHERE id = ?1")?
        .execute([id.as_str()])?;
    call.state = CallState::Running;
    changes.call(call.clone())?;
    Ok(Some(GoneOn {
        call,
        plan,
        answers,
    }))
}

/// Ends a call, and its pending questions with it. `None` if it is not on disk or has ended.
pub(super) fn end(
    changes: &mut Changes<'_>,
    sealer: &Sealer,
    (namespace, id): (&Namespace, &CallId),
    outcome: &Outcome,
    keep: KeepCalls,
) -> Result<Option<Call>> {
    let Some(mut call) = one(changes.connection, namespace, id)? else {
        return Ok(None);
    };
    if call.state.is_end() {
        return Ok(None);
    }
    let lost = matches!(outcome, Outcome::Error(_));
    let end = if lost {
        QuestionState::Void
    } else {
        QuestionState::Cancelled
    };
    questions::end_of_call(changes, id, end)?;
    let sealed = seal(sealer, (namespace, id), &json(outcome)?)?;
    call.state = outcome.state();
    call.ended = Some(changes.now);
    call.expires = Some(changes.now.plus(keep.age));
    changes
        .connection
        .prepare_cached(
            "UPDATE calls SET state = ?2, rests = 0, ended = ?3, expires = ?4, sealed = ?5 WHERE id = ?1",
        )?
        .execute(params![
            id.as_str(),
            state_text(call.state),
            changes.now.0,
            call.expires.map(|expires| expires.0),
            sealed
        ])?;
    changes.call(call.clone())?;
    Ok(Some(call))
}

/// Ends every call to a server that is being removed.
pub(super) fn end_of_server(
    changes: &mut Changes<'_>,
    sealer: &Sealer,
    server: &ServerKey,
    keep: KeepCalls,
) -> Result<()> {
    let gone = Error::new(
        Reason::ServerNotFound,
        format!(
            "server `{}` was removed while the call was under way",
            server.id
        ),
    )
    .with("server_id", server.id.as_str());
    let outcome = Outcome::Error(gone);
    for call in of_server(changes.connection, server)? {
        end(
            changes,
            sealer,
            (&server.namespace, &call.id),
            &outcome,
            keep,
        )?;
    }
    Ok(())
}

/// Gives every call to a server to another one; see `questions::move_all`.
pub(super) fn move_all(changes: &mut Changes<'_>, old: &ServerKey, new: &ServerKey) -> Result<()> {
    let unended = of_server(changes.connection, old)?;
    changes
        .connection
        .prepare_cached("UPDATE calls SET server_id = ?3 WHERE namespace = ?1 AND server_id = ?2")?
        .execute([old.namespace.as_str(), old.id.as_str(), new.id.as_str()])?;
    for mut call in unended {
        changes.deleted(&old.namespace, &old.id, Kind::Call, call.id.as_str())?;
        call.server = new.clone();
        changes.call(call)?;
    }
    Ok(())
}

/// A question of a call that is under way is new, or has ended: the call shows whether it waits.
pub(super) fn note_questions(changes: &mut Changes<'_>, id: &CallId) -> Result<()> {
    let sql = format!(
        "SELECT {COLUMNS}, EXISTS (SELECT 1 FROM elicitations WHERE call_id = ?1 AND state = 'pending')
         FROM calls WHERE id = ?1 AND rests = 0 AND ended IS NULL"
    );
    let found = changes
        .connection
        .prepare_cached(&sql)?
        .query_row([id.as_str()], |row| Ok((read(row), row.get(11)?)))
        .optional()?;
    let Some((call, waits)) = found else {
        return Ok(());
    };
    let mut call = call?;
    let state = if waits {
        CallState::InputRequired
    } else {
        CallState::Running
    };
    if call.state != state {
        call.state = state;
        changes
            .connection
            .prepare_cached("UPDATE calls SET state = ?2 WHERE id = ?1")?
            .execute([id.as_str(), state_text(state)])?;
        changes.call(call)?;
    }
    Ok(())
}

/// Whether a call rests.
pub(super) fn rests(connection: &Connection, id: &CallId) -> Result<bool> {
    Ok(connection
        .prepare_cached("SELECT 1 FROM calls WHERE id = ?1 AND rests = 1")?
        .exists([id.as_str()])?)
}

/// Those of the calls that have pending questions.
pub(super) fn that_wait(connection: &Connection, ids: Vec<CallId>) -> Result<Vec<CallId>> {
    let mut waiting = connection
        .prepare_cached("SELECT 1 FROM elicitations WHERE call_id = ?1 AND state = 'pending'")?;
    let mut all = Vec::new();
    for id in ids {
        if waiting.exists([id.as_str()])? {
            all.push(id);
        }
    }
    Ok(all)
}

/// Deals with calls that had not ended when the daemon did: one that was under way has ended so, as `interrupted` says. Returns
/// these, and those that rest, oldest first, and whether they wait for answers. Nobody waits for them any more: they are detached.
pub(super) fn start_over(
    changes: &mut Changes<'_>,
    sealer: &Sealer,
    interrupted: &Outcome,
    keep: KeepCalls,
) -> Result<Unended> {
    let mut unended = Vec::new();
    {
        let sql = format!(
            "SELECT {COLUMNS}, rests,
                 EXISTS (SELECT 1 FROM elicitations WHERE call_id = calls.id AND elicitations.state = 'pending')
             FROM calls WHERE ended IS NULL ORDER BY id"
        );
        let mut statement = changes.connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let rests: bool = row.get(11)?;
            unended.push((read(row)?, rests, row.get(12)?));
        }
    }
    let mut found = Unended::default();
    for (mut call, rests, waits) in unended {
        if !rests {
            let which = (&call.server.namespace, &call.id);
            let ended = end(changes, sealer, which, interrupted, keep)?;
            found.interrupted.extend(ended);
            continue;
        }
        if !call.detached {
            call.detached = true;
            changes
                .connection
                .prepare_cached("UPDATE calls SET detached = 1 WHERE id = ?1")?
                .execute([call.id.as_str()])?;
            changes.call(call.clone())?;
        }
        found.resting.push(Resting { call, waits });
    }
    Ok(found)
}

/// One call.
pub(super) fn one(
    connection: &Connection,
    namespace: &Namespace,
    id: &CallId,
) -> Result<Option<Call>> {
    let sql = format!("SELECT {COLUMNS} FROM calls WHERE id = ?1 AND namespace = ?2");
    connection
        .prepare_cached(&sql)?
        .query_row([id.as_str(), namespace.as_str()], |row| Ok(read(row)))
        .optional()?
        .transpose()
}

/// A call with what came of it, if it has ended.
pub(super) fn with_outcome(
    connection: &Connection,
    sealer: &Sealer,
    namespace: &Namespace,
    id: &CallId,
) -> Result<Option<(Call, Option<Outcome>)>> {
    let sql = format!("SELECT {COLUMNS}, sealed FROM calls WHERE id = ?1 AND namespace = ?2");
    let found = connection
        .prepare_cached(&sql)?
        .query_row([id.as_str(), namespace.as_str()], |row| {
            Ok((read(row), row.get(11)?))
        })
        .optional()?;
    let Some((call, sealed)) = found else {
        return Ok(None);
    };
    let (call, sealed): (Call, Option<Vec<u8>>) = (call?, sealed);
    if !call.state.is_end() {
        return Ok(Some((call, None)));
    }
    let outcome = open(sealer, &call, sealed.as_deref())
        .and_then(|text| serde_json::from_str(&text).ok())
        .ok_or_else(|| unreadable("outcome of call", id))?;
    Ok(Some((call, Some(outcome))))
}

/// The id of the call that an app named.
pub(super) fn by_request(
    connection: &Connection,
    namespace: &Namespace,
    request_id: &str,
) -> Result<Option<CallId>> {
    Ok(connection
        .prepare_cached("SELECT id FROM calls WHERE namespace = ?1 AND request_id = ?2")?
        .query_row([namespace.as_str(), request_id], |row| {
            row.get::<_, String>(0)
        })
        .optional()?
        .map(CallId::new))
}

/// Which calls; an empty list means "all".
pub(super) struct List {
    pub(super) namespace: Namespace,
    pub(super) server_ids: Vec<ServerId>,
    pub(super) states: Vec<CallState>,
    pub(super) after: Option<CallId>,
    pub(super) limit: usize,
}

impl List {
    pub(super) fn read(&self, connection: &Connection) -> Result<Vec<Call>> {
        let mut sql = format!("SELECT {COLUMNS} FROM calls WHERE namespace = ?");
        let text = |text: &str| Value::Text(text.to_owned());
        let mut values = vec![text(self.namespace.as_str())];
        let among =
            |column: &str, wanted: Vec<Value>, sql: &mut String, values: &mut Vec<Value>| {
                if !wanted.is_empty() {
                    let marks = vec!["?"; wanted.len()].join(", ");
                    for part in [" AND ", column, " IN (", &marks, ")"] {
                        sql.push_str(part);
                    }
                    values.extend(wanted);
                }
            };
        let servers = self.server_ids.iter().map(|id| text(id.as_str())).collect();
        among("server_id", servers, &mut sql, &mut values);
        let states = self.states.iter().map(|state| text(state_text(*state)));
        among("state", states.collect(), &mut sql, &mut values);
        if let Some(after) = &self.after {
            sql += " AND id > ?";
            values.push(text(after.as_str()));
        }
        sql += " ORDER BY id LIMIT ?";
        values.push(Value::Integer(count(self.limit)));
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        let mut calls = Vec::new();
        while let Some(row) = rows.next()? {
            calls.push(read(row)?);
        }
        Ok(calls)
    }
}

fn of_server(connection: &Connection, server: &ServerKey) -> Result<Vec<Call>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM calls WHERE namespace = ?1 AND server_id = ?2 AND ended IS NULL ORDER BY id"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([server.namespace.as_str(), server.id.as_str()])?;
    let mut calls = Vec::new();
    while let Some(row) = rows.next()? {
        calls.push(read(row)?);
    }
    Ok(calls)
}

/// Appends every wanted call that has not ended.
pub(super) fn snapshot(
    connection: &Connection,
    filter: &Filter,
    into: &mut Vec<Body>,
) -> Result<()> {
    let sql = format!("SELECT {COLUMNS} FROM calls WHERE ended IS NULL ORDER BY id");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let call = read(row)?;
        if filter.admits(&call.server.namespace, &call.server.id, Kind::Call) {
            into.push(Body::Call(Box::new(call)));
        }
    }
    Ok(())
}

/// Forgets calls whose outcome has been kept long enough, and the oldest of too many; at most `chunk` of each.
pub(super) fn prune(
    connection: &Connection,
    keep: KeepCalls,
    now: Timestamp,
    chunk: usize,
) -> Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM calls WHERE id IN (
                 SELECT id FROM calls WHERE ended IS NOT NULL AND expires < ?1 ORDER BY ended LIMIT ?2)",
        )?
        .execute([now.0, count(chunk)])?;
    let (ended, bytes): (i64, i64) = connection
        .prepare_cached(
            "SELECT count(*), coalesce(sum(length(sealed)), 0) FROM calls WHERE ended IS NOT NULL",
        )?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let excess = ended.saturating_sub(count(keep.count));
    let too_large = bytes > i64::try_from(keep.bytes).unwrap_or(i64::MAX);
    if excess > 0 || too_large {
        // By halves where the bytes are too many: what is how large is not worth a search.
        let excess = excess.max(if too_large { (ended + 1) / 2 } else { 0 });
        connection
            .prepare_cached(
                "DELETE FROM calls WHERE id IN (
                     SELECT id FROM calls WHERE ended IS NOT NULL ORDER BY ended LIMIT ?1)",
            )?
            .execute([excess.min(count(chunk))])?;
    }
    Ok(())
}

/// The error for a call that has ended: which end, and when.
#[must_use]
pub fn already_ended(call: &Call) -> Error {
    let ended = call.ended.unwrap_or_default();
    let ago = Clock.wall().0.saturating_sub(ended.0).max(0) / 1000;
    Error::new(
        Reason::AlreadyResolved,
        format!(
            "the call `{}` has ended already: `{}`, {ago} s ago",
            call.id,
            state_text(call.state)
        ),
    )
    .with("call_id", call.id.as_str())
    .with("state", state_text(call.state).to_uppercase())
}

/// The error for a call that is not there.
#[must_use]
pub fn no_such_call(namespace: &Namespace, id: &str) -> Error {
    Error::new(
        Reason::CallNotFound,
        format!(
            "there is no call `{id}` in namespace `{namespace}`: it was not kept, or its end is long past"
        ),
    )
    .with("call_id", id)
}
