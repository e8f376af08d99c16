//! The small languages inside configuration values: socket modes, host rules, access rules.
//!
//! Parses and matches; decides nothing. What a match means is said by `policy` and `api::peer`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::base::NamespacePattern;

/// Reads a value from text and names the text in the error.
fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(de::Error::custom)
}

/// Permissions of a socket file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketMode(pub u32);

impl Default for SocketMode {
    fn default() -> Self {
        Self(0o660)
    }
}

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        u32::from_str_radix(digits, 8)
            .ok()
            .filter(|mode| *mode <= 0o777 && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a mode; write octal digits, such as \"0660\""))
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for SocketMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SocketMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// A destination in `policy.allow` or `policy.block`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostRule {
    /// An address or a network in CIDR form.
    Net(IpNet),
    /// Exactly this host name; lower case, without a trailing dot.
    Host(String),
    /// Every name below this domain, but not the domain itself.
    Subdomains(String),
}

impl HostRule {
    /// Whether the rule names this address.
    #[must_use]
    pub fn matches_ip(&self, ip: IpAddr) -> bool {
        matches!(self, Self::Net(net) if net.contains(&ip))
    }

    /// Whether the rule names this host; `host` is in lower case and has no trailing dot.
    #[must_use]
    pub fn matches_host(&self, host: &str) -> bool {
        match self {
            Self::Net(_) => false,
            Self::Host(name) => name == host,
            Self::Subdomains(domain) => host
                .strip_suffix(domain.as_str())
                .is_some_and(|head| head.len() > 1 && head.ends_with('.')),
        }
    }
}

impl FromStr for HostRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(Self::Net(net));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::Net(ip.into()));
        }
        let (wild, name) = match text.strip_prefix("*.") {
            Some(domain) => (true, domain),
            None => (false, text),
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let labels_ok = name.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        });
        let numeric = name
            .rsplit('.')
            .next()
            .is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
        if !labels_ok || numeric || name.len() > 253 {
            return Err(format!(
                "`{text}` is no address, network or host name; write for example \"10.1.2.3\", \"10.0.0.0/8\", \
                 \"intranet.example\" or \"*.intranet.example\" (international names in punycode)"
            ));
        }
        Ok(if wild {
            Self::Subdomains(name)
        } else {
            Self::Host(name)
        })
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) => fmt::Display::fmt(net, f),
            Self::Host(name) => f.write_str(name),
            Self::Subdomains(domain) => write!(f, "*.{domain}"),
        }
    }
}

impl Serialize for HostRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// One entry of `access`: callers that match `uid` and `gid` may use `namespaces`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessRule {
    /// The caller's effective user id. Absent: any.
    #[serde(default)]
    pub uid: Option<u32>,
    /// The caller's effective primary group id; supplementary groups do not count. Absent: any.
    #[serde(default)]
    pub gid: Option<u32>,
    /// The namespaces, for example `["a", "team-*"]`; `["*"]` means all. Not empty.
    pub namespaces: Vec<NamespacePattern>,
}

#[cfg(test)]
mod tests {
    use super::{HostRule, SocketMode};

    #[test]
    fn modes_are_octal() {
        assert_eq!("0660".parse(), Ok(SocketMode(0o660)));
        assert_eq!("0o600".parse(), Ok(SocketMode(0o600)));
        for bad in ["", "0888", "rw-rw----", "1777", "+660", "-1"] {
            assert!(bad.parse::<SocketMode>().is_err(), "{bad}");
        }
    }

    #[test]
    fn host_rules_name_what_they_say() {
        let rule = |text: &str| text.parse::<HostRule>().unwrap();
        assert!(rule("10.0.0.0/8").matches_ip("10.1.2.3".parse().unwrap()));
        assert!(rule("fe80::1").matches_ip("fe80::1".parse().unwrap()));
        assert!(!rule("fe80::1").matches_ip("fe80::2".parse().unwrap()));
        assert!(rule("Intranet.Example.").matches_host("intranet.example"));
        assert!(rule("*.example").matches_host("a.b.example"));
        assert!(!rule("*.example").matches_host("example"));
        assert!(!rule("*.example").matches_host("badexample"));
        for bad in [
            "",
            "*",
            "a b",
            "10.0.0.0/33",
            "300.1.1.1",
            "https://x",
            "*.*.x",
        ] {
            assert!(bad.parse::<HostRule>().is_err(), "{bad}");
        }
    }
}
