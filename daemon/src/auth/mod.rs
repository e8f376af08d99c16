//! Authorization at MCP servers over HTTP: finds the authorization server, becomes its client, lets users sign in, keeps
//! tokens fresh (MCP 2026-07-28 basic/authorization, 2025-11-25 and 2025-03-26 basic/authorization).
//!
//! `challenge`, `discovery`, `registration`, `token` and `jose` are what is said to servers; `web` is the only way to
//! them. Never shows a secret, never sends one anywhere but to whom it belongs, and never lets anything that is not
//! verified change what is stored.

pub mod callback;
