//! The bounds of configuration values, as one table. Never changes a value.

mod auth;
mod servers;

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use super::{Config, KeyBackend, duration};

/// What is wrong with one key: its full name and the rest of the sentence.
pub(super) struct Problem {
    /// For example `timeouts.connect`.
    pub(super) key: String,
    /// For example "is 0s; it must be between 100ms and 10m".
    pub(super) text: String,
}

const MILLI: Duration = Duration::from_millis(1);
const TENTH: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const GIB: usize = 1024 * MIB;

/// Longest path of a Unix socket on Linux, without the final NUL.
pub(super) const MAX_SOCKET_PATH: usize = 107;

/// Every bound that is broken, in the order of the table.
pub(super) fn problems(config: &Config) -> Vec<Problem> {
    let mut found = Vec::new();
    durations(config, &mut found);
    counts(config, &mut found);
    paths(config, &mut found);
    auth::problems(config, &mut found);
    servers::problems(config, &mut found);
    others(config, &mut found);
    found
}

fn between<T: PartialOrd + Copy>(
    found: &mut Vec<Problem>,
    key: &str,
    value: T,
    min: T,
    max: T,
    show: impl Fn(&T) -> String,
) {
    if value < min || value > max {
        found.push(Problem {
            key: key.to_owned(),
            text: format!(
                "is {}; it must be between {} and {}",
                show(&value),
                show(&min),
                show(&max)
            ),
        });
    }
}

fn durations(config: &Config, found: &mut Vec<Problem>) {
    let timeouts = &config.timeouts;
    let reconnect = &config.reconnect;
    let updates = &config.updates;
    let questions = &config.questions;
    let auth = &config.auth;
    let probe_max = timeouts.connect.max(TENTH);
    let table = [
        ("timeouts.connect", timeouts.connect, TENTH, 10 * MINUTE),
        ("timeouts.probe", timeouts.probe, TENTH, probe_max),
        ("timeouts.call_idle", timeouts.call_idle, TENTH, DAY),
        ("timeouts.call", timeouts.call, TENTH, DAY),
        ("timeouts.task_poll", timeouts.task_poll, TENTH, 10 * MINUTE),
        ("timeouts.wait_max", timeouts.wait_max, TENTH, DAY),
        ("timeouts.session_idle", timeouts.session_idle, SECOND, DAY),
        ("timeouts.close", timeouts.close, 10 * MILLI, 5 * MINUTE),
        (
            "timeouts.drain",
            timeouts.drain,
            Duration::ZERO,
            10 * MINUTE,
        ),
        ("updates.keep_age", updates.keep_age, MINUTE, 365 * DAY),
        ("calls.keep", config.calls.keep, SECOND, 365 * DAY),
        (
            "updates.bookmark_interval",
            updates.bookmark_interval,
            TENTH,
            HOUR,
        ),
        ("reconnect.max_delay", reconnect.max_delay, SECOND, DAY),
        (
            "reconnect.liveness_interval",
            reconnect.liveness_interval,
            TENTH,
            HOUR,
        ),
        (
            "reconnect.keepalive_interval",
            reconnect.keepalive_interval,
            SECOND,
            HOUR,
        ),
        (
            "reconnect.list_refresh_interval",
            reconnect.list_refresh_interval,
            SECOND,
            DAY,
        ),
        ("questions.expiry", questions.expiry, SECOND, 30 * DAY),
        (
            "questions.sampling_expiry",
            questions.sampling_expiry,
            SECOND,
            30 * DAY,
        ),
        (
            "questions.approval_expiry",
            questions.approval_expiry,
            SECOND,
            30 * DAY,
        ),
        ("auth.sign_in_expiry", auth.sign_in_expiry, SECOND, DAY),
        ("auth.renew_before", auth.renew_before, Duration::ZERO, HOUR),
        ("audit.wait", config.audit.wait, Duration::ZERO, 10 * MINUTE),
        (
            "auth.request_timeout",
            auth.request_timeout,
            TENTH,
            5 * MINUTE,
        ),
    ];
    for (key, value, min, max) in table {
        between(found, key, value, min, max, |value| {
            duration::format(*value)
        });
    }
}

fn counts(config: &Config, found: &mut Vec<Problem>) {
    let limits = &config.limits;
    let checks = &config.checks;
    let questions = &config.questions;
    let auth = &config.auth;
    let pending = questions.max_pending_per_server;
    let question_min = questions.max_bytes.max(questions.max_sampling_bytes);
    let question_min = question_min.clamp(4 * KIB, 16 * MIB);
    let grpc_min = limits.message_bytes.clamp(64 * KIB, GIB);
    let all_connections = limits.connections.max(1);
    let per_user = limits.connections_per_user.max(1);
    let table = [
        ("limits.message_bytes", limits.message_bytes, 64 * KIB, GIB),
        (
            "limits.grpc_message_bytes",
            limits.grpc_message_bytes,
            grpc_min,
            GIB,
        ),
        ("limits.list_pages", limits.list_pages, 1, 10_000),
        ("limits.list_items", limits.list_items, 1, 1_000_000),
        (
            "limits.calls_per_server",
            limits.calls_per_server,
            1,
            65_536,
        ),
        ("limits.calls", limits.calls, 100, 1_000_000),
        (
            "limits.calls_per_stream",
            limits.calls_per_stream,
            1,
            65_536,
        ),
        (
            "limits.sessions_per_server",
            limits.sessions_per_server,
            1,
            4_096,
        ),
        ("limits.servers", limits.servers, 1, 100_000),
        ("limits.rounds", limits.rounds, 1, 1_000),
        ("limits.subscribers", limits.subscribers, 1, 65_536),
        ("limits.stderr_tail_bytes", limits.stderr_tail_bytes, 0, MIB),
        ("limits.connections", limits.connections, 1, 65_536),
        ("limits.connections_per_user", per_user, 1, all_connections),
        ("limits.app_tokens", limits.app_tokens, 1, 1_000),
        ("calls.keep_count", config.calls.keep_count, 1, 1_000_000),
        ("checks.result_bytes", checks.result_bytes, KIB, 64 * MIB),
        ("checks.schema_bytes", checks.schema_bytes, KIB, MIB),
        ("checks.schemas", checks.schemas, 1, 10_000),
        ("questions.max_pending_per_server", pending, 1, 100_000),
        (
            "questions.max_bytes",
            questions.max_bytes,
            4 * KIB,
            16 * MIB,
        ),
        (
            "questions.max_sampling_bytes",
            questions.max_sampling_bytes,
            4 * KIB,
            16 * MIB,
        ),
        (
            "questions.max_pending_bytes",
            questions.max_pending_bytes,
            question_min,
            GIB,
        ),
        (
            "audit.arguments_bytes",
            config.audit.arguments_bytes,
            0,
            MIB,
        ),
        ("metrics.hosts", config.metrics.hosts.len(), 0, 100),
        ("audit.queue", config.audit.queue, 10, 1_000_000),
        ("auth.pending_per_server", auth.pending_per_server, 1, 100),
        ("auth.response_bytes", auth.response_bytes, 4 * KIB, 4 * MIB),
        ("auth.assertion_dirs", auth.assertion_dirs.len(), 0, 100),
        ("policy.allow", config.policy.allow.len(), 0, 1_000),
        ("policy.block", config.policy.block.len(), 0, 1_000),
        ("stdio.pass_env", config.stdio.pass_env.len(), 0, 256),
    ];
    for (key, value, min, max) in table {
        between(found, key, value, min, max, usize::to_string);
    }
    for (key, value) in [
        ("updates.keep_count", config.updates.keep_count),
        ("checks.steps", checks.steps),
    ] {
        between(found, key, value, 1_000, 10_000_000, u64::to_string);
    }
    let (key, value) = ("calls.keep_bytes", config.calls.keep_bytes);
    between(found, key, value, 1 << 20, 64 << 30, u64::to_string);
}

fn paths(config: &Config, found: &mut Vec<Problem>) {
    let mut absolute = |key: &str, path: &Path, remedy: &str| {
        if !path.is_absolute() {
            found.push(Problem {
                key: key.to_owned(),
                text: format!(
                    "is `{}`, which is not an absolute path; {remedy}",
                    path.display()
                ),
            });
        }
    };
    absolute(
        "data_dir",
        &config.data_dir,
        "set it, or set HOME or XDG_STATE_HOME for a default",
    );
    absolute(
        "socket.path",
        &config.socket.path,
        "write the path from the root",
    );
    absolute(
        "admin.path",
        &config.admin.path,
        "write the path from the root",
    );
    absolute(
        "audit.file",
        &config.audit.file,
        "write the path from the root",
    );
    if let Some(key_file) = &config.vault.key_file {
        absolute("vault.key_file", key_file, "write the path from the root");
    }
    if config.admin.path == config.socket.path {
        found.push(Problem {
            key: "admin.path".to_owned(),
            text: format!(
                "is `{}`, which is `socket.path`; the two sockets need paths of their own",
                config.admin.path.display()
            ),
        });
    }
    for (key, path) in [
        ("socket.path", &config.socket.path),
        ("admin.path", &config.admin.path),
    ] {
        socket_path(key, path, found);
    }
}

fn socket_path(key: &str, path: &Path, found: &mut Vec<Problem>) {
    let length = path.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        found.push(Problem {
            key: key.to_owned(),
            text: format!(
                "is {length} bytes long (`{}`); a Unix socket's path has at most {MAX_SOCKET_PATH}: choose a shorter one",
                path.display()
            ),
        });
    }
    if path.file_name().is_none() {
        found.push(Problem {
            key: key.to_owned(),
            text: format!("is `{}`, which names no file", path.display()),
        });
    }
}

fn others(config: &Config, found: &mut Vec<Problem>) {
    let mut wrong = |key: &str, text: &dyn Display| {
        found.push(Problem {
            key: key.to_owned(),
            text: text.to_string(),
        });
    };
    if let Err(cause) = tracing_subscriber::EnvFilter::try_new(&config.log.filter) {
        let filter = &config.log.filter;
        wrong(
            "log.filter",
            &format_args!(
                "is `{filter}`, which is no filter ({cause}); write for example \"info\""
            ),
        );
    }
    let ratio = config.telemetry.sample_ratio;
    if !(0.0..=1.0).contains(&ratio) {
        wrong(
            "telemetry.sample_ratio",
            &format_args!("is {ratio}; it must be between 0 and 1"),
        );
    }
    if let Some(url) = &config.telemetry.otlp_endpoint
        && !matches!(url.scheme(), "http" | "https")
    {
        wrong(
            "telemetry.otlp_endpoint",
            &format_args!("is `{url}`; write an http or https URL"),
        );
    }
    if let Some(listen) = config.metrics.listen
        && !listen.ip().is_loopback()
        && !config.metrics.allow_remote
    {
        wrong(
            "metrics.listen",
            &format_args!(
                "is {listen}, which others can reach: name a loopback address such as 127.0.0.1, or set `metrics.allow_remote`"
            ),
        );
    }
    if let Some(listen) = config.tcp.listen
        && !listen.ip().is_loopback()
    {
        wrong(
            "tcp.listen",
            &format_args!(
                "is {listen}, which others can reach, and tokens would cross the network in clear: name a loopback address \
                 such as 127.0.0.1:7443"
            ),
        );
    }
    let elsewhere = match config.vault.backend {
        KeyBackend::Auto | KeyBackend::KeyFile => None,
        KeyBackend::Credential => Some("credential"),
        KeyBackend::Keyring => Some("keyring"),
    };
    if let (Some(backend), Some(_)) = (elsewhere, &config.vault.key_file) {
        wrong(
            "vault.key_file",
            &format_args!(
                "is set, and `vault.backend` is `{backend}`, which needs none; leave out one of them"
            ),
        );
    }
    for (index, rule) in config.access.iter().enumerate() {
        if rule.namespaces.is_empty() {
            wrong(
                &format!("access.{index}.namespaces"),
                &"is empty; name the namespaces, or write [\"*\"] for all",
            );
        }
    }
    for name in &config.stdio.pass_env {
        if name.is_empty() || name.contains(['=', '\0']) {
            wrong(
                "stdio.pass_env",
                &format_args!("holds `{name}`, which is no name of an environment variable"),
            );
        }
    }
}
