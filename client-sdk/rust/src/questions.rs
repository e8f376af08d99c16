//! The questions of servers: listed and answered.

use crate::Arguments;
use crate::client::{Client, required};
use crate::error::Result;
use crate::listing::all_pages;
use crate::proto::{
    Elicitation, ElicitationAction, GetElicitationRequest, ListElicitationsRequest,
    RespondElicitationRequest,
};

/// Questions.
impl Client {
    /// The pending questions of the namespace, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_elicitations(&self) -> Result<Vec<Elicitation>> {
        self.list_elicitations_with(ListElicitationsRequest::default())
            .await
    }

    /// The questions that match the filters of the request, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_elicitations_with(
        &self,
        mut request: ListElicitationsRequest,
    ) -> Result<Vec<Elicitation>> {
        self.fill(&mut request.namespace);
        let request = &request;
        let listing = all_pages(|page_token| async move {
            let request = self.request(ListElicitationsRequest {
                page_token,
                ..request.clone()
            });
            let answer = self.elicitations().list_elicitations(request).await?;
            let answer = answer.into_inner();
            Ok((answer.elicitations, Vec::new(), answer.next_page_token))
        });
        Ok(listing.await?.items)
    }

    /// One question.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::ELICITATION_NOT_FOUND`] if its end is long past.
    pub async fn get_elicitation(&self, id: impl Into<String>) -> Result<Elicitation> {
        let request = self.request(GetElicitationRequest {
            namespace: self.namespace().to_owned(),
            elicitation_id: id.into(),
        });
        let answer = self.elicitations().get_elicitation(request).await?;
        required(answer.into_inner().elicitation)
    }

    /// Accepts a question. The answer of a form is a JSON object that follows its schema; a URL question has none:
    /// `()`.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::INVALID_FIELD`] leaves the question pending,
    /// [`crate::Reason::ALREADY_RESOLVED`] means that it has ended.
    pub async fn accept_elicitation(
        &self,
        id: impl Into<String>,
        content: impl Into<Arguments>,
    ) -> Result<Elicitation> {
        self.respond(id.into(), ElicitationAction::Accept, content.into())
            .await
    }

    /// Declines a question: the user says no.
    ///
    /// # Errors
    ///
    /// See [`Client::accept_elicitation`].
    pub async fn decline_elicitation(&self, id: impl Into<String>) -> Result<Elicitation> {
        self.respond(id.into(), ElicitationAction::Decline, ().into())
            .await
    }

    /// Cancels a question: the user does not decide.
    ///
    /// # Errors
    ///
    /// See [`Client::accept_elicitation`].
    pub async fn cancel_elicitation(&self, id: impl Into<String>) -> Result<Elicitation> {
        self.respond(id.into(), ElicitationAction::Cancel, ().into())
            .await
    }

    async fn respond(
        &self,
        elicitation_id: String,
        action: ElicitationAction,
        content: Arguments,
    ) -> Result<Elicitation> {
        let request = self.request(RespondElicitationRequest {
            namespace: self.namespace().to_owned(),
            elicitation_id,
            action: action.into(),
            content_json: content.into_json(),
        });
        let answer = self.elicitations().respond_elicitation(request).await?;
        required(answer.into_inner().elicitation)
    }
}
