//! What `README.md` tells a reader to type is done here as it stands, in an empty directory. Where a line installs packages, the
//! same ones are there already, at the versions that the tests have.

use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use mcp_sidecar_tests::clients::Clients;
use mcp_sidecar_tests::daemon::programs;
use mcp_sidecar_tests::fake::showcase;
use mcp_sidecar_tests::peers::install::{SETS, installed};
use mcp_sidecar_tests::peers::java;
use mcp_sidecar_tests::peers::packages::{go_module, rust_programs};
use mcp_sidecar_tests::peers::programs::{Talker, fenced, need, run, succeed};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::{Group, workspace_dir};
use mcp_sidecar_tests::stranger::NOBODY;
use tempfile::TempDir;
use tokio::process::Command;

/// The blocks of a language below a heading of the README.
fn blocks_of(heading: &str, language: &str) -> Vec<String> {
    let all = fenced(&workspace_dir().join("README.md")).into_iter();
    let these = all.filter(|block| block.heading == heading && block.language == language);
    these.map(|block| block.text).collect()
}

/// The only one.
fn block_of(heading: &str, language: &str) -> String {
    let blocks = blocks_of(heading, language);
    let [block] = &blocks[..] else {
        panic!("`{heading}` has {} blocks of `{language}`", blocks.len());
    };
    block.clone()
}

/// A daemon with the server that `cargo quickstart --keep` leaves behind, and a directory with the contract.
struct Scene {
    daemon: TestDaemon,
    place: TempDir,
    _fake: FakeMcp,
}

impl Scene {
    async fn set_in(place: TempDir) -> Self {
        let (daemon, fake) = (TestDaemon::start().await, showcase().await);
        let app = daemon.clients().await;
        let spec = http_spec("Demo over HTTP", &fake.url());
        app.add("demo-http", spec).await.unwrap();
        app.wait_for("demo-http", ConnectionState::Ready).await;
        symlink(workspace_dir().join("proto"), place.path().join("proto")).unwrap();
        Self {
            daemon,
            place,
            _fake: fake,
        }
    }

    async fn set() -> Self {
        Self::set_in(tempfile::tempdir().unwrap()).await
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.place.path())
            .env("MCP_SIDECAR_SOCKET", self.daemon.socket());
        command
    }

    /// Types lines into a shell that finds these programs first.
    async fn type_in(&self, lines: &[&str], programs: &[&Path]) {
        let mut path = OsString::new();
        for directory in programs {
            path.push(directory);
            path.push(":");
        }
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut shell = self.command("bash");
        shell.args(["-euc", &lines.join("\n")]).env("PATH", path);
        let (success, said, errors) = run(&mut shell, "", PATIENCE).await;
        assert!(success, "{lines:#?}\n{said}\n{errors}");
    }
}

/// The line installs what a set of the tests has, whatever its version there.
#[track_caller]
fn installs(line: &str, command: &str, set: &str) {
    let set = SETS.iter().find(|known| known.name == set).expect("a set");
    let bare = |package: &str| {
        let (name, _version) = package
            .split_once("==")
            .or_else(|| package.rsplit_once('@'))
            .unwrap_or((package, ""));
        name.to_owned()
    };
    let wanted: Vec<_> = set.packages.iter().map(|package| bare(package)).collect();
    let named = line
        .strip_prefix(command)
        .unwrap_or_else(|| panic!("{line}"));
    let named: Vec<_> = named
        .split_whitespace()
        .map(|package| package.strip_suffix("@latest").unwrap_or(package))
        .collect();
    assert_eq!(named, wanted, "{line}");
}

#[tokio::test]
async fn its_way_in_python_works() {
    need("the README's Python", &[("python3", "--version")]);
    let scene = Scene::set().await;
    let python = installed("pyapp").await.join("bin");
    let typed = block_of("Python", "sh");
    let lines: Vec<_> = typed.lines().collect();
    installs(lines[0], "pip install", "pyapp");
    scene.type_in(&lines[1..], &[&python]).await;
    let program = scene.file("app.py");
    std::fs::write(&program, block_of("Python", "python")).unwrap();
    let said = succeed(scene.command(python.join("python")).arg(program)).await;
    assert!(said.contains("demo-http add\n"), "{said}");
    assert!(said.ends_with("{\"sum\":5}\n"), "{said}");
}

#[tokio::test]
async fn its_way_in_node_works() {
    need("the README's Node.js", &[("node", "--version")]);
    let set = installed("nodeapp").await;
    let scene = Scene::set_in(tempfile::tempdir_in(set).unwrap()).await;
    let typed = block_of("Node.js", "sh");
    installs(typed.trim_end(), "npm install", "nodeapp");
    let program = scene.file("app.js");
    std::fs::write(&program, block_of("Node.js", "js")).unwrap();
    let said = succeed(scene.command("node").arg(program)).await;
    let lines: Vec<_> = said.lines().collect();
    let expected = [
        "1 of 3: step 1",
        "2 of 3: step 2",
        "3 of 3: step 3",
        "slow is done",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn its_way_in_go_works() {
    need(
        "the README's Go",
        &[("go", "version"), ("python3", "--version")],
    );
    let scene = Scene::set().await;
    let python = installed("pyapp").await.join("bin/python");
    let (messages, services) =
        tokio::join!(installed("protoc-gen-go"), installed("protoc-gen-go-grpc"));
    // `protoc`, as the tests have it.
    let tools = scene.file("tools");
    std::fs::create_dir(&tools).unwrap();
    let script = format!(
        "#!/bin/sh\nexec {} -m grpc_tools.protoc \"$@\"\n",
        python.display()
    );
    std::fs::write(tools.join("protoc"), script).unwrap();
    std::fs::set_permissions(tools.join("protoc"), std::fs::Permissions::from_mode(0o755)).unwrap();

    let typed = block_of("Go", "sh");
    let lines: Vec<_> = typed.lines().collect();
    let [first, second, stubs @ .., get] = &lines[..] else {
        panic!("{typed}");
    };
    installs(first, "go install", "protoc-gen-go");
    installs(second, "go install", "protoc-gen-go-grpc");
    scene.type_in(stubs, &[&tools, &messages, &services]).await;
    std::fs::write(scene.file("main.go"), block_of("Go", "go")).unwrap();
    // In place of `go get`: the same module, and what it needs, at the versions that the Go client has.
    let (place, wanted) = (
        scene.place.path().to_owned(),
        get.strip_prefix("go get ").unwrap(),
    );
    let known = std::fs::read_to_string(workspace_dir().join("client-sdk/go/go.mod")).unwrap();
    assert!(known.contains(&format!("\t{wanted} v")), "{get}");
    tokio::task::spawn_blocking(move || go_module(&place).unwrap())
        .await
        .unwrap();
    let mut build = scene.command("go");
    succeed(build.args(["build", "-mod=mod", "-o", "app", "."])).await;
    let said = succeed(&mut scene.command(scene.file("app"))).await;
    assert_eq!(said, "{\"sum\":5}\n");
}

#[tokio::test]
async fn its_way_in_java_works() {
    need(
        "the README's Java",
        &[
            ("java", "-version"),
            ("javac", "-version"),
            ("mvn", "-version"),
        ],
    );
    let classes = java::classes().await;
    let scene = Scene::set().await;
    std::fs::write(scene.file("Example.java"), block_of("Java", "java")).unwrap();
    let mut compile = scene.command("javac");
    succeed(compile.arg("-cp").arg(&classes).arg("Example.java")).await;
    let mut path = OsString::from(".:");
    path.push(&classes);
    let mut example = scene.command("java");
    let said = succeed(example.arg("-cp").arg(path).arg("Example")).await;
    assert_eq!(said, "{\"sum\":5}\n");
}

/// The program of the README, and those of the page of the Rust client, on the packed crates.
#[tokio::test]
async fn its_way_in_rust_and_the_page_of_the_rust_client_work() {
    let page = fenced(&workspace_dir().join("client-sdk/rust/README.md"));
    let said: &[(&str, &[&str])] = &[
        (
            "Tools",
            &[
                "demo-http add tool_demo-http_add",
                "{\"sum\":12345678901234567891}",
                "progress 3 step 3",
                "is_error false",
                "true true",
                "SERVER_NOT_FOUND",
            ],
        ),
        ("Changes", &["demo-http Ready", "that is all for now"]),
        ("Questions", &["Demo over HTTP asks: Who are you?", "Ada"]),
        (
            "Models",
            &["tool_demo-http_", "\"tool_use_id\":\"toolu_1\""],
        ),
    ];
    let mut sources = vec![("readme".to_owned(), block_of("Rust", "rust,no_run"))];
    for block in page.iter().filter(|block| block.language == "rust") {
        sources.push((block.heading.to_lowercase(), block.text.clone()));
    }
    let headings: Vec<_> = sources[1..].iter().map(|(name, _)| name.clone()).collect();
    let known: Vec<_> = said
        .iter()
        .map(|(heading, _)| heading.to_lowercase())
        .collect();
    assert_eq!(headings, known, "each example is known here");
    let dependencies = page.iter().find(|block| block.language == "toml");
    let dependencies = dependencies.expect("the dependencies").text.clone();
    let built = tokio::task::spawn_blocking(move || rust_programs(&dependencies, &sources));
    let programs = built.await.unwrap();

    let scene = Scene::set().await;
    let printed = succeed(&mut scene.command(&programs[0])).await;
    assert!(printed.contains("demo-http add\n"), "{printed}");
    assert!(printed.contains("{\\\"sum\\\":5}"), "{printed}");
    for (program, (heading, said)) in programs[1..].iter().zip(said) {
        let printed = succeed(&mut scene.command(program)).await;
        for line in *said {
            assert!(
                printed.contains(line),
                "`{line}` is not in `{heading}`:\n{printed}"
            );
        }
    }
}

#[tokio::test]
async fn its_quickstart_runs_and_leaves_what_the_examples_want() {
    let typed = blocks_of("Five minutes", "sh");
    assert_eq!(typed[0], "cargo quickstart\n");
    assert!(typed[1].starts_with("cargo quickstart --keep\nexport MCP_SIDECAR_SOCKET=..."));
    let alias = std::fs::read_to_string(workspace_dir().join(".cargo/config.toml")).unwrap();
    assert!(
        alias.contains("quickstart = \"run --bin quickstart --\""),
        "{alias}"
    );

    let place = tempfile::tempdir().unwrap();
    let quickstart = programs().await.join("quickstart");
    let quickstart = || {
        let mut command = Command::new(&quickstart);
        command.env("TMPDIR", place.path());
        command
    };
    let said = succeed(&mut quickstart()).await;
    assert!(said.contains("grpcurl -plaintext -d"), "{said}");
    let left = std::fs::read_dir(place.path()).unwrap().count();
    assert_eq!(left, 0, "it removes every trace");

    let said = succeed(quickstart().arg("--keep")).await;
    let after = |word: &str| {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(word));
        line.unwrap_or_else(|| panic!("no `{word}` in:\n{said}"))
            .to_owned()
    };
    let socket = after("export MCP_SIDECAR_SOCKET=");
    let app = Clients::connect(Path::new(socket.trim_matches('\''))).await;
    let result = app
        .call_tool("demo-http", "add", r#"{"a":2,"b":3}"#)
        .await
        .unwrap();
    assert!(result.structured_content_json.unwrap().contains('5'));
    // Stopped as it says.
    let (_, stop) = said.split_once("Stop it:").unwrap();
    let mut shell = Command::new("sh");
    succeed(shell.args(["-euc", stop])).await;
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn its_daemon_runs_as_a_normal_user_without_any_configuration() {
    let typed = block_of("Running the daemon", "sh");
    let lines: Vec<_> = typed.lines().collect();
    let build = "cargo build --release --package mcp-sidecard";
    assert_eq!(lines, [build, "target/release/mcp-sidecard"]);
    let place = tempfile::tempdir().unwrap();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(place.path(), 0o755);
    let program = place.path().join("mcp-sidecard");
    std::fs::copy(programs().await.join("mcp-sidecard"), &program).unwrap();
    let (home, runtime) = (place.path().join("home"), place.path().join("run"));
    let mut command = Command::new(&program);
    for directory in [&home, &runtime] {
        std::fs::create_dir(directory).unwrap();
        open(directory, 0o700);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
            command.uid(NOBODY).gid(NOBODY);
        }
    }
    command
        .env_clear()
        .env("HOME", &home)
        .env("XDG_RUNTIME_DIR", &runtime);
    command.current_dir("/").stderr(std::process::Stdio::null());
    let mut daemon = Group::spawn(&mut command).unwrap();
    let socket = runtime.join("mcp-sidecar/app.sock");
    eventually("the daemon serves", PATIENCE, async || {
        Clients::is_serving(&socket).await.then_some(())
    })
    .await;
    assert!(home.join(".local/state/mcp-sidecar/sidecar.db").exists());
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.wait(PATIENCE).await.expect("it stops").success());
}

#[tokio::test]
async fn its_way_to_a_new_key_works() {
    let typed = block_of("Secrets at rest", "sh");
    let lines: Vec<_> = typed.lines().collect();
    let [stop, rotate] = lines[..] else {
        panic!("{typed}");
    };
    let units = stop.strip_prefix("systemctl stop ").unwrap().split(' ');
    for unit in units {
        assert!(
            workspace_dir().join("systemd").join(unit).exists(),
            "{unit}"
        );
    }
    let mut daemon = TestDaemon::start().await;
    daemon.terminate().await;
    let rotate = rotate
        .strip_prefix("sudo -u mcp-sidecar ")
        .unwrap()
        .replace(
            "/etc/mcp-sidecar/config.toml",
            daemon.config_file().to_str().unwrap(),
        )
        .replace("/var/lib/mcp-sidecar", daemon.data_dir().to_str().unwrap());
    let key = || std::fs::read(daemon.data_dir().join("vault.key")).unwrap();
    let before = key();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-euc", &rotate]).env("PATH", programs().await);
    succeed(&mut shell).await;
    assert_ne!(before, key());
}

#[tokio::test]
async fn its_ways_to_test_exist() {
    let typed = blocks_of("Tests", "sh").concat();
    let script = std::fs::read_to_string(workspace_dir().join(".ci/run")).unwrap();
    let alias = std::fs::read_to_string(workspace_dir().join(".cargo/config.toml")).unwrap();
    for line in typed.lines() {
        let line = line.split(" #").next().unwrap().trim_end();
        if let Some(revision) = line.strip_prefix("tests/conformance/run.sh ") {
            let runner = workspace_dir().join("tests/conformance/run.sh");
            let mode = std::fs::metadata(&runner).unwrap().permissions().mode();
            assert_eq!(mode & 0o111, 0o111, "it can be executed");
            let runner = std::fs::read_to_string(runner).unwrap();
            assert!(runner.contains(revision), "{line}");
        } else if let Some(options) = line.strip_prefix("cargo soak ") {
            assert!(alias.contains("soak = \"run --bin soak --\""), "{alias}");
            let soak = programs().await.join("soak");
            let mut soak = Talker::start(Command::new(soak).args(options.split(' ')));
            soak.until("it begins", |said| said.contains("600s of load"))
                .await;
        } else {
            // What decides whether a change is merged.
            assert!(script.contains(line), "{line}");
        }
    }
}

#[test]
fn the_pages_of_the_clients_install_what_there_is() {
    let sdk = |path: &str| workspace_dir().join("client-sdk").join(path);
    let install_line = |page: &str| {
        let blocks = fenced(&sdk(page));
        let block = blocks.into_iter().find(|block| block.language == "sh");
        block
            .expect("a line that installs")
            .text
            .trim_end()
            .to_owned()
    };
    let text = |path: &str| std::fs::read_to_string(sdk(path)).unwrap();
    let module = install_line("go/README.md").replace("go get", "module");
    assert!(
        text("go/go.mod").starts_with(&format!("{module}\n")),
        "{module}"
    );
    let package = install_line("typescript/README.md").replace("npm install ", "");
    assert!(text("typescript/package.json").contains(&format!("\"name\": \"{package}\"")));
    let from = install_line("python/README.md").replace("python3 -m pip install ./", "");
    assert!(workspace_dir().join(from).join("pyproject.toml").exists());
}
