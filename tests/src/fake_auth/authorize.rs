//! Where users sign in.

use std::sync::Arc;

use http::Method;
use url::Url;

use super::token::Code;
use super::{Asked, Decision, Inner, KnownClient, Redirects, Shape, html, jose, planted};
use crate::fake::Reply;

pub(super) fn answer(inner: &Arc<Inner>, asked: &Asked) -> Reply {
    let shape = inner.shape();
    let decision = inner.decisions.lock().unwrap().pop_front();
    let decision = decision.unwrap_or(Decision::Grant);
    if let Decision::Page(text) = decision {
        return html(200, text);
    }
    // What is wrong with these the client cannot be told: nobody knows whether the redirect goes to it.
    let client = match client(inner, &shape, asked) {
        Ok(client) => client,
        Err(problem) => return html(400, &format!("<h1>Error</h1><p>{problem}</p>")),
    };
    let redirect_uri = asked.param("redirect_uri");
    if let Err(fault) = acceptable(&shape, &client, asked) {
        inner.fault(format!("authorization request: {fault}, in {}", asked.path));
        let fields = [("error", "invalid_request"), ("error_description", &fault)];
        return redirect(inner, &shape, asked, &fields, None);
    }
    let mut scopes: Vec<String> = asked.scopes().into_iter().map(str::to_owned).collect();
    let allowed = |list: &str, scope: &str| list.split(' ').any(|known| known == scope);
    let known = |scope: &String| {
        let there = shape.scopes.is_none_or(|list| allowed(list, scope));
        let own = client.scope.as_deref();
        there && own.is_none_or(|list| allowed(list, scope))
    };
    if !scopes.iter().all(known) {
        let fields = [
            ("error", "invalid_scope"),
            ("error_description", "not for this client"),
        ];
        return redirect(inner, &shape, asked, &fields, None);
    }
    let issuer = match decision {
        Decision::Refuse(code, description) => {
            let fields = [("error", code), ("error_description", description)];
            return redirect(inner, &shape, asked, &fields, None);
        }
        Decision::RefuseAs(code, state) => {
            let mut other = asked.clone();
            other.params.retain(|(name, _)| name != "state");
            other.params.push(("state".to_owned(), state));
            return redirect(inner, &shape, &other, &[("error", code)], None);
        }
        Decision::GrantOnly(only) => {
            scopes.retain(|scope| allowed(only, scope));
            None
        }
        Decision::Issuer(issuer) => Some(issuer),
        Decision::NoIssuer => Some(String::new()),
        Decision::Grant | Decision::Page(_) => None,
    };
    let code = planted::plant(jose::random("code"));
    inner.tokens.lock().unwrap().codes.insert(
        code.clone(),
        Code {
            client: client.id,
            redirect_uri: redirect_uri.to_owned(),
            challenge: asked.param("code_challenge").to_owned(),
            resource: asked.param("resource").to_owned(),
            scopes,
            used: None,
        },
    );
    redirect(inner, &shape, asked, &[("code", &code)], issuer)
}

/// The client, if it is known and the user may come back to where it says.
fn client(inner: &Inner, shape: &Shape, asked: &Asked) -> Result<KnownClient, String> {
    let id = asked.param("client_id");
    let known = inner.clients.lock().unwrap().get(id).cloned();
    let client = match known {
        Some(client) => client,
        None if shape.reads_client_documents && id.starts_with("https://") => KnownClient {
            id: id.to_owned(),
            auth: "none",
            secret: None,
            key: None,
            redirect_uris: vec![asked.param("redirect_uri").to_owned()],
            scope: None,
        },
        None => return Err("unknown client".to_owned()),
    };
    let wanted = asked.param("redirect_uri");
    let loose = |uri: &str| {
        let mut uri = Url::parse(uri).ok()?;
        uri.set_port(None).ok()?;
        Some(uri)
    };
    let covered = client
        .redirect_uris
        .iter()
        .any(|known| match shape.redirects {
            Redirects::Exact => known == wanted,
            Redirects::AnyPort => loose(known) == loose(wanted),
        });
    if !covered {
        return Err("this redirect URI was not registered".to_owned());
    }
    Ok(client)
}

fn acceptable(shape: &Shape, client: &KnownClient, asked: &Asked) -> Result<(), String> {
    if asked.http != Method::GET {
        return Err(format!("the method is {}", asked.http));
    }
    for (at, (name, _)) in asked.params.iter().enumerate() {
        if asked.params[..at].iter().any(|(known, _)| known == name) {
            return Err(format!("`{name}` is there twice"));
        }
    }
    let wanted = [("response_type", "code"), ("code_challenge_method", "S256")];
    for (name, value) in wanted {
        if asked.param(name) != value {
            return Err(format!("`{name}` is not `{value}`"));
        }
    }
    if jose::unb64(asked.param("code_challenge")).map(|hash| hash.len()) != Ok(32) {
        return Err("`code_challenge` is no hash".to_owned());
    }
    if asked.param("state").len() < 22 {
        return Err("`state` can be guessed".to_owned());
    }
    if asked.has("scope") && asked.param("scope").is_empty() {
        return Err("`scope` is empty".to_owned());
    }
    let resource = asked.param("resource");
    if !shape.resources.is_empty() && !shape.resources.iter().any(|known| known == resource) {
        return Err(format!("`resource` is `{resource}`"));
    }
    if asked.has("client_secret")
        || asked
            .params
            .iter()
            .any(|(_, value)| client.secret.as_ref().is_some_and(|secret| secret == value))
    {
        return Err("the secret is in the URL".to_owned());
    }
    Ok(())
}

/// Sends the browser back. The issuer is said as the server does; `Some`: as this, or not at all if it is empty.
fn redirect(
    inner: &Inner,
    shape: &Shape,
    asked: &Asked,
    fields: &[(&str, &str)],
    issuer: Option<String>,
) -> Reply {
    let mut url = Url::parse(asked.param("redirect_uri")).expect("a registered redirect URI");
    {
        let mut query = url.query_pairs_mut();
        query.extend_pairs(fields);
        if asked.has("state") {
            query.append_pair("state", asked.param("state"));
        }
        let said = issuer.unwrap_or_else(|| {
            if shape.says_issuer {
                let named = shape
                    .metadata
                    .get("issuer")
                    .and_then(|issuer| issuer.as_str());
                named.map_or_else(|| inner.issuer(), str::to_owned)
            } else {
                String::new()
            }
        });
        if !said.is_empty() {
            query.append_pair("iss", &said);
        }
    }
    let location = ("location", url.to_string());
    Reply::Raw(302, vec![location], bytes::Bytes::new())
}
