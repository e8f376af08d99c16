//! `PromptService`: lists prompts from the catalog, fills them, completes arguments.

use std::collections::HashMap;

use mcp_sidecar_proto::v1;
use tonic::{Request, Response, Status};
use v1::prompt_service_server::PromptService;

use super::context::RequestContext;
use super::listing::Listing;
use super::{Shared, content, convert, input};
use crate::calls::Reference;
use crate::error::{Error, Result};
use crate::mcp::protocol::{ObjectWriter, RawJson};

/// The service.
#[derive(Clone, Debug)]
pub struct Prompts(pub Shared);

/// Writes a map of texts as an object, in the order of the keys.
fn texts(map: &HashMap<String, String>) -> RawJson {
    let mut sorted: Vec<_> = map.iter().collect();
    sorted.sort();
    let mut object = ObjectWriter::new();
    for (key, value) in sorted {
        object.string(key, value);
    }
    object.finish()
}

#[tonic::async_trait]
impl PromptService for Prompts {
    async fn list_prompts(
        &self,
        request: Request<v1::ListPromptsRequest>,
    ) -> Result<Response<v1::ListPromptsResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let mut listing = Listing::start(&request.page_token, request.page_size)?;
        for server in self.0.registry.list(&namespace, &request.server_ids)? {
            let live = server.live();
            let id = &server.record.key.id;
            let entries = live.catalog.prompts.entries.iter().enumerate();
            listing.offer(&server, &live.status.prompts, entries, |prompt| {
                convert::prompt(id, prompt)
            });
        }
        let (prompts, next_page_token, issues) = listing.finish();
        Ok(Response::new(v1::ListPromptsResponse {
            prompts,
            next_page_token,
            issues,
        }))
    }

    async fn get_prompt(
        &self,
        request: Request<v1::GetPromptRequest>,
    ) -> Result<Response<v1::GetPromptResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        context.note(|trail| {
            trail.server(&request.server_id);
            trail.prompt(&request.name);
        });
        if request.name.is_empty() {
            return Err(Error::invalid("name", "name a prompt; ListPrompts shows them").into());
        }
        let meta = input::meta(&request.meta_json, "meta_json", &context)?;
        let terms = input::terms(
            &context,
            input::bound(request.timeout, "timeout")?,
            meta,
            request.wait_for_sign_in,
        );
        let (calls, arguments) = (&self.0.calls, texts(&request.arguments));
        let (server_id, name) = (&request.server_id, request.name);
        let prepared = calls.get_prompt(&namespace, server_id, name, arguments, terms)?;
        let made = context.within(prepared.make()).await?;
        let answer = context.within(made.answer()).await?;
        Ok(Response::new(content::prompt(
            &answer.result,
            answer.call_id.to_string(),
        )?))
    }

    async fn complete(
        &self,
        request: Request<v1::CompleteRequest>,
    ) -> Result<Response<v1::CompleteResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        if request.argument_name.is_empty() {
            return Err(Error::invalid("argument_name", "name the argument to complete").into());
        }
        let reference = match request.reference {
            Some(v1::complete_request::Reference::PromptName(name)) => Reference::Prompt(name),
            Some(v1::complete_request::Reference::UriTemplate(uri)) => Reference::Template(uri),
            None => {
                return Err(
                    Error::invalid("reference", "give `prompt_name` or `uri_template`").into(),
                );
            }
        };
        let known = (!request.context_arguments.is_empty()).then(|| {
            let mut known = ObjectWriter::new();
            known.raw("arguments", texts(&request.context_arguments).as_str());
            known.finish()
        });
        let argument = (
            request.argument_name.as_str(),
            request.argument_value.as_str(),
        );
        let terms = input::terms(&context, None, Vec::new(), false);
        let (calls, server_id) = (&self.0.calls, request.server_id.as_str());
        let complete = calls.complete(
            &namespace,
            server_id,
            &reference,
            argument,
            known.as_ref(),
            terms,
        );
        let answer = context.within(complete).await?;
        Ok(Response::new(content::completion(&answer.result)?))
    }
}
