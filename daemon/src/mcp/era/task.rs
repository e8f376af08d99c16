//! Tasks: a call that a server answers with a handle, to be asked for its state until it has ended.
//!
//! Two forms, one reading: the extension `io.modelcontextprotocol/tasks` of the modern era (SEP-2663), where the server
//! decides, and the experimental tasks of MCP 2025-11-25 (basic/utilities/tasks), where the client asks for one and
//! fetches the outcome with `tasks/result`.

use std::time::Duration;

use super::{Dialect, InputRequest, Request, input_requests, malformed};
use crate::error::{Error, Result, RpcError};
use crate::mcp::protocol::{self, RawJson, method};
use crate::model::status::Era;

/// Name of the extension.
pub(super) const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Longest handle, in bytes. It travels in a header, and most servers take no more than that of all headers.
const MAX_ID: usize = 8 * 1024;

/// A task as its server last described it.
#[derive(Clone, Debug)]
pub struct Task {
    /// The server's handle. It may be all that protects the task: it is shown to nobody.
    pub id: String,
    /// How far it is.
    pub progress: TaskProgress,
    /// The status in the server's word, for people.
    pub status: String,
    /// What the server says about it, for people; empty if nothing.
    pub message: String,
    /// When the server wants to be asked again.
    pub poll_after: Option<Duration>,
}

/// How far a task is.
#[derive(Clone, Debug)]
pub enum TaskProgress {
    /// The server is at work.
    Working,
    /// The server waits for answers to these, by its own keys; whatever is no longer among them it no longer needs.
    Asking(Vec<InputRequest>),
    /// The outcome, and on the way to it every question, comes with the answer to [`Dialect::task_result`].
    Fetch,
    /// Done, with the result of the call.
    Completed(RawJson),
    /// The call ended with this error.
    Failed(RpcError),
    /// It was cancelled at the server.
    Cancelled,
}

impl Task {
    /// One of which nothing is known but its handle: to be looked at soon.
    #[must_use]
    pub fn unknown(id: String) -> Self {
        Self {
            id,
            progress: TaskProgress::Working,
            status: String::new(),
            message: String::new(),
            poll_after: Some(Duration::ZERO),
        }
    }

    /// Whether it will not change any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(
            self.progress,
            TaskProgress::Completed(_) | TaskProgress::Failed(_) | TaskProgress::Cancelled
        )
    }
}

impl Dialect {
    /// Asks how far a task is.
    #[must_use]
    pub fn task_get(&self, id: &str) -> Request {
        about(method::TASKS_GET, id)
    }

    /// Asks for the outcome of a task (2025-11-25); answered when the task has ended.
    #[must_use]
    pub fn task_result(&self, id: &str) -> Request {
        about(method::TASKS_RESULT, id)
    }

    /// Wants a task to be cancelled.
    #[must_use]
    pub fn task_cancel(&self, id: &str) -> Request {
        about(method::TASKS_CANCEL, id)
    }

    /// Answers what a task asks: an object of answers by the server's keys.
    #[must_use]
    pub fn task_update(&self, id: &str, answers: RawJson) -> Request {
        about(method::TASKS_UPDATE, id).param("inputResponses", answers)
    }

    /// Reads a task that was just made: what it needs or came to is only told to who asks for it.
    ///
    /// # Errors
    /// `UPSTREAM_PROTOCOL` if it describes no task.
    pub(super) fn read_new_task(&self, result: &RawJson) -> Result<Task> {
        let mut task = self.describe(result)?;
        if task.status != "working" {
            task.poll_after = Some(Duration::ZERO);
        }
        Ok(task)
    }

    /// Reads the answer to [`Dialect::task_get`].
    ///
    /// # Errors
    /// `UPSTREAM_PROTOCOL` if it describes no task.
    pub fn read_task(&self, result: &RawJson) -> Result<Task> {
        let mut task = self.describe(result)?;
        let member = |name: &str| {
            let fault = || no_task(&format!("is `{}` and has no `{name}`", task.status));
            result
                .get(name)
                .filter(RawJson::is_object)
                .ok_or_else(fault)
        };
        task.progress = match task.status.as_str() {
            "working" => TaskProgress::Working,
            "cancelled" => TaskProgress::Cancelled,
            "input_required" | "completed" | "failed" if self.era == Era::Legacy => {
                TaskProgress::Fetch
            }
            "input_required" => TaskProgress::Asking(input_requests(&member("inputRequests")?)?),
            "completed" => TaskProgress::Completed(member("result")?),
            "failed" => TaskProgress::Failed(protocol::rpc_error(&member("error")?)),
            other => return Err(no_task(&format!("has the unknown status `{other}`"))),
        };
        Ok(task)
    }

    fn describe(&self, result: &RawJson) -> Result<Task> {
        let text = |name: &str| result.get(name).and_then(|text| text.read::<String>());
        let pause = match self.era {
            Era::Legacy => "pollInterval",
            Era::Modern => "pollIntervalMs",
        };
        // A fraction of a millisecond is odd, and harmless.
        let pause = result.get(pause).and_then(|pause| pause.read::<f64>());
        let id = text("taskId").ok_or_else(|| no_task("has no `taskId`"))?;
        if id.len() > MAX_ID {
            let length = id.len();
            return Err(no_task(&format!(
                "has a `taskId` of {length} bytes; at most {MAX_ID} can be asked for"
            )));
        }
        Ok(Task {
            id,
            progress: TaskProgress::Working,
            status: text("status").ok_or_else(|| no_task("has no `status`"))?,
            message: text("statusMessage").unwrap_or_default(),
            poll_after: pause.and_then(|pause| Duration::try_from_secs_f64(pause / 1e3).ok()),
        })
    }
}

fn no_task(fault: &str) -> Error {
    malformed("task", fault)
}

fn about(method: &'static str, id: &str) -> Request {
    let mut request = Request::new(method).param("taskId", RawJson::encode(id));
    // Intermediaries find the holder of the task by it.
    request.name = Some(id.to_owned());
    request
}

#[cfg(test)]
mod tests {
    use super::super::tests::{raw, spec};
    use super::*;
    use crate::model::spec::Abilities;

    fn dialects() -> [Dialect; 2] {
        [
            Dialect::new(Era::Modern, "2026-07-28", &spec()),
            Dialect::new(Era::Legacy, "2025-11-25", &spec()),
        ]
    }

    #[test]
    fn tasks_of_both_eras_are_read_alike() {
        let [modern, legacy] = dialects();
        let working = r#"{"taskId":"t","status":"working","statusMessage":"half","pollIntervalMs":20,"pollInterval":30}"#;
        let task = modern.read_task(&raw(working)).unwrap();
        assert_eq!((task.id.as_str(), task.message.as_str()), ("t", "half"));
        assert_eq!(task.poll_after, Some(Duration::from_millis(20)));
        assert!(!task.has_ended());
        let task = legacy.read_task(&raw(working)).unwrap();
        assert_eq!(task.poll_after, Some(Duration::from_millis(30)));
        for status in ["input_required", "completed", "failed"] {
            let json = format!(r#"{{"taskId":"t","status":"{status}"}}"#);
            let task = legacy.read_task(&raw(&json)).unwrap();
            assert!(matches!(task.progress, TaskProgress::Fetch), "{status}");
            assert!(modern.read_task(&raw(&json)).is_err(), "{status}");
        }
    }

    #[test]
    fn an_outcome_is_kept_as_it_came() {
        let [modern, _] = dialects();
        let done = r#"{"taskId":"t","status":"completed","result":{"n":1.10,"isError":true}}"#;
        let task = modern.read_task(&raw(done)).unwrap();
        let TaskProgress::Completed(result) = task.progress else {
            panic!("{task:?}")
        };
        assert_eq!(result.as_str(), r#"{"n":1.10,"isError":true}"#);
        let failed = r#"{"taskId":"t","status":"failed","error":{"code":-5,"message":"no"}}"#;
        let task = modern.read_task(&raw(failed)).unwrap();
        assert!(matches!(task.progress, TaskProgress::Failed(error) if error.code == -5));
    }

    #[test]
    fn odd_tasks_are_refused_and_odd_pauses_are_not() {
        let [modern, _] = dialects();
        for odd in [
            "{}",
            r#"{"taskId":7,"status":"working"}"#,
            r#"{"taskId":"t","status":"sleeping"}"#,
            r#"{"taskId":"t","status":"input_required","inputRequests":[]}"#,
            r#"{"taskId":"t","status":"completed","result":3}"#,
        ] {
            assert!(modern.read_task(&raw(odd)).is_err(), "{odd}");
        }
        for pause in ["-1", "1e400", "null", "\"soon\""] {
            let json = format!(r#"{{"taskId":"t","status":"working","pollIntervalMs":{pause}}}"#);
            let task = modern.read_task(&raw(&json)).unwrap();
            assert_eq!(task.poll_after, None, "{pause}");
        }
    }

    #[test]
    fn requests_about_a_task_name_it_where_intermediaries_look() {
        let [modern, _] = dialects();
        let frame = modern.encode(&modern.task_get("t 1"), 3, Abilities::NOTHING);
        let name = frame.headers.iter().find(|(name, _)| name == "mcp-name");
        assert_eq!(name.unwrap().1, "t 1");
        let body = String::from_utf8(frame.body.to_vec()).unwrap();
        assert!(
            body.contains(r#""method":"tasks/get","params":{"taskId":"t 1","#),
            "{body}"
        );
    }
}
