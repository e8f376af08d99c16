//! Grants, registered clients and sign-ins: sealed for their rows, gone with their servers, one end each.

use super::*;
use crate::base::SignInId;
use crate::model::auth::{
    AuthServer, Client, ClientAuth, Grant, Registration, Scopes, SignIn, SignInState, Terms,
};

const TOKEN: &str = "planted-access-token";
const REFRESH: &str = "planted-refresh-token";
const VERIFIER: &str = "planted-code-verifier";
const CLIENT_SECRET: &str = "planted-client-secret";

fn secret(text: &str) -> Secret<String> {
    Secret::new(text.to_owned())
}

fn client() -> Client {
    Client {
        issuer: "https://as.example".to_owned(),
        client_id: "us".to_owned(),
        auth: ClientAuth::Basic,
        secret: Some(secret(CLIENT_SECRET)),
        private_key: None,
        algorithm: None,
    }
}

fn terms() -> Terms {
    Terms {
        server: AuthServer {
            issuer: "https://as.example".to_owned(),
            ..AuthServer::default()
        },
        client: client(),
        resource: "https://example.com/mcp".to_owned(),
        scopes: Scopes::parse("a b"),
    }
}

fn grant(generation: u64) -> Grant {
    Grant {
        generation,
        terms: terms(),
        scopes: Scopes::parse("a"),
        bound: false,
        expires: Some(Timestamp(9)),
        subject: None,
        renewed: Timestamp(1),
        access_token: secret(TOKEN),
        refresh_token: Some(secret(REFRESH)),
        dpop_key: None,
    }
}

fn registration() -> Registration {
    Registration {
        client: client(),
        redirect_uris: vec!["http://127.0.0.1:1/cb".to_owned()],
        scopes: Scopes::default(),
        secret_expires: None,
        created: Timestamp(1),
    }
}

fn sign_in(id: &str, server: &str, expires: Timestamp) -> SignIn {
    SignIn {
        id: SignInId::new(id),
        key: key(server),
        state: SignInState::Pending,
        auth_url: "https://as.example/authorize?state=x".to_owned(),
        terms: terms(),
        redirect_uri: "http://127.0.0.1:1/cb".to_owned(),
        created: Timestamp(1),
        expires,
        failure: None,
        nonce: secret("planted-state"),
        verifier: secret(VERIFIER),
        dpop_key: None,
    }
}

fn later() -> Timestamp {
    crate::base::Clock.wall().plus(Duration::from_hours(1))
}

/// A store with the server `a` and everything of authorization there is.
async fn filled(config: &StoreConfig) -> Store {
    let (store, _) = open(config);
    let put = store.put_server(record("a"), ServerStatus::default());
    put.await.unwrap();
    assert!(store.put_grant(key("a"), grant(7), None).await.unwrap());
    let put = store.put_registration(key("a"), registration());
    put.await.unwrap();
    store.put_sign_in(sign_in("s", "a", later())).await.unwrap();
    store
}

#[tokio::test]
async fn it_survives_a_restart_and_nothing_of_it_is_readable() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let store = filled(&config).await;
    let written = store.authorizations().await.unwrap();
    store.close().await.unwrap();
    let (store, _) = open(&config);
    let all = store.authorizations().await.unwrap();
    assert_eq!(all.grants, [(key("a"), grant(7))]);
    assert_eq!(all.registrations, [(key("a"), registration())]);
    assert_eq!(all.sign_ins, written.sign_ins);
    assert_eq!(all.sign_ins[0].verifier, secret(VERIFIER));
    for entry in std::fs::read_dir(&config.data_dir).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        for planted in [TOKEN, REFRESH, VERIFIER, CLIENT_SECRET, "planted-state"] {
            assert!(!text.contains(planted), "{planted}");
        }
    }
}

#[tokio::test]
async fn a_grant_is_stored_over_the_one_that_it_replaces_only() {
    let root = TempDir::new().unwrap();
    let store = filled(&config(&root)).await;
    assert!(!store.put_grant(key("a"), grant(9), None).await.unwrap());
    assert!(!store.put_grant(key("a"), grant(9), Some(6)).await.unwrap());
    assert!(store.put_grant(key("a"), grant(9), Some(7)).await.unwrap());
    assert!(!store.forget_grant(key("a"), 7).await.unwrap());
    assert!(!store.put_grant(key("b"), grant(9), None).await.unwrap());
    assert!(store.forget_grant(key("a"), 9).await.unwrap());
    assert!(store.authorizations().await.unwrap().grants.is_empty());
}

#[tokio::test]
async fn a_sign_in_ends_once_and_takes_the_others_along() {
    let root = TempDir::new().unwrap();
    let store = filled(&config(&root)).await;
    let other = sign_in("t", "a", later());
    store.put_sign_in(other.clone()).await.unwrap();
    let mut done = sign_in("s", "a", later());
    done.state = SignInState::Redeeming;
    let pending = SignInState::Pending;
    assert!(store.step_sign_in(done.clone(), pending).await.unwrap());
    assert!(!store.step_sign_in(done.clone(), pending).await.unwrap());
    done.state = SignInState::Succeeded;
    let superseded = SignIn {
        state: SignInState::Superseded,
        ..other
    };
    // A grant that came meanwhile: nothing of it happens.
    let finish = store.finish_sign_in(done.clone(), grant(9), None, vec![superseded.clone()]);
    assert!(!finish.await.unwrap());
    let finish = store.finish_sign_in(done, grant(9), Some(7), vec![superseded]);
    assert!(finish.await.unwrap());
    let all = store.authorizations().await.unwrap();
    assert_eq!(all.grants, [(key("a"), grant(9))]);
    let states: Vec<_> = all.sign_ins.iter().map(|it| it.state).collect();
    assert_eq!(states, [SignInState::Succeeded, SignInState::Superseded]);
    assert!(all.sign_ins.iter().all(|it| it.verifier.is_empty()));
}

#[tokio::test]
async fn a_sign_in_that_has_ended_brings_no_grant() {
    type End = fn(&mut ServerRecord);
    let ends: [Option<End>; 2] = [
        None,
        Some(|record| {
            if let TransportSpec::Http(http) = &mut record.spec.transport {
                http.url = "https://elsewhere.example/mcp".parse().unwrap();
            }
        }),
    ];
    for end in ends {
        let root = TempDir::new().unwrap();
        let store = filled(&config(&root)).await;
        assert!(store.forget_grant(key("a"), 7).await.unwrap());
        let mut done = sign_in("s", "a", later());
        done.state = SignInState::Redeeming;
        let step = store.step_sign_in(done.clone(), SignInState::Pending);
        assert!(step.await.unwrap());
        match end {
            None => {
                let mut cancelled = done.clone();
                cancelled.state = SignInState::Cancelled;
                store.end_sign_in(cancelled).await.unwrap();
            }
            Some(change) => {
                let mut record = record("a");
                change(&mut record);
                let put = store.put_server(record, ServerStatus::default());
                put.await.unwrap();
            }
        }
        done.state = SignInState::Succeeded;
        let finish = store.finish_sign_in(done, grant(9), None, Vec::new());
        assert!(!finish.await.unwrap());
        assert!(store.authorizations().await.unwrap().grants.is_empty());
    }
}

#[tokio::test]
async fn a_grant_is_that_of_the_server_which_its_sign_in_belongs_to_now() {
    let root = TempDir::new().unwrap();
    let store = filled(&config(&root)).await;
    let mut done = sign_in("s", "a", later());
    done.state = SignInState::Redeeming;
    let step = store.step_sign_in(done.clone(), SignInState::Pending);
    assert!(step.await.unwrap());
    let mut renamed = record("a");
    renamed.key = key("z");
    let rename = store.rename_server(key("a"), renamed, ServerStatus::default());
    rename.await.unwrap();
    done.state = SignInState::Succeeded;
    let finish = store.finish_sign_in(done, grant(9), Some(7), Vec::new());
    assert!(finish.await.unwrap());
    let all = store.authorizations().await.unwrap();
    assert_eq!(all.grants, [(key("z"), grant(9))]);
}

#[tokio::test]
async fn what_was_being_redeemed_or_is_too_old_ends_with_a_restart() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let store = filled(&config).await;
    let mut redeemed = sign_in("s", "a", later());
    redeemed.state = SignInState::Redeeming;
    let step = store.step_sign_in(redeemed, SignInState::Pending);
    step.await.unwrap();
    let put = store.put_sign_in(sign_in("t", "a", crate::base::Clock.wall()));
    put.await.unwrap();
    store.put_sign_in(sign_in("u", "a", later())).await.unwrap();
    drop(store);
    let (store, _) = open(&config);
    let all = store.authorizations().await.unwrap();
    let states: Vec<_> = all
        .sign_ins
        .iter()
        .map(|it| (it.id.as_str(), it.state))
        .collect();
    assert_eq!(
        states,
        [
            ("s", SignInState::Failed),
            ("t", SignInState::Expired),
            ("u", SignInState::Pending)
        ]
    );
    assert!(all.sign_ins[0].failure.is_some());
}

#[tokio::test]
async fn it_goes_along_with_another_id_and_away_with_the_server() {
    let root = TempDir::new().unwrap();
    let store = filled(&config(&root)).await;
    let mut renamed = record("a");
    renamed.key = key("z");
    let rename = store.rename_server(key("a"), renamed, ServerStatus::default());
    rename.await.unwrap();
    let all = store.authorizations().await.unwrap();
    assert_eq!(all.grants, [(key("z"), grant(7))]);
    assert_eq!(all.registrations, [(key("z"), registration())]);
    assert_eq!(all.sign_ins[0].key, key("z"));
    assert_eq!(all.sign_ins[0].verifier, secret(VERIFIER));
    assert!(all.unreadable.is_empty());
    store.remove_server(key("z")).await.unwrap();
    let all = store.authorizations().await.unwrap();
    assert!(all.grants.is_empty() && all.registrations.is_empty() && all.sign_ins.is_empty());
}

#[tokio::test]
async fn other_settings_forget_what_was_granted_in_the_same_instant() {
    type Change = fn(&mut ServerRecord);
    let changes: [(Change, bool); 3] = [
        (
            |record| record.spec.auth.issuer = Some("https://other.example".to_owned()),
            true,
        ),
        (
            |record| {
                if let TransportSpec::Http(http) = &mut record.spec.transport {
                    http.url = "https://elsewhere.example/mcp".parse().unwrap();
                }
            },
            true,
        ),
        (|record| record.spec.check_results = true, false),
    ];
    for (change, forgets) in changes {
        for another_id in [false, true] {
            let root = TempDir::new().unwrap();
            let store = filled(&config(&root)).await;
            let mut record = record("a");
            change(&mut record);
            let status = ServerStatus::default();
            if another_id {
                record.key = key("z");
                store.rename_server(key("a"), record, status).await.unwrap();
            } else {
                store.put_server(record, status).await.unwrap();
            }
            let all = store.authorizations().await.unwrap();
            assert_eq!(all.grants.is_empty(), forgets);
            assert_eq!(all.sign_ins.is_empty(), forgets);
            assert_eq!(all.registrations.len(), 1);
        }
    }
}

#[tokio::test]
async fn a_row_that_does_not_open_is_reported_left_alone_and_can_be_replaced() {
    let root = TempDir::new().unwrap();
    let config = config(&root);
    let store = filled(&config).await;
    store.close().await.unwrap();
    // Copied to another server, where it must not open.
    raw(&config.data_dir)
        .execute_batch(
            "UPDATE grants SET sealed = (SELECT sealed FROM registrations);
             UPDATE registrations SET sealed = zeroblob(40)",
        )
        .unwrap();
    let (store, _) = open(&config);
    let all = store.authorizations().await.unwrap();
    assert_eq!(all.unreadable, [key("a"), key("a")]);
    assert_eq!(all.unreadable_grants, [(key("a"), 7)]);
    assert!(all.grants.is_empty());
    assert!(!store.put_grant(key("a"), grant(9), None).await.unwrap());
    assert!(store.put_grant(key("a"), grant(9), Some(7)).await.unwrap());
}
