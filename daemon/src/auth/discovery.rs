//! Finds the authorization server of an MCP server: by the metadata of the resource (RFC 9728) and those of the
//! authorization server (RFC 8414, OpenID Connect Discovery), or by the rules of MCP 2025-03-26 where there are none.
//!
//! Asks exactly what the specification lists, in its order, and nothing once it knows. What cannot be reached now is
//! AUTHORIZATION_UNAVAILABLE; only what is certainly not there counts as absent.

mod metadata;

use url::Url;

use self::metadata::{ResourceMetadata, read_server};
use super::challenge::Challenge;
use super::said::said;
use super::web::{Reply, Web, is_redirect};
use crate::error::{Error, Reason, Result};
use crate::model::auth::{AuthServer, AuthSpec, Scopes};
use crate::policy::printable;

/// What is known of a server before anybody signs in.
#[derive(Clone, Debug)]
pub struct Discovered {
    /// The resource indicator, exactly as the metadata have it (RFC 8707).
    pub resource: String,
    /// The scopes that the server names: those of the challenge, else those of its metadata.
    pub scopes: Option<Scopes>,
    /// The authorization server.
    pub server: AuthServer,
    /// Whether the server takes bound tokens only.
    pub dpop_required: bool,
}

/// Finds the authorization server of an MCP server.
///
/// # Errors
/// AUTHORIZATION_UNAVAILABLE if it cannot be known now; SIGN_IN_FAILED if the metadata are those of another resource;
/// CREDENTIALS_REFUSED if something has to be configured; DESTINATION_BLOCKED.
pub async fn discover(
    web: &Web,
    server: &Url,
    challenge: &Challenge,
    spec: &AuthSpec,
) -> Result<Discovered> {
    let pinned = spec.issuer.as_deref();
    let found = resource_metadata(web, server, challenge, pinned.is_some()).await?;
    let authorization = match &found {
        Some(found) if !found.servers.is_empty() => listed(web, &found.servers, pinned).await?,
        _ => unlisted(web, server, pinned).await?,
    };
    if authorization.token_endpoint.is_none() {
        return Err(refused(format!(
            "the authorization server `{}` names no token endpoint; ask its operator, or set another `authorization.issuer`",
            said(&authorization.issuer, &[])
        )));
    }
    let found = found.unwrap_or_else(|| ResourceMetadata {
        resource: canonical(server),
        ..ResourceMetadata::default()
    });
    Ok(Discovered {
        resource: found.resource,
        scopes: challenge.scopes.clone().or(found.scopes),
        server: authorization,
        dpop_required: found.dpop_required,
    })
}

/// The issuers that the metadata of the server name now; `None` if it has no such metadata.
///
/// # Errors
/// As of [`discover`].
pub async fn issuers(
    web: &Web,
    server: &Url,
    challenge: &Challenge,
) -> Result<Option<Vec<String>>> {
    let found = resource_metadata(web, server, challenge, true).await?;
    Ok(found.map(|found| found.servers))
}

/// Whether the authorization server says that it supports PKCE with S256 (RFC 7636).
#[must_use]
pub fn supports_pkce(server: &AuthServer) -> bool {
    let methods = server.code_challenge_methods_supported.iter().flatten();
    methods.into_iter().any(|method| method == "S256")
}

/// The metadata of the server as a resource. Those that the challenge names have to be there, unless `or_none`.
async fn resource_metadata(
    web: &Web,
    server: &Url,
    challenge: &Challenge,
    or_none: bool,
) -> Result<Option<ResourceMetadata>> {
    if let Some(named) = &challenge.resource_metadata {
        // It need not be at the server's origin; what it says has to fit the server (RFC 9728 section 3.3).
        let place = web.url("what the server names as its `resource_metadata`", named)?;
        let missing = match ask(web, &place).await? {
            Found::Document(document) => match ResourceMetadata::read(&document) {
                Some(found) => {
                    found.covers(server)?;
                    return Ok(Some(found));
                }
                None => "has no `resource`".to_owned(),
            },
            Found::Nothing(why) => why,
        };
        if or_none {
            return Ok(None);
        }
        return Err(refused(format!(
            "`{}`, which the server names as its metadata, {missing}; its operator has to correct that, or set `authorization.issuer`",
            printable(&place)
        )));
    }
    for place in well_known(server, "oauth-protected-resource", true) {
        if let Found::Document(document) = ask(web, &place).await?
            && let Some(found) = ResourceMetadata::read(&document)
        {
            found.covers(server)?;
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The authorization server where the resource lists some: the pinned one, else the first.
async fn listed(web: &Web, servers: &[String], pinned: Option<&str>) -> Result<AuthServer> {
    let Some(pinned) = pinned else {
        // One of them is enough: which one is the client's choice (RFC 9728 section 7.6).
        let issuer = &servers[0];
        return match at_issuer(web, issuer).await? {
            Some(found) => same_issuer(found, issuer),
            None => Err(absent(issuer)),
        };
    };
    // What the pinned one says of itself comes first: whom the server names gets no client of it. Only if it says nothing,
    // its metadata may be at another address.
    let is_listed = servers.iter().any(|issuer| issuer == pinned);
    let own = match at_issuer(web, pinned).await {
        Err(error) if !is_listed && is_silent(&error) => None,
        own => own?,
    };
    let mut others = Vec::new();
    match own {
        Some(own) if own.issuer == pinned => return Ok(own),
        own => others.extend(own.map(|own| own.issuer)),
    }
    let elsewhere = if is_listed { &[] } else { servers };
    for place in elsewhere {
        match at_issuer(web, place).await? {
            Some(found) if found.issuer == pinned => return Ok(found),
            Some(found) => others.push(found.issuer),
            None => {}
        }
    }
    others.extend(servers.iter().cloned());
    others.dedup();
    Err(refused(format!(
        "`authorization.issuer` is `{}`, and the server's authorization servers are `{}`; set it to the one that is meant",
        said(pinned, &[]),
        said(&others.join("`, `"), &[])
    )))
}

/// Whether nobody is there at all: an identifier need not be an address where anything is.
fn is_silent(error: &Error) -> bool {
    error.reason() == Reason::AuthorizationUnavailable && error.http_status().is_none()
}

/// The authorization server where the resource lists none.
async fn unlisted(web: &Web, server: &Url, pinned: Option<&str>) -> Result<AuthServer> {
    // The rules of MCP 2025-03-26: at the root of the server's origin.
    let origin = server.origin().ascii_serialization();
    let place = at_root(server, "/.well-known/oauth-authorization-server");
    let Some(pinned) = pinned else {
        let Some(found) = server_at(web, &place).await? else {
            let at = |path| Some(String::from(at_root(server, path)));
            return Ok(AuthServer {
                issuer: origin,
                authorization_endpoint: at("/authorize"),
                token_endpoint: at("/token"),
                registration_endpoint: at("/register"),
                // There is nothing that could say so: that revision demands it of every server.
                code_challenge_methods_supported: Some(vec!["S256".to_owned()]),
                ..AuthServer::default()
            });
        };
        // Nobody has named an issuer, so that of an empty path may be written either way.
        if found.issuer.strip_suffix('/') == Some(&origin) {
            return Ok(found);
        }
        return same_issuer(found, &origin);
    };
    let missing = match at_issuer(web, pinned).await {
        Ok(Some(own)) => return same_issuer(own, pinned),
        Ok(None) => absent(pinned),
        Err(error) if is_silent(&error) => error,
        Err(error) => return Err(error),
    };
    match server_at(web, &place).await? {
        Some(found) => same_issuer(found, pinned),
        None => Err(missing),
    }
}

/// The metadata that belong to an issuer identifier, whatever issuer they name; `None` if there are none.
async fn at_issuer(web: &Web, issuer: &str) -> Result<Option<AuthServer>> {
    let base = web.url("the issuer of the authorization server", issuer)?;
    if base.query().is_some() {
        return Err(refused(format!(
            "the issuer `{}` has a query, which RFC 8414 forbids; its operator has to correct that",
            printable(&base)
        )));
    }
    let mut places = well_known(&base, "oauth-authorization-server", false);
    places.extend(well_known(&base, "openid-configuration", false));
    let path = base.path().trim_end_matches('/');
    if !path.is_empty() {
        places.push(at_root(
            &base,
            &format!("{path}/.well-known/openid-configuration"),
        ));
    }
    for place in places {
        if let Some(found) = server_at(web, &place).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The metadata of an authorization server at a place; `None` if there are none.
async fn server_at(web: &Web, place: &Url) -> Result<Option<AuthServer>> {
    match ask(web, place).await? {
        Found::Document(document) => read_server(web, place, &document),
        Found::Nothing(_) => Ok(None),
    }
}

/// The issuer that the document names is the one that led to it, character by character (RFC 8414 section 3.3).
fn same_issuer(found: AuthServer, expected: &str) -> Result<AuthServer> {
    if found.issuer == expected {
        return Ok(found);
    }
    Err(refused(format!(
        "the metadata for the issuer `{}` name the issuer `{}` instead; they are not used, unless that is the one that is meant and `authorization.issuer` is set to it",
        said(expected, &[]),
        said(&found.issuer, &[])
    )))
}

fn absent(issuer: &str) -> Error {
    refused(format!(
        "the authorization server `{}` has no metadata at the places of RFC 8414 and OpenID Connect Discovery; ask its operator, or set another `authorization.issuer`",
        said(issuer, &[])
    ))
}

fn refused(message: String) -> Error {
    Error::new(Reason::CredentialsRefused, message)
}

/// What is at a place.
enum Found {
    Document(serde_json::Map<String, serde_json::Value>),
    /// Certainly nothing, and what was there instead.
    Nothing(String),
}

async fn ask(web: &Web, place: &Url) -> Result<Found> {
    let reply: Reply = match web.get(place).await {
        Ok(reply) => reply,
        Err(error) if is_redirect(&error) => {
            return Ok(Found::Nothing("leads elsewhere".to_owned()));
        }
        Err(error) => return Err(error),
    };
    if reply.is_transient() {
        return Err(reply.unavailable(place));
    }
    if reply.status != http::StatusCode::OK {
        return Ok(Found::Nothing(format!("answers {}", reply.status)));
    }
    // A page for people is what many servers have everywhere.
    Ok(match reply.object() {
        Some(document) => Found::Document(document),
        None if reply.cut => Found::Nothing("is larger than `auth.response_bytes`".to_owned()),
        None => Found::Nothing("is no JSON object".to_owned()),
    })
}

/// The well-known places for an identifier: with its path, then (`and_root`) without.
fn well_known(identifier: &Url, name: &str, and_root: bool) -> Vec<Url> {
    let root = at_root(identifier, &format!("/.well-known/{name}"));
    // The slash after the host, and for an issuer at the end, is not part of it (RFC 8414 section 3.1, RFC 9728
    // section 3.1).
    let path = match identifier.path() {
        "/" => "",
        path if and_root => path,
        path => path.trim_end_matches('/'),
    };
    if path.is_empty() && identifier.query().is_none() {
        return vec![root];
    }
    let mut inserted = at_root(identifier, &format!("/.well-known/{name}{path}"));
    inserted.set_query(identifier.query());
    let mut places = vec![inserted];
    if and_root {
        places.push(root);
    }
    places
}

/// A path at the origin of a URL.
fn at_root(url: &Url, path: &str) -> Url {
    let mut url = url.clone();
    url.set_path(path);
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// The canonical URI of a server without metadata: neither query nor fragment, and no slash for an empty path.
fn canonical(server: &Url) -> String {
    let url = at_root(server, server.path());
    let text = String::from(url);
    match server.path() {
        "/" => text.trim_end_matches('/').to_owned(),
        _ => text,
    }
}

#[cfg(test)]
#[path = "discovery_tests.rs"]
mod tests;
