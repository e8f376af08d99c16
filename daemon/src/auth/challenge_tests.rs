//! Tests of `challenge`.
