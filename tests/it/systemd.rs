//! The package and its units under a real systemd (row D4): installed, started on demand, watched, restarted, stopped, removed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use mcp_sidecar_client::{Client, UpdateEvent};
use mcp_sidecar_tests::daemon::programs;
use mcp_sidecar_tests::own_systemd::OwnSystemd;
use mcp_sidecar_tests::package::debian_package;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;
use mcp_sidecar_tests::v1::{CallState, ElicitationState};

use crate::questions::{Way, asking, with_forms};

/// Where the package puts the configuration.
const CONFIG: &str = "/etc/mcp-sidecar/config.toml";
const SERVICE: &str = "mcp-sidecard.service";
const SOCKET: &str = "mcp-sidecard.socket";
const ADMIN_SOCKET: &str = "mcp-sidecard-admin.socket";
/// Where systemd-analyze puts the exposure of a service at most, in tenths.
const EXPOSURE: &str = "20";

/// What the stories add to the service, beside what they are about.
const LOG_TO_FILE: &str =
    "[Service]\nStandardOutput=append:/srv/daemon.log\nStandardError=append:/srv/daemon.log\n";

/// A host on which the package was installed.
struct Host {
    systemd: OwnSystemd,
}

impl Host {
    /// Installs the package, with these additions to its service.
    async fn with(drop_in: &str) -> Option<Self> {
        let systemd = OwnSystemd::start().await?;
        let package = debian_package().await;
        copy(package, &systemd.shared().join("mcp-sidecar.deb"));
        // A server that the daemon can start itself.
        let demo = programs().await.join("demo-server");
        copy(&demo, &systemd.outside("/usr/bin/demo-server"));
        let text = format!("{LOG_TO_FILE}{drop_in}");
        systemd.write(
            &format!("/etc/systemd/system/{SERVICE}.d/story.conf"),
            &text,
        );
        let host = Self { systemd };
        host.systemd
            .done("dpkg", &["--install", "/srv/mcp-sidecar.deb"])
            .await;
        Some(host)
    }

    async fn clients(&self) -> Clients {
        Clients::connect(&self.systemd.outside("/run/mcp-sidecar/app.sock")).await
    }

    async fn systemctl(&self, verb: &str) {
        self.systemd.done("systemctl", &[verb, SERVICE]).await;
    }

    async fn is_active(&self) {
        self.systemd.until(SERVICE, "ActiveState", "active").await;
    }

    async fn main_pid(&self) -> String {
        self.systemd.property(SERVICE, "MainPID").await
    }

    fn mode(&self, path: &str) -> u32 {
        let facts = std::fs::metadata(self.systemd.outside(path)).unwrap();
        facts.permissions().mode() & 0o7777
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap_or_else(|cause| panic!("copy to {}: {cause}", to.display()));
}

fn demo() -> ServerSpec {
    stdio_spec("Demo", "/usr/bin/demo-server", &["stdio".to_owned()])
}

#[tokio::test]
async fn d4_the_package_installs_starts_on_demand_and_goes_again() {
    let Some(host) = Host::with("").await else {
        return;
    };
    host.is_active().await;
    host.systemd.until(SOCKET, "ActiveState", "active").await;
    assert_eq!(
        host.systemd.property(SERVICE, "StatusText").await,
        "serving"
    );
    assert_eq!(host.mode("/var/lib/mcp-sidecar"), 0o700);
    assert_eq!(host.mode("/run/mcp-sidecar/app.sock"), 0o660);

    // Hardened as it is, it starts servers.
    let app = host.clients().await;
    app.add("demo", demo()).await.unwrap();
    app.wait_for("demo", ConnectionState::Ready).await;
    let sum = app
        .call_tool("demo", "add", r#"{"a":2,"b":3}"#)
        .await
        .unwrap();
    assert!(!sum.is_error);

    // Stopped, it comes with the next app, and knows what it knew.
    host.systemctl("stop").await;
    host.systemd.until(SERVICE, "ActiveState", "inactive").await;
    assert_eq!(host.systemd.property(SERVICE, "Result").await, "success");
    let again = host.clients().await;
    again.wait_for("demo", ConnectionState::Ready).await;
    host.is_active().await;

    // An upgrade restarts it.
    let before = host.main_pid().await;
    let package = ["--install", "/srv/mcp-sidecar.deb"];
    host.systemd.done("dpkg", &package).await;
    host.is_active().await;
    assert_ne!(host.main_pid().await, before);
    host.clients()
        .await
        .wait_for("demo", ConnectionState::Ready)
        .await;

    host.systemd.done("dpkg", &["--purge", "mcp-sidecar"]).await;
    host.systemd.until(SERVICE, "ActiveState", "inactive").await;
    for left in [
        "/usr/bin/mcp-sidecard",
        "/etc/mcp-sidecar",
        "/var/lib/mcp-sidecar",
        "/run/mcp-sidecar/app.sock",
    ] {
        assert!(!host.systemd.outside(left).exists(), "{left} is left");
    }
}

#[tokio::test]
async fn d4_the_units_are_sound_and_hardened() {
    let Some(host) = Host::with("").await else {
        return;
    };
    let verify = ["verify", SERVICE, SOCKET, ADMIN_SOCKET];
    let output = host.systemd.run("systemd-analyze", &verify).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && !said.contains("mcp-sidecard"),
        "{said}"
    );
    let threshold = format!("--threshold={EXPOSURE}");
    let security = [
        "security",
        "--no-pager",
        "--offline=true",
        &threshold,
        SERVICE,
    ];
    let said = host.systemd.done("systemd-analyze", &security).await;
    assert!(
        said.contains("Overall exposure level for mcp-sidecard.service"),
        "{said}"
    );
    // Those of a user are hardly hardened, on purpose, but sound.
    let user = workspace_dir().join("systemd/user");
    for unit in [SERVICE, SOCKET, ADMIN_SOCKET] {
        copy(&user.join(unit), &host.systemd.shared().join(unit));
    }
    host.systemd
        .done(
            "install",
            &[
                "-D",
                "/usr/bin/mcp-sidecard",
                "/root/.local/bin/mcp-sidecard",
            ],
        )
        .await;
    let verify = [
        "verify",
        "--user",
        "/srv/mcp-sidecard.service",
        "/srv/mcp-sidecard.socket",
        "/srv/mcp-sidecard-admin.socket",
    ];
    let output = host.systemd.run("systemd-analyze", &verify).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("mcp-sidecard"), "{said}");
}

#[tokio::test]
async fn d4_a_daemon_that_hangs_is_restarted() {
    let Some(host) = Host::with("WatchdogSec=2\n").await else {
        return;
    };
    host.is_active().await;
    let app = host.clients().await;
    app.add("demo", demo()).await.unwrap();
    let before = host.main_pid().await;
    host.systemd.done("kill", &["-STOP", &before]).await;
    host.systemd.until(SERVICE, "NRestarts", "1").await;
    host.is_active().await;
    assert_ne!(host.main_pid().await, before);
    host.clients()
        .await
        .wait_for("demo", ConnectionState::Ready)
        .await;
}

#[tokio::test]
async fn d4_the_key_may_be_a_credential_that_only_this_machine_can_read() {
    let credential = "/etc/mcp-sidecar/vault-key.cred";
    let Some(host) = Host::with(&format!("LoadCredentialEncrypted=vault-key:{credential}\n")).await
    else {
        return;
    };
    host.systemctl("stop").await;
    let make =
        format!("head -c 32 /dev/urandom | systemd-creds encrypt --name=vault-key - {credential}");
    host.systemd.done("sh", &["-c", &make]).await;
    host.systemd
        .write(CONFIG, "[vault]\nbackend = \"credential\"\n");
    host.systemd
        .done("rm", &["-rf", "/var/lib/mcp-sidecar"])
        .await;
    host.systemctl("start").await;
    host.is_active().await;
    assert!(
        !host
            .systemd
            .outside("/var/lib/mcp-sidecar/vault.key")
            .exists()
    );
    let secret = "a-secret-that-is-planted";
    let fake = FakeMcp::echo(true).await;
    let mut spec = http_spec("S", &fake.url());
    if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
        http.headers = vec![v1::Header {
            name: "X-Api-Key".to_owned(),
            value: secret.to_owned(),
        }];
    }
    let app = host.clients().await;
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    host.systemctl("restart").await;
    let app = host.clients().await;
    app.wait_for("s", ConnectionState::Ready).await;
    let database = std::fs::read(host.systemd.outside("/var/lib/mcp-sidecar/sidecar.db")).unwrap();
    let found = database
        .windows(secret.len())
        .any(|bytes| bytes == secret.as_bytes());
    assert!(!found, "the secret is encrypted");

    // Without the credential it does not start, says why, and systemd does not try again and again.
    host.systemd.write(
        &format!("/etc/systemd/system/{SERVICE}.d/story.conf"),
        LOG_TO_FILE,
    );
    host.systemd.done("systemctl", &["daemon-reload"]).await;
    let restarted = host.systemd.run("systemctl", &["restart", SERVICE]).await;
    assert!(!restarted.status.success());
    host.systemd.until(SERVICE, "ActiveState", "failed").await;
    assert_eq!(host.systemd.property(SERVICE, "ExecMainStatus").await, "78");
    let log = std::fs::read_to_string(host.systemd.shared().join("daemon.log")).unwrap();
    assert!(log.contains("vault-key"), "{log}");
}

#[tokio::test]
async fn d4_a_restart_loses_no_update_and_no_question_and_apps_go_on_by_themselves() {
    let Some(host) = Host::with("").await else {
        return;
    };
    let fake = asking(Way::Result).await;
    let app = host.clients().await;
    app.add("s", with_forms(http_spec("S", &fake.url())))
        .await
        .unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let socket = host.systemd.outside("/run/mcp-sidecar/app.sock");
    let client = Client::builder().socket(&socket).connect().await.unwrap();
    let mut updates = client.updates();
    let call = app.detach("s", "ask", "{}").await;
    let asked = |event: &UpdateEvent, state: ElicitationState| match event {
        UpdateEvent::Elicitation(question) if question.state() == state => {
            Some(question.id.clone())
        }
        _ => None,
    };
    let id = loop {
        let update = within("the question", updates.next())
            .await
            .unwrap()
            .unwrap();
        if let Some(id) = asked(&update.event, ElicitationState::Pending) {
            break id;
        }
    };
    host.systemctl("restart").await;
    let again = host.clients().await;
    again.accept(&id, r#"{"name":"Ada"}"#).await.unwrap();
    // The stream of before the restart tells it.
    loop {
        let update = within("the end of the question", updates.next())
            .await
            .unwrap()
            .unwrap();
        if asked(&update.event, ElicitationState::Answered).as_ref() == Some(&id) {
            break;
        }
    }
    let ended = again.wait_call(&call).await;
    assert_eq!(ended.state(), CallState::Completed);
}

#[tokio::test]
async fn d4_fifty_busy_servers_are_stopped_within_the_time_out() {
    // Calls that take longer than the daemon lets them, so that it has to end them.
    let Some(host) = Host::with("").await else {
        return;
    };
    host.systemd.write(CONFIG, "[timeouts]\ndrain = \"2s\"\n");
    host.systemctl("restart").await;
    let app = host.clients().await;
    let ids: Vec<_> = (0..50).map(|n| format!("demo-{n}")).collect();
    let added = ids.iter().map(async |id| {
        let spec = ServerSpec {
            name: id.clone(),
            ..demo()
        };
        app.add(id, spec).await.unwrap();
        app.wait_for(id, ConnectionState::Ready).await;
    });
    futures_util::future::join_all(added).await;
    let begin = |id| {
        let (app, slow) = (app.clone(), app.call(id, "slow", r#"{"steps": 100}"#));
        tokio::spawn(async move { app.call_with(slow).await })
    };
    let calls: Vec<_> = ids.iter().map(|id| begin(id)).collect();
    for id in &ids {
        app.calls_in_flight(id, 1).await;
    }
    host.systemctl("stop").await;
    assert_eq!(
        host.systemd.property(SERVICE, "ActiveState").await,
        "inactive"
    );
    assert_eq!(
        host.systemd.property(SERVICE, "Result").await,
        "success",
        "nothing had to be killed"
    );
    for call in calls {
        let ended = within("the end of a call", call).await.unwrap();
        assert!(ended.is_err());
    }
    let left = host.systemd.run("pgrep", &["demo-server"]).await;
    assert_eq!(
        left.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&left.stdout)
    );
}

#[tokio::test]
async fn d4_a_reload_applies_the_configuration_and_leaves_alone_what_is_unchanged() {
    let Some(host) = Host::with("").await else {
        return;
    };
    host.is_active().await;
    let declare = |ids: &[&str]| {
        let tables = ids.iter().map(|id| {
            let program = "command = \"/usr/bin/demo-server\"\nargs = [\"stdio\"]";
            format!("[[servers]]\nid = \"{id}\"\n{program}\n")
        });
        let text: String = tables.collect();
        host.systemd.write(CONFIG, &text);
    };
    let app = host.clients().await;
    let comes = async |id: &str| {
        eventually(id, PATIENCE, async || app.get(id).await.ok()).await;
        app.wait_for(id, ConnectionState::Ready).await;
    };
    declare(&["one"]);
    host.systemctl("reload").await;
    comes("one").await;
    let process = host.systemd.done("pgrep", &["demo-server"]).await;
    let daemon = host.main_pid().await;
    declare(&["one", "two"]);
    host.systemctl("reload").await;
    comes("two").await;
    let after = host.systemd.done("pgrep", &["demo-server"]).await;
    assert!(after.lines().any(|pid| pid == process.trim()), "{after}");
    assert_eq!(host.main_pid().await, daemon);

    // A wrong file changes nothing.
    host.systemd.write(CONFIG, "[limits]\nserver = 5\n");
    host.systemctl("reload").await;
    let log = host.systemd.shared().join("daemon.log");
    eventually("the refusal in the log", PATIENCE, async || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.contains("limits.server").then_some(())
    })
    .await;
    let sum = app.call_tool("two", "add", r#"{"a":2,"b":3}"#).await;
    assert!(!sum.unwrap().is_error);

    // The operator's socket is systemd's as well.
    let socket = host.systemd.outside("/run/mcp-sidecar/admin.sock");
    let operator = Clients::connect(&socket).await;
    let mut admin = v1::admin_service_client::AdminServiceClient::new(operator.channel());
    let status = admin.get_status(v1::GetStatusRequest::default()).await;
    assert!(
        status.unwrap().into_inner().not_ready.is_empty(),
        "all are READY"
    );
}
