//! What kind of authorization server it is. Everything can be changed while it runs.

use serde_json::{Map, Value, json};

/// A well-known place of the metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WellKnown {
    /// `/.well-known/oauth-authorization-server` before the path of the issuer (RFC 8414).
    OAuth,
    /// `/.well-known/openid-configuration` before the path of the issuer.
    OpenIdBefore,
    /// `/.well-known/openid-configuration` behind the path of the issuer (OpenID Connect Discovery).
    OpenIdBehind,
}

/// What it wants to know about possession.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dpop {
    /// It knows nothing of DPoP.
    Unknown,
    /// Who proves possession gets a bound token.
    Offered,
    /// Nobody else gets one.
    Required,
}

/// How redirect URIs are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redirects {
    /// Character by character.
    Exact,
    /// Any port of the same loopback address (RFC 8252 section 7.3).
    AnyPort,
}

/// What the user decides, or what goes wrong at the authorization endpoint.
#[derive(Clone, Debug)]
pub enum Decision {
    /// Yes.
    Grant,
    /// Yes, but for these scopes only.
    GrantOnly(&'static str),
    /// An error is sent to the client: its code and description.
    Refuse(&'static str, &'static str),
    /// Yes, and the redirect says that this is the issuer.
    Issuer(String),
    /// Yes, and the redirect does not say who the issuer is.
    NoIssuer,
    /// Only a page; the client never hears of it.
    Page(&'static str),
    /// An error, sent with this `state`.
    RefuseAs(&'static str, String),
}

/// What kind of authorization server it is.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct Shape {
    /// Where its metadata are.
    pub well_known: Vec<WellKnown>,
    /// Members of the metadata that are different, or missing if null.
    pub metadata: Map<String, Value>,
    /// Whether clients can be registered.
    pub registers: bool,
    /// How registered clients prove who they are.
    pub client_auth: &'static str,
    /// Whether the answer to a registration says so.
    pub says_client_auth: bool,
    /// What a client may ask for that was registered without scopes; `None`: anything.
    pub default_scope: Option<&'static str>,
    /// Whether a URL can be a client identifier.
    pub reads_client_documents: bool,
    /// Whether redirects say who the issuer is, and the metadata say that they do.
    pub says_issuer: bool,
    /// How redirect URIs are compared.
    pub redirects: Redirects,
    /// The scopes that there are; `None`: any. Asking for others is refused.
    pub scopes: Option<&'static str>,
    /// Whether token answers say what was granted.
    pub says_scope: bool,
    /// The life of access tokens in seconds, as it is said; `None`: not said.
    pub expires_in: Option<u64>,
    /// Whether there are refresh tokens.
    pub refreshes: bool,
    /// Whether a refresh token can be used once only, and its second use ends the whole family.
    pub rotates: bool,
    /// The resources that it gives tokens for; empty: any, or none.
    pub resources: Vec<String>,
    /// Whether tokens are bound to keys.
    pub dpop: Dpop,
    /// The nonce that proofs must hold.
    pub dpop_nonce: Option<String>,
    /// Whether tokens can be revoked.
    pub revokes: bool,
    /// The user, told in an ID token.
    pub subject: Option<&'static str>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            well_known: vec![WellKnown::OAuth],
            metadata: Map::new(),
            registers: true,
            client_auth: "none",
            says_client_auth: true,
            default_scope: None,
            reads_client_documents: false,
            says_issuer: true,
            redirects: Redirects::Exact,
            scopes: None,
            says_scope: true,
            expires_in: Some(3600),
            refreshes: true,
            rotates: true,
            resources: Vec::new(),
            dpop: Dpop::Unknown,
            dpop_nonce: None,
            revokes: true,
            subject: None,
        }
    }
}

impl Shape {
    /// The metadata.
    pub(super) fn document(&self, issuer: &str) -> Value {
        let base = issuer.trim_end_matches('/');
        let mut all = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{base}/authorize"),
            "token_endpoint": format!("{base}/token"),
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported":
                ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"],
        });
        if self.registers {
            all["registration_endpoint"] = json!(format!("{base}/register"));
        }
        if self.revokes {
            all["revocation_endpoint"] = json!(format!("{base}/revoke"));
        }
        if self.says_issuer {
            all["authorization_response_iss_parameter_supported"] = json!(true);
        }
        if self.reads_client_documents {
            all["client_id_metadata_document_supported"] = json!(true);
        }
        if self.dpop != Dpop::Unknown {
            all["dpop_signing_alg_values_supported"] = json!(["ES256"]);
        }
        if let Some(scopes) = self.scopes {
            all["scopes_supported"] = scopes.split(' ').collect();
        }
        for (name, value) in &self.metadata {
            all[name] = value.clone();
        }
        if let Some(members) = all.as_object_mut() {
            members.retain(|_, value| !value.is_null());
        }
        all
    }
}
