//! `docs/operations.md`: its configuration is acceptable, and its commands exist.

use std::process::Output;

use mcp_sidecar_tests::daemon::programs;
use mcp_sidecar_tests::peers::programs::blocks;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;
use tokio::process::Command;

async fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(programs().await.join(program));
    command.args(arguments).kill_on_drop(true);
    within(program, command.output()).await.unwrap()
}

#[tokio::test]
async fn the_configuration_of_the_operators_page_is_acceptable() {
    let page = workspace_dir().join("docs/operations.md");
    let blocks = blocks(&page, "toml");
    assert!(!blocks.is_empty());
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("notes.token");
    std::fs::write(&token, "a-token").unwrap();
    for block in blocks {
        let config = dir.path().join("config.toml");
        let text = block.replace("/etc/mcp-sidecar/notes.token", token.to_str().unwrap());
        std::fs::write(&config, text).unwrap();
        let check = ["check-config", "--config", config.to_str().unwrap()];
        let checked = run("mcp-sidecard", &check).await;
        assert!(
            checked.status.success(),
            "{block}\n{}",
            String::from_utf8_lossy(&checked.stderr)
        );
    }
}

#[tokio::test]
async fn the_commands_of_the_operators_page_exist() {
    let page = std::fs::read_to_string(workspace_dir().join("docs/operations.md")).unwrap();
    let words = page.replace('\n', " ");
    let named = words.split('`').skip(1).step_by(2);
    let commands: Vec<_> = named
        .filter_map(|text| text.strip_prefix("mcp-sidecar "))
        .collect();
    assert!(commands.len() > 5, "{commands:?}");
    for command in commands {
        let arguments = command.split(' ').chain(["--help"]);
        let told = run("mcp-sidecar", &arguments.collect::<Vec<_>>()).await;
        let usage = String::from_utf8_lossy(&told.stdout).into_owned();
        let first = command.split(' ').next().unwrap();
        assert!(
            told.status.success() && usage.contains(&format!("mcp-sidecar {first}")),
            "`mcp-sidecar {command}`: {usage}{}",
            String::from_utf8_lossy(&told.stderr)
        );
    }
}
