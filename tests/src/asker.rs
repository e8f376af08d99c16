//! The server that apps in other languages meet: it asks, and it never ends.

use serde_json::{Value, json};

use crate::daemon::TestDaemon;
use crate::fake::{FakeMcp, Reply, tool};

/// A server of the modern era: `ask` wants a form filled in and returns the answer to it as text; `hang` never ends.
pub async fn asker() -> FakeMcp {
    let fake = FakeMcp::modern().tool(tool("ask")).tool(tool("hang"));
    let fake = fake.start().await;
    fake.reply("tools/call", |seen| {
        if seen.tool() == "hang" {
            return Reply::Hang;
        }
        let answer = &seen.params()["inputResponses"]["who"];
        if answer.is_object() {
            let text = answer.to_string();
            return Reply::Json(
                json!({"resultType": "complete", "content": [{"type": "text", "text": text}]}),
            );
        }
        Reply::Json(json!({
            "resultType": "input_required", "requestState": "state-1",
            "inputRequests": {"who": {"method": "elicitation/create", "params": question()}},
        }))
    });
    fake
}

fn question() -> Value {
    json!({
        "mode": "form", "message": "Who are you?",
        "requestedSchema": {
            "type": "object", "required": ["name"], "properties": {"name": {"type": "string"}},
        },
    })
}

/// A resume token that belongs to another database.
pub async fn strange_token() -> String {
    let other = TestDaemon::start().await;
    let mut updates = other.clients().await.updates("").await;
    updates.snapshot().await;
    updates.token()
}
