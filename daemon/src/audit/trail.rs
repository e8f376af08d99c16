//! What an RPC tells about itself on its way: who made it, and what it turned out to be about.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::record::{Asked, Record};
use crate::base::{CallId, Clock};
use crate::model::origin::Origin;

/// Longest namespace that is noted before it is checked, in bytes.
const MAX_NAMESPACE: usize = 64;

/// The way of one RPC. Clones share what is noted.
#[derive(Clone, Debug)]
pub struct Trail(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    origin: Origin,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    namespace: Option<String>,
    server: Option<String>,
    tool: Option<String>,
    resource: Option<String>,
    prompt: Option<String>,
    app_token: Option<String>,
    call_id: Option<String>,
    request_id: Option<String>,
    asked: Option<Asked>,
    joined: bool,
    begun: bool,
}

impl Trail {
    /// The way of an RPC that begins now.
    #[must_use]
    pub fn new(origin: Origin) -> Self {
        Self(Arc::new(Inner {
            origin,
            noted: Mutex::default(),
        }))
    }

    /// Who made it.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.0.origin
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The namespace that it names.
    pub fn namespace(&self, name: &str) {
        let end = name.floor_char_boundary(MAX_NAMESPACE);
        self.noted().namespace = name.get(..end).map(str::to_owned);
    }

    /// The server that it is about.
    pub fn server(&self, id: &str) {
        self.noted().server = Some(id.to_owned());
    }

    /// The tool that it wants called, by its name or its model name.
    pub fn tool(&self, name: &str) {
        self.noted().tool = Some(name.to_owned());
    }

    /// The resource that it wants read.
    pub fn resource(&self, uri: &str) {
        self.noted().resource = Some(uri.to_owned());
    }

    /// The prompt that it wants.
    pub fn prompt(&self, name: &str) {
        self.noted().prompt = Some(name.to_owned());
    }

    /// The token that it makes or revokes, by its id.
    pub fn app_token(&self, id: &str) {
        self.noted().app_token = Some(id.to_owned());
    }

    /// The call that it is about.
    pub fn call(&self, id: &str) {
        self.noted().call_id = Some(id.to_owned());
    }

    /// The id that the app gives the call.
    pub fn request_id(&self, id: &str) {
        self.noted().request_id = Some(id.to_owned());
    }

    /// The question that it is about, and what it does about it.
    pub fn asked(&self, asked: Asked) {
        self.noted().asked = Some(asked);
    }

    /// It waits for a call that another RPC began.
    pub fn joined(&self, id: &CallId) {
        let mut noted = self.noted();
        noted.call_id = Some(id.to_string());
        noted.joined = true;
        noted.begun = false;
    }

    /// It has begun a call, which is audited at its own end.
    pub fn begun(&self) {
        self.noted().begun = true;
    }

    /// Whether it has begun a call.
    pub(super) fn has_begun(&self) -> bool {
        self.noted().begun
    }

    /// What it has come to.
    pub(super) fn record(&self, event: &str, outcome: &str) -> Record {
        let mut noted = self.noted();
        let noted = std::mem::take(&mut *noted);
        let mut record = Record::new(Clock.wall(), event, outcome);
        record.namespace = noted.namespace;
        record.server = noted.server;
        record.tool = noted.tool;
        record.resource = noted.resource;
        record.prompt = noted.prompt;
        record.app_token = noted.app_token;
        record.call_id = noted.call_id;
        record.request_id = noted.request_id;
        record.joined = noted.joined;
        record.asked = noted.asked;
        record.origin = Some(self.0.origin.clone());
        record
    }
}
