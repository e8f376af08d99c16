//! Real MCP servers of other makers, at pinned versions, and apps in other languages.
//!
//! [`install`] puts them under the target directory once; the functions of [`catalogue`] say how
//! each server is started, those of [`apps`] how each app is.

pub mod apps;
pub mod catalogue;
pub mod chromium;
pub mod install;
pub mod java;
pub mod packages;
pub mod programs;
pub mod python_sdk;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Command;

use crate::process::Group;
use crate::v1::ServerSpec;

/// A command line.
#[derive(Clone, Debug, Default)]
pub struct CommandLine {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables of its environment.
    pub env: Vec<(String, String)>,
}

impl CommandLine {
    /// A program with arguments.
    pub fn new(program: impl Into<String>, args: &[&str]) -> Self {
        Self {
            program: program.into(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: Vec::new(),
        }
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    /// Settings with which the daemon starts it.
    pub fn spec(&self, name: &str) -> ServerSpec {
        let mut spec = crate::clients::stdio_spec(name, &self.program, &self.args);
        if let Some(crate::v1::server_spec::Transport::Stdio(stdio)) = &mut spec.transport {
            let pairs = self.env.iter().cloned();
            stdio.env = pairs
                .map(|(name, value)| crate::v1::EnvVar { name, value })
                .collect();
        }
        spec
    }
}

/// A running server; it ends when this is dropped.
pub struct HttpPeer {
    /// URL of its MCP endpoint.
    pub url: String,
    /// Its process.
    pub process: Group,
}

impl HttpPeer {
    /// Starts a server on a free port, waits until it accepts connections, and tries again with
    /// another port if somebody else was faster.
    pub async fn start(path: &str, command: impl Fn(u16) -> CommandLine) -> Self {
        let mut last = String::new();
        for _ in 0..3 {
            let (port, _reserved) = reserve_port();
            match Self::start_at(path, port, &command(port)).await {
                Ok(peer) => return peer,
                Err(problem) => last = problem,
            }
        }
        panic!("{last}");
    }

    async fn start_at(path: &str, port: u16, line: &CommandLine) -> Result<Self, String> {
        let log = tempfile::NamedTempFile::new().expect("make a log file");
        let output = || Stdio::from(log.reopen().expect("open the log file"));
        let mut command = Command::new(&line.program);
        command
            .args(&line.args)
            .envs(line.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output());
        let mut process = Group::spawn(&mut command)
            .map_err(|cause| format!("cannot start `{}`: {cause}", line.program))?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let up = async {
            while process.ended().is_none() {
                if TcpStream::connect(addr).await.is_ok() {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            false
        };
        match tokio::time::timeout(Duration::from_mins(1), up).await {
            Ok(true) => Ok(Self {
                url: format!("http://{addr}{path}"),
                process,
            }),
            _ => Err(format!(
                "`{} {}` does not listen on port {port}:\n{}",
                line.program,
                line.args.join(" "),
                std::fs::read_to_string(log.path()).unwrap_or_default()
            )),
        }
    }
}

/// A port of the loopback interface that the system gives to nobody who asks for any, for as long as the socket is held. A
/// server that asks for this one gets it.
pub fn reserve_port() -> (u16, TcpSocket) {
    let socket = TcpSocket::new_v4().expect("make a socket");
    socket.set_reuseaddr(true).expect("share the port");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(any).expect("bind a port");
    let port = socket.local_addr().expect("the bound address").port();
    (port, socket)
}
