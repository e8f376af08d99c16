//! Calls as things of their own: made without waiting, found, waited for and cancelled by any app.

use tonic::Status;

use crate::clients::Clients;
use crate::v1;
use crate::wait::within;

impl Clients {
    /// Makes a call and does not wait for it; its id.
    pub async fn detach(&self, server: &str, tool: &str, arguments: &str) -> String {
        let call = v1::ToolCall {
            detach: true,
            ..self.call(server, tool, arguments)
        };
        let request = v1::CallToolRequest { call: Some(call) };
        let made = self.tools().call_tool(request).await.expect("CallTool");
        let made = made.into_inner();
        assert!(made.result.is_none(), "{made:?}");
        made.call_id
    }

    /// A call as it is now.
    pub async fn get_call(&self, id: &str) -> Result<v1::Call, Status> {
        let request = v1::GetCallRequest {
            namespace: self.namespace(),
            call_id: id.to_owned(),
            ..Default::default()
        };
        let found = self.calls().get_call(request).await?.into_inner();
        Ok(found.call.expect("GetCall returns the call"))
    }

    /// Waits for the end of a call.
    pub async fn wait_call(&self, id: &str) -> v1::Call {
        let request = v1::WaitCallRequest {
            namespace: self.namespace(),
            call_id: id.to_owned(),
            ..Default::default()
        };
        let mut calls = self.calls();
        let waiting = calls.wait_call(request);
        let found = within("the end of the call", waiting)
            .await
            .expect("WaitCall");
        let call = found.into_inner().call.expect("WaitCall returns the call");
        assert!(call.outcome.is_some(), "it has ended: {call:?}");
        call
    }

    /// Cancels a call.
    pub async fn cancel_call(&self, id: &str) -> Result<(), Status> {
        let request = v1::CancelCallRequest {
            namespace: self.namespace(),
            call_id: id.to_owned(),
        };
        self.calls().cancel_call(request).await.map(drop)
    }

    /// The calls that have not ended.
    pub async fn list_calls(&self) -> Vec<v1::Call> {
        let request = v1::ListCallsRequest {
            namespace: self.namespace(),
            ..Default::default()
        };
        let listed = self.calls().list_calls(request).await.expect("ListCalls");
        listed.into_inner().calls
    }
}

/// The reason why a call that has ended has no result.
pub fn reason_of(call: &v1::Call) -> &str {
    match &call.outcome {
        Some(v1::call::Outcome::Error(error)) => &error.reason,
        other => panic!("no error: {other:?}"),
    }
}

/// The result of a tool call that has ended.
pub fn result_of(call: &v1::Call) -> &v1::ToolResult {
    match &call.outcome {
        Some(v1::call::Outcome::ToolResult(result)) => result,
        other => panic!("no result: {other:?}"),
    }
}
