//! An app on the client SDK that waits for the end of a call which others made: `waiter SOCKET CALL`. Prints what came of
//! it: the state, then the result's text or the reason why there is none.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::time::Duration;

use mcp_sidecar_client::Client;
use mcp_sidecar_client::proto::call::Outcome;
use mcp_sidecar_tests::facts::text_of;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("usage: waiter SOCKET CALL");
    let (socket, call) = (next(), next());
    let builder = Client::builder().socket(socket);
    let client = builder.deadline(Duration::from_secs(30)).connect().await;
    let client = client.expect("a daemon");
    let call = client.wait_call(call).await.expect("WaitCall");
    println!("{}", call.state().as_str_name());
    match &call.outcome {
        Some(Outcome::ToolResult(result)) => println!("{}", text_of(result)),
        Some(Outcome::Error(error)) => println!("{}", error.reason),
        other => println!("{other:?}"),
    }
}
