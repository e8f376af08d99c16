//! Installs pinned packages once, whatever the number of test processes.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::target_dir;

/// Where the packages come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// npm.
    Npm,
    /// pip, into a virtual environment.
    Pip,
    /// The Go module proxy: programs.
    Go,
    /// pip, as a directory of wheels from which environments are made later.
    Wheels,
}

/// Packages that are installed together.
#[derive(Clone, Copy, Hash, Debug)]
pub struct Set {
    /// Name of the set.
    pub name: &'static str,
    /// Where the packages come from.
    pub source: Source,
    /// The packages with their versions.
    pub packages: &'static [&'static str],
}

/// Every set.
pub const SETS: &[Set] = &[
    Set {
        name: "npm",
        source: Source::Npm,
        packages: &[
            "@modelcontextprotocol/server-everything@2026.8.31",
            "@modelcontextprotocol/server-filesystem@2026.8.31",
            "@modelcontextprotocol/server-memory@2026.8.31",
            "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
        ],
    },
    Set {
        name: "ts2",
        source: Source::Npm,
        packages: &[
            "@modelcontextprotocol/server@2.4.0",
            "@modelcontextprotocol/node@2.1.2",
            "zod@4.6.7",
        ],
    },
    Set {
        name: "node22",
        source: Source::Npm,
        packages: &["node@22"],
    },
    Set {
        name: "browser",
        source: Source::Npm,
        packages: &["@sparticuz/chromium@153.0.0", "puppeteer-core@25.16.0"],
    },
    Set {
        name: "oidc",
        source: Source::Npm,
        packages: &["oidc-provider@9.13.3"],
    },
    Set {
        name: "conformance",
        source: Source::Npm,
        packages: &["@modelcontextprotocol/conformance@0.2.0-alpha.12"],
    },
    Set {
        name: "nodeapp",
        source: Source::Npm,
        packages: &["@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1"],
    },
    Set {
        name: "tsbuild",
        source: Source::Npm,
        packages: &[
            "@bufbuild/protobuf@2.14.1",
            "@grpc/grpc-js@1.14.7",
            "@types/node@20.19.43",
            "ai@6.0.325",
            "typescript@7.0.2",
            "zod@4.6.7",
        ],
    },
    Set {
        name: "buf",
        source: Source::Npm,
        packages: &["@bufbuild/buf@1.75.0", "ts-proto@2.18.0"],
    },
    Set {
        name: "protoc-gen-go",
        source: Source::Go,
        packages: &["google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12"],
    },
    Set {
        name: "protoc-gen-go-grpc",
        source: Source::Go,
        packages: &["google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2"],
    },
    Set {
        name: "pyapp",
        source: Source::Pip,
        packages: &["grpcio==1.85.1", "grpcio-tools==1.85.1"],
    },
    Set {
        name: "grpcurl",
        source: Source::Go,
        packages: &["github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"],
    },
    Set {
        name: "pyinterop",
        source: Source::Pip,
        packages: &[
            "grpcio==1.85.1",
            "grpcio-tools==1.85.1",
            "grpcio-status==1.85.1",
        ],
    },
    Set {
        name: "pywheels",
        source: Source::Wheels,
        packages: &["grpcio==1.85.1", "protobuf==7.36.2"],
    },
    Set {
        name: "pybuild",
        source: Source::Pip,
        packages: &["build==1.6.1", "hatchling==1.33.0"],
    },
    Set {
        name: "pycheck",
        source: Source::Pip,
        packages: &[
            "mypy==2.4.1",
            "types-protobuf==7.35.1.20260906",
            "types-grpcio==1.85.0.20261028",
            "grpcio==1.85.1",
            "protobuf==7.36.2",
        ],
    },
    Set {
        name: "py1",
        source: Source::Pip,
        packages: &["mcp[cli]==1.30.0"],
    },
    Set {
        name: "py2",
        source: Source::Pip,
        packages: &["mcp[cli]==2.3.0"],
    },
    Set {
        name: "fastmcp",
        source: Source::Pip,
        packages: &["fastmcp==4.2.3"],
    },
    Set {
        name: "pyservers",
        source: Source::Pip,
        packages: &["mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19"],
    },
];

/// Installs a set if it is not there yet, and returns its directory.
pub fn install(name: &str) -> PathBuf {
    let set = SETS.iter().find(|set| set.name == name);
    let set = set.unwrap_or_else(|| panic!("there is no set of peers named `{name}`"));
    let mut version = DefaultHasher::new();
    set.hash(&mut version);
    once(name, version.finish(), |dir| fill(set, dir))
}

/// Makes a directory once for a name and a version, whatever the number of test processes, and returns it.
pub(super) fn once(
    name: &str,
    version: u64,
    fill: impl Fn(&Path) -> Result<(), String>,
) -> PathBuf {
    let peers = target_dir().join("peers");
    std::fs::create_dir_all(&peers).expect("make the directory of the peers");
    let dir = peers.join(format!("{name}-{:012x}", version >> 16));
    let marker = dir.join(".complete");
    if marker.exists() {
        return dir;
    }

    // Other test processes may want the same set: one installs, the others wait for it.
    let lock = File::create(dir.with_extension("lock")).expect("make the lock file");
    lock.lock().expect("lock the set");
    let mut problem = String::new();
    for _ in 0..3 {
        if marker.exists() {
            return dir;
        }
        if dir.exists() {
            std::fs::remove_dir_all(&dir).expect("remove an incomplete set");
        }
        std::fs::create_dir_all(&dir).expect("make the directory of the set");
        match fill(&dir) {
            Ok(()) => drop(File::create(&marker).expect("mark the set as complete")),
            Err(cause) => problem = cause,
        }
    }
    assert!(marker.exists(), "cannot install `{name}`: {problem}");
    dir
}

/// [`install`] from async code.
pub async fn installed(name: &'static str) -> PathBuf {
    let installing = tokio::task::spawn_blocking(move || install(name));
    installing.await.unwrap_or_else(|cause| panic!("{cause}"))
}

fn fill(set: &Set, dir: &Path) -> Result<(), String> {
    match set.source {
        Source::Npm => {
            let package = dir.join("package.json");
            std::fs::write(package, "{\"private\":true}\n").map_err(|cause| cause.to_string())?;
            let npm = ["install", "--no-audit", "--no-fund", "--loglevel=error"];
            run(Command::new("npm")
                .args(npm)
                .args(set.packages)
                .current_dir(dir))
        }
        Source::Pip => {
            run(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
            let pip = ["install", "--quiet", "--disable-pip-version-check"];
            run(Command::new(dir.join("bin/pip"))
                .args(pip)
                .args(set.packages))
        }
        Source::Go => run(Command::new("go")
            .arg("install")
            .args(set.packages)
            .env("GOBIN", dir)
            .env_remove("GOFLAGS")),
        Source::Wheels => {
            let pip = [
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
            ];
            let only = ["--only-binary=:all:", "--dest"];
            run(Command::new("python3")
                .args(pip)
                .args(only)
                .arg(dir)
                .args(set.packages))
        }
    }
}

/// Runs a command to its end; what it says on failure.
pub fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|cause| format!("{command:?}: {cause}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let more = String::from_utf8_lossy(&output.stdout);
    let status = output.status;
    Err(format!("{command:?} ended with {status}:\n{said}{more}"))
}
