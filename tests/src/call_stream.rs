//! A stream of calls (`ToolService.CallTools`), as an app with plain stubs has it.

use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Status, Streaming};
use v1::call_tools_request::Action;
use v1::call_tools_response::Outcome;

use crate::clients::Clients;
use crate::v1;
use crate::wait::within;

/// An open stream of calls. Dropping it is an app that goes away.
pub struct Calls {
    requests: mpsc::UnboundedSender<v1::CallToolsRequest>,
    responses: Streaming<v1::CallToolsResponse>,
}

/// An app that has closed its side.
pub struct Closing(Streaming<v1::CallToolsResponse>);

impl Clients {
    /// Opens a stream of calls.
    pub async fn open_calls(&self) -> Calls {
        self.open_calls_with(|_| {}).await.expect("CallTools")
    }

    /// Opens a stream of calls with a request that is changed before.
    pub async fn open_calls_with(
        &self,
        change: impl FnOnce(&mut Request<UnboundedReceiverStream<v1::CallToolsRequest>>),
    ) -> Result<Calls, Status> {
        let (requests, outgoing) = mpsc::unbounded_channel();
        let mut request = Request::new(UnboundedReceiverStream::new(outgoing));
        change(&mut request);
        let mut tools = self.tools();
        let answer = within("the stream of calls", tools.call_tools(request)).await?;
        Ok(Calls {
            requests,
            responses: answer.into_inner(),
        })
    }
}

impl Calls {
    /// Asks for a call.
    pub fn call(&self, number: u64, call: v1::ToolCall) {
        self.send(v1::CallToolsRequest {
            number,
            action: Some(Action::Call(call)),
            deadline: None,
        });
    }

    /// Cancels a call.
    pub fn cancel(&self, number: u64) {
        self.send(v1::CallToolsRequest {
            number,
            action: Some(Action::Cancel(v1::CancelCallOfStream {})),
            deadline: None,
        });
    }

    /// Sends a request as it is.
    pub fn send(&self, request: v1::CallToolsRequest) {
        self.requests.send(request).expect("the stream is open");
    }

    /// The next response.
    pub async fn next(&mut self) -> Answered {
        match self.try_next().await {
            Ok(Some(answered)) => answered,
            other => panic!("a response was expected: {other:?}"),
        }
    }

    /// The next response, or the end.
    pub async fn try_next(&mut self) -> Result<Option<Answered>, Status> {
        next(&mut self.responses).await
    }

    /// The status with which the stream ends; responses before it are passed over.
    pub async fn failure(&mut self) -> Status {
        loop {
            match self.try_next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended well"),
                Err(status) => return status,
            }
        }
    }

    /// Asks for nothing more.
    pub fn close(self) -> Closing {
        Closing(self.responses)
    }
}

impl Closing {
    /// The rest of the responses, when the stream has ended well.
    pub async fn rest(mut self) -> Vec<Answered> {
        let mut all = Vec::new();
        while let Some(answered) = next(&mut self.0).await.expect("the stream ends well") {
            all.push(answered);
        }
        all
    }
}

async fn next(
    responses: &mut Streaming<v1::CallToolsResponse>,
) -> Result<Option<Answered>, Status> {
    let response = within("a response of the stream", responses.message()).await?;
    Ok(response.map(Answered))
}

/// A response.
#[derive(Debug)]
pub struct Answered(pub v1::CallToolsResponse);

impl Answered {
    /// Which call it is about.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// The result of a call that went well.
    #[track_caller]
    pub fn result(&self) -> &v1::ToolResult {
        match &self.0.outcome {
            Some(Outcome::Result(result)) => result,
            other => panic!("no result: {other:?}"),
        }
    }

    /// Why there is none.
    #[track_caller]
    pub fn error(&self) -> &v1::CallError {
        match &self.0.outcome {
            Some(Outcome::Error(error)) => error,
            other => panic!("no error: {other:?}"),
        }
    }

    /// The reason of the error.
    #[track_caller]
    pub fn reason(&self) -> &str {
        &self.error().reason
    }
}
