//! An app of another user, as the kernel sees it. Only root can make one.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tonic::transport::Endpoint;

use crate::clients::Clients;
use crate::daemon::{Builder, TestDaemon, programs};

/// The user and group of nobody in particular.
pub const NOBODY: u32 = 65_534;

/// A place where everybody can go, with a daemon that everybody may talk to.
pub struct OpenHouse {
    /// The daemon.
    pub daemon: TestDaemon,
    place: TempDir,
}

impl OpenHouse {
    /// Starts the daemon.
    pub async fn start(builder: Builder) -> Self {
        let place = tempfile::tempdir().expect("make a directory");
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(place.path(), everybody).expect("open the directory");
        let socket = place.path().join("s");
        let daemon = builder
            .set("socket.mode", "0666")
            .socket(&socket)
            .start()
            .await;
        Self { daemon, place }
    }

    /// A program of the tests, where everybody can run it.
    pub async fn program(&self, name: &str) -> std::path::PathBuf {
        let program = self.place.path().join(name);
        if !program.exists() {
            let built = programs().await.join(name);
            std::fs::copy(built, &program).expect("copy the program");
        }
        program
    }

    /// Somebody who runs as nobody, at the admin socket.
    pub async fn stranger_at_admin(&self) -> Clients {
        let relay = self.program("fake-relay").await;
        Clients::over(stranger(&relay, &self.daemon.admin_socket()).await)
    }

    /// An app that runs as nobody.
    pub async fn stranger(&self) -> Clients {
        let relay = self.program("fake-relay").await;
        Clients::over(stranger(&relay, self.daemon.socket()).await)
    }
}

/// One connection, carried by a process of nobody's; it ends with the channel.
async fn stranger(relay: &Path, socket: &Path) -> tonic::transport::Channel {
    let mut child = tokio::process::Command::new(relay)
        .arg(socket)
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("start the stranger");
    let streams = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let mut io = Some(TokioIo::new(tokio::io::join(streams.0, streams.1)));
    tokio::spawn(async move { child.wait().await });
    let connector = tower::service_fn(move |_| {
        let io = io
            .take()
            .ok_or_else(|| std::io::Error::other("it connects once"));
        std::future::ready(io)
    });
    Endpoint::from_static("http://localhost")
        .connect_with_connector(connector)
        .await
        .expect("connect to the daemon")
}
