//! Packages of this project, built as they are published and installed into empty projects.

use std::fmt::Write as _;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::install::{install, run};
use crate::process::{target_dir, workspace_dir};

/// Files below a directory that are no products, in a stable order.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir)
        .expect("read a directory")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().and_then(|name| name.to_str());
        match name {
            Some("node_modules" | "dist") => {}
            _ if path.is_dir() => sources(&path, found),
            _ => found.push(path),
        }
    }
}

/// A directory below the target directory that is made once of some sources, whatever the number of test processes.
fn made_once(name: &str, of: &[&Path], make: impl FnOnce(&Path) -> Result<(), String>) -> PathBuf {
    let mut version = DefaultHasher::new();
    for dir in of {
        let mut files = Vec::new();
        sources(dir, &mut files);
        for file in files {
            file.hash(&mut version);
            std::fs::read(&file)
                .expect("read a source")
                .hash(&mut version);
        }
    }
    let packages = target_dir().join("packages");
    std::fs::create_dir_all(&packages).expect("make the directory of the packages");
    let dir = packages.join(format!("{name}-{:012x}", version.finish() >> 16));
    let lock = File::create(dir.with_extension("lock")).expect("make the lock file");
    lock.lock().expect("lock the package");
    let marker = dir.join(".complete");
    if !marker.exists() {
        if dir.exists() {
            std::fs::remove_dir_all(&dir).expect("remove an incomplete package");
        }
        std::fs::create_dir_all(&dir).expect("make a directory");
        make(&dir).unwrap_or_else(|cause| panic!("cannot make `{name}`: {cause}"));
        File::create(&marker).expect("mark the package as complete");
    }
    dir
}

fn copy(from: &Path, to: &Path) {
    let mut files = Vec::new();
    sources(from, &mut files);
    for file in files {
        let copy = to.join(
            file.strip_prefix(from)
                .expect("a file lies in its directory"),
        );
        std::fs::create_dir_all(copy.parent().expect("a directory")).expect("make a directory");
        std::fs::copy(file, copy).expect("copy a file");
    }
}

/// An empty project in which the tarball of the TypeScript client is installed, with a compiler beside it.
pub fn typescript_app() -> PathBuf {
    let tools = install("tsbuild");
    let sdk = workspace_dir().join("client-sdk/typescript");
    made_once("typescript", &[&sdk], |dir| {
        let package = dir.join("package");
        copy(&sdk, &package);
        let modules = tools.join("node_modules");
        std::os::unix::fs::symlink(&modules, package.join("node_modules"))
            .map_err(|cause| cause.to_string())?;
        run(Command::new("npm")
            .args(["pack", "--silent"])
            .current_dir(&package))?;
        let built = std::fs::read_dir(&package).expect("read the directory");
        let mut built = built.map(|entry| entry.expect("an entry").path());
        let tarball = built.find(|path| path.extension().is_some_and(|ext| ext == "tgz"));
        let tarball = tarball.ok_or("`npm pack` made no tarball")?;
        let app = dir.join("app");
        std::fs::create_dir_all(&app).map_err(|cause| cause.to_string())?;
        let manifest = "{\"private\":true,\"type\":\"module\"}\n";
        std::fs::write(app.join("package.json"), manifest).map_err(|cause| cause.to_string())?;
        let npm = [
            "install",
            "--prefer-offline",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
        ];
        let set = super::install::SETS
            .iter()
            .find(|set| set.name == "tsbuild");
        let beside = set.expect("the set is there").packages;
        run(Command::new("npm")
            .args(npm)
            .arg(&tarball)
            .args(beside)
            .current_dir(&app))
    })
    .join("app")
}

/// Compiles programs in an app's directory, strictly, and says what is wrong with them.
pub fn compile_typescript(app: &Path, files: &[PathBuf]) -> Result<(), String> {
    let options = "--strict --noUncheckedIndexedAccess --target ES2022 --lib ES2023,ESNext.Disposable,DOM --module NodeNext \
                   --types node --skipLibCheck";
    run(Command::new(app.join("node_modules/.bin/tsc"))
        .args(options.split_ascii_whitespace())
        .args(files)
        .current_dir(app))
}

/// Programs on the Go client, built in a module of their own that has nothing but it; by their names, in the order in which they
/// are given. The client is vetted first.
pub fn go_programs(name: &str, programs: &[(String, String)]) -> Vec<PathBuf> {
    let sdk = workspace_dir().join("client-sdk/go");
    let mut version = DefaultHasher::new();
    programs.hash(&mut version);
    let name = format!("go-{name}-{:08x}", version.finish() >> 32);
    let dir = made_once(&name, &[&sdk], |dir| {
        run(Command::new("go").args(["vet", "./..."]).current_dir(&sdk))?;
        let path = go_module(dir)?;
        let manifest = dir.join("go.mod");
        let module = std::fs::read_to_string(&manifest).map_err(|cause| cause.to_string())?;
        let sdk = sdk.display();
        let module = format!("{module}\nrequire {path} v0.0.0\n\nreplace {path} => {sdk}\n");
        std::fs::write(&manifest, module).map_err(|cause| cause.to_string())?;
        for (program, code) in programs {
            let source = dir.join(program);
            std::fs::create_dir_all(&source).map_err(|cause| cause.to_string())?;
            std::fs::write(source.join("main.go"), code).map_err(|cause| cause.to_string())?;
        }
        std::fs::create_dir_all(dir.join("bin")).map_err(|cause| cause.to_string())?;
        run(Command::new("go")
            .args(["build", "-mod=mod", "-o", "bin/", "./..."])
            .current_dir(dir))
    });
    programs
        .iter()
        .map(|(program, _)| dir.join("bin").join(program))
        .collect()
}

/// Makes a directory the module `example.com/app`, with the modules that the Go client has, at the same versions; returns the
/// path of the client's module.
pub fn go_module(dir: &Path) -> Result<String, String> {
    let sdk = workspace_dir().join("client-sdk/go");
    let module = std::fs::read_to_string(sdk.join("go.mod")).map_err(|cause| cause.to_string())?;
    let mut lines = module.lines();
    let path = lines.next().and_then(|line| line.strip_prefix("module "));
    let path = path.ok_or("the first line of `go.mod` names the module")?;
    let app = module.replacen(path, "example.com/app", 1);
    std::fs::write(dir.join("go.mod"), app).map_err(|cause| cause.to_string())?;
    std::fs::copy(sdk.join("go.sum"), dir.join("go.sum")).map_err(|cause| cause.to_string())?;
    Ok(path.to_owned())
}

/// Programs on the Rust client, in a package of their own that has these dependencies, and the client as its packed crate; in the
/// order in which they are given, each with its name and its source.
pub fn rust_programs(dependencies: &str, programs: &[(String, String)]) -> Vec<PathBuf> {
    let (client, contract) = (
        workspace_dir().join("client-sdk/rust"),
        workspace_dir().join("proto"),
    );
    let mut version = DefaultHasher::new();
    (dependencies, programs).hash(&mut version);
    let name = format!("rust-{:08x}", version.finish() >> 32);
    let dir = made_once(&name, &[&client, &contract], |dir| {
        let cargo = || Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let crates = ["mcp-sidecar-proto", "mcp-sidecar-client"];
        let mut package = cargo();
        package.args([
            "package",
            "--quiet",
            "--offline",
            "--allow-dirty",
            "--no-verify",
        ]);
        for name in crates {
            package.args(["--package", name]);
        }
        let packed = dir.join("packed");
        run(package
            .arg("--target-dir")
            .arg(&packed)
            .current_dir(workspace_dir()))?;
        let app = dir.join("app");
        let sources = app.join("src/bin");
        std::fs::create_dir_all(&sources).map_err(|cause| cause.to_string())?;
        let mut manifest = format!(
            "[package]\nname = \"app\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n{dependencies}\n[workspace]\n\n\
             [patch.crates-io]\n"
        );
        for name in crates {
            let file = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
            let archive = packed.join("package").join(format!("{file}.crate"));
            run(Command::new("tar")
                .arg("-xzf")
                .arg(archive)
                .arg("-C")
                .arg(dir))?;
            let _ = writeln!(manifest, "{name} = {{ path = \"../{file}\" }}");
        }
        std::fs::write(app.join("Cargo.toml"), manifest).map_err(|cause| cause.to_string())?;
        // The versions of the workspace, which are there.
        let lock = workspace_dir().join("Cargo.lock");
        std::fs::copy(lock, app.join("Cargo.lock")).map_err(|cause| cause.to_string())?;
        for (program, code) in programs {
            std::fs::write(sources.join(format!("{program}.rs")), code)
                .map_err(|cause| cause.to_string())?;
        }
        let built = target_dir().join("packages/cargo");
        run(cargo()
            .args(["build", "--quiet", "--offline", "--target-dir"])
            .arg(&built)
            .current_dir(&app))?;
        let bin = dir.join("bin");
        std::fs::create_dir_all(&bin).map_err(|cause| cause.to_string())?;
        for (program, _) in programs {
            std::fs::copy(built.join("debug").join(program), bin.join(program))
                .map_err(|cause| cause.to_string())?;
        }
        Ok(())
    });
    let programs = programs.iter();
    programs
        .map(|(program, _)| dir.join("bin").join(program))
        .collect()
}
