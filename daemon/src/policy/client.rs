//! HTTP clients that ask the policy: a resolver that filters, redirects that stay at home.

use std::error::Error as StdError;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect;
use url::Url;

use super::{NameVerdict, Policy, blocked, remedy};
use crate::error::{Error, Result};

/// Redirects that one request follows.
const MAX_REDIRECTS: usize = 5;
/// Idle connections that are kept per host; enough that a burst of calls finds its connections again.
const IDLE_PER_HOST: usize = 128;
/// How long an idle connection is kept.
const IDLE_FOR: Duration = Duration::from_secs(30);
/// TCP probes in a row without an answer after which a connection is given up.
const KEEPALIVE_PROBES: u32 = 3;

/// What differs between HTTP clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Bound on resolving, connecting and the TLS handshake.
    pub connect_timeout: Duration,
    /// How often the other end of a connection with nothing to say is probed, with TCP keep-alive and HTTP/2 pings.
    pub keepalive: Duration,
}

impl Policy {
    /// An HTTP client that connects only to what the policy permits. It has a connection pool: make few, clone them.
    ///
    /// `localhost` is both loopback addresses; whichever takes the connection is used. Every resolved address is judged: blocked ones are dropped, and a name with no other address fails with an
    /// error that [`blocked_cause`] recognises. Redirects are followed within the same origin only, at most five, each
    /// judged again; a refused one fails naming both URLs, so custom headers never leave the origin. No proxy, no
    /// cookies, no timeout beside the connect timeout; gzip and brotli are decoded; TLS is rustls with the system's
    /// roots.
    ///
    /// The caller must pass each request's URL through [`Policy::check_url`]: literal addresses are not resolved.
    ///
    /// # Errors
    /// INTERNAL if TLS cannot be set up, for example because the system has no root certificates.
    pub fn http_client(&self, options: ClientOptions) -> Result<reqwest::Client> {
        self.build(options, Arc::new(SystemResolver))
    }

    /// As [`Policy::http_client`], for one server: it proves itself in TLS (RFC 8705).
    ///
    /// # Errors
    /// INVALID_FIELD for a certificate that cannot be used with its key.
    pub fn identified_client(
        &self,
        options: ClientOptions,
        identity: reqwest::Identity,
    ) -> Result<reqwest::Client> {
        let resolver = GuardedResolver {
            policy: self.clone(),
            names: Arc::new(SystemResolver),
        };
        let builder = self.builder(options).dns_resolver(Arc::new(resolver));
        builder.identity(identity).build().map_err(|cause| {
            let why = chain(&cause);
            Error::invalid(
                "spec.http.client_certificate",
                format!("the certificate cannot be used: {why}"),
            )
        })
    }

    /// An HTTP client for one server on a Unix socket; it connects to nothing else, whatever host a URL or a redirect
    /// names. No TLS.
    ///
    /// # Errors
    /// DESTINATION_BLOCKED if the policy forbids Unix sockets; INTERNAL if the client cannot be set up.
    pub fn socket_client(&self, path: &str, options: ClientOptions) -> Result<reqwest::Client> {
        self.check_socket(path)?;
        finish(
            self.builder(options)
                .unix_socket(path)
                .tls_certs_only(std::iter::empty()),
        )
    }

    pub(super) fn build(
        &self,
        options: ClientOptions,
        names: Arc<dyn Names>,
    ) -> Result<reqwest::Client> {
        let resolver = GuardedResolver {
            policy: self.clone(),
            names,
        };
        finish(self.builder(options).dns_resolver(Arc::new(resolver)))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that makes HTTP clients"
    )]
    fn builder(&self, options: ClientOptions) -> reqwest::ClientBuilder {
        reqwest::Client::builder()
            .user_agent(concat!("mcp-sidecar/", env!("CARGO_PKG_VERSION")))
            .redirect(self.redirects())
            .referer(false)
            .no_proxy()
            .connect_timeout(options.connect_timeout)
            .pool_max_idle_per_host(IDLE_PER_HOST)
            .pool_idle_timeout(IDLE_FOR)
            // RFC 9112 section 5.2: in a response, a folded line is read as one.
            .http1_allow_obsolete_multiline_headers_in_responses(true)
            .tcp_keepalive(options.keepalive)
            .tcp_keepalive_interval(options.keepalive)
            .tcp_keepalive_retries(KEEPALIVE_PROBES)
            .http2_keep_alive_interval(options.keepalive)
            .http2_keep_alive_timeout(options.keepalive)
    }

    fn redirects(&self) -> redirect::Policy {
        let policy = self.clone();
        redirect::Policy::custom(move |attempt| {
            let Some(from) = attempt.previous().last().cloned() else {
                return attempt.stop();
            };
            let to = attempt.url().clone();
            let status = attempt.status().as_u16();
            let refusal = if !matches!(status, 307 | 308) {
                // Others turn a POST into a GET, and a message would be lost on the way.
                Some((
                    format!("HTTP {status} does not keep the request; use the new URL instead"),
                    None,
                ))
            } else if to.origin() != from.origin() {
                Some((String::from("it leads to another origin"), None))
            } else if let Err(cause) = policy.check_url(&to) {
                Some((cause.to_string(), Some(cause)))
            } else if attempt.previous().len() > MAX_REDIRECTS {
                Some((format!("it is not the end after {MAX_REDIRECTS}"), None))
            } else {
                None
            };
            match refusal {
                None => attempt.follow(),
                Some((why, cause)) => attempt.error(RefusedRedirect {
                    message: format!(
                        "the redirect from `{}` to `{}` is not followed: {why}",
                        printable(&from),
                        printable(&to)
                    ),
                    cause: cause.or_else(|| policy.check_url(&to).err()).map(Box::new),
                }),
            }
        })
    }
}

fn finish(builder: reqwest::ClientBuilder) -> Result<reqwest::Client> {
    builder.build().map_err(|cause| {
        Error::internal(format!(
            "the HTTP client cannot be set up: {}; are root certificates installed?",
            chain(&cause)
        ))
    })
}

/// The policy's refusal behind a failed request, if that is why it failed.
///
/// Looks through the whole chain of sources; `None` means that the request failed for another reason.
#[must_use]
pub fn blocked_cause(error: &reqwest::Error) -> Option<Error> {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Refused(error)) = cause.downcast_ref::<Refused>() {
            return Some(error.clone());
        }
        if let Some(refused) = cause.downcast_ref::<RefusedRedirect>() {
            return Some(refused.to_error());
        }
        source = cause.source();
    }
    None
}

/// A URL without what may be secret in it: user info, query and fragment.
#[must_use]
pub fn printable(url: &Url) -> String {
    let mut url = url.clone();
    let query = url.query().is_some();
    url.set_query(None);
    url.set_fragment(None);
    // A URL without a host has no user info to remove.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    if query {
        format!("{url}?...")
    } else {
        url.into()
    }
}

fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Our refusal inside the HTTP stack's error chain.
#[derive(Debug)]
struct Refused(Error);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for Refused {}

/// A redirect that was not followed.
#[derive(Debug)]
struct RefusedRedirect {
    message: String,
    cause: Option<Box<Error>>,
}

impl RefusedRedirect {
    fn to_error(&self) -> Error {
        let rule = "redirect".to_owned();
        let host = self.cause.as_ref().and_then(|cause| {
            let mut facts = cause.facts().iter();
            facts.find(|(key, _)| *key == "host")
        });
        let error = Error::new(
            crate::error::Reason::DestinationBlocked,
            format!(
                "{}; register the server at its final URL if that is meant",
                self.message
            ),
        )
        .with("rule", rule);
        match host {
            Some((_, host)) => error.with("host", host.clone()),
            None => error,
        }
    }
}

impl fmt::Display for RefusedRedirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for RefusedRedirect {}

/// Where names become addresses; tests put their own here.
pub(super) trait Names: Send + Sync {
    /// All addresses of a name; ports are zero.
    fn lookup(&self, name: String) -> Lookup;
}

/// What [`Names::lookup`] is waited for with.
pub(super) type Lookup =
    std::pin::Pin<Box<dyn Future<Output = std::io::Result<Vec<SocketAddr>>> + Send>>;

/// The resolver of the operating system.
struct SystemResolver;

impl Names for SystemResolver {
    fn lookup(&self, name: String) -> Lookup {
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((name, 0)).await?;
            Ok(addresses.collect())
        })
    }
}

/// Where `localhost` is, whatever the system's table of hosts says: a server on it may listen on either address only.
const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// Names that mean this host and are never looked up (RFC 6761 section 6.3).
fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or(name);
    last.eq_ignore_ascii_case("localhost")
}

/// Drops every address that the policy refuses.
struct GuardedResolver {
    policy: Policy,
    names: Arc<dyn Names>,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = self.policy.clone();
        let names = Arc::clone(&self.names);
        let name = name.as_str().to_owned();
        Box::pin(async move {
            let verdict = policy.judge_name(&name);
            if let NameVerdict::Blocked(rule) = verdict {
                let refusal = blocked(&name, rule, &remedy(&name));
                return Err(Refused(refusal).into());
            }
            let found = if is_localhost(&name) {
                LOOPBACK.map(|ip| SocketAddr::new(ip, 0)).to_vec()
            } else {
                names.lookup(name.clone()).await?
            };
            let mut refused = None;
            let permitted: Vec<SocketAddr> = found
                .into_iter()
                .filter(|address| match policy.judge(address.ip(), verdict) {
                    None => true,
                    Some(rule) => {
                        refused = Some((address.ip(), rule));
                        false
                    }
                })
                .collect();
            match refused {
                Some((ip, rule)) if permitted.is_empty() => {
                    let rule = format!("it resolves to {ip}: {rule}");
                    let refusal = blocked(&name, rule, &remedy(&name));
                    Err(Refused(refusal).into())
                }
                _ => Ok(Box::new(permitted.into_iter()) as Addrs),
            }
        })
    }
}
