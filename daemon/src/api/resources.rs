//! `ResourceService`: lists resources and templates from the catalog, and reads resources.

use mcp_sidecar_proto::v1;
use tonic::{Request, Response, Status};
use v1::resource_service_server::ResourceService;

use super::context::RequestContext;
use super::page::Page;
use super::tools::issue;
use super::{Shared, calls, content, convert, spec};
use crate::error::{Error, Result};
use crate::mcp::era;
use crate::mcp::protocol::{RawJson, method};

/// Entries of a page by default.
const PAGE: usize = 500;

/// The service.
#[derive(Clone, Debug)]
pub struct Resources(pub Shared);

#[tonic::async_trait]
impl ResourceService for Resources {
    async fn list_resources(
        &self,
        request: Request<v1::ListResourcesRequest>,
    ) -> Result<Response<v1::ListResourcesResponse>, Status> {
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
                issues.extend(issue(&server, &live.status.resources));
            }
            let id = &server.record.key.id;
            let entries = live.catalog.resources.entries.iter().enumerate();
            page.offer(id.as_str(), entries, |resource| {
                convert::resource(id, resource)
            });
        }
        let (resources, next_page_token) = page.finish();
        Ok(Response::new(v1::ListResourcesResponse {
            resources,
            next_page_token,
            issues,
        }))
    }

    async fn list_resource_templates(
        &self,
        request: Request<v1::ListResourceTemplatesRequest>,
    ) -> Result<Response<v1::ListResourceTemplatesResponse>, Status> {
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
                issues.extend(issue(&server, &live.status.resource_templates));
            }
            let id = &server.record.key.id;
            let entries = live.catalog.resource_templates.entries.iter().enumerate();
            page.offer(id.as_str(), entries, |entry| {
                convert::resource_template(id, entry)
            });
        }
        let (resource_templates, next_page_token) = page.finish();
        let response = v1::ListResourceTemplatesResponse {
            resource_templates,
            next_page_token,
            issues,
        };
        Ok(Response::new(response))
    }

    async fn read_resource(
        &self,
        request: Request<v1::ReadResourceRequest>,
    ) -> Result<Response<v1::ReadResourceResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self
            .0
            .access
            .namespace(context.caller, &request.namespace)?;
        if request.uri.is_empty() {
            return Err(Error::invalid("uri", "name a resource; ListResources shows them").into());
        }
        let meta = calls::meta(&request.meta_json, "meta_json", &context)?;
        let timeout = spec::duration(request.timeout, "timeout")?;
        let server = self.0.registry.get(&namespace, &request.server_id)?;
        let options = calls::options(&server, &self.0.settings, &context, timeout, None, None)?;
        let call = calls::invoke(&server, &options, |_, _| {
            let mut read = era::Request::new(method::RESOURCES_READ)
                .param("uri", RawJson::encode(&request.uri));
            read.name = Some(request.uri.clone());
            read.meta.clone_from(&meta);
            Ok(read)
        });
        let result = context.within(call).await?;
        Ok(Response::new(content::read_resource(
            &result,
            options.call_id.to_string(),
        )?))
    }
}
