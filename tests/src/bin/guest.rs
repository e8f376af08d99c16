//! An app that opens connections and says nothing: `guest SOCKET COUNT`. Writes a line for each, `in` if it was let in and
//! `out` if not, and holds them until its input ends.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("usage: guest SOCKET COUNT");
    let (socket, count) = (next(), next().parse::<usize>().expect("a number"));
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut connection = UnixStream::connect(&socket).expect("connect");
        // HTTP/2 begins with a frame of the server's; one that is refused is closed.
        let greeted = connection.read_exact(&mut [0; 9]).is_ok();
        connections.push(connection);
        let word = if greeted { "in" } else { "out" };
        writeln!(std::io::stdout(), "{word}").expect("write");
    }
    std::io::stdin().read_to_end(&mut Vec::new()).expect("read");
}
