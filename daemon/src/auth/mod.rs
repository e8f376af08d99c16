//! Authorization at MCP servers over HTTP: finds the authorization server, becomes its client, lets users sign in, keeps
//! tokens fresh (MCP 2026-07-28 basic/authorization, 2025-11-25 and 2025-03-26 basic/authorization).
//!
//! `challenge`, `discovery`, `registration`, `token` and `jose` are what is said to servers; `web` is the only way to
//! them. Never shows a secret, never sends one anywhere but to whom it belongs, and never lets anything that is not
//! verified change what is stored.

pub mod challenge;
pub mod discovery;
pub mod jose;
pub mod registration;
mod said;
pub mod token;
pub mod web;

#[cfg(test)]
#[path = "site_tests.rs"]
mod site;
