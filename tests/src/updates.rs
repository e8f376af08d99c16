//! Following the update stream.

use tonic::{Status, Streaming};

use crate::v1::stream_updates_response::Event;
use crate::v1::upsert::Resource;
use crate::v1::{self, Elicitation, SamplingRequest, Server, StreamUpdatesResponse};
use crate::wait::within;

/// A reader of StreamUpdates that remembers where it is.
pub struct Updates {
    stream: Streaming<StreamUpdatesResponse>,
    token: String,
}

impl Updates {
    /// Reads this stream.
    pub fn new(stream: Streaming<StreamUpdatesResponse>) -> Self {
        Self {
            stream,
            token: String::new(),
        }
    }

    /// The next response; `None` when the daemon ends the stream.
    pub async fn try_next(&mut self) -> Result<Option<StreamUpdatesResponse>, Status> {
        within("an update", self.try_next_unbounded()).await
    }

    /// The same without a bound, for a reader that lives as long as the daemon.
    pub async fn try_next_unbounded(&mut self) -> Result<Option<StreamUpdatesResponse>, Status> {
        let response = self.stream.message().await?;
        if let Some(response) = &response
            && !response.resume_token.is_empty()
        {
            self.token.clone_from(&response.resume_token);
        }
        Ok(response)
    }

    /// The next response.
    pub async fn next(&mut self) -> StreamUpdatesResponse {
        let response = self.try_next().await.expect("the update stream goes on");
        response.expect("the update stream does not end")
    }

    /// Where a later stream continues behind everything that was read here.
    pub fn token(&self) -> String {
        self.token.clone()
    }

    /// Reads on until `pick` finds what it looks for.
    pub async fn find<T>(
        &mut self,
        what: &str,
        mut pick: impl FnMut(&StreamUpdatesResponse) -> Option<T>,
    ) -> T {
        let search = async {
            loop {
                let response = self.next().await;
                if let Some(found) = pick(&response) {
                    return found;
                }
            }
        };
        within(what, search).await
    }

    /// Reads the snapshot and returns what it holds.
    pub async fn snapshot(&mut self) -> Vec<Resource> {
        let mut held = Vec::new();
        loop {
            let response = self.next().await;
            match response.event.expect("an event is set") {
                Event::Upsert(v1::Upsert { resource }) => {
                    assert_eq!(response.resume_token, "", "a snapshot cannot be resumed");
                    held.push(resource.expect("an upsert holds something"));
                }
                Event::SnapshotEnd(_) => {
                    assert_ne!(self.token, "", "the end of the snapshot can be resumed");
                    return held;
                }
                other => panic!("unexpected within a snapshot: {other:?}"),
            }
        }
    }

    /// Reads on until a server is in a wanted state.
    pub async fn server_where(&mut self, what: &str, wanted: impl Fn(&Server) -> bool) -> Server {
        self.find(what, |response| match upsert(response)? {
            Resource::Server(server) if wanted(server) => Some(server.clone()),
            _ => None,
        })
        .await
    }

    /// Reads on until a question is in a wanted state.
    pub async fn question_where(
        &mut self,
        what: &str,
        wanted: impl Fn(&Elicitation) -> bool,
    ) -> Elicitation {
        self.find(what, |response| match upsert(response)? {
            Resource::Elicitation(question) if wanted(question) => Some(question.clone()),
            _ => None,
        })
        .await
    }

    /// Reads on until a question is asked.
    pub async fn pending(&mut self) -> Elicitation {
        self.question_where("a pending question", |question| {
            question.state() == v1::ElicitationState::Pending
        })
        .await
    }

    /// Reads on until this question has ended, and says how.
    pub async fn end_of(&mut self, id: &str) -> v1::ElicitationState {
        let question = self.question_where("the end of the question", |question| {
            question.id == id && question.state() != v1::ElicitationState::Pending
        });
        question.await.state()
    }

    /// Reads on until this call is in a wanted state.
    pub async fn call_where(&mut self, id: &str, wanted: v1::CallState) -> v1::Call {
        self.find(
            &format!("call `{id}` being {wanted:?}"),
            |response| match upsert(response)? {
                Resource::Call(call) if call.id == id && call.state() == wanted => {
                    Some(call.clone())
                }
                _ => None,
            },
        )
        .await
    }

    /// Reads on until what a model is asked is in a wanted state.
    pub async fn sampling_where(
        &mut self,
        what: &str,
        wanted: impl Fn(&SamplingRequest) -> bool,
    ) -> SamplingRequest {
        self.find(what, |response| match upsert(response)? {
            Resource::SamplingRequest(request) if wanted(request) => Some(request.clone()),
            _ => None,
        })
        .await
    }

    /// Reads on until a model is asked.
    pub async fn sampling(&mut self) -> SamplingRequest {
        self.sampling_where("a pending sampling request", |request| {
            request.state() == v1::ElicitationState::Pending
        })
        .await
    }

    /// Reads on until this request for an answer of a model has ended, and says how.
    pub async fn end_of_sampling(&mut self, id: &str) -> v1::ElicitationState {
        let request = self.sampling_where("the end of the sampling request", |request| {
            request.id == id && request.state() != v1::ElicitationState::Pending
        });
        request.await.state()
    }

    /// Reads on until something is gone, and returns its id.
    pub async fn deleted(&mut self, id: &str) -> v1::Delete {
        self.find(
            &format!("the deletion of `{id}`"),
            |response| match &response.event {
                Some(Event::Delete(gone)) if gone.id == id => Some(gone.clone()),
                _ => None,
            },
        )
        .await
    }
}

/// What an upsert holds; `None` for other events.
pub fn upsert(response: &StreamUpdatesResponse) -> Option<&Resource> {
    match &response.event {
        Some(Event::Upsert(upsert)) => upsert.resource.as_ref(),
        _ => None,
    }
}
