//! The program `mcp-sidecar` from outside: what it writes, how it ends, how it asks, and what it does not let servers do.

mod asking;
mod calling;
mod docs;
mod hostile;
mod managing;
mod operating;
mod signing_in;
mod tokens;
