//! The only way to authorization servers and metadata: over the policy's client, encrypted unless it is this host, with
//! a bound on time and size.
//!
//! Nothing that belongs to the MCP server goes along: no header of its registration, no cookie. Redirects are those that
//! the policy's client follows (307 and 308 within the origin). RFC 8414 section 3.2 and RFC 9728 section 3.2 demand status
//! 200 of a metadata document, so another redirect is no way to one: who looks for metadata takes it as "not here".

use std::error::Error as _;
use std::fmt;
use std::time::{Duration, SystemTime};

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use url::{Host, Url};

use crate::base::Clock;
use crate::error::{Error, Reason, Result};
use crate::policy::{Policy, blocked_cause, printable};

/// The longest URL that is taken from somebody else.
const LONGEST_URL: usize = 4096;
/// The longest time that an authorization server may keep the daemon waiting.
const LONGEST_RETRY: Duration = Duration::from_hours(1);

/// What is sent with every request for JSON.
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A way to authorization servers and metadata. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Web {
    client: reqwest::Client,
    policy: Policy,
    timeout: Duration,
    limit: usize,
}

/// An answer, whatever its status.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The body as far as it was read.
    pub(super) body: Vec<u8>,
    /// The body is longer than the limit.
    pub(super) cut: bool,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // There may be tokens in it.
        write!(f, "Reply({}, {} bytes)", self.status, self.body.len())
    }
}

impl Reply {
    /// Whether another attempt may bring another answer: trouble of the server, or too many requests.
    pub(super) fn is_transient(&self) -> bool {
        self.status.is_server_error()
            || matches!(
                self.status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
            )
    }

    /// The JSON object in it; `None` if it holds something else.
    pub(super) fn object(&self) -> Option<serde_json::Map<String, serde_json::Value>> {
        if self.cut {
            return None;
        }
        serde_json::from_slice(&self.body).ok()
    }

    /// When another attempt makes sense, if the server says so (RFC 9110 section 10.2.3).
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let value = self.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
        let delay = if let Ok(seconds) = value.parse() {
            Duration::from_secs(seconds)
        } else {
            let then = httpdate::parse_http_date(value).ok()?;
            let then = then.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            let now = u64::try_from(Clock.wall().0).ok()?;
            then.saturating_sub(Duration::from_millis(now))
        };
        Some(delay.min(LONGEST_RETRY))
    }

    /// The error for an answer that says nothing for good.
    pub(super) fn unavailable(&self, url: &Url) -> Error {
        let error = unavailable(url, format_args!("answers {}", self.status))
            .with("http_status", self.status.as_u16().to_string());
        match self.retry_after() {
            Some(delay) => error.retry_after(delay),
            None => error,
        }
    }
}

impl Web {
    /// Over this client of the policy; one request may take `timeout`, its answer hold `limit` bytes.
    #[must_use]
    pub fn new(client: reqwest::Client, policy: Policy, timeout: Duration, limit: usize) -> Self {
        Self {
            client,
            policy,
            timeout,
            limit,
        }
    }

    /// The client behind it.
    pub(super) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// The same with another client of the policy: another TLS identity.
    #[must_use]
    pub fn with_client(&self, client: reqwest::Client) -> Self {
        Self {
            client,
            ..self.clone()
        }
    }

    /// A URL that somebody else names, if it may be talked to.
    ///
    /// # Errors
    /// CREDENTIALS_REFUSED if it is no absolute URL; DESTINATION_BLOCKED as in [`Self::check`].
    pub(super) fn url(&self, what: &str, text: &str) -> Result<Url> {
        let parsed = if text.len() > LONGEST_URL {
            None
        } else {
            Url::parse(text).ok()
        };
        let Some(url) =
            parsed.filter(|url| url.has_host() && url.fragment().is_none() && is_plain(text))
        else {
            let shown: String = text.chars().take(200).collect();
            return Err(Error::new(
                Reason::CredentialsRefused,
                format!(
                    "{what} is `{}`, which is no https URL that can be used; its operator has to correct that",
                    shown.escape_debug()
                ),
            ));
        };
        self.check(&url)?;
        Ok(url)
    }

    /// Whether a URL may be talked to: the policy permits it, and what is said cannot be overheard.
    ///
    /// # Errors
    /// DESTINATION_BLOCKED.
    pub(super) fn check(&self, url: &Url) -> Result<()> {
        self.policy.check_url(url)?;
        if url.scheme() == "https" || is_loopback(url) {
            return Ok(());
        }
        Err(Error::new(
            Reason::DestinationBlocked,
            format!(
                "`{}` is not encrypted, and authorization needs https everywhere but on this host; use its https URL",
                printable(url)
            ),
        )
        .with("host", url.host_str().unwrap_or_default())
        .with("rule", "http"))
    }

    /// Asks for a document.
    ///
    /// # Errors
    /// DESTINATION_BLOCKED; AUTHORIZATION_UNAVAILABLE if no answer comes.
    pub(super) async fn get(&self, url: &Url) -> Result<Reply> {
        self.check(url)?;
        self.run(url, self.client.get(url.clone())).await
    }

    /// Sends a document or a form.
    ///
    /// # Errors
    /// DESTINATION_BLOCKED; AUTHORIZATION_UNAVAILABLE if no answer comes.
    pub(super) async fn post(
        &self,
        url: &Url,
        content_type: &'static str,
        headers: Vec<(HeaderName, HeaderValue)>,
        body: Vec<u8>,
    ) -> Result<Reply> {
        self.check(url)?;
        let content_type = HeaderValue::from_static(content_type);
        let mut request = self
            .client
            .post(url.clone())
            .header(CONTENT_TYPE, content_type);
        for (name, mut value) in headers {
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        self.run(url, request.body(body)).await
    }

    async fn run(&self, url: &Url, request: reqwest::RequestBuilder) -> Result<Reply> {
        let request = request.header(ACCEPT, JSON).timeout(self.timeout);
        let failed = |error: &reqwest::Error| failure(url, error);
        let mut answer = request.send().await.map_err(|error| failed(&error))?;
        let mut reply = Reply {
            status: answer.status(),
            headers: std::mem::take(answer.headers_mut()),
            body: Vec::new(),
            cut: false,
        };
        // A stream of events has no end that could be waited for, and is no document: some MCP servers open one at any path.
        if is_event_stream(&reply.headers) {
            return Ok(reply);
        }
        while let Some(chunk) = answer.chunk().await.map_err(|error| failed(&error))? {
            let room = self.limit.saturating_sub(reply.body.len());
            if chunk.len() > room {
                reply.body.extend_from_slice(&chunk[..room]);
                reply.cut = true;
                break;
            }
            reply.body.extend_from_slice(&chunk);
        }
        Ok(reply)
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| {
        let essence = kind.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("text/event-stream")
    })
}

/// Whether an error says that a redirect was not followed.
pub(super) fn is_redirect(error: &Error) -> bool {
    error.reason() == Reason::DestinationBlocked
        && error
            .facts()
            .contains(&("rule".into(), "redirect".to_owned()))
}

/// That a URL is not usable now.
pub(super) fn unavailable(url: &Url, what: impl fmt::Display) -> Error {
    Error::new(
        Reason::AuthorizationUnavailable,
        format!(
            "`{}` {what}; nothing is lost, and it is tried again",
            printable(url)
        ),
    )
}

fn failure(url: &Url, error: &reqwest::Error) -> Error {
    if let Some(blocked) = blocked_cause(error) {
        return blocked;
    }
    if error.is_timeout() {
        return unavailable(url, "does not answer in time (`auth.request_timeout`)");
    }
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(std::error::Error::source) {
        cause = Some(deeper);
    }
    match cause {
        Some(cause) => unavailable(url, format_args!("does not answer: {cause}")),
        None => unavailable(url, "does not answer"),
    }
}

/// Whether a URL leads to this host, by its host alone (RFC 8252 section 8.3, RFC 6761 section 6.3).
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            let last = name.rsplit('.').next().unwrap_or(name);
            last.eq_ignore_ascii_case("localhost")
        }
        None => false,
    }
}

/// Whether a text holds nothing that URL parsers skip over in silence.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte > b' ' && byte != 0x7f) && !text.contains('\\')
}

#[cfg(test)]
#[path = "web_tests.rs"]
mod tests;
