//! The daemon under test: built, configured, started, killed and restarted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::clients::Clients;
use crate::fake_auth::planted::{self, Tap};
use crate::process::{Group, profile_dir, target_dir, workspace_dir};
use crate::v1::tool_service_client::ToolServiceClient;
use crate::v1::{CallToolRequest, CallToolResponse};
use crate::wait::{eventually, within};

/// Time a daemon has to become ready or to end.
const START_BOUND: Duration = Duration::from_secs(10);
/// What is under way may end first, for as long as `timeouts.drain` says by default.
const STOP_BOUND: Duration = Duration::from_secs(30);

/// Variables of the surroundings that would change what a daemon does.
const FOREIGN_VARIABLES: &[&str] = &[
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_USEC",
    "RUST_LOG",
    "GLIBC_TUNABLES",
    "STATE_DIRECTORY",
    "RUNTIME_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
];

/// Builds all programs of the workspace, once per process, so that no test meets a stale daemon.
/// Returns the directory that holds them.
pub async fn programs() -> &'static Path {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    BUILT.get_or_init(build).await
}

async fn build() -> PathBuf {
    let profile_dir = profile_dir();
    if std::env::var_os("MCP_SIDECARD_BIN").is_some() {
        return profile_dir;
    }
    let profile = profile_dir.file_name().and_then(|name| name.to_str());
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--workspace", "--bins", "--target-dir"])
        .arg(target_dir())
        .current_dir(workspace_dir())
        .stdin(Stdio::null());
    match profile {
        Some("debug") | None => {}
        Some(profile) => {
            command.args(["--profile", profile]);
        }
    }
    let output = command.output().await.expect("run cargo");
    assert!(
        output.status.success(),
        "`cargo build --workspace --bins` failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    profile_dir
}

/// The daemon's program: built first, or whatever `MCP_SIDECARD_BIN` names.
pub async fn daemon_binary() -> PathBuf {
    match std::env::var_os("MCP_SIDECARD_BIN") {
        Some(path) => path.into(),
        None => programs().await.join("mcp-sidecard"),
    }
}

/// Settings of a daemon that is about to start.
#[derive(Clone, Default)]
pub struct Builder {
    settings: BTreeMap<String, BTreeMap<String, String>>,
    env: Vec<(String, String)>,
    dir: Option<PathBuf>,
    socket: Option<PathBuf>,
    cgroup: Option<PathBuf>,
    program: Option<PathBuf>,
    watched: bool,
    limitable: bool,
}

impl Builder {
    /// Sets a configuration key, for example `updates.keep_count`; `value` is written as TOML.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<toml_value::TomlValue>) -> Self {
        let (section, key) = key.rsplit_once('.').unwrap_or(("", key));
        let section = self.settings.entry(section.to_owned()).or_default();
        section.insert(key.to_owned(), value.into().0);
        self
    }

    /// Sets who may use which namespaces: a TOML array of tables.
    #[must_use]
    pub fn access(mut self, rules: &str) -> Self {
        let section = self.settings.entry(String::new()).or_default();
        section.insert("access".to_owned(), rules.to_owned());
        self
    }

    /// Sets the servers in the configuration: a TOML array of tables.
    #[must_use]
    pub fn servers(mut self, servers: &str) -> Self {
        let section = self.settings.entry(String::new()).or_default();
        section.insert("servers".to_owned(), servers.to_owned());
        self
    }

    /// Sets a configuration key unless it is set already.
    #[must_use]
    pub fn or_set(self, key: &str, value: impl Into<toml_value::TomlValue>) -> Self {
        let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
        let known = self.settings.get(section);
        if known.is_some_and(|section| section.contains_key(name)) {
            self
        } else {
            self.set(key, value)
        }
    }

    /// Sets a variable of the daemon's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Uses the data directory of another daemon.
    #[must_use]
    pub fn data_dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    /// Uses this socket path.
    #[must_use]
    pub fn socket(mut self, path: &Path) -> Self {
        self.socket = Some(path.to_owned());
        self
    }

    /// Logs everything and records every answer, so that [`TestDaemon::assert_no_leaks`] can look for secrets.
    #[must_use]
    pub fn watched(mut self) -> Self {
        self.watched = true;
        self
    }

    /// Starts the daemon inside this cgroup.
    #[must_use]
    pub fn cgroup(mut self, directory: &Path) -> Self {
        self.cgroup = Some(directory.to_owned());
        self
    }

    /// Lets [`TestDaemon::limit_files`] be felt as an error, where it would be the end of the process.
    #[must_use]
    pub fn limitable(mut self) -> Self {
        self.limitable = true;
        self
    }

    /// Starts this program in place of the daemon's, for example one that watches it.
    #[must_use]
    pub fn program(mut self, program: &Path) -> Self {
        self.program = Some(program.to_owned());
        self
    }

    fn prepare(self) -> Prepared {
        let home = tempfile::Builder::new()
            .prefix("mcp-sidecar-")
            .tempdir()
            .expect("make a temporary directory");
        let data = self.dir.unwrap_or_else(|| home.path().join("data"));
        let socket = self.socket.unwrap_or_else(|| home.path().join("app.sock"));
        let config = home.path().join("config.toml");
        let mut prepared = Prepared {
            home,
            data,
            socket,
            config,
            settings: self.settings,
            env: self.env,
            cgroup: self.cgroup,
            program: self.program,
            tap: self.watched.then(Tap::default),
            limitable: self.limitable,
        };
        prepared.write_config();
        prepared
    }

    /// Starts the daemon and waits until it serves.
    pub async fn start(self) -> TestDaemon {
        let prepared = self.prepare();
        let mut daemon = TestDaemon {
            process: None,
            prepared,
        };
        daemon.spawn().await;
        daemon
    }

    /// Starts a daemon that is expected to give up by itself and waits for its end.
    pub async fn start_and_fail(self) -> (ExitStatus, String) {
        self.run(&[]).await
    }

    /// Runs the program with these arguments to its end: the exit status, and everything that it wrote.
    pub async fn run(self, arguments: &[&str]) -> (ExitStatus, String) {
        self.prepare().run(arguments).await
    }
}

/// TOML text of a configuration value.
pub mod toml_value {
    /// A value as it is written in the file.
    pub struct TomlValue(pub(super) String);

    impl From<&str> for TomlValue {
        fn from(text: &str) -> Self {
            // JSON strings are valid TOML basic strings.
            Self(serde_json::Value::from(text).to_string())
        }
    }

    macro_rules! literal {
        ($($kind:ty),*) => {$(
            impl From<$kind> for TomlValue {
                fn from(value: $kind) -> Self {
                    Self(value.to_string())
                }
            }
        )*};
    }
    literal!(bool, u32, u64, i32);

    impl From<&[&str]> for TomlValue {
        fn from(list: &[&str]) -> Self {
            Self(serde_json::Value::from(list).to_string())
        }
    }
}

struct Prepared {
    home: TempDir,
    data: PathBuf,
    socket: PathBuf,
    config: PathBuf,
    settings: BTreeMap<String, BTreeMap<String, String>>,
    env: Vec<(String, String)>,
    cgroup: Option<PathBuf>,
    program: Option<PathBuf>,
    tap: Option<Tap>,
    limitable: bool,
}

impl Prepared {
    fn write_config(&mut self) {
        let watched = self.tap.is_some();
        let text = |path: &Path| serde_json::Value::from(path.to_str().unwrap()).to_string();
        let mut put = |section: &str, key: &str, value: String| {
            let section = self.settings.entry(section.to_owned()).or_default();
            section.entry(key.to_owned()).or_insert(value);
        };
        put("", "data_dir", text(&self.data));
        put("socket", "path", text(&self.socket));
        // Nobody else may have taken it.
        put("auth", "callback_port", "0".to_owned());
        let filter = if watched {
            "\"trace\""
        } else {
            "\"info,mcp_sidecard=debug\""
        };
        put("log", "filter", filter.to_owned());
        let mut config = String::new();
        for (section, keys) in &self.settings {
            if !section.is_empty() {
                writeln!(config, "\n[{section}]").unwrap();
            }
            for (key, value) in keys {
                writeln!(config, "{key} = {value}").unwrap();
            }
        }
        // A daemon that reads it meanwhile finds the one or the other.
        let written = self.config.with_extension("new");
        std::fs::write(&written, config).expect("write the configuration");
        std::fs::rename(&written, &self.config).expect("put the configuration in its place");
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("daemon.log")
    }

    fn log(&self) -> String {
        let bytes = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn spawn(&self, program: &Path) -> Group {
        self.spawn_with(program, &[])
    }

    async fn run(&self, arguments: &[&str]) -> (ExitStatus, String) {
        let mut process = self.spawn_with(&daemon_binary().await, arguments);
        let status = process.wait(START_BOUND).await;
        let log = self.log();
        let status = status.unwrap_or_else(|| panic!("it did not give up; log:\n{log}"));
        (status, log)
    }

    fn spawn_with(&self, program: &Path, arguments: &[&str]) -> Group {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("open the log file");
        let mut command = match &self.cgroup {
            None if self.limitable => {
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
                    .arg(program);
                shell
            }
            None => Command::new(program),
            Some(directory) => crate::cgroup::command_in(directory, program),
        };
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("MCP_SIDECAR") || text.starts_with("MALLOC_") {
                command.env_remove(name);
            }
        }
        for name in FOREIGN_VARIABLES {
            command.env_remove(name);
        }
        command
            .arg("--config")
            .arg(&self.config)
            .args(arguments)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("share the log file"))
            .stderr(log);
        Group::spawn(&mut command)
            .unwrap_or_else(|cause| panic!("cannot start {}: {cause}", program.display()))
    }
}

/// A running daemon with everything it needs in a temporary directory.
pub struct TestDaemon {
    process: Option<Group>,
    prepared: Prepared,
}

impl TestDaemon {
    /// A daemon with the default configuration.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// A daemon with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    async fn spawn(&mut self) {
        let program = match &self.prepared.program {
            Some(program) => program.clone(),
            None => daemon_binary().await,
        };
        let mut process = self.prepared.spawn(&program);
        let serving = async {
            loop {
                if let Some(status) = process.ended() {
                    return Err(format!("the daemon ended with {status}"));
                }
                if Clients::is_serving(&self.prepared.socket).await {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let outcome = tokio::time::timeout(START_BOUND, serving).await;
        let problem = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(problem)) => Some(problem),
            Err(_elapsed) => Some(format!("the daemon was not SERVING after {START_BOUND:?}")),
        };
        if let Some(problem) = problem {
            panic!("{problem}; its log:\n{}", self.prepared.log());
        }
        self.process = Some(process);
    }

    /// Clients on a connection of their own, in namespace `default`.
    pub async fn clients(&self) -> Clients {
        let clients = Clients::connect(self.socket()).await;
        match &self.prepared.tap {
            Some(tap) => clients.tapped(tap.clone()),
            None => clients,
        }
    }

    /// Clients on a connection of their own, in another namespace.
    pub async fn clients_in(&self, namespace: &str) -> Clients {
        self.clients().await.in_namespace(namespace)
    }

    /// CallTool with a deadline that only the daemon looks at: a channel would end the call by
    /// itself at the same moment.
    pub async fn call_within(
        &self,
        request: CallToolRequest,
        deadline: Duration,
    ) -> Result<CallToolResponse, tonic::Status> {
        let stream = UnixStream::connect(self.socket()).await.expect("connect");
        let io = TokioIo::new(stream);
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
        let (sender, connection) = handshake.await.expect("an HTTP/2 handshake");
        let connection = tokio::spawn(connection);
        let service = tower::service_fn(move |request| sender.clone().send_request(request));
        let origin = http::Uri::from_static("http://localhost");
        let mut request = tonic::Request::new(request);
        request.set_timeout(deadline);
        let mut tools = ToolServiceClient::with_origin(service, origin);
        let answer = within("the daemon's answer", tools.call_tool(request)).await;
        connection.abort();
        answer.map(tonic::Response::into_inner)
    }

    /// What records its answers, if it is watched.
    pub fn tap(&self) -> Option<Tap> {
        self.prepared.tap.clone()
    }

    /// Path of the socket.
    pub fn socket(&self) -> &Path {
        &self.prepared.socket
    }

    /// Path of the admin socket, where it is by default.
    pub fn admin_socket(&self) -> PathBuf {
        let name = self.socket().file_name().expect("a file");
        match name.to_str().expect("UTF-8") {
            "app.sock" => self.socket().with_file_name("admin.sock"),
            other => self.socket().with_file_name(format!("admin-{other}")),
        }
    }

    /// Clients on a connection to the admin socket, in namespace `default`.
    pub async fn operator(&self) -> Clients {
        let clients = Clients::connect(&self.admin_socket()).await;
        match &self.prepared.tap {
            Some(tap) => clients.tapped(tap.clone()),
            None => clients,
        }
    }

    /// Path of the configuration file.
    pub fn config_file(&self) -> &Path {
        &self.prepared.config
    }

    /// Writes the configuration file anew with another value of a key; the daemon is not told.
    pub fn rewrite(&mut self, key: &str, value: impl Into<toml_value::TomlValue>) {
        self.rewrite_as(key, &value.into().0);
    }

    /// The same with a value that is TOML already.
    pub fn rewrite_as(&mut self, key: &str, toml: &str) {
        let (section, key) = key.rsplit_once('.').unwrap_or(("", key));
        let section = self.prepared.settings.entry(section.to_owned());
        section.or_default().insert(key.to_owned(), toml.to_owned());
        self.prepared.write_config();
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("the daemon runs");
        process.signal(signal);
    }

    /// Waits until the daemon has ended by itself.
    pub async fn ends(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("the daemon runs");
        let status = process.wait(STOP_BOUND).await;
        status.unwrap_or_else(|| panic!("the daemon did not end; its log:\n{}", self.log()))
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.prepared.data
    }

    /// Everything the daemon has written to its standard streams.
    pub fn log(&self) -> String {
        self.prepared.log()
    }

    /// No planted secret is in its log, in what it said to apps, or in a file of its data.
    #[track_caller]
    pub fn assert_no_leaks(&self) {
        let leaks = self.leaks();
        assert!(leaks.is_empty(), "{leaks:#?}");
    }

    /// The places where planted secrets are.
    pub fn leaks(&self) -> Vec<String> {
        let tap = self.prepared.tap.as_ref().expect("the daemon is watched");
        let log = self.log().into_bytes();
        let answers = tap.answers();
        let answers = answers
            .iter()
            .map(|answer| ("an answer".to_owned(), &answer[..]));
        let mut leaks = planted::leaks(answers.chain([("the log".to_owned(), &log[..])]));
        leaks.extend(planted::leaks_in_files(self.data_dir()));
        leaks
    }

    /// Process id of the running daemon.
    pub fn pid(&self) -> i32 {
        self.process.as_ref().expect("the daemon runs").pid()
    }

    /// Kills the daemon without warning and waits until it is gone.
    pub async fn kill9(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::KILL);
            process
                .wait(START_BOUND)
                .await
                .expect("a killed daemon ends");
        }
    }

    /// Asks the daemon to stop and waits for its end.
    pub async fn terminate(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("the daemon runs");
        process.signal(Signal::TERM);
        let status = process.wait(STOP_BOUND).await;
        status.unwrap_or_else(|| panic!("the daemon did not stop; its log:\n{}", self.log()))
    }

    /// Starts the program with the configuration of this daemon and with these arguments, while the daemon does not run.
    pub async fn command(&self, arguments: &[&str]) -> Group {
        assert!(self.process.is_none(), "the daemon runs");
        self.prepared.spawn_with(&daemon_binary().await, arguments)
    }

    /// The same to its end: the exit status, and everything that was written since the daemon was first started.
    pub async fn run(&self, arguments: &[&str]) -> (ExitStatus, String) {
        assert!(self.process.is_none(), "the daemon runs");
        self.prepared.run(arguments).await
    }

    /// From now on the daemon can write no file beyond this size, as on a full disk; `None` takes that back. It must be
    /// [`limitable`](Builder::limitable). Its log has the same limit.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let process = rustix::process::Pid::from_raw(self.pid());
        let limit = rustix::process::Rlimit {
            current: bytes,
            maximum: None,
        };
        rustix::process::prlimit(process, rustix::process::Resource::Fsize, limit)
            .expect("limit the size of files");
    }

    /// Starts the daemon again on the same data and socket, after stopping it if it runs.
    pub async fn restart(&mut self) {
        if self.process.is_some() {
            self.terminate().await;
        }
        self.spawn().await;
    }

    /// Has it read anew what can be read anew, as a service manager or logrotate does: SIGHUP.
    pub fn hang_up(&self) {
        let process = self.process.as_ref().expect("the daemon runs");
        process.signal(Signal::HUP);
    }

    /// Waits until nothing of any call or question is under way.
    pub async fn comes_to_rest(&self) {
        eventually(
            "calls and questions to come to rest",
            START_BOUND,
            async || {
                let survey = self.survey().await;
                let left = ["calls", "waiting", "questions"].map(|name| survey[name]);
                (left == [0; 3]).then_some(())
            },
        )
        .await;
    }

    /// Asks the daemon what it has under way, by signal: the counts of the line in its log, by name.
    pub async fn survey(&self) -> BTreeMap<String, u64> {
        let path = self.prepared.log_path();
        let before = std::fs::metadata(&path).map_or(0, |file| file.len());
        let process = self.process.as_ref().expect("the daemon runs");
        process.signal(Signal::USR1);
        let line = eventually("the survey in the log", START_BOUND, async || {
            let mut file = File::open(&path).ok()?;
            file.seek(SeekFrom::Start(before)).ok()?;
            let mut added = Vec::new();
            file.read_to_end(&mut added).ok()?;
            let added = String::from_utf8_lossy(&added);
            let (_, after) = added.split_once(" survey ")?;
            // The line may not be complete yet.
            let (line, _) = after.split_once('\n')?;
            Some(line.to_owned())
        });
        let line = line.await;
        let counts = line.split(' ').filter_map(|field| {
            let (name, count) = field.split_once('=')?;
            Some((name.to_owned(), count.parse().ok()?))
        });
        counts.collect()
    }

    /// Waits until the log holds a text.
    pub async fn log_holds(&self, text: &str) {
        eventually(&format!("`{text}` in the log"), START_BOUND, async || {
            self.log().contains(text).then_some(())
        })
        .await;
    }
}
