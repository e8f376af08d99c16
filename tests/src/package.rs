//! The Debian package, made by the tool that makes the released one.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::daemon::programs;
use crate::process::{target_dir, workspace_dir};

/// Version of the tool.
const CARGO_DEB: &str = "3.8.0";

/// What the tool is told for a release; here the programs are those of the tests.
pub const CARGO_DEB_ARGUMENTS: [&str; 3] = ["--package", "mcp-sidecard", "--no-build"];

/// The package with the programs as the tests use them; made once per process.
pub async fn debian_package() -> &'static Path {
    static MADE: OnceCell<PathBuf> = OnceCell::const_new();
    MADE.get_or_init(make).await
}

async fn make() -> PathBuf {
    let profile = programs().await.file_name().expect("a profile");
    let profile = match profile.to_str().expect("a name") {
        "debug" => "dev",
        other => other,
    };
    let package = target_dir().join("package/mcp-sidecar.deb");
    let mut command = Command::new(cargo_deb().await);
    command
        .args(CARGO_DEB_ARGUMENTS)
        .args(["--no-strip", "--fast", "--quiet"])
        .args(["--profile", profile, "--output"])
        .arg(&package)
        .env("CARGO_TARGET_DIR", target_dir())
        .current_dir(workspace_dir());
    run(&mut command).await;
    package
}

/// The tool, installed below `target/` unless it is there.
async fn cargo_deb() -> PathBuf {
    let tools = target_dir().join("tools");
    let program = tools.join("bin/cargo-deb");
    let known = Command::new(&program).arg("--version").output().await;
    let version = known.map(|known| String::from_utf8_lossy(&known.stdout).into_owned());
    if !version.is_ok_and(|version| version.contains(CARGO_DEB)) {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut install = Command::new(cargo);
        install
            .args([
                "install",
                "--quiet",
                "--locked",
                "cargo-deb",
                "--version",
                CARGO_DEB,
            ])
            .arg("--root")
            .arg(tools)
            // It is not the project's code.
            .env_remove("CARGO_TARGET_DIR")
            .current_dir(std::env::temp_dir());
        run(&mut install).await;
    }
    program
}

async fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = output.await.expect("start a program");
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
