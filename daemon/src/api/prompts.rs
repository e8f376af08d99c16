//! `PromptService`: lists prompts from the catalog, fills them, completes arguments.

use std::collections::HashMap;

use mcp_sidecar_proto::v1;
use tonic::{Request, Response, Status};
use v1::complete_request::Reference;
use v1::prompt_service_server::PromptService;

use super::context::RequestContext;
use super::page::Page;
use super::tools::issue;
use super::{Shared, calls, content, convert, spec};
use crate::error::{Error, Reason, Result};
use crate::mcp::era;
use crate::mcp::protocol::{ObjectWriter, RawJson, method};

/// Prompts of a page by default.
const PAGE: usize = 500;

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
        let namespace = self
            .0
            .access
            .namespace(context.caller, &request.namespace)?;
        let mut page = Page::start(&request.page_token, request.page_size, PAGE)?;
        let mut issues = Vec::new();
        for server in self.0.registry.list(&namespace, &request.server_ids)? {
            let live = server.live();
            if page.is_first() {
                issues.extend(issue(&server, &live.status.prompts));
            }
            let id = &server.record.key.id;
            let entries = live.catalog.prompts.entries.iter().enumerate();
            page.offer(id.as_str(), entries, |prompt| convert::prompt(id, prompt));
        }
        let (prompts, next_page_token) = page.finish();
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
        let namespace = self
            .0
            .access
            .namespace(context.caller, &request.namespace)?;
        if request.name.is_empty() {
            return Err(Error::invalid("name", "name a prompt; ListPrompts shows them").into());
        }
        let meta = calls::meta(&request.meta_json, "meta_json", &context)?;
        let timeout = spec::duration(request.timeout, "timeout")?;
        let server = self.0.registry.get(&namespace, &request.server_id)?;
        let options = calls::options(&server, &self.0.settings, &context, timeout, None, None)?;
        let call = calls::invoke(&server, &options, |_, _| {
            let mut get = era::Request::new(method::PROMPTS_GET)
                .param("name", RawJson::encode(&request.name))
                .param("arguments", texts(&request.arguments));
            get.name = Some(request.name.clone());
            get.meta.clone_from(&meta);
            Ok(get)
        });
        let result = context.within(call).await?;
        Ok(Response::new(content::prompt(
            &result,
            options.call_id.to_string(),
        )?))
    }

    async fn complete(
        &self,
        request: Request<v1::CompleteRequest>,
    ) -> Result<Response<v1::CompleteResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self
            .0
            .access
            .namespace(context.caller, &request.namespace)?;
        if request.argument_name.is_empty() {
            return Err(Error::invalid("argument_name", "name the argument to complete").into());
        }
        let mut reference = ObjectWriter::new();
        match &request.reference {
            Some(Reference::PromptName(name)) => {
                reference.string("type", "ref/prompt").string("name", name)
            }
            Some(Reference::UriTemplate(template)) => reference
                .string("type", "ref/resource")
                .string("uri", template),
            None => {
                return Err(
                    Error::invalid("reference", "give `prompt_name` or `uri_template`").into(),
                );
            }
        };
        let reference = reference.finish();
        let mut argument = ObjectWriter::new();
        argument
            .string("name", &request.argument_name)
            .string("value", &request.argument_value);
        let argument = argument.finish();
        let server = self.0.registry.get(&namespace, &request.server_id)?;
        let options = calls::options(&server, &self.0.settings, &context, None, None, None)?;
        let call = calls::invoke(&server, &options, |link, _| {
            if link.peer.capabilities.is_some() && !link.peer.has("completions") {
                return Err(Error::new(
                    Reason::NotSupported,
                    format!(
                        "server `{}` does not complete arguments",
                        server.record.key.id
                    ),
                ));
            }
            let mut complete = era::Request::new(method::COMPLETE)
                .param("ref", reference.clone())
                .param("argument", argument.clone());
            if !request.context_arguments.is_empty() {
                let mut known = ObjectWriter::new();
                known.raw("arguments", texts(&request.context_arguments).as_str());
                complete = complete.param("context", known.finish());
            }
            Ok(complete)
        });
        let result = context.within(call).await?;
        Ok(Response::new(content::completion(&result)?))
    }
}
