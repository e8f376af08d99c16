//! How each peer is started.

use std::path::{Path, PathBuf};

use super::install::installed;
use super::{CommandLine, HttpPeer};
use crate::daemon::programs;

/// A source file in `tests/peers`.
fn source(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("peers")
        .join(file)
}

fn text(path: PathBuf) -> String {
    path.into_os_string()
        .into_string()
        .expect("a path is UTF-8")
}

async fn npm(program: &str, args: &[&str]) -> CommandLine {
    let set = installed("npm").await;
    CommandLine::new(text(set.join("node_modules/.bin").join(program)), args)
}

async fn python(set: &'static str, file: &str, args: &[&str]) -> CommandLine {
    let dir = installed(set).await;
    let file = text(source(file));
    let mut line = CommandLine::new(text(dir.join("bin/python")), &[&file]);
    line.args.extend(args.iter().map(|&arg| arg.to_owned()));
    line
}

async fn python_http(set: &'static str, file: &str, kind: &str) -> HttpPeer {
    let line = python(set, file, &[kind]).await;
    let path = if kind == "sse" { "/sse" } else { "/mcp" };
    HttpPeer::start(path, |port| {
        let mut line = line.clone();
        line.args.push(port.to_string());
        line
    })
    .await
}

/// The reference server of the specification, over standard streams.
pub async fn everything_stdio() -> CommandLine {
    npm("mcp-server-everything", &["stdio"]).await
}

/// The same over HTTP.
pub async fn everything_http() -> HttpPeer {
    let line = npm("mcp-server-everything", &["streamableHttp"]).await;
    HttpPeer::start("/mcp", |port| line.clone().env("PORT", &port.to_string())).await
}

/// The same over legacy HTTP+SSE.
pub async fn everything_sse() -> HttpPeer {
    let line = npm("mcp-server-everything", &["sse"]).await;
    HttpPeer::start("/sse", |port| line.clone().env("PORT", &port.to_string())).await
}

/// The reference file server for one directory.
pub async fn filesystem(dir: &str) -> CommandLine {
    npm("mcp-server-filesystem", &[dir]).await
}

/// The reference memory server, which keeps its graph in a file.
pub async fn memory(file: &str) -> CommandLine {
    npm("mcp-server-memory", &[])
        .await
        .env("MEMORY_FILE_PATH", file)
}

/// The reference server for structured thinking.
pub async fn sequential_thinking() -> CommandLine {
    npm("mcp-server-sequential-thinking", &[]).await
}

/// Python SDK 1.x over standard streams.
pub async fn py1_stdio() -> CommandLine {
    python("py1", "py1_server.py", &["stdio"]).await
}

/// Python SDK 1.x over HTTP; `kind` is `http`, `http-json`, `http-stateless` or `sse`.
pub async fn py1_http(kind: &str) -> HttpPeer {
    python_http("py1", "py1_server.py", kind).await
}

/// Python SDK 2.x over standard streams.
pub async fn py2_stdio() -> CommandLine {
    python("py2", "py2_server.py", &["stdio"]).await
}

/// Python SDK 2.x over HTTP; `kind` is `http`, `http-stateless` or `sse`.
pub async fn py2_http(kind: &str) -> HttpPeer {
    python_http("py2", "py2_server.py", kind).await
}

/// FastMCP over standard streams.
pub async fn fastmcp_stdio() -> CommandLine {
    python("fastmcp", "fm_server.py", &["stdio"]).await
}

/// FastMCP over HTTP.
pub async fn fastmcp_http() -> HttpPeer {
    python_http("fastmcp", "fm_server.py", "http").await
}

/// FastMCP over legacy HTTP+SSE.
pub async fn fastmcp_sse() -> HttpPeer {
    python_http("fastmcp", "fm_server.py", "sse").await
}

/// FastMCP with its own authorization server.
pub async fn fastmcp_oauth() -> HttpPeer {
    python_http("fastmcp", "fm_server.py", "oauth").await
}

/// An example of the TypeScript SDK 1.x with its own authorization server. It knows itself by the name `localhost`.
pub async fn ts1_oauth() -> HttpPeer {
    let examples = "node_modules/@modelcontextprotocol/sdk/dist/esm/examples/server";
    let file = installed("npm")
        .await
        .join(examples)
        .join("simpleStreamableHttp.js");
    let line = CommandLine::new("node", &[&text(file), "--oauth"]);
    let (auth_port, _reserved) = super::reserve_port();
    let mut peer = HttpPeer::start("/mcp", |port| {
        let line = line.clone().env("MCP_PORT", &port.to_string());
        line.env("MCP_AUTH_PORT", &auth_port.to_string())
    })
    .await;
    peer.url = peer.url.replace("127.0.0.1", "localhost");
    peer
}

/// A complete OpenID provider for one resource, with tokens that are bound to keys if it is wanted.
pub async fn oidc_provider(resource: &str, dpop: bool) -> HttpPeer {
    let file = text(beside(&installed("oidc").await, "oidc_server.mjs"));
    let line = CommandLine::new(text(node22().await), &[&file, resource]);
    HttpPeer::start("", |port| {
        let mut line = line.clone().env("DPOP", if dpop { "1" } else { "0" });
        line.args.push(port.to_string());
        line
    })
    .await
}

/// The published time server.
pub async fn time() -> CommandLine {
    let dir = installed("pyservers").await;
    let program = text(dir.join("bin/mcp-server-time"));
    CommandLine::new(program, &["--local-timezone", "UTC"])
}

/// The published git server for one repository.
pub async fn git(repository: &str) -> CommandLine {
    let dir = installed("pyservers").await;
    let program = text(dir.join("bin/mcp-server-git"));
    CommandLine::new(program, &["--repository", repository])
}

/// A copy of a source file of `tests/peers` beside the modules of a set, where they are found.
pub(super) fn beside(set: &Path, name: &str) -> PathBuf {
    placed(set, &source(name))
}

/// A copy of a source file beside the modules of a set, where they are found.
pub(super) fn placed(set: &Path, source: &Path) -> PathBuf {
    let file = set.join(source.file_name().expect("a file has a name"));
    let code = std::fs::read(source).expect("read the peer's source");
    if std::fs::read(&file).ok().as_ref() != Some(&code) {
        // Another test may be starting it: replace the file in one step.
        let new = tempfile::NamedTempFile::new_in(set).expect("make a file");
        std::fs::write(new.path(), code).expect("copy the peer's source");
        new.persist(&file).expect("put the peer's source in place");
    }
    file
}

/// Node of a version that new packages want.
pub(super) async fn node22() -> PathBuf {
    installed("node22").await.join("node_modules/.bin/node")
}

/// TypeScript SDK 2.x.
async fn ts2(args: &[&str]) -> CommandLine {
    let file = beside(&installed("ts2").await, "ts2_server.mjs");
    let mut line = CommandLine::new("node", &[&text(file)]);
    line.args.extend(args.iter().map(|&arg| arg.to_owned()));
    line
}

/// TypeScript SDK 2.x over standard streams.
pub async fn ts2_stdio() -> CommandLine {
    ts2(&["stdio"]).await
}

/// TypeScript SDK 2.x over HTTP; `kind` is `http` or `modern-only`.
pub async fn ts2_http(kind: &str) -> HttpPeer {
    let line = ts2(&[kind]).await;
    HttpPeer::start("/", |port| {
        let mut line = line.clone();
        line.args.push(port.to_string());
        line
    })
    .await
}

/// The bundled server on the official Rust SDK, over standard streams.
pub async fn demo_stdio(args: &[&str]) -> CommandLine {
    let program = programs().await.join("demo-server");
    let mut line = CommandLine::new(text(program), &["stdio"]);
    line.args.extend(args.iter().map(|&arg| arg.to_owned()));
    line
}

/// The same over HTTP.
pub async fn demo_http(args: &[&str]) -> HttpPeer {
    let mut line = demo_stdio(args).await;
    "http".clone_into(&mut line.args[0]);
    HttpPeer::start("/mcp", |port| {
        let mut line = line.clone();
        line.args.extend(["--port".to_owned(), port.to_string()]);
        line
    })
    .await
}
