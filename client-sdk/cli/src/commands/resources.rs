//! `resources`.

use clap::{Args, Subcommand};
use mcp_sidecar_client::proto::{
    ListResourceTemplatesResponse, ListResourcesResponse, ReadResourceResponse, ResourceSubscribed,
    ResourceUpdated, SubscribeResourceResponse, subscribe_resource_response::Event,
};
use mcp_sidecar_client::{Client, Error, Json, Listing, ResourceChange};

use crate::app::App;
use crate::exit::Outcome;
use crate::out::{self, DIM, Format, HEADING, Table, styled};
use crate::plain::one_line;
use crate::show;

/// What to do with resources.
#[derive(Debug, Subcommand)]
pub(crate) enum Resources {
    /// List the resources
    #[command(visible_alias = "ls")]
    List {
        /// Only those of this server
        server: Option<String>,
    },
    /// List the resource templates
    Templates {
        /// Only those of this server
        server: Option<String>,
    },
    /// Read a resource
    Read(Place),
    /// Say each time that a resource has changed
    Watch(Place),
}

/// A resource.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The server
    server: String,
    /// The URI
    uri: String,
}

/// What a listing has of one server, if one is named. A namespace that nobody has used holds nothing.
pub(crate) fn of_server<T>(
    app: &App,
    listing: Result<Listing<T>, Error>,
    server: Option<&str>,
    of: impl Fn(&T) -> &String,
) -> Outcome<Vec<T>> {
    let mut listing = match listing {
        Ok(listing) => listing,
        Err(error) if super::servers::is_new(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    if let Some(server) = server {
        listing.items.retain(|item| of(item) == server);
        listing.issues.retain(|issue| issue.server_id == server);
    }
    app.issues(&listing.issues);
    Ok(listing.items)
}

pub(crate) async fn run(command: Resources, app: &App) -> Outcome {
    let client = app.client().await?;
    match command {
        Resources::List { server } => list(&client, server.as_deref(), app).await,
        Resources::Templates { server } => templates(&client, server.as_deref(), app).await,
        Resources::Read(place) => {
            let answer = client.read_resource(place.server, place.uri).await?;
            out::message(app.format(), &answer, || print(&answer))
        }
        Resources::Watch(place) => watch(&client, place, app).await,
    }
}

async fn list(client: &Client, server: Option<&str>, app: &App) -> Outcome {
    let listing = client.list_resources().await;
    let answer = ListResourcesResponse {
        resources: of_server(app, listing, server, |resource| &resource.server_id)?,
        ..Default::default()
    };
    out::message(app.format(), &answer, || {
        let mut table = Table::new(&["SERVER", "URI", "TYPE", "NAME"]);
        for resource in &answer.resources {
            let name = match &*resource.title {
                "" => &resource.name,
                title => title,
            };
            table.row([
                &resource.server_id,
                &resource.uri,
                &resource.mime_type,
                name,
            ]);
        }
        if answer.resources.is_empty() {
            Ok(())
        } else {
            table.print()
        }
    })
}

async fn templates(client: &Client, server: Option<&str>, app: &App) -> Outcome {
    let listing = client.list_resource_templates().await;
    let answer = ListResourceTemplatesResponse {
        resource_templates: of_server(app, listing, server, |template| &template.server_id)?,
        ..Default::default()
    };
    out::message(app.format(), &answer, || {
        let mut table = Table::new(&["SERVER", "URI TEMPLATE", "TYPE", "NAME"]);
        for template in &answer.resource_templates {
            let name = match &*template.title {
                "" => &template.name,
                title => title,
            };
            table.row([
                &template.server_id,
                &template.uri_template,
                &template.mime_type,
                name,
            ]);
        }
        if answer.resource_templates.is_empty() {
            Ok(())
        } else {
            table.print()
        }
    })
}

/// What a resource holds, for people.
pub(crate) fn print(answer: &ReadResourceResponse) -> Outcome {
    for contents in &answer.contents {
        if answer.contents.len() > 1 {
            out::line(&styled(HEADING, &one_line(&contents.uri)))?;
        }
        let text = show::contents(contents);
        out::line(text.strip_suffix('\n').unwrap_or(&text))?;
    }
    Ok(())
}

async fn watch(client: &Client, place: Place, app: &App) -> Outcome {
    let mut changes = client.follow_resource(place.server, place.uri).await?;
    while let Some(change) = changes.next().await {
        let change = change?;
        if app.format() == Format::Table {
            let text = match &change {
                ResourceChange::Updated { uri } => format!("{} has changed", one_line(uri)),
                _ => styled(DIM, "changes are told from now on"),
            };
            out::line(&text)?;
            continue;
        }
        let event = match change {
            ResourceChange::Subscribed => Event::Subscribed(ResourceSubscribed {}),
            ResourceChange::Updated { uri } => Event::Updated(ResourceUpdated { uri }),
            _ => continue,
        };
        let answer = SubscribeResourceResponse { event: Some(event) };
        out::event(app.format(), &Json(&answer))?;
    }
    Ok(())
}
