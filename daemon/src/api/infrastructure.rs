//! The services that every gRPC tool expects: health and reflection. Knows nothing of MCP.

use std::collections::HashSet;

use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::error::{Error, Result};

/// What `grpc.health.v1` answers: for the daemon as a whole (the empty service name) and for each service of the
/// contract. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health {
    reporter: HealthReporter,
    services: &'static [&'static str],
}

impl Health {
    /// From now on everything is SERVING.
    pub async fn serving(&self) {
        self.set(ServingStatus::Serving).await;
    }

    /// From now on everything is NOT_SERVING; watchers are told. The first step of draining.
    pub async fn draining(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    async fn set(&self, status: ServingStatus) {
        self.reporter.set_service_status("", status).await;
        for service in self.services {
            self.reporter.set_service_status(*service, status).await;
        }
    }
}

/// The paths of all RPCs of the contract, and of health.
///
/// # Errors
/// INTERNAL if a descriptor set cannot be read, which is a fault of the build.
pub fn methods() -> Result<HashSet<String>> {
    let mut methods = HashSet::new();
    for set in [
        mcp_sidecar_proto::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
    ] {
        let set = FileDescriptorSet::decode(set).map_err(|cause| {
            Error::internal(format!("the contract's descriptors are broken: {cause}"))
        })?;
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let (package, service) = (file.package(), service.name());
                    methods.insert(format!("/{package}.{service}/{}", method.name()));
                }
            }
        }
    }
    Ok(methods)
}

/// Adds health, and reflection v1 and v1alpha over the whole contract, to the routes. Health starts NOT_SERVING;
/// `services` are the full names of the services that are served, for example `mcpsidecar.v1.ServerService`.
///
/// # Errors
/// INTERNAL if the descriptor set of the contract cannot be read, which is a fault of the build.
pub async fn infrastructure(
    routes: Routes,
    services: &'static [&'static str],
) -> Result<(Routes, Health)> {
    let (reporter, server) = tonic_health::server::health_reporter();
    let health = Health { reporter, services };
    health.draining().await;
    let descriptors = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(mcp_sidecar_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // The details of errors, so that generic clients can show them.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let broken = |cause| Error::internal(format!("the contract's descriptors are broken: {cause}"));
    let v1 = descriptors().build_v1().map_err(broken)?;
    let v1alpha = descriptors().build_v1alpha().map_err(broken)?;
    let routes = routes
        .add_service(server)
        .add_service(v1)
        .add_service(v1alpha);
    Ok((routes, health))
}
