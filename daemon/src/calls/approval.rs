//! Whether a call is made, somebody is asked first, or it is refused: what the registration says of it.

use super::Calls;
use super::operation::Operation;
use super::plan::Plan;
use crate::base::{CallId, Deadline};
use crate::error::{Error, Reason, Result};
use crate::inputs::NewQuestion;
use crate::mcp::protocol::{ObjectWriter, RawJson};
use crate::model::approval::{Action, Approval};
use crate::model::question::{Mode, Question};
use crate::registry::Server;

/// The question that has to be answered before the call is made, if there is one; the plan remembers it.
///
/// # Errors
/// `CALL_NOT_APPROVED` if the registration lets nobody make the call, or nobody is there to be asked and it shall not wait;
/// MESSAGE_TOO_LARGE if it cannot be shown.
pub(super) async fn ask(
    calls: &Calls,
    server: &Server,
    plan: &mut Plan,
    call: &CallId,
    deadline: Deadline,
) -> Result<Option<Question>> {
    let spec = &server.record.spec;
    let Operation::Tool { name, arguments } = &plan.operation else {
        return Ok(None);
    };
    if spec.approval == Approval::default() {
        return Ok(None);
    }
    // What the server says of its tools is known once it is connected.
    let hints = if spec.approval.needs_hints() {
        let (_, catalog) = server.handle.link(deadline).await?;
        catalog.tool(name).map(|tool| tool.hints)
    } else {
        None
    };
    match spec.approval.decide(name, hints) {
        Action::Auto => Ok(None),
        Action::Deny => {
            let id = &server.record.key.id;
            let error = Error::new(
                Reason::CallNotApproved,
                format!(
                    "the settings of server `{id}` let nobody call the tool `{name}`; UpdateServer changes `approval`"
                ),
            );
            Err(error
                .with("server_id", id.as_str())
                .with("tool_name", name.as_str())
                .with("policy", "deny"))
        }
        Action::Ask => {
            let key = &server.record.key;
            let question = NewQuestion {
                server: key.clone(),
                server_name: spec.name.clone(),
                call_id: Some(call.clone()),
                mode: Mode::Approval,
                message: format!("May the tool `{name}` of `{}` be called?", spec.name),
                requested_schema: None,
                url: None,
                server_elicitation_id: None,
                request: request(name, arguments.as_ref()).as_str().to_owned(),
                expiry: spec.questions.expiry(Mode::Approval),
            };
            let inputs = &calls.0.inputs;
            if !inputs.holds(&key.namespace, Mode::Approval, &spec.questions) {
                inputs.decline(question).await?;
                let error = Error::new(
                    Reason::CallNotApproved,
                    "nobody is there to approve the call, and it does not wait for that; it was not made",
                );
                return Err(error
                    .with("server_id", key.id.as_str())
                    .with("tool_name", name.as_str())
                    .with("policy", "ask"));
            }
            let question = inputs.prepare(question)?;
            plan.approval = Some(question.id.clone());
            Ok(Some(question))
        }
    }
}

fn request(name: &str, arguments: Option<&RawJson>) -> RawJson {
    let mut request = ObjectWriter::new();
    request.string("name", name);
    if let Some(arguments) = arguments {
        request.raw("arguments", arguments.as_str());
    }
    request.finish()
}
