//! Another key in place of the one in use, and whether secrets can be kept at all.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::super::rotate::{Step, rotate};
use super::*;
use crate::model::spec::Abilities;

const OLD_SESSION: &str = "session-of-before";

fn key_file(config: &StoreConfig) -> PathBuf {
    config.data_dir.join("vault.key")
}

fn session() -> Session {
    Session {
        id: Secret::new(OLD_SESSION.to_owned()),
        version: "2025-11-25".to_owned(),
        hello: "{}".to_owned(),
        told: Some(Abilities::NOTHING),
    }
}

/// Three servers with a secret each, and a session.
async fn filled(root: &TempDir) -> StoreConfig {
    let config = config(root);
    let (store, _) = open(&config);
    for id in ["a", "b", "c"] {
        let put = store.put_server(record(id), ServerStatus::default());
        put.await.unwrap();
    }
    store.set_session(key("a"), Some(session())).await.unwrap();
    store.close().await.unwrap();
    config
}

fn everything_opens(config: &StoreConfig) {
    let (_store, records) = open(config);
    let mut a = record("a");
    a.session = Some(session());
    assert_eq!(records, [a, record("b"), record("c")]);
}

fn blobs(dir: &Path) -> Vec<Vec<u8>> {
    let connection = raw(dir);
    let sql = "SELECT sealed FROM servers UNION ALL SELECT sealed FROM sessions
               UNION ALL SELECT value FROM meta WHERE key = 'key_check'";
    let mut statement = connection.prepare(sql).unwrap();
    let blobs = statement.query_map([], |row| row.get(0)).unwrap();
    blobs.collect::<Result<_, _>>().unwrap()
}

fn put_key(path: &Path, byte: u8) {
    std::fs::write(path, [byte; 32]).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

#[tokio::test]
async fn everything_is_sealed_with_another_key_and_nothing_is_left_of_the_old() {
    let root = TempDir::new().unwrap();
    let config = filled(&root).await;
    let before = blobs(&config.data_dir);
    let old = std::fs::read(key_file(&config)).unwrap();
    let rotated = rotate_key(&config, &Keys::default()).unwrap();
    let expected = Rotated {
        resealed: 4,
        left: 0,
        key: key_file(&config).display().to_string(),
        in_place: true,
        remains: None,
    };
    assert_eq!(rotated, expected);
    assert_ne!(std::fs::read(key_file(&config)).unwrap(), old);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&config.data_dir).unwrap() {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        for blob in &before {
            let tail = &blob[blob.len() - 16..];
            assert!(!bytes.windows(16).any(|part| part == tail), "{entry:?}");
        }
        names.push(entry.file_name().into_string().unwrap());
    }
    assert!(!names.contains(&"vault.key.new".to_owned()), "{names:?}");
    everything_opens(&config);

    std::fs::write(key_file(&config), old).unwrap();
    let wrong = Store::open(config.clone()).err().unwrap();
    assert!(wrong.message().contains("not the one"), "{wrong}");
}

#[tokio::test]
async fn a_rotation_that_is_killed_at_any_step_costs_nothing() {
    let root = TempDir::new().unwrap();
    let config = filled(&root).await;
    let mut killed = Vec::new();
    rotate(&config, &Keys::default(), &mut |step| {
        let copy = root.path().join(format!("{step:?}"));
        killed.push((step, copy_files(&config.data_dir, &copy)));
    })
    .unwrap();
    let steps: Vec<_> = killed.iter().map(|(step, _)| *step).collect();
    assert_eq!(
        steps,
        [
            Step::Staged,
            Step::Resealed,
            Step::Committed,
            Step::Promoted
        ]
    );
    let new = std::fs::read(key_file(&config)).unwrap();
    for (step, copy) in killed {
        let was = std::fs::read(key_file(&copy)).unwrap();
        everything_opens(&copy);
        let now = std::fs::read(key_file(&copy)).unwrap();
        let committed = matches!(step, Step::Committed | Step::Promoted);
        assert_eq!(now == new, committed, "{step:?}");
        assert_eq!(was == now, step != Step::Committed, "{step:?}");
        // It can be done again, whatever the other left.
        rotate_key(&copy, &Keys::default()).unwrap();
        everything_opens(&copy);
        assert_ne!(std::fs::read(key_file(&copy)).unwrap(), now, "{step:?}");
    }
}

#[tokio::test]
async fn keys_of_the_service_manager_are_given_and_left_alone() {
    let root = TempDir::new().unwrap();
    let config = filled(&root).await;
    let (old, new) = (root.path().join("old"), root.path().join("new"));
    std::fs::rename(key_file(&config), &old).unwrap();
    put_key(&new, 7);
    let keys = Keys {
        old: Some(old.clone()),
        new: Some(new.clone()),
    };
    let before = std::fs::read(&old).unwrap();
    let rotated = rotate_key(&config, &keys).unwrap();
    assert_eq!(
        (rotated.resealed, rotated.in_place, rotated.key),
        (4, false, new.display().to_string())
    );
    assert_eq!(std::fs::read(&old).unwrap(), before);
    assert!(!key_file(&config).exists());
    let again = rotate_key(&config, &keys).unwrap_err();
    assert!(again.message().contains("not the one"), "{again}");

    let credentials = root.path().join("credentials");
    std::fs::create_dir(&credentials).unwrap();
    std::fs::rename(&new, credentials.join("vault-key")).unwrap();
    let config = StoreConfig {
        key_backend: KeyBackend::Credential,
        credentials_dir: Some(credentials.clone()),
        ..config
    };
    everything_opens(&config);
    let refused = rotate_key(&config, &Keys::default()).unwrap_err();
    assert!(refused.message().contains("--new-key"), "{refused}");
    let same = Keys {
        new: Some(credentials.join("vault-key")),
        old: None,
    };
    let refused = rotate_key(&config, &same).unwrap_err();
    assert!(refused.message().contains("the one in use"), "{refused}");
    everything_opens(&config);
}

#[tokio::test]
async fn a_rotation_that_cannot_begin_changes_nothing() {
    let root = TempDir::new().unwrap();
    let config = filled(&root).await;
    let before = blobs(&config.data_dir);
    let key_before = std::fs::read(key_file(&config)).unwrap();
    let refuses = |keys: &Keys, words: &str| {
        let refused = rotate_key(&config, keys).unwrap_err();
        assert_eq!(refused.reason(), Reason::StoreFailed);
        assert!(refused.message().contains(words), "{refused}");
    };
    let given = root.path().join("given");
    let new = Keys {
        new: Some(given.clone()),
        old: None,
    };
    refuses(&new, "no key file");
    put_key(&given, 1);
    std::fs::set_permissions(&given, PermissionsExt::from_mode(0o644)).unwrap();
    refuses(&new, "chmod 600");
    std::fs::write(&given, "short").unwrap();
    std::fs::set_permissions(&given, PermissionsExt::from_mode(0o600)).unwrap();
    refuses(&new, "does not hold a key");
    let (store, _) = open(&config);
    refuses(&Keys::default(), "in use by the daemon");
    store.close().await.unwrap();
    put_key(&key_file(&config), 9);
    refuses(&Keys::default(), "not the one");
    std::fs::write(key_file(&config), &key_before).unwrap();
    assert_eq!(blobs(&config.data_dir), before);
    everything_opens(&config);

    let nowhere = StoreConfig::new(root.path().join("nowhere"));
    let refused = rotate_key(&nowhere, &Keys::default()).unwrap_err();
    assert!(refused.message().contains("no database"), "{refused}");
    assert!(!nowhere.data_dir.exists());
}

#[tokio::test]
async fn a_blob_that_does_not_open_is_left_as_it_is() {
    let root = TempDir::new().unwrap();
    let config = filled(&root).await;
    let moved =
        "UPDATE servers SET sealed = (SELECT sealed FROM servers WHERE id = 'a') WHERE id = 'b'";
    raw(&config.data_dir).execute_batch(moved).unwrap();
    let before = blobs(&config.data_dir);
    let rotated = rotate_key(&config, &Keys::default()).unwrap();
    assert_eq!((rotated.resealed, rotated.left), (3, 1));
    let after = blobs(&config.data_dir);
    let same: Vec<_> = before.iter().zip(&after).map(|(a, b)| a == b).collect();
    assert_eq!(same, [false, true, false, false, false]);
    let (_store, records) = open(&config);
    assert_eq!(records.last(), Some(&record("c")));
}

#[tokio::test]
async fn whether_secrets_can_be_kept_is_found_out_beforehand() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let (store, _) = open(&config);
    let head = *store.head().borrow();
    let all = (0..20).map(|_| store.check_vault());
    for checked in futures_util::future::join_all(all).await {
        checked.unwrap();
    }
    assert_eq!(*store.head().borrow(), head, "apps hear nothing of it");
    let probes = || -> i64 {
        let sql = "SELECT count(*) FROM meta WHERE key LIKE 'probe%'";
        raw(&config.data_dir)
            .query_row(sql, [], |row| row.get(0))
            .unwrap()
    };
    assert_eq!(probes(), 0);

    // A medium that takes what is written and returns nothing, or something else.
    for (trouble, words) in [
        ("DELETE FROM meta WHERE key = NEW.key", "is not there"),
        (
            "UPDATE meta SET value = x'00' WHERE key = NEW.key",
            "is not as it was",
        ),
    ] {
        let forgetful = format!(
            "CREATE TRIGGER forgetful AFTER INSERT ON meta WHEN NEW.key LIKE 'probe%' BEGIN {trouble}; END"
        );
        raw(&config.data_dir).execute_batch(&forgetful).unwrap();
        let refused = store.check_vault().await.unwrap_err();
        assert_eq!(refused.reason(), Reason::StoreFailed);
        assert!(refused.message().contains(words), "{refused}");
        raw(&config.data_dir)
            .execute_batch("DROP TRIGGER forgetful")
            .unwrap();
    }
    store.check_vault().await.unwrap();
    assert_eq!(probes(), 0);

    let read_only = store.0.writes.write(Durability::Lazy, move |changes| {
        let sql = "PRAGMA query_only = 1";
        Ok(changes.connection.execute_batch(sql)?)
    });
    read_only.await.unwrap();
    let refused = store.check_vault().await.unwrap_err();
    assert!(refused.message().contains("cannot be written"), "{refused}");
    store.close().await.unwrap_err();
    assert!(store.check_vault().await.is_err());
}

#[tokio::test]
async fn a_start_whose_medium_forgets_is_refused() {
    let root = TempDir::new().unwrap();
    let config = filled(&root).await;
    let forgetful = "CREATE TRIGGER forgetful AFTER INSERT ON meta WHEN NEW.key LIKE 'probe%'
                     BEGIN DELETE FROM meta WHERE key = NEW.key; END";
    raw(&config.data_dir).execute_batch(forgetful).unwrap();
    let refused = Store::open(config.clone()).err().unwrap();
    assert!(refused.message().contains("does not keep"), "{refused}");
    assert!(
        refused
            .facts()
            .contains(&("vault".into(), "not_kept".to_owned()))
    );
    raw(&config.data_dir)
        .execute_batch("DROP TRIGGER forgetful")
        .unwrap();
    everything_opens(&config);
}

#[tokio::test]
async fn a_full_disk_keeps_the_secret_of_before_and_its_key() {
    let root = TempDir::new().unwrap();
    let config = filled(&root).await;
    let (store, _) = open(&config);
    let limit = |pages: u32| {
        store.0.writes.write(Durability::Lazy, move |changes| {
            let sql = format!("PRAGMA max_page_count = {pages}");
            Ok(changes.connection.query_row(&sql, [], |_| Ok(()))?)
        })
    };
    limit(1).await.unwrap();
    let mut changed = record("a");
    if let TransportSpec::Http(http) = &mut changed.spec.transport {
        http.headers[0].value = Secret::new("new".repeat(100_000));
    }
    let full = store.put_server(changed, ServerStatus::default()).await;
    assert!(full.unwrap_err().message().contains("the disk is full"));
    limit(1 << 20).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    everything_opens(&config);
}
