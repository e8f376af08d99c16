//! What a server wants to be asked of a language model, from the domain to the contract. No I/O, no decisions: what the request
//! does not say, or says in another way than the specification, is left out of the parsed fields and stays in the raw ones.

use std::cell::Cell;

use mcp_sidecar_proto::v1;
use v1::sampling_content::Block;

use super::{content, convert};
use crate::catalog::entry::Fields;
use crate::mcp::protocol::RawJson;
use crate::model::question::Question;

/// Most parts of one request that are parsed (messages, blocks, tools, hints): each costs many times its bytes.
const MAX_PARTS: usize = 10_000;

/// How many more parts of a request may be parsed.
struct Room(Cell<usize>);

impl Room {
    /// As many of these as there is room for.
    fn take(&self, mut parts: Vec<RawJson>) -> Vec<RawJson> {
        parts.truncate(self.0.get());
        self.0.set(self.0.get() - parts.len());
        parts
    }

    /// The objects of a list; what is something else is left out.
    fn objects<T>(&self, fields: &mut Fields, name: &str, read: impl Fn(Fields) -> T) -> Vec<T> {
        let all = self.take(fields.list(name).unwrap_or_default());
        all.iter().filter_map(Fields::of).map(read).collect()
    }
}

/// A request, with its parts taken apart.
pub(super) fn shown(question: Question) -> v1::SamplingRequest {
    let parsed = RawJson::parse(question.request.clone()).ok();
    let fields = parsed.as_ref().and_then(Fields::of);
    let parts = fields.map(parts).unwrap_or_default();
    v1::SamplingRequest {
        namespace: question.server.namespace.to_string(),
        id: question.id.to_string(),
        server_id: question.server.id.to_string(),
        server_name: question.server_name,
        call_id: question
            .call_id
            .map(|id| id.to_string())
            .unwrap_or_default(),
        state: convert::question_state(question.state).into(),
        create_time: Some(convert::timestamp(question.created)),
        expire_time: Some(convert::timestamp(question.expires)),
        resolve_time: question.resolved.map(convert::timestamp),
        request_json: question.request,
        summary: question.message,
        ..parts
    }
}

/// The fields that are parsed.
fn parts(mut fields: Fields) -> v1::SamplingRequest {
    let room = Room(Cell::new(MAX_PARTS));
    let choice = fields.take("toolChoice");
    let choice = choice.and_then(|choice| choice.get("mode")?.read::<String>());
    v1::SamplingRequest {
        messages: room.objects(&mut fields, "messages", |one| message(one, &room)),
        system_prompt: fields.text("systemPrompt"),
        max_tokens: fields.read("maxTokens").map_or(0, whole),
        temperature: fields.read("temperature"),
        stop_sequences: fields.read("stopSequences").unwrap_or_default(),
        model_preferences: fields
            .take("modelPreferences")
            .as_ref()
            .and_then(Fields::of)
            .map(|one| preferences(one, &room)),
        include_context: match fields.text("includeContext").as_str() {
            "none" => v1::IncludeContext::None,
            "thisServer" => v1::IncludeContext::ThisServer,
            "allServers" => v1::IncludeContext::AllServers,
            _ => v1::IncludeContext::Unspecified,
        }
        .into(),
        tools: room.objects(&mut fields, "tools", tool),
        tool_choice: match choice.as_deref() {
            Some("auto") => v1::SamplingToolChoice::Auto,
            Some("required") => v1::SamplingToolChoice::Required,
            Some("none") => v1::SamplingToolChoice::None,
            _ => v1::SamplingToolChoice::Unspecified,
        }
        .into(),
        metadata_json: fields
            .take("metadata")
            .filter(RawJson::is_object)
            .map(|metadata| metadata.as_str().to_owned())
            .unwrap_or_default(),
        ..v1::SamplingRequest::default()
    }
}

/// A number of tokens, which may be written as `1e3`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the cast saturates, and half a token is none"
)]
fn whole(number: f64) -> i64 {
    number as i64
}

fn message(mut fields: Fields, room: &Room) -> v1::SamplingMessage {
    let blocks = match fields.take("content") {
        None => Vec::new(),
        Some(content) => content.elements().unwrap_or_else(|| vec![content]),
    };
    v1::SamplingMessage {
        role: fields.text("role"),
        content: room
            .take(blocks)
            .iter()
            .map(|one| block(one, room))
            .collect(),
        extra_json: fields.rest(),
    }
}

fn block(raw: &RawJson, room: &Room) -> v1::SamplingContent {
    let known = match content::known_block(raw) {
        Some(v1::content_block::Block::Text(text)) => Some(Block::Text(text)),
        Some(v1::content_block::Block::Image(image)) => Some(Block::Image(image)),
        Some(v1::content_block::Block::Audio(audio)) => Some(Block::Audio(audio)),
        _ => about_tools(raw, room),
    };
    let block = known.unwrap_or_else(|| Block::RawJson(raw.as_str().to_owned()));
    v1::SamplingContent { block: Some(block) }
}

fn about_tools(raw: &RawJson, room: &Room) -> Option<Block> {
    let mut fields = Fields::of(raw)?;
    let kind: String = fields.read("type")?;
    Some(match kind.as_str() {
        "tool_use" => Block::ToolUse(v1::SamplingToolUse {
            id: fields.read("id")?,
            name: fields.read("name")?,
            input_json: fields
                .take("input")
                .filter(RawJson::is_object)?
                .as_str()
                .to_owned(),
            extra_json: fields.rest(),
        }),
        "tool_result" => Block::ToolResult(v1::SamplingToolResult {
            tool_use_id: fields.read("toolUseId")?,
            content: room
                .take(fields.list("content")?)
                .iter()
                .map(content::block)
                .collect(),
            structured_content_json: fields
                .take("structuredContent")
                .map(|value| value.as_str().to_owned()),
            is_error: fields.read("isError").unwrap_or(false),
            extra_json: fields.rest(),
        }),
        _ => return None,
    })
}

fn preferences(mut fields: Fields, room: &Room) -> v1::ModelPreferences {
    let hint = |mut fields: Fields| v1::ModelHint {
        name: fields.text("name"),
        extra_json: fields.rest(),
    };
    v1::ModelPreferences {
        hints: room.objects(&mut fields, "hints", hint),
        cost_priority: fields.read("costPriority"),
        speed_priority: fields.read("speedPriority"),
        intelligence_priority: fields.read("intelligencePriority"),
        extra_json: fields.rest(),
    }
}

fn tool(mut fields: Fields) -> v1::SamplingTool {
    v1::SamplingTool {
        name: fields.text("name"),
        title: fields.text("title"),
        description: fields.text("description"),
        input_schema_json: fields
            .take("inputSchema")
            .map(|schema| schema.as_str().to_owned())
            .unwrap_or_default(),
        extra_json: fields.rest(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Block, Fields, MAX_PARTS, RawJson, parts, v1};

    fn read(json: &str) -> v1::SamplingRequest {
        let raw = RawJson::parse(json.to_owned()).unwrap();
        parts(Fields::of(&raw).unwrap())
    }

    #[test]
    fn everything_that_a_model_needs_is_there() {
        let request = read(
            r#"{"messages":[
                {"role":"user","content":{"type":"text","text":"a","annotations":{"priority":1.0}}},
                {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"get","input":{"n":18446744073709551616},"_meta":{"k":1}}],"_meta":{"m":2}},
                {"role":"user","content":[{"type":"tool_result","toolUseId":"1","isError":true,"structuredContent":null,
                    "content":[{"type":"text","text":"no"},{"type":"hologram"}]}]},
                {"role":"user","content":[{"type":"image","data":"AQI=","mimeType":"image/png"},{"type":"audio","data":"?"},7]},
                "odd"],
               "modelPreferences":{"hints":[{"name":"small","x":1},{}],"costPriority":0.25,"intelligencePriority":1,"y":2},
               "systemPrompt":"Be brief","includeContext":"thisServer","temperature":0.1,"maxTokens":1e2,
               "stopSequences":["."],"metadata":{"z":1.10},
               "tools":[{"name":"get","description":"Gets","inputSchema":{"type":"object"},"outputSchema":{}}],
               "toolChoice":{"mode":"required"}}"#,
        );
        assert_eq!(
            (request.system_prompt.as_str(), request.max_tokens),
            ("Be brief", 100)
        );
        assert_eq!(request.temperature, Some(0.1));
        assert_eq!(request.stop_sequences, ["."]);
        assert_eq!(request.metadata_json, r#"{"z":1.10}"#);
        assert_eq!(request.include_context(), v1::IncludeContext::ThisServer);
        assert_eq!(request.tool_choice(), v1::SamplingToolChoice::Required);
        let preferences = request.model_preferences.unwrap();
        assert_eq!(preferences.cost_priority, Some(0.25));
        assert_eq!(preferences.speed_priority, None);
        assert_eq!(preferences.intelligence_priority, Some(1.0));
        assert_eq!(preferences.extra_json, r#"{"y":2}"#);
        let hints: Vec<_> = preferences.hints.iter().collect();
        assert_eq!((hints[0].name.as_str(), hints.len()), ("small", 2));
        assert_eq!(hints[0].extra_json, r#"{"x":1}"#);
        let tool = &request.tools[0];
        assert_eq!(
            (tool.name.as_str(), tool.description.as_str()),
            ("get", "Gets")
        );
        assert_eq!(tool.input_schema_json, r#"{"type":"object"}"#);
        assert_eq!(tool.extra_json, r#"{"outputSchema":{}}"#);

        let blocks = request.messages.iter().flat_map(|message| &message.content);
        let blocks: Vec<_> = blocks.map(|one| one.block.as_ref().unwrap()).collect();
        assert_eq!(request.messages.len(), 4);
        assert_eq!(request.messages[1].extra_json, r#"{"_meta":{"m":2}}"#);
        assert!(
            matches!(blocks[0], Block::Text(text) if text.text == "a" && text.extra_json.contains("1.0"))
        );
        assert!(
            matches!(blocks[1], Block::ToolUse(one) if one.input_json.contains("18446744073709551616")
            && one.extra_json == r#"{"_meta":{"k":1}}"#)
        );
        assert!(
            matches!(blocks[2], Block::ToolResult(one) if one.is_error && one.content.len() == 2
            && one.structured_content_json.as_deref() == Some("null"))
        );
        assert!(matches!(blocks[3], Block::Image(image) if image.data == vec![1, 2]));
        assert!(matches!(blocks[4], Block::RawJson(raw) if raw.contains("audio")));
        assert!(matches!(blocks[5], Block::RawJson(raw) if raw == "7"));
    }

    #[test]
    fn what_is_odd_is_left_out_and_countless_parts_are_not_taken_apart() {
        let odd = read(r#"{"messages":7,"maxTokens":"x","tools":{},"metadata":[],"toolChoice":1}"#);
        assert_eq!(odd, v1::SamplingRequest::default());
        let message = format!(
            r#"{{"role":"user","content":[{}1]}}"#,
            "1,".repeat(MAX_PARTS)
        );
        let many = read(&format!(r#"{{"messages":[{message},{message}]}}"#));
        let blocks = many.messages.iter().map(|message| message.content.len());
        assert_eq!(blocks.sum::<usize>() + many.messages.len(), MAX_PARTS);
    }
}
