//! The listener as browsers, and those who pretend to be one, meet it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A wait that only a failed test ever needs in full.
const PATIENCE: Duration = Duration::from_secs(20);

fn options() -> CallbackOptions {
    CallbackOptions {
        host: "127.0.0.1".to_owned(),
        port: 0,
        path: "/oauth/callback".to_owned(),
        public_url: None,
        success_redirect: None,
        error_redirect: None,
    }
}

/// A callback whose visitors all land here; the URLs they came with.
fn landing_at(options: CallbackOptions, landing: Landing) -> (Callback, mpsc::Receiver<String>) {
    let tasks = TaskTracker::new();
    let (callback, mut visits) = Callback::new(options, tasks.clone());
    let (urls, seen) = mpsc::channel(16);
    tasks.spawn(async move {
        while let Some(visit) = visits.recv().await {
            urls.try_send(visit.url).unwrap();
            visit.reply.send(landing.clone()).unwrap();
        }
    });
    (callback, seen)
}

fn signed_in() -> Landing {
    Landing::SignedIn {
        server: "Mail".to_owned(),
    }
}

fn port_of(uri: &str) -> u16 {
    Url::parse(uri).unwrap().port().unwrap()
}

/// Sends what is given and reads until the other end closes.
async fn say(address: impl tokio::net::ToSocketAddrs, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(PATIENCE, read)
        .await
        .expect("an answer")
        .unwrap();
    String::from_utf8(answer).unwrap()
}

/// What a browser sends to get a URL on this host.
async fn get(url: &str) -> String {
    let url = Url::parse(url).unwrap();
    let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
    let target = &url[url::Position::BeforePath..];
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let place = url.host_str().unwrap().trim_matches(['[', ']']).to_owned();
    say((place, url.port().unwrap()), &request).await
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (head, _) = answer.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

#[tokio::test]
async fn a_visitor_is_handed_on_and_sees_a_page_that_repeats_nothing() {
    let (callback, mut seen) = landing_at(options(), signed_in());
    let lease = callback.lease().await.unwrap();
    assert!(lease.is_listening());
    let uri = lease.redirect_uri().to_owned();
    assert!(uri.starts_with("http://127.0.0.1:") && uri.ends_with("/oauth/callback"));
    let url = format!("{uri}?code=very-secret&state=more-secret");
    let answer = get(&url).await;
    assert_eq!(seen.recv().await, Some(url));
    assert_eq!(status(&answer), "200");
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("connection", "close"),
    ] {
        assert_eq!(header(&answer, name), Some(value), "{answer}");
    }
    assert!(
        answer.contains("Mail") && !answer.contains("secret"),
        "{answer}"
    );
    let url = uri.clone();
    assert_eq!(status(&get(&url).await), "200");
    assert_eq!(
        seen.recv().await,
        Some(uri),
        "a visit without a query is one, too"
    );
}

#[tokio::test]
async fn what_is_not_meant_for_the_listener_is_refused_and_nobody_hears_of_it() {
    let (callback, mut seen) = landing_at(options(), signed_in());
    let lease = callback.lease().await.unwrap();
    let port = port_of(lease.redirect_uri());
    let own = format!("127.0.0.1:{port}");
    let target = "/oauth/callback?code=a&state=b";
    let ask = async |method: &str, target: &str, hosts: &[&str]| {
        let hosts: Vec<_> = hosts
            .iter()
            .map(|host| format!("Host: {host}\r\n"))
            .collect();
        let hosts = hosts.concat();
        say(&own, &format!("{method} {target} HTTP/1.1\r\n{hosts}\r\n")).await
    };
    for method in ["HEAD", "POST", "PUT", "OPTIONS", "DELETE", "BREW"] {
        let answer = ask(method, target, &[&own]).await;
        assert_eq!(
            (status(&answer), header(&answer, "allow")),
            ("405", Some("GET")),
            "{method}"
        );
    }
    for path in [
        "/",
        "/favicon.ico",
        "/oauth/callback/",
        "/oauth/Callback",
        "/oauth//callback",
        "/oauth/callback%2f",
        "/oauth/callback;x=1",
        "/x/../oauth/callback",
        "/oauth",
    ] {
        assert_eq!(status(&ask("GET", path, &[&own]).await), "404", "{path}");
    }
    let other_port = format!("127.0.0.1:{}", port ^ 1);
    let user = format!("user@{own}");
    let dotted = format!("localhost.:{port}");
    let wild = format!("0.0.0.0:{port}");
    let foreign: [&[&str]; 11] = [
        &["evil.example"],
        &["evil.example:80"],
        &["127.0.0.1"],
        &["localhost"],
        &[&other_port],
        &[&user],
        &[&dotted],
        &[&wild],
        &[""],
        &[],
        &[&own, "evil.example"],
    ];
    for hosts in foreign {
        let answer = ask("GET", target, hosts).await;
        assert!(
            ["421", "400"].contains(&status(&answer)),
            "{hosts:?}: {answer}"
        );
    }
    let absolute = format!("http://evil.example:{port}{target}");
    assert_eq!(status(&ask("GET", &absolute, &[&own]).await), "421");
    let long = format!("{target}&pad={}", "x".repeat(64 * 1024));
    assert_eq!(status(&ask("GET", &long, &[&own]).await), "431");
    for noise in ["GET\r\n\r\n", "\u{16}\u{3}\u{1}\0\0\r\n\r\n"] {
        assert_ne!(status(&say(&own, noise).await), "200", "{noise:?}");
    }
    assert!(seen.try_recv().is_err());
    // Other spellings of this host are no other hosts, and long codes are no attack.
    for host in [
        format!("localhost:{port}"),
        format!("[::1]:{port}"),
        own.clone(),
    ] {
        let target = format!("{target}{}", "x".repeat(8 * 1024));
        assert_eq!(
            status(&ask("GET", &target, &[&host]).await),
            "200",
            "{host}"
        );
        let url = seen.recv().await.unwrap();
        assert_eq!(url, format!("http://{host}{target}"));
    }
}

#[tokio::test]
async fn localhost_listens_on_both_families_at_one_port() {
    let host = "localhost".to_owned();
    let options = CallbackOptions { host, ..options() };
    let (callback, mut seen) = landing_at(options, signed_in());
    let lease = callback.lease().await.unwrap();
    let uri = lease.redirect_uri().to_owned();
    assert!(uri.starts_with("http://localhost:"), "{uri}");
    let port = port_of(&uri);
    let request = format!("GET /oauth/callback?state=a HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    let mut families = vec!["127.0.0.1"];
    // A host may lack the newer family.
    if TcpListener::bind("[::1]:0").await.is_ok() {
        families.push("::1");
    }
    for family in families {
        assert_eq!(
            status(&say((family, port), &request).await),
            "200",
            "{family}"
        );
        assert_eq!(seen.recv().await.unwrap(), format!("{uri}?state=a"));
    }
}

#[tokio::test]
async fn the_listener_ends_with_the_last_lease_and_its_port_is_free_at_once() {
    let tasks = TaskTracker::new();
    let (callback, mut visits) = Callback::new(options(), tasks.clone());
    let first = callback.lease().await.unwrap();
    let uri = first.redirect_uri().to_owned();
    let second = callback.lease().await.unwrap();
    assert_eq!(second.redirect_uri(), uri, "sign-ins share the listener");
    drop(first);

    // The visit that ends the last sign-in is answered all the same.
    let url = format!("{uri}?code=a&state=b");
    let visitor = tasks.spawn(async move { get(&url).await });
    let visit = visits.recv().await.unwrap();
    let silent = TcpStream::connect(("127.0.0.1", port_of(&uri)))
        .await
        .unwrap();
    drop(second);
    let again = callback.lease_again(&uri).await;
    assert!(again.is_listening(), "the port is there again");
    assert_eq!(again.redirect_uri(), uri);
    visit.reply.send(signed_in()).unwrap();
    assert_eq!(status(&visitor.await.unwrap()), "200");

    drop(again);
    drop(silent);
    tasks.close();
    tokio::time::timeout(PATIENCE, tasks.wait())
        .await
        .expect("nothing is left behind");
    let late = TcpStream::connect(("127.0.0.1", port_of(&uri))).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn leases_come_and_go_without_losing_the_port() {
    let (callback, _seen) = landing_at(options(), signed_in());
    let uri = callback.lease().await.unwrap().redirect_uri().to_owned();
    for round in 0..200 {
        let lease = callback.lease_again(&uri).await;
        assert!(lease.is_listening(), "round {round}");
    }
}

#[tokio::test]
async fn a_taken_port_is_replaced_unless_a_proxy_relies_on_it() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let configured = CallbackOptions { port, ..options() };
    let (callback, _seen) = landing_at(configured.clone(), signed_in());
    let lease = callback.lease().await.unwrap();
    assert_ne!(port_of(lease.redirect_uri()), port);
    let shared = callback.lease().await.unwrap();
    assert_eq!(shared.redirect_uri(), lease.redirect_uri());
    let without = callback
        .lease_again(&format!("http://127.0.0.1:{port}/oauth/callback"))
        .await;
    assert!(!without.is_listening());

    let public = CallbackOptions {
        public_url: Some("https://sidecar.example/back?via=proxy".to_owned()),
        ..configured
    };
    let (callback, mut seen) = landing_at(public, signed_in());
    let refused = callback.lease().await.unwrap_err();
    assert_eq!(refused.reason(), Reason::AuthorizationUnavailable);
    assert!(refused.message().contains(&port.to_string()), "{refused}");
    drop(taken);
    let lease = callback.lease().await.unwrap();
    assert_eq!(
        lease.redirect_uri(),
        "https://sidecar.example/back?via=proxy"
    );
    // Proxies may name either host.
    for host in [
        "sidecar.example",
        "SIDECAR.example:443",
        &format!("127.0.0.1:{port}"),
    ] {
        let request = format!("GET /oauth/callback?code=a HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(
            status(&say(("127.0.0.1", port), &request).await),
            "200",
            "{host}"
        );
        let url = seen.recv().await.unwrap();
        assert_eq!(url, "https://sidecar.example/back?via=proxy&code=a");
    }
    let again = callback.lease_again(lease.redirect_uri()).await;
    assert!(again.is_listening());
}

#[tokio::test]
async fn only_redirect_uris_of_its_own_are_listened_at_again() {
    let (callback, _seen) = landing_at(options(), signed_in());
    for foreign in [
        "https://app.example/callback",
        "http://app.example:4000/oauth/callback",
        "http://127.0.0.1:4000/other",
        "http://127.0.0.1:4000/oauth/callback?x=1",
        "https://127.0.0.1:4000/oauth/callback",
        "http://127.0.0.2:4000/oauth/callback",
        "http://0.0.0.0:4000/oauth/callback",
        "http://[::]:4000/oauth/callback",
        "http://127.0.0.1:631/oauth/callback",
        "http://127.0.0.1/oauth/callback",
        "cursor://callback",
        "",
    ] {
        let lease = callback.lease_again(foreign).await;
        assert_eq!(lease.redirect_uri(), foreign);
        assert!(!lease.is_listening(), "{foreign}");
    }
}

#[tokio::test]
async fn nothing_listens_beyond_loopback() {
    for host in [
        "0.0.0.0",
        "[::]",
        "",
        "example.com",
        "127.0.0.2",
        "localhost.example",
    ] {
        let host = host.to_owned();
        let (callback, _seen) = landing_at(CallbackOptions { host, ..options() }, signed_in());
        assert!(callback.lease().await.is_err());
    }
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        for address in Place::of(host).unwrap().addresses() {
            assert!(address.is_loopback());
        }
    }
}

#[tokio::test]
async fn the_browser_is_sent_on_with_the_error_in_the_right_place() {
    let failed = |message: &str| Landing::Failed {
        message: message.to_owned(),
    };
    let message = "access_denied: 50% of <users>\r\nX: y & more";
    let encoded = "error=access_denied%3A+50%25+of+%3Cusers%3E++X%3A+y+%26+more";
    for (target, expected) in [
        (
            "https://app.example/failed",
            format!("https://app.example/failed?{encoded}"),
        ),
        (
            "https://app.example",
            format!("https://app.example/?{encoded}"),
        ),
        (
            "https://app.example/f?",
            format!("https://app.example/f?{encoded}"),
        ),
        (
            "https://app.example/f?a=1",
            format!("https://app.example/f?a=1&{encoded}"),
        ),
        (
            "https://app.example/f#/route?x",
            format!("https://app.example/f?{encoded}#/route?x"),
        ),
        (
            "https://app.example/f?a=b%20c#d",
            format!("https://app.example/f?a=b%20c&{encoded}#d"),
        ),
    ] {
        let options = CallbackOptions {
            error_redirect: Some(target.to_owned()),
            success_redirect: Some("https://app.example/done?a=1#b".to_owned()),
            ..options()
        };
        let (callback, _seen) = landing_at(options.clone(), failed(message));
        let lease = callback.lease().await.unwrap();
        let answer = get(&format!("{}?code=secret", lease.redirect_uri())).await;
        assert_eq!(status(&answer), "303");
        assert_eq!(header(&answer, "location"), Some(expected.as_str()));
        assert_eq!(header(&answer, "referrer-policy"), Some("no-referrer"));
        assert!(!answer.contains("secret"), "{answer}");
        for (landing, expected) in [
            (signed_in(), "https://app.example/done?a=1#b"),
            (Landing::Unknown, ""),
        ] {
            let (callback, _seen) = landing_at(options.clone(), landing);
            let lease = callback.lease().await.unwrap();
            let answer = get(lease.redirect_uri()).await;
            let location = header(&answer, "location").unwrap();
            assert!(
                expected == location
                    || (expected.is_empty() && location.contains("error=this+link"))
            );
        }
    }
}

#[tokio::test]
async fn a_visitor_during_the_end_of_the_daemon_is_told() {
    let tasks = TaskTracker::new();
    let (callback, mut visits) = Callback::new(options(), tasks.clone());
    let lease = callback.lease().await.unwrap();
    let url = lease.redirect_uri().to_owned();
    let visitor = tasks.spawn({
        let url = url.clone();
        async move { get(&url).await }
    });
    drop(visits.recv().await.unwrap());
    assert_eq!(status(&visitor.await.unwrap()), "503");
    drop(visits);
    assert_eq!(status(&get(&url).await), "503");
}

#[tokio::test]
async fn those_who_say_nothing_hold_up_nobody() {
    let (callback, mut seen) = landing_at(options(), signed_in());
    let lease = callback.lease().await.unwrap();
    let uri = lease.redirect_uri().to_owned();
    let place = ("127.0.0.1", port_of(&uri));
    let mut silent = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(place).await.unwrap();
        stream
            .write_all(b"GET /oauth/callback HTTP/1.1\r\n")
            .await
            .unwrap();
        silent.push(stream);
    }
    let request = format!(
        "GET /oauth/callback HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n",
        place.1
    );
    let mut stream = TcpStream::connect(place).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    // From here on time jumps ahead whenever there is nothing to do.
    tokio::time::pause();
    assert_eq!(seen.recv().await, Some(uri));
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}

#[tokio::test]
async fn nobody_waits_for_ever() {
    let tasks = TaskTracker::new();
    let (callback, mut visits) = Callback::new(options(), tasks.clone());
    let lease = callback.lease().await.unwrap();
    let url = lease.redirect_uri().to_owned();
    let place = ("127.0.0.1", port_of(&url));
    let request = format!(
        "GET /oauth/callback HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n",
        place.1
    );
    let mut stream = TcpStream::connect(place).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let visit = visits.recv().await.unwrap();
    tokio::time::pause();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(status(&answer), "504");
    assert!(visit.reply.send(signed_in()).is_err());
}
