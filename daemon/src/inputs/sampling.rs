//! What a model answered, compared with what a server asked it (MCP client/sampling, schema `CreateMessageResult`).
//!
//! Never quotes a value of the answer: what is said about it goes into errors, and errors into logs. Never changes an answer:
//! members that nobody knows go to the server with the rest.

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::error::{Error, Result, Violation};
use crate::json::{Elements, Members};
use crate::model::question::Answer;

/// Most faults that are reported.
const MAX_FAULTS: usize = 256;
/// Where the answer is in the request of the app.
const ROOT: &str = "result_json";

/// Gives the answer back if it fits the request.
///
/// # Errors
/// `INVALID_FIELD` on `result_json` and on the paths in it.
pub(super) async fn accept(request: String, result: String) -> Result<Answer> {
    // Server and app choose the sizes, within bounds: not on a thread that others need.
    let checked = tokio::task::spawn_blocking(move || {
        let outcome = check(&request, &result);
        outcome.map(|()| Answer::Accept(Some(result)))
    });
    checked
        .await
        .map_err(|_| Error::internal("the check of an answer ended early"))?
}

fn check(request: &str, result: &str) -> Result<()> {
    if let Err(cause) = serde_json::from_str::<IgnoredAny>(result) {
        let message = format!("the text is not JSON: {cause}");
        return Err(Error::invalid(ROOT, message));
    }
    let mut faults = Faults::default();
    if let Some(answer) = Part::read(ROOT.to_owned(), result, &mut faults) {
        let offer = Offer::of(request);
        look(&answer, &offer, &mut faults);
    }
    if faults.0.is_empty() {
        return Ok(());
    }
    let all: Vec<_> = faults
        .0
        .iter()
        .map(|fault| format!("`{}` {}", fault.field, fault.message))
        .collect();
    let message = format!("the result is not as MCP wants it: {}", all.join(", "));
    Err(Error::invalid_fields(message, faults.0))
}

fn look(answer: &Part<'_>, offer: &Offer, faults: &mut Faults) {
    let role = answer.text("role", faults);
    if role
        .as_deref()
        .is_some_and(|role| !matches!(role, "user" | "assistant"))
    {
        faults.add(answer.at("role"), "must be `assistant` or `user`");
    }
    answer.text("model", faults);
    answer.optional_text("stopReason", faults);
    answer.optional_object("_meta", faults);
    let Some(content) = answer.required("content", faults) else {
        return;
    };
    let path = answer.at("content");
    let mut uses = Uses {
        offer,
        by_assistant: role.as_deref() == Some("assistant"),
        ids: HashSet::new(),
    };
    match serde_json::from_str::<Elements<'_>>(content) {
        Ok(blocks) if blocks.0.is_empty() => faults.add(path, "must hold at least one block"),
        Ok(blocks) => {
            for (index, one) in blocks.0.into_iter().enumerate() {
                block(format!("{path}[{index}]"), one.get(), &mut uses, faults);
            }
        }
        Err(_) if content.starts_with('[') => faults.add(path, "has too many blocks"),
        Err(_) => block(path, content, &mut uses, faults),
    }
}

fn block(path: String, json: &str, uses: &mut Uses<'_>, faults: &mut Faults) {
    let Some(block) = Part::read(path, json, faults) else {
        return;
    };
    let Some(kind) = block.text("type", faults) else {
        return;
    };
    match kind.as_str() {
        "text" => {
            block.text("text", faults);
        }
        "image" | "audio" => {
            let data = block.text("data", faults);
            if data.is_some_and(|data| STANDARD.decode(data).is_err()) {
                faults.add(block.at("data"), "must be base64 (RFC 4648), with padding");
            }
            block.text("mimeType", faults);
        }
        "tool_use" => return uses.look(&block, faults),
        _ => {
            let kinds = "must be `text`, `image`, `audio` or `tool_use`";
            faults.add(block.at("type"), kinds);
            return;
        }
    }
    block.optional_object("_meta", faults);
    annotations(&block, faults);
}

fn annotations(block: &Part<'_>, faults: &mut Faults) {
    let Some(json) = block.get("annotations") else {
        return;
    };
    let Some(annotations) = Part::read(block.at("annotations"), json, faults) else {
        return;
    };
    let is_role = |role: &String| matches!(role.as_str(), "user" | "assistant");
    if let Some(json) = annotations.get("audience")
        && !serde_json::from_str::<Vec<String>>(json).is_ok_and(|roles| roles.iter().all(is_role))
    {
        let message = "must be an array of `user` and `assistant`";
        faults.add(annotations.at("audience"), message);
    }
    if let Some(json) = annotations.get("priority")
        && !serde_json::from_str::<f64>(json).is_ok_and(|priority| (0.0..=1.0).contains(&priority))
    {
        faults.add(annotations.at("priority"), "must be a number from 0 to 1");
    }
    annotations.optional_text("lastModified", faults);
}

/// What the model may use.
struct Offer {
    tools: HashSet<String>,
    forbidden: bool,
}

#[derive(serde::Deserialize)]
struct Named {
    name: String,
}

#[derive(serde::Deserialize)]
struct Choice {
    mode: String,
}

impl Offer {
    fn of(request: &str) -> Self {
        let members: Option<Members<'_>> = serde_json::from_str(request).ok();
        let part = |name: &str| {
            let mut members = members.iter().flat_map(|members| members.0.iter().rev());
            let found = members.find(|(known, _)| known == name);
            found.map_or("null", |(_, value)| value.get())
        };
        let tools: Vec<&RawValue> = serde_json::from_str(part("tools")).unwrap_or_default();
        let tools = tools.into_iter().filter_map(|tool| {
            let named: Option<Named> = serde_json::from_str(tool.get()).ok();
            named.map(|named| named.name)
        });
        let choice: Option<Choice> = serde_json::from_str(part("toolChoice")).ok().flatten();
        Self {
            tools: tools.collect(),
            forbidden: choice.is_some_and(|choice| choice.mode == "none"),
        }
    }
}

/// The uses of tools in one answer.
struct Uses<'a> {
    offer: &'a Offer,
    by_assistant: bool,
    ids: HashSet<String>,
}

impl Uses<'_> {
    fn look(&mut self, block: &Part<'_>, faults: &mut Faults) {
        if self.offer.tools.is_empty() {
            faults.add(
                block.at("type"),
                "must not be `tool_use`: the server offers no tools",
            );
            return;
        }
        if self.offer.forbidden {
            faults.add(
                block.at("type"),
                "must not be `tool_use`: the server forbids the use of tools",
            );
            return;
        }
        if !self.by_assistant {
            faults.add(
                block.at("type"),
                "must not be `tool_use` unless the role is `assistant`",
            );
        }
        let id = block.text("id", faults);
        if id.is_some_and(|id| !self.ids.insert(id)) {
            faults.add(block.at("id"), "must not be the id of another block");
        }
        let name = block.text("name", faults);
        if name.is_some_and(|name| !self.offer.tools.contains(&name)) {
            faults.add(
                block.at("name"),
                "must be the name of a tool that the server offers",
            );
        }
        if block.required("input", faults).is_some() {
            block.optional_object("input", faults);
        }
        block.optional_object("_meta", faults);
    }
}

#[derive(Default)]
struct Faults(Vec<Violation>);

impl Faults {
    fn add(&mut self, path: String, message: &str) {
        if self.0.len() < MAX_FAULTS {
            self.0.push(Violation::new(path, message));
        }
    }
}

/// An object in the answer, and where it is.
struct Part<'a> {
    path: String,
    members: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> Part<'a> {
    /// Receivers disagree about which of two members of the same name counts, so there must not be two.
    fn read(path: String, json: &'a str, faults: &mut Faults) -> Option<Self> {
        let Ok(members) = serde_json::from_str::<Members<'a>>(json) else {
            faults.add(path, "must be a JSON object");
            return None;
        };
        let part = Self {
            path,
            members: members.0,
        };
        let mut names = HashSet::new();
        for (name, _) in &part.members {
            if !names.insert(name.as_ref()) {
                faults.add(part.at(name), "must not be given more than once");
            }
        }
        Some(part)
    }

    fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        let found = self.members.iter().find(|(known, _)| known == name)?;
        Some(found.1.get())
    }

    fn required(&self, name: &str, faults: &mut Faults) -> Option<&'a str> {
        let found = self.get(name);
        if found.is_none() {
            faults.add(self.at(name), "is required");
        }
        found
    }

    fn text(&self, name: &str, faults: &mut Faults) -> Option<String> {
        self.required(name, faults)?;
        self.optional_text(name, faults)
    }

    fn optional_text(&self, name: &str, faults: &mut Faults) -> Option<String> {
        let text = serde_json::from_str(self.get(name)?).ok();
        if text.is_none() {
            faults.add(self.at(name), "must be a string of Unicode text");
        }
        text
    }

    fn optional_object(&self, name: &str, faults: &mut Faults) {
        if self.get(name).is_some_and(|json| !json.starts_with('{')) {
            faults.add(self.at(name), "must be a JSON object");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    const PLAIN: &str = r#"{"messages":[],"maxTokens":5}"#;
    const TOOLS: &str = r#"{"messages":[],"maxTokens":5,"tools":[{"name":"get","inputSchema":{}},{"nameless":1},"x"]}"#;

    fn faults(request: &str, result: &str) -> Vec<String> {
        let Err(error) = check(request, result) else {
            return Vec::new();
        };
        let all = error.violations().iter();
        all.map(|one| format!("{} {}", one.field, one.message))
            .collect()
    }

    fn with(content: &str) -> String {
        format!(r#"{{"role":"assistant","model":"m","content":{content}}}"#)
    }

    #[test]
    fn what_models_say_is_taken() {
        for content in [
            r#"{"type":"text","text":""}"#,
            r#" [ {"type":"text","text":"a","x":1e400,"annotations":{"audience":["user"],"priority":0.5}} ]"#,
            r#"{"type":"image","data":"AQI=","mimeType":"image/png","_meta":{}}"#,
            r#"[{"type":"audio","data":"","mimeType":"audio/wav"},{"type":"text","text":"b"}]"#,
        ] {
            assert_eq!(faults(PLAIN, &with(content)), [""; 0], "{content}");
        }
        let uses = r#"[{"type":"tool_use","id":"1","name":"get","input":{"a":18446744073709551616}},{"type":"tool_use","id":"2","name":"get","input":{}}]"#;
        assert_eq!(faults(TOOLS, &with(uses)), [""; 0]);
        let whole = r#" {"role":"user","model":"","content":{"type":"text","text":"x"},"stopReason":"anything","_meta":{"k":1},"more":null} "#;
        assert_eq!(faults(PLAIN, whole), [""; 0]);
    }

    #[test]
    fn every_fault_has_its_place() {
        for (result, expected) in [
            ("[]", vec!["result_json must be a JSON object"]),
            (
                "{}",
                vec![
                    "result_json.role is required",
                    "result_json.model is required",
                    "result_json.content is required",
                ],
            ),
            (
                r#"{"role":"system","model":null,"content":[],"stopReason":null,"_meta":[],"model":"m"}"#,
                vec![
                    "result_json.model must not be given more than once",
                    "result_json.role must be `assistant` or `user`",
                    "result_json.model must be a string of Unicode text",
                    "result_json.stopReason must be a string of Unicode text",
                    "result_json._meta must be a JSON object",
                    "result_json.content must hold at least one block",
                ],
            ),
        ] {
            assert_eq!(faults(PLAIN, result), expected, "{result}");
        }
        let malformed = faults(PLAIN, r#"{"role":"secret"#);
        assert!(malformed[0].starts_with("result_json the text is not JSON:"));
        assert!(!malformed[0].contains("secret"));
    }

    #[test]
    fn every_block_is_looked_at() {
        let blocks = r#"[5,{"text":"x"},{"type":"text"},{"type":"image","data":"A","mimeType":1},
            {"type":"tool_result","toolUseId":"1","content":[]},{"type":"text","text":"\ud800"},
            {"type":"text","text":"x","annotations":{"audience":"user","priority":2}}]"#;
        assert_eq!(
            faults(PLAIN, &with(blocks)),
            [
                "result_json.content[0] must be a JSON object",
                "result_json.content[1].type is required",
                "result_json.content[2].text is required",
                "result_json.content[3].data must be base64 (RFC 4648), with padding",
                "result_json.content[3].mimeType must be a string of Unicode text",
                "result_json.content[4].type must be `text`, `image`, `audio` or `tool_use`",
                "result_json.content[5].text must be a string of Unicode text",
                "result_json.content[6].annotations.audience must be an array of `user` and `assistant`",
                "result_json.content[6].annotations.priority must be a number from 0 to 1",
            ]
        );
    }

    #[test]
    fn tools_are_used_only_where_they_are_offered() {
        let one = with(r#"{"type":"tool_use","id":"1","name":"get","input":{}}"#);
        let none = r#"{"messages":[],"tools":[{"name":"get"}],"toolChoice":{"mode":"none"}}"#;
        let not = "result_json.content.type must not be `tool_use`";
        for request in [PLAIN, r#"{"tools":null}"#, r#"{"tools":[]}"#] {
            assert_eq!(
                faults(request, &one),
                [format!("{not}: the server offers no tools")]
            );
        }
        assert_eq!(
            faults(none, &one),
            [format!("{not}: the server forbids the use of tools")]
        );
        let as_user = one.replace("assistant", "user");
        assert_eq!(
            faults(TOOLS, &as_user),
            [format!("{not} unless the role is `assistant`")]
        );
        let several = r#"[{"type":"tool_use","id":"1","name":"other","input":[]},{"type":"tool_use","id":"1","name":"get"}]"#;
        assert_eq!(
            faults(TOOLS, &with(several)),
            [
                "result_json.content[0].name must be the name of a tool that the server offers",
                "result_json.content[0].input must be a JSON object",
                "result_json.content[1].id must not be the id of another block",
                "result_json.content[1].input is required",
            ]
        );
    }
}
