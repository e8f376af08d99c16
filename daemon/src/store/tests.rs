//! The store as a whole. Helpers are here, tests in the modules.

mod authorization;
mod changes;
mod rotation;
mod survival;

use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::base::{ElicitationId, Secret, ServerId, Timestamp};
use crate::model::call::QuestionLimits;
use crate::model::question::{Mode, Question, QuestionState};
use crate::model::rules::ToolRules;
use crate::model::spec::{
    HttpMode, HttpSpec, NamedSecret, QuestionPolicy, RetryPolicy, ServerSpec, Timeouts,
    TransportSpec,
};
use crate::model::status::{ConnectionState, Era, Session};
use crate::model::update::Kind;

const LIMITS: QuestionLimits = QuestionLimits {
    per_server: 1000,
    bytes: 64 << 20,
};
const SECRET: &str = "Bearer correct-horse-battery-staple";

/// A fresh private directory with a store in it.
fn config(root: &TempDir) -> StoreConfig {
    StoreConfig {
        credentials_dir: None,
        ..StoreConfig::new(root.path().join("data"))
    }
}

/// A key in the default namespace.
fn key(id: &str) -> ServerKey {
    ServerKey::new(Namespace::default(), ServerId::new(id))
}

/// A server with one secret header.
fn record(id: &str) -> ServerRecord {
    let http = HttpSpec {
        mode: HttpMode::Auto,
        certificate: None,
        url: "https://example.com/mcp".parse().unwrap(),
        headers: vec![NamedSecret {
            name: "authorization".to_owned(),
            value: Secret::new(SECRET.to_owned()),
        }],
    };
    ServerRecord {
        key: key(id),
        generated_id: false,
        declared: false,
        spec: ServerSpec {
            name: id.to_uppercase(),
            transport: TransportSpec::Http(http),
            protocol_version: None,
            capabilities: None,
            questions: QuestionPolicy::default(),
            roots: Vec::new(),
            isolation: crate::model::spec::Isolation::default(),
            log_level: None,
            retry: RetryPolicy::default(),
            timeouts: Timeouts::default(),
            tools: ToolRules::default(),
            approval: crate::model::approval::Approval::default(),
            check_results: false,
            auth: crate::model::auth::AuthSpec::default(),
        },
        connect: true,
        generation: 1,
        created: Timestamp(1_000),
        updated: Timestamp(2_000),
        verdict: None,
        session: None,
    }
}

fn status(state: ConnectionState) -> ServerStatus {
    ServerStatus {
        state,
        ..ServerStatus::default()
    }
}

fn question(id: &str) -> Question {
    Question {
        id: ElicitationId::generate(),
        server: key(id),
        server_name: id.to_uppercase(),
        call_id: None,
        mode: Mode::Form,
        message: "Which branch?".to_owned(),
        requested_schema: Some("{}".to_owned()),
        url: None,
        state: QuestionState::Pending,
        created: Timestamp(1),
        expires: Timestamp(2),
        resolved: None,
        request: "{\"a\": 1.10}".to_owned(),
        server_elicitation_id: None,
        completed: None,
    }
}

fn open(config: &StoreConfig) -> (Store, Vec<ServerRecord>) {
    Store::open(config.clone()).unwrap()
}

/// What a power-independent end of the process leaves behind: the files as they are now.
fn copy_files(from: &Path, to: &Path) -> StoreConfig {
    lock::prepare_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    StoreConfig {
        credentials_dir: None,
        ..StoreConfig::new(to)
    }
}

/// Opens the database beside a store, as an operator or an attacker would.
fn raw(dir: &Path) -> Connection {
    connect(&dir.join(DATABASE), Access::Write).unwrap()
}

async fn all(store: &Store) -> Vec<Arc<Update>> {
    store.updates_after(Revision(0), 10_000).await.unwrap()
}

fn said(update: &Update) -> String {
    let what = match &update.body {
        Body::Server(view) => format!("{:?}", view.status.state),
        Body::Call(call) => format!("call {} {:?}", call.id, call.state),
        Body::Elicitation(question) => format!("question {:?}", question.state),
        Body::Deleted { kind, .. } => format!("deleted {kind:?}"),
    };
    format!("{} {what}", update.server_id)
}

async fn story(store: &Store) -> Vec<String> {
    all(store).await.iter().map(|update| said(update)).collect()
}
