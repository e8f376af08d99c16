//! The daemon that holds every MCP connection, token and pending question of a host. See `ARCHITECTURE.md`.

pub mod api;
pub mod base;
pub mod catalog;
pub mod config;
pub mod error;
pub mod inputs;
pub mod mcp;
pub mod model;
pub mod policy;
pub mod store;
