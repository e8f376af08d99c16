//! Tools in the shapes of the APIs of language models, and the models' calls back as calls of tools.

use serde_json::{Value, json};

use crate::client::Client;
use crate::error::Result;
use crate::proto::{ContentBlock, Tool, ToolCall, ToolResult, content_block};
use crate::requests::model_tool_call;

/// An API of language models.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ModelApi {
    /// OpenAI's Chat Completions, which many providers imitate.
    OpenAiChat,
    /// OpenAI's Responses.
    OpenAiResponses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's Gemini.
    Gemini,
}

impl ModelApi {
    /// A tool as this API wants it to be declared. For [`ModelApi::Gemini`] it is one entry of `functionDeclarations`.
    ///
    /// The name is the tool's `model_name`, so that [`ModelApi::tool_call`] finds the way back.
    #[must_use]
    pub fn declare(self, tool: &Tool) -> Value {
        let name = &tool.model_name;
        let description = match &*tool.description {
            "" => &tool.title,
            description => description,
        };
        let schema = serde_json::from_str(&tool.input_schema_json)
            .unwrap_or_else(|_| json!({ "type": "object" }));
        match self {
            Self::OpenAiChat => json!({
                "type": "function",
                "function": { "name": name, "description": description, "parameters": schema },
            }),
            Self::OpenAiResponses => json!({
                "type": "function", "name": name, "description": description,
                "parameters": schema,
                // Strict mode takes only a part of JSON Schema, which servers do not keep to.
                "strict": false,
            }),
            Self::Anthropic => json!({
                "name": name, "description": description, "input_schema": schema,
            }),
            Self::Gemini => json!({
                "name": name, "description": description, "parametersJsonSchema": schema,
            }),
        }
    }

    /// Reads a model's wish to use a tool: an entry of `tool_calls` (Chat Completions), an item `function_call`
    /// (Responses), a block `tool_use` (Anthropic), or a part with `functionCall` or what is in it (Gemini). `None` if it
    /// is something else.
    ///
    /// ```
    /// use mcp_sidecar_client::ModelApi;
    /// use serde_json::json;
    ///
    /// let block = json!({"type": "tool_use", "id": "1", "name": "tool_demo_add", "input": {"a": 2}});
    /// let wish = ModelApi::Anthropic.tool_call(&block).unwrap();
    /// assert_eq!(wish.call.model_name, "tool_demo_add");
    /// ```
    #[must_use]
    pub fn tool_call(self, wish: &Value) -> Option<ModelToolCall> {
        let (id, name, arguments) = match self {
            Self::OpenAiChat => {
                let function = &wish["function"];
                (&wish["id"], &function["name"], &function["arguments"])
            }
            Self::OpenAiResponses if wish["type"] == "function_call" => {
                (&wish["call_id"], &wish["name"], &wish["arguments"])
            }
            Self::Anthropic if wish["type"] == "tool_use" => {
                (&wish["id"], &wish["name"], &wish["input"])
            }
            Self::Gemini => {
                let call = wish.get("functionCall").unwrap_or(wish);
                (&call["id"], &call["name"], &call["args"])
            }
            _ => return None,
        };
        let name = name.as_str().filter(|name| !name.is_empty())?;
        let arguments = match arguments {
            // JSON text, which models leave empty where a tool takes nothing.
            Value::String(text) if text.trim().is_empty() => "{}".to_owned(),
            Value::String(text) => text.clone(),
            Value::Null => "{}".to_owned(),
            other => other.to_string(),
        };
        Some(ModelToolCall {
            api: self,
            id: id.as_str().unwrap_or_default().to_owned(),
            call: model_tool_call(name, arguments),
        })
    }
}

/// A model's wish to use a tool.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct ModelToolCall {
    /// The API that it came from.
    pub api: ModelApi,
    /// The model's id of it; empty if it gave none.
    pub id: String,
    /// What to hand to [`Client::call_tool`].
    pub call: ToolCall,
}

impl ModelToolCall {
    /// The result of the call as the API wants to be told: a message of role `tool` (Chat Completions), an item
    /// `function_call_output` (Responses), a block `tool_result` (Anthropic) or a part `functionResponse` (Gemini).
    #[must_use]
    pub fn reply(&self, result: &ToolResult) -> Value {
        let (id, text) = (&self.id, text_of(result));
        match self.api {
            ModelApi::OpenAiChat => json!({ "role": "tool", "tool_call_id": id, "content": text }),
            ModelApi::OpenAiResponses => {
                json!({ "type": "function_call_output", "call_id": id, "output": text })
            }
            ModelApi::Anthropic => json!({
                "type": "tool_result", "tool_use_id": id, "content": text, "is_error": result.is_error,
            }),
            ModelApi::Gemini => {
                let key = if result.is_error { "error" } else { "output" };
                let mut response =
                    json!({ "name": self.call.model_name, "response": { key: text } });
                if !id.is_empty() {
                    response["id"] = json!(id);
                }
                json!({ "functionResponse": response })
            }
        }
    }
}

/// What a model is told of a result: its texts, or the structured result where it has no text. What is no text is named.
fn text_of(result: &ToolResult) -> String {
    let texts: Vec<String> = result.content.iter().map(block_text).collect();
    match (&texts[..], &result.structured_content_json) {
        ([], Some(structured)) => structured.clone(),
        _ => texts.join("\n"),
    }
}

fn block_text(block: &ContentBlock) -> String {
    use content_block::Block;
    match &block.block {
        Some(Block::Text(text)) => text.text.clone(),
        Some(Block::Image(image)) => format!("[image, {}]", image.mime_type),
        Some(Block::Audio(audio)) => format!("[audio, {}]", audio.mime_type),
        Some(Block::ResourceLink(link)) => format!("[resource {}]", link.uri),
        Some(Block::Resource(embedded)) => {
            let resource = embedded.resource.clone().unwrap_or_default();
            match resource.body {
                Some(crate::proto::resource_contents::Body::Text(text)) => text,
                _ => format!("[resource {}]", resource.uri),
            }
        }
        Some(Block::RawJson(json)) => json.clone(),
        None => String::new(),
    }
}

/// Tools for models.
impl Client {
    /// All tools of the namespace as a model API wants them to be declared, in the order of [`Client::list_tools`].
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn model_tools(&self, api: ModelApi) -> Result<Vec<Value>> {
        let tools = self.list_tools().await?.items;
        Ok(tools.iter().map(|tool| api.declare(tool)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::TextContent;

    fn add() -> Tool {
        Tool {
            model_name: "tool_demo_add".to_owned(),
            title: "Add".to_owned(),
            input_schema_json: r#"{"type":"object","required":["a"]}"#.to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn every_api_is_told_the_name_what_it_does_and_the_schema() {
        let schema = json!({"type": "object", "required": ["a"]});
        for (api, name, description, parameters) in [
            (
                ModelApi::OpenAiChat,
                "/function/name",
                "/function/description",
                "/function/parameters",
            ),
            (
                ModelApi::OpenAiResponses,
                "/name",
                "/description",
                "/parameters",
            ),
            (
                ModelApi::Anthropic,
                "/name",
                "/description",
                "/input_schema",
            ),
            (
                ModelApi::Gemini,
                "/name",
                "/description",
                "/parametersJsonSchema",
            ),
        ] {
            let declared = api.declare(&add());
            assert_eq!(declared.pointer(name), Some(&json!("tool_demo_add")));
            assert_eq!(declared.pointer(description), Some(&json!("Add")));
            assert_eq!(declared.pointer(parameters), Some(&schema), "{declared}");
        }
    }

    #[test]
    fn a_models_call_finds_the_way_back_and_its_result_too() {
        let result = ToolResult {
            content: vec![ContentBlock {
                block: Some(content_block::Block::Text(TextContent {
                    text: "5".to_owned(),
                    ..Default::default()
                })),
            }],
            ..Default::default()
        };
        let wishes = [
            (
                ModelApi::OpenAiChat,
                json!({"id": "1", "type": "function", "function": {"name": "t", "arguments": "{\"a\":1.10}"}}),
                r#"{"a":1.10}"#,
                json!({"role": "tool", "tool_call_id": "1", "content": "5"}),
            ),
            (
                ModelApi::OpenAiResponses,
                json!({"type": "function_call", "call_id": "1", "name": "t", "arguments": ""}),
                "{}",
                json!({"type": "function_call_output", "call_id": "1", "output": "5"}),
            ),
            (
                ModelApi::Anthropic,
                json!({"type": "tool_use", "id": "1", "name": "t", "input": {"a": 2}}),
                r#"{"a":2}"#,
                json!({"type": "tool_result", "tool_use_id": "1", "content": "5", "is_error": false}),
            ),
            (
                ModelApi::Gemini,
                json!({"functionCall": {"name": "t", "args": {"a": 2}}}),
                r#"{"a":2}"#,
                json!({"functionResponse": {"name": "t", "response": {"output": "5"}}}),
            ),
        ];
        for (api, wish, arguments, reply) in wishes {
            let found = api.tool_call(&wish).expect("a call");
            assert_eq!(found.call.model_name, "t");
            assert_eq!(found.call.arguments_json.as_deref(), Some(arguments));
            assert_eq!(found.reply(&result), reply);
        }
        let text = json!({"type": "text", "text": "no call"});
        assert_eq!(ModelApi::Anthropic.tool_call(&text), None);
        assert_eq!(ModelApi::OpenAiChat.tool_call(&text), None);
    }
}
