//! Figures for Prometheus: scraped over HTTP, read by a parser that is not ours.

use std::collections::BTreeSet;

use mcp_sidecar_tests::prelude::*;
use prometheus_parse::{Sample, Scrape, Value as Figure};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HOST};

use crate::questions::{Way, asking, with_forms};

fn scraped() -> mcp_sidecar_tests::daemon::Builder {
    TestDaemon::builder().set("metrics.listen", "127.0.0.1:0")
}

/// Where a daemon serves its figures, by its log.
pub(crate) fn address(daemon: &TestDaemon) -> String {
    let log = daemon.log();
    let line = log
        .lines()
        .rfind(|line| line.contains("metrics are served"));
    let (_, address) = line
        .unwrap_or_else(|| panic!("{log}"))
        .rsplit_once("address=")
        .unwrap();
    address.trim().to_owned()
}

async fn get(address: &str, path: &str, host: Option<&str>) -> reqwest::Response {
    let mut request = reqwest::Client::new().get(format!("http://{address}{path}"));
    if let Some(host) = host {
        request = request.header(HOST, host);
    }
    within("the page", request.send()).await.unwrap()
}

async fn scrape(daemon: &TestDaemon) -> Scrape {
    let page = get(&address(daemon), "/metrics", None).await;
    assert_eq!(page.status(), StatusCode::OK);
    let kind = page.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    let text = page.text().await.unwrap();
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap()
}

fn has(sample: &Sample, labels: &[(&str, &str)]) -> bool {
    labels
        .iter()
        .all(|(name, value)| sample.labels.get(name) == Some(value))
}

/// The figure of this name with these labels; 0 if there is none.
fn figure(scrape: &Scrape, name: &str, labels: &[(&str, &str)]) -> f64 {
    let of_name = scrape.samples.iter().filter(|sample| sample.metric == name);
    let found: Vec<_> = of_name.filter(|sample| has(sample, labels)).collect();
    match found.as_slice() {
        [] => 0.0,
        [
            Sample {
                value: Figure::Counter(value) | Figure::Gauge(value) | Figure::Untyped(value),
                ..
            },
        ] => *value,
        [
            Sample {
                value: Figure::Histogram(buckets),
                ..
            },
        ] => buckets.last().unwrap().count,
        other => panic!("{name} {labels:?}: {other:?}"),
    }
}

/// Waits until a figure has a value.
async fn becomes(daemon: &TestDaemon, name: &str, labels: &[(&str, &str)], wanted: f64) {
    eventually(
        &format!("{name} {labels:?} to be {wanted}"),
        PATIENCE,
        async || {
            let found = figure(&scrape(daemon).await, name, labels);
            ((found - wanted).abs() < f64::EPSILON).then_some(())
        },
    )
    .await;
}

#[tokio::test]
async fn what_apps_do_can_be_counted_from_outside() {
    one_and_two_with(scraped(), async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        stage.other().call_tool("s", "echo", "{}").await.unwrap();
        stage.other().call_tool("s", "echo", "{}").await.unwrap();
        fake.reply("tools/call", |_| {
            Reply::Json(json!({"resultType": "complete", "isError": true, "content": []}))
        });
        stage.other().call_tool("s", "echo", "{}").await.unwrap();
        fake.reply("tools/call", |_| {
            Reply::Error(-32000, "it broke", Value::Null)
        });
        stage
            .other()
            .call_tool("s", "echo", "{}")
            .await
            .unwrap_err();
        stage
            .other()
            .call_tool("t", "echo", "{}")
            .await
            .unwrap_err();

        let daemon = &stage.daemon;
        let server = [("namespace", "default"), ("server", "s")];
        let ended = |outcome| [server[0], server[1], ("outcome", outcome)];
        let calls = "mcp_sidecar_calls_total";
        becomes(daemon, calls, &ended("UPSTREAM_ERROR"), 1.0).await;
        let rpc = ("method", "mcpsidecar.v1.ToolService/CallTool");
        let rpcs = "mcp_sidecar_rpcs_total";
        becomes(daemon, rpcs, &[rpc, ("code", "NOT_FOUND")], 1.0).await;
        let seen = scrape(daemon).await;
        for (name, labels, value) in [
            (calls, &ended("ok")[..], 2.0),
            (calls, &ended("tool_error"), 1.0),
            (calls, &[("server", "t")], 0.0),
            ("mcp_sidecar_call_duration_seconds", &server, 4.0),
            ("mcp_sidecar_server_calls_in_flight", &server, 0.0),
            (rpcs, &[rpc, ("code", "OK")], 3.0),
            (rpcs, &[rpc, ("code", "UNKNOWN")], 1.0),
            ("mcp_sidecar_rpc_duration_seconds", &[rpc], 5.0),
            ("mcp_sidecar_servers", &[("state", "ready")], 1.0),
            ("mcp_sidecar_servers", &[("state", "failed")], 0.0),
            ("mcp_sidecar_connection_attempts_total", &[], 1.0),
            ("mcp_sidecar_connection_failures_total", &[], 0.0),
            ("mcp_sidecar_links", &[], 1.0),
            (
                "mcp_sidecar_build_info",
                &[("version", env!("CARGO_PKG_VERSION"))],
                1.0,
            ),
        ] {
            assert!(
                (figure(&seen, name, labels) - value).abs() < f64::EPSILON,
                "{name} {labels:?}: {seen:#?}"
            );
        }
        assert!(figure(&seen, "mcp_sidecar_list_refreshes_total", &[]) >= 1.0);
        assert!(figure(&seen, "mcp_sidecar_update_log_revision", &[]) >= 1.0);
        assert!(figure(&seen, "process_resident_memory_bytes", &[]) > 1_000_000.0);
        let started = figure(&seen, "process_start_time_seconds", &[]);
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        assert!(
            (0.0..600.0).contains(&(now.as_secs_f64() - started)),
            "{started}"
        );

        // A server that is gone leaves nothing behind.
        stage.app().remove("s").await.unwrap();
        becomes(daemon, "mcp_sidecar_servers", &[("state", "ready")], 0.0).await;
        let seen = scrape(daemon).await;
        let left: Vec<_> = seen
            .samples
            .iter()
            .filter(|sample| has(sample, &[("server", "s")]))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    })
    .await;
}

#[tokio::test]
async fn what_is_under_way_can_be_seen() {
    let stage = Stage::set(scraped(), 1).await;
    let daemon = &stage.daemon;
    let fake = asking(Way::Result).await;
    stage
        .add("s", with_forms(http_spec("S", &fake.url())))
        .await;
    let mut updates = stage.app().updates("").await;
    updates.snapshot().await;
    becomes(daemon, "mcp_sidecar_subscribers", &[], 1.0).await;
    let id = stage.app().detach("s", "ask", "{}").await;
    let question = updates.pending().await;
    becomes(daemon, "mcp_sidecar_questions_pending", &[], 1.0).await;
    stage
        .app()
        .accept(&question.id, r#"{"name":"Ada"}"#)
        .await
        .unwrap();
    stage.app().wait_call(&id).await;
    let answered = [("mode", "form"), ("end", "answered")];
    becomes(daemon, "mcp_sidecar_questions_total", &answered, 1.0).await;
    becomes(daemon, "mcp_sidecar_questions_pending", &[], 0.0).await;
    becomes(daemon, "mcp_sidecar_calls_total", &[("outcome", "ok")], 1.0).await;

    fake.reply("tools/call", |_| Reply::Hang);
    let id = stage.app().detach("s", "ask", "{}").await;
    becomes(daemon, "mcp_sidecar_calls_in_flight", &[], 1.0).await;
    becomes(
        daemon,
        "mcp_sidecar_server_calls_in_flight",
        &[("server", "s")],
        1.0,
    )
    .await;
    stage.app().cancel_call(&id).await.unwrap();
    becomes(
        daemon,
        "mcp_sidecar_calls_total",
        &[("outcome", "CANCELLED")],
        1.0,
    )
    .await;
    drop(updates);
    becomes(daemon, "mcp_sidecar_subscribers", &[], 0.0).await;
    let nowhere = http_spec("N", "http://127.0.0.1:1/");
    stage.app().add("n", nowhere).await.unwrap();
    eventually("a failure to connect", PATIENCE, async || {
        let seen = scrape(daemon).await;
        (figure(&seen, "mcp_sidecar_connection_failures_total", &[]) >= 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_documented_names_are_those_that_are_served() {
    let stage = Stage::set(scraped(), 1).await;
    let fake = asking(Way::Result).await;
    stage
        .add("s", with_forms(http_spec("S", &fake.url())))
        .await;
    let mut updates = stage.app().updates("").await;
    let id = stage.app().detach("s", "ask", "{}").await;
    let question = updates.pending().await;
    stage
        .app()
        .accept(&question.id, r#"{"name":"Ada"}"#)
        .await
        .unwrap();
    stage.app().wait_call(&id).await;
    becomes(&stage.daemon, "mcp_sidecar_questions_total", &[], 1.0).await;
    becomes(&stage.daemon, "mcp_sidecar_calls_total", &[], 1.0).await;
    let seen = scrape(&stage.daemon).await;
    let names = seen.samples.iter().map(|sample| sample.metric.as_str());
    // What belongs to a histogram beside its buckets.
    let served: BTreeSet<_> = names
        .filter(|name| !name.ends_with("_sum") && !name.ends_with("_count"))
        .collect();

    let path = mcp_sidecar_tests::process::workspace_dir().join("docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<_> = rows.map(|row| row.split('`').next().unwrap()).collect();
    assert_eq!(served, documented);
    // The example of the configuration is one.
    let example = text
        .split("```toml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("config.toml");
    std::fs::write(&file, example).unwrap();
    let daemon = mcp_sidecar_tests::daemon::daemon_binary().await;
    let mut check = tokio::process::Command::new(daemon);
    let check = check.arg("--config").arg(&file).arg("check-config");
    let checked = within("the check", check.output()).await.unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[tokio::test]
async fn only_whoever_means_this_host_is_answered() {
    let daemon = scraped()
        .set("metrics.hosts", &["sidecar.example"][..])
        .start()
        .await;
    let address = address(&daemon);
    for (host, status) in [
        ("evil.example", StatusCode::MISDIRECTED_REQUEST),
        ("localhost.evil.example:80", StatusCode::MISDIRECTED_REQUEST),
        ("sidecar.example", StatusCode::OK),
        ("localhost:9464", StatusCode::OK),
    ] {
        let page = get(&address, "/metrics", Some(host)).await;
        assert_eq!(page.status(), status, "{host}");
        let text = page.text().await.unwrap();
        assert_eq!(
            text.contains("mcp_sidecar_build_info"),
            status == StatusCode::OK
        );
    }
    assert_eq!(
        get(&address, "/", None).await.status(),
        StatusCode::NOT_FOUND
    );
    let posted = reqwest::Client::new()
        .post(format!("http://{address}/metrics"))
        .send()
        .await
        .unwrap();
    assert_eq!(posted.status(), StatusCode::METHOD_NOT_ALLOWED);

    let remote = TestDaemon::builder().set("metrics.listen", "0.0.0.0:0");
    let (status, said) = remote.start_and_fail().await;
    assert_eq!(status.code(), Some(64));
    assert!(said.contains("metrics.allow_remote"), "{said}");
    let wanted = TestDaemon::builder()
        .set("metrics.listen", "0.0.0.0:0")
        .set("metrics.allow_remote", true);
    let daemon = wanted.start().await;
    assert!(daemon.log().contains("metrics are served"));
    let silent = TestDaemon::start().await;
    assert!(
        !silent.log().contains("metrics are served"),
        "nobody listens by default"
    );
}
