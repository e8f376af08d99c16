//! The accept loop, driven by a real client over a real socket.

use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream;
use futures_util::{StreamExt, stream};
use hyper_util::rt::TokioIo;
use mcp_sidecar_proto::v1;
use mcp_sidecar_proto::v1::update_service_client::UpdateServiceClient;
use mcp_sidecar_proto::v1::update_service_server::{UpdateService, UpdateServiceServer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use super::{Listener, Observers, ServeOptions, serve};
use crate::api::apps::Via;
use crate::api::socket::bind_at;
use crate::api::{Health, RequestContext, bounded, infrastructure};
use crate::base::load::Gauge;
use crate::error::{Error, Result as DomainResult};

type Updates = Pin<Box<dyn Stream<Item = Result<v1::StreamUpdatesResponse, Status>> + Send>>;

/// Answers once with the request id as resume token, then says nothing until the deadline or the shutdown.
struct Echo;

#[tonic::async_trait]
impl UpdateService for Echo {
    type StreamUpdatesStream = Updates;

    async fn stream_updates(
        &self,
        request: Request<v1::StreamUpdatesRequest>,
    ) -> Result<Response<Updates>, Status> {
        let context = RequestContext::of(&request)?;
        let uid = context.caller.process().map(|process| process.uid);
        let seen = format!("{} {}", context.request_id, uid.unwrap());
        let first = v1::StreamUpdatesResponse {
            resume_token: seen,
            ..Default::default()
        };
        let updates = stream::iter([Ok(first)]).chain(stream::pending());
        Ok(Response::new(Box::pin(bounded(context.deadline, updates))))
    }
}

struct Running {
    dir: TempDir,
    health: Health,
    shutdown: CancellationToken,
    served: tokio::task::JoinHandle<DomainResult<()>>,
}

impl Running {
    async fn start(options: ServeOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bound = bind_at(&dir.path().join("s"), 0o600).unwrap();
        let routes = Routes::new(UpdateServiceServer::new(Echo));
        let (routes, health) = infrastructure(routes, &["mcpsidecar.v1.UpdateService"])
            .await
            .unwrap();
        health.serving().await;
        let shutdown = CancellationToken::new();
        let tracker = TaskTracker::new();
        let serving = serve(
            Listener::Unix(bound.listener),
            routes,
            options,
            shutdown.clone(),
            tracker.clone(),
            Gauge::default(),
            Observers::default(),
        );
        let served = tracker.spawn(serving);
        Self {
            dir,
            health,
            shutdown,
            served,
        }
    }

    async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        let path = self.dir.path().join("s");
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://localhost")
            .connect_with_connector(connector)
            .await
    }

    async fn updates(&self) -> UpdateServiceClient<Channel> {
        UpdateServiceClient::new(self.connect().await.unwrap())
    }

    async fn health(&self) -> HealthClient<Channel> {
        HealthClient::new(self.connect().await.unwrap())
    }
}

const OPTIONS: ServeOptions = ServeOptions {
    connections: 16,
    connections_per_user: 16,
    drain: Duration::from_secs(30),
    via: Via::App,
    message_bytes: 4 << 20,
};

fn everything() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

#[tokio::test]
async fn the_handler_knows_who_asks() {
    let running = Running::start(OPTIONS).await;
    let mut request = Request::new(v1::StreamUpdatesRequest::default());
    request
        .metadata_mut()
        .insert("x-request-id", "r-1".parse().unwrap());
    let mut updates = running
        .updates()
        .await
        .stream_updates(request)
        .await
        .unwrap()
        .into_inner();
    let first = updates.message().await.unwrap().unwrap();
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(first.resume_token, format!("r-1 {uid}"));
}

#[tokio::test]
async fn a_stream_ends_with_deadline_exceeded() {
    let running = Running::start(OPTIONS).await;
    let mut request = Request::new(v1::StreamUpdatesRequest::default());
    // As a raw header: the client must not end the stream itself.
    request
        .metadata_mut()
        .insert("grpc-timeout", "50m".parse().unwrap());
    let mut updates = running
        .updates()
        .await
        .stream_updates(request)
        .await
        .unwrap()
        .into_inner();
    assert!(updates.message().await.unwrap().is_some());
    let status = updates.message().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(
        status.get_details_error_info().unwrap().reason,
        "DEADLINE_EXCEEDED"
    );
}

#[tokio::test]
async fn a_malformed_timeout_is_an_invalid_argument() {
    let running = Running::start(OPTIONS).await;
    let mut request = Request::new(everything());
    request
        .metadata_mut()
        .insert("grpc-timeout", "soon".parse().unwrap());
    let status = running.health().await.check(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let violations = status.get_details_bad_request().unwrap().field_violations;
    assert_eq!(violations[0].field, "grpc-timeout");
}

#[tokio::test]
async fn an_unknown_rpc_is_unimplemented() {
    let running = Running::start(OPTIONS).await;
    let mut client = tonic::client::Grpc::new(running.connect().await.unwrap());
    client.ready().await.unwrap();
    let path = "/mcpsidecar.v1.NoService/No".parse().unwrap();
    let codec = tonic_prost_codec();
    let answer: Result<Response<HealthCheckRequest>, _> =
        client.unary(Request::new(everything()), path, codec).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
}

fn tonic_prost_codec() -> tonic_prost::ProstCodec<HealthCheckRequest, HealthCheckRequest> {
    tonic_prost::ProstCodec::default()
}

#[tokio::test]
async fn health_tells_watchers_before_the_end() {
    let mut running = Running::start(OPTIONS).await;
    let mut client = running.health().await;
    let mut states = client.watch(everything()).await.unwrap().into_inner();
    let serving = states.message().await.unwrap().unwrap();
    assert_eq!(serving.status(), ServingStatus::Serving);
    running.health.draining().await;
    running.shutdown.cancel();
    let draining = states.message().await.unwrap().unwrap();
    assert_eq!(draining.status(), ServingStatus::NotServing);
    let end = states.message().await.unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert_eq!(end.get_details_error_info().unwrap().reason, "DRAINING");
    // Nothing holds the drain up: it ends long before its bound.
    (&mut running.served).await.unwrap().unwrap();
    assert!(running.connect().await.is_err());
}

#[tokio::test]
async fn a_running_stream_is_dropped_when_the_drain_is_over() {
    let running = Running::start(ServeOptions {
        drain: Duration::from_millis(10),
        ..OPTIONS
    })
    .await;
    let mut client = running.updates().await;
    let request = v1::StreamUpdatesRequest::default();
    let mut updates = client.stream_updates(request).await.unwrap().into_inner();
    assert!(updates.message().await.unwrap().is_some());
    running.shutdown.cancel();
    running.served.await.unwrap().unwrap();
    assert!(updates.message().await.is_err());
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_the_others_go_on() {
    for connections in [1, 16] {
        one_is_let_in(connections).await;
    }
}

async fn one_is_let_in(connections: usize) {
    let running = Running::start(ServeOptions {
        connections,
        connections_per_user: 1,
        ..OPTIONS
    })
    .await;
    let mut first = running.health().await;
    first.check(everything()).await.unwrap();
    let refused = match running.connect().await {
        Err(_) => true,
        Ok(channel) => HealthClient::new(channel)
            .check(everything())
            .await
            .is_err(),
    };
    assert!(refused);
    first.check(everything()).await.unwrap();
}

/// One HTTP/2 frame (RFC 9113 section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Sends requests and their cancellations back to back, so that most are cancelled before they are accepted: what ends
/// a whole channel by default (case B41).
#[tokio::test]
async fn an_app_that_cancels_a_lot_keeps_its_channel() {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    let running = Running::start(OPTIONS).await;
    let stream = UnixStream::connect(running.dir.path().join("s"))
        .await
        .unwrap();
    let (mut reader, mut writer) = stream.into_split();

    // HPACK: POST, http, then :path and :authority as literals.
    let path = b"/mcpsidecar.v1.UpdateService/StreamUpdates";
    let mut headers = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    headers.extend(path);
    headers.extend(b"\x01\x09localhost");
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(SETTINGS, 0, 0, &[]));
    for stream in (1..10_000).step_by(2) {
        sent.extend(frame(HEADERS, 0x4, stream, &headers));
        sent.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    sent.extend(frame(PING, 0, 0, b"the end."));
    TaskTracker::new().spawn(async move {
        let _ = writer.write_all(&sent).await;
        std::future::pending::<()>().await;
    });

    loop {
        let mut head = [0; 9];
        reader.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        reader.read_exact(&mut payload).await.unwrap();
        assert_ne!(head[3], GOAWAY, "{payload:?}");
        if head[3] == PING && payload == b"the end." {
            break;
        }
    }
}

#[tokio::test]
async fn reflection_shows_the_contract_in_both_versions() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

    let running = Running::start(OPTIONS).await;
    let mut client = ServerReflectionClient::new(running.connect().await.unwrap());
    let request = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..Default::default()
    };
    let answers = client
        .server_reflection_info(stream::iter([request]))
        .await
        .unwrap();
    let answer: ServerReflectionResponse = answers.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let names: Vec<_> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    assert!(
        names.contains(&"mcpsidecar.v1.ToolService".to_owned()),
        "{names:?}"
    );
    assert!(
        names.contains(&"grpc.health.v1.Health".to_owned()),
        "{names:?}"
    );

    let mut alpha = tonic::client::Grpc::new(running.connect().await.unwrap());
    alpha.ready().await.unwrap();
    let path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        .parse()
        .unwrap();
    let codec =
        tonic_prost::ProstCodec::<ServerReflectionRequest, ServerReflectionResponse>::default();
    let request = ServerReflectionRequest {
        message_request: Some(MessageRequest::FileContainingSymbol(
            "mcpsidecar.v1.ServerService".to_owned(),
        )),
        ..Default::default()
    };
    let answers = alpha
        .streaming(Request::new(stream::iter([request])), path, codec)
        .await
        .unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    assert!(matches!(
        answer.message_response,
        Some(MessageResponse::FileDescriptorResponse(_))
    ));
}

#[tokio::test]
async fn the_number_of_connections_has_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let bound = bind_at(&dir.path().join("s"), 0o600).unwrap();
    let options = ServeOptions {
        connections: 0,
        ..OPTIONS
    };
    let routes = Routes::default();
    let result = serve(
        Listener::Unix(bound.listener),
        routes,
        options,
        CancellationToken::new(),
        TaskTracker::new(),
        Gauge::default(),
        Observers::default(),
    )
    .await;
    assert_eq!(
        result,
        Err(Error::internal(
            "the number of connections must be 1 to 65,536"
        ))
    );
}
