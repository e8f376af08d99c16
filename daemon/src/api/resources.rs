//! `ResourceService`: lists resources and templates from the catalog, and reads resources.

use mcp_sidecar_proto::v1;
use tonic::{Request, Response, Status};
use v1::resource_service_server::ResourceService;

use super::context::RequestContext;
use super::page::Page;
use super::tools::issue;
use super::{Shared, content, convert, input};
use crate::error::{Error, Result};

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
        let meta = input::meta(&request.meta_json, "meta_json", &context)?;
        let terms = input::terms(&context, input::bound(request.timeout, "timeout")?, meta);
        let calls = &self.0.calls;
        let read = calls.read_resource(&namespace, &request.server_id, &request.uri, terms);
        let answer = context.within(read).await?;
        Ok(Response::new(content::read_resource(
            &answer.result,
            answer.call_id.to_string(),
        )?))
    }
}
