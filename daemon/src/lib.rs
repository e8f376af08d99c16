//! The daemon that holds every MCP connection, token and pending question of a host. See `ARCHITECTURE.md`.
//!
//! This file builds the parts in order and owns their end; it is the only one that sees all of them.

pub mod access;
pub mod api;
pub mod audit;
pub mod auth;
pub mod base;
pub mod calls;
pub mod catalog;
pub mod config;
pub mod error;
pub mod inputs;
pub mod json;
pub mod mcp;
pub mod metrics;
pub mod model;
pub mod operation;
pub mod policy;
pub mod processes;
pub mod registry;
pub mod store;
pub mod systemd;
pub mod telemetry;
pub mod tokens;
pub mod traces;

#[cfg(test)]
mod architecture_test;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::access::Access;
use crate::api::apps::{Apps, Via};
use crate::api::socket::{Passed, SocketFile};
use crate::api::{Gate, Health, Listener, Observers, ServeOptions, Shared, infrastructure, serve};
use crate::audit::Audit;
use crate::auth::callback::{Callback, CallbackOptions};
use crate::auth::web::Web;
use crate::auth::{Auth, AuthParts, AuthSettings};
use crate::base::load::Load;
use crate::calls::{Calls, CallsParts};
use crate::catalog::output::{CheckLimits, Checker};
use crate::config::{Config, Sources, TcpConfig};
use crate::error::{Error, Result};
use crate::inputs::{Inputs, InputsConfig};
use crate::mcp::Settings;
use crate::mcp::open::Dialer;
use crate::mcp::transport::stdio::StdioOptions;
use crate::metrics::{Figures, Metrics};
use crate::model::call::KeepCalls;
use crate::operation::{Operation, Parts, Places};
use crate::policy::{ClientOptions, Policy};
use crate::processes::Keeper;
use crate::registry::{Registry, declared};
pub use crate::store::{Keys, Rotated};
use crate::store::{Store, StoreConfig};
use crate::telemetry::LogFilter;
use crate::tokens::Tokens;
use crate::traces::Traces;

/// What tasks may still do after the last connection has ended.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// A listener with what is served on it.
#[derive(Debug)]
struct Door {
    listener: Listener,
    routes: Routes,
    health: Health,
    via: Via,
}

/// A daemon that is built, holds its sockets, and does not serve yet.
#[derive(Debug)]
pub struct Daemon {
    config: Config,
    doors: Vec<Door>,
    /// What the sockets leave behind.
    files: Vec<SocketFile>,
    apps: Apps,
    operation: Operation,
    tracker: TaskTracker,
    /// Cancelled when the daemon begins to stop: long streams end.
    draining: CancellationToken,
    store: Store,
    inputs: Inputs,
    registry: Registry,
    calls: Calls,
    auth: Auth,
    keeper: Arc<Keeper>,
    load: Load,
    traces: Traces,
    audit: Audit,
    metrics: Metrics,
    /// Where figures are served.
    scraped: Option<metrics::Bound>,
    subscribers: Arc<Semaphore>,
}

/// What a daemon has under way, on demand. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Survey {
    load: Load,
    inputs: Inputs,
    registry: Registry,
}

impl Survey {
    /// Writes one line to the log. All but the servers, their links and the tasks come to rest with the apps.
    pub fn log(&self) {
        let runtime = tokio::runtime::Handle::current().metrics();
        tracing::info!(
            servers = self.registry.count(),
            links = self.load.links.count(),
            rpcs = self.load.rpcs.count(),
            calls = self.load.calls.count(),
            waiting = self.load.waiting.count(),
            questions = self.inputs.waiting(),
            tasks = runtime.num_alive_tasks(),
            "survey"
        );
    }
}

impl Daemon {
    /// Builds the parts in order: everything that can fail at start fails here, before any app is served. Stored
    /// servers begin to connect in the background; none of them can hold up the start.
    ///
    /// # Errors
    /// The failure of the first part that cannot start, with its remedy.
    pub async fn build(config: Config, sources: Sources, log: LogFilter) -> Result<Self> {
        let declared = operation::declared::read(&config, sources.credentials().as_deref())?;
        let tracker = TaskTracker::new();
        let draining = CancellationToken::new();
        let policy = Policy::new(&config.policy);
        let options = ClientOptions {
            connect_timeout: config.timeouts.connect,
            keepalive: config.reconnect.keepalive_interval,
        };
        let client = policy.http_client(options)?;
        if let Some(url) = &config.telemetry.otlp_endpoint {
            policy.check_url(url)?;
        }
        let traces = Traces::start(&config.telemetry, client.clone())?;

        // The store locks the data directory: of two daemons on one directory the second ends here.
        let opening = store_config(&config);
        let (store, records) = tokio::task::spawn_blocking(|| Store::open(opening))
            .await
            .map_err(|cause| Error::internal(format!("opening the store failed: {cause}")))??;
        let records = declared::settle(records, declared, &store, config.limits.servers).await?;
        let audit = Audit::open(&config.audit)?;
        let scraped = metrics::Bound::open(&config.metrics).await?;
        let metrics = match &scraped {
            Some(_) => Metrics::new(api::methods()?),
            None => Metrics::default(),
        };
        let tcp = bind_tcp(&config.tcp).await?;
        let mut passed = Passed::take()?;
        let bound = passed.app(&config.socket.path, config.socket.mode.0)?;
        let admin_bound = passed.admin(&config.admin.path, config.admin.mode.0)?;
        let keeper = Keeper::new(&config.data_dir, config.timeouts.close)
            .map_err(|cause| Error::internal(format!("the data directory is gone: {cause}")))?;
        if config.stdio.enabled {
            keeper.start(&tracker);
        }

        let inputs = Inputs::new(
            store.clone(),
            InputsConfig {
                expiry: config.questions.expiry,
                sampling_expiry: config.questions.sampling_expiry,
                approval_expiry: config.questions.approval_expiry,
                unattended: config.questions.unattended,
                max_pending_per_server: config.questions.max_pending_per_server,
                max_bytes: config.questions.max_bytes,
                max_sampling_bytes: config.questions.max_sampling_bytes,
                max_pending_bytes: config.questions.max_pending_bytes,
            },
        );
        inputs.audience().recall().await?;
        let load = Load::default();
        let (callback, visits) = Callback::new(callback_options(&config), tracker.clone());
        let auth = Auth::start(AuthParts {
            settings: auth_settings(&config),
            store: store.clone(),
            callback,
            visits,
            web: Web::new(
                client,
                policy.clone(),
                config.auth.request_timeout,
                config.auth.response_bytes,
            ),
            policy: policy.clone(),
            options,
            audit: audit.clone(),
            tasks: tracker.clone(),
            stopping: draining.clone(),
        });
        let auth = auth.await?;
        let settings = Arc::new(settings(&config));
        let dialer = Dialer {
            policy,
            auth: auth.clone(),
            inputs: inputs.clone(),
            settings: Arc::clone(&settings),
            keeper: Arc::clone(&keeper),
            tasks: tracker.clone(),
            load: load.clone(),
        };
        let registry = Registry::start(records, store.clone(), dialer, config.limits.servers);
        let calls = Calls::start(CallsParts {
            registry: registry.clone(),
            inputs: inputs.clone(),
            store: store.clone(),
            settings,
            audit: audit.clone(),
            metrics: metrics.clone(),
            tasks: tracker.clone(),
            draining: draining.clone(),
        });
        let calls = calls.await?;
        let shared = Shared {
            access: Access::new(&config.access),
            apps: Apps::default(),
            registry: registry.clone(),
            auth: auth.clone(),
            inputs: inputs.clone(),
            store: store.clone(),
            calls: calls.clone(),
            calls_per_stream: config.limits.calls_per_stream,
            audit: audit.clone(),
            checker: Arc::new(Checker::new(check_limits(&config))),
            connect: config.timeouts.connect,
            wait_max: config.timeouts.wait_max,
            bookmark_interval: config.updates.bookmark_interval,
            subscribers: Arc::new(Semaphore::new(config.limits.subscribers)),
            message_bytes: config.limits.grpc_message_bytes,
            shutdown: draining.clone(),
            tasks: tracker.clone(),
        };
        let parts = Parts {
            sources,
            registry: registry.clone(),
            access: shared.access.clone(),
            log,
            load: load.clone(),
            tasks: tracker.clone(),
            draining: draining.clone(),
            places: Places {
                app_socket: bound.path(),
                admin_socket: admin_bound.path(),
                tcp: tcp.as_ref().map(|(_, address)| *address),
                data_dir: config.data_dir.clone(),
            },
        };
        let operation = Operation::new(parts, config.clone());
        let tokens = Tokens::start(
            store.clone(),
            config.limits.app_tokens,
            tracker.clone(),
            draining.clone(),
        );
        let tokens = tokens.await?;
        let mut doors = Vec::new();
        let mut files = Vec::new();
        let mut listeners = vec![(Listener::Unix(bound.listener), Via::App)];
        if let Some((listener, address)) = tcp {
            let gate = Gate::new(tokens.clone(), address.port());
            listeners.push((Listener::Tcp(listener, gate), Via::Tcp));
        }
        for (listener, via) in listeners {
            let (routes, health) = infrastructure(api::routes(&shared), api::SERVICES).await?;
            doors.push(Door {
                listener,
                routes,
                health,
                via,
            });
        }
        files.push(bound.file);
        let routes = api::admin_routes(&shared, &operation, &tokens);
        let (routes, health) = infrastructure(routes, api::ADMIN_SERVICES).await?;
        doors.push(Door {
            listener: Listener::Unix(admin_bound.listener),
            routes,
            health,
            via: Via::Admin,
        });
        files.push(admin_bound.file);
        Ok(Self {
            config,
            doors,
            files,
            apps: shared.apps,
            operation,
            tracker,
            draining,
            store,
            inputs,
            registry,
            calls,
            auth,
            keeper,
            load,
            traces,
            audit,
            metrics,
            scraped,
            subscribers: shared.subscribers,
        })
    }

    /// Serves figures and counts what the update log tells, if that is configured.
    fn show_metrics(&mut self, stop: &CancellationToken) {
        let Some(bound) = self.scraped.take() else {
            return;
        };
        let (store, load, registry) =
            (self.store.clone(), self.load.clone(), self.registry.clone());
        let (subscribers, most) = (
            Arc::clone(&self.subscribers),
            self.config.limits.subscribers,
        );
        let look: metrics::Look = Arc::new(move || {
            let servers = registry.all().into_iter().map(|server| {
                let live = server.live();
                let calls = live.link.map_or(0, |link| link.calls_in_flight());
                (server.record.key.clone(), live.status.state.as_str(), calls)
            });
            let mut figures = Figures {
                servers: servers.collect(),
                calls_in_flight: load.calls.count(),
                rpcs_in_flight: load.rpcs.count(),
                links: load.links.count(),
                dials: (load.dials.total(), load.failed_dials.total()),
                refreshes: load.refreshes.total(),
                subscribers: most - subscribers.available_permits().min(most),
                updates: (store.head().borrow().0, 0),
                questions_pending: 0,
            };
            let store = store.clone();
            Box::pin(async move {
                if let Ok((pending, kept)) = store.figures().await {
                    figures.questions_pending = pending;
                    figures.updates.1 = kept;
                }
                figures
            })
        });
        let (metrics, tasks) = (self.metrics.clone(), &self.tracker);
        tasks.spawn(metrics::follow(
            metrics.clone(),
            self.store.clone(),
            stop.clone(),
        ));
        tasks.spawn(metrics::serve(
            bound,
            metrics,
            look,
            stop.clone(),
            tasks.clone(),
        ));
    }

    /// The audit log, whose file can be opened anew.
    #[must_use]
    pub fn audit(&self) -> Audit {
        self.audit.clone()
    }

    /// What its operator can do with it while it runs.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation.clone()
    }

    /// Tells what is under way while the daemon runs.
    #[must_use]
    pub fn survey(&self) -> Survey {
        Survey {
            load: self.load.clone(),
            inputs: self.inputs.clone(),
            registry: self.registry.clone(),
        }
    }

    /// Serves until `shutdown` is cancelled, then drains: health says NOT_SERVING, running RPCs may finish, connections
    /// to servers end, the socket is removed. Returns when nothing runs any more, at most `timeouts.drain` and a few
    /// seconds later.
    ///
    /// # Errors
    /// That of the accept loop.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<()> {
        let end = CancellationToken::new();
        self.show_metrics(&self.draining.clone());
        let healths: Vec<_> = self.doors.iter().map(|door| door.health.clone()).collect();
        let serving = self.doors.into_iter().map(|door| {
            let options = ServeOptions {
                connections: self.config.limits.connections,
                connections_per_user: self.config.limits.connections_per_user,
                drain: self.config.timeouts.drain,
                via: door.via,
                message_bytes: self.config.limits.grpc_message_bytes,
            };
            serve(
                door.listener,
                door.routes,
                options,
                self.draining.clone(),
                self.tracker.clone(),
                self.load.rpcs.clone(),
                Observers {
                    audit: self.audit.clone(),
                    apps: self.apps.clone(),
                    metrics: self.metrics.clone(),
                },
            )
        });
        let serving = futures_util::future::join_all(serving);
        for health in &healths {
            health.serving().await;
        }
        systemd::watchdog(&self.tracker, end.clone());
        systemd::ready("serving");
        let Places {
            app_socket,
            admin_socket,
            tcp,
            ..
        } = self.operation.places().clone();
        let [app, admin] = [app_socket, admin_socket].map(Option::unwrap_or_default);
        tracing::info!(
            socket = %app.display(),
            admin = %admin.display(),
            tcp = tcp.map(tracing::field::display),
            "ready"
        );

        let draining = async {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.operation.stopping() => {}
            }
            tracing::info!("draining");
            systemd::stopping("draining");
            for health in &healths {
                health.draining().await;
            }
            self.draining.cancel();
        };
        let mut serving = std::pin::pin!(serving);
        let served = tokio::select! {
            served = &mut serving => served,
            () = draining => serving.await,
        };
        let served: Result<()> = served.into_iter().collect();

        // From the top down: nobody may ask a part that has ended.
        self.registry.stop().await;
        self.calls.close(LAST_GRACE).await;
        self.auth
            .close(LAST_GRACE.max(self.config.auth.request_timeout))
            .await;
        self.keeper.stop().await;
        self.inputs.close(LAST_GRACE).await;
        if let Err(error) = self.store.close().await {
            tracing::error!(%error, "the store did not close cleanly");
        }
        // Everything that is audited has ended.
        self.audit.close(LAST_GRACE).await;
        end.cancel();
        self.tracker.close();
        if tokio::time::timeout(LAST_GRACE, self.tracker.wait())
            .await
            .is_err()
        {
            tracing::warn!(tasks = self.tracker.len(), "tasks are left behind");
        }
        self.traces.close(LAST_GRACE).await;
        for file in self.files {
            file.remove();
        }
        tracing::info!("stopped");
        served
    }
}

/// Listens for apps with tokens, as configured.
async fn bind_tcp(config: &TcpConfig) -> Result<Option<(TcpListener, SocketAddr)>> {
    let Some(wanted) = config.listen else {
        return Ok(None);
    };
    let failed = |cause: std::io::Error| {
        Error::internal(format!(
            "apps cannot be served at {wanted}: {cause}; `tcp.listen` names another address"
        ))
    };
    let listener = TcpListener::bind(wanted).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Some((listener, address)))
}

/// Checks what the configuration names but does not hold: the secrets of its servers, and with them their settings.
///
/// # Errors
/// `INVALID_FIELD` with everything that is wrong.
pub fn check(config: &Config, sources: &Sources) -> Result<()> {
    operation::declared::read(config, sources.credentials().as_deref()).map(drop)
}

/// Encrypts all that is secret with another key, while no daemon runs on the data directory. Blocks.
///
/// # Errors
/// STORE_FAILED, with the remedy; what was there before is still there then.
pub fn rotate_key(config: &Config, keys: &Keys) -> Result<Rotated> {
    store::rotate_key(&store_config(config), keys)
}

fn store_config(config: &Config) -> StoreConfig {
    let defaults = StoreConfig::new(&config.data_dir);
    StoreConfig {
        key_backend: config.vault.backend,
        key_file: config.vault.key_file.clone(),
        keep_updates: config.updates.keep_count,
        keep_age: config.updates.keep_age,
        keep_calls: KeepCalls {
            age: config.calls.keep,
            count: config.calls.keep_count,
            bytes: config.calls.keep_bytes,
        },
        tail: defaults
            .tail
            .min(usize::try_from(config.updates.keep_count).unwrap_or(usize::MAX)),
        ..defaults
    }
}

fn callback_options(config: &Config) -> CallbackOptions {
    let auth = &config.auth;
    CallbackOptions {
        host: auth.callback_host.clone(),
        port: auth.callback_port,
        path: auth.callback_path.clone(),
        public_url: auth.callback_url.clone(),
        success_redirect: auth.success_redirect.clone(),
        error_redirect: auth.error_redirect.clone(),
    }
}

fn auth_settings(config: &Config) -> AuthSettings {
    let auth = &config.auth;
    AuthSettings {
        renew_before: auth.renew_before,
        sign_in_expiry: auth.sign_in_expiry,
        pending_per_server: auth.pending_per_server,
        client_metadata_url: auth.client_metadata_url.clone(),
        client_name: auth.client_name.clone(),
        assertion_dirs: auth.assertion_dirs.clone(),
    }
}

fn check_limits(config: &Config) -> CheckLimits {
    CheckLimits {
        result_bytes: config.checks.result_bytes,
        schema_bytes: config.checks.schema_bytes,
        steps: config.checks.steps,
        schemas: config.checks.schemas,
    }
}

fn settings(config: &Config) -> Settings {
    Settings {
        connect: config.timeouts.connect,
        probe: config.timeouts.probe,
        call_idle: config.timeouts.call_idle,
        call: config.timeouts.call,
        task_poll: config.timeouts.task_poll,
        repeat_safe: config.calls.repeat_safe,
        message_bytes: config.limits.message_bytes,
        list_pages: config.limits.list_pages,
        list_items: config.limits.list_items,
        calls_per_server: config.limits.calls_per_server,
        calls: config.limits.calls,
        sessions_per_server: config.limits.sessions_per_server,
        session_idle: config.timeouts.session_idle,
        rounds: config.limits.rounds,
        close_grace: config.timeouts.close,
        reconnect_max: config.reconnect.max_delay,
        liveness: config.reconnect.liveness_interval,
        keepalive: config.reconnect.keepalive_interval,
        list_refresh: config.reconnect.list_refresh_interval,
        stdio_enabled: config.stdio.enabled,
        stdio: StdioOptions {
            pass_env: config.stdio.pass_env.clone(),
            default_cwd: config.data_dir.clone(),
            message_limit: config.limits.message_bytes,
            stderr_tail: config.limits.stderr_tail_bytes,
            close_grace: config.timeouts.close,
        },
    }
}
