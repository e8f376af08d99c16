//! Rows of questions.
//!
//! Never changes a question that has ended. The answer to a question of a call that rests is sealed into the row until the call
//! goes on; no other answer is ever stored.

use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::calls;
use super::log::Changes;
use super::seal::Sealer;
use super::{count, unreadable};
use crate::base::{
    CallId, Clock, ElicitationId, Namespace, Revision, ServerId, ServerKey, Timestamp,
};
use crate::error::{Error, Reason, Result};
use crate::model::call::{Answered, QuestionLimits};
use crate::model::question::{Answer, Mode, Question, QuestionState};
use crate::model::update::{Body, Filter, Kind};

/// What an answer is sealed for.
pub(super) const ANSWER: &str = "answer";

/// Ended questions that are kept at most, of all namespaces together.
const KEEP_ENDED: usize = 10_000;

const COLUMNS: &str = "id, namespace, server_id, server_name, call_id, mode, message, requested_schema, url, state, \
                       created, expires, resolved, request, server_elicitation_id, completed";

const MODES: [(Mode, &str); 4] = [
    (Mode::Form, "form"),
    (Mode::Approval, "approval"),
    (Mode::Url, "url"),
    (Mode::Sampling, "sampling"),
];

const STATES: [(QuestionState, &str); 6] = [
    (QuestionState::Pending, "pending"),
    (QuestionState::Answered, "answered"),
    (QuestionState::Declined, "declined"),
    (QuestionState::Cancelled, "cancelled"),
    (QuestionState::Expired, "expired"),
    (QuestionState::Void, "void"),
];

fn state_text(state: QuestionState) -> &'static str {
    let known = STATES.iter().find(|(known, _)| *known == state);
    known.map_or("void", |(_, text)| text)
}

fn mode_text(mode: Mode) -> &'static str {
    let known = MODES.iter().find(|(known, _)| *known == mode);
    known.map_or("", |(_, text)| text)
}

fn read_mode(row: &Row<'_>) -> Result<Mode> {
    let mode = row.get_ref(5)?.as_str().ok();
    let known = MODES.iter().find(|(_, text)| Some(*text) == mode);
    let id = row.get_ref(0)?.as_str().unwrap_or_default();
    known.map_or_else(
        || Err(unreadable("mode of question", &id)),
        |(mode, _)| Ok(*mode),
    )
}

fn read(row: &Row<'_>) -> Result<Question> {
    let id = ElicitationId::new(row.get::<_, String>(0)?);
    let mode = read_mode(row)?;
    let state = row.get_ref(9)?.as_str().ok();
    let state = STATES.iter().find(|(_, text)| Some(*text) == state);
    let (state, _) = state.ok_or_else(|| unreadable("state of question", &id))?;
    Ok(Question {
        server: ServerKey::new(
            Namespace::new(row.get::<_, String>(1)?),
            ServerId::new(row.get::<_, String>(2)?),
        ),
        server_name: row.get(3)?,
        call_id: row.get::<_, Option<String>>(4)?.map(CallId::new),
        mode,
        message: row.get(6)?,
        requested_schema: row.get(7)?,
        url: row.get(8)?,
        state: *state,
        created: Timestamp(row.get(10)?),
        expires: Timestamp(row.get(11)?),
        resolved: row.get::<_, Option<i64>>(12)?.map(Timestamp),
        request: row.get(13)?,
        server_elicitation_id: row.get(14)?,
        completed: row.get::<_, Option<i64>>(15)?.map(Timestamp),
        id,
    })
}

/// Inserts a question of a call that is under way, or of none.
///
/// # Errors
/// TOO_MANY if too many are pending.
pub(super) fn put(
    changes: &mut Changes<'_>,
    question: Question,
    limits: QuestionLimits,
) -> Result<Revision> {
    admit(changes.connection, std::slice::from_ref(&question), limits)?;
    let call = question.call_id.clone();
    let revision = insert(changes, question)?;
    if let Some(call) = call {
        calls::note_questions(changes, &call)?;
    }
    Ok(revision)
}

/// Whether so many more questions of one server may be pending.
///
/// # Errors
/// TOO_MANY, which names the limit.
pub(super) fn admit(
    connection: &Connection,
    asked: &[Question],
    limits: QuestionLimits,
) -> Result<()> {
    let Some(first) = asked.first() else {
        return Ok(());
    };
    let server = &first.server;
    let pending: i64 = connection
        .prepare_cached(
            "SELECT count(*) FROM elicitations WHERE namespace = ?1 AND server_id = ?2 AND state = 'pending'",
        )?
        .query_row([server.namespace.as_str(), server.id.as_str()], |row| {
            row.get(0)
        })?;
    if pending.saturating_add(count(asked.len())) > count(limits.per_server) {
        return Err(Error::new(
            Reason::TooMany,
            format!(
                "the server `{server}` has {pending} unanswered questions, and {} is the limit \
                 (questions.max_pending_per_server)",
                limits.per_server
            ),
        ));
    }
    let bytes: i64 = connection
        .prepare_cached("SELECT coalesce(sum(bytes), 0) FROM elicitations WHERE state = 'pending'")?
        .query_row([], |row| row.get(0))?;
    let more: usize = asked.iter().map(Question::bytes).sum();
    if bytes.saturating_add(count(more)) > count(limits.bytes) {
        return Err(Error::new(
            Reason::TooMany,
            format!(
                "all servers together have {bytes} bytes of unanswered questions, and {} is the limit \
                 (questions.max_pending_bytes)",
                limits.bytes
            ),
        ));
    }
    Ok(())
}

/// Inserts a question.
pub(super) fn insert(changes: &mut Changes<'_>, question: Question) -> Result<Revision> {
    changes
        .connection
        .prepare_cached(
            "INSERT INTO elicitations (id, namespace, server_id, server_name, call_id, mode, message,
                 requested_schema, url, state, created, expires, resolved, request, bytes, server_elicitation_id)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
        )?
        .execute(params![
            question.id.as_str(),
            question.server.namespace.as_str(),
            question.server.id.as_str(),
            question.server_name,
            question.call_id.as_ref().map(CallId::as_str),
            mode_text(question.mode),
            question.message,
            question.requested_schema,
            question.url,
            state_text(question.state),
            question.created.0,
            question.expires.0,
            question.resolved.map(|resolved| resolved.0),
            question.request,
            count(question.bytes()),
            question.server_elicitation_id,
        ])?;
    changes.question(question)
}

/// Ends a question if it is pending: the one place that decides which end it gets. `answer` is kept, sealed, if its call rests.
pub(super) fn end(
    changes: &mut Changes<'_>,
    (namespace, id): (&Namespace, &ElicitationId),
    state: QuestionState,
    answer: Option<&[u8]>,
) -> Result<Question> {
    if state == QuestionState::Pending {
        return Err(Error::internal("pending is not an end of a question"));
    }
    let mut question = one(changes.connection, namespace, id)?;
    if question.state != QuestionState::Pending {
        return Err(already_resolved(&question));
    }
    question.state = state;
    question.resolved = Some(changes.now);
    changes
        .connection
        .prepare_cached(
            "UPDATE elicitations SET state = ?2, resolved = ?3,
                 sealed = CASE WHEN EXISTS (SELECT 1 FROM calls WHERE id = call_id AND rests = 1) THEN ?4 END
             WHERE id = ?1 AND state = 'pending'",
        )?
        .execute(params![id.as_str(), state_text(state), changes.now.0, answer])?;
    changes.question(question.clone())?;
    if let Some(call) = &question.call_id {
        calls::note_questions(changes, call)?;
    }
    Ok(question)
}

/// The questions of a server, by its own id for them, that are pending or accepted and not known to be done with.
pub(super) fn uncompleted(
    connection: &Connection,
    server: &ServerKey,
    server_elicitation_id: &str,
) -> Result<Vec<Question>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM elicitations WHERE namespace = ?1 AND server_id = ?2 AND server_elicitation_id = ?3
         AND completed IS NULL AND state IN ('pending', 'answered') ORDER BY id"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([
        server.namespace.as_str(),
        server.id.as_str(),
        server_elicitation_id,
    ])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// Notes that what was opened for these questions is done with.
pub(super) fn complete(
    changes: &mut Changes<'_>,
    server: &ServerKey,
    server_elicitation_id: &str,
) -> Result<Vec<ElicitationId>> {
    let found = uncompleted(changes.connection, server, server_elicitation_id)?;
    let mut completed = Vec::new();
    for mut question in found {
        changes
            .connection
            .prepare_cached("UPDATE elicitations SET completed = ?2 WHERE id = ?1")?
            .execute(params![question.id.as_str(), changes.now.0])?;
        question.completed = Some(changes.now);
        completed.push(question.id.clone());
        changes.question(question)?;
    }
    Ok(completed)
}

/// Seals the content of an answer.
pub(super) fn seal_answer(
    sealer: &Sealer,
    (namespace, id): (&Namespace, &ElicitationId),
    content: &str,
) -> Result<Vec<u8>> {
    sealer.seal_text(ANSWER, &[namespace.as_str(), id.as_str()], content)
}

/// What came of the questions of a call, which are no longer kept from then on.
pub(super) fn take_answers(
    connection: &Connection,
    sealer: &Sealer,
    call: &CallId,
) -> Result<Vec<Answered>> {
    let sql = format!("SELECT {COLUMNS}, sealed FROM elicitations WHERE call_id = ?1 ORDER BY id");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([call.as_str()])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let question = read(row)?;
        let sealed: Option<Vec<u8>> = row.get(16)?;
        let answer = match (question.state, sealed) {
            (QuestionState::Answered, None) => Answer::Accept(None),
            (QuestionState::Answered, Some(sealed)) => {
                let bound_to = [question.server.namespace.as_str(), question.id.as_str()];
                let content = sealer.open_text(ANSWER, &bound_to, &sealed);
                Answer::Accept(Some(
                    content.ok_or_else(|| unreadable("answer to question", &question.id))?,
                ))
            }
            (QuestionState::Declined, _) => Answer::Decline,
            _ => Answer::Cancel,
        };
        all.push(Answered {
            id: question.id,
            state: question.state,
            answer,
        });
    }
    connection
        .prepare_cached(
            "UPDATE elicitations SET sealed = NULL WHERE call_id = ?1 AND sealed IS NOT NULL",
        )?
        .execute([call.as_str()])?;
    Ok(all)
}

/// Ends the pending questions of a call.
pub(super) fn end_of_call(
    changes: &mut Changes<'_>,
    call: &CallId,
    state: QuestionState,
) -> Result<()> {
    let sql = format!(
        "SELECT {COLUMNS} FROM elicitations WHERE call_id = ?1 AND state = 'pending' ORDER BY id"
    );
    let pending = {
        let mut statement = changes.connection.prepare_cached(&sql)?;
        let mut rows = statement.query([call.as_str()])?;
        let mut pending = Vec::new();
        while let Some(row) = rows.next()? {
            pending.push(read(row)?);
        }
        pending
    };
    for question in pending {
        end(
            changes,
            (&question.server.namespace, &question.id),
            state,
            None,
        )?;
    }
    changes
        .connection
        .prepare_cached(
            "UPDATE elicitations SET sealed = NULL WHERE call_id = ?1 AND sealed IS NOT NULL",
        )?
        .execute([call.as_str()])?;
    Ok(())
}

/// The pending questions of calls that rest, and when they expire.
pub(super) fn resting(
    connection: &Connection,
) -> Result<Vec<(Namespace, ElicitationId, Timestamp)>> {
    let mut statement = connection.prepare(
        "SELECT namespace, id, expires FROM elicitations WHERE state = 'pending'
         AND EXISTS (SELECT 1 FROM calls WHERE calls.id = call_id AND rests = 1)",
    )?;
    let rows = statement.query_map([], |row| {
        Ok((
            Namespace::new(row.get::<_, String>(0)?),
            ElicitationId::new(row.get::<_, String>(1)?),
            Timestamp(row.get(2)?),
        ))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Ends the pending questions of one server, or all, as void; but those of calls that rest, which wait for no server.
pub(super) fn void(
    changes: &mut Changes<'_>,
    server: Option<&ServerKey>,
) -> Result<Vec<ElicitationId>> {
    let pending = of_server(changes.connection, server, Some(QuestionState::Pending))?;
    let mut ended = Vec::new();
    for question in pending {
        if let Some(call) = &question.call_id
            && calls::rests(changes.connection, call)?
        {
            continue;
        }
        let which = (&question.server.namespace, &question.id);
        end(changes, which, QuestionState::Void, None)?;
        ended.push(question.id);
    }
    Ok(ended)
}

/// Gives every question of a server to another one. Pending ones are deleted at the one and appear at the other, so that
/// a follower of either sees the truth.
pub(super) fn move_all(changes: &mut Changes<'_>, old: &ServerKey, new: &ServerKey) -> Result<()> {
    let pending = of_server(changes.connection, Some(old), Some(QuestionState::Pending))?;
    changes
        .connection
        .prepare_cached(
            "UPDATE elicitations SET namespace = ?3, server_id = ?4 WHERE namespace = ?1 AND server_id = ?2",
        )?
        .execute([
            old.namespace.as_str(),
            old.id.as_str(),
            new.namespace.as_str(),
            new.id.as_str(),
        ])?;
    for mut question in pending {
        let kind = Kind::from(question.mode);
        changes.deleted(&old.namespace, &old.id, kind, question.id.as_str())?;
        question.server = new.clone();
        changes.question(question)?;
    }
    Ok(())
}

fn of_server(
    connection: &Connection,
    server: Option<&ServerKey>,
    state: Option<QuestionState>,
) -> Result<Vec<Question>> {
    let list = List {
        namespace: server.map(|key| key.namespace.clone()),
        modes: &[],
        server_ids: server.map(|key| key.id.clone()).into_iter().collect(),
        states: state.into_iter().collect(),
        after: None,
        limit: usize::MAX,
        bytes: usize::MAX,
    };
    Ok(list.read(connection)?.0)
}

/// One question.
pub(super) fn one(
    connection: &Connection,
    namespace: &Namespace,
    id: &ElicitationId,
) -> Result<Question> {
    let sql = format!("SELECT {COLUMNS} FROM elicitations WHERE id = ?1 AND namespace = ?2");
    connection
        .prepare_cached(&sql)?
        .query_row([id.as_str(), namespace.as_str()], |row| Ok(read(row)))
        .optional()?
        .unwrap_or_else(|| {
            Err(Error::new(
                Reason::ElicitationNotFound,
                format!("there is no question `{id}` in namespace `{namespace}`, or its end is long past"),
            ))
        })
}

/// Which questions; an empty list means "all".
pub(super) struct List {
    pub(super) namespace: Option<Namespace>,
    pub(super) modes: &'static [Mode],
    pub(super) server_ids: Vec<ServerId>,
    pub(super) states: Vec<QuestionState>,
    pub(super) after: Option<ElicitationId>,
    pub(super) limit: usize,
    /// Ends it behind the question that reaches this many bytes.
    pub(super) bytes: usize,
}

impl List {
    /// Reads them in the order of their ids, which is the order in which they were asked; tells whether there are more.
    pub(super) fn read(&self, connection: &Connection) -> Result<(Vec<Question>, bool)> {
        let mut sql = format!("SELECT {COLUMNS} FROM elicitations WHERE TRUE");
        let mut values = Vec::new();
        if let Some(namespace) = &self.namespace {
            sql.push_str(" AND namespace = ?");
            values.push(Value::from(namespace.as_str().to_owned()));
        }
        if let [state] = self.states.as_slice() {
            // As a literal, so that the index over pending questions applies.
            for part in [" AND state = '", state_text(*state), "'"] {
                sql.push_str(part);
            }
        } else if !self.states.is_empty() {
            let states = self.states.iter().map(|state| state_text(*state));
            sql.push_str(" AND state IN (SELECT value FROM json_each(?))");
            values.push(Value::from(super::json(&states.collect::<Vec<_>>())?));
        }
        if !self.modes.is_empty() {
            let modes: Vec<_> = self.modes.iter().map(|mode| mode_text(*mode)).collect();
            sql.push_str(" AND mode IN (SELECT value FROM json_each(?))");
            values.push(Value::from(super::json(&modes)?));
        }
        if let [id] = self.server_ids.as_slice() {
            sql.push_str(" AND server_id = ?");
            values.push(Value::from(id.as_str().to_owned()));
        } else if !self.server_ids.is_empty() {
            sql.push_str(" AND server_id IN (SELECT value FROM json_each(?))");
            values.push(Value::from(super::json(&self.server_ids)?));
        }
        if let Some(after) = &self.after {
            sql.push_str(" AND id > ?");
            values.push(Value::from(after.as_str().to_owned()));
        }
        sql.push_str(" ORDER BY id LIMIT ?");
        // One more tells that there are more.
        values.push(Value::from(count(self.limit.saturating_add(1))));
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        let (mut questions, mut bytes) = (Vec::new(), 0_usize);
        while let Some(row) = rows.next()? {
            if questions.len() == self.limit || bytes >= self.bytes {
                return Ok((questions, true));
            }
            let question = read(row)?;
            let schema = question.requested_schema.as_ref().map_or(0, String::len);
            bytes = bytes.saturating_add(question.message.len() + schema + question.request.len());
            questions.push(question);
        }
        Ok((questions, false))
    }
}

/// Appends every wanted question that is pending.
pub(super) fn snapshot(
    connection: &Connection,
    filter: &Filter,
    into: &mut Vec<Body>,
) -> Result<()> {
    let sql = format!("SELECT {COLUMNS} FROM elicitations WHERE state = 'pending' ORDER BY id");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let namespace = Namespace::new(row.get_ref(1)?.as_str().unwrap_or_default());
        let server = ServerId::new(row.get_ref(2)?.as_str().unwrap_or_default());
        if filter.admits(&namespace, &server, Kind::from(read_mode(row)?)) {
            into.push(Body::Elicitation(Box::new(read(row)?)));
        }
    }
    Ok(())
}

/// Forgets questions that ended longer ago than `keep`, and the oldest of too many; at most `chunk` of each.
pub(super) fn prune(
    connection: &Connection,
    keep: Duration,
    now: Timestamp,
    chunk: usize,
) -> Result<()> {
    let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    let oldest = now.0.saturating_sub(keep);
    connection
        .prepare_cached(
            "DELETE FROM elicitations WHERE id IN (
                 SELECT id FROM elicitations WHERE resolved IS NOT NULL AND resolved < ?1
                 AND NOT EXISTS (SELECT 1 FROM calls WHERE id = call_id AND rests = 1) ORDER BY resolved LIMIT ?2)",
        )?
        .execute([oldest, count(chunk)])?;
    let ended: i64 = connection
        .prepare_cached("SELECT count(*) FROM elicitations WHERE resolved IS NOT NULL")?
        .query_row([], |row| row.get(0))?;
    let excess = ended.saturating_sub(count(KEEP_ENDED));
    if excess > 0 {
        connection
            .prepare_cached(
                "DELETE FROM elicitations WHERE id IN (
                     SELECT id FROM elicitations WHERE resolved IS NOT NULL
                 AND NOT EXISTS (SELECT 1 FROM calls WHERE id = call_id AND rests = 1) ORDER BY resolved LIMIT ?1)",
            )?
            .execute([excess.min(count(chunk))])?;
    }
    Ok(())
}

/// Under which name errors tell the id of a question.
fn id_fact(mode: Mode) -> &'static str {
    match mode {
        Mode::Form | Mode::Url | Mode::Approval => "elicitation_id",
        Mode::Sampling => "sampling_request_id",
    }
}

/// The error for a question that has ended: which end, and when.
#[must_use]
pub fn already_resolved(question: &Question) -> Error {
    let id = &question.id;
    let state = state_text(question.state);
    let resolved = question.resolved.unwrap_or_default();
    let ago = Clock.wall().0.saturating_sub(resolved.0).max(0) / 1000;
    Error::new(
        Reason::AlreadyResolved,
        format!("the question `{id}` has ended already: `{state}`, {ago} s ago"),
    )
    .with(id_fact(question.mode), id.as_str())
    .with("state", state.to_uppercase())
    .with("resolved_unix_millis", resolved.0.to_string())
}
