//! Tests of `web`.
