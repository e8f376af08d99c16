//! The live manual: health and reflection, so that generic tools work.

use mcp_sidecar_proto::FILE_DESCRIPTOR_SET;
use mcp_sidecar_tests::prelude::*;
use prost::Message as _;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Asks one version of the reflection service one thing.
macro_rules! reflect {
    ($version:ident, $app:expr, $ask:ident($value:expr)) => {{
        use tonic_reflection::pb::$version::ServerReflectionRequest;
        use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::$ask($value)),
        };
        let mut client = ServerReflectionClient::new($app.channel());
        let answers = client
            .server_reflection_info(futures_util::stream::iter([request]))
            .await;
        let answer = answers
            .unwrap()
            .into_inner()
            .message()
            .await
            .unwrap()
            .expect("an answer");
        match answer.message_response.expect("an answer") {
            MessageResponse::ListServicesResponse(list) => (
                list.service
                    .into_iter()
                    .map(|service| service.name)
                    .collect(),
                Vec::new(),
            ),
            MessageResponse::FileDescriptorResponse(files) => {
                (Vec::<String>::new(), files.file_descriptor_proto)
            }
            other => panic!("unexpected: {other:?}"),
        }
    }};
}

fn contract() -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("the contract");
    let mut files = set.file;
    files.retain(|file| file.package() == "mcpsidecar.v1");
    files
}

fn services() -> Vec<String> {
    let files = contract();
    let services = files.iter().flat_map(|file| &file.service);
    services
        .map(|service| format!("mcpsidecar.v1.{}", service.name()))
        .collect()
}

#[tokio::test]
async fn health_knows_every_service() {
    let daemon = TestDaemon::start().await;
    let app = daemon.operator().await;
    let mut health = HealthClient::new(app.channel());
    for service in services().into_iter().chain([String::new()]) {
        let answer = health
            .check(HealthCheckRequest {
                service: service.clone(),
            })
            .await;
        let status = answer
            .unwrap_or_else(|status| panic!("`{service}`: {status:?}"))
            .into_inner()
            .status();
        assert_eq!(
            status,
            tonic_health::ServingStatus::Serving.into(),
            "`{service}`"
        );
    }
    let unknown = HealthCheckRequest {
        service: "mcpsidecar.v1.Nothing".to_owned(),
    };
    assert_eq!(
        health.check(unknown).await.unwrap_err().code(),
        Code::NotFound
    );
    // What is for the operator is not on the socket for apps.
    let mut apps = HealthClient::new(daemon.clients().await.channel());
    let admin = HealthCheckRequest {
        service: "mcpsidecar.v1.AdminService".to_owned(),
    };
    assert_eq!(apps.check(admin).await.unwrap_err().code(), Code::NotFound);
    let all = HealthCheckRequest::default();
    let status = apps.check(all).await.unwrap().into_inner().status();
    assert_eq!(status, tonic_health::ServingStatus::Serving.into());
}

#[tokio::test]
async fn reflection_lists_every_service_in_both_versions() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let new: (Vec<String>, Vec<Vec<u8>>) = reflect!(v1, app, ListServices(String::new()));
    let old: (Vec<String>, Vec<Vec<u8>>) = reflect!(v1alpha, app, ListServices(String::new()));
    for (listed, _) in [new, old] {
        for service in services() {
            assert!(
                listed.contains(&service),
                "`{service}` is missing in {listed:?}"
            );
        }
        assert!(
            listed.contains(&"grpc.health.v1.Health".to_owned()),
            "{listed:?}"
        );
    }
}

#[tokio::test]
async fn the_served_descriptors_carry_the_comments() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    for service in services() {
        let (_, files): (Vec<String>, Vec<Vec<u8>>) =
            reflect!(v1, app, FileContainingSymbol(service.clone()));
        let file = FileDescriptorProto::decode(files[0].as_slice()).unwrap();
        let info = file.source_code_info.as_ref().expect("comments are served");
        // Path 6, n: the n-th service of the file.
        let commented = info.location.iter().any(|location| {
            location.path.first() == Some(&6)
                && location.path.len() == 2
                && !location.leading_comments().is_empty()
        });
        assert!(commented, "`{service}` has no comment");
    }
}
