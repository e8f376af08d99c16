//! The policy's tables, the smuggling property, and a real client against loopback peers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::{any, prop_assert, proptest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;
use url::Url;

use super::client::{Lookup, Names};
use super::{ClientOptions, Policy, blocked_cause};
use crate::config::PolicyConfig;
use crate::error::Reason;

fn policy(change: impl FnOnce(&mut PolicyConfig)) -> Policy {
    let mut config = PolicyConfig::default();
    change(&mut config);
    Policy::new(&config)
}

fn strict() -> Policy {
    policy(|config| config.allow_loopback = false)
}

fn permits(policy: &Policy, url: &str) -> bool {
    let verdict = policy.check_url(&Url::parse(url).unwrap());
    if let Err(error) = &verdict {
        assert_eq!(error.reason(), Reason::DestinationBlocked);
    }
    verdict.is_ok()
}

#[test]
fn special_addresses_are_blocked() {
    for host in [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.9.9.9",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "0x7f.1",
        "2130706433",
        "0177.0.0.1",
        "127.0.0.1.",
        "[::]",
        "[::1]",
        "[fc00::1]",
        "[fdff::1]",
        "[fe80::1]",
        "[fe81::1]",
        "[feab::1]",
        "[febf::1]",
        "[fec0::1]",
        "[ff02::1]",
        "[::ffff:10.0.0.1]",
        "[::ffff:a9fe:a9fe]",
        "[::a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::1]",
        "[2002:a9fe:a9fe::]",
        "[2001:0:1234::1]",
        "[::ffff:0:a9fe:a9fe]",
        "metadata.google.internal",
        "metadata.google.internal.",
        "METADATA.google.internal",
    ] {
        assert!(!permits(&strict(), &format!("http://{host}/x")), "{host}");
    }
}

#[test]
fn the_public_internet_is_open() {
    for host in [
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.1",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "[2606:4700::1111]",
        "[fe7f::1]",
        "[fbff::1]",
        "[2001:1::1]",
        "[2003::1]",
        "[::ffff:1.1.1.1]",
        "example.com",
        "localhost",
        "metadata.google.internal.example.com",
    ] {
        assert!(permits(&strict(), &format!("https://{host}/x")), "{host}");
    }
}

#[test]
fn only_http_without_user_info_is_spoken() {
    for url in [
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://me@example.com/",
        "https://:p@example.com/",
    ] {
        assert!(!permits(&strict(), url), "{url}");
    }
}

#[test]
fn switches_open_their_ranges_and_nothing_else() {
    let loopback = policy(|_| {});
    assert!(permits(&loopback, "http://127.0.0.1:1/") && permits(&loopback, "http://[::1]/"));
    assert!(permits(&loopback, "http://[::ffff:127.0.0.1]/"));
    assert!(!permits(&loopback, "http://10.0.0.1/") && !permits(&loopback, "http://0.0.0.0/"));

    let private = policy(|config| config.allow_private = true);
    for host in [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "[fd00::1]",
    ] {
        assert!(permits(&private, &format!("http://{host}/")), "{host}");
    }
    for host in [
        "169.254.169.254",
        "[fe80::1]",
        "[2002:0a00:0001::]",
        "[64:ff9b::10.0.0.1]",
    ] {
        assert!(!permits(&private, &format!("http://{host}/")), "{host}");
    }
}

#[test]
fn lists_refine_the_rules_and_block_wins() {
    let listed = policy(|config| {
        config.allow = ["10.1.0.0/16", "64:ff9b::/96", "*.corp.example"]
            .map(|rule| rule.parse().unwrap())
            .to_vec();
        config.block = ["10.1.9.0/24", "1.1.1.1", "bad.corp.example"]
            .map(|rule| rule.parse().unwrap())
            .to_vec();
    });
    assert!(permits(&listed, "http://10.1.2.3/"));
    assert!(!permits(&listed, "http://10.2.0.1/"));
    assert!(!permits(&listed, "http://10.1.9.1/"));
    assert!(!permits(&listed, "http://[::ffff:10.1.9.1]/"));
    assert!(!permits(&listed, "https://1.1.1.1/"));
    assert!(!permits(&listed, "https://bad.corp.example/"));
    assert!(permits(&listed, "https://[64:ff9b::8.8.8.8]/"));
    assert!(
        !permits(&listed, "https://[64:ff9b::169.254.169.254]/"),
        "the carried address is judged too"
    );
}

/// Every way to write an IPv4 address into a URL's host.
fn disguises(ip: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = ip.octets();
    let bits = ip.to_bits();
    let (high, low) = (bits >> 16, bits & 0xffff);
    let (inverse_high, inverse_low) = (!bits >> 16, !bits & 0xffff);
    vec![
        ip.to_string(),
        format!("{bits}"),
        format!("{bits:#x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("{a}.{}", bits & 0xff_ffff),
        format!("{a}.{b}.{low}"),
        format!("[::ffff:{high:x}:{low:x}]"),
        format!("[::{ip}]"),
        format!("[::ffff:0:{high:x}:{low:x}]"),
        format!("[64:ff9b::{high:x}:{low:x}]"),
        format!("[64:ff9b:1::{high:x}:{low:x}]"),
        format!(
            "[64:ff9b:1:{high:x}:{:x}:{:x}::]",
            low >> 8,
            (low & 0xff) << 8
        ),
        format!("[2002:{high:x}:{low:x}::1]"),
        format!("[2001:0:{high:x}:{low:x}::1]"),
        format!("[2001:0:808:808::{inverse_high:x}:{inverse_low:x}]"),
    ]
}

proptest! {
    #[test]
    fn no_form_smuggles_a_blocked_address(bits in any::<u32>(), range in 0_usize..11) {
        let (base, prefix) = [
            ([0, 0, 0, 0], 8), ([10, 0, 0, 0], 8), ([100, 64, 0, 0], 10), ([127, 0, 0, 0], 8), ([169, 254, 0, 0], 16),
            ([172, 16, 0, 0], 12), ([192, 0, 0, 0], 24), ([192, 168, 0, 0], 16), ([198, 18, 0, 0], 15),
            ([224, 0, 0, 0], 4), ([240, 0, 0, 0], 4),
        ][range];
        let ip = Ipv4Addr::from_bits(Ipv4Addr::from(base).to_bits() | bits >> prefix);
        // Even an operator who opens every transition range does not open what they carry.
        let open = policy(|config| {
            config.allow_loopback = false;
            config.allow = ["::/3"].map(|rule| rule.parse().unwrap()).to_vec();
            config.allow.extend(["2001::/32", "2002::/16"].map(|rule| rule.parse().unwrap()));
        });
        for policy in [strict(), open] {
            for host in disguises(ip) {
                let url = format!("http://{host}/");
                // `::` and `::1` are addresses of their own, which the open policy names.
                let carrier = !matches!(host.as_str(), "[::0.0.0.0]" | "[::0.0.0.1]");
                prop_assert!(!carrier || !permits(&policy, &url), "{url}");
            }
        }
    }

    #[test]
    fn the_resolver_and_the_literal_check_agree(bits in any::<u128>()) {
        let ip = IpAddr::V6(Ipv6Addr::from_bits(bits));
        let literal = permits(&strict(), &format!("http://[{ip}]/"));
        prop_assert!(literal == strict().check_ip(ip).is_ok());
    }
}

/// Names of the test's own.
struct Book(HashMap<&'static str, Vec<IpAddr>>);

impl Names for Book {
    fn lookup(&self, name: String) -> Lookup {
        let found = self.0.get(name.as_str()).cloned().unwrap_or_default();
        let found = found.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect();
        Box::pin(std::future::ready(Ok(found)))
    }
}

fn client(policy: &Policy, names: &[(&'static str, &[&str])]) -> reqwest::Client {
    let book = names
        .iter()
        .map(|(name, ips)| (*name, ips.iter().map(|ip| ip.parse().unwrap()).collect()))
        .collect();
    let options = ClientOptions {
        connect_timeout: Duration::from_secs(5),
        keepalive: Duration::from_secs(30),
    };
    policy.build(options, Arc::new(Book(book))).unwrap()
}

/// A peer that gives every connection the same answer; `PORT` in it is the peer's own port.
async fn peer(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    TaskTracker::new().spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let answer = answer.replace("PORT", &port.to_string());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    port
}

const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";

#[tokio::test]
async fn a_name_that_resolves_to_a_blocked_address_is_blocked() {
    let client = client(&strict(), &[("inside.example", &["10.0.0.1", "::1"])]);
    let error = client
        .get("http://inside.example/")
        .send()
        .await
        .unwrap_err();
    let cause = blocked_cause(&error).unwrap();
    assert_eq!(cause.reason(), Reason::DestinationBlocked);
    assert!(cause.message().contains("inside.example"), "{cause}");
}

#[tokio::test]
async fn mixed_answers_lose_their_blocked_addresses() {
    let port = peer(HELLO).await;
    let loopback = policy(|_| {});
    let client = client(
        &loopback,
        &[(
            "mixed.example",
            &["10.0.0.1", "127.0.0.1", "169.254.169.254"],
        )],
    );
    let answer = client
        .get(format!("http://mixed.example:{port}/"))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.text().await.unwrap(), "hello");
}

#[tokio::test]
async fn an_allowed_name_may_resolve_to_a_private_address() {
    let port = peer(HELLO).await;
    let named = policy(|config| {
        config.allow_loopback = false;
        config.allow = vec!["inside.example".parse().unwrap()];
    });
    let client = client(&named, &[("inside.example", &["127.0.0.1"])]);
    assert!(
        client
            .get(format!("http://inside.example:{port}/"))
            .send()
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn other_failures_are_not_called_blocked() {
    let client = client(&policy(|_| {}), &[]);
    let error = client
        .get("http://nowhere.example/")
        .send()
        .await
        .unwrap_err();
    assert_eq!(blocked_cause(&error), None);
}

#[tokio::test]
async fn redirects_stay_at_their_origin() {
    let loopback = policy(|_| {});
    let names: &[(&str, &[&str])] = &[("a.example", &["127.0.0.1"]), ("b.example", &["127.0.0.1"])];
    for answer in [
        "HTTP/1.1 307 x\r\nlocation: http://b.example:PORT/?secret=1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 307 x\r\nlocation: http://10.0.0.1/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 307 x\r\nlocation: https://a.example:PORT/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 307 x\r\nlocation: /again\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    ] {
        let port = peer(answer).await;
        let client = client(&loopback, names);
        let error = client
            .get(format!("http://a.example:{port}/start?key=2"))
            .send()
            .await
            .unwrap_err();
        let cause = blocked_cause(&error).unwrap();
        assert!(
            cause
                .message()
                .contains(&format!("http://a.example:{port}/")),
            "{cause}"
        );
        assert!(
            !cause.message().contains("secret") && !cause.message().contains("key=2"),
            "{cause}"
        );
    }
}

#[tokio::test]
async fn a_redirect_within_the_origin_is_followed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    TaskTracker::new().spawn(async move {
        let first =
            "HTTP/1.1 308 x\r\nlocation: /end\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        for answer in [first, HELLO] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let client = client(&policy(|_| {}), &[("localhost", &["127.0.0.1"])]);
    let answer = client
        .get(format!("http://localhost:{port}/start"))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.url().path(), "/end");
    assert_eq!(answer.text().await.unwrap(), "hello");
}

#[test]
fn the_system_client_can_be_made() {
    let options = ClientOptions {
        connect_timeout: Duration::from_secs(5),
        keepalive: Duration::from_secs(30),
    };
    assert!(strict().http_client(options).is_ok());
}
