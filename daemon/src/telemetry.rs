//! Log output: one subscriber for the process, to standard error. Standard output stays free.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};
use crate::error::{Error, Result};

/// Starts logging as configured. Call it once, before anything is worth logging.
///
/// # Errors
/// INTERNAL if the filter is malformed (the configuration has been checked for that) or logging was started before.
pub fn init(config: &LogConfig) -> Result<()> {
    let filter = EnvFilter::try_new(&config.filter)
        .map_err(|cause| Error::internal(format!("`log.filter` is malformed: {cause}")))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A line that cannot be written, as on a full disk, would be reported where it cannot be written either: by a panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match config.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    }
    .map_err(|cause| Error::internal(format!("logging cannot be started: {cause}")))
}
