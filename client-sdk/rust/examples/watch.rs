//! Prints every change of every server, for ever: `cargo run --example watch`.
#![allow(clippy::print_stdout, reason = "an example for the terminal")]

use mcp_sidecar_client::{Client, Result, UpdateEvent};

#[tokio::main]
async fn main() -> Result<()> {
    let client = Client::connect().await?;
    let mut updates = client.updates();
    while let Some(update) = updates.next().await {
        match update?.event {
            UpdateEvent::Server(server) => {
                let status = server.status.unwrap_or_default();
                println!("{}: {}", server.id, status.state().as_str_name());
            }
            UpdateEvent::Deleted { id, .. } => println!("{id}: gone"),
            UpdateEvent::Reset(cause) => println!("start over: {cause:?}"),
            _ => {}
        }
    }
    Ok(())
}
