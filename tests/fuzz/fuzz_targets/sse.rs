//! Server-Sent Events: no bytes make the parser panic or exceed its bound, and chunk borders mean nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcp_sidecard::mcp::transport::sse::{Event, Parser};

const LIMIT: usize = 256;

fn parse(chunks: &[&[u8]]) -> Option<(Vec<Event>, Option<String>)> {
    let mut parser = Parser::new(LIMIT);
    let mut events = Vec::new();
    for chunk in chunks {
        events.extend(parser.push(chunk).ok()?);
    }
    assert!(events.iter().all(|event| event.data.len() <= LIMIT));
    Some((events, parser.last_event_id().map(str::to_owned)))
}

fuzz_target!(|input: (u8, &[u8])| {
    let (cut, bytes) = input;
    let cut = usize::from(cut) % (bytes.len() + 1);
    let (head, tail) = bytes.split_at(cut);
    assert_eq!(parse(&[bytes]), parse(&[head, tail]));
});
