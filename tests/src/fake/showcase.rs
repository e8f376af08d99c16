//! A server that shows what apps in other languages have to cope with.

use serde_json::{Value, json};

use super::{FakeMcp, Reply, Step, tool};

/// A modern server with the tools `add` (a structured result, exact for 64 bits), `slow` (three steps of progress), `ask`
/// (a question; the result is its answer), `broken` (a JSON-RPC error), `picture` (text and an image) and `hang`.
pub async fn showcase() -> FakeMcp {
    let names = ["add", "slow", "ask", "broken", "picture", "hang"];
    let builder = FakeMcp::modern();
    let builder = names
        .iter()
        .fold(builder, |builder, name| builder.tool(tool(name)));
    let fake = builder.start().await;
    fake.reply("tools/call", |seen| {
        let done = |mut result: Value| {
            result["resultType"] = json!("complete");
            result
        };
        match seen.tool() {
            "add" => {
                let arguments: Value = serde_json::from_str(&seen.arguments()).unwrap_or_default();
                let (Some(a), Some(b)) = (arguments["a"].as_u64(), arguments["b"].as_u64()) else {
                    let text = "a and b must be natural numbers";
                    let content = json!([{"type": "text", "text": text}]);
                    return Reply::Json(done(json!({"content": content, "isError": true})));
                };
                let sum = a + b;
                let content = json!([{"type": "text", "text": format!("the sum is {sum}")}]);
                Reply::Json(done(json!({"content": content, "structuredContent": {"sum": sum}})))
            }
            "slow" => {
                let token = seen.params()["_meta"]["progressToken"].clone();
                let progress = |step: u32| {
                    Step::Message(json!({
                        "jsonrpc": "2.0", "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": step, "total": 3, "message": format!("step {step}")},
                    }))
                };
                let result = done(json!({"content": [{"type": "text", "text": "slow is done"}]}));
                let mut steps = Vec::new();
                if !token.is_null() {
                    steps.extend((1..=3).map(progress));
                }
                steps.push(Step::Result(result));
                Reply::Sse(steps)
            }
            "ask" => match &seen.params()["inputResponses"]["who"] {
                Value::Null => Reply::Json(json!({
                    "resultType": "input_required", "requestState": "asked",
                    "inputRequests": {"who": {"method": "elicitation/create", "params": {
                        "mode": "form", "message": "Who are you?",
                        "requestedSchema": {
                            "type": "object", "required": ["name"],
                            "properties": {
                                "name": {"type": "string", "minLength": 2},
                                "age": {"type": "integer", "minimum": 0},
                            },
                        },
                    }}},
                })),
                answer => {
                    let text = format!("{}: {}", answer["action"].as_str().unwrap_or_default(), answer["content"]);
                    Reply::Json(done(json!({"content": [{"type": "text", "text": text}]})))
                }
            },
            "broken" => Reply::Error(-32050, "It is broken", json!({"part": 7})),
            "picture" => Reply::Json(done(json!({"content": [
                {"type": "text", "text": "a dot"},
                {"type": "image", "data": "AAEC", "mimeType": "image/png"},
            ]}))),
            "hang" => Reply::Hang,
            _ => Reply::Error(-32602, "Unknown tool", Value::Null),
        }
    });
    fake
}
