//! Tools: listed and called.

use crate::calls::CallStream;
use crate::client::Client;
use crate::error::Result;
use crate::listing::{Listing, all_pages};
use crate::proto::{
    CallToolRequest, CallToolResponse, CallToolStreamRequest, ListToolsRequest, Tool, ToolCall,
};

/// Tools.
impl Client {
    /// All tools of all servers of the namespace that can be used.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_tools(&self) -> Result<Listing<Tool>> {
        self.list_tools_with(ListToolsRequest::default()).await
    }

    /// All tools that match the filters of the request.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_tools_with(&self, mut request: ListToolsRequest) -> Result<Listing<Tool>> {
        self.fill(&mut request.namespace);
        let request = &request;
        all_pages(|page_token| async move {
            let request = self.request(ListToolsRequest {
                page_token,
                ..request.clone()
            });
            let answer = self.tools().list_tools(request).await?.into_inner();
            Ok((answer.tools, answer.issues, answer.next_page_token))
        })
        .await
    }

    /// Calls a tool and waits for its result, also through questions that the server asks. A tool that reports an
    /// error is `Ok` with `is_error` in the result.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::UPSTREAM_ERROR`] carries a JSON-RPC error of the server, and
    /// [`crate::Reason::OUTCOME_UNKNOWN`] means that the call may have been carried out.
    pub async fn call_tool(&self, mut call: ToolCall) -> Result<CallToolResponse> {
        self.fill(&mut call.namespace);
        let request = self.request(CallToolRequest { call: Some(call) });
        Ok(self.tools().call_tool(request).await?.into_inner())
    }

    /// Calls a tool and follows its progress, log messages and questions.
    ///
    /// # Errors
    ///
    /// See [`Client::call_tool`]; errors of the running call come from the stream.
    pub async fn call_tool_stream(&self, mut call: ToolCall) -> Result<CallStream> {
        self.fill(&mut call.namespace);
        let request = self.request(CallToolStreamRequest { call: Some(call) });
        let answer = self.tools().call_tool_stream(request).await?;
        Ok(CallStream::new(answer.into_inner()))
    }
}
