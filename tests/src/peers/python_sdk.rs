//! The Python client as its users have it: a wheel in an environment that has nothing else but what the wheel asks for.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::install::{install, once, run};
use crate::process::workspace_dir;

/// The package's directory in the workspace.
pub fn sources() -> PathBuf {
    workspace_dir().join("client-sdk/python")
}

/// Builds the source distribution, from it the wheel, and installs that; returns the environment. What comes from a registry
/// is there beforehand.
pub async fn environment() -> PathBuf {
    let made = tokio::task::spawn_blocking(|| {
        let mut version = DefaultHasher::new();
        hash(&sources(), &mut version);
        once("pysdk", version.finish(), make)
    });
    made.await.unwrap_or_else(|cause| panic!("{cause}"))
}

fn make(dir: &Path) -> Result<(), String> {
    let (wheels, builder) = (install("pywheels"), install("pybuild"));
    let dist = dir.join("dist");
    run(Command::new(builder.join("bin/python"))
        .args(["-m", "build", "--no-isolation", "--outdir"])
        .args([&dist, &sources()]))?;
    let files = std::fs::read_dir(&dist).map_err(|cause| cause.to_string())?;
    let wheel = files.flatten().map(|file| file.path());
    let wheel = wheel
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.ok_or("no wheel was built")?;
    run(Command::new("python3")
        .args(["-m", "venv"])
        .arg(dir.join("venv")))?;
    run(Command::new(dir.join("venv/bin/pip"))
        .args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-index",
            "--find-links",
        ])
        .args([&wheels, &wheel]))
}

fn hash(path: &Path, into: &mut DefaultHasher) {
    let entries = std::fs::read_dir(path).expect("read the package");
    let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() && !entry.ends_with("__pycache__") && !entry.ends_with(".mypy_cache") {
            hash(&entry, into);
        } else if entry.is_file() {
            entry.hash(into);
            std::fs::read(&entry)
                .expect("read a file of the package")
                .hash(into);
        }
    }
}
