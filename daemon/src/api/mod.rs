//! The edge to apps: gRPC over a Unix socket. The only part that knows protobuf types and gRPC statuses.
//!
//! `socket` makes the listener, `serve` owns connections, `context` says who asks and until when, `peer` decides which
//! namespaces they may use, `status` turns errors into statuses. Never holds state of servers, calls or questions.

pub mod context;
pub mod infrastructure;
pub mod peer;
pub mod serve;
pub mod socket;
pub mod status;

pub use context::{RequestContext, bounded, within};
pub use infrastructure::{Health, infrastructure};
pub use peer::Access;
pub use serve::{ServeOptions, serve};
