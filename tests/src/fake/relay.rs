//! Carries standard input to a Unix socket and back, so that a fake of the test's own process can be a child; the
//! program is `fake-relay`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Runs until either side has hung up.
pub fn main() {
    let socket = std::env::args().nth(1).expect("usage: fake-relay SOCKET");
    let up = UnixStream::connect(socket).expect("connect to the fake");
    let down = up.try_clone().expect("share the connection");
    std::thread::spawn(move || {
        carry(std::io::stdin().lock(), up);
        // The daemon has hung up: so does the child.
        std::process::exit(0);
    });
    carry(down, std::io::stdout().lock());
}

fn carry(mut from: impl Read, mut to: impl Write) {
    let mut chunk = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut chunk) {
        let written = to.write_all(chunk.get(..read).unwrap_or_default());
        if written.and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}
