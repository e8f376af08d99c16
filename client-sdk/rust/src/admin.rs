//! For operators: the daemon's admin socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Request;
use tonic::transport::Channel;

use crate::MAX_MESSAGE_BYTES;
use crate::client::duration;
use crate::error::Result;
use crate::proto::admin_service_client::AdminServiceClient;
use crate::proto::{
    CreateAppTokenRequest, CreateAppTokenResponse, DrainRequest, DrainResponse, GetStatusRequest,
    GetStatusResponse, ListAppTokensRequest, ListAppTokensResponse, ListAppsRequest,
    ListAppsResponse, ReloadConfigRequest, ReloadConfigResponse, RevokeAppTokenRequest,
    RevokeAppTokenResponse, SetLogFilterRequest, SetLogFilterResponse,
};

/// A connection to the daemon's admin socket, made with [`Builder::connect_admin`](crate::Builder::connect_admin). Cheap to
/// clone. The daemon takes it from its own user and from root.
///
/// # Errors
///
/// Every request fails with [`Error::Status`](crate::Error::Status) if the daemon refuses it, and with
/// [`Error::Transport`](crate::Error::Transport) if the daemon goes away.
#[derive(Clone, Debug)]
pub struct AdminClient {
    channel: Channel,
    deadline: Option<Duration>,
}

impl AdminClient {
    pub(crate) fn new(channel: Channel, deadline: Option<Duration>) -> Self {
        Self { channel, deadline }
    }

    /// The generated client of `AdminService`. It fills in no deadline.
    #[must_use]
    pub fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        request
    }

    /// How the daemon is, and of every server that is not ready why.
    ///
    /// # Errors
    ///
    /// See [`AdminClient`].
    pub async fn status(&self) -> Result<GetStatusResponse> {
        let request = self.request(GetStatusRequest {});
        Ok(self.admin().get_status(request).await?.into_inner())
    }

    /// The connections of apps.
    ///
    /// # Errors
    ///
    /// See [`AdminClient`].
    pub async fn list_apps(&self) -> Result<ListAppsResponse> {
        let request = self.request(ListAppsRequest {});
        Ok(self.admin().list_apps(request).await?.into_inner())
    }

    /// Sets what is logged, for a time or until the daemon ends; an empty filter brings the configured one back.
    ///
    /// # Errors
    ///
    /// See [`AdminClient`].
    pub async fn set_log_filter(
        &self,
        filter: impl Into<String>,
        time: impl Into<Option<Duration>>,
    ) -> Result<SetLogFilterResponse> {
        let request = self.request(SetLogFilterRequest {
            filter: filter.into(),
            duration: time.into().map(duration),
        });
        Ok(self.admin().set_log_filter(request).await?.into_inner())
    }

    /// Has the configuration read again and applied; or, with `validate_only`, says what would be applied.
    ///
    /// # Errors
    ///
    /// See [`AdminClient`]; [`crate::Reason::INVALID_FIELD`] changes nothing.
    pub async fn reload_config(&self, validate_only: bool) -> Result<ReloadConfigResponse> {
        let request = self.request(ReloadConfigRequest { validate_only });
        Ok(self.admin().reload_config(request).await?.into_inner())
    }

    /// Makes a token for apps that come over TCP, with this name, for these namespaces (none: `default`), and for this time
    /// (none: until it is revoked). The answer is the only place where it is ever shown.
    ///
    /// # Errors
    ///
    /// See [`AdminClient`]; [`crate::Reason::INVALID_FIELD`], [`crate::Reason::TOO_MANY`].
    pub async fn create_app_token(
        &self,
        name: impl Into<String>,
        namespaces: Vec<String>,
        lifetime: impl Into<Option<Duration>>,
    ) -> Result<CreateAppTokenResponse> {
        let request = self.request(CreateAppTokenRequest {
            name: name.into(),
            namespaces,
            lifetime: lifetime.into().map(duration),
        });
        Ok(self.admin().create_app_token(request).await?.into_inner())
    }

    /// The tokens for apps that come over TCP, oldest first.
    ///
    /// # Errors
    ///
    /// See [`AdminClient`].
    pub async fn list_app_tokens(&self) -> Result<ListAppTokensResponse> {
        let request = self.request(ListAppTokensRequest {});
        Ok(self.admin().list_app_tokens(request).await?.into_inner())
    }

    /// Makes a token useless, by its id; what is under way with it ends.
    ///
    /// # Errors
    ///
    /// See [`AdminClient`]; [`crate::Reason::APP_TOKEN_NOT_FOUND`].
    pub async fn revoke_app_token(
        &self,
        token_id: impl Into<String>,
    ) -> Result<RevokeAppTokenResponse> {
        let request = self.request(RevokeAppTokenRequest {
            token_id: token_id.into(),
        });
        Ok(self.admin().revoke_app_token(request).await?.into_inner())
    }

    /// Lets the daemon stop, once what is under way has ended.
    ///
    /// # Errors
    ///
    /// See [`AdminClient`].
    pub async fn drain(&self) -> Result<DrainResponse> {
        let request = self.request(DrainRequest {});
        Ok(self.admin().drain(request).await?.into_inner())
    }
}

/// The admin socket that belongs to a socket for apps, unless the configuration says otherwise: `admin.sock` beside
/// `app.sock`, else its name behind `admin-`.
#[must_use]
pub fn admin_socket(app_socket: &Path) -> PathBuf {
    match app_socket.file_name().and_then(|name| name.to_str()) {
        Some(name) if name != "app.sock" => app_socket.with_file_name(format!("admin-{name}")),
        _ => app_socket.with_file_name("admin.sock"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_socket_is_beside_the_socket_for_apps() {
        for (app, admin) in [
            ("/run/mcp-sidecar/app.sock", "/run/mcp-sidecar/admin.sock"),
            ("/tmp/x.sock", "/tmp/admin-x.sock"),
        ] {
            assert_eq!(admin_socket(Path::new(app)), Path::new(admin));
        }
    }
}
