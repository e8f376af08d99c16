//! `sign-in`, `sign-out` and `auth`.

use clap::Args;
use mcp_sidecar_client::proto::{
    self, AuthStatus, SignInState, SignOutResponse, StartSignInRequest,
};
use mcp_sidecar_client::{Client, Error, Reason, open_browser};

use crate::app::App;
use crate::ask::Keyboard;
use crate::exit::{Failure, Outcome};
use crate::out::{self, BAD, GOOD, HEADING, Table, WARNING, styled};
use crate::plain::{one_line, plain};
use crate::show;

/// A sign-in.
#[derive(Debug, Args)]
pub(crate) struct SignIn {
    /// The server
    server: String,
    /// Scopes to ask for beside those that are needed
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// Only print the URL, open no browser
    #[arg(long)]
    no_browser: bool,
    /// Print the URL and take the URL that the browser is sent to in the end from standard input: for a browser on
    /// another machine
    #[arg(long)]
    headless: bool,
    /// Print the URL and do not wait for the end
    #[arg(long, conflicts_with = "headless")]
    no_wait: bool,
}

/// A server.
#[derive(Debug, Args)]
pub(crate) struct OfServer {
    /// The server
    server: String,
}

pub(crate) async fn sign_in(command: SignIn, app: &App) -> Outcome {
    let client = app.client().await?;
    let begun = client
        .start_sign_in_with(StartSignInRequest {
            server_id: command.server,
            scopes: command.scopes,
            ..Default::default()
        })
        .await?;
    // Needed to go on, so it is told however quiet it shall be.
    app.aside(|| out::note(&format!("Sign in at {}", plain(&begun.auth_url))));
    if !command.headless && !command.no_browser && !command.no_wait {
        match open_browser(&begun.auth_url) {
            Ok(()) => app.note("A browser was opened."),
            Err(error) => app.detail(&format!("no browser was opened: {error}")),
        }
    }
    if command.no_wait {
        return out::message(app.format(), &begun, || Ok(()));
    }
    let ended = if command.headless {
        let wait = client.wait_sign_in(&begun.id);
        tokio::select! {
            ended = wait => ended?,
            ended = paste(&client, &begun.id, app) => ended?,
        }
    } else {
        client.wait_sign_in(&begun.id).await?
    };
    out::message(app.format(), &ended, || {
        let (style, text) = match ended.state() {
            SignInState::Succeeded => (GOOD, "signed in".to_owned()),
            state => (BAD, show::word(state.as_str_name(), "SIGN_IN_STATE_")),
        };
        let id = one_line(&ended.server_id);
        out::line(&format!("{id}: {}", styled(style, &text)))
    })?;
    match ended.state() {
        SignInState::Succeeded => Ok(()),
        _ if ended.failure.is_empty() => Err(Failure::Refused("nobody has signed in".to_owned())),
        _ => Err(Failure::Refused(ended.failure)),
    }
}

/// Takes redirected URLs from standard input until one of them ends the sign-in.
async fn paste(client: &Client, id: &str, app: &App) -> Outcome<proto::SignIn> {
    let keyboard = Keyboard::new();
    loop {
        let prompt = "Then paste the URL that the browser shows: ";
        let Some(line) = keyboard.ask(prompt).await? else {
            // Nothing can be pasted any more; it may end otherwise.
            return Ok(client.wait_sign_in(id).await?);
        };
        match client.complete_sign_in(id, line.trim()).await {
            Ok(ended) => return Ok(ended),
            Err(error) if error.reason() == Some(&Reason::INVALID_FIELD) => {
                app.complain(&message_of(&error));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn message_of(error: &Error) -> String {
    match error {
        Error::Status { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

pub(crate) async fn sign_out(command: OfServer, app: &App) -> Outcome {
    let client = app.client().await?;
    let answer: SignOutResponse = client.sign_out(&command.server).await?;
    out::message(app.format(), &answer, || {
        let id = one_line(&command.server);
        let text = match (answer.was_signed_in, answer.revoked) {
            (false, _) => "nobody was signed in",
            (true, true) => "signed out, and the authorization server has revoked the tokens",
            (true, false) => "signed out; the authorization server did not confirm a revocation",
        };
        out::line(&format!("{id}: {text}"))
    })
}

pub(crate) async fn status(command: OfServer, app: &App) -> Outcome {
    let client = app.client().await?;
    let status = client.auth_status(&command.server).await?;
    out::message(app.format(), &status, || facts(&status))
}

fn facts(status: &AuthStatus) -> Outcome {
    let mut table = Table::of_facts();
    if status.signed_in {
        table.styled_fact("Signed in", GOOD, "yes");
    } else {
        table.styled_fact("Signed in", WARNING, "no");
    }
    table.fact("As", &status.subject);
    table.fact("Issuer", &status.issuer);
    table.fact("Client", &status.client_id);
    table.fact("Scopes", &status.scopes.join(" "));
    table.fact("Expires", &show::time(status.expire_time.as_ref()));
    if status.signed_in {
        table.fact("Renewable", if status.renewable { "yes" } else { "no" });
    }
    table.fact("Renewed", &show::time(status.renew_time.as_ref()));
    table.styled_fact("Last failure", BAD, &status.last_failure);
    table.print()?;
    for pending in &status.pending {
        let url = plain(&pending.auth_url);
        out::line(&format!("{} {url}", styled(HEADING, "Pending:")))?;
    }
    Ok(())
}
