//! Tests of `web`.

use std::time::Duration;

use url::Url;

use super::super::site::{LIMIT, Site, message, web};
use super::{Reply, Web, is_loopback, is_redirect};
use crate::error::Reason;

fn parse(url: &str) -> Url {
    Url::parse(url).unwrap()
}

#[test]
fn this_host_is_known_by_its_names() {
    for host in [
        "127.0.0.1",
        "127.9.9.9",
        "[::1]",
        "localhost",
        "LOCALHOST.",
        "a.b.localhost",
    ] {
        assert!(is_loopback(&parse(&format!("http://{host}:1/"))), "{host}");
    }
    for host in [
        "localhost.example",
        "notlocalhost",
        "10.0.0.1",
        "[::2]",
        "[::ffff:127.0.0.1]",
    ] {
        assert!(!is_loopback(&parse(&format!("http://{host}/"))), "{host}");
    }
}

#[tokio::test]
async fn what_others_name_has_to_be_encrypted_and_allowed() {
    let web = web();
    for good in [
        "https://as.example/token",
        "http://127.0.0.1:9/token",
        "http://localhost/",
    ] {
        assert!(web.url("it", good).is_ok(), "{good}");
    }
    for (bad, reason) in [
        ("javascript:alert(1)", Reason::CredentialsRefused),
        ("/token", Reason::CredentialsRefused),
        ("", Reason::CredentialsRefused),
        ("https://", Reason::CredentialsRefused),
        ("data:text/plain,x", Reason::CredentialsRefused),
        ("https://as.example/#part", Reason::CredentialsRefused),
        ("https://as.example/a b", Reason::CredentialsRefused),
        (
            "https://as.example\\@evil.example/",
            Reason::CredentialsRefused,
        ),
        ("ht\ntps://as.example/", Reason::CredentialsRefused),
        ("http://as.example/token", Reason::DestinationBlocked),
        ("ftp://as.example/token", Reason::DestinationBlocked),
        ("https://me@as.example/token", Reason::DestinationBlocked),
        ("https://10.0.0.1/token", Reason::DestinationBlocked),
        ("https://169.254.169.254/latest", Reason::DestinationBlocked),
        (
            "https://metadata.google.internal/",
            Reason::DestinationBlocked,
        ),
    ] {
        let error = web.url("the endpoint", bad).unwrap_err();
        assert_eq!(error.reason(), reason, "{bad}: {error}");
    }
    let long = format!("https://as.example/{}", "x".repeat(5000));
    assert!(web.url("it", &long).unwrap_err().message().len() < 500);
}

#[tokio::test]
async fn an_answer_has_a_bound() {
    let site = Site::start(|_, request| {
        let size = if request.target == "/big" {
            LIMIT + 1
        } else {
            LIMIT
        };
        message(200, "", &"x".repeat(size))
    })
    .await;
    let ask = async |path: &str| {
        web()
            .get(&parse(&format!("{}{path}", site.base)))
            .await
            .unwrap()
    };
    let whole = ask("/whole").await;
    assert!(!whole.cut && whole.body.len() == LIMIT);
    let big = ask("/big").await;
    assert!(big.cut && big.body.len() == LIMIT && big.object().is_none());
}

#[tokio::test]
async fn who_does_not_answer_is_unavailable() {
    let site = Site::start(|_, _| String::new()).await;
    let url = parse(&format!("{}/x?secret=1", site.base));
    let error = web().get(&url).await.unwrap_err();
    assert_eq!(error.reason(), Reason::AuthorizationUnavailable);
    assert!(
        error.message().contains(&site.base) && !error.message().contains("secret"),
        "{error}"
    );
}

#[test]
fn a_server_says_when_to_come_back() {
    let after = |value: &str| {
        let mut headers = http::HeaderMap::new();
        headers.insert("retry-after", value.parse().unwrap());
        let reply = Reply {
            status: http::StatusCode::SERVICE_UNAVAILABLE,
            headers,
            body: Vec::new(),
            cut: false,
        };
        reply.retry_after().map(|delay| delay.as_secs())
    };
    assert_eq!(after("2"), Some(2));
    assert_eq!(after(" 0 "), Some(0));
    assert_eq!(after("86400"), Some(3600), "within reason");
    assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(0));
    assert_eq!(after("Sun, 31 Dec 2299 23:59:59 GMT"), Some(3600));
    assert_eq!(
        (after("soon"), after("-1"), after("99999999999999999999")),
        (None, None, None)
    );
}

#[tokio::test]
async fn a_slow_answer_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = parse(&format!("http://{}/", listener.local_addr().unwrap()));
    let quick = Web {
        timeout: Duration::from_millis(50),
        ..web()
    };
    let error = quick.get(&url).await.unwrap_err();
    assert_eq!(error.reason(), Reason::AuthorizationUnavailable);
    assert!(error.message().contains("auth.request_timeout"), "{error}");
}

#[tokio::test]
async fn redirects_elsewhere_are_not_followed() {
    let site = Site::start(|base, request| match request.target.as_str() {
        "/same" => message(308, "location: /end\r\n", ""),
        "/other" => message(
            307,
            &format!("location: {}\r\n", base.replace("127.0.0.1", "localhost")),
            "",
        ),
        "/page" => message(302, "location: /login\r\n", ""),
        _ => message(200, "", "{}"),
    })
    .await;
    let ask = async |path: &str| web().get(&parse(&format!("{}{path}", site.base))).await;
    assert!(ask("/same").await.unwrap().object().is_some());
    assert!(is_redirect(&ask("/other").await.unwrap_err()));
    assert!(is_redirect(&ask("/page").await.unwrap_err()));
    assert!(!is_redirect(
        &web().get(&parse("https://10.0.0.1/")).await.unwrap_err()
    ));
    assert_eq!(site.targets(), ["/same", "/end", "/other", "/page"]);
}
