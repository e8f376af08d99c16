//! Apps that come over TCP, and the tokens that they need for it.

use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::clients::Clients;
use crate::daemon::{Builder, TestDaemon};
use crate::v1;

/// A daemon that listens for apps with tokens, at any port.
pub fn by_tcp() -> Builder {
    TestDaemon::builder().set("tcp.listen", "127.0.0.1:0")
}

impl Clients {
    /// CreateAppToken.
    pub async fn create_token(
        &self,
        name: &str,
        namespaces: &[&str],
        lifetime: Option<prost_types::Duration>,
    ) -> Result<v1::CreateAppTokenResponse, Status> {
        let request = v1::CreateAppTokenRequest {
            name: name.to_owned(),
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
            lifetime,
        };
        let answer = self.admin().create_app_token(request).await?;
        Ok(answer.into_inner())
    }

    /// A token for these namespaces that does not expire: itself, and its id.
    pub async fn token(&self, name: &str, namespaces: &[&str]) -> (String, String) {
        let made = self.create_token(name, namespaces, None).await;
        let made = made.expect("CreateAppToken");
        let token = made.token.expect("what is known of it");
        (made.secret, token.token_id)
    }

    /// ListAppTokens.
    pub async fn app_tokens(&self) -> Vec<v1::AppToken> {
        let request = v1::ListAppTokensRequest {};
        let answer = self.admin().list_app_tokens(request).await;
        answer.expect("ListAppTokens").into_inner().tokens
    }

    /// RevokeAppToken.
    pub async fn revoke_token(&self, id: &str) -> Result<v1::AppToken, Status> {
        let request = v1::RevokeAppTokenRequest {
            token_id: id.to_owned(),
        };
        let answer = self.admin().revoke_app_token(request).await?.into_inner();
        Ok(answer.token.expect("what it was"))
    }

    /// The same connection, where every request brings this token.
    #[must_use]
    pub fn bearing(self, token: &str) -> Self {
        self.authorized(&format!("Bearer {token}"))
    }
}

impl TestDaemon {
    /// Where the daemon listens for apps with tokens, by what it tells its operator.
    pub async fn tcp_address(&self) -> String {
        let address = self.operator().await.status().await.tcp_address;
        assert!(!address.is_empty(), "it listens nowhere");
        address
    }

    /// A connection over TCP, on which nobody has a token yet.
    pub async fn over_tcp(&self) -> Clients {
        let clients = Clients::over(tcp_channel(&self.tcp_address().await).await);
        match self.tap() {
            Some(tap) => clients.tapped(tap),
            None => clients,
        }
    }

    /// An app on a connection of its own with a token.
    pub async fn guest(&self, token: &str) -> Clients {
        self.over_tcp().await.bearing(token)
    }
}

/// A channel to an address.
pub async fn tcp_channel(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("connect over TCP")
}
