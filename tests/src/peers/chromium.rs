//! A person with a real browser, without a screen.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::catalogue::{beside, node22};
use super::install::installed;

/// How long a visit may take, with the start of the browser.
const VISIT: Duration = Duration::from_mins(2);

/// A browser that is installed.
pub struct Chromium {
    node: PathBuf,
    program: String,
    script: PathBuf,
    scratch: PathBuf,
}

impl Chromium {
    /// The browser; unpacked once, whatever the number of test processes.
    pub async fn get() -> Self {
        let (set, node) = (installed("browser").await, node22().await);
        let prepare = beside(&set, "prepare_browser.mjs");
        let script = beside(&set, "browse.mjs");
        let scratch = set.join("tmp");
        let program = {
            let (node, scratch) = (node.clone(), scratch.clone());
            let unpacking = tokio::task::spawn_blocking(move || unpack(&node, &prepare, &scratch));
            unpacking.await.expect("unpack the browser")
        };
        Self {
            node,
            program,
            script,
            scratch,
        }
    }

    async fn browse(&self, what: &str, url: &str, screenshot: &Path) -> Value {
        let mut command = tokio::process::Command::new(&self.node);
        command
            .arg(&self.script)
            .args([&self.program, what, url])
            .arg(screenshot)
            .env("TMPDIR", &self.scratch)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(VISIT, command.output()).await;
        let output = output.unwrap_or_else(|_| panic!("the browser took longer than {VISIT:?}"));
        let output = output.expect("run the browser");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the browser failed:\n{errors}");
        let said = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&said).unwrap_or_else(|_| panic!("the browser says: {said}\n{errors}"))
    }

    /// Goes through the pages of an authorization server, signs in and agrees; returns what was seen.
    pub async fn sign_in(&self, url: &str, screenshot: &Path) -> Value {
        self.browse("sign-in", url, screenshot).await
    }

    /// Lets a page open the URL in a window of its own; returns what was seen and what the page was told.
    pub async fn opened(&self, url: &str, screenshot: &Path) -> Value {
        self.browse("opened", url, screenshot).await
    }
}

fn unpack(node: &Path, prepare: &Path, scratch: &Path) -> String {
    std::fs::create_dir_all(scratch).expect("make a directory");
    // Of several that unpack at the same time none would get a whole browser.
    let lock = File::create(scratch.with_extension("lock")).expect("make the lock file");
    lock.lock().expect("lock the browser");
    let output = Command::new(node)
        .arg(prepare)
        .env("TMPDIR", scratch)
        .stdin(Stdio::null())
        .output()
        .expect("run node");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "the browser cannot be unpacked:\n{errors}"
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
