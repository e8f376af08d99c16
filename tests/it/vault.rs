//! Secrets at rest, from outside (case B40). The daemon uses the keyring of a desktop only if it is told to; all other
//! stories here run without one. That secrets are in no log and no answer, `headers` and `hostile` show.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use mcp_sidecar_tests::fake_keyring::{FakeKeyring, KeyringFault};
use mcp_sidecar_tests::prelude::*;

/// A server that wants this key, and the settings that have it.
async fn wanting(id: &str, key: &str) -> (FakeMcp, ServerSpec) {
    let fake = FakeMcp::echo(true).await;
    let wanted = key.to_owned();
    fake.reply("tools/call", move |seen| {
        if seen.header("x-key") == wanted {
            Reply::Default
        } else {
            Reply::Raw(403, Vec::new(), "another key".into())
        }
    });
    let spec = with_key(http_spec(id, &fake.url()), key);
    (fake, spec)
}

fn with_key(mut spec: ServerSpec, key: &str) -> ServerSpec {
    if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
        let (name, value) = ("X-Key".to_owned(), key.to_owned());
        http.headers = vec![v1::Header { name, value }];
    }
    spec
}

/// A daemon on this directory gives up, and says so in these words.
async fn refuses(dir: &Path, words: &[&str]) {
    let builder = TestDaemon::builder().env("DBUS_SESSION_BUS_ADDRESS", "");
    let (status, log) = builder.data_dir(dir).start_and_fail().await;
    assert_eq!(
        status.code(),
        Some(78),
        "trying again would not help: {log}"
    );
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
        let (_fake, spec) = wanting("S", "of-mine").await;
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

async fn works(daemon: &TestDaemon, servers: &[String]) {
    let app = daemon.clients().await;
    for id in servers {
        app.wait_for(id, ConnectionState::Ready).await;
        let called = app.call_tool(id, "echo", "{}").await;
        called.unwrap_or_else(|status| panic!("{id}: {status:?}"));
    }
}

#[tokio::test]
async fn b40_a_full_disk_keeps_the_secret_of_before() {
    let (_fake, spec) = wanting("S", "of-before").await;
    let mut daemon = TestDaemon::builder().limitable().start().await;
    let app = daemon.clients().await;
    app.add("s", spec.clone()).await.unwrap();
    let servers = ["s".to_owned()];
    works(&daemon, &servers).await;

    daemon.limit_files(Some(1));
    let changed = with_key(spec.clone(), "of-after");
    let refused = app.update("s", changed, &["http.headers"]).await;
    let facts = ErrorFacts::expect(refused, Code::Internal, "STORE_FAILED");
    assert!(!facts.message.contains("of-after"), "{facts:?}");
    works(&daemon, &servers).await;
    daemon.kill9().await;
    daemon.restart().await;
    works(&daemon, &servers).await;

    // Nor is a server half there that could not be stored, and with room everything goes on.
    let app = daemon.clients().await;
    daemon.limit_files(Some(1));
    let (_other, other) = wanting("T", "of-another").await;
    let refused = app.add("t", other.clone()).await;
    ErrorFacts::expect(refused, Code::Internal, "STORE_FAILED");
    assert_eq!(app.list().await.len(), 1);
    daemon.limit_files(None);
    app.add("t", other).await.unwrap();
    daemon.restart().await;
    works(&daemon, &["s".to_owned(), "t".to_owned()]).await;
}

#[tokio::test]
async fn the_key_can_be_changed_and_the_old_one_is_worth_nothing_then() {
    let (_fake, spec) = wanting("S", "of-mine").await;
    let mut daemon = TestDaemon::start().await;
    daemon.clients().await.add("s", spec).await.unwrap();
    let key = daemon.data_dir().join("vault.key");
    daemon.terminate().await;
    let old = std::fs::read(&key).unwrap();
    let (status, log) = daemon.run(&["rotate-key"]).await;
    assert!(status.success(), "{log}");
    assert!(
        log.contains("1 entries are encrypted") && log.contains("back it up"),
        "{log}"
    );
    let new = std::fs::read(&key).unwrap();
    assert_ne!(new, old);
    let servers = ["s".to_owned()];
    daemon.restart().await;
    works(&daemon, &servers).await;

    daemon.terminate().await;
    let dir = daemon.data_dir().to_owned();
    std::fs::write(&key, &old).unwrap();
    refuses(&dir, &["not the one", "nothing was changed"]).await;
    std::fs::write(&key, &new).unwrap();
    daemon.restart().await;

    // Not while a daemon runs.
    let builder = TestDaemon::builder().data_dir(&dir);
    let other = builder.run(&["rotate-key"]).await;
    assert!(!other.0.success());
    assert!(other.1.contains("is in use by the daemon"), "{}", other.1);
    works(&daemon, &servers).await;
}

#[tokio::test]
async fn a_key_of_the_service_manager_is_required_if_the_operator_says_so() {
    let (_fake, spec) = wanting("S", "of-mine").await;
    let mut daemon = TestDaemon::start().await;
    daemon.clients().await.add("s", spec).await.unwrap();
    daemon.terminate().await;
    let dir = daemon.data_dir().to_owned();
    let credentials = tempfile::tempdir().unwrap();
    let passed = credentials.path().join("vault-key");
    let builder = || {
        TestDaemon::builder()
            .set("vault.backend", "credential")
            .env(
                "CREDENTIALS_DIRECTORY",
                credentials.path().to_str().unwrap(),
            )
            .data_dir(&dir)
    };
    let (status, log) = builder().start_and_fail().await;
    assert_eq!(status.code(), Some(78), "{log}");
    assert!(log.contains("LoadCredentialEncrypted=vault-key:"), "{log}");

    // From a key file to a credential.
    let old = dir.join("vault.key");
    let new = credentials.path().join("new");
    std::fs::write(&new, "5a".repeat(32)).unwrap();
    mode(&new, 0o600);
    let (old, new) = (old.to_str().unwrap(), new.to_str().unwrap());
    let arguments = ["rotate-key", "--old-key", old, "--new-key", new];
    let (status, log) = builder().run(&arguments).await;
    assert!(status.success(), "{log}");
    std::fs::copy(old, &passed).unwrap();
    let (status, log) = builder().start_and_fail().await;
    assert_eq!(status.code(), Some(78), "{log}");
    std::fs::remove_file(&passed).unwrap();
    std::fs::rename(new, &passed).unwrap();
    // As systemd passes it.
    mode(&passed, 0o440);
    let daemon = builder().start().await;
    works(&daemon, &["s".to_owned()]).await;
}

#[tokio::test]
async fn a_change_of_the_key_that_is_killed_costs_nothing() {
    const SERVERS: usize = 40;
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let (fake, spec) = wanting("s-0", "of-mine").await;
    let mut servers = Vec::new();
    for n in 0..SERVERS {
        let id = format!("s-{n}");
        let spec = ServerSpec {
            name: id.clone(),
            ..with_key(http_spec(&id, &format!("{}?{n}", fake.url())), "of-mine")
        };
        let request = v1::AddServerRequest {
            server_id: id.clone(),
            spec: Some(spec),
            wait_timeout: Some(millis(0)),
            ..Default::default()
        };
        app.add_with(request).await.unwrap();
        servers.push(id);
    }
    drop((app, spec));
    daemon.terminate().await;
    let key = daemon.data_dir().join("vault.key");
    let staged = daemon.data_dir().join("vault.key.new");
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..60_u32 {
        let before = std::fs::read(&key).unwrap();
        // What an earlier one left: it is not this one's.
        let _absent = std::fs::remove_file(&staged);
        let mut rotation = daemon.command(&["rotate-key"]).await;
        let begun = async {
            while !staged.exists() && rotation.ended().is_none() {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        };
        within("the new key, or the end", begun).await;
        // The moment is what this is about: as soon as the new key is there, and later.
        tokio::time::sleep(Duration::from_millis((round % 10).into())).await;
        rotation.signal(rustix::process::Signal::KILL);
        rotation.wait(PATIENCE).await.expect("an end");
        let left = staged.exists();
        daemon.restart().await;
        works(&daemon, &servers[..3]).await;
        let app = daemon.clients().await;
        for server in app.list().await {
            let (reason, message) = server.failure();
            assert_ne!(reason, "STORE_FAILED", "round {round}: {message}");
        }
        daemon.terminate().await;
        seen.insert((left, std::fs::read(&key).unwrap() != before));
        // Not yet committed, and behind the commit; between it and the end is hard to meet, and the store's own tests do.
        if round >= 10 && seen.contains(&(true, false)) && seen.iter().any(|(_, changed)| *changed)
        {
            break;
        }
    }
    println!("(key left beside, key changed): {seen:?}");
    assert!(seen.len() > 1, "every round went the same way: {seen:?}");
}

#[tokio::test]
async fn b40_a_keyring_is_used_only_if_it_keeps_what_it_is_given() {
    let keyring = FakeKeyring::start();
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let on = |address: &str| {
        TestDaemon::builder()
            .set("vault.backend", "keyring")
            .env("DBUS_SESSION_BUS_ADDRESS", address)
            .env("XDG_RUNTIME_DIR", "/nonexistent")
            .data_dir(&dir)
    };
    let fails = async |fault: KeyringFault, code: i32, words: &str| {
        keyring.fault(fault);
        let (status, log) = on(&keyring.address()).start_and_fail().await;
        assert_eq!(status.code(), Some(code), "{fault:?}: {log}");
        for word in [words, "key_file"] {
            assert!(log.contains(word), "{fault:?}: {log}");
        }
    };
    // No bus, nobody on it, and a keyring that takes everything and returns nothing.
    for address in ["", "unix:path=/nonexistent/bus"] {
        let (status, log) = on(address).start_and_fail().await;
        assert_eq!(status.code(), Some(1), "it may be there later: {log}");
        assert!(
            log.contains("no session bus") && log.contains("key_file"),
            "{log}"
        );
    }
    fails(KeyringFault::Forgets, 78, "does not return them").await;
    fails(KeyringFault::Locked, 1, "was not unlocked").await;
    assert!(keyring.kept("vault-key").is_empty());

    keyring.fault(KeyringFault::None);
    let (_fake, spec) = wanting("S", "of-mine").await;
    let mut daemon = on(&keyring.address()).start().await;
    daemon.clients().await.add("s", spec).await.unwrap();
    let servers = ["s".to_owned()];
    works(&daemon, &servers).await;
    let key = keyring.kept("vault-key");
    assert_eq!(key.len(), 1);
    assert!(keyring.kept("probe").is_empty());
    assert!(!dir.join("vault.key").exists());
    daemon.restart().await;
    works(&daemon, &servers).await;
    let shown = String::from_utf8(key[0].clone()).unwrap();
    assert!(!daemon.log().contains(&shown));
    daemon.terminate().await;

    let (status, log) = daemon.run(&["rotate-key"]).await;
    assert!(status.success(), "{log}");
    let new = keyring.kept("vault-key");
    assert_eq!(new.len(), 1);
    assert_ne!(new, key);
    daemon.restart().await;
    works(&daemon, &servers).await;
    daemon.terminate().await;

    // The key of before does not open anything, nor does it cost anything.
    keyring.replace("vault-key", &key[0]);
    let (status, log) = on(&keyring.address()).start_and_fail().await;
    assert_eq!(status.code(), Some(78), "{log}");
    assert!(log.contains("not the one"), "{log}");
    keyring.replace("vault-key", &new[0]);
    daemon.restart().await;
    works(&daemon, &servers).await;
}
