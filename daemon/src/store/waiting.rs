//! What waits for answers: questions, and calls that are kept.

use std::sync::Arc;

use rusqlite::Connection;

use super::{READ_BYTES, Store, calls, no_such_call, questions};
use crate::base::{CallId, ElicitationId, Namespace, Revision, ServerId, ServerKey, Timestamp};
use crate::error::Result;
use crate::model::call::{
    Begun, Call, CallState, GoneOn, NewCall, Outcome, QuestionLimits, Unended,
};
use crate::model::question::{Answer, Mode, Question, QuestionState};

#[expect(unused_imports, reason = "named in documentation")]
use crate::error::Reason;

impl Store {
    /// Inserts a question of a call that is under way, or of none. Durable.
    ///
    /// # Errors
    /// [`Reason::TooMany`]; [`Reason::StoreFailed`], also if its id exists.
    pub async fn put_question(
        &self,
        question: Question,
        limits: QuestionLimits,
    ) -> Result<Revision> {
        self.durable(move |changes| questions::put(changes, question, limits))
            .await
    }

    /// Ends a pending question and returns it. Of several that try, one succeeds. The content of the answer is kept, sealed,
    /// until [`Store::go_on`] if its call rests, and else never stored. Durable.
    ///
    /// # Errors
    /// [`Reason::AlreadyResolved`] if it has ended (the message and facts say how and when),
    /// [`Reason::ElicitationNotFound`], [`Reason::StoreFailed`].
    pub async fn end_question(
        &self,
        id: ElicitationId,
        namespace: Namespace,
        state: QuestionState,
        answer: Option<&Answer>,
    ) -> Result<Question> {
        let sealed = match answer {
            Some(Answer::Accept(Some(content))) => {
                let row = (&namespace, &id);
                Some(questions::seal_answer(&self.0.sealer, row, content)?)
            }
            _ => None,
        };
        self.durable(move |changes| {
            questions::end(changes, (&namespace, &id), state, sealed.as_deref())
        })
        .await
    }

    /// Ends every pending question of a server as void, for example because its connection is gone. Durable. Returns
    /// their ids, oldest first.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn void_questions(&self, key: ServerKey) -> Result<Vec<ElicitationId>> {
        self.durable(move |changes| questions::void(changes, Some(&key)))
            .await
    }

    /// Notes that a server says what was opened for its question is done with: on every question of it with this id of its
    /// own that is pending or accepted, once. Returns them. Writes nothing if there is none. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn complete_questions(
        &self,
        server: ServerKey,
        server_elicitation_id: String,
    ) -> Result<Vec<ElicitationId>> {
        // A server may send any number of ids that nobody knows: these must not wait for the disk.
        let (key, id) = (server.clone(), server_elicitation_id.clone());
        let known = move |connection: &Connection| {
            Ok(!questions::uncompleted(connection, &key, &id)?.is_empty())
        };
        if !self.0.reads.read(known).await? {
            return Ok(Vec::new());
        }
        self.durable(move |changes| questions::complete(changes, &server, &server_elicitation_id))
            .await
    }

    /// One question, pending or ended.
    ///
    /// # Errors
    /// [`Reason::ElicitationNotFound`] if it is unknown, of another namespace, or no longer kept;
    /// [`Reason::StoreFailed`].
    pub async fn question(&self, namespace: Namespace, id: ElicitationId) -> Result<Question> {
        let run = move |connection: &Connection| questions::one(connection, &namespace, &id);
        self.0.reads.read(run).await
    }

    /// Up to `limit` questions of a namespace behind the id `after`, oldest first, but only the first of them with
    /// 1 MiB together, and whether there are more. An empty list of modes, servers or states means "all".
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn questions(
        &self,
        namespace: Namespace,
        modes: &'static [Mode],
        server_ids: Vec<ServerId>,
        states: Vec<QuestionState>,
        after: Option<ElicitationId>,
        limit: usize,
    ) -> Result<(Vec<Question>, bool)> {
        let list = questions::List {
            namespace: Some(namespace),
            modes,
            server_ids,
            states,
            after,
            limit,
            bytes: READ_BYTES,
        };
        self.0
            .reads
            .read(move |connection| list.read(connection))
            .await
    }

    /// The pending questions of calls that rest, and when they expire.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn resting_questions(&self) -> Result<Vec<(Namespace, ElicitationId, Timestamp)>> {
        self.0.reads.read(questions::resting).await
    }

    /// The call that an app has named so before; the digest tells what it asks for.
    ///
    /// # Errors
    /// [`Reason::InvalidField`] if it asks for something else; [`Reason::StoreFailed`].
    pub async fn known_call(
        &self,
        namespace: Namespace,
        request_id: String,
        digest: Vec<u8>,
    ) -> Result<Option<CallId>> {
        let run = move |connection: &Connection| {
            calls::known(connection, (&namespace, &request_id), &digest)
        };
        self.0.reads.read(run).await
    }

    /// Puts a call on disk, unless it is there under its request id. Durable.
    ///
    /// # Errors
    /// [`Reason::InvalidField`] if the request id names another call; [`Reason::StoreFailed`].
    pub async fn begin_call(&self, new: NewCall) -> Result<Begun> {
        let sealed = self.seal_plan(&new)?;
        self.durable(move |changes| calls::begin(changes, new, &sealed))
            .await
    }

    /// Lays a call to rest until its questions, which are put on the queue with it, have ended. Durable, all or nothing.
    ///
    /// # Errors
    /// [`Reason::AlreadyResolved`] if the call has ended; [`Reason::TooMany`]; [`Reason::StoreFailed`].
    pub async fn rest_call(
        &self,
        new: NewCall,
        asked: Vec<Question>,
        limits: QuestionLimits,
    ) -> Result<()> {
        let sealed = self.seal_plan(&new)?;
        self.durable(move |changes| calls::rest(changes, new, &sealed, asked, limits))
            .await
    }

    /// Takes up a call whose questions have all ended, with the answers, which are no longer stored from then on. `None`
    /// if it does not rest, or waits for more: of several that try, one succeeds. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn go_on(&self, id: CallId) -> Result<Option<GoneOn>> {
        let sealer = Arc::clone(&self.0.sealer);
        self.durable(move |changes| calls::go_on(changes, &sealer, &id))
            .await
    }

    /// Ends a call that is on disk and has not ended, and its pending questions: as void with an error, else as cancelled.
    /// `None` if there is no such call. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn end_call(
        &self,
        namespace: Namespace,
        id: CallId,
        outcome: Outcome,
    ) -> Result<Option<Call>> {
        let (sealer, keep) = (Arc::clone(&self.0.sealer), self.0.keep_calls);
        self.durable(move |changes| calls::end(changes, &sealer, (&namespace, &id), &outcome, keep))
            .await
    }

    /// How many questions are pending, and how many updates are kept.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn figures(&self) -> Result<(u64, u64)> {
        let run = |connection: &Connection| {
            let one = |sql: &str| -> Result<u64> {
                let count: i64 = connection
                    .prepare_cached(sql)?
                    .query_row([], |row| row.get(0))?;
                Ok(u64::try_from(count).unwrap_or(0))
            };
            let pending = one("SELECT count(*) FROM elicitations WHERE state = 'pending'")?;
            // Without a gap, so that none needs to be counted.
            let kept = one("SELECT coalesce(max(revision) - min(revision) + 1, 0) FROM updates")?;
            Ok((pending, kept))
        };
        self.0.reads.read(run).await
    }

    /// Deals with calls that had not ended when the daemon did, and returns them: those that were under way end as
    /// `interrupted` says, those that rest are detached from now on. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn calls_at_start(&self, interrupted: Outcome) -> Result<Unended> {
        let (sealer, keep) = (Arc::clone(&self.0.sealer), self.0.keep_calls);
        self.durable(move |changes| calls::start_over(changes, &sealer, &interrupted, keep))
            .await
    }

    /// A call that is on disk, with what came of it if it has ended.
    ///
    /// # Errors
    /// [`Reason::CallNotFound`], [`Reason::StoreFailed`].
    pub async fn call(&self, namespace: Namespace, id: CallId) -> Result<(Call, Option<Outcome>)> {
        let sealer = Arc::clone(&self.0.sealer);
        let run = move |connection: &Connection| {
            let found = calls::with_outcome(connection, &sealer, &namespace, &id)?;
            found.ok_or_else(|| no_such_call(&namespace, id.as_str()))
        };
        self.0.reads.read(run).await
    }

    /// Which of these calls have questions that are pending.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn calls_that_wait(&self, ids: Vec<CallId>) -> Result<Vec<CallId>> {
        let run = move |connection: &Connection| calls::that_wait(connection, ids);
        self.0.reads.read(run).await
    }

    /// The id of the call that an app made under this request id.
    ///
    /// # Errors
    /// [`Reason::CallNotFound`], [`Reason::StoreFailed`].
    pub async fn call_by_request(
        &self,
        namespace: Namespace,
        request_id: String,
    ) -> Result<CallId> {
        let run = move |connection: &Connection| {
            let found = calls::by_request(connection, &namespace, &request_id)?;
            found.ok_or_else(|| no_such_call(&namespace, &request_id))
        };
        self.0.reads.read(run).await
    }

    /// Up to `limit` calls of a namespace that are on disk, behind the id `after`, oldest first. An empty list of servers
    /// or states means "all".
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn calls(
        &self,
        namespace: Namespace,
        server_ids: Vec<ServerId>,
        states: Vec<CallState>,
        after: Option<CallId>,
        limit: usize,
    ) -> Result<Vec<Call>> {
        let list = calls::List {
            namespace,
            server_ids,
            states,
            after,
            limit,
        };
        self.0
            .reads
            .read(move |connection| list.read(connection))
            .await
    }

    fn seal_plan(&self, new: &NewCall) -> Result<Vec<u8>> {
        let call = &new.call;
        calls::seal(
            &self.0.sealer,
            (&call.server.namespace, &call.id),
            &new.plan,
        )
    }
}
