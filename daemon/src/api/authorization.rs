//! How servers want to be authorized at, between the contract and the domain.

use mcp_sidecar_proto::v1;
use v1::authorization::Method;

use super::spec::{named_secret, optional};
use crate::error::{Error, Result};
use crate::model::auth::{
    Assertion, AuthMethod, AuthSpec, ClientAuth, ClientSpec, CodeSpec, DpopMode, EnterpriseSpec,
    Scopes, WorkloadSpec,
};
use crate::model::spec::NamedSecret;

/// From the contract; the registry checks what it says.
///
/// # Errors
/// `INVALID_FIELD` for what cannot be expressed in the domain.
pub(super) fn spec(wanted: Option<v1::Authorization>) -> Result<AuthSpec> {
    let Some(wanted) = wanted else {
        return Ok(AuthSpec::default());
    };
    let method = match wanted.method {
        None => AuthMethod::default(),
        Some(Method::AuthorizationCode(code)) => AuthMethod::AuthorizationCode(CodeSpec {
            client: code
                .client
                .map(|given| client(given, "client"))
                .transpose()?,
            client_name: optional(code.client_name),
            redirect_uri: optional(code.redirect_uri),
            parameters: code.parameters.into_iter().collect(),
            assume_pkce: code.assume_pkce,
        }),
        Some(Method::ClientCredentials(given)) => AuthMethod::ClientCredentials(required(
            given.client,
            "client",
            "spec.authorization.client_credentials.client",
        )?),
        Some(Method::EnterpriseManaged(given)) => AuthMethod::EnterpriseManaged(EnterpriseSpec {
            client: required(
                given.client,
                "client",
                "spec.authorization.enterprise_managed.client",
            )?,
            idp_token_endpoint: given.idp_token_endpoint,
            idp_client: required(
                given.idp_client,
                "idp_client",
                "spec.authorization.enterprise_managed.idp_client",
            )?,
            id_token: secret("id_token", given.id_token),
        }),
        Some(Method::WorkloadIdentity(given)) => {
            use v1::workload_identity::AssertionSource;
            let assertion = match given.assertion_source {
                Some(AssertionSource::Assertion(text)) => {
                    Assertion::Given(secret("assertion", text))
                }
                Some(AssertionSource::AssertionFile(path)) => Assertion::File(path),
                None => {
                    return Err(Error::invalid(
                        "spec.authorization.workload_identity.assertion",
                        "give `assertion` or `assertion_file`",
                    ));
                }
            };
            AuthMethod::WorkloadIdentity(WorkloadSpec {
                client: given
                    .client
                    .map(|given| client(given, "client"))
                    .transpose()?,
                assertion,
            })
        }
        Some(Method::BearerToken(given)) => AuthMethod::Bearer(secret("token", given.token)),
        Some(Method::None(v1::NoAuthorization {})) => AuthMethod::None,
    };
    Ok(AuthSpec {
        method,
        scopes: wanted.scopes.into_iter().collect::<Scopes>(),
        issuer: optional(wanted.issuer),
        dpop: match v1::DpopMode::try_from(wanted.dpop) {
            Ok(v1::DpopMode::Unspecified | v1::DpopMode::Auto) => DpopMode::Auto,
            Ok(v1::DpopMode::Required) => DpopMode::Required,
            Ok(v1::DpopMode::Off) => DpopMode::Off,
            Err(_) => {
                return Err(Error::invalid(
                    "spec.authorization.dpop",
                    format!("{} is no value of DpopMode", wanted.dpop),
                ));
            }
        },
    })
}

fn secret(name: &str, value: String) -> NamedSecret {
    // No header and no variable has such a name.
    named_secret(format!("authorization/{name}"), value)
}

fn required(given: Option<v1::OAuthClient>, name: &str, field: &'static str) -> Result<ClientSpec> {
    let given = given.ok_or_else(|| Error::invalid(field, "name the client"))?;
    client(given, name)
}

fn client(given: v1::OAuthClient, name: &str) -> Result<ClientSpec> {
    let auth = match v1::ClientAuthMethod::try_from(given.auth_method) {
        Ok(v1::ClientAuthMethod::Unspecified) => None,
        Ok(v1::ClientAuthMethod::None) => Some(ClientAuth::None),
        Ok(v1::ClientAuthMethod::Basic) => Some(ClientAuth::Basic),
        Ok(v1::ClientAuthMethod::Post) => Some(ClientAuth::Post),
        Ok(v1::ClientAuthMethod::PrivateKeyJwt) => Some(ClientAuth::PrivateKeyJwt),
        Err(_) => {
            return Err(Error::invalid(
                "spec.authorization",
                format!("{} is no value of ClientAuthMethod", given.auth_method),
            ));
        }
    };
    let kept = |kind: &str, value: String, wanted: bool| {
        // A secret that is needed is there even if it is empty: in UpdateServer that keeps the stored one.
        (wanted || !value.is_empty()).then(|| secret(&format!("{name}/{kind}"), value))
    };
    let needs_secret = matches!(auth, Some(ClientAuth::Basic | ClientAuth::Post));
    let needs_key = auth == Some(ClientAuth::PrivateKeyJwt);
    Ok(ClientSpec {
        client_id: given.client_id,
        secret: kept("client_secret", given.client_secret, needs_secret),
        private_key: kept("private_key", given.private_key_pem, needs_key),
        algorithm: optional(given.signing_algorithm),
        auth,
    })
}

/// To the contract, without secrets; `None` if nothing was said.
pub(super) fn shown(spec: AuthSpec) -> Option<v1::Authorization> {
    if spec == AuthSpec::default() {
        return None;
    }
    let method = match spec.method {
        AuthMethod::AuthorizationCode(code) => Method::AuthorizationCode(v1::AuthorizationCode {
            client: code.client.map(shown_client),
            client_name: code.client_name.unwrap_or_default(),
            redirect_uri: code.redirect_uri.unwrap_or_default(),
            parameters: code.parameters.into_iter().collect(),
            assume_pkce: code.assume_pkce,
        }),
        AuthMethod::ClientCredentials(client) => Method::ClientCredentials(v1::ClientCredentials {
            client: Some(shown_client(client)),
        }),
        AuthMethod::EnterpriseManaged(spec) => Method::EnterpriseManaged(v1::EnterpriseManaged {
            client: Some(shown_client(spec.client)),
            idp_token_endpoint: spec.idp_token_endpoint,
            idp_client: Some(shown_client(spec.idp_client)),
            id_token: String::new(),
        }),
        AuthMethod::WorkloadIdentity(spec) => {
            use v1::workload_identity::AssertionSource;
            Method::WorkloadIdentity(v1::WorkloadIdentity {
                client: spec.client.map(shown_client),
                assertion_source: Some(match spec.assertion {
                    Assertion::Given(_) => AssertionSource::Assertion(String::new()),
                    Assertion::File(path) => AssertionSource::AssertionFile(path),
                }),
            })
        }
        AuthMethod::Bearer(_) => Method::BearerToken(v1::BearerToken::default()),
        AuthMethod::None => Method::None(v1::NoAuthorization {}),
    };
    Some(v1::Authorization {
        method: Some(method),
        scopes: spec.scopes.to_vec(),
        issuer: spec.issuer.unwrap_or_default(),
        dpop: match spec.dpop {
            DpopMode::Auto => v1::DpopMode::Auto,
            DpopMode::Required => v1::DpopMode::Required,
            DpopMode::Off => v1::DpopMode::Off,
        }
        .into(),
    })
}

fn shown_client(client: ClientSpec) -> v1::OAuthClient {
    v1::OAuthClient {
        client_id: client.client_id,
        client_secret: String::new(),
        private_key_pem: String::new(),
        signing_algorithm: client.algorithm.unwrap_or_default(),
        auth_method: match client.auth {
            None => v1::ClientAuthMethod::Unspecified,
            Some(ClientAuth::None) => v1::ClientAuthMethod::None,
            Some(ClientAuth::Basic) => v1::ClientAuthMethod::Basic,
            Some(ClientAuth::Post) => v1::ClientAuthMethod::Post,
            Some(ClientAuth::PrivateKeyJwt) => v1::ClientAuthMethod::PrivateKeyJwt,
        }
        .into(),
    }
}
