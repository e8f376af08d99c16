//! Results of servers to the contract, losing nothing: what has no field of its own goes into `extra_json`, and a block
//! that cannot be taken apart goes out whole (promise 2).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use mcp_sidecar_proto::v1;
use tokio::runtime::RuntimeFlavor;
use v1::content_block::Block;
use v1::resource_contents::Body;

use super::convert;
use crate::calls::Answer;
use crate::catalog::entry::Fields;
use crate::catalog::output::{Checker, Findings, Violation};
use crate::error::{Error, Reason, Result};
use crate::mcp::protocol::RawJson;
use crate::model::spec::LogLevel;

/// Results above this size are taken apart beside the workers that serve everybody.
const HEAVY: usize = 256 * 1024;
/// Most blocks, contents or messages of one result.
const MAX_PARTS: usize = 10_000;

/// Runs work on a result of this size without holding up other tasks of the same worker.
fn apart<T>(size: usize, work: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Handle::try_current().map(|handle| handle.runtime_flavor());
    match runtime {
        Ok(RuntimeFlavor::MultiThread) if size > HEAVY => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// A tool's result (MCP schema `CallToolResult`).
///
/// # Errors
/// `UPSTREAM_PROTOCOL` if it is not an object.
fn tool_result(raw: &RawJson) -> Result<v1::ToolResult> {
    apart(raw.as_str().len(), || tool_result_now(raw))
}

fn tool_result_now(raw: &RawJson) -> Result<v1::ToolResult> {
    let mut fields = fields(raw)?;
    let blocks = fields.list("content").unwrap_or_default();
    check_count(&blocks, "content blocks")?;
    Ok(v1::ToolResult {
        content: blocks.iter().map(block).collect(),
        structured_content_json: fields.take("structuredContent").map(|raw| text(&raw)),
        is_error: fields.read("isError").unwrap_or(false),
        meta_json: meta(&mut fields),
        extra_json: fields.rest(),
        check: None,
    })
}

/// The answer of a tool, checked against its output schema if that is wanted.
///
/// # Errors
/// As [`tool_result`]; never because of what the check finds.
pub(super) fn tool_answer(answer: &Answer, checker: &Checker) -> Result<v1::ToolResult> {
    let mut result = tool_result(&answer.result)?;
    if let Some(schema) = answer.output.as_ref().filter(|_| !result.is_error) {
        let structured = result.structured_content_json.as_deref();
        // The schema may have to be compiled first, which takes its time whatever the size of the result.
        let findings = apart(usize::MAX, || checker.check(schema, structured));
        result.check = Some(result_check(findings));
    }
    Ok(result)
}

fn result_check(findings: Findings) -> v1::ResultCheck {
    let violation = |violation: Violation| v1::SchemaViolation {
        instance_path: violation.path,
        message: violation.message,
    };
    v1::ResultCheck {
        violations: findings.violations.into_iter().map(violation).collect(),
        more_violations: findings.more,
        not_checked: findings.not_checked.unwrap_or_default(),
    }
}

/// The contents of a resource (MCP schema `ReadResourceResult`).
///
/// # Errors
/// `UPSTREAM_PROTOCOL` if it is not an object.
pub(super) fn read_resource(raw: &RawJson, call_id: String) -> Result<v1::ReadResourceResponse> {
    let mut fields = fields(raw)?;
    let contents = fields.list("contents").unwrap_or_default();
    check_count(&contents, "contents")?;
    Ok(v1::ReadResourceResponse {
        contents: contents.iter().map(resource_contents).collect(),
        meta_json: meta(&mut fields),
        extra_json: fields.rest(),
        call_id,
    })
}

/// A filled prompt (MCP schema `GetPromptResult`).
///
/// # Errors
/// `UPSTREAM_PROTOCOL` if it is not an object.
pub(super) fn prompt(raw: &RawJson, call_id: String) -> Result<v1::GetPromptResponse> {
    let mut fields = fields(raw)?;
    let messages = fields.list("messages").unwrap_or_default();
    check_count(&messages, "messages")?;
    let message = |raw: &RawJson| match Fields::of(raw) {
        Some(mut fields) => v1::PromptMessage {
            role: fields.text("role"),
            content: fields.take("content").as_ref().map(block),
            extra_json: fields.rest(),
        },
        None => v1::PromptMessage {
            content: Some(block(raw)),
            ..v1::PromptMessage::default()
        },
    };
    Ok(v1::GetPromptResponse {
        description: fields.text("description"),
        messages: messages.iter().map(message).collect(),
        meta_json: meta(&mut fields),
        extra_json: fields.rest(),
        call_id,
    })
}

/// Completions (MCP schema `CompleteResult`).
///
/// # Errors
/// `UPSTREAM_PROTOCOL` if it has no `completion`.
pub(super) fn completion(raw: &RawJson) -> Result<v1::CompleteResponse> {
    let mut fields = fields(raw)?;
    let completion = fields.take("completion");
    let mut completion = completion
        .as_ref()
        .and_then(Fields::of)
        .ok_or_else(|| malformed("has no `completion`"))?;
    let values = completion.list("values").unwrap_or_default();
    let (total, has_more) = (completion.read("total"), completion.read("hasMore"));
    let meta_json = meta(&mut fields);
    if let Ok(rest) = RawJson::parse(completion.rest()) {
        fields.put("completion", rest);
    }
    Ok(v1::CompleteResponse {
        values: values.iter().filter_map(RawJson::read).collect(),
        total,
        has_more: has_more.unwrap_or(false),
        meta_json,
        extra_json: fields.rest(),
    })
}

/// Progress of a call (MCP schema `ProgressNotificationParams`).
pub(super) fn progress(raw: &RawJson) -> v1::Progress {
    let Some(mut fields) = Fields::of(raw) else {
        return v1::Progress::default();
    };
    fields.take("progressToken"); // the daemon's own
    v1::Progress {
        progress: fields.read("progress").unwrap_or(0.0),
        total: fields.read("total"),
        message: fields.text("message"),
        extra_json: fields.rest(),
    }
}

/// A log message (MCP schema `LoggingMessageNotificationParams`).
pub(super) fn log_message(raw: &RawJson) -> v1::LogMessage {
    let Some(mut fields) = Fields::of(raw) else {
        return v1::LogMessage::default();
    };
    let level = fields.peek("level").and_then(RawJson::read::<String>);
    let level = level.and_then(|level| LogLevel::of(&level));
    let level = level.map_or(v1::LogLevel::Unspecified, convert::log_level);
    if level != v1::LogLevel::Unspecified {
        fields.take("level");
    }
    v1::LogMessage {
        level: level.into(),
        logger: fields.text("logger"),
        data_json: fields
            .take("data")
            .map(|raw| text(&raw))
            .unwrap_or_default(),
        extra_json: fields.rest(),
    }
}

fn fields(raw: &RawJson) -> Result<Fields> {
    Fields::of(raw).ok_or_else(|| malformed("is not an object"))
}

/// A result of countless parts costs many times its size when it is taken apart.
fn check_count(parts: &[RawJson], what: &str) -> Result<()> {
    let count = parts.len();
    if count > MAX_PARTS {
        return Err(Error::new(
            Reason::MessageTooLarge,
            format!("the result has {count} {what}; at most {MAX_PARTS} are taken apart"),
        ));
    }
    Ok(())
}

fn malformed(what: &str) -> Error {
    Error::new(
        Reason::UpstreamProtocol,
        format!("the server's result {what}"),
    )
}

/// A result's `_meta` as it came; empty if there is none.
fn meta(fields: &mut Fields) -> String {
    fields
        .take("_meta")
        .map(|raw| text(&raw))
        .unwrap_or_default()
}

fn text(raw: &RawJson) -> String {
    raw.as_str().to_owned()
}

/// A block of content, whole.
pub(super) fn block(raw: &RawJson) -> v1::ContentBlock {
    let block = known_block(raw).unwrap_or_else(|| Block::RawJson(text(raw)));
    v1::ContentBlock { block: Some(block) }
}

/// The block as a typed message; `None` if it is of another kind or not as its kind should be.
pub(super) fn known_block(raw: &RawJson) -> Option<Block> {
    let mut fields = Fields::of(raw)?;
    let kind: String = fields.read("type")?;
    Some(match kind.as_str() {
        "text" => Block::Text(v1::TextContent {
            text: fields.read("text")?,
            extra_json: fields.rest(),
        }),
        "image" => Block::Image(v1::ImageContent {
            data: decode(&fields.read::<String>("data")?)?,
            mime_type: fields.text("mimeType"),
            extra_json: fields.rest(),
        }),
        "audio" => Block::Audio(v1::AudioContent {
            data: decode(&fields.read::<String>("data")?)?,
            mime_type: fields.text("mimeType"),
            extra_json: fields.rest(),
        }),
        "resource_link" => Block::ResourceLink(v1::ResourceLink {
            uri: fields.read("uri")?,
            name: fields.text("name"),
            title: fields.text("title"),
            description: fields.text("description"),
            mime_type: fields.text("mimeType"),
            size: fields.read("size"),
            extra_json: fields.rest(),
        }),
        "resource" => Block::Resource(v1::EmbeddedResource {
            resource: Some(resource_contents(
                &fields.take("resource").filter(RawJson::is_object)?,
            )),
            extra_json: fields.rest(),
        }),
        _ => return None,
    })
}

fn resource_contents(raw: &RawJson) -> v1::ResourceContents {
    let Some(mut fields) = Fields::of(raw) else {
        return v1::ResourceContents {
            extra_json: text(raw),
            ..v1::ResourceContents::default()
        };
    };
    let uri = fields.text("uri");
    let mime_type = fields.text("mimeType");
    let body = if let Some(text) = fields.read("text") {
        Some(Body::Text(text))
    } else {
        // Base64 that is not strict stays among the rest, as the server wrote it.
        let blob = fields.peek("blob").and_then(RawJson::read::<String>);
        blob.and_then(|blob| decode(&blob)).map(|bytes| {
            fields.take("blob");
            Body::Blob(bytes)
        })
    };
    v1::ResourceContents {
        uri,
        mime_type,
        body,
        extra_json: fields.rest(),
    }
}

fn decode(base64: &str) -> Option<Bytes> {
    STANDARD.decode(base64).ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::{Block, Body, tool_result};
    use crate::mcp::protocol::RawJson;

    #[test]
    fn nothing_of_a_result_is_lost() {
        let raw = RawJson::parse(
            r#"{"content":[{"type":"text","text":"a","_meta":{"k":1.10}},{"type":"image","data":"AQI=","mimeType":"image/png"},
                {"type":"image","data":"AQI","mimeType":"image/png"},{"type":"hologram","x":18446744073709551615},
                {"type":"resource","resource":{"uri":"u","blob":"AQI=","x":1},"y":2},{"type":"text","text":"\ud800"}],
                "structuredContent":null,"isError":true,"_meta":{"m":1},"ttlMs":5}"#
                .to_owned(),
        )
        .unwrap();
        let result = tool_result(&raw).unwrap();
        let blocks: Vec<_> = result
            .content
            .into_iter()
            .map(|block| block.block.unwrap())
            .collect();
        assert!(
            matches!(&blocks[0], Block::Text(text) if text.extra_json == r#"{"_meta":{"k":1.10}}"#)
        );
        assert!(matches!(&blocks[1], Block::Image(image) if image.data == vec![1, 2]));
        assert!(matches!(&blocks[2], Block::RawJson(raw) if raw.contains("AQI")));
        assert!(matches!(&blocks[3], Block::RawJson(raw) if raw.contains("18446744073709551615")));
        assert!(matches!(&blocks[4], Block::Resource(resource)
            if resource.extra_json == r#"{"y":2}"#
            && matches!(resource.resource.as_ref().unwrap().body, Some(Body::Blob(_)))));
        assert!(matches!(&blocks[5], Block::RawJson(raw) if raw.contains("\\ud800")));
        assert_eq!(result.structured_content_json.as_deref(), Some("null"));
        assert!(result.is_error);
        assert_eq!(
            (result.meta_json.as_str(), result.extra_json.as_str()),
            (r#"{"m":1}"#, r#"{"ttlMs":5}"#)
        );
    }
}
