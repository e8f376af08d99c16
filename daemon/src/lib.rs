//! The daemon that holds every MCP connection, token and pending question of a host. See `ARCHITECTURE.md`.

pub mod api;
pub mod base;
pub mod config;
pub mod error;
pub mod model;
pub mod policy;
