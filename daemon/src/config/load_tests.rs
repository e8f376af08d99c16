//! Where values come from, and what the operator is told about wrong ones.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Config, Environment, Sources};
use crate::config::{LogFormat, SocketMode};

fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment {
        variables: variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        root: false,
        system_file: PathBuf::from("/nonexistent/config.toml"),
    }
}

fn at_home(variables: &[(&str, &str)]) -> Sources {
    let mut environment = environment(variables);
    environment
        .variables
        .insert("HOME".into(), "/home/someone".into());
    Sources {
        environment,
        ..Sources::default()
    }
}

fn with_file(text: &str) -> (tempfile::TempDir, Sources) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    std::fs::write(&path, text).unwrap();
    let mut sources = at_home(&[]);
    sources.file = Some(path);
    (dir, sources)
}

fn problems(sources: &Sources) -> Vec<String> {
    Config::load(sources).unwrap_err().problems().to_vec()
}

fn file_problems(text: &str) -> Vec<String> {
    let (dir, sources) = with_file(text);
    let dir = dir.path().display().to_string();
    problems(&sources)
        .iter()
        .map(|problem| problem.replace(&dir, "DIR"))
        .collect()
}

#[test]
fn later_sources_win() {
    let (_dir, mut sources) = with_file(
        "[timeouts]\nconnect = \"1s\"\nprobe = \"500ms\"\n[log]\nfilter = \"warn\"\nformat = \"json\"\n",
    );
    sources.environment.variables.extend([
        ("MCP_SIDECARD_LOG__FILTER".into(), "debug".into()),
        ("MCP_SIDECARD_SOCKET__MODE".into(), "0600".into()),
        ("MCP_SIDECARD_LIMITS__SERVERS".into(), "12".into()),
        ("MCP_SIDECARD_STDIO__PASS_ENV".into(), "PATH, HOME".into()),
    ]);
    sources.set = vec!["limits.servers=13".to_owned()];
    sources.socket = Some(PathBuf::from("/tmp/x.sock"));
    let config = Config::load(&sources).unwrap();
    assert_eq!(config.timeouts.connect, Duration::from_secs(1));
    assert_eq!(config.timeouts.call, Duration::from_mins(10));
    assert_eq!(config.log.filter, "debug");
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.socket.mode, SocketMode(0o600));
    assert_eq!(config.limits.servers, 13);
    assert_eq!(config.stdio.pass_env, ["PATH", "HOME"]);
    assert_eq!(config.socket.path, Path::new("/tmp/x.sock"));
}

#[test]
fn directories_follow_the_surroundings() {
    let places = |variables: &[(&str, &str)], root: bool| {
        let mut environment = environment(variables);
        environment.root = root;
        let sources = Sources {
            environment,
            ..Sources::default()
        };
        let config = Config::load(&sources).unwrap();
        let shown = [config.data_dir, config.socket.path];
        shown.map(|path| path.display().to_string())
    };
    assert_eq!(
        places(&[("HOME", "/h")], false),
        [
            "/h/.local/state/mcp-sidecar",
            "/h/.local/state/mcp-sidecar/app.sock"
        ]
    );
    assert_eq!(
        places(
            &[("XDG_STATE_HOME", "/s"), ("XDG_RUNTIME_DIR", "/r")],
            false
        ),
        ["/s/mcp-sidecar", "/r/mcp-sidecar/app.sock"]
    );
    assert_eq!(
        places(&[("HOME", "/root"), ("XDG_RUNTIME_DIR", "/r")], true),
        ["/var/lib/mcp-sidecar", "/run/mcp-sidecar/app.sock"]
    );
    assert_eq!(
        places(
            &[
                ("STATE_DIRECTORY", "/sd/a:/sd/b"),
                ("RUNTIME_DIRECTORY", "/rd")
            ],
            true
        ),
        ["/sd/a", "/rd/app.sock"]
    );
    let (dir, mut sources) = with_file("");
    sources.data_dir = Some(dir.path().join("data"));
    let config = Config::load(&sources).unwrap();
    assert_eq!(config.socket.path, dir.path().join("data/app.sock"));
}

#[test]
fn the_file_is_found_without_a_flag() {
    let dir = tempfile::tempdir().unwrap();
    let user = dir.path().join("mcp-sidecar/config.toml");
    std::fs::create_dir(user.parent().unwrap()).unwrap();
    std::fs::write(&user, "[limits]\nservers = 7\n").unwrap();
    let mut sources = at_home(&[("XDG_CONFIG_HOME", dir.path().to_str().unwrap())]);
    assert_eq!(Config::load(&sources).unwrap().limits.servers, 7);

    let named = dir.path().join("named.toml");
    std::fs::write(&named, "[limits]\nservers = 8\n").unwrap();
    let variables = &mut sources.environment.variables;
    variables.insert("MCP_SIDECARD_CONFIG".into(), named.clone().into());
    assert_eq!(Config::load(&sources).unwrap().limits.servers, 8);

    sources.environment = at_home(&[]).environment;
    sources.environment.system_file = named;
    assert_eq!(Config::load(&sources).unwrap().limits.servers, 8);

    sources.file = Some(dir.path().join("absent.toml"));
    assert!(problems(&sources)[0].contains("cannot be read"));
}

#[test]
fn every_problem_of_a_file_is_told_at_once() {
    let found = file_problems(
        r#"
datadir = "/x"
[timeouts]
conect = "1s"
call = 30
probe = "soon"
drain = "11m"
[socket]
mode = "rw"
[log]
format = "xml"
[limits]
servers = "many"
rounds = 0
[policy]
allow = ["10.0.0.0/33"]
[[access]]
uuid = 1
namespaces = ["a"]
"#,
    );
    insta::assert_snapshot!(found.join("\n"),@r##"
    file `DIR/config.toml`: unknown key `datadir`; did you mean `data_dir`?
    file `DIR/config.toml`: unknown key `timeouts.conect`; did you mean `timeouts.connect`?
    file `DIR/config.toml`: unknown key `access.0.uuid`; did you mean `uid`?
    file `DIR/config.toml`: `limits.servers` is `many`; write a whole number
    file `DIR/config.toml`: `log.format` is `xml`; write one of "text", "json"
    file `DIR/config.toml`: `policy.allow.0`: `10.0.0.0/33` is no address, network or host name; write for example "10.1.2.3", "10.0.0.0/8", "intranet.example" or "*.intranet.example" (international names in punycode)
    file `DIR/config.toml`: `socket.mode`: `rw` is not a mode; write octal digits, such as "0660"
    file `DIR/config.toml`: `timeouts.call` is `30`; write a duration with a unit, such as "30s", "500ms" or "1h"
    file `DIR/config.toml`: `timeouts.probe` is `soon`; write a duration with a unit, such as "30s", "500ms" or "1h"
    file `DIR/config.toml`: `timeouts.drain` is 11m; it must be between 0s and 10m
    file `DIR/config.toml`: `limits.rounds` is 0; it must be between 1 and 1000
    "##);
}

#[test]
fn variables_and_flags_are_held_to_the_same_rules() {
    let mut sources = at_home(&[
        ("MCP_SIDECARD_LOG__FILTR", "info"),
        ("MCP_SIDECARD_TIMEOUTS", "1s"),
        ("MCP_SIDECARD_LIMITS__SERVERS", "lots"),
        ("MCP_SIDECARD_POLICY__ALLOW_PRIVATE", "yes"),
        ("MCP_SIDECARD_ACCESS", "[{uid=1,namespaces=[]}]"),
    ]);
    sources.set = vec![
        "zzz=1".to_owned(),
        "novalue".to_owned(),
        "timeouts.call=1ms".to_owned(),
    ];
    insta::assert_snapshot!(problems(&sources).join("\n"),@r##"
    environment variable `MCP_SIDECARD_LOG__FILTR`: unknown key `log.filtr`; did you mean `log.filter`?
    environment variable `MCP_SIDECARD_TIMEOUTS`: `timeouts` is a section; set one of its keys, such as `timeouts.call`
    flag `--set zzz=1`: unknown key `zzz`; `--print-config` shows all keys
    flag `--set novalue`: write it as `key=value`
    environment variable `MCP_SIDECARD_LIMITS__SERVERS`: `limits.servers` is `lots`; write a whole number
    environment variable `MCP_SIDECARD_POLICY__ALLOW_PRIVATE`: `policy.allow_private` is `yes`; write true or false
    flag `--set timeouts.call=1ms`: `timeouts.call` is 1ms; it must be between 100ms and 1day
    environment variable `MCP_SIDECARD_ACCESS`: `access.0.namespaces` is empty; name the namespaces, or write ["*"] for all
    "##);
}

#[test]
fn sign_ins_have_sound_addresses_and_bounds() {
    let found = file_problems(
        r#"
[auth]
callback_host = "0.0.0.0"
callback_port = 0
callback_path = "oauth"
callback_url = "http://sidecar.example/back"
success_redirect = "javascript:alert(1)"
error_redirect = "https://user:pass@app.example/"
client_metadata_url = "https://app.example"
client_name = ""
sign_in_expiry = "999ms"
pending_per_server = 0
renew_before = "61m"
request_timeout = "99ms"
response_bytes = 4095
assertion_dirs = ["/ok", "relative", "/a/../b"]
"#,
    );
    let found: Vec<_> = found
        .iter()
        .map(|problem| problem.replace("file `DIR/config.toml`: `auth.", "`"))
        .collect();
    insta::assert_snapshot!(found.join("\n"), @r##"
    `sign_in_expiry` is 999ms; it must be between 1s and 1day
    `renew_before` is 1h1m; it must be between 0s and 1h
    `request_timeout` is 99ms; it must be between 100ms and 5m
    `pending_per_server` is 0; it must be between 1 and 100
    `response_bytes` is 4095; it must be between 4096 and 4194304
    `callback_host` is `0.0.0.0`; it must be `127.0.0.1`, `[::1]` or `localhost`, which no other host reaches
    `callback_path` is `oauth`, which does not begin with `/`; write for example "/oauth/callback"
    `callback_port` is 0, and `auth.callback_url` is passed on to it; choose a fixed one
    `callback_url` is `http://sidecar.example/back`, which is no `https:` URL
    `success_redirect` is `javascript:alert(1)`, which is no `https:` or `http:` URL
    `error_redirect` is `…`, which holds a user name or password; leave them out
    `client_metadata_url` is `https://app.example`, which has no path; a client identifier must have one
    `client_name` is ``; it must be 1 to 128 characters without control characters
    `assertion_dirs` holds `relative`; write the path from the root, without `..`
    `assertion_dirs` holds `/a/../b`; write the path from the root, without `..`
    "##);

    let auth = |set: &str| {
        let mut sources = at_home(&[]);
        sources.set = vec![format!("auth.{set}")];
        Config::load(&sources).map(|config| config.auth)
    };
    for good in [
        "callback_host=localhost",
        "callback_host=[::1]",
        "callback_path=/",
        "callback_path=/oauth/call_back-1.0~x",
        "callback_url=https://sidecar.example:8443/back?via=proxy",
        "success_redirect=http://localhost:3000/#/done",
        "client_metadata_url=https://app.example/mcp-client.json",
        "renew_before=0s",
    ] {
        auth(good).unwrap();
    }
    for bad in [
        "callback_host=::1",
        "callback_host=[::]",
        "callback_host=127.0.0.2",
        "callback_host=example.com",
        "callback_path=/a//b",
        "callback_path=/a/",
        "callback_path=/a/../b",
        "callback_path=/a?b",
        "callback_path=/a%20b",
        "callback_path=/é",
        "callback_url=https://sidecar.example/back#part",
        "callback_url=//sidecar.example/",
        "error_redirect=/failed",
        "error_redirect=data:text/html,x",
        "client_metadata_url=https://app.example/a/../b",
        "client_metadata_url=https://APP.example/b",
        "client_metadata_url=http://localhost/b",
        "client_name=a\nb",
    ] {
        assert!(auth(bad).is_err(), "{bad}");
    }
}

#[test]
fn one_user_has_a_share_of_the_connections() {
    let shares = |set: &[&str]| {
        let mut sources = at_home(&[]);
        sources.set = set.iter().map(|&text| text.to_owned()).collect();
        Config::load(&sources).map(|config| config.limits.connections_per_user)
    };
    assert_eq!(shares(&[]), Ok(768));
    for (all, share) in [(1, 1), (2, 2), (4, 3), (65_536, 49_152)] {
        assert_eq!(shares(&[&format!("limits.connections={all}")]), Ok(share));
    }
    let both = |all: u32, user: u32| {
        shares(&[
            &format!("limits.connections={all}"),
            &format!("limits.connections_per_user={user}"),
        ])
    };
    assert_eq!(both(10, 10), Ok(10));
    assert_eq!(both(10, 0), Ok(8));
    let refused = both(10, 11).unwrap_err().to_string();
    assert!(
        refused.contains("`limits.connections_per_user` is 11; it must be between 1 and 10"),
        "{refused}"
    );
    // One problem is told once.
    assert_eq!(both(0, 0).unwrap_err().problems.len(), 1);
}

#[test]
fn a_file_that_is_not_toml_says_where() {
    let found = file_problems("[socket]\nmode = 0660\n");
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains("DIR/config.toml` is not TOML"),
        "{found:?}"
    );
    assert!(found[0].contains('2'), "{found:?}");
}

#[test]
fn without_a_home_the_remedy_is_named() {
    let sources = Sources {
        environment: environment(&[]),
        ..Sources::default()
    };
    assert!(problems(&sources)[0].contains("set HOME or XDG_STATE_HOME"));
}

#[test]
fn a_socket_path_that_is_too_long_is_refused() {
    let mut sources = at_home(&[]);
    sources.socket = Some(PathBuf::from(format!("/{}", "a".repeat(120))));
    let found = problems(&sources);
    assert!(
        found[0].contains("121 bytes") && found[0].contains("--socket"),
        "{found:?}"
    );
}

#[test]
fn what_is_printed_gives_the_same_configuration() {
    let (_dir, sources) = with_file(
        "[policy]\nallow = [\"10.0.0.0/8\", \"*.corp.example\"]\n[[access]]\nuid = 1000\nnamespaces = [\"team-*\"]\n",
    );
    let config = Config::load(&sources).unwrap();
    let (_dir, again) = with_file(&config.to_toml().unwrap());
    assert_eq!(Config::load(&again).unwrap(), config);
}

/// Keys of the annotated file that are not set by default, or go by the surroundings.
const UNSET: [&str; 10] = [
    "data_dir",
    "path",
    "key_file",
    "callback_url",
    "success_redirect",
    "error_redirect",
    "client_metadata_url",
    "otlp_endpoint",
    "file",
    "listen",
];

#[test]
fn the_annotated_file_has_every_key_with_its_default() {
    let annotated = include_str!("../../../systemd/config.toml");
    // Keys are behind a bare `#`, comments behind one and a space.
    let is_key = |line: &&str| line.starts_with(|first: char| first.is_ascii_lowercase());
    let mut in_list = false;
    let mut text = String::new();
    for line in annotated.lines() {
        in_list = (in_list || line.starts_with("#[[")) && !line.is_empty();
        // By default there is no rule, some keys are not set, and some paths go by the surroundings.
        let key = line.strip_prefix('#').filter(is_key).filter(|key| {
            let name = key.split(' ').next().unwrap_or_default();
            !in_list && !UNSET.contains(&name)
        });
        text.push_str(key.unwrap_or(if line.starts_with('[') { line } else { "" }));
        text.push('\n');
    }
    let (_dir, sources) = with_file(&text);
    let defaults = Config::load(&at_home(&[])).unwrap();
    assert_eq!(Config::load(&sources).unwrap(), defaults);

    let written: toml::Table = text.parse().unwrap();
    let defaults: toml::Table = defaults.to_toml().unwrap().parse().unwrap();
    for (section, keys) in &defaults {
        for key in keys.as_table().into_iter().flat_map(toml::Table::keys) {
            let documented = written
                .get(section)
                .is_some_and(|keys| keys.get(key).is_some());
            let named = (section.as_str(), key.as_str());
            let elsewhere = matches!(named, ("socket" | "admin", "path") | ("audit", "file"));
            assert!(
                documented || elsewhere,
                "{section}.{key} is not in the file"
            );
        }
    }
}

#[test]
fn the_annotated_file_has_every_setting_of_a_server() {
    let annotated = include_str!("../../../systemd/config.toml");
    let (_, after) = annotated.split_once("#[[servers]]\n").unwrap();
    let mut text = "[[servers]]\n".to_owned();
    for line in after.lines().take_while(|line| !line.is_empty()) {
        let code = line.trim_start_matches('#');
        if !code.starts_with(' ') {
            text.push_str(code);
            text.push('\n');
        }
    }
    let (_dir, sources) = with_file(&text);
    let config = Config::load(&sources).unwrap();
    assert_eq!(config.servers.len(), 3);
    let (_dir, again) = with_file(&config.to_toml().unwrap());
    assert_eq!(Config::load(&again).unwrap(), config);

    // The keys that exist are in the error about one that does not.
    let unknown = "[[servers]]\nid = \"x\"\nzzzzzzzz = 1\n";
    let problem = file_problems(unknown).remove(0);
    let (_, known) = problem.split_once("known are ").unwrap();
    for key in known.split(", ") {
        assert!(
            text.contains(&format!("\n{key} = ")),
            "{key} is not in the file"
        );
    }
}

#[test]
fn what_is_wrong_with_a_server_is_said_with_its_key() {
    let text = r#"
        stdio.enabled = false
        [[servers]]
        id = "My Notes"
        url = "ftp://x"
        headers = { Authorization = "Bearer x" }
        [[servers]]
        id = "a"
        namespace = "a/b"
        command = "x"
        headers = { X = "y" }
        [[servers]]
        id = "b"
        [[servers]]
        id = "b"
        unix_socket = "/s"
        env = { A = { credential = "../x" } }
        [[servers]]
        id = "c"
        url = "https://x.example"
        headers = { X = { file = "relative" }, Y = { credential = "../x" } }
    "#;
    let problems = file_problems(text).join("\n");
    for said in [
        "`servers.0.id` is `My Notes`; write it as `my-notes`",
        "`servers.0.headers.Authorization` is a secret",
        "`servers.4.headers.X` names the file `relative`",
        "`servers.0.url` is wrong: the scheme of `ftp://x`",
        "`servers.1.namespace` is wrong",
        "`servers.1.command` is set, and `stdio.enabled` is false",
        "`servers.1.headers` is wrong",
        "`servers.2.url` is wrong: give exactly one of `url`, `command` and `unix_socket`",
        "`servers.3.id` is `b`, as that of `servers.2`",
        "`servers.3.env` is wrong",
        "`servers.4.headers.Y` names the credential `../x`",
    ] {
        assert!(problems.contains(said), "{said}\n{problems}");
    }
}
