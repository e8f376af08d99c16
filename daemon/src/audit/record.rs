//! One line of the audit log.

use std::time::{Duration, UNIX_EPOCH};

use serde::{Serialize, Serializer};

use crate::base::Timestamp;
use crate::model::origin::Origin;

/// Longest text that a caller or a server has chosen, in bytes.
const MAX_TEXT: usize = 512;

/// What somebody was asked, and said.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Asked {
    /// The question, request of a model, or approval.
    pub question_id: String,
    /// How it was put.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// What was done about it; never with which content.
    pub action: &'static str,
}

/// Arguments of a call, as text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Arguments {
    /// The JSON text, or its beginning.
    arguments: String,
    /// How long the whole text is, if that is only its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments_bytes: Option<usize>,
}

impl Arguments {
    /// At most `bound` bytes of a text.
    #[must_use]
    pub fn cut(text: &str, bound: usize) -> Self {
        let whole = text.len() <= bound;
        Self {
            arguments: cut(text, bound).to_owned(),
            arguments_bytes: (!whole).then_some(text.len()),
        }
    }
}

/// One line. What is not known, or does not apply, is left out.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// When it ended.
    #[serde(serialize_with = "rfc3339")]
    pub time: Timestamp,
    /// What was done.
    pub event: String,
    /// `ok`, `tool_error`, or a reason code.
    pub outcome: String,
    /// In which namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// With which server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Which tool was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Which resource was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Which prompt was got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The id of the token that was made or revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_token: Option<String>,
    /// The call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The id that the app gave the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Whether a call that another RPC had begun was joined.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub joined: bool,
    /// What was answered, and how.
    #[serde(flatten)]
    pub asked: Option<Asked>,
    /// Who did it.
    #[serde(flatten)]
    pub origin: Option<Origin>,
    /// From the beginning to the end.
    pub duration_ms: u64,
    /// The arguments of the call.
    #[serde(flatten)]
    pub arguments: Option<Arguments>,
    /// How many records are missing before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl Record {
    /// A record of what ended now.
    #[must_use]
    pub fn new(time: Timestamp, event: &str, outcome: &str) -> Self {
        Self {
            time,
            event: event.to_owned(),
            outcome: outcome.to_owned(),
            namespace: None,
            server: None,
            tool: None,
            resource: None,
            prompt: None,
            app_token: None,
            call_id: None,
            request_id: None,
            joined: false,
            asked: None,
            origin: None,
            duration_ms: 0,
            arguments: None,
            count: None,
        }
    }

    /// Cuts every text that somebody else has chosen, so that a record has a bound.
    #[must_use]
    pub(super) fn bounded(mut self) -> Self {
        for text in [
            &mut self.server,
            &mut self.tool,
            &mut self.resource,
            &mut self.prompt,
            &mut self.app_token,
            &mut self.call_id,
        ]
        .into_iter()
        .flatten()
        {
            text.truncate(cut(text, MAX_TEXT).len());
        }
        if let Some(asked) = &mut self.asked {
            let id = &mut asked.question_id;
            id.truncate(cut(id, MAX_TEXT).len());
        }
        self
    }

    /// When it ended, as text.
    pub(super) fn time(&self) -> String {
        shown(self.time)
    }
}

fn cut(text: &str, bound: usize) -> &str {
    text.get(..text.floor_char_boundary(bound))
        .unwrap_or_default()
}

/// RFC 3339, UTC, with milliseconds.
fn shown(time: Timestamp) -> String {
    let since = Duration::from_millis(u64::try_from(time.0).unwrap_or(0));
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives references")]
fn rfc3339<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&shown(*time))
}

#[cfg(test)]
mod tests {
    use super::{Arguments, Record};
    use crate::base::Timestamp;
    use crate::model::origin::Origin;

    #[test]
    fn a_record_is_one_line_whatever_it_holds() {
        let mut record = Record::new(Timestamp(1_700_000_000_123), "tool_call", "ok");
        record.tool = Some("a\n\"b\"\u{1b}".to_owned());
        record.server = Some("ä".repeat(1000));
        record.origin = Some(Origin {
            uid: Some(7),
            ..Origin::default()
        });
        record.arguments = Some(Arguments::cut("{\"ä\": 1}", 3));
        let line = serde_json::to_string(&record.bounded()).unwrap();
        assert!(!line.contains('\n'), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["time"], "2023-11-14T22:13:20.123Z");
        assert_eq!(read["tool"], "a\n\"b\"\u{1b}");
        assert_eq!(read["server"].as_str().unwrap().len(), 512);
        assert_eq!(read["uid"], 7);
        assert_eq!(
            (&read["arguments"], &read["arguments_bytes"]),
            (&"{\"".into(), &9.into())
        );
        assert!(read.get("resource").is_none() && read.get("joined").is_none());
    }
}
