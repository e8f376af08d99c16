//! Servers: registered, changed, connected, refreshed, removed.

use std::time::Duration;

use crate::client::{Client, duration, required};
use crate::error::Result;
use crate::listing::all_pages;
use crate::proto::{
    AddServerRequest, AddServerResponse, ConnectServerRequest, DisconnectServerRequest,
    ExportServersRequest, ExportServersResponse, GetServerLogRequest, GetServerRequest,
    ImportServersRequest, ImportedServer, ListServersRequest, RefreshServerRequest,
    RemoveServerRequest, Server, ServerLogLine, UpdateServerRequest, WaitForServersRequest,
    WaitForServersResponse, disconnect_server_request,
};

/// Servers.
impl Client {
    /// Registers a server, connects to it and reports the state it has reached. Idempotent. A server that cannot be
    /// reached is registered all the same: look at the state in the answer.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn add_server(&self, mut request: AddServerRequest) -> Result<AddServerResponse> {
        self.fill(&mut request.namespace);
        let answer = self.servers().add_server(self.request(request)).await?;
        Ok(answer.into_inner())
    }

    /// One server.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::SERVER_NOT_FOUND`] if it is not registered.
    pub async fn get_server(&self, server_id: impl Into<String>) -> Result<Server> {
        let request = self.request(GetServerRequest {
            namespace: self.namespace().to_owned(),
            server_id: server_id.into(),
        });
        let answer = self.servers().get_server(request).await?;
        required(answer.into_inner().server)
    }

    /// All servers of the namespace, in order of their ids.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_servers(&self) -> Result<Vec<Server>> {
        let listing = all_pages(|page_token| async move {
            let request = self.request(ListServersRequest {
                namespace: self.namespace().to_owned(),
                page_token,
                ..Default::default()
            });
            let answer = self.servers().list_servers(request).await?.into_inner();
            Ok((answer.servers, Vec::new(), answer.next_page_token))
        });
        Ok(listing.await?.items)
    }

    /// Changes the settings that the update mask names.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::ETAG_MISMATCH`] if somebody else was faster.
    pub async fn update_server(&self, mut request: UpdateServerRequest) -> Result<Server> {
        self.fill(&mut request.namespace);
        let answer = self.servers().update_server(self.request(request)).await?;
        required(answer.into_inner().server)
    }

    /// Removes a server with its connection, its process and its running calls.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn remove_server(&self, server_id: impl Into<String>) -> Result<()> {
        let request = self.request(RemoveServerRequest {
            namespace: self.namespace().to_owned(),
            server_id: server_id.into(),
            etag: String::new(),
        });
        self.servers().remove_server(request).await?;
        Ok(())
    }

    /// Connects a disconnected server, or retries a failed one at once. Waits for the server to settle: as long as
    /// given, or its connect timeout.
    ///
    /// # Errors
    ///
    /// See [`Client`]. A server that still fails is no error: look at the state in the answer.
    pub async fn connect_server(
        &self,
        server_id: impl Into<String>,
        wait: impl Into<Option<Duration>>,
    ) -> Result<Server> {
        let request = self.request(ConnectServerRequest {
            namespace: self.namespace().to_owned(),
            server_id: server_id.into(),
            wait_timeout: wait.into().map(duration),
        });
        let answer = self.servers().connect_server(request).await?;
        required(answer.into_inner().server)
    }

    /// Ends the connection of a server and keeps its registration.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn disconnect_server(&self, server_id: impl Into<String>) -> Result<Server> {
        let target = disconnect_server_request::Target::ServerId(server_id.into());
        required(self.disconnect(target).await?.into_iter().next())
    }

    /// Ends the connections of all servers of the namespace and keeps their registrations.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn disconnect_all_servers(&self) -> Result<Vec<Server>> {
        self.disconnect(disconnect_server_request::Target::AllServers(true))
            .await
    }

    async fn disconnect(&self, target: disconnect_server_request::Target) -> Result<Vec<Server>> {
        let request = self.request(DisconnectServerRequest {
            namespace: self.namespace().to_owned(),
            target: Some(target),
        });
        let answer = self.servers().disconnect_server(request).await?;
        Ok(answer.into_inner().servers)
    }

    /// Reads the lists of a connected server again and waits for them: as long as given, or its connect timeout.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn refresh_server(
        &self,
        server_id: impl Into<String>,
        wait: impl Into<Option<Duration>>,
    ) -> Result<Server> {
        let request = self.request(RefreshServerRequest {
            namespace: self.namespace().to_owned(),
            server_id: server_id.into(),
            wait_timeout: wait.into().map(duration),
        });
        let answer = self.servers().refresh_server(request).await?;
        required(answer.into_inner().server)
    }

    /// Waits until the named servers (none named: all) have settled: ready, waiting for a sign-in, failed or
    /// disconnected. Without a time the deadline or the daemon's maximum applies.
    ///
    /// # Errors
    ///
    /// See [`Client`]. The end of the wait is no error: look at `settled`.
    pub async fn wait_for_servers<I>(
        &self,
        server_ids: I,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<WaitForServersResponse>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let request = self.request(WaitForServersRequest {
            namespace: self.namespace().to_owned(),
            server_ids: server_ids.into_iter().map(Into::into).collect(),
            timeout: timeout.into().map(duration),
        });
        let answer = self.servers().wait_for_servers(request).await?;
        Ok(answer.into_inner())
    }

    /// The last lines that the processes of a stdio server wrote to their standard error, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn server_log(&self, server_id: impl Into<String>) -> Result<Vec<ServerLogLine>> {
        let request = self.request(GetServerLogRequest {
            namespace: self.namespace().to_owned(),
            server_id: server_id.into(),
        });
        let answer = self.servers().get_server_log(request).await?;
        Ok(answer.into_inner().lines)
    }

    /// Registers the servers of a document as other MCP clients keep it. Nothing is waited for, and each entry has an
    /// outcome of its own: look at it.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::INVALID_FIELD`] if the document as a whole cannot be read.
    pub async fn import_servers(
        &self,
        mut request: ImportServersRequest,
    ) -> Result<Vec<ImportedServer>> {
        self.fill(&mut request.namespace);
        let answer = self.servers().import_servers(self.request(request)).await?;
        Ok(answer.into_inner().entries)
    }

    /// The servers of the namespace, or those that are named, as a document that other MCP clients read. Secrets are
    /// variables in it.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn export_servers<I>(&self, server_ids: I) -> Result<ExportServersResponse>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let request = self.request(ExportServersRequest {
            namespace: self.namespace().to_owned(),
            server_ids: server_ids.into_iter().map(Into::into).collect(),
        });
        Ok(self.servers().export_servers(request).await?.into_inner())
    }
}
