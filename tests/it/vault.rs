//! Secrets at rest, from outside (case B40). The daemon uses no secret service of a desktop, so there is none to be missing:
//! every story here runs without one. That a full disk loses nothing older, the store's own tests show; that secrets are in
//! no log and no answer, `headers` and `hostile` do.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use mcp_sidecar_tests::prelude::*;

/// A server that wants a secret header.
async fn wanting() -> (FakeMcp, ServerSpec) {
    let fake = FakeMcp::echo(true).await;
    fake.reply("tools/call", |seen| match seen.header("x-key") {
        "of-mine" => Reply::Default,
        _ => Reply::Raw(403, Vec::new(), "no key".into()),
    });
    let mut spec = http_spec("S", &fake.url());
    if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
        let (name, value) = ("X-Key".to_owned(), "of-mine".to_owned());
        http.headers.push(v1::Header { name, value });
    }
    (fake, spec)
}

/// A daemon on this directory gives up, and says so in these words.
async fn refuses(dir: &Path, words: &[&str]) {
    let builder = TestDaemon::builder().env("DBUS_SESSION_BUS_ADDRESS", "");
    let (status, log) = builder.data_dir(dir).start_and_fail().await;
    assert!(!status.success());
    for word in words {
        assert!(log.contains(word), "`{word}` in {log}");
    }
    assert!(!log.contains("of-mine"), "{log}");
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn b40_secrets_are_kept_privately_or_not_at_all_and_never_lost() {
    one_and_two(async |mut stage| {
        let (_fake, spec) = wanting().await;
        stage.add("s", spec).await;
        stage.daemon.terminate().await;
        let dir = stage.daemon.data_dir().to_owned();
        let key = dir.join("vault.key");
        let right = std::fs::read(&key).unwrap();
        let database = |dir: &Path| {
            let mut sizes: Vec<_> = std::fs::read_dir(dir)
                .unwrap()
                .map(|entry| entry.unwrap())
                .map(|entry| (entry.file_name(), entry.metadata().unwrap().len()))
                .filter(|(name, _)| name.to_string_lossy().contains(".db"))
                .collect();
            sizes.sort();
            sizes
        };
        let before = database(&dir);

        mode(&dir, 0o755);
        refuses(&dir, &["0755", "chmod 700"]).await;
        mode(&dir, 0o700);
        mode(&key, 0o644);
        refuses(&dir, &["0644", "vault.key"]).await;
        mode(&key, 0o600);
        // Only root can give a directory away.
        if rustix::process::geteuid().is_root() {
            chown(&dir, Some(65_534), None).unwrap();
            refuses(&dir, &["belongs to uid 65534", "chown"]).await;
            chown(&dir, Some(0), None).unwrap();
        }
        std::fs::write(&key, [7; 32]).unwrap();
        refuses(&dir, &["not the one", "nothing was changed"]).await;
        std::fs::remove_file(&key).unwrap();
        refuses(&dir, &["missing", "nothing was changed"]).await;
        assert_eq!(database(&dir), before, "the ciphertext stays");

        std::fs::write(&key, right).unwrap();
        mode(&key, 0o600);
        stage.restart().await;
        for app in &stage.apps {
            app.wait_for("s", ConnectionState::Ready).await;
            app.call_tool("s", "echo", "{}").await.unwrap();
        }
    })
    .await;
}
