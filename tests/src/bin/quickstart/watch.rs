//! The update stream, printed as it comes.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use mcp_sidecar_client::proto::ConnectionState;
use mcp_sidecar_client::{UpdateEvent, Updates};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// From an answer to the update that says the same.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the update stream has said about a server: its id, and its state or `None` if it is gone.
type Seen = (String, Option<ConnectionState>);

/// Prints updates in the background until it is dropped.
pub(crate) struct Watch {
    seen: mpsc::Receiver<Seen>,
    known: HashMap<String, Option<ConnectionState>>,
    task: JoinSet<Result<()>>,
}

impl Watch {
    pub(crate) fn start(updates: Updates) -> Self {
        let (sender, seen) = mpsc::channel(1024);
        let mut task = JoinSet::new();
        task.spawn(print_updates(updates, sender));
        Self {
            seen,
            known: HashMap::new(),
            task,
        }
    }

    /// Waits until the stream has said this.
    pub(crate) async fn until(&mut self, id: &str, state: Option<ConnectionState>) -> Result<()> {
        let waiting = async {
            while self.known.get(id) != Some(&state) {
                let Some((id, state)) = self.seen.recv().await else {
                    return match self.task.join_next().await {
                        Some(Ok(Err(error))) => Err(error).context("the update stream failed"),
                        _ => bail!("the update stream ended"),
                    };
                };
                self.known.insert(id, state);
            }
            Ok(())
        };
        tokio::time::timeout(UPDATE_TIMEOUT, waiting)
            .await
            .with_context(|| format!("the expected update about `{id}` does not come"))?
    }
}

/// Prints each change of a server's state, for as long as the stream lasts.
async fn print_updates(mut updates: Updates, seen: mpsc::Sender<Seen>) -> Result<()> {
    let mut known: HashMap<String, ConnectionState> = HashMap::new();
    while let Some(update) = updates.next().await {
        let update = update?;
        match update.event {
            UpdateEvent::Server(server) => {
                let state = server.status.unwrap_or_default().state();
                let before = known.insert(server.id.clone(), state);
                if before != Some(state) {
                    println!(
                        "  > {:<11} {} (revision {})",
                        server.id,
                        state_name(state),
                        update.revision
                    );
                }
                seen.send((server.id, Some(state))).await?;
            }
            UpdateEvent::Deleted { id, .. } => {
                known.remove(&id);
                println!("  > {id:<11} removed (revision {})", update.revision);
                seen.send((id, None)).await?;
            }
            UpdateEvent::Reset(_) => known.clear(),
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn state_name(state: ConnectionState) -> String {
    state
        .as_str_name()
        .trim_start_matches("CONNECTION_STATE_")
        .to_lowercase()
}
