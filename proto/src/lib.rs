//! The wire contract of mcp-sidecar: generated messages, clients and servers of package
//! `mcpsidecar.v1`, and the descriptor set that reflection serves. Nothing else belongs here.

/// Package `mcpsidecar.v1`. The comments of the `.proto` files are the documentation.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated from the .proto files"
)]
pub mod v1 {
    tonic::include_proto!("mcpsidecar.v1");
}

/// The encoded `google.protobuf.FileDescriptorSet` of the contract with its comments and imports.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/mcpsidecar.v1.bin"));
