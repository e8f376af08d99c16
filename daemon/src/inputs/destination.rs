//! Where the URL of a question leads, and what a person should know before opening it (MCP client/elicitation, Safe URL
//! Handling, rules 5 and 6 for clients).
//!
//! Pure. Never opens, fetches or resolves anything, and never changes the URL.

use std::net::IpAddr;

use unicode_security::MixedScript;
use url::{Host, Url};

/// A URL, looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Destination {
    /// The host in lower case as it goes over the wire, IPv6 addresses in brackets; empty if there is none.
    pub host: String,
    /// What may be wrong with the URL, each once, in the order of [`Warning`].
    pub warnings: Vec<Warning>,
}

/// What may be wrong with a URL. Part of the contract: warnings are added, never renamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Warning {
    /// It is not an absolute URL.
    Invalid,
    /// Its scheme is not `https`.
    NotHttps,
    /// It has a user name or a password, which can look like a host.
    UserInfo,
    /// Its host is an IP address.
    IpAddress,
    /// Its host has characters beyond ASCII.
    Punycode,
    /// A label of its host mixes scripts (UTS 39 section 5.1).
    MixedScript,
    /// It has characters that no URL has, or not two slashes in front of the host: readers disagree about it.
    Ambiguous,
}

impl Warning {
    /// The code as apps see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "INVALID",
            Self::NotHttps => "NOT_HTTPS",
            Self::UserInfo => "USER_INFO",
            Self::IpAddress => "IP_ADDRESS",
            Self::Punycode => "PUNYCODE",
            Self::MixedScript => "MIXED_SCRIPT",
            Self::Ambiguous => "AMBIGUOUS",
        }
    }
}

impl Destination {
    /// Looks at a URL.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let ambiguous = text.chars().any(is_foreign_to_urls);
        let Ok(url) = Url::parse(text) else {
            let warnings = [(true, Warning::Invalid), (ambiguous, Warning::Ambiguous)];
            return Self::new(String::new(), &warnings);
        };
        let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
        let address = match url.host() {
            Some(Host::Ipv4(_) | Host::Ipv6(_)) => true,
            // The scheme is none of the web's, so that nobody has looked at the host yet.
            Some(Host::Domain(name)) => name.parse::<IpAddr>().is_ok(),
            None => false,
        };
        let mixed = host.split('.').any(|label| {
            let (label, _) = idna::domain_to_unicode(label);
            !label.as_str().is_single_script()
        });
        let warnings = [
            (url.scheme() != "https", Warning::NotHttps),
            (
                !url.username().is_empty() || url.password().is_some(),
                Warning::UserInfo,
            ),
            (address, Warning::IpAddress),
            (is_beyond_ascii(&host), Warning::Punycode),
            (mixed, Warning::MixedScript),
            (ambiguous || has_odd_slashes(&url, text), Warning::Ambiguous),
        ];
        Self::new(host, &warnings)
    }

    fn new(host: String, warnings: &[(bool, Warning)]) -> Self {
        let given = warnings.iter().filter(|(given, _)| *given);
        Self {
            host,
            warnings: given.map(|(_, warning)| *warning).collect(),
        }
    }
}

/// Names beyond ASCII are `xn--` labels by now, and percent-encoded with schemes that are none of the web's.
fn is_beyond_ascii(host: &str) -> bool {
    host.contains('%') || host.split('.').any(|label| label.starts_with("xn--"))
}

/// Whether something else than two slashes is between scheme and host. Browsers repair that; others may not.
fn has_odd_slashes(url: &Url, text: &str) -> bool {
    let behind = text.split_once(':').map_or("", |(_, behind)| behind);
    let path = behind.strip_prefix("//");
    url.has_host() && path.is_none_or(|path| path.starts_with('/'))
}

/// White space, control characters, backslashes (a slash to browsers) and characters that cannot be seen or turn the
/// direction of what follows.
fn is_foreign_to_urls(c: char) -> bool {
    c == '\\'
        || c.is_whitespace()
        || c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::proptest;

    use super::{Destination, Warning};

    #[test]
    fn urls_lead_somewhere() {
        use Warning::{Ambiguous, Invalid, IpAddress, MixedScript, NotHttps, Punycode, UserInfo};
        let table: &[(&str, &str, &[Warning])] = &[
            ("https://mcp.example.com/ui?x=1#y", "mcp.example.com", &[]),
            ("HTTPS://MCP.Example.COM:8443/", "mcp.example.com", &[]),
            ("https://example.com./", "example.com.", &[]),
            (
                "https://example.com/@evil.example/xn--x",
                "example.com",
                &[],
            ),
            ("http://localhost:3000/", "localhost", &[NotHttps]),
            ("ftp://example.com/", "example.com", &[NotHttps]),
            ("javascript:alert(1)", "", &[NotHttps]),
            ("file:///etc/passwd", "", &[NotHttps]),
            ("data:text/html,x", "", &[NotHttps]),
            (
                "https://bank.example@evil.example/",
                "evil.example",
                &[UserInfo],
            ),
            ("https://:secret@evil.example/", "evil.example", &[UserInfo]),
            ("https://192.0.2.1/", "192.0.2.1", &[IpAddress]),
            ("https://3221225985/", "192.0.2.1", &[IpAddress]),
            ("https://0xc0.0.2.1/", "192.0.2.1", &[IpAddress]),
            ("https://[2001:DB8::1]:1/", "[2001:db8::1]", &[IpAddress]),
            ("app://192.0.2.1/", "192.0.2.1", &[NotHttps, IpAddress]),
            ("app://Some.Host/", "some.host", &[NotHttps]),
            ("app://b\u{fc}cher/", "b%c3%bccher", &[NotHttps, Punycode]),
            (
                "https://xn--bcher-kva.example/",
                "xn--bcher-kva.example",
                &[Punycode],
            ),
            (
                "https://b\u{fc}cher.example/",
                "xn--bcher-kva.example",
                &[Punycode],
            ),
            // All Cyrillic, and looks like "apple".
            (
                "https://\u{430}\u{440}\u{440}\u{4cf}\u{435}.com/",
                "xn--80ak6aa92e.com",
                &[Punycode],
            ),
            // "paypal" with Cyrillic letters among the Latin ones.
            (
                "https://p\u{430}yp\u{430}l.com/",
                "xn--pypl-53dc.com",
                &[Punycode, MixedScript],
            ),
            (
                "https://xn--pypl-53dc.com/",
                "xn--pypl-53dc.com",
                &[Punycode, MixedScript],
            ),
            // Japanese is written in several scripts, and labels may differ.
            (
                "https://\u{65e5}\u{672c}\u{306e}\u{30c6}.example/",
                "xn--u9jxjz42mncb.example",
                &[Punycode],
            ),
            ("https://example.com/a b", "example.com", &[Ambiguous]),
            (" https://example.com/", "example.com", &[Ambiguous]),
            (
                "https://good.example\\@evil.example/",
                "good.example",
                &[Ambiguous],
            ),
            ("https://good.exa\tmple/", "good.example", &[Ambiguous]),
            (
                "https://example.com/\u{202e}gpj.exe",
                "example.com",
                &[Ambiguous],
            ),
            ("https://exam\u{ad}ple.com/", "example.com", &[Ambiguous]),
            ("https:example.com", "example.com", &[Ambiguous]),
            ("https:///example.com", "example.com", &[Ambiguous]),
            ("", "", &[Invalid]),
            ("example.com", "", &[Invalid]),
            ("//example.com/", "", &[Invalid]),
            ("https://", "", &[Invalid]),
            ("https://exa mple.com/", "", &[Invalid, Ambiguous]),
        ];
        for (url, host, warnings) in table {
            let found = Destination::of(url);
            assert_eq!(
                (found.host.as_str(), found.warnings.as_slice()),
                (*host, *warnings),
                "{url}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*", host in "[a-z0-9а-я\\[\\]:.@%\\\\-]{0,20}") {
            let _ = Destination::of(&text);
            let found = Destination::of(&format!("https://{host}/"));
            assert!(found.host.is_ascii());
        }
    }
}
