//! Authorization as plain data: how a server wants it, who the daemon is at an authorization server, what was granted, and
//! sign-ins under way. Secrets stay apart from what serialises.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::base::{Secret, ServerKey, SignInId, Timestamp};
use crate::model::spec::NamedSecret;

/// Most scopes that are asked for at a time.
const MOST_SCOPES: usize = 200;

/// How the daemon gets authorized at a server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthSpec {
    /// The way.
    pub method: AuthMethod,
    /// Scopes to ask for instead of those that the server names.
    pub scopes: Scopes,
    /// The issuer that the authorization server must have.
    pub issuer: Option<String>,
    /// Whether tokens are bound to a key.
    pub dpop: DpopMode,
}

/// The ways to get a token.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMethod {
    /// A user signs in.
    AuthorizationCode(CodeSpec),
    /// The daemon signs in as itself.
    ClientCredentials(ClientSpec),
    /// An identity provider vouches for the user.
    EnterpriseManaged(EnterpriseSpec),
    /// The platform vouches for the workload.
    WorkloadIdentity(WorkloadSpec),
    /// A token that somebody else looks after.
    Bearer(NamedSecret),
    /// None.
    None,
}

impl Default for AuthMethod {
    fn default() -> Self {
        Self::AuthorizationCode(CodeSpec::default())
    }
}

/// Whether tokens are bound to a key of the daemon (RFC 9449).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DpopMode {
    /// If the authorization server says that it can.
    #[default]
    Auto,
    /// Always.
    Required,
    /// Never.
    Off,
}

/// How a user signs in.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CodeSpec {
    /// The client to be, where that was agreed beforehand.
    pub client: Option<ClientSpec>,
    /// The name to register under.
    pub client_name: Option<String>,
    /// The redirect URI, exactly as registered.
    pub redirect_uri: Option<String>,
    /// Further parameters of the authorization request.
    pub parameters: BTreeMap<String, String>,
    /// Go on although PKCE is not said to be supported.
    pub assume_pkce: bool,
}

/// How a client proves who it is at the token endpoint (RFC 7591 section 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// A public client.
    None,
    /// `client_secret_basic`.
    Basic,
    /// `client_secret_post`.
    Post,
    /// `private_key_jwt`.
    PrivateKeyJwt,
}

impl ClientAuth {
    /// All.
    pub const ALL: [Self; 4] = [Self::None, Self::Basic, Self::Post, Self::PrivateKeyJwt];

    /// The registered name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Basic => "client_secret_basic",
            Self::Post => "client_secret_post",
            Self::PrivateKeyJwt => "private_key_jwt",
        }
    }

    /// The method of this name; `None` if the daemon has no such.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }
}

/// Who the daemon is at an authorization server, where that was agreed beforehand.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientSpec {
    /// The client identifier; may be empty for a workload.
    pub client_id: String,
    /// The client secret.
    pub secret: Option<NamedSecret>,
    /// A private key in PEM form.
    pub private_key: Option<NamedSecret>,
    /// The algorithm that it signs with; `None`: by the key.
    pub algorithm: Option<String>,
    /// How it is proven; `None`: as the authorization server prefers.
    pub auth: Option<ClientAuth>,
}

/// How an identity provider vouches for the user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EnterpriseSpec {
    /// The client at the server's authorization server.
    pub client: ClientSpec,
    /// The token endpoint of the identity provider.
    pub idp_token_endpoint: String,
    /// The client at the identity provider.
    pub idp_client: ClientSpec,
    /// The user's ID token.
    pub id_token: NamedSecret,
}

/// How the platform vouches for the workload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkloadSpec {
    /// The client, if one is to be named.
    pub client: Option<ClientSpec>,
    /// Where the assertion comes from.
    pub assertion: Assertion,
}

/// Where an assertion comes from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Assertion {
    /// It was given.
    Given(NamedSecret),
    /// A file that is read for every token request.
    File(String),
}

impl AuthSpec {
    /// The identifier of the client that was agreed beforehand, if the daemon is to be one, or has something else to show that
    /// is for one authorization server only.
    #[must_use]
    pub fn agreed_client(&self) -> Option<&str> {
        let client = match &self.method {
            AuthMethod::AuthorizationCode(code) => return Some(&code.client.as_ref()?.client_id),
            AuthMethod::ClientCredentials(client) => Some(client),
            AuthMethod::EnterpriseManaged(enterprise) => Some(&enterprise.client),
            AuthMethod::WorkloadIdentity(workload) => workload.client.as_ref(),
            AuthMethod::Bearer(_) | AuthMethod::None => return None,
        };
        Some(client.map_or("", |client| &client.client_id))
    }

    /// Whether a user has to sign in.
    #[must_use]
    pub fn is_interactive(&self) -> bool {
        matches!(self.method, AuthMethod::AuthorizationCode(_))
    }

    /// The secrets in it, in order.
    #[must_use]
    pub fn secrets(&self) -> Vec<&NamedSecret> {
        fn client(client: &ClientSpec) -> impl Iterator<Item = &NamedSecret> {
            client.secret.iter().chain(&client.private_key)
        }
        match &self.method {
            AuthMethod::AuthorizationCode(code) => code.client.iter().flat_map(client).collect(),
            AuthMethod::ClientCredentials(spec) => client(spec).collect(),
            AuthMethod::EnterpriseManaged(spec) => client(&spec.client)
                .chain(client(&spec.idp_client))
                .chain([&spec.id_token])
                .collect(),
            AuthMethod::WorkloadIdentity(spec) => {
                let given = match &spec.assertion {
                    Assertion::Given(secret) => Some(secret),
                    Assertion::File(_) => None,
                };
                spec.client.iter().flat_map(client).chain(given).collect()
            }
            AuthMethod::Bearer(token) => vec![token],
            AuthMethod::None => Vec::new(),
        }
    }

    /// The secrets in it, in order, to fill in values.
    #[must_use]
    pub fn secrets_mut(&mut self) -> Vec<&mut NamedSecret> {
        fn client(client: &mut ClientSpec) -> impl Iterator<Item = &mut NamedSecret> {
            client.secret.iter_mut().chain(&mut client.private_key)
        }
        match &mut self.method {
            AuthMethod::AuthorizationCode(code) => {
                code.client.iter_mut().flat_map(client).collect()
            }
            AuthMethod::ClientCredentials(spec) => client(spec).collect(),
            AuthMethod::EnterpriseManaged(spec) => client(&mut spec.client)
                .chain(client(&mut spec.idp_client))
                .chain([&mut spec.id_token])
                .collect(),
            AuthMethod::WorkloadIdentity(spec) => {
                let given = match &mut spec.assertion {
                    Assertion::Given(secret) => Some(secret),
                    Assertion::File(_) => None,
                };
                spec.client
                    .iter_mut()
                    .flat_map(client)
                    .chain(given)
                    .collect()
            }
            AuthMethod::Bearer(token) => vec![token],
            AuthMethod::None => Vec::new(),
        }
    }
}

/// A set of scopes in the order in which they were named (RFC 6749 section 3.3).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scopes(Vec<String>);

impl Scopes {
    /// The scopes of a space-delimited list.
    #[must_use]
    pub fn parse(list: &str) -> Self {
        list.split_ascii_whitespace().map(str::to_owned).collect()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there are more than anybody needs: a server that wants others each time gets no more.
    #[must_use]
    pub fn are_too_many(&self) -> bool {
        self.0.len() > MOST_SCOPES
    }

    /// Whether this one is among them.
    #[must_use]
    pub fn has(&self, scope: &str) -> bool {
        self.0.iter().any(|known| known == scope)
    }

    /// Whether all of the others are among them.
    #[must_use]
    pub fn covers(&self, others: &Self) -> bool {
        others.0.iter().all(|other| self.has(other))
    }

    /// These, then what the others add.
    #[must_use]
    pub fn union(&self, others: &Self) -> Self {
        self.0.iter().chain(&others.0).cloned().collect()
    }

    /// One by one.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// One by one, to be kept.
    #[must_use]
    pub fn to_vec(&self) -> Vec<String> {
        self.0.clone()
    }
}

impl FromIterator<String> for Scopes {
    fn from_iter<T: IntoIterator<Item = String>>(all: T) -> Self {
        let mut scopes = Vec::new();
        for scope in all {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        Self(scopes)
    }
}

impl PartialEq for Scopes {
    fn eq(&self, other: &Self) -> bool {
        self.covers(other) && other.covers(self)
    }
}

impl Eq for Scopes {}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// What an authorization server says of itself (RFC 8414 section 2, OpenID Connect Discovery section 3), as far as it is
/// used. Kept with what was granted, so that tokens are renewed where they came from.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthServer {
    /// The issuer identifier, character by character.
    pub issuer: String,
    /// Where users sign in.
    pub authorization_endpoint: Option<String>,
    /// Where tokens are given out.
    pub token_endpoint: Option<String>,
    /// Where clients are registered.
    pub registration_endpoint: Option<String>,
    /// Where tokens are revoked.
    pub revocation_endpoint: Option<String>,
    /// What may be asked for, if it says so.
    pub scopes_supported: Option<Scopes>,
    /// How clients may prove who they are; `None`: as by default, `client_secret_basic`.
    pub token_endpoint_auth_methods_supported: Option<Vec<String>>,
    /// Which challenges of PKCE it takes.
    pub code_challenge_methods_supported: Option<Vec<String>>,
    /// Whether its redirects always carry `iss` (RFC 9207).
    pub authorization_response_iss_parameter_supported: bool,
    /// Whether a URL can be a client identifier.
    pub client_id_metadata_document_supported: bool,
    /// With which algorithms DPoP proofs may be signed.
    pub dpop_signing_alg_values_supported: Option<Vec<String>>,
}

/// A client of an authorization server: who the daemon is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Client {
    /// The issuer at which it is known. Never shown to another.
    pub issuer: String,
    /// The client identifier.
    pub client_id: String,
    /// How it proves who it is.
    pub auth: ClientAuth,
    /// Its secret, for `Basic` and `Post`.
    #[serde(skip)]
    pub secret: Option<Secret<String>>,
    /// Its private key in PEM form, for `PrivateKeyJwt`. Comes from the registration of the server.
    #[serde(skip)]
    pub private_key: Option<Secret<String>>,
    /// The algorithm of the key; `None`: by the key.
    pub algorithm: Option<String>,
}

/// A client that was registered dynamically (RFC 7591): kept per server and issuer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registration {
    /// The client.
    pub client: Client,
    /// The redirect URIs that it was registered with.
    pub redirect_uris: Vec<String>,
    /// The scopes that it was registered for: some authorization servers let it ask for no others.
    #[serde(default)]
    pub scopes: Scopes,
    /// When its secret expires; `None`: never.
    pub secret_expires: Option<Timestamp>,
    /// When it was registered.
    pub created: Timestamp,
}

impl Registration {
    /// That a client which was agreed beforehand is known at this issuer. Holds no secret.
    #[must_use]
    pub fn agreed(client: &Client, now: Timestamp) -> Self {
        Self {
            client: Client {
                secret: None,
                private_key: None,
                ..client.clone()
            },
            redirect_uris: Vec::new(),
            scopes: Scopes::default(),
            secret_expires: None,
            created: now,
        }
    }

    /// Whether the client was agreed beforehand.
    #[must_use]
    pub fn is_agreed(&self) -> bool {
        self.redirect_uris.is_empty()
    }
}

/// Everything that is needed to get tokens: from whom, as whom, for what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Terms {
    /// The authorization server.
    pub server: AuthServer,
    /// The client.
    pub client: Client,
    /// The resource indicator, exactly as the server's metadata have it (RFC 8707).
    pub resource: String,
    /// The scopes that were asked for.
    pub scopes: Scopes,
}

/// The tokens of a server. At most one per server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// Counts what was granted for the server; never reused. Who fails with one of them does not harm a later one.
    pub generation: u64,
    /// How it came about, and how it is renewed.
    pub terms: Terms,
    /// The scopes that were granted, as far as the authorization server said; else those that were asked for.
    pub scopes: Scopes,
    /// Whether the access token is bound to the key (token type `DPoP`).
    pub bound: bool,
    /// When the access token expires, if the authorization server said so.
    pub expires: Option<Timestamp>,
    /// Who signed in, if the authorization server said so. Not verified.
    pub subject: Option<String>,
    /// When the tokens were given out.
    pub renewed: Timestamp,
    /// The access token.
    #[serde(skip)]
    pub access_token: Secret<String>,
    /// The refresh token, if there is one.
    #[serde(skip)]
    pub refresh_token: Option<Secret<String>>,
    /// The private key of DPoP proofs, PKCS #8 in PEM form.
    #[serde(skip)]
    pub dpop_key: Option<Secret<String>>,
}

/// Whether two URLs have the same origin.
#[must_use]
pub fn same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host() == other.host()
        && one.port_or_known_default() == other.port_or_known_default()
}

impl Grant {
    /// Whether its tokens may be shown at this URL: they are for a resource at that origin.
    #[must_use]
    pub fn is_for(&self, url: &Url) -> bool {
        Url::parse(&self.terms.resource).is_ok_and(|resource| same_origin(&resource, url))
    }

    /// Forgets everything secret, for whoever only wants to show it.
    pub fn wipe(&mut self) {
        self.access_token = Secret::default();
        (self.refresh_token, self.dpop_key) = (None, None);
        (self.terms.client.secret, self.terms.client.private_key) = (None, None);
    }
}

/// What has become of a sign-in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignInState {
    /// It waits for the user.
    Pending,
    /// The code is being redeemed; the state in the URL is used up.
    Redeeming,
    /// The tokens are stored.
    Succeeded,
    /// The authorization server refused, or its answer was not acceptable.
    Failed,
    /// An app, or the removal of the server, ended it.
    Cancelled,
    /// Nobody came in time.
    Expired,
    /// Another sign-in of the server succeeded or took its place.
    Superseded,
}

impl SignInState {
    /// All.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Redeeming,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
        Self::Superseded,
    ];

    /// As it is stored and shown.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Redeeming => "redeeming",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Superseded => "superseded",
        }
    }

    /// The state of this word.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether nothing more will come of it.
    #[must_use]
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Pending | Self::Redeeming)
    }
}

impl SignIn {
    /// Forgets what only a pending sign-in needs. Its `state` is still recognised.
    pub fn wipe(&mut self) {
        self.verifier = Secret::default();
        self.dpop_key = None;
        self.terms.client.secret = None;
        self.terms.client.private_key = None;
    }
}

/// One authorization in progress, or its end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SignIn {
    /// Its id.
    pub id: SignInId,
    /// The server.
    pub key: ServerKey,
    /// What has become of it.
    pub state: SignInState,
    /// Where the user signs in.
    pub auth_url: String,
    /// From whom, as whom, for what. The issuer in it is the expected one.
    pub terms: Terms,
    /// Where the browser comes back to, exactly as it was sent.
    pub redirect_uri: String,
    /// When it was begun.
    pub created: Timestamp,
    /// When it expires, or has ended.
    pub expires: Timestamp,
    /// Why it failed.
    pub failure: Option<String>,
    /// The `state` parameter (RFC 6749 section 10.12).
    #[serde(skip)]
    pub nonce: Secret<String>,
    /// The code verifier (RFC 7636).
    #[serde(skip)]
    pub verifier: Secret<String>,
    /// The private key of DPoP proofs, PKCS #8 in PEM form, if tokens are to be bound.
    #[serde(skip)]
    pub dpop_key: Option<Secret<String>>,
}
