//! Log output: one subscriber for the process, to standard error. Standard output stays free.

use std::fmt;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing_subscriber::EnvFilter;

use crate::base::{Clock, Deadline, Timestamp};
use crate::config::{LogConfig, LogFormat};
use crate::error::{Error, Result};

/// Starts logging as configured. Call it once, before anything is worth logging.
///
/// # Errors
/// INTERNAL if the filter is malformed (the configuration has been checked for that) or logging was started before.
pub fn init(config: &LogConfig) -> Result<LogFilter> {
    let filter = EnvFilter::try_new(&config.filter)
        .map_err(|cause| Error::internal(format!("`log.filter` is malformed: {cause}")))?;
    let lines = tracing_subscriber::fmt()
        // A line that cannot be written, as on a full disk, would be reported where it cannot be written either: by a panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let (started, exchange): (_, Exchange) = match config.format {
        LogFormat::Text => {
            let lines = lines.with_ansi(std::io::stderr().is_terminal());
            let lines = lines.with_env_filter(filter).with_filter_reloading();
            let handle = lines.reload_handle();
            let exchange = move |filter| handle.reload(filter).map_err(|cause| cause.to_string());
            (lines.try_init(), Box::new(exchange))
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true);
            let lines = lines.with_env_filter(filter).with_filter_reloading();
            let handle = lines.reload_handle();
            let exchange = move |filter| handle.reload(filter).map_err(|cause| cause.to_string());
            (lines.try_init(), Box::new(exchange))
        }
    };
    started.map_err(|cause| Error::internal(format!("logging cannot be started: {cause}")))?;
    Ok(LogFilter(Arc::new(Inner {
        exchange,
        state: Mutex::new(State {
            configured: config.filter.clone(),
            other: None,
            set: 0,
        }),
    })))
}

type Exchange = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// What is logged, to be changed while the daemon runs. Clones change the same.
#[derive(Clone)]
pub struct LogFilter(Arc<Inner>);

struct Inner {
    exchange: Exchange,
    state: Mutex<State>,
}

struct State {
    configured: String,
    /// What holds in place of the configured one, and until when.
    other: Option<(String, Option<Timestamp>)>,
    /// Counts how often `other` was set: the end of an earlier time must not end a later one.
    set: u64,
}

impl State {
    fn now(&self) -> &str {
        let other = self.other.as_ref().map(|(filter, _)| filter);
        other.unwrap_or(&self.configured)
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogFilter").field(&self.now().0).finish()
    }
}

impl LogFilter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is logged now, and until when if that was set for a time.
    #[must_use]
    pub fn now(&self) -> (String, Option<Timestamp>) {
        let state = self.state();
        let until = state.other.as_ref().and_then(|(_, until)| *until);
        (state.now().to_owned(), until)
    }

    fn put(&self, filter: &str) -> Result<()> {
        let parsed = EnvFilter::try_new(filter).map_err(|cause| {
            Error::invalid(
                "filter",
                format!("`{filter}` is no filter ({cause}); write for example \"info\""),
            )
        })?;
        (self.0.exchange)(parsed)
            .map_err(|cause| Error::internal(format!("the log filter cannot be changed: {cause}")))
    }

    /// From now on this is what the configuration says; it holds at once, unless another one was set for a time.
    ///
    /// # Errors
    /// `INVALID_FIELD` if it is no filter.
    pub fn configure(&self, filter: &str) -> Result<()> {
        let mut state = self.state();
        if state.other.is_none() {
            self.put(filter)?;
        }
        filter.clone_into(&mut state.configured);
        Ok(())
    }

    /// This is logged until the time is over, or until it is set again; the empty filter is the configured one. What waits for
    /// the end of the time runs on `tasks` until `stop` is cancelled.
    ///
    /// # Errors
    /// `INVALID_FIELD` if it is no filter.
    pub fn set(
        &self,
        filter: &str,
        time: Option<Duration>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<()> {
        let mut state = self.state();
        let until = time.map(|time| Clock.wall().plus(time));
        if filter.is_empty() {
            self.put(&state.configured)?;
            state.other = None;
        } else {
            self.put(filter)?;
            state.other = Some((filter.to_owned(), until));
        }
        state.set += 1;
        let (set, filter) = (state.set, self.clone());
        drop(state);
        if let Some(time) = time {
            tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = Deadline::after(time).elapsed() => filter.end(set),
                }
            });
        }
        Ok(())
    }

    /// The time of what was set is over.
    fn end(&self, set: u64) {
        let mut state = self.state();
        if state.set != set {
            return;
        }
        match self.put(&state.configured) {
            Ok(()) => {
                state.other = None;
                tracing::info!(
                    filter = state.configured,
                    "the configured log filter is back"
                );
            }
            Err(error) => tracing::warn!(%error, "the configured log filter is not back"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter() -> (LogFilter, Arc<Mutex<Vec<String>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let exchanged = Arc::clone(&seen);
        let filter = LogFilter(Arc::new(Inner {
            exchange: Box::new(move |filter| {
                exchanged.lock().unwrap().push(filter.to_string());
                Ok(())
            }),
            state: Mutex::new(State {
                configured: "info".to_owned(),
                other: None,
                set: 0,
            }),
        }));
        (filter, seen)
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_an_earlier_time_does_not_end_a_later_one() {
        let (filter, seen) = filter();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let second = Some(Duration::from_secs(1));
        filter.set("warn", second, &tasks, stop.clone()).unwrap();
        filter.set("error", None, &tasks, stop.clone()).unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(filter.now(), ("error".to_owned(), None));
        filter.set("debug", second, &tasks, stop).unwrap();
        assert!(filter.now().1.is_some());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(filter.now(), ("info".to_owned(), None));
        assert_eq!(*seen.lock().unwrap(), ["warn", "error", "debug", "info"]);
    }

    #[test]
    fn what_is_configured_meanwhile_is_what_comes_back() {
        let (filter, seen) = filter();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        filter.set("debug", None, &tasks, stop.clone()).unwrap();
        filter.configure("warn").unwrap();
        assert_eq!(filter.now().0, "debug");
        filter.set("", None, &tasks, stop).unwrap();
        assert_eq!(filter.now().0, "warn");
        filter.configure("error").unwrap();
        assert_eq!(*seen.lock().unwrap(), ["debug", "warn", "error"]);
    }
}
