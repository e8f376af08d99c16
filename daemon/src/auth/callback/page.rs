//! What the browser shows in the end: plain pages without any outside resource, which close themselves and tell the page
//! that opened them how it went.
//!
//! Texts may come from anywhere, so they are cut, cleaned and escaped. The one script and the one style are constants that
//! the content security policy names by their hashes: nothing else can run, whatever is in the texts.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;

use super::Landing;

/// What is wrong with a visit that no sign-in waits for.
pub(super) const UNKNOWN: &str = "this link belongs to no sign-in that is waiting";

/// Longest text of others that is shown, in characters.
const MAX_TEXT: usize = 500;

const STYLE: &str = "
:root{color-scheme:light dark;font:1rem/1.5 system-ui,sans-serif}
body{margin:0;min-height:100vh;display:flex;align-items:center;justify-content:center}
main{box-sizing:border-box;width:100%;max-width:34rem;padding:2rem;overflow-wrap:anywhere}
h1{margin:0 0 .5rem;font-size:1.5rem;line-height:1.25}
p{margin:.5rem 0}
blockquote{margin:1rem 0;padding:.25rem 0 .25rem 1rem;border-left:.25rem solid #c33}
button{margin-top:1rem;padding:.5rem 1.25rem;font:inherit;cursor:pointer}
";

/// The opener learns how it went and nothing that it could use, so that it does not matter who it is. A browser lets a page
/// close itself only if a script opened it.
const SCRIPT: &str = r#"
"use strict";
const landing = document.getElementById("landing").dataset;
const ok = landing.ok === "true";
if (window.opener) {
  window.opener.postMessage({ type: "mcp-sidecar:sign-in", ok, server: landing.server }, "*");
}
const button = document.getElementById("close");
button.hidden = false;
button.addEventListener("click", () => {
  window.close();
  setTimeout(() => { document.getElementById("kept").hidden = false; }, 300);
});
if (ok) {
  setTimeout(() => window.close(), 1500);
}
"#;

/// Allows the script and the style above, and nothing else.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(digest(&SHA256, text.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// What a page says.
struct Page<'a> {
    status: StatusCode,
    ok: bool,
    server: &'a str,
    title: &'a str,
    text: &'a str,
    quote: Option<&'a str>,
    hint: &'a str,
}

const CLOSE: &str = "You can close this page and go back to your application.";
const AGAIN: &str = "Go back to your application and sign in again.";

/// The page for an outcome.
pub(super) fn landing(landing: &Landing) -> Response<Full<Bytes>> {
    let page = match landing {
        Landing::SignedIn { server } => Page {
            status: StatusCode::OK,
            ok: true,
            server,
            title: "Signed in",
            text: "You are signed in at:",
            quote: None,
            hint: CLOSE,
        },
        Landing::Already { server } => Page {
            status: StatusCode::OK,
            ok: true,
            server,
            title: "Signed in already",
            text: "This sign-in was completed before, at:",
            quote: None,
            hint: CLOSE,
        },
        Landing::Failed { message } => Page {
            status: StatusCode::BAD_REQUEST,
            ok: false,
            server: "",
            title: "The sign-in failed",
            text: "This is what was said:",
            quote: Some(message),
            hint: AGAIN,
        },
        Landing::Unknown => Page {
            status: StatusCode::BAD_REQUEST,
            ok: false,
            server: "",
            title: "Nothing to sign in to",
            text: "This link belongs to no sign-in that is waiting: it may have expired, been cancelled, or been replaced by \
                   a newer one.",
            quote: None,
            hint: AGAIN,
        },
    };
    page.render()
}

/// The daemon stops while a visitor waits.
pub(super) fn stopping() -> Response<Full<Bytes>> {
    let page = Page {
        status: StatusCode::SERVICE_UNAVAILABLE,
        ok: false,
        server: "",
        title: "The sign-in was interrupted",
        text: "The service that you were signing in with is stopping.",
        quote: None,
        hint: AGAIN,
    };
    page.render()
}

/// It takes longer than a browser should be kept waiting.
pub(super) fn unfinished() -> Response<Full<Bytes>> {
    let page = Page {
        status: StatusCode::GATEWAY_TIMEOUT,
        ok: false,
        server: "",
        title: "Not finished yet",
        text: "The authorization server has not answered so far.",
        quote: None,
        hint: "You can close this page; your application will tell you how it went.",
    };
    page.render()
}

/// An answer without a page.
pub(super) fn refusal(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", text.into())
}

impl Page<'_> {
    fn render(&self) -> Response<Full<Bytes>> {
        let Self {
            status,
            ok,
            title,
            text,
            hint,
            ..
        } = self;
        let server = escape(&plain(self.server, MAX_TEXT));
        let name = match server.as_str() {
            "" => String::new(),
            server => format!("<p><strong>{server}</strong></p>\n"),
        };
        let quote = self.quote.map(|quote| escape(&plain(quote, MAX_TEXT)));
        let quote = quote.map(|quote| format!("<blockquote>{quote}</blockquote>\n"));
        let quote = quote.unwrap_or_default();
        let html = format!(
            r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<main id="landing" data-ok="{ok}" data-server="{server}">
<h1>{title}</h1>
<p>{text}</p>
{name}{quote}<p>{hint}</p>
<button id="close" type="button" hidden>Close this page</button>
<p id="kept" hidden>The browser keeps this page open: close it yourself.</p>
</main>
<script>{SCRIPT}</script>
</body>
</html>
"#
        );
        respond(*status, "text/html; charset=utf-8", html)
    }
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    let fixed: [(HeaderName, &'static str); 5] = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        // The address of the page holds the code.
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A text of others on one line and not too long, without what could turn or hide its neighbours.
pub(super) fn plain(text: &str, most: usize) -> String {
    let clean = |c: char| match c {
        c if c.is_control() => ' ',
        '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => ' ',
        c => c,
    };
    let mut short: String = text.chars().take(most).map(clean).collect();
    if text.chars().nth(most).is_some() {
        short.push('…');
    }
    short
}

/// A text as content or quoted attribute value.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(response: Response<Full<Bytes>>) -> String {
        use http_body_util::BodyExt;
        let body = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    fn between<'a>(page: &'a str, start: &str, end: &str) -> &'a str {
        let (_, rest) = page.split_once(start).unwrap();
        rest.split_once(end).unwrap().0
    }

    #[tokio::test]
    async fn the_policy_names_exactly_the_script_and_the_style_of_the_page() {
        let server = "Mail".to_owned();
        let response = landing(&Landing::SignedIn { server });
        let policy = response.headers()[CONTENT_SECURITY_POLICY]
            .to_str()
            .unwrap();
        let policy = policy.to_owned();
        let page = text(response).await;
        for (kind, tag) in [("script", "script"), ("style", "style")] {
            let inside = between(&page, &format!("<{tag}>"), &format!("</{tag}>"));
            let hash = STANDARD.encode(digest(&SHA256, inside.as_bytes()));
            let named = between(&policy, &format!("{kind}-src '"), "'");
            assert_eq!(named, format!("sha256-{hash}"));
        }
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(policy.ends_with("frame-ancestors 'none'"), "{policy}");
        for outside in ["http:", "https:", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "`{outside}` in {page}");
        }
    }

    #[tokio::test]
    async fn texts_of_others_stay_texts() {
        let nasty = "\"><script>alert('x')</script>&amp;\u{202e}\n<!--\u{0}";
        for landed in [
            Landing::SignedIn {
                server: nasty.to_owned(),
            },
            Landing::Already {
                server: nasty.to_owned(),
            },
            Landing::Failed {
                message: nasty.to_owned(),
            },
        ] {
            let page = text(landing(&landed)).await;
            assert_eq!(page.matches("<script>").count(), 1, "{page}");
            assert!(
                !page.contains("<!--") && !page.contains('\u{202e}'),
                "{page}"
            );
            let shown =
                "&quot;&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;amp;  &lt;!-- ";
            assert!(page.contains(shown), "{page}");
        }
        let message = "é".repeat(100_000);
        let page = text(landing(&Landing::Failed { message })).await;
        assert!(page.len() < 8_000, "{}", page.len());
    }

    #[tokio::test]
    async fn the_opener_is_told_how_it_went() {
        let server = "R&D \"Mail\"".to_owned();
        let page = text(landing(&Landing::SignedIn { server })).await;
        let shown = r#"data-ok="true" data-server="R&amp;D &quot;Mail&quot;""#;
        assert!(page.contains(shown), "{page}");
        let page = text(landing(&Landing::Unknown)).await;
        assert!(page.contains(r#"data-ok="false" data-server="""#), "{page}");
    }
}
