//! Tests of `discovery`.
