//! Registration of clients (RFC 7591).

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};

use super::{Asked, Inner, KnownClient, jose, oauth_error, plain, planted};
use crate::fake::Reply;

pub(super) fn answer(inner: &Arc<Inner>, asked: &Asked) -> Reply {
    let shape = inner.shape();
    if !shape.registers {
        inner.fault("a registration where none is offered");
        return plain(404, "no registration here");
    }
    let wanted = &asked.json;
    if let Err(fault) = acceptable(asked) {
        inner.fault(format!("registration: {fault}, in {wanted}"));
        return oauth_error(400, "invalid_client_metadata", &fault);
    }
    let list = |name: &str| -> Vec<String> {
        let items = wanted[name].as_array().into_iter().flatten();
        items
            .map(|item| item.as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let scope = wanted["scope"].as_str().or(shape.default_scope);
    let client = KnownClient {
        id: jose::random("client"),
        auth: shape.client_auth,
        secret: (shape.client_auth != "none").then(|| planted::plant(jose::random("secret"))),
        key: None,
        redirect_uris: list("redirect_uris"),
        scope: scope.map(str::to_owned),
    };
    let mut answer = wanted.clone();
    answer["client_id"] = json!(client.id);
    answer["scope"] = json!(client.scope);
    answer["token_endpoint_auth_method"] = if shape.says_client_auth {
        json!(client.auth)
    } else {
        Value::Null
    };
    if let Some(secret) = &client.secret {
        answer["client_secret"] = json!(secret);
        answer["client_secret_expires_at"] = json!(0);
    }
    if let Some(members) = answer.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    let mut clients = inner.clients.lock().unwrap();
    clients.insert(client.id.clone(), client);
    let kind = ("content-type", "application/json".to_owned());
    Reply::Raw(201, vec![kind], answer.to_string().into())
}

fn acceptable(asked: &Asked) -> Result<(), String> {
    let wanted = &asked.json;
    if asked.http != Method::POST || !wanted.is_object() {
        return Err(format!("{} without an object", asked.http));
    }
    let type_ = asked.header("content-type");
    if type_ != "application/json" {
        return Err(format!("the body is `{type_}`"));
    }
    if wanted["redirect_uris"]
        .as_array()
        .is_none_or(|uris| uris.is_empty() || uris.iter().any(|uri| !uri.is_string()))
    {
        return Err("there is no redirect URI".to_owned());
    }
    let holds = |name: &str, item: &str| {
        let items = wanted[name].as_array();
        items.is_some_and(|items| items.iter().any(|known| known == item))
    };
    if !holds("grant_types", "authorization_code") || !holds("grant_types", "refresh_token") {
        return Err(format!("the grant types are {}", wanted["grant_types"]));
    }
    if !holds("response_types", "code") {
        return Err(format!(
            "the response types are {}",
            wanted["response_types"]
        ));
    }
    if !matches!(wanted["application_type"].as_str(), Some("native" | "web")) {
        return Err(format!(
            "the application type is {}",
            wanted["application_type"]
        ));
    }
    if wanted["client_name"].as_str().is_none_or(str::is_empty) {
        return Err("it has no name".to_owned());
    }
    Ok(())
}
