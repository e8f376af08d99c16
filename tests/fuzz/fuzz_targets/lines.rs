//! Lines of a stream: no bytes make the splitter panic or exceed its bound, and chunk borders mean nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcp_sidecard::mcp::transport::lines::{Line, Lines};

/// As long as the beginning that is kept of a line that is too long.
const LIMIT: usize = 4096;

fn split(chunks: &[&[u8]]) -> Vec<Line> {
    let mut lines = Lines::new(LIMIT);
    let mut all = Vec::new();
    for chunk in chunks {
        all.extend(lines.push(chunk));
    }
    all.extend(lines.finish());
    assert!(all.iter().all(|line| match line {
        Line::Whole(line) | Line::Oversize(line) => line.len() <= LIMIT,
    }));
    all
}

fuzz_target!(|input: (u16, u16, &[u8])| {
    let (one, two, bytes) = input;
    let one = usize::from(one) % (bytes.len() + 1);
    let (head, rest) = bytes.split_at(one);
    let two = usize::from(two) % (rest.len() + 1);
    let (middle, tail) = rest.split_at(two);
    assert_eq!(split(&[bytes]), split(&[head, middle, tail]));
});
