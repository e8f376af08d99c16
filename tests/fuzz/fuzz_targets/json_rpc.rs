//! JSON-RPC envelopes: no bytes make the parser panic, and what is kept raw is a part of what arrived, unchanged.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mcp_sidecard::mcp::protocol::{Message, RawJson, parse_all};

fn check(raw: &RawJson, whole: &[u8], depth: usize) {
    let part = raw.as_str();
    assert_eq!(part.as_bytes(), &raw.bytes()[..]);
    assert!(
        part.is_empty()
            || whole
                .windows(part.len())
                .any(|window| window == part.as_bytes())
    );
    if depth == 0 {
        return;
    }
    for (name, value) in raw.members().unwrap_or_default() {
        assert!(raw.get(&name).is_some());
        check(&value, whole, depth - 1);
    }
    for value in raw.elements().unwrap_or_default() {
        check(&value, whole, depth - 1);
    }
}

fuzz_target!(|bytes: &[u8]| {
    for message in parse_all(&Bytes::copy_from_slice(bytes)).unwrap_or_default() {
        match message {
            Message::Response {
                outcome: Ok(result),
                ..
            } => check(&result, bytes, 2),
            Message::Response {
                outcome: Err(_), ..
            } => {}
            Message::Request { id, params, .. } => {
                check(&id, bytes, 1);
                params.iter().for_each(|params| check(params, bytes, 2));
            }
            Message::Notification { params, .. } => {
                params.iter().for_each(|params| check(params, bytes, 2));
            }
        }
    }
});
