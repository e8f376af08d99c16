//! Which destinations the daemon may talk to, and the only maker of HTTP clients.
//!
//! An address is judged at the moment of every connection, after name resolution, so that a name that changes its
//! mind (DNS rebinding) gains nothing. Never reads proxies from the environment, never keeps cookies, never follows a
//! redirect to another origin.
//!
//! One duty stays with callers: the HTTP stack does not resolve a host that is an IP literal, so each request's URL
//! goes through [`Policy::check_url`] first (behaviours 37 to 46).

pub mod address;
mod client;

use std::net::IpAddr;
use std::sync::Arc;

use url::{Host, Url};

pub use client::{ClientOptions, blocked_cause, printable};

use crate::config::{HostRule, PolicyConfig};
use crate::error::{Error, Reason, Result};

/// Host names of cloud metadata services; blocked whatever they resolve to, unless `policy.allow` names them.
const METADATA_HOSTS: &[&str] = &[
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
];

/// The address policy. Cheap to clone; never changes.
#[derive(Clone, Debug)]
pub struct Policy(Arc<PolicyConfig>);

/// How a host name stands with the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NameVerdict {
    /// `policy.allow` names it: only `policy.block` applies to its addresses.
    Trusted,
    /// Its addresses decide.
    Plain,
    /// Refused whatever it resolves to.
    Blocked(&'static str),
}

impl Policy {
    /// A policy with these rules.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        Self(Arc::new(config.clone()))
    }

    /// Checks what can be checked without resolving: scheme, user info, a blocked name, and a literal address in any
    /// form (the URL standard has made `0x7f.1` and `2130706433` plain addresses by then). Call it before every
    /// request: a literal address is not seen by the client's resolver.
    ///
    /// # Errors
    /// DESTINATION_BLOCKED, with the facts `host` and, for an address, `rule`.
    pub fn check_url(&self, url: &Url) -> Result<()> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(blocked(
                url.host_str().unwrap_or_default(),
                format!("scheme `{}`", url.scheme()),
                "only http and https are spoken",
            ));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(blocked(
                url.host_str().unwrap_or_default(),
                "user info in the URL",
                "send credentials as a header",
            ));
        }
        match url.host() {
            Some(Host::Ipv4(ip)) => self.check_literal(IpAddr::V4(ip)),
            Some(Host::Ipv6(ip)) => self.check_literal(IpAddr::V6(ip)),
            Some(Host::Domain(name)) => match self.judge_name(name) {
                NameVerdict::Blocked(rule) => Err(blocked(name, rule, &remedy(name))),
                NameVerdict::Plain | NameVerdict::Trusted => Ok(()),
            },
            None => Err(blocked("", "no host", "name a host")),
        }
    }

    /// Checks whether a Unix socket may be connected to.
    ///
    /// # Errors
    /// DESTINATION_BLOCKED, with the facts `host` and `rule`.
    pub fn check_socket(&self, path: &str) -> Result<()> {
        if self.0.allow_unix_sockets {
            return Ok(());
        }
        Err(blocked(
            path,
            "Unix socket",
            "the operator allows Unix sockets with policy.allow_unix_sockets",
        ))
    }

    /// Judges one address that a host name does not speak for.
    ///
    /// # Errors
    /// DESTINATION_BLOCKED, with the facts `host` and `rule`.
    pub fn check_ip(&self, ip: IpAddr) -> Result<()> {
        self.check_literal(ip)
    }

    fn check_literal(&self, ip: IpAddr) -> Result<()> {
        match self.judge(ip, NameVerdict::Plain) {
            None => Ok(()),
            Some(rule) => {
                let host = ip.to_string();
                Err(blocked(&host, rule, &remedy(&host)))
            }
        }
    }

    /// Why an address is refused; `None` if it is not. Every form of it is judged: the address itself and each IPv4
    /// address that it carries.
    fn judge(&self, ip: IpAddr, name: NameVerdict) -> Option<&'static str> {
        if let NameVerdict::Blocked(rule) = name {
            return Some(rule);
        }
        let listed = |rules: &[HostRule], ip| rules.iter().any(|rule| rule.matches_ip(ip));
        for form in address::forms(ip) {
            if listed(&self.0.block, form) {
                return Some("policy.block");
            }
            if name == NameVerdict::Trusted || listed(&self.0.allow, form) {
                continue;
            }
            let Some(range) = address::special_range(form) else {
                continue;
            };
            let open = match range.kind {
                address::Kind::Loopback => self.0.allow_loopback,
                address::Kind::Private => self.0.allow_private,
                address::Kind::Never => false,
            };
            if !open {
                return Some(range.name);
            }
        }
        None
    }

    fn judge_name(&self, name: &str) -> NameVerdict {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if self.0.block.iter().any(|rule| rule.matches_host(&name)) {
            return NameVerdict::Blocked("policy.block");
        }
        if self.0.allow.iter().any(|rule| rule.matches_host(&name)) {
            return NameVerdict::Trusted;
        }
        if METADATA_HOSTS.contains(&name.as_str()) {
            return NameVerdict::Blocked("metadata service");
        }
        NameVerdict::Plain
    }
}

fn remedy(host: &str) -> String {
    format!("if it is meant, the operator can add `{host}` to `policy.allow`")
}

fn blocked(host: &str, rule: impl Into<String>, remedy: &str) -> Error {
    let rule = rule.into();
    Error::new(
        Reason::DestinationBlocked,
        format!("`{host}` is not an allowed destination ({rule}); {remedy}"),
    )
    .with("host", host)
    .with("rule", rule)
}

#[cfg(test)]
#[path = "policy/tests.rs"]
mod tests;
