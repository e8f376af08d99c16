//! Tests of `token`.
