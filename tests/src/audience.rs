//! Short forms for who can answer what.

use crate::clients::Clients;
use crate::fake::FakeMcp;
use crate::updates::Updates;
use crate::v1::{self, CanAnswer, StreamUpdatesRequest};
use serde_json::Value;

/// Somebody who can show forms.
pub const FORMS: CanAnswer = CanAnswer {
    elicitation_form: true,
    elicitation_url: false,
    sampling: false,
    sampling_tools: false,
    sampling_context: false,
    approval: false,
};

/// Somebody who can open URLs.
pub const URLS: CanAnswer = CanAnswer {
    elicitation_form: false,
    elicitation_url: true,
    ..FORMS
};

/// Somebody who can ask a model, with tools.
pub const MODELS: CanAnswer = CanAnswer {
    elicitation_form: false,
    sampling: true,
    sampling_tools: true,
    ..FORMS
};

/// Somebody who can show calls that need an approval.
pub const APPROVALS: CanAnswer = CanAnswer {
    elicitation_form: false,
    approval: true,
    ..FORMS
};

impl Clients {
    /// Follows the namespace and says what can be answered; the snapshot was read.
    pub async fn attach(&self, can_answer: CanAnswer) -> Updates {
        self.attach_to(&[&self.namespace()], can_answer).await
    }

    /// The same for other namespaces.
    pub async fn attach_to(&self, namespaces: &[&str], can_answer: CanAnswer) -> Updates {
        let request = StreamUpdatesRequest {
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
            can_answer: Some(can_answer),
            ..Default::default()
        };
        let mut updates = self.updates_with(request).await.expect("StreamUpdates");
        updates.snapshot().await;
        updates
    }

    /// All questions to people that have ended in this way.
    pub async fn questions_in(&self, state: v1::ElicitationState) -> Vec<v1::Elicitation> {
        let request = v1::ListElicitationsRequest {
            namespace: self.namespace(),
            states: vec![state.into()],
            ..Default::default()
        };
        let answer = self.elicitations().list_elicitations(request).await;
        answer.expect("ListElicitations").into_inner().elicitations
    }
}

/// What a server was told last that it may ask for.
pub fn told(fake: &FakeMcp) -> Value {
    let capabilities = fake.seen().into_iter().rev().find_map(|seen| {
        let modern = &seen.params()["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        match (modern, seen.method()) {
            (Value::Null, "initialize") => Some(seen.params()["capabilities"].clone()),
            (Value::Null, _) => None,
            (told, _) => Some(told.clone()),
        }
    });
    let mut capabilities = capabilities.expect("the server was told something");
    if let Some(members) = capabilities.as_object_mut() {
        members.remove("extensions");
    }
    capabilities
}
