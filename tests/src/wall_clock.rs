//! A wall clock that a test sets forward and back while the daemon runs; its monotonic clock goes on as ever.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::NamedTempFile;
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::daemon::Builder;
use crate::process::target_dir;

/// The library that stands between the daemon and the system's clock; compiled once per process.
async fn library() -> &'static Path {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    BUILT.get_or_init(build).await
}

async fn build() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wall_clock.c");
    // A name of its own, put into place as a whole: other test programs may be doing the same.
    let scratch = tempfile::tempdir_in(target_dir()).expect("make a directory");
    let fresh = scratch.path().join("wall_clock.so");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .args([&fresh, &source])
        .stdin(Stdio::null())
        .output();
    let output = output.await.expect("run the C compiler");
    assert!(
        output.status.success(),
        "the clock does not compile:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let place = target_dir().join("wall_clock.so");
    std::fs::rename(&fresh, &place).expect("put the clock into place");
    place
}

/// The wall clock of a daemon.
pub struct WallClock(NamedTempFile);

impl WallClock {
    /// A clock that is right.
    pub fn right() -> Self {
        let file = NamedTempFile::new().expect("make a file");
        let clock = Self(file);
        clock.set(0);
        clock
    }

    /// Sets it this many seconds forward, or back, from the right time.
    pub fn set(&self, seconds: i64) {
        // One write of a fixed length, so that no reader meets half of it.
        use std::os::unix::fs::FileExt as _;
        let text = format!("{seconds:+024}\n");
        let written = self.0.as_file().write_all_at(text.as_bytes(), 0);
        written.expect("set the clock");
    }

    /// Lets a daemon go by this clock.
    pub async fn wind(&self, builder: Builder) -> Builder {
        let library = library().await.to_str().expect("a path is UTF-8");
        let file = self.0.path().to_str().expect("a path is UTF-8");
        builder
            .env("LD_PRELOAD", library)
            .env("TEST_WALL_CLOCK", file)
    }
}
