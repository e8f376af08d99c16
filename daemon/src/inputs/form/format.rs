//! The formats that MCP client/elicitation names: `email`, `uri`, `date` and `date-time`.
//!
//! Never refuses what a careful server would accept: the rules are the grammars of the RFCs, and where practice is
//! wider, practice. Formats that the specification does not name are not enforced.

use std::net::{Ipv4Addr, Ipv6Addr};

use url::Url;

/// What is wrong with a text of this format, if anything.
pub(super) fn refuse(format: &str, text: &str) -> Option<&'static str> {
    let (fits, message): (fn(&str) -> bool, _) = match format {
        "email" => (is_email, "must be an email address"),
        "uri" => (is_uri, "must be a URI such as https://example.com/"),
        "date" => (is_date, "must be a date such as 2026-07-28"),
        "date-time" => (
            is_date_time,
            "must be a date and time such as 2026-07-28T09:30:00Z",
        ),
        _ => return None,
    };
    (!fits(text)).then_some(message)
}

/// One address (RFC 5321 section 4.1.2): a dot-atom or quoted local part, a domain or an address literal. Letters beyond
/// ASCII are accepted, because people have such addresses (RFC 6531) and there is no other way to write them.
fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else {
        return false;
    };
    let local_fits = match local.strip_prefix('"') {
        Some(quoted) => quoted.strip_suffix('"').is_some_and(is_quoted),
        None => local
            .split('.')
            .all(|atom| !atom.is_empty() && atom.chars().all(is_atom)),
    };
    let literal = domain
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let domain_fits = match literal {
        Some(literal) => match literal.strip_prefix("IPv6:") {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => literal.parse::<Ipv4Addr>().is_ok(),
        },
        None => domain.len() <= 255 && domain.split('.').all(is_label),
    };
    // Section 4.5.3.1.1 counts octets of the local part.
    local.len() <= 64 && local_fits && domain_fits
}

fn is_atom(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || is_letter_beyond_ascii(c)
}

fn is_letter_beyond_ascii(c: char) -> bool {
    !c.is_ascii() && !c.is_whitespace() && !c.is_control()
}

/// The inside of a quoted local part: printable characters, with `"` and `\` after a `\`.
fn is_quoted(text: &str) -> bool {
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let printable = |c: char| (' '..='~').contains(&c) || is_letter_beyond_ascii(c);
        let fits = match c {
            '\\' => chars.next().is_some_and(printable),
            '"' => false,
            c => printable(c),
        };
        if !fits {
            return false;
        }
    }
    true
}

fn is_label(label: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || is_letter_beyond_ascii(c);
    !label.is_empty()
        && label.chars().count() <= 63
        && label.chars().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// An absolute URI (RFC 3986 section 3): a scheme and only characters that may stand in a URI. What it names must also
/// be a URL for schemes of the web. Letters beyond ASCII are refused, because they can be percent-encoded.
fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let scheme_fits = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let authority = rest.strip_prefix("//").map_or("", |rest| {
        rest.split(['/', '?', '#']).next().unwrap_or_default()
    });
    let behind = rest
        .strip_prefix("//")
        .map_or(rest, |rest| rest.get(authority.len()..).unwrap_or_default());
    let web = ["http", "https", "ws", "wss", "ftp"]
        .iter()
        .any(|one| scheme.eq_ignore_ascii_case(one));
    scheme_fits
        && has_uri_characters(authority, "[]")
        && has_uri_characters(behind, "/?#")
        && behind.matches('#').count() <= 1
        && (!web || (!authority.is_empty() && Url::parse(text).is_ok()))
}

fn has_uri_characters(text: &str, more: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let c = char::from(byte);
        let fits = match c {
            '%' => [bytes.next(), bytes.next()]
                .iter()
                .all(|digit| digit.is_some_and(|digit| digit.is_ascii_hexdigit())),
            c => c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:@".contains(c) || more.contains(c),
        };
        if !fits {
            return false;
        }
    }
    true
}

/// `full-date` of RFC 3339 section 5.6.
fn is_date(text: &str) -> bool {
    let [year, month, day] = text.split('-').collect::<Vec<_>>()[..] else {
        return false;
    };
    let (Some(year), Some(month), Some(day)) = (digits(year, 4), digits(month, 2), digits(day, 2))
    else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// `date-time` of RFC 3339 section 5.6. A leap second is accepted where one can be: at the end of a day in UTC.
fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't']) else {
        return false;
    };
    is_date(date) && is_time(time).unwrap_or(false)
}

fn is_time(text: &str) -> Option<bool> {
    let offset_at = text.find(['Z', 'z', '+', '-'])?;
    let (time, offset) = text.split_at_checked(offset_at)?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let fraction_fits = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let [hour, minute, second] = time.split(':').collect::<Vec<_>>()[..] else {
        return Some(false);
    };
    let (hour, minute, second) = (digits(hour, 2)?, digits(minute, 2)?, digits(second, 2)?);
    let ahead = if offset.eq_ignore_ascii_case("z") {
        0
    } else {
        let (hours, minutes) = offset.get(1..)?.split_once(':')?;
        let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
        if hours > 23 || minutes > 59 {
            return Some(false);
        }
        let size = hours * 60 + minutes;
        if offset.starts_with('-') { -size } else { size }
    };
    let last_minute = (hour * 60 + minute - ahead).rem_euclid(24 * 60) == 24 * 60 - 1;
    let second_fits = second <= 59 || (second == 60 && last_minute);
    Some(fraction_fits && hour <= 23 && minute <= 59 && second_fits)
}

/// Exactly `count` digits.
fn digits(text: &str, count: usize) -> Option<i32> {
    let fits = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    fits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::proptest;

    use super::refuse;

    fn check(format: &str, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(refuse(format, text), None, "{format}: {text}");
        }
        for text in bad {
            assert!(refuse(format, text).is_some(), "{format}: {text}");
        }
    }

    #[test]
    fn email() {
        check(
            "email",
            &[
                "ada@example.com",
                "a.b+tag@sub.example.co.uk",
                "o'neil@example.com",
                "root@localhost",
                "\"a b\\\"c@d\"@example.com",
                "x@[192.0.2.1]",
                "x@[IPv6:2001:db8::1]",
                "müller@bücher.example",
                "用户@例子.广告",
            ],
            &[
                "",
                "@",
                "ada",
                "ada@",
                "@example.com",
                "a b@example.com",
                ".a@example.com",
                "a.@example.com",
                "a..b@example.com",
                "a@b@example.com",
                "a@-b.com",
                "a@b-.com",
                "a@b..com",
                "a@b.com.",
                "a@exa_mple.com",
                "a@[300.0.0.1]",
                "a@[192.0.2.1",
                "\"a@example.com",
                "\"a\"b\"@example.com",
                "Ada <ada@example.com>",
                "a@example.com\n",
                "a@example.com, b@example.com",
                "mailto:a@example.com",
            ],
        );
        let long = format!("{}@example.com", "a".repeat(65));
        assert!(refuse("email", &long).is_some());
    }

    #[test]
    fn uri() {
        check(
            "uri",
            &[
                "https://example.com/",
                "https://user@example.com:8080/a%20b?x=1&y=2#top",
                "http://[2001:db8::1]/",
                "HTTP://example.com",
                "urn:isbn:0451450523",
                "mailto:ada@example.com",
                "file:///etc/hosts",
                "data:text/plain,x",
                "tel:+1-816-555-1212",
                "x-custom+1.0:anything",
            ],
            &[
                "",
                "example.com",
                "/relative",
                "//example.com/",
                "1http://x",
                ":x",
                "https://",
                "https:///path",
                "https:example.com",
                "https://exa mple.com/",
                "https://example.com/ ",
                "https://example.com/%zz",
                "https://example.com/%2",
                "https://example.com/ü",
                "https://example.com/\\x",
                "https://example.com/<x>",
                "https://example.com/#a#b",
                "https://example.com:99999/",
                "https://[::1/",
                "http://a b",
            ],
        );
    }

    #[test]
    fn date() {
        check(
            "date",
            &[
                "2026-07-28",
                "2024-02-29",
                "2000-02-29",
                "0000-01-01",
                "9999-12-31",
            ],
            &[
                "",
                "2026-7-28",
                "2026-02-29",
                "1900-02-29",
                "2026-13-01",
                "2026-00-01",
                "2026-04-31",
                "2026-01-00",
                "20260728",
                "2026-07-28T00:00:00Z",
                "26-07-28",
                "2026-07-28 ",
                "-2026-07-28",
                "2026-07-２８",
                "+026-07-28",
            ],
        );
    }

    #[test]
    fn date_time() {
        check(
            "date-time",
            &[
                "2026-07-28T09:30:00Z",
                "2026-07-28t09:30:00z",
                "2026-07-28T09:30:00.123456789012Z",
                "2026-07-28T09:30:00+05:30",
                "2026-07-28T09:30:00-23:59",
                "1990-12-31T23:59:60Z",
                "1990-12-31T15:59:60-08:00",
                "1991-01-01T00:59:60.5+01:00",
            ],
            &[
                "",
                "2026-07-28",
                "2026-07-28 09:30:00Z",
                "2026-07-28T09:30Z",
                "2026-07-28T09:30:00",
                "2026-07-28T24:00:00Z",
                "2026-07-28T09:60:00Z",
                "2026-07-28T09:30:60Z",
                "2026-07-28T09:30:61Z",
                "2026-07-28T09:30:00.Z",
                "2026-07-28T09:30:00+0530",
                "2026-07-28T09:30:00+24:00",
                "2026-07-28T09:30:00+05:60",
                "2026-07-28T09:30:00ZZ",
                "2026-07-28T9:30:00Z",
                "2026-02-30T09:30:00Z",
                "2026-07-28T09:30:00Zü",
            ],
        );
    }

    #[test]
    fn other_formats_are_not_enforced() {
        check("", &["anything"], &[]);
        check("hostname", &["not a host"], &[]);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*", almost in "[0-9Tt:Zz.+@\\[\\]\"\\\\%/#?a-]{0,40}") {
            for format in ["email", "uri", "date", "date-time"] {
                refuse(format, &text);
                refuse(format, &almost);
            }
        }
    }
}
