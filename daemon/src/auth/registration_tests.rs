//! Tests of `registration`.
