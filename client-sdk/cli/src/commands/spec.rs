//! Settings of servers from the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use mcp_sidecar_client::from_json;
use mcp_sidecar_client::proto::{
    BearerToken, EnvVar, HttpMode, HttpTransport, Isolation, LogLevel, Root, ServerSpec,
    StdioTransport, UnixSocketProtocol, UnixSocketTransport, authorization, server_spec,
};

use crate::exit::{Failure, Outcome, usage};
use crate::files;

/// Settings of a server. Secrets come from files, from standard input (`-`) or from the environment: others can see the
/// command line.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct Settings {
    /// Name for people
    #[arg(long)]
    name: Option<String>,
    /// HTTP headers from a file or `-`, one `Name: value` a line
    #[arg(long, value_name = "FILE")]
    header_file: Option<PathBuf>,
    /// A token for the header `Authorization` from a file or `-`
    #[arg(long, value_name = "FILE")]
    bearer_token_file: Option<PathBuf>,
    /// Environment variables from a file or `-`, one `NAME=value` a line
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
    /// An environment variable, with the value that it has in the environment of this program
    #[arg(long = "env", value_name = "NAME")]
    env: Vec<String>,
    /// Working directory of a command, absolute
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// The HTTP transport [default: found]
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// Only these tools may be seen and called: names, or patterns with `*` and `?`
    #[arg(long = "allow-tool", value_name = "PATTERN")]
    allow_tools: Option<Vec<String>>,
    /// These tools may not
    #[arg(long = "deny-tool", value_name = "PATTERN")]
    deny_tools: Option<Vec<String>>,
    /// A directory that the server may work with, as a `file:` URI
    #[arg(long = "root", value_name = "URI")]
    roots: Option<Vec<String>>,
    /// The protocol version [default: found]
    #[arg(long, value_name = "VERSION")]
    protocol_version: Option<String>,
    /// Check structured results against the tools' output schemas
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    check_results: Option<bool>,
    /// Which apps share a session with the server
    #[arg(long, value_enum)]
    isolation: Option<Sharing>,
    /// Ask the server for log messages of this severity and above
    #[arg(long, value_enum, value_name = "LEVEL")]
    log_level: Option<Level>,
    /// Bound on opening the connection
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    connect_timeout: Option<Duration>,
    /// Bound on a call
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    call_timeout: Option<Duration>,
    /// Bound on silence of the server in a call
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    idle_timeout: Option<Duration>,
}

/// An HTTP transport.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    /// Whatever the server speaks
    Auto,
    /// Streamable HTTP
    Http,
    /// HTTP+SSE
    Sse,
}

/// Which apps share a session.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sharing {
    /// All
    Shared,
    /// Those of one user
    PerUser,
    /// None
    PerConnection,
}

/// Severity of a log message.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Debug => Self::Debug,
            Level::Info => Self::Info,
            Level::Notice => Self::Notice,
            Level::Warning => Self::Warning,
            Level::Error => Self::Error,
            Level::Critical => Self::Critical,
            Level::Alert => Self::Alert,
            Level::Emergency => Self::Emergency,
        }
    }
}

/// A server's place: a URL, `unix:/path/of/socket`, or a command with its arguments.
pub(crate) fn place(words: &[String]) -> Outcome<server_spec::Transport> {
    let Some((first, rest)) = words.split_first() else {
        return usage("give a URL, `unix:PATH` or a command");
    };
    let is_url = ["http://", "https://"].iter().any(|scheme| {
        let start = first.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    if (is_url || first.starts_with("unix:")) && !rest.is_empty() {
        return usage(format!(
            "`{}` is one word too many behind an address",
            rest[0]
        ));
    }
    if is_url {
        return Ok(server_spec::Transport::Http(HttpTransport {
            url: first.clone(),
            ..Default::default()
        }));
    }
    if let Some(path) = first.strip_prefix("unix:") {
        return Ok(server_spec::Transport::UnixSocket(UnixSocketTransport {
            path: path.to_owned(),
            protocol: UnixSocketProtocol::Http.into(),
            ..Default::default()
        }));
    }
    Ok(server_spec::Transport::Stdio(StdioTransport {
        command: first.clone(),
        args: rest.to_vec(),
        ..Default::default()
    }))
}

/// A name for a server that was given none: its host, or the program without its path.
pub(crate) fn name_of(transport: &server_spec::Transport) -> String {
    let last = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    match transport {
        server_spec::Transport::Http(http) => {
            let rest = http
                .url
                .split_once("://")
                .map_or(&*http.url, |(_, rest)| rest);
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            rest[..end].to_owned()
        }
        server_spec::Transport::Stdio(stdio) => last(&stdio.command),
        server_spec::Transport::UnixSocket(socket) => last(&socket.path),
    }
}

/// A whole `ServerSpec` from a file or `-`.
pub(crate) fn from_file(path: &std::path::Path) -> Outcome<ServerSpec> {
    let text = files::read(path)?;
    from_json(&text).map_err(|error| {
        // The line and column are enough; what is there may be a secret.
        let (line, column) = (error.line(), error.column());
        let place = format!("`{}`, line {line}, column {column}", path.display());
        Failure::Usage(format!("{place}: no ServerSpec in the contract's JSON"))
    })
}

impl Settings {
    /// Puts what is given into the settings and returns the paths of what was changed, as an update mask has them.
    pub(crate) fn apply(&self, spec: &mut ServerSpec) -> Outcome<Vec<String>> {
        let mut paths = Vec::new();
        if let Some(name) = &self.name {
            spec.name.clone_from(name);
            paths.push("name".to_owned());
        }
        self.apply_to_transport(spec, &mut paths)?;
        if let Some(path) = &self.bearer_token_file {
            let token = files::read(path)?.trim().to_owned();
            let method = authorization::Method::BearerToken(BearerToken { token });
            spec.authorization.get_or_insert_default().method = Some(method);
            paths.push("authorization".to_owned());
        }
        let mut set = |path: &str, given: bool| {
            if given {
                paths.push(path.to_owned());
            }
        };
        set("allowed_tools", self.allow_tools.is_some());
        set("denied_tools", self.deny_tools.is_some());
        set("roots", self.roots.is_some());
        set("protocol_version", self.protocol_version.is_some());
        set("check_results", self.check_results.is_some());
        set("isolation", self.isolation.is_some());
        set("log_level", self.log_level.is_some());
        set("timeouts.connect", self.connect_timeout.is_some());
        set("timeouts.call", self.call_timeout.is_some());
        set("timeouts.call_idle", self.idle_timeout.is_some());
        // An empty pattern or root takes the list away.
        let list = |given: &[String]| -> Vec<String> {
            given
                .iter()
                .filter(|one| !one.is_empty())
                .cloned()
                .collect()
        };
        if let Some(patterns) = &self.allow_tools {
            spec.allowed_tools = list(patterns);
        }
        if let Some(patterns) = &self.deny_tools {
            spec.denied_tools = list(patterns);
        }
        if let Some(uris) = &self.roots {
            let roots = list(uris).into_iter().map(|uri| Root {
                uri,
                name: String::new(),
            });
            spec.roots = roots.collect();
        }
        if let Some(version) = &self.protocol_version {
            spec.protocol_version.clone_from(version);
        }
        if let Some(check) = self.check_results {
            spec.check_results = check;
        }
        if let Some(sharing) = self.isolation {
            let isolation = match sharing {
                Sharing::Shared => Isolation::Shared,
                Sharing::PerUser => Isolation::PerUser,
                Sharing::PerConnection => Isolation::PerConnection,
            };
            spec.isolation = isolation.into();
        }
        if let Some(level) = self.log_level {
            spec.log_level = LogLevel::from(level).into();
        }
        let timeouts = [self.connect_timeout, self.call_timeout, self.idle_timeout];
        if timeouts.iter().any(Option::is_some) {
            let known = spec.timeouts.get_or_insert_default();
            let places = [&mut known.connect, &mut known.call, &mut known.call_idle];
            for (place, given) in places.into_iter().zip(timeouts) {
                if let Some(given) = given {
                    *place = Some(length(given)?);
                }
            }
        }
        Ok(paths)
    }

    fn apply_to_transport(&self, spec: &mut ServerSpec, paths: &mut Vec<String>) -> Outcome {
        let headers = self
            .header_file
            .as_deref()
            .map(files::headers)
            .transpose()?;
        let env = self.environment()?;
        let wrong = |what: &str, of: &str| usage(format!("{what} is for {of}"));
        match &mut spec.transport {
            Some(server_spec::Transport::Http(http)) => {
                put(&mut http.headers, headers, "http.headers", paths);
                if let Some(transport) = self.transport {
                    let mode = match transport {
                        Transport::Auto => HttpMode::Auto,
                        Transport::Http => HttpMode::StreamableHttp,
                        Transport::Sse => HttpMode::Sse,
                    };
                    http.mode = mode.into();
                    paths.push("http.mode".to_owned());
                }
                if env.is_some() || self.cwd.is_some() {
                    return wrong("an environment or a working directory", "commands");
                }
            }
            Some(server_spec::Transport::UnixSocket(socket)) => {
                put(&mut socket.headers, headers, "unix_socket.headers", paths);
                if env.is_some() || self.cwd.is_some() {
                    return wrong("an environment or a working directory", "commands");
                }
                if self.transport.is_some() {
                    return wrong("--transport", "URLs");
                }
            }
            Some(server_spec::Transport::Stdio(stdio)) => {
                put(&mut stdio.env, env, "stdio.env", paths);
                if let Some(cwd) = &self.cwd {
                    stdio.cwd.clone_from(cwd);
                    paths.push("stdio.cwd".to_owned());
                }
                if headers.is_some() || self.transport.is_some() || self.bearer_token_file.is_some()
                {
                    return wrong("a header, a token or --transport", "servers at a URL");
                }
            }
            None => return usage("the server has no address and no command"),
        }
        Ok(())
    }

    fn environment(&self) -> Outcome<Option<Vec<EnvVar>>> {
        if self.env.is_empty() && self.env_file.is_none() {
            return Ok(None);
        }
        let mut variables = match &self.env_file {
            Some(path) => files::environment(path)?,
            None => Vec::new(),
        };
        for name in &self.env {
            if name.contains('=') {
                return usage(format!(
                    "give `--env {}` alone, and its value in the environment: others can see the command line",
                    name.split('=').next().unwrap_or_default()
                ));
            }
            let Ok(value) = std::env::var(name) else {
                return usage(format!(
                    "`{name}` is not in the environment of this program"
                ));
            };
            variables.push(EnvVar {
                name: name.clone(),
                value,
            });
        }
        Ok(Some(variables))
    }
}

fn put<T>(place: &mut Vec<T>, given: Option<Vec<T>>, path: &str, paths: &mut Vec<String>) {
    if let Some(given) = given {
        *place = given;
        paths.push(path.to_owned());
    }
}

/// A duration of the contract.
pub(crate) fn length(given: Duration) -> Outcome<prost_types::Duration> {
    let length = prost_types::Duration::try_from(given);
    length.map_err(|_| Failure::Usage(format!("`{given:?}` is too long")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn a_place_is_a_url_a_socket_or_a_command() {
        let name = |given: &[&str]| place(&words(given)).map(|place| name_of(&place));
        assert_eq!(
            name(&["HTTPS://mcp.example.com:8/x?y"]).unwrap(),
            "mcp.example.com:8"
        );
        assert_eq!(name(&["unix:/run/a/tool.sock"]).unwrap(), "tool.sock");
        assert_eq!(name(&["/usr/bin/mcp-files", "--all"]).unwrap(), "mcp-files");
        assert!(name(&["https://x", "y"]).is_err() && name(&[]).is_err());
    }
}
