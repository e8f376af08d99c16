//! How the program ends.

use std::fmt;
use std::io;

use mcp_sidecar_client::Error;

/// Exit codes; see `docs/cli.md`.
pub(crate) mod code {
    /// Done.
    pub(crate) const OK: u8 = 0;
    /// The daemon or a server refused or failed the request.
    pub(crate) const REFUSED: u8 = 1;
    /// The command line, or a file that it names, cannot be used.
    pub(crate) const USAGE: u8 = 2;
    /// No daemon can be reached.
    pub(crate) const UNREACHABLE: u8 = 3;
    /// The tool itself reports an error.
    pub(crate) const TOOL_ERROR: u8 = 4;
    /// An answer is needed, and nobody may be asked.
    pub(crate) const ANSWER_NEEDED: u8 = 5;
    /// Interrupted from the keyboard.
    pub(crate) const INTERRUPTED: u8 = 130;
}

/// Why a command did not do what it was told.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The daemon says no, or is not there.
    Daemon(Box<Error>),
    /// The command line, or a file that it names, cannot be used.
    Usage(String),
    /// Something did not come out as it was asked for, as the daemon's answer shows.
    Refused(String),
    /// The tool reports an error; it is on standard output already.
    Tool,
    /// A question is open, and nobody may be asked.
    AnswerNeeded(String),
    /// Nobody reads standard output any more.
    BrokenPipe,
}

impl Failure {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Daemon(error) => match **error {
                Error::Connect { .. } | Error::Transport { .. } => code::UNREACHABLE,
                Error::Setting(_) => code::USAGE,
                _ => code::REFUSED,
            },
            Self::Refused(_) => code::REFUSED,
            Self::Usage(_) => code::USAGE,
            Self::Tool => code::TOOL_ERROR,
            Self::AnswerNeeded(_) => code::ANSWER_NEEDED,
            Self::BrokenPipe => code::OK,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon(error) => {
                write!(f, "{error}")?;
                let rest = error.violations().iter().skip(1);
                for violation in rest {
                    write!(f, "\n`{}` {}", violation.field, violation.description)?;
                }
                Ok(())
            }
            Self::Usage(text) | Self::Refused(text) | Self::AnswerNeeded(text) => f.write_str(text),
            Self::Tool | Self::BrokenPipe => Ok(()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Daemon(Box::new(error))
    }
}

impl From<io::Error> for Failure {
    /// Of writing to standard output.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::BrokenPipe,
            _ => Self::Refused(format!("standard output: {error}")),
        }
    }
}

/// Outcome of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// A [`Failure::Usage`].
pub(crate) fn usage<T>(text: impl Into<String>) -> Outcome<T> {
    Err(Failure::Usage(text.into()))
}
