//! The forms of section `auth`: addresses that browsers and authorization servers are told.

use std::path::{Component, Path};

use url::Url;

use super::Problem;
use crate::config::Config;

/// Longest URL or path, in bytes.
const MAX_URL: usize = 2_048;
/// Longest name to register under, in characters.
const MAX_NAME: usize = 128;

/// Every form that is wrong. Bounds of numbers are in the tables of the module above.
pub(super) fn problems(config: &Config, found: &mut Vec<Problem>) {
    let auth = &config.auth;
    let mut wrong = |key: &str, text: String| {
        found.push(Problem {
            key: format!("auth.{key}"),
            text,
        });
    };
    if !["127.0.0.1", "[::1]", "localhost"].contains(&auth.callback_host.as_str()) {
        wrong(
            "callback_host",
            format!(
                "is `{}`; it must be `127.0.0.1`, `[::1]` or `localhost`, which no other host reaches",
                auth.callback_host
            ),
        );
    }
    if let Err(why) = path(&auth.callback_path) {
        let path = &auth.callback_path;
        wrong(
            "callback_path",
            format!("is `{path}`, which {why}; write for example \"/oauth/callback\""),
        );
    }
    if auth.callback_url.is_some() && auth.callback_port == 0 {
        wrong(
            "callback_port",
            "is 0, and `auth.callback_url` is passed on to it; choose a fixed one".to_owned(),
        );
    }
    for (key, value, check) in [
        (
            "callback_url",
            &auth.callback_url,
            secure as fn(&str) -> Result<Url, String>,
        ),
        ("success_redirect", &auth.success_redirect, web),
        ("error_redirect", &auth.error_redirect, web),
        ("client_metadata_url", &auth.client_metadata_url, document),
    ] {
        if let Some(value) = value
            && let Err(why) = check(value)
        {
            // Never repeats what may be a password.
            let shown = if value.contains('@') { "…" } else { value };
            wrong(key, format!("is `{shown}`, which {why}"));
        }
    }
    let length = auth.client_name.chars().count();
    if length == 0 || length > MAX_NAME || auth.client_name.chars().any(char::is_control) {
        wrong(
            "client_name",
            format!(
                "is `{}`; it must be 1 to {MAX_NAME} characters without control characters",
                auth.client_name.escape_debug()
            ),
        );
    }
    for dir in &auth.assertion_dirs {
        if !is_plain(dir) {
            let shown = dir.display();
            wrong(
                "assertion_dirs",
                format!("holds `{shown}`; write the path from the root, without `..`"),
            );
        }
    }
}

fn is_plain(dir: &Path) -> bool {
    let mut parts = dir.components();
    dir.is_absolute() && parts.all(|part| part != Component::ParentDir)
}

/// A path that comes out of every client and proxy as it went in.
fn path(path: &str) -> Result<(), &'static str> {
    if !path.starts_with('/') {
        return Err("does not begin with `/`");
    }
    if path.len() > MAX_URL {
        return Err("is too long");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-._~".contains(c);
    if !path.chars().all(plain) {
        return Err("has other characters than letters, digits and `/-._~`");
    }
    let mut parts = path.split('/').skip(1);
    if path != "/" && parts.any(|part| matches!(part, "" | "." | "..")) {
        return Err("has an empty, `.` or `..` part");
    }
    Ok(())
}

/// Where a browser may be sent.
fn web(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|cause| format!("is not a URL ({cause})"))?;
    if text.len() > MAX_URL {
        return Err(format!("is longer than {MAX_URL} bytes"));
    }
    if !matches!(url.scheme(), "http" | "https") {
        return Err("is no `https:` or `http:` URL".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("holds a user name or password; leave them out".to_owned());
    }
    Ok(url)
}

/// What authorization servers are told.
fn secure(text: &str) -> Result<Url, String> {
    let url = web(text)?;
    if url.scheme() != "https" {
        return Err("is no `https:` URL".to_owned());
    }
    if url.fragment().is_some() {
        return Err("has a fragment; leave it out".to_owned());
    }
    Ok(url)
}

/// A client identifier that is a URL (draft-ietf-oauth-client-id-metadata-document section 3).
fn document(text: &str) -> Result<Url, String> {
    let url = secure(text)?;
    if url.path() == "/" {
        return Err("has no path; a client identifier must have one".to_owned());
    }
    // It is compared character by character.
    if url.as_str() != text {
        return Err(format!("is not in its normal form; write `{url}`"));
    }
    Ok(url)
}
