//! The app in Java: built by Maven from the contract and `tests/interop/java`.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::process::Command;

use super::install::{once, run};
use crate::process::{target_dir, workspace_dir};

/// Generates the stubs and compiles the app, once for a state of both; returns the class path.
pub async fn classes() -> OsString {
    let made = tokio::task::spawn_blocking(|| {
        let mut version = DefaultHasher::new();
        for directory in [
            "tests/interop/java",
            "tests/interop/java/src/main/java",
            "proto/mcpsidecar/v1",
        ] {
            let files =
                std::fs::read_dir(workspace_dir().join(directory)).expect("a directory of sources");
            let mut files: Vec<_> = files.flatten().map(|file| file.path()).collect();
            files.sort();
            for file in files.iter().filter(|file| file.is_file()) {
                std::fs::read(file)
                    .expect("read a source")
                    .hash(&mut version);
            }
        }
        once("javaapp", version.finish(), make)
    });
    let dir = made.await.unwrap_or_else(|cause| panic!("{cause}"));
    let mut path = dir.join("classes").into_os_string();
    path.push(":");
    path.push(dir.join("dependency/*"));
    path
}

fn make(dir: &Path) -> Result<(), String> {
    let property = |name: &str, path: &Path| {
        let mut text = OsString::from(format!("-D{name}="));
        text.push(path);
        text
    };
    run(Command::new("mvn")
        .args(["--batch-mode", "--quiet", "--file"])
        .arg(workspace_dir().join("tests/interop/java/pom.xml"))
        .arg(property("maven.repo.local", &target_dir().join("peers/m2")))
        .arg(property("story.build", dir))
        .arg(property("story.protos", &workspace_dir().join("proto")))
        .args(["compile", "dependency:copy-dependencies"]))
}
