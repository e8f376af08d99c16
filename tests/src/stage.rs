//! The same story with one app attached and with two.

use futures_util::future::join_all;

use crate::clients::{Clients, http_spec};
use crate::daemon::{Builder, TestDaemon};
use crate::v1::{ConnectionState, Server, ServerSpec};

/// A daemon of its own and the apps of one run of a story.
pub struct Stage {
    /// The daemon.
    pub daemon: TestDaemon,
    /// The apps, one or two, each on its own connection.
    pub apps: Vec<Clients>,
}

impl Stage {
    /// Starts a daemon and connects so many apps.
    pub async fn set(builder: Builder, count: usize) -> Self {
        let daemon = builder.start().await;
        let mut apps = Vec::new();
        for _ in 0..count {
            apps.push(daemon.clients().await);
        }
        Self { daemon, apps }
    }

    /// The first app.
    pub fn app(&self) -> &Clients {
        &self.apps[0]
    }

    /// The last app: the only one, or the one that did nothing so far.
    pub fn other(&self) -> &Clients {
        &self.apps[self.apps.len() - 1]
    }

    /// The first app registers a server under an id, and every app sees it READY.
    pub async fn add(&self, id: &str, spec: ServerSpec) -> Server {
        let added = self.app().add(id, spec).await.expect("AddServer");
        for app in &self.apps {
            app.wait_for(id, ConnectionState::Ready).await;
        }
        added.server.expect("AddServer returns the server")
    }

    /// The first app registers the server `s` at a URL, and every app sees it READY.
    pub async fn add_http(&self, url: &str) -> Server {
        self.add("s", http_spec("S", url)).await
    }

    /// Every app does the same at the same time; the number says which one does it.
    pub async fn everyone<T>(&self, act: impl AsyncFn(Clients, usize) -> T) -> Vec<T> {
        let apps = self.apps.iter().cloned().enumerate();
        join_all(apps.map(|(number, app)| act(app, number))).await
    }

    /// Starts the daemon again, after stopping it if it runs, and connects the apps anew.
    pub async fn restart(&mut self) {
        self.daemon.restart().await;
        for app in &mut self.apps {
            *app = self.daemon.clients().await;
        }
    }
}

/// Plays a story with one app and then, on another daemon, with two.
pub async fn one_and_two(story: impl AsyncFn(Stage)) {
    one_and_two_with(TestDaemon::builder(), story).await;
}

/// The same with a configured daemon.
pub async fn one_and_two_with(builder: Builder, story: impl AsyncFn(Stage)) {
    for count in 1..=2 {
        // A story holds whole messages of the contract.
        Box::pin(story(Stage::set(builder.clone(), count).await)).await;
    }
}

/// The same, but both at the same time: for stories that mostly wait and measure nothing that two of them would disturb.
pub async fn one_and_two_at_once(builder: Builder, story: impl AsyncFn(Stage)) {
    let play = async |count| story(Stage::set(builder.clone(), count).await).await;
    tokio::join!(Box::pin(play(1)), Box::pin(play(2)));
}
