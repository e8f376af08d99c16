//! How a healthy server of either era answers.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::{Inner, MODERN, Reply, Seen, next_push, stream};

const META: &str = "io.modelcontextprotocol";

pub(super) fn reply(inner: &Arc<Inner>, seen: &Seen) -> Reply {
    // Whoever is refused looks for a way to get authorized. There is none.
    if seen.path.starts_with("/.well-known/") || seen.path == "/register" {
        return Reply::Raw(404, Vec::new(), Bytes::new());
    }
    let accepted = || Reply::Raw(202, Vec::new(), Bytes::new());
    let method = seen.method();
    let known = match method {
        "" if seen.http == Method::GET => return listen(inner, None),
        "" if seen.http == Method::DELETE => {
            let id = seen.header("mcp-session-id");
            inner.sessions.lock().unwrap().remove(id);
            return Reply::Raw(200, Vec::new(), Bytes::new());
        }
        "" => return accepted(),
        _ if method.starts_with("notifications/") => return accepted(),
        "server/discover" | "subscriptions/listen" => inner.traits.modern,
        "initialize" | "ping" | "logging/setLevel" => !inner.traits.modern,
        _ => true,
    };
    if !known && method == "initialize" {
        let data = json!({"supported": [MODERN], "requested": seen.params()["protocolVersion"]});
        return Reply::Error(-32022, "Unsupported protocol version", data);
    }
    let list = |key: &'static str| {
        let lists = inner.lists.lock().unwrap();
        json!({ key: lists.get(key).cloned().unwrap_or_default() })
    };
    let mut result = match method {
        _ if !known => return Reply::Error(-32601, "Method not found", Value::Null),
        "server/discover" => json!({
            "supportedVersions": [MODERN],
            "capabilities": capabilities(inner),
            "instructions": "a fake",
            "_meta": {format!("{META}/serverInfo"): {"name": "fake", "version": "1.0"}},
            "ttlMs": 0, "cacheScope": "private",
        }),
        "subscriptions/listen" => return listen(inner, Some(seen)),
        "initialize" => json!({
            "protocolVersion": inner.traits.version,
            "capabilities": capabilities(inner),
            "instructions": "a fake",
            "serverInfo": {"name": "fake", "version": "1.0"},
        }),
        "ping" | "logging/setLevel" => json!({}),
        "resources/subscribe" | "resources/unsubscribe"
            if inner.traits.follows && !inner.traits.modern =>
        {
            json!({})
        }
        "tools/list" => list("tools"),
        "resources/list" => list("resources"),
        "resources/templates/list" => list("resourceTemplates"),
        "prompts/list" => list("prompts"),
        "tools/call" => {
            let text = seen.arguments();
            json!({"content": [{"type": "text", "text": text}]})
        }
        _ => return Reply::Error(-32601, "Method not found", Value::Null),
    };
    if inner.traits.modern {
        result["resultType"] = json!("complete");
        if method.ends_with("/list") {
            result["ttlMs"] = json!(0);
            result["cacheScope"] = json!("private");
        }
    }
    Reply::Json(result)
}

fn capabilities(inner: &Inner) -> Value {
    let change = json!({"listChanged": inner.traits.offer_stream});
    let mut all =
        json!({"tools": change, "resources": change, "prompts": change, "completions": {}});
    if inner.traits.follows {
        all["resources"]["subscribe"] = json!(true);
    }
    for (name, value) in &inner.more_capabilities {
        all[name] = value.clone();
    }
    all
}

/// The stream of notifications: GET in the legacy era, `subscriptions/listen` in the modern one.
fn listen(inner: &Arc<Inner>, request: Option<&Seen>) -> Reply {
    if !inner.traits.offer_stream || request.is_none() == inner.traits.modern {
        return match request {
            None => Reply::Raw(405, Vec::new(), Bytes::new()),
            Some(_) => Reply::Error(-32601, "Method not found", Value::Null),
        };
    }
    let mut pushes = inner.pushes.subscribe();
    let listeners = inner.listeners.clone();
    let subscription = request.map(|seen| seen.json["id"].clone());
    let acknowledged = request.map(|seen| {
        json!({
            "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
            "params": {"notifications": seen.params()["notifications"]},
        })
    });
    stream(async move |writer| {
        let tagged = |mut message: Value| {
            if let Some(id) = &subscription {
                message["params"]["_meta"][format!("{META}/subscriptionId")] = id.clone();
            }
            message
        };
        match acknowledged {
            Some(message) => writer.message(&tagged(message)).await,
            None => writer.bytes(": open\n\n".to_owned()).await,
        }
        listeners.send_modify(|open| *open += 1);
        loop {
            tokio::select! {
                () = writer.closed() => break,
                message = next_push(&mut pushes) => writer.message(&tagged(message)).await,
            }
        }
        listeners.send_modify(|open| *open -= 1);
    })
}
