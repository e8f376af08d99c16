//! What the authorization part of a registration must satisfy: what each way needs, and what each text may hold.
//!
//! Judges forms only: whether a destination may be connected to, the policy says, and whether a key fits its algorithm, who
//! signs with it.

use url::{Host, Url};

use super::{MAX_NAME, MAX_TEXT, MAX_URL, check_value};
use crate::error::{Error, Result};
use crate::model::auth::{
    Assertion, AuthMethod, AuthSpec, ClientAuth, ClientSpec, CodeSpec, DpopMode, EnterpriseSpec,
    Scopes, WorkloadSpec,
};
use crate::model::spec::{ClientCertificate, HttpSpec, NamedSecret, ServerSpec, TransportSpec};

/// Most scopes that are asked for.
const MAX_SCOPES: usize = 100;
/// Longest scope, in bytes.
const MAX_SCOPE: usize = 512;
/// Longest client identifier, in bytes.
const MAX_CLIENT_ID: usize = 2_048;
/// Most further parameters of an authorization request.
const MAX_PARAMETERS: usize = 20;
/// Longest name and value of one, in bytes.
const MAX_PARAMETER_NAME: usize = 64;
const MAX_PARAMETER: usize = 2_048;
/// Algorithms that the daemon signs assertions with.
const ALGORITHMS: &[&str] = &["ES256", "ES384", "RS256", "PS256", "EdDSA"];
/// Parameters that the protocol owns, and those that would carry a credential through the browser.
const OWN_PARAMETERS: &[&str] = &[
    "response_type",
    "response_mode",
    "client_id",
    "client_secret",
    "client_assertion",
    "client_assertion_type",
    "redirect_uri",
    "scope",
    "state",
    "code_challenge",
    "code_challenge_method",
    "dpop_jkt",
    "resource",
    "request",
    "request_uri",
];

/// Checks how a server wants to be authorized at.
///
/// # Errors
/// `INVALID_FIELD` with the path of the first field that is not acceptable.
pub(super) fn check_auth(spec: &ServerSpec) -> Result<()> {
    let auth = &spec.auth;
    if *auth == AuthSpec::default() {
        return Ok(());
    }
    let TransportSpec::Http(http) = &spec.transport else {
        return Err(Error::invalid(
            "spec.authorization",
            "only a server that is reached at a URL (`http`) can be authorized at; leave it out",
        ));
    };
    check_headers(http)?;
    check_scopes(&auth.scopes)?;
    if let Some(issuer) = &auth.issuer {
        let url = check_endpoint("spec.authorization.issuer", issuer)?;
        if url.query().is_some() {
            return Err(Error::invalid(
                "spec.authorization.issuer",
                format!("`{issuer}` has a query, which no issuer identifier has (RFC 8414)"),
            ));
        }
    }
    match &auth.method {
        AuthMethod::AuthorizationCode(code) => check_code(code),
        AuthMethod::ClientCredentials(client) => {
            let field = "spec.authorization.client_credentials.client";
            check_client(field, client)?;
            check_proven(field, client)
        }
        AuthMethod::EnterpriseManaged(enterprise) => check_enterprise(enterprise),
        AuthMethod::WorkloadIdentity(workload) => check_workload(workload),
        AuthMethod::Bearer(token) => {
            check_idle(auth, "a token that is given is not asked for")?;
            check_bearer(token)
        }
        AuthMethod::None => check_idle(auth, "nothing is asked for"),
    }
}

/// Checks the certificate that the daemon shows to a server.
///
/// # Errors
/// `INVALID_FIELD` with the path of the first field that is not acceptable.
pub(super) fn check_certificate(http: &HttpSpec, certificate: &ClientCertificate) -> Result<()> {
    const CHAIN: &str = "spec.http.client_certificate.certificate_pem";
    const KEY: &str = "spec.http.client_certificate.private_key_pem";
    if http.url.scheme() != "https" {
        return Err(Error::invalid(
            "spec.http.client_certificate",
            format!("`{}` is reached without TLS; leave it out", http.url),
        ));
    }
    let chain = &certificate.chain;
    if chain.len() > MAX_TEXT
        || !chain.contains("-----BEGIN CERTIFICATE-----")
        || !chain.contains("-----END CERTIFICATE-----")
    {
        return Err(Error::invalid(
            CHAIN,
            format!("give the certificate, then its chain, in PEM form, at most {MAX_TEXT} bytes"),
        ));
    }
    let key = &certificate.private_key;
    check_value(KEY, key)?;
    let forms = ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"];
    if !forms.iter().any(|label| key.value.is_pem(label)) {
        return Err(Error::invalid(
            KEY,
            "give the private key in PEM form, without a passphrase",
        ));
    }
    Ok(())
}

fn check_headers(http: &HttpSpec) -> Result<()> {
    let mut names = http.headers.iter().map(|header| &header.name);
    if names.any(|name| name.eq_ignore_ascii_case("authorization")) {
        return Err(Error::invalid(
            "spec.authorization",
            "a header `Authorization` is registered, which takes its place; leave out one of them",
        ));
    }
    Ok(())
}

/// A scope token (RFC 6749 section 3.3).
fn check_scopes(scopes: &Scopes) -> Result<()> {
    let field = "spec.authorization.scopes";
    let count = scopes.iter().count();
    if count > MAX_SCOPES {
        return Err(Error::invalid(
            field,
            format!("{count} scopes are more than {MAX_SCOPES}"),
        ));
    }
    for scope in scopes.iter() {
        let plain = |c: char| matches!(c, '\x21' | '\x23'..='\x5b' | '\x5d'..='\x7e');
        if scope.is_empty() || scope.len() > MAX_SCOPE || !scope.chars().all(plain) {
            return Err(Error::invalid(
                field,
                format!(
                    "`{scope}` is no scope: 1 to {MAX_SCOPE} printable ASCII characters without spaces, quotes and \
                     backslashes, each scope an entry of its own"
                ),
            ));
        }
    }
    Ok(())
}

/// An `https:` URL, or an `http:` one on a loopback address; nothing in it is a credential or stays in the browser.
fn check_endpoint(field: &'static str, text: &str) -> Result<Url> {
    if text.is_empty() {
        return Err(Error::invalid(field, "it is required: give a URL"));
    }
    if text.len() > MAX_URL {
        return Err(Error::invalid(
            field,
            format!("it is longer than {MAX_URL} bytes"),
        ));
    }
    let url = Url::parse(text)
        .map_err(|cause| Error::invalid(field, format!("`{text}` is not a URL: {cause}")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::invalid(
            field,
            "the URL must not hold a user name or password",
        ));
    }
    if url.scheme() != "https" && !(url.scheme() == "http" && is_loopback(&url)) {
        return Err(Error::invalid(
            field,
            format!("`{text}` must be an `https:` URL, or an `http:` one on a loopback address"),
        ));
    }
    if url.fragment().is_some() {
        return Err(Error::invalid(
            field,
            format!("`{text}` must not have a fragment"),
        ));
    }
    Ok(url)
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

fn check_code(code: &CodeSpec) -> Result<()> {
    if let Some(client) = &code.client {
        check_client("spec.authorization.authorization_code.client", client)?;
    }
    if let Some(name) = &code.client_name
        && (name.chars().count() > MAX_NAME || name.chars().any(char::is_control))
    {
        return Err(Error::invalid(
            "spec.authorization.authorization_code.client_name",
            format!("the name has at most {MAX_NAME} characters and no control characters"),
        ));
    }
    if let Some(uri) = &code.redirect_uri {
        check_endpoint("spec.authorization.authorization_code.redirect_uri", uri)?;
    }
    let field = "spec.authorization.authorization_code.parameters";
    if code.parameters.len() > MAX_PARAMETERS {
        return Err(Error::invalid(
            field,
            format!(
                "{} parameters are more than {MAX_PARAMETERS}",
                code.parameters.len()
            ),
        ));
    }
    for (name, value) in &code.parameters {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if name.is_empty() || name.len() > MAX_PARAMETER_NAME || !name.chars().all(plain) {
            return Err(Error::invalid(
                field,
                format!(
                    "`{name}` is no name of a parameter: 1 to {MAX_PARAMETER_NAME} letters, digits, `-`, `.` and `_`"
                ),
            ));
        }
        if OWN_PARAMETERS.contains(&name.as_str()) {
            return Err(Error::invalid(
                field,
                format!("`{name}` is set by the daemon itself; leave it out"),
            ));
        }
        if value.len() > MAX_PARAMETER || value.chars().any(char::is_control) {
            return Err(Error::invalid(
                field,
                format!(
                    "the value of `{name}` is longer than {MAX_PARAMETER} bytes or holds a control character"
                ),
            ));
        }
    }
    Ok(())
}

fn check_enterprise(spec: &EnterpriseSpec) -> Result<()> {
    check_client("spec.authorization.enterprise_managed.client", &spec.client)?;
    check_endpoint(
        "spec.authorization.enterprise_managed.idp_token_endpoint",
        &spec.idp_token_endpoint,
    )?;
    check_client(
        "spec.authorization.enterprise_managed.idp_client",
        &spec.idp_client,
    )?;
    check_jwt(
        "spec.authorization.enterprise_managed.id_token",
        &spec.id_token,
    )
}

fn check_workload(spec: &WorkloadSpec) -> Result<()> {
    if let Some(client) = &spec.client {
        let field = "spec.authorization.workload_identity.client";
        // The assertion may be all that names the client.
        if client.client_id.is_empty() {
            check_proof(field, client)?;
        } else {
            check_client(field, client)?;
        }
    }
    match &spec.assertion {
        Assertion::Given(jwt) => check_jwt("spec.authorization.workload_identity.assertion", jwt),
        Assertion::File(path) => {
            let plain = path.starts_with('/') && !path.contains('\0') && path.len() <= MAX_TEXT;
            if plain && !path.split('/').any(|part| part == "..") {
                return Ok(());
            }
            Err(Error::invalid(
                "spec.authorization.workload_identity.assertion_file",
                format!("`{path}` must be an absolute path without `..`"),
            ))
        }
    }
}

/// A client: who it is, and how it is proven.
fn check_client(field: &'static str, client: &ClientSpec) -> Result<()> {
    let id = &client.client_id;
    let printable = id.chars().all(|c| matches!(c, '\x20'..='\x7e'));
    if id.is_empty() || id.len() > MAX_CLIENT_ID || !printable {
        return Err(Error::invalid(
            format!("{field}.client_id"),
            format!(
                "`{id}` is no client identifier: 1 to {MAX_CLIENT_ID} printable ASCII characters"
            ),
        ));
    }
    check_proof(field, client)
}

/// What proves a client must be what its method says.
fn check_proof(field: &'static str, client: &ClientSpec) -> Result<()> {
    let path = |name: &str| format!("{field}.{name}");
    let ClientSpec {
        secret,
        private_key,
        algorithm,
        auth,
        ..
    } = client;
    let given = |secret: &Option<NamedSecret>| {
        let value = secret.as_ref().map(|secret| &secret.value);
        value.is_some_and(|value| !value.is_empty())
    };
    let (wants_secret, wants_key, why) = match auth {
        Some(ClientAuth::None) => (Some(false), Some(false), "a public client proves nothing"),
        Some(ClientAuth::Basic | ClientAuth::Post) => {
            (Some(true), Some(false), "`auth_method` goes by the secret")
        }
        Some(ClientAuth::PrivateKeyJwt) => (
            Some(false),
            Some(true),
            "`auth_method` goes by the private key",
        ),
        None if given(secret) => (None, Some(false), "there is a secret already"),
        None => (None, None, ""),
    };
    for (name, wanted, given) in [
        ("client_secret", wants_secret, given(secret)),
        ("private_key_pem", wants_key, given(private_key)),
    ] {
        match wanted {
            Some(true) if !given => {
                return Err(Error::invalid(path(name), format!("it is required: {why}")));
            }
            Some(false) if given => {
                return Err(Error::invalid(path(name), format!("leave it out: {why}")));
            }
            _ => {}
        }
    }
    if let Some(secret) = secret {
        check_value(path("client_secret"), secret)?;
        if !secret.value.is_printable() {
            return Err(Error::invalid(
                path("client_secret"),
                "a client secret has printable ASCII characters only (RFC 6749 appendix A.2)",
            ));
        }
    }
    if let Some(key) = private_key.as_ref().filter(|key| !key.value.is_empty()) {
        check_value(path("private_key_pem"), key)?;
        if !key.value.is_pem("PRIVATE KEY") {
            return Err(Error::invalid(
                path("private_key_pem"),
                "it must be a PKCS #8 key in PEM form (`-----BEGIN PRIVATE KEY-----`), without a passphrase; `openssl pkcs8 \
                 -topk8 -nocrypt` makes one of other forms",
            ));
        }
    }
    match algorithm {
        Some(algorithm) if !ALGORITHMS.contains(&algorithm.as_str()) => Err(Error::invalid(
            path("signing_algorithm"),
            format!("`{algorithm}` is not one of {ALGORITHMS:?}"),
        )),
        Some(algorithm) if !given(private_key) => Err(Error::invalid(
            path("signing_algorithm"),
            format!("`{algorithm}` needs a private key; leave it out, or give one"),
        )),
        _ => Ok(()),
    }
}

/// A client that gets tokens on its own word has to prove it.
fn check_proven(field: &'static str, client: &ClientSpec) -> Result<()> {
    if client.secret.is_none() && client.private_key.is_none() {
        return Err(Error::invalid(
            field,
            "the client must have a `client_secret` or a `private_key_pem`",
        ));
    }
    Ok(())
}

fn check_jwt(field: &'static str, jwt: &NamedSecret) -> Result<()> {
    check_value(field, jwt)?;
    if !jwt.value.is_token68() {
        return Err(Error::invalid(
            field,
            "give the JWT as it is, in its compact form",
        ));
    }
    Ok(())
}

fn check_bearer(token: &NamedSecret) -> Result<()> {
    let field = "spec.authorization.bearer_token.token";
    check_value(field, token)?;
    if !token.value.is_token68() {
        return Err(Error::invalid(
            field,
            "a token is not empty and has letters, digits, `-`, `.`, `_`, `~`, `+`, `/`, and `=` at its end (RFC 6750 section \
             2.1); leave out `Bearer`",
        ));
    }
    Ok(())
}

/// What is set although no authorization server is ever asked would be lost without a word.
fn check_idle(auth: &AuthSpec, why: &str) -> Result<()> {
    let set = [
        ("spec.authorization.scopes", !auth.scopes.is_empty()),
        ("spec.authorization.issuer", auth.issuer.is_some()),
        ("spec.authorization.dpop", auth.dpop == DpopMode::Required),
    ];
    match set.into_iter().find(|(_, set)| *set) {
        Some((field, _)) => Err(Error::invalid(field, format!("leave it out: {why}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
