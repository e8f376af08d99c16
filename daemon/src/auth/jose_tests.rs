//! Tests of `jose`.
