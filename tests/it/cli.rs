//! The program `mcp-sidecar` from outside: what it writes, how it ends, how it asks, and what it does not let servers do.

mod asking;
mod calling;
mod hostile;
mod managing;
mod signing_in;
