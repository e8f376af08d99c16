//! What is at the other end of the standard streams.

use std::io::IsTerminal as _;

/// Columns of the terminal at standard output; `None` if there is none.
pub(crate) fn width() -> Option<u16> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|columns| columns.parse().ok());
    let size = terminal_size::terminal_size_of(std::io::stdout());
    size.map(|(width, _)| width.0)
        .filter(|width| *width > 0)
        .or(columns)
        .or(Some(80))
}

/// Whether somebody sits at a terminal who can be asked: standard input and standard error are one.
pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Whether somebody sees standard error.
pub(crate) fn is_stderr() -> bool {
    std::io::stderr().is_terminal()
}
