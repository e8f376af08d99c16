//! Becomes a client of an authorization server: as configured, by the daemon's client metadata document, as registered
//! before, or by registering (RFC 7591).

use std::time::Duration;

use serde_json::{Map, Value, json};
use url::Url;

use super::said::said;
use super::web::{Reply, Web, is_loopback};
use crate::base::{Secret, Timestamp};
use crate::error::{Error, Reason, Result};
use crate::model::auth::{
    AuthServer, Client, ClientAuth, ClientSpec, CodeSpec, Registration, Scopes,
};

/// The longest client identifier, and the longest client secret.
const LONGEST_ID: usize = 4096;

/// What the client is wanted for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The authorization server.
    pub server: &'a AuthServer,
    /// How the user signs in.
    pub code: &'a CodeSpec,
    /// The URL of the daemon's client metadata document.
    pub metadata_url: Option<&'a str>,
    /// The name to register under.
    pub client_name: &'a str,
    /// Where browsers may come back to.
    pub redirect_uris: &'a [String],
    /// The scopes that will be asked for.
    pub scopes: &'a Scopes,
    /// Now.
    pub now: Timestamp,
}

/// The client to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The one that was configured, or the client metadata document.
    Given(Client),
    /// The one that was registered before.
    Known(Client),
    /// One that was registered now.
    New(Registration),
}

/// Chooses a client, and registers one if there is none.
///
/// # Errors
/// CREDENTIALS_REFUSED if there is no way, saying what to configure; AUTHORIZATION_UNAVAILABLE if the authorization server
/// cannot be reached now; DESTINATION_BLOCKED.
pub async fn choose(web: &Web, wanted: Wanted<'_>, known: Option<&Registration>) -> Result<Choice> {
    if let Some(spec) = &wanted.code.client {
        return client_of(spec, wanted.server).map(Choice::Given);
    }
    if let Some(url) = wanted.metadata_url
        && wanted.server.client_id_metadata_document_supported
    {
        return Ok(Choice::Given(Client {
            issuer: wanted.server.issuer.clone(),
            client_id: url.to_owned(),
            auth: ClientAuth::None,
            secret: None,
            private_key: None,
            algorithm: None,
        }));
    }
    if let Some(known) = known
        && is_good(known, &wanted)
    {
        return Ok(Choice::Known(known.client.clone()));
    }
    let Some(endpoint) = &wanted.server.registration_endpoint else {
        return Err(refused(format!(
            "the authorization server `{}` lets nobody register; register a client there by hand and set `authorization.authorization_code.client`",
            said(&wanted.server.issuer, &[])
        )));
    };
    let endpoint = web.url("the registration endpoint", endpoint)?;
    register(web, &endpoint, &wanted).await.map(Choice::New)
}

/// Whether what was registered can be used for this.
fn is_good(known: &Registration, wanted: &Wanted<'_>) -> bool {
    let mut uris = wanted.redirect_uris.iter();
    known.client.issuer == wanted.server.issuer
        && uris.all(|uri| known.redirect_uris.contains(uri))
        && known.scopes.covers(wanted.scopes)
        && known
            .secret_expires
            .is_none_or(|expires| expires > wanted.now)
}

/// A configured client with the way to prove who it is: the configured one, else what its secrets and the authorization
/// server allow.
///
/// # Errors
/// CREDENTIALS_REFUSED if that way needs a secret that is not configured.
pub fn client_of(spec: &ClientSpec, server: &AuthServer) -> Result<Client> {
    let auth = spec.auth.unwrap_or_else(|| {
        let supports = |auth: ClientAuth| supports(server, auth);
        let has_key = spec.private_key.is_some();
        let has_secret = spec.secret.is_some();
        let key = ClientAuth::PrivateKeyJwt;
        match (has_key, has_secret) {
            (true, true) if supports(key) => key,
            (true, false) => key,
            (_, true) if !supports(ClientAuth::Basic) && supports(ClientAuth::Post) => {
                ClientAuth::Post
            }
            (_, true) => ClientAuth::Basic,
            (false, false) => ClientAuth::None,
        }
    });
    let missing = match auth {
        ClientAuth::Basic | ClientAuth::Post if spec.secret.is_none() => Some("client_secret"),
        ClientAuth::PrivateKeyJwt if spec.private_key.is_none() => Some("private_key_pem"),
        _ => None,
    };
    if let Some(missing) = missing {
        return Err(refused(format!(
            "the client `{}` is to use `{}`, which needs `{missing}`; set it, or another `auth_method`",
            said(&spec.client_id, &[]),
            auth.as_str()
        )));
    }
    let wants_secret = matches!(auth, ClientAuth::Basic | ClientAuth::Post);
    let secret = spec.secret.as_ref().filter(|_| wants_secret);
    let key = spec.private_key.as_ref();
    let key = key.filter(|_| auth == ClientAuth::PrivateKeyJwt);
    Ok(Client {
        issuer: server.issuer.clone(),
        client_id: spec.client_id.clone(),
        auth,
        secret: secret.map(|secret| secret.value.clone()),
        private_key: key.map(|key| key.value.clone()),
        algorithm: spec.algorithm.clone(),
    })
}

/// Whether the authorization server takes this way; by default `client_secret_basic` alone (RFC 8414 section 2).
fn supports(server: &AuthServer, auth: ClientAuth) -> bool {
    match &server.token_endpoint_auth_methods_supported {
        Some(methods) => methods.iter().any(|method| method == auth.as_str()),
        None => auth == ClientAuth::Basic,
    }
}

async fn register(web: &Web, endpoint: &Url, wanted: &Wanted<'_>) -> Result<Registration> {
    let is_native = wanted
        .redirect_uris
        .iter()
        .all(|uri| Url::parse(uri).is_ok_and(|uri| uri.scheme() != "https" || is_loopback(&uri)));
    let ways = [ClientAuth::None, ClientAuth::Basic, ClientAuth::Post];
    let auth = ways.into_iter().find(|auth| supports(wanted.server, *auth));
    // Where none of them is named, the server may still say what is wrong.
    let auth = auth.unwrap_or(ClientAuth::None);
    let types = if is_native {
        ["native", "web"]
    } else {
        ["web", "native"]
    };
    let reply = submit(web, endpoint, wanted, auth, types[0]).await?;
    let reply = match refusal(&reply) {
        // Providers disagree on which redirects belong to which type (OpenID Connect Registration section 2).
        Some((code, text)) if is_about_redirects(&code, &text) => {
            submit(web, endpoint, wanted, auth, types[1]).await?
        }
        _ => reply,
    };
    if let Some((code, text)) = refusal(&reply) {
        return Err(refused(format!(
            "the authorization server `{}` refuses to register a client ({}); register one there by hand and set `authorization.authorization_code.client`",
            said(&wanted.server.issuer, &[]),
            said(&format!("{code} {text}"), &[])
        )));
    }
    let Some(answer) = reply.object().filter(|_| reply.status.is_success()) else {
        return Err(super::web::unavailable(
            endpoint,
            format_args!(
                "answers {} to a registration, and nothing that is one",
                reply.status
            ),
        ));
    };
    read(&answer, wanted, auth)
}

async fn submit(
    web: &Web,
    endpoint: &Url,
    wanted: &Wanted<'_>,
    auth: ClientAuth,
    application_type: &str,
) -> Result<Reply> {
    let mut metadata = json!({
        "client_name": wanted.client_name,
        "redirect_uris": wanted.redirect_uris,
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": auth.as_str(),
        "application_type": application_type,
    });
    if !wanted.scopes.is_empty() {
        metadata["scope"] = Value::String(wanted.scopes.to_string());
    }
    let body = metadata.to_string().into_bytes();
    let reply = web
        .post(endpoint, "application/json", Vec::new(), body)
        .await?;
    if reply.is_transient() {
        return Err(reply.unavailable(endpoint));
    }
    Ok(reply)
}

/// The error in an answer, with its description; `None` if it is none.
fn refusal(reply: &Reply) -> Option<(String, String)> {
    let object = reply.object().unwrap_or_default();
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    if reply.status.is_success() && (text("error").is_empty() || object.contains_key("client_id")) {
        return None;
    }
    let code = match text("error") {
        "" => format!("HTTP {}", reply.status),
        code => code.to_owned(),
    };
    Some((code, text("error_description").to_owned()))
}

fn is_about_redirects(code: &str, text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    code == "invalid_redirect_uri"
        || code == "invalid_client_metadata"
            && (text.contains("redirect") || text.contains("application_type"))
}

/// Reads what was registered (RFC 7591 section 3.2.1). Redirect URIs that it names are not looked at: only ours are used.
fn read(
    answer: &Map<String, Value>,
    wanted: &Wanted<'_>,
    asked: ClientAuth,
) -> Result<Registration> {
    let text = |name: &str| {
        let text = answer.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty())
    };
    let unusable = |what: &str| {
        refused(format!(
            "the authorization server `{}` answers a registration with {what}; register a client there by hand and set `authorization.authorization_code.client`",
            said(&wanted.server.issuer, &[])
        ))
    };
    let fits = |text: &str| text.len() <= LONGEST_ID && !text.chars().any(char::is_control);
    let client_id = text("client_id").ok_or_else(|| unusable("no client id"))?;
    if !fits(client_id) {
        return Err(unusable("a client id that cannot be one"));
    }
    let secret = text("client_secret");
    if !secret.is_none_or(fits) {
        return Err(unusable("a client secret that cannot be one"));
    }
    let auth = match (text("token_endpoint_auth_method"), secret) {
        // By default it is `client_secret_basic` (RFC 7591 section 2), unless that is not taken here.
        (None, Some(_))
            if !supports(wanted.server, ClientAuth::Basic) && asked == ClientAuth::Post =>
        {
            ClientAuth::Post
        }
        (None, Some(_)) => ClientAuth::Basic,
        (None, None) => ClientAuth::None,
        (Some(name), secret) => match (ClientAuth::of(name), secret) {
            (Some(ClientAuth::Basic | ClientAuth::Post), None) | (Some(ClientAuth::None), _) => {
                ClientAuth::None
            }
            (Some(auth @ (ClientAuth::Basic | ClientAuth::Post)), Some(_)) => auth,
            (Some(ClientAuth::PrivateKeyJwt) | None, _) => {
                let name = said(name, &[]);
                return Err(unusable(&format!("`{name}`, for which there are no means")));
            }
        },
    };
    let expires = match answer.get("client_secret_expires_at") {
        Some(Value::Number(seconds)) => seconds.as_u64(),
        Some(Value::String(seconds)) => seconds.parse().ok(),
        _ => None,
    };
    let expires = expires.filter(|seconds| *seconds > 0 && auth != ClientAuth::None);
    Ok(Registration {
        client: Client {
            issuer: wanted.server.issuer.clone(),
            client_id: client_id.to_owned(),
            auth,
            secret: secret
                .filter(|_| auth != ClientAuth::None)
                .map(|secret| Secret::new(secret.to_owned())),
            private_key: None,
            algorithm: None,
        },
        redirect_uris: wanted.redirect_uris.to_vec(),
        scopes: wanted.scopes.clone(),
        secret_expires: expires.map(|seconds| Timestamp(0).plus(Duration::from_secs(seconds))),
        created: wanted.now,
    })
}

fn refused(message: String) -> Error {
    Error::new(Reason::CredentialsRefused, message)
}

#[cfg(test)]
#[path = "registration_tests.rs"]
mod tests;
