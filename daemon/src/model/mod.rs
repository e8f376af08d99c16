//! The domain's nouns as plain data: what a server is, how it stands, what a question is, what an update says.
//!
//! Every part speaks these types; they know nothing of protobuf, SQL or HTTP. They serialise for the store, and a
//! [`Secret`](crate::base::Secret) never does.

pub mod approval;
pub mod auth;
pub mod call;
pub mod origin;
pub mod question;
pub mod rules;
pub mod spec;
pub mod status;
pub mod token;
pub mod update;
pub mod validate;
pub mod vault;
