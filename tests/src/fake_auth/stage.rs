//! A stage with a protected server.

use std::ops::{Deref, DerefMut};

use http::Method;

use super::{Browser, FakeAuth, Guard, Page};
use crate::clients::http_spec;
use crate::daemon::{Builder, TestDaemon};
use crate::facts::ServerFacts as _;
use crate::fake::{Builder as FakeBuilder, FakeMcp, tool};
use crate::peers::reserve_port;
use crate::stage::Stage;
use crate::v1::{self, ConnectionState, ServerSpec};
use crate::wait::{PATIENCE, eventually};

/// A daemon that is watched for leaks of secrets, its apps, a protected server, its authorization server, a browser.
pub struct AuthStage {
    stage: Stage,
    /// The server.
    pub mcp: FakeMcp,
    /// Who stands before it.
    pub guard: Guard,
    /// Its authorization server.
    pub auth: FakeAuth,
    /// The user's browser.
    pub browser: Browser,
    also: Vec<FakeAuth>,
    /// Where browsers come back to.
    callback_port: u16,
    /// Nobody else gets that port.
    _reserved: tokio::net::TcpSocket,
}

impl Deref for AuthStage {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl DerefMut for AuthStage {
    fn deref_mut(&mut self) -> &mut Stage {
        &mut self.stage
    }
}

/// Settings of a daemon that is watched for leaks.
pub fn watched() -> Builder {
    TestDaemon::builder().watched()
}

impl AuthStage {
    /// Sets the stage for so many apps; the server is of this era, and its authorization server has no path.
    pub async fn set(builder: Builder, count: usize, modern: bool) -> Self {
        Self::set_with(builder, count, modern, FakeAuth::start().await).await
    }

    /// The same with this authorization server.
    pub async fn set_with(builder: Builder, count: usize, modern: bool, auth: FakeAuth) -> Self {
        let mcp = if modern {
            FakeMcp::modern()
        } else {
            FakeMcp::legacy()
        };
        Self::set_before(builder, count, mcp, auth).await
    }

    /// The same with this server.
    pub async fn set_before(
        builder: Builder,
        count: usize,
        mcp: FakeBuilder,
        auth: FakeAuth,
    ) -> Self {
        let mcp = mcp.tool(tool("echo")).tool(tool("t1")).tool(tool("t2"));
        let mcp = mcp.start().await;
        let guard = Guard::before(&mcp, &auth);
        let (callback_port, reserved) = reserve_port();
        let builder = builder.or_set("auth.callback_port", u32::from(callback_port));
        Self {
            stage: Stage::set(builder, count).await,
            mcp,
            guard,
            auth,
            browser: Browser::new(),
            also: Vec::new(),
            callback_port,
            _reserved: reserved,
        }
    }

    /// The port where browsers come back to, unless the story set another one. The same for all sign-ins.
    pub fn callback_port(&self) -> u16 {
        self.callback_port
    }

    /// The settings of the server.
    pub fn spec(&self) -> ServerSpec {
        http_spec("S", &self.mcp.url())
    }

    /// The settings of the server, and how the daemon gets authorized there.
    pub fn spec_with(&self, authorization: v1::Authorization) -> ServerSpec {
        ServerSpec {
            authorization: Some(authorization),
            ..self.spec()
        }
    }

    /// The first app registers the server as `s`; every app sees it AUTHENTICATING, with the same place to sign in: that
    /// URL.
    pub async fn add_protected(&self) -> String {
        self.add_protected_as(self.spec()).await
    }

    /// The same with other settings.
    pub async fn add_protected_as(&self, spec: ServerSpec) -> String {
        self.app().add("s", spec).await.expect("AddServer");
        self.auth_url().await
    }

    /// Where the user signs in, as every app sees it.
    pub async fn auth_url(&self) -> String {
        let mut urls = Vec::new();
        for app in &self.apps {
            urls.push(app.wait_authenticating("s").await);
        }
        urls.dedup();
        match &urls[..] {
            [url] => url.clone(),
            other => panic!("apps see different places to sign in: {other:?}"),
        }
    }

    /// The first app registers the server and the user signs in: every app sees it READY. Returns the last page.
    pub async fn sign_in(&self) -> Page {
        self.sign_in_as(self.spec()).await
    }

    /// The same with other settings.
    pub async fn sign_in_as(&self, spec: ServerSpec) -> Page {
        let url = self.add_protected_as(spec).await;
        let page = self.browser.visit(&url).await;
        assert_eq!(page.status, 200, "{page:?}");
        self.all_ready().await;
        page
    }

    /// Every app sees the server READY, with no sign-in pending.
    pub async fn all_ready(&self) {
        for app in &self.apps {
            let server = app.wait_for("s", ConnectionState::Ready).await;
            assert_eq!(server.facts().auth_url, "", "{server:?}");
        }
    }

    /// Every app can call.
    pub async fn all_can_call(&self) {
        let calls = self.everyone(async |app, number| {
            let arguments = format!("{{\"app\":{number}}}");
            let result = app.call_tool("s", "echo", &arguments).await;
            assert_eq!(crate::facts::text_of(&result.expect("CallTool")), arguments);
        });
        calls.await;
    }

    /// Waits until so many RPCs of apps are under way, wherever they wait.
    pub async fn calls_wait(&self, count: u64) {
        eventually("the calls to arrive", PATIENCE, async || {
            let survey = self.daemon.survey().await;
            (survey["rpcs"] >= count).then_some(())
        })
        .await;
    }

    /// Another authorization server that must see nothing wrong, either.
    pub fn also(&mut self, auth: &FakeAuth) {
        self.also.push(auth.clone());
    }

    /// Nothing was wrong with what the daemon said to whom, and no secret is where it does not belong.
    pub async fn finish(self) {
        // What an operator and an app can look at, so that it is looked at.
        self.daemon.survey().await;
        for app in &self.apps {
            for server in app.list().await {
                app.get(&server.id).await.expect("GetServer");
                // Not every server can be signed in at.
                let _status = app.auth_status(&server.id).await;
            }
        }
        self.daemon.assert_no_leaks();
        self.guard.assert_clean();
        for auth in self.also.iter().chain([&self.auth]) {
            auth.assert_clean();
            for asked in auth.all_asked() {
                let foreign = asked
                    .headers
                    .keys()
                    .any(|name| name.as_str().starts_with("x-"));
                assert!(!foreign, "a header of the server's: {asked:?}");
            }
        }
        let metadata = self.mcp.seen_http(&Method::GET).into_iter();
        for seen in metadata.filter(|seen| seen.path.contains("/.well-known/")) {
            assert_eq!(seen.header("authorization"), "", "{seen:?}");
            assert_eq!(seen.header("mcp-session-id"), "", "{seen:?}");
        }
    }
}

/// Plays a story at a modern server, with one app and then with two.
pub async fn protected(story: impl AsyncFn(&mut AuthStage)) {
    protected_with(watched(), story).await;
}

/// The same with a configured daemon.
pub async fn protected_with(builder: Builder, story: impl AsyncFn(&mut AuthStage)) {
    play(&builder, true, &story).await;
}

/// Plays a story at a server of this era, with one app and then with two.
pub async fn play(builder: &Builder, modern: bool, story: &impl AsyncFn(&mut AuthStage)) {
    for count in 1..=2 {
        let mut set = AuthStage::set(builder.clone(), count, modern).await;
        story(&mut set).await;
        set.finish().await;
    }
}
