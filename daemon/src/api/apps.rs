//! The connections of apps: who is there, since when, and what they follow. For show only: nothing is decided by it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::load::Gauge;
use crate::base::{AppConnection, Caller, Clock, Namespace, Timestamp};
use crate::model::spec::Abilities;

/// Most bytes of a program's name or path that are kept.
const MAX_TEXT: usize = 4_096;

/// Through which listener a connection came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    /// The socket for apps.
    App,
    /// The admin socket.
    Admin,
    /// The listener over TCP.
    Tcp,
}

/// An update stream that an app follows.
#[derive(Clone, Debug)]
pub struct Following {
    /// The namespaces; empty for all that it may use.
    pub namespaces: Vec<Namespace>,
    /// What the app can answer, if it says so.
    pub can_answer: Option<Abilities>,
}

/// A connected app.
#[derive(Clone, Debug)]
pub struct App {
    /// The connection.
    pub connection: AppConnection,
    /// Who is at the other end.
    pub caller: Caller,
    /// How it came.
    pub via: Via,
    /// What the process called itself when it connected; empty if that cannot be found out.
    pub program: String,
    /// The file that it ran; empty if that cannot be found out.
    pub executable: String,
    /// Since when.
    pub since: Timestamp,
    /// Its RPCs that are under way.
    pub rpcs: Gauge,
    /// What it follows, by number.
    pub follows: BTreeMap<u64, Following>,
}

/// All of them. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Apps(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    apps: BTreeMap<u64, App>,
    next_stream: u64,
}

impl Apps {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An app has connected; it is forgotten when the returned value is dropped.
    pub(super) fn enter(&self, connection: &AppConnection, caller: &Caller, via: Via) -> Entered {
        let pid = caller.process().and_then(|process| process.pid);
        let rpcs = Gauge::default();
        let app = App {
            connection: connection.clone(),
            caller: caller.clone(),
            via,
            program: program_of(pid),
            executable: executable_of(pid),
            since: Clock.wall(),
            rpcs: rpcs.clone(),
            follows: BTreeMap::new(),
        };
        let named = [&app.executable, &app.program];
        let named = named.into_iter().find(|name| !name.is_empty()).cloned();
        self.state().apps.insert(connection.id(), app);
        Entered {
            program: named,
            apps: self.clone(),
            id: connection.id(),
            rpcs,
        }
    }

    /// The app on this connection follows an update stream until the returned value is dropped.
    pub(super) fn follow(&self, connection: &AppConnection, following: Following) -> Follows {
        let id = connection.id();
        let mut state = self.state();
        let stream = state.next_stream;
        state.next_stream += 1;
        if let Some(app) = state.apps.get_mut(&id) {
            app.follows.insert(stream, following);
        }
        Follows {
            apps: self.clone(),
            id,
            stream,
        }
    }

    /// Up to `limit` of them, the oldest first.
    #[must_use]
    pub fn list(&self, limit: usize) -> Vec<App> {
        self.state().apps.values().take(limit).cloned().collect()
    }

    /// How many there are, and how many update streams they follow.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let state = self.state();
        let streams = state.apps.values().map(|app| app.follows.len()).sum();
        (state.apps.len(), streams)
    }
}

/// A connected app, as long as this lives.
#[derive(Debug)]
pub(super) struct Entered {
    apps: Apps,
    id: u64,
    /// What runs in it: the file, else the name; `None` if neither can be found out.
    pub(super) program: Option<String>,
    /// Its RPCs that are under way.
    pub(super) rpcs: Gauge,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.apps.state().apps.remove(&self.id);
    }
}

/// A followed update stream, as long as this lives.
#[derive(Debug)]
pub(super) struct Follows {
    apps: Apps,
    id: u64,
    stream: u64,
}

impl Drop for Follows {
    fn drop(&mut self) {
        if let Some(app) = self.apps.state().apps.get_mut(&self.id) {
            app.follows.remove(&self.stream);
        }
    }
}

fn program_of(pid: Option<i32>) -> String {
    let read = place(pid, "comm").and_then(|path| std::fs::read(path).ok());
    shown(&read.unwrap_or_default())
}

fn executable_of(pid: Option<i32>) -> String {
    let read = place(pid, "exe").and_then(|path| std::fs::read_link(path).ok());
    let path = read.map(PathBuf::into_os_string).unwrap_or_default();
    shown(path.as_encoded_bytes())
}

fn place(pid: Option<i32>, what: &str) -> Option<PathBuf> {
    Some(PathBuf::from(format!("/proc/{}/{what}", pid?)))
}

fn shown(bytes: &[u8]) -> String {
    let bytes = bytes.get(..bytes.len().min(MAX_TEXT)).unwrap_or_default();
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end_matches('\n');
    // A program can call itself anything, also what would move the cursor of a terminal.
    text.replace(|c: char| c.is_control(), "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::{Apps, Following, Via, shown};
    use crate::base::{AppConnection, Caller, Process};

    #[test]
    fn who_is_gone_is_forgotten() {
        let apps = Apps::default();
        let me = Caller::Process(Process {
            uid: 1,
            gid: 2,
            pid: i32::try_from(std::process::id()).ok(),
        });
        let one = AppConnection::new(me.user(), CancellationToken::new());
        let entered = apps.enter(&one, &me, Via::App);
        let following = Following {
            namespaces: Vec::new(),
            can_answer: None,
        };
        let follows = apps.follow(&one, following.clone());
        assert_eq!(apps.count(), (1, 1));
        assert!(!apps.list(10)[0].program.is_empty());
        assert!(apps.list(10)[0].executable.starts_with('/'));
        drop(follows);
        assert_eq!(apps.count(), (1, 0));
        let follows = apps.follow(&one, following);
        drop(entered);
        assert_eq!(apps.count(), (0, 0));
        drop(follows);
    }

    #[test]
    fn names_that_would_move_a_cursor_do_not() {
        assert_eq!(shown(b"a\x1b[2Jb\n"), "a\u{fffd}[2Jb");
        assert_eq!(shown(b"\xff"), "\u{fffd}");
    }
}
