//! Prompts: listed and filled, and values for their arguments.

use std::collections::HashMap;

use crate::client::Client;
use crate::error::Result;
use crate::listing::{Listing, all_pages};
use crate::proto::{
    CompleteRequest, CompleteResponse, GetPromptRequest, GetPromptResponse, ListPromptsRequest,
    Prompt,
};

/// Prompts.
impl Client {
    /// All prompts of all servers of the namespace.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_prompts(&self) -> Result<Listing<Prompt>> {
        all_pages(|page_token| async move {
            let request = self.request(ListPromptsRequest {
                namespace: self.namespace().to_owned(),
                page_token,
                ..Default::default()
            });
            let answer = self.prompts().list_prompts(request).await?.into_inner();
            Ok((answer.prompts, answer.issues, answer.next_page_token))
        })
        .await
    }

    /// Fills a prompt with arguments.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn get_prompt(
        &self,
        server_id: impl Into<String>,
        name: impl Into<String>,
        arguments: HashMap<String, String>,
    ) -> Result<GetPromptResponse> {
        self.get_prompt_with(GetPromptRequest {
            server_id: server_id.into(),
            name: name.into(),
            arguments,
            ..Default::default()
        })
        .await
    }

    /// Fills a prompt with further settings, such as a timeout.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn get_prompt_with(
        &self,
        mut request: GetPromptRequest,
    ) -> Result<GetPromptResponse> {
        self.fill(&mut request.namespace);
        let answer = self.prompts().get_prompt(self.request(request)).await?;
        Ok(answer.into_inner())
    }

    /// Asks a server for values of an argument of a prompt or of a resource template.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn complete(&self, mut request: CompleteRequest) -> Result<CompleteResponse> {
        self.fill(&mut request.namespace);
        let answer = self.prompts().complete(self.request(request)).await?;
        Ok(answer.into_inner())
    }
}
