//! What the client of the conformance suite has to do about sign-ins: the credentials that the suite gives, the user who
//! signs in, and what the daemon must say where the suite does not look.

use tonic::Status;

use serde::Deserialize;

use crate::clients::Clients;
use crate::facts::{ErrorFacts, ServerFacts as _};
use crate::fake_auth::Browser;
use crate::v1::authorization::Method;
use crate::v1::workload_identity::AssertionSource;
use crate::v1::{self, ClientAuthMethod, ConnectionState, OAuthClient, Server};

/// How often the user signs in before the client gives up.
const LIMIT: usize = 3;

/// The credentials in the suite's context.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Credentials {
    name: String,
    client_id: String,
    client_secret: String,
    issuer: String,
    private_key_pem: String,
    signing_algorithm: String,
    idp_client_id: String,
    idp_id_token: String,
    idp_token_endpoint: String,
    valid_jwt: String,
}

impl Credentials {
    /// Reads the context; there may be none.
    pub fn read(context: &str) -> Self {
        match context {
            "" => Self::default(),
            text => serde_json::from_str(text).expect("the suite's context"),
        }
    }

    /// How the daemon gets authorized; `None`: as by default.
    pub fn authorization(&self) -> Option<v1::Authorization> {
        let method = self.method()?;
        Some(v1::Authorization {
            method: Some(method),
            issuer: self.issuer.clone(),
            ..Default::default()
        })
    }

    fn method(&self) -> Option<Method> {
        let client = OAuthClient {
            client_id: self.client_id.clone(),
            client_secret: self.client_secret.clone(),
            private_key_pem: self.private_key_pem.clone(),
            signing_algorithm: self.signing_algorithm.clone(),
            ..Default::default()
        };
        let of_its_own = self.name.starts_with("auth/client-credentials");
        if !self.idp_id_token.is_empty() {
            return Some(Method::EnterpriseManaged(v1::EnterpriseManaged {
                client: Some(client),
                idp_token_endpoint: self.idp_token_endpoint.clone(),
                idp_client: Some(OAuthClient {
                    client_id: self.idp_client_id.clone(),
                    auth_method: ClientAuthMethod::None.into(),
                    ..Default::default()
                }),
                id_token: self.idp_id_token.clone(),
            }));
        }
        if !self.valid_jwt.is_empty() {
            return Some(Method::WorkloadIdentity(v1::WorkloadIdentity {
                client: Some(OAuthClient {
                    auth_method: ClientAuthMethod::None.into(),
                    ..client
                }),
                assertion_source: Some(AssertionSource::Assertion(self.valid_jwt.clone())),
            }));
        }
        if of_its_own {
            return Some(Method::ClientCredentials(v1::ClientCredentials {
                client: Some(client),
            }));
        }
        (!self.client_id.is_empty()).then(|| {
            Method::AuthorizationCode(v1::AuthorizationCode {
                client: Some(client),
                ..Default::default()
            })
        })
    }
}

/// The user, and what was seen of the sign-ins.
pub struct SignIns {
    app: Clients,
    server: String,
    browser: Browser,
    count: usize,
    /// Where the user signed in last.
    url: String,
    /// What the daemon said when it refused a redirect.
    refusal: String,
    /// The last state of the server that was seen.
    last: Option<Server>,
}

impl SignIns {
    /// Sign-ins at a server.
    pub fn at(app: &Clients, server: &str) -> Self {
        Self {
            app: app.clone(),
            server: server.to_owned(),
            browser: Browser::new(),
            count: 0,
            url: String::new(),
            refusal: String::new(),
            last: None,
        }
    }

    /// Waits until the server can be used; the user signs in as often as it is wanted.
    pub async fn settle(&mut self) -> Result<Server, String> {
        loop {
            let used = self.url.clone();
            let mut updates = self.app.updates("").await;
            let server = updates.server_where("the server to be decided", |server| {
                let status = server.facts();
                server.id == self.server
                    && match server.state() {
                        ConnectionState::Ready => {
                            status.auth_url.is_empty() || status.auth_url != used
                        }
                        ConnectionState::Failed => true,
                        // Without a place to sign in it says why there is none.
                        ConnectionState::Authenticating => status.auth_url != used,
                        _ => false,
                    }
            });
            let server = server.await;
            self.last = Some(server.clone());
            let url = server.facts().auth_url.clone();
            match server.state() {
                ConnectionState::Failed => {
                    return Err(format!("the server is FAILED: {:?}", server.failure()));
                }
                ConnectionState::Ready if url.is_empty() => return Ok(server),
                _ if url.is_empty() => {
                    return Err(format!(
                        "there is no place to sign in: {:?}",
                        server.failure()
                    ));
                }
                _ => self.sign_in(&url).await?,
            }
        }
    }

    /// Does something again and again until no sign-in is wanted for it.
    pub async fn over<T>(
        &mut self,
        mut act: impl AsyncFnMut() -> Result<T, Status>,
    ) -> Result<Result<T, Status>, String> {
        loop {
            let outcome = act().await;
            let Err(status) = &outcome else {
                return Ok(outcome);
            };
            let facts = ErrorFacts::of(status);
            if facts.reason != "SIGN_IN_REQUIRED" {
                return Ok(outcome);
            }
            match facts.metadata.get("auth_url") {
                Some(url) => self.sign_in(url).await?,
                None => return Err(format!("nobody says where to sign in: {facts:?}")),
            }
            self.settle().await?;
        }
    }

    /// The user signs in, and the redirect is handed to the daemon.
    async fn sign_in(&mut self, url: &str) -> Result<(), String> {
        if self.count == LIMIT {
            return Err(format!("more than {LIMIT} sign-ins are wanted"));
        }
        self.count += 1;
        url.clone_into(&mut self.url);
        let redirect = self.browser.decide(url).await;
        match self.app.complete_sign_in(&redirect).await {
            Ok(_) => Ok(()),
            Err(status) => {
                let facts = ErrorFacts::of(&status);
                self.refusal = format!("{} {}", facts.reason, facts.message);
                Err(format!("CompleteSignIn: {facts:?}"))
            }
        }
    }

    /// What the daemon must have said and done in a scenario, and did not. `problem` is why the client gave up.
    pub fn assertions(&self, scenario: &str, problem: &str) -> Vec<String> {
        let (reason, message) = self.last.as_ref().map_or(("", ""), Server::failure);
        let said = format!("{reason} {message}");
        let mut failed = Vec::new();
        let mut demand = |what: &str, holds: bool| {
            if !holds {
                let refusal = &self.refusal;
                let count = self.count;
                failed.push(format!(
                    "{what}; {count} sign-ins, refused with `{refusal}`, the server says `{said}`, ended by `{problem}`"
                ));
            }
        };
        match scenario {
            "auth/resource-mismatch" => {
                demand(
                    "the wrong resource is named",
                    said.contains("evil.example.com"),
                );
                demand("no sign-in is begun", self.count == 0);
            }
            "auth/metadata-issuer-mismatch" => {
                demand("the issuer is named", said.contains("issuer"));
                demand("no sign-in is begun", self.count == 0);
            }
            "auth/iss-supported-missing"
            | "auth/iss-wrong-issuer"
            | "auth/iss-unexpected"
            | "auth/iss-normalized" => {
                let refused = self.refusal.starts_with("INVALID_FIELD ");
                demand("the redirect is refused, as one that does not fit", refused);
                demand("the issuer is named", self.refusal.contains("iss"));
            }
            "auth/authorization-server-migration" | "auth/scope-step-up" => {
                demand(
                    "there are two sign-ins",
                    self.count == 2 && problem.is_empty(),
                );
            }
            "auth/scope-retry-limit" => {
                demand(
                    "the daemon gives up by itself",
                    self.count < LIMIT && !problem.is_empty(),
                );
            }
            "auth/client-credentials-jwt"
            | "auth/client-credentials-basic"
            | "auth/enterprise-managed-authorization"
            | "auth/wif-jwt-bearer" => {
                demand("nobody signs in", self.count == 0 && problem.is_empty());
            }
            _ if scenario.starts_with("auth/") => {
                demand(
                    "one sign-in is enough",
                    self.count == 1 && problem.is_empty(),
                );
            }
            _ => demand("nobody signs in", self.count == 0),
        }
        failed
    }
}
