//! The two documents: of a protected resource (RFC 9728 section 2) and of an authorization server (RFC 8414 section 2,
//! OpenID Connect Discovery section 3). Reads leniently what is not asked for, and strictly where tokens may go.

use serde_json::{Map, Value};
use url::Url;

use crate::auth::challenge;
use crate::auth::said::said;
use crate::auth::web::Web;
use crate::error::{Error, Reason, Result};
use crate::model::auth::{AuthServer, Scopes};

/// Authorization servers of one resource that are read.
const MOST_SERVERS: usize = 10;
/// Words of a list that are read, and the length of one.
const MOST_WORDS: usize = 100;
const LONGEST_WORD: usize = 256;
/// The longest identifier.
const LONGEST_IDENTIFIER: usize = 4096;

type Document = Map<String, Value>;

/// What a server says of itself as a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResourceMetadata {
    /// The identifier, byte for byte.
    pub(super) resource: String,
    /// The issuers, in their order.
    pub(super) servers: Vec<String>,
    /// The scopes to ask for.
    pub(super) scopes: Option<Scopes>,
    /// Whether it takes bound tokens only.
    pub(super) dpop_required: bool,
}

impl ResourceMetadata {
    /// Reads the document; `None` if it is none.
    pub(super) fn read(document: &Document) -> Option<Self> {
        Some(Self {
            resource: text(document, "resource")?.to_owned(),
            servers: texts(document, "authorization_servers")
                .unwrap_or_default()
                .into_iter()
                .filter(|issuer| issuer.len() <= LONGEST_IDENTIFIER)
                .take(MOST_SERVERS)
                .map(str::to_owned)
                .collect(),
            scopes: texts(document, "scopes_supported").and_then(challenge::scopes),
            dpop_required: flag(document, "dpop_bound_access_tokens_required"),
        })
    }

    /// Whether the identifier is the one of this endpoint, or of something above it at the same origin.
    ///
    /// # Errors
    /// SIGN_IN_FAILED, naming both.
    pub(super) fn covers(&self, server: &Url) -> Result<()> {
        let resource = Url::parse(&self.resource).ok();
        if resource.is_some_and(|resource| is_above(&resource, server)) {
            return Ok(());
        }
        Err(Error::new(
            Reason::SignInFailed,
            format!(
                "the metadata of `{}` are those of another resource, `{}`: a token for that is not asked for; register the server at that address if it is meant",
                crate::policy::printable(server),
                said(&self.resource, &[])
            ),
        ))
    }
}

/// Whether the resource is the endpoint or a parent of it, segment by segment; a slash at the end makes no difference.
fn is_above(resource: &Url, server: &Url) -> bool {
    let path = resource.path().trim_end_matches('/');
    let below = server.path().strip_prefix(path);
    resource.origin() == server.origin()
        && resource.fragment().is_none()
        && resource.username().is_empty()
        && resource.password().is_none()
        && below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
        && resource
            .query()
            .is_none_or(|query| server.query() == Some(query))
}

/// Reads the document of an authorization server; `None` if it is none, for want of an issuer. The issuer is not compared yet.
///
/// # Errors
/// CREDENTIALS_REFUSED if it lacks what is needed; DESTINATION_BLOCKED if an endpoint may not be talked to.
pub(super) fn read_server(
    web: &Web,
    place: &Url,
    document: &Document,
) -> Result<Option<AuthServer>> {
    let Some(issuer) = text(document, "issuer") else {
        return Ok(None);
    };
    let endpoint = |name: &str| -> Result<Option<String>> {
        let Some(value) = text(document, name) else {
            return Ok(None);
        };
        let what = format!("`{name}` in the metadata at `{place}`");
        web.url(&what, value)?;
        Ok(Some(value.to_owned()))
    };
    let words = |name: &str| {
        texts(document, name).map(|words| {
            let words = words.into_iter().filter(|word| word.len() <= LONGEST_WORD);
            words
                .take(MOST_WORDS)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
    };
    Ok(Some(AuthServer {
        issuer: issuer.to_owned(),
        authorization_endpoint: endpoint("authorization_endpoint")?,
        token_endpoint: endpoint("token_endpoint")?,
        registration_endpoint: endpoint("registration_endpoint")?,
        revocation_endpoint: endpoint("revocation_endpoint")?,
        scopes_supported: texts(document, "scopes_supported").and_then(challenge::scopes),
        token_endpoint_auth_methods_supported: words("token_endpoint_auth_methods_supported"),
        code_challenge_methods_supported: words("code_challenge_methods_supported"),
        authorization_response_iss_parameter_supported: flag(
            document,
            "authorization_response_iss_parameter_supported",
        ),
        client_id_metadata_document_supported: flag(
            document,
            "client_id_metadata_document_supported",
        ),
        dpop_signing_alg_values_supported: words("dpop_signing_alg_values_supported"),
    }))
}

fn text<'a>(document: &'a Document, name: &str) -> Option<&'a str> {
    let text = document.get(name)?.as_str()?;
    (!text.is_empty() && text.len() <= LONGEST_IDENTIFIER).then_some(text)
}

fn texts<'a>(document: &'a Document, name: &str) -> Option<Vec<&'a str>> {
    match document.get(name)? {
        Value::Array(values) => Some(values.iter().filter_map(Value::as_str).collect()),
        // Seen here: one value without its list.
        Value::String(value) => Some(value.split_ascii_whitespace().collect()),
        _ => None,
    }
}

fn flag(document: &Document, name: &str) -> bool {
    match document.get(name) {
        Some(Value::Bool(flag)) => *flag,
        Some(Value::String(flag)) => flag == "true",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use url::Url;

    use super::{Document, ResourceMetadata};

    fn document(value: serde_json::Value) -> Document {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_resource_is_the_endpoint_or_above_it() {
        for (resource, server, covers) in [
            ("https://h", "https://h/mcp", true),
            ("https://h/", "https://h/mcp", true),
            ("https://h/mcp", "https://h/mcp", true),
            ("https://h/mcp", "https://h/mcp/", true),
            ("https://h/mcp/", "https://h/mcp", true),
            ("https://H:443/mcp", "https://h/mcp", true),
            ("https://h/a", "https://h/a/b/c", true),
            ("https://h/mcp", "https://h/mcp?tenant=1", true),
            ("https://h/mcp?tenant=1", "https://h/mcp?tenant=1", true),
            ("https://h/mcp?tenant=2", "https://h/mcp?tenant=1", false),
            ("https://h/mc", "https://h/mcp", false),
            ("https://h/mcp/more", "https://h/mcp", false),
            ("https://h/MCP", "https://h/mcp", false),
            ("https://h/x/../mcp", "https://h/mcp", true),
            ("https://evil.example/mcp", "https://h/mcp", false),
            ("https://h.evil.example/mcp", "https://h/mcp", false),
            ("http://h/mcp", "https://h/mcp", false),
            ("https://h:8443/mcp", "https://h/mcp", false),
            ("https://me@h/mcp", "https://h/mcp", false),
            ("https://h/mcp#part", "https://h/mcp", false),
            ("urn:mcp", "https://h/mcp", false),
            ("", "https://h/mcp", false),
        ] {
            let metadata = ResourceMetadata {
                resource: resource.to_owned(),
                ..ResourceMetadata::default()
            };
            let result = metadata.covers(&Url::parse(server).unwrap());
            assert_eq!(result.is_ok(), covers, "{resource} for {server}");
            if let Err(error) = result {
                assert!(error.message().contains("resource"), "{error}");
                assert!(error.message().contains(resource), "{error}");
                assert!(error.message().contains("https://h/mcp"), "{error}");
            }
        }
    }

    #[test]
    fn oddities_are_read_over() {
        let read = ResourceMetadata::read(&document(json!({
            "resource": "https://h/mcp",
            "authorization_servers": "https://as",
            "scopes_supported": ["a", 1, "b c", "a", "d"],
            "dpop_bound_access_tokens_required": "true",
            "jwks": {"keys": []},
        })))
        .unwrap();
        assert_eq!(read.servers, ["https://as"]);
        assert_eq!(read.scopes.unwrap().to_string(), "a d");
        assert!(read.dpop_required);
        for none in [json!({}), json!({"resource": 1}), json!({"resource": ""})] {
            assert_eq!(ResourceMetadata::read(&document(none)), None);
        }
    }

    proptest! {
        #[test]
        fn only_the_same_origin_is_covered(resource in "[a-z:/.@?#]{0,30}", path in "(/[a-z.]{0,4}){0,3}") {
            let metadata = ResourceMetadata { resource, ..ResourceMetadata::default() };
            let server = Url::parse(&format!("https://h.example{path}")).unwrap();
            if metadata.covers(&server).is_ok() {
                prop_assert_eq!(Url::parse(&metadata.resource).unwrap().origin(), server.origin());
            }
        }
    }
}
