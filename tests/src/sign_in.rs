//! Short forms for sign-ins.

use std::time::Duration;

use tonic::Status;

use crate::clients::Clients;
use crate::facts::ServerFacts as _;
use crate::v1::{self, ConnectionState, Server};

/// A user signs in, with these settings.
pub fn by_user(code: v1::AuthorizationCode) -> v1::Authorization {
    v1::Authorization {
        method: Some(v1::authorization::Method::AuthorizationCode(code)),
        ..Default::default()
    }
}

impl Clients {
    /// StartSignIn.
    pub async fn start_sign_in(&self, id: &str) -> Result<v1::SignIn, Status> {
        self.start_sign_in_for(id, &[]).await
    }

    /// StartSignIn for more scopes.
    pub async fn start_sign_in_for(&self, id: &str, scopes: &[&str]) -> Result<v1::SignIn, Status> {
        let request = v1::StartSignInRequest {
            namespace: self.namespace(),
            server_id: id.to_owned(),
            scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(),
        };
        let answer = self.auth().start_sign_in(request).await?.into_inner();
        Ok(answer.sign_in.expect("StartSignIn returns the sign-in"))
    }

    /// GetSignIn, at once.
    pub async fn sign_in(&self, sign_in: &str) -> Result<v1::SignIn, Status> {
        self.sign_in_within(sign_in, Duration::ZERO).await
    }

    /// GetSignIn, which waits up to this long for the end.
    pub async fn sign_in_within(
        &self,
        sign_in: &str,
        wait: Duration,
    ) -> Result<v1::SignIn, Status> {
        let request = v1::GetSignInRequest {
            namespace: self.namespace(),
            sign_in_id: sign_in.to_owned(),
            wait_timeout: Some(wait.try_into().expect("a duration")),
        };
        let answer = self.auth().get_sign_in(request).await?.into_inner();
        Ok(answer.sign_in.expect("GetSignIn returns the sign-in"))
    }

    /// CompleteSignIn with the URL that the browser was redirected to.
    pub async fn complete_sign_in(&self, redirect: &str) -> Result<v1::SignIn, Status> {
        self.complete_sign_in_of("", redirect).await
    }

    /// CompleteSignIn of a certain sign-in.
    pub async fn complete_sign_in_of(
        &self,
        sign_in: &str,
        redirect: &str,
    ) -> Result<v1::SignIn, Status> {
        let request = v1::CompleteSignInRequest {
            namespace: self.namespace(),
            redirect_url: redirect.to_owned(),
            sign_in_id: sign_in.to_owned(),
        };
        let answer = self.auth().complete_sign_in(request).await?.into_inner();
        Ok(answer.sign_in.expect("CompleteSignIn returns the sign-in"))
    }

    /// CancelSignIn.
    pub async fn cancel_sign_in(&self, sign_in: &str) -> Result<v1::SignIn, Status> {
        let request = v1::CancelSignInRequest {
            namespace: self.namespace(),
            sign_in_id: sign_in.to_owned(),
        };
        let answer = self.auth().cancel_sign_in(request).await?.into_inner();
        Ok(answer.sign_in.expect("CancelSignIn returns the sign-in"))
    }

    /// SignOut.
    pub async fn sign_out(&self, id: &str) -> Result<v1::SignOutResponse, Status> {
        let request = v1::SignOutRequest {
            namespace: self.namespace(),
            server_id: id.to_owned(),
        };
        Ok(self.auth().sign_out(request).await?.into_inner())
    }

    /// GetAuthStatus.
    pub async fn auth_status(&self, id: &str) -> Result<v1::AuthStatus, Status> {
        let request = v1::GetAuthStatusRequest {
            namespace: self.namespace(),
            server_id: id.to_owned(),
        };
        let answer = self.auth().get_auth_status(request).await?.into_inner();
        Ok(answer.status.expect("GetAuthStatus returns the status"))
    }

    /// Waits until the server says where the user signs in, and returns the server.
    pub async fn wait_for_auth_url(&self, id: &str) -> Server {
        self.wait_for_auth_url_other_than(id, "").await
    }

    /// Waits until the server says where the user signs in, at another place than before.
    pub async fn wait_for_auth_url_other_than(&self, id: &str, before: &str) -> Server {
        let mut updates = self.updates("").await;
        updates
            .server_where(&format!("`{id}` with a place to sign in"), |server| {
                let url = &server.facts().auth_url;
                server.id == id && !url.is_empty() && url != before
            })
            .await
    }

    /// Waits until the server is AUTHENTICATING and says where the user signs in: that URL.
    pub async fn wait_authenticating(&self, id: &str) -> String {
        let mut updates = self.updates("").await;
        let what = format!("`{id}` to be AUTHENTICATING");
        let server = updates.server_where(&what, |server| {
            server.id == id
                && server.state() == ConnectionState::Authenticating
                && !server.facts().auth_url.is_empty()
        });
        server.await.facts().auth_url.clone()
    }
}
