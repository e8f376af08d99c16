//! The client: one method per RPC, with namespace and deadline filled in.

use std::time::Duration;

use tonic::Request;

use crate::MAX_MESSAGE_BYTES;
use crate::connect::Builder;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::proto::auth_service_client::AuthServiceClient;
use crate::proto::call_service_client::CallServiceClient;
use crate::proto::elicitation_service_client::ElicitationServiceClient;
use crate::proto::prompt_service_client::PromptServiceClient;
use crate::proto::resource_service_client::ResourceServiceClient;
use crate::proto::sampling_service_client::SamplingServiceClient;
use crate::proto::server_service_client::ServerServiceClient;
use crate::proto::tool_service_client::ToolServiceClient;
use crate::proto::update_service_client::UpdateServiceClient;
use crate::updates::{UpdateFilter, Updates};

/// A connection to the daemon. Cheap to clone; all clones share one connection, which is opened again when needed.
///
/// Dropping the future of a request cancels the request, at the MCP server too.
///
/// # Errors
///
/// Every request fails with [`Error::Status`] if the daemon refuses or fails it, and with [`Error::Transport`] if the
/// daemon goes away.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Connection,
    namespace: String,
    deadline: Option<Duration>,
}

/// Generated clients, for what has no method here. They fill in neither namespace nor deadline.
macro_rules! raw_clients {
    ($($(#[doc = $doc:literal])+ $name:ident: $client:ident;)+) => {
        impl Client {
            $(
                $(#[doc = $doc])+
                #[must_use]
                pub fn $name(&self) -> $client<Connection> {
                    $client::new(self.connection.clone())
                        .max_decoding_message_size(MAX_MESSAGE_BYTES)
                        .max_encoding_message_size(MAX_MESSAGE_BYTES)
                }
            )+
        }
    };
}

raw_clients! {
    /// The generated client of `ServerService`.
    servers: ServerServiceClient;
    /// The generated client of `ToolService`.
    tools: ToolServiceClient;
    /// The generated client of `CallService`.
    calls: CallServiceClient;
    /// The generated client of `ResourceService`.
    resources: ResourceServiceClient;
    /// The generated client of `PromptService`.
    prompts: PromptServiceClient;
    /// The generated client of `ElicitationService`.
    elicitations: ElicitationServiceClient;
    /// The generated client of `SamplingService`.
    sampling: SamplingServiceClient;
    /// The generated client of `AuthService`.
    auth: AuthServiceClient;
    /// The generated client of `UpdateService`; see [`Client::updates`] for a stream that repairs itself.
    raw_updates: UpdateServiceClient;
}

impl Client {
    /// Connects to the daemon of this host with the defaults of [`Builder`].
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] names every path that was tried.
    pub async fn connect() -> Result<Self> {
        Self::builder().connect().await
    }

    /// Settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(
        connection: Connection,
        namespace: String,
        deadline: Option<Duration>,
    ) -> Self {
        Self {
            connection,
            namespace,
            deadline,
        }
    }

    /// The same connection with another namespace.
    #[must_use]
    pub fn with_namespace(&self, namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            ..self.clone()
        }
    }

    /// The same connection with another deadline for each request, or none.
    #[must_use]
    pub fn with_deadline(&self, deadline: impl Into<Option<Duration>>) -> Self {
        Self {
            deadline: deadline.into(),
            ..self.clone()
        }
    }

    /// The namespace of requests that name none; empty: the daemon's `default`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The deadline of each request.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Fills in the deadline (`grpc-timeout`).
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        request
    }

    /// Fills in the namespace.
    pub(crate) fn fill(&self, namespace: &mut String) {
        if namespace.is_empty() {
            namespace.clone_from(&self.namespace);
        }
    }
}

/// Updates.
impl Client {
    /// Follows everything in the client's namespace, beginning with a snapshot. See [`Updates`].
    pub fn updates(&self) -> Updates {
        self.updates_with(UpdateFilter::default())
    }

    /// Follows what the filter lets through, beginning with a snapshot or behind the filter's resume token.
    pub fn updates_with(&self, mut filter: UpdateFilter) -> Updates {
        if filter.namespaces.is_empty() && !self.namespace.is_empty() {
            filter.namespaces.push(self.namespace.clone());
        }
        Updates::new(self.raw_updates(), filter)
    }
}

pub(crate) fn required<T>(field: Option<T>) -> Result<T> {
    field.ok_or(Error::Contract("the thing that was asked for is missing"))
}

/// A duration of the contract; what does not fit is the largest one.
pub(crate) fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or(prost_types::Duration {
        seconds: 315_576_000_000,
        nanos: 0,
    })
}
