//! Tokens for apps that reach the daemon over TCP, over the admin socket.

use std::time::Duration;

use clap::{Args, Subcommand};
use mcp_sidecar_client::AdminClient;
use mcp_sidecar_client::proto::{AppToken, ListAppTokensResponse};

use crate::app::App;
use crate::exit::{Failure, Outcome};
use crate::out::{self, Table};
use crate::plain::one_line;
use crate::show;

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum Tokens {
    /// Make a token: it is written to standard output, this once
    Create(Create),
    /// List the tokens; none is shown
    List,
    /// Make a token useless, and end what is under way with it
    Revoke {
        /// Its id, or its name if only one has that
        token: String,
    },
}

/// A token to be made.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// A name for people, 1 to 64 visible ASCII characters
    name: String,
    /// A namespace that it is for, or the start of several and `*`; can be repeated [default: `default`]
    #[arg(long = "for-namespace", value_name = "NAME")]
    namespaces: Vec<String>,
    /// How long it is valid, for example `30days` [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    lifetime: Option<Duration>,
}

pub(crate) async fn run(command: Tokens, app: &App) -> Outcome {
    let operator = app.operator().await?;
    match command {
        Tokens::Create(command) => create(command, &operator, app).await,
        Tokens::List => {
            let answer = operator.list_app_tokens().await?;
            out::message(app.format(), &answer, || table(&answer))
        }
        Tokens::Revoke { token } => {
            let id = found(&operator, token).await?;
            let answer = operator.revoke_app_token(id).await?;
            out::message(app.format(), &answer, || Ok(()))
        }
    }
}

async fn create(command: Create, operator: &AdminClient, app: &App) -> Outcome {
    let made = operator
        .create_app_token(command.name, command.namespaces, command.lifetime)
        .await?;
    // The token alone, so that it goes into a file or a pipe as it is.
    out::message(app.format(), &made, || out::line(&one_line(&made.secret)))?;
    let known = made.token.unwrap_or_default();
    app.note(&format!(
        "the token `{}` is for {}; it cannot be shown again",
        one_line(&known.name),
        one_line(&known.namespaces.join(", "))
    ));
    if operator.status().await?.tcp_address.is_empty() {
        app.note("the daemon listens at no address yet: set `tcp.listen` in its configuration, and start it anew");
    }
    Ok(())
}

/// The id of a token that is named by it, or by a name that no other token has.
async fn found(operator: &AdminClient, named: String) -> Outcome<String> {
    let tokens = operator.list_app_tokens().await?.tokens;
    if tokens.iter().any(|token| token.token_id == named) {
        return Ok(named);
    }
    let of_name: Vec<&AppToken> = tokens.iter().filter(|token| token.name == named).collect();
    match of_name[..] {
        // The daemon says that there is none.
        [] => Ok(named),
        [only] => Ok(only.token_id.clone()),
        _ => Err(Failure::Refused(format!(
            "{} tokens have the name `{}`; name one by its id (`tokens list`)",
            of_name.len(),
            one_line(&named)
        ))),
    }
}

fn table(answer: &ListAppTokensResponse) -> Outcome {
    let mut table = Table::new(&["NAME", "ID", "NAMESPACES", "CREATED", "EXPIRES"]);
    for token in &answer.tokens {
        let expires = show::time(token.expire_time.as_ref());
        let expires = if expires.is_empty() {
            "never"
        } else {
            &expires
        };
        table.row([
            &token.name,
            &token.token_id,
            &token.namespaces.join(", "),
            &show::time(token.create_time.as_ref()),
            expires,
        ]);
    }
    table.print()
}
