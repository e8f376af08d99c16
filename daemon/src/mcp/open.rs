//! Opening a link: dial, find the era and the transport, agree on a version (MCP 2026-07-28 basic/versioning and the
//! "Backward Compatibility" sections of its transports; MCP 2025-11-25 basic/lifecycle).
//!
//! `judge` is the whole of era and transport detection, as pure functions; `handshake` has the exchanges, and this file
//! performs the verdicts.

mod handshake;
mod judge;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::{Account, Auth};
use crate::base::ServerKey;
use crate::base::load::Load;
use crate::error::{Error, Reason, Result};
use crate::inputs::Inputs;
use crate::mcp::Settings;
use crate::mcp::asker::Asker;
use crate::mcp::era::{self, Dialect, MODERN_VERSIONS, NEWEST_LEGACY, NEWEST_MODERN};
use crate::mcp::link::{Link, LinkParts};
use crate::mcp::protocol::RawJson;
use crate::mcp::push;
use crate::mcp::subscriptions::Subscriptions;
use crate::mcp::transport::Transport;
use crate::mcp::transport::http::Http;
use crate::mcp::transport::http_sse::HttpSse;
use crate::mcp::transport::journal::Journal;
use crate::mcp::transport::redact::Redactor;
use crate::mcp::transport::stdio::Stdio;
use crate::mcp::transport::unix::UnixLines;
use crate::model::spec::{Abilities, HttpMode, HttpSpec, ServerSpec, TransportSpec, UnixProtocol};
use crate::model::status::{Era, Session, TransportKind, Verdict};
use crate::policy::{ClientOptions, Policy};
use crate::processes::Keeper;

use handshake::{Agreed, Dial, check_description, peer_of};
use judge::{Judgement, ProbeAnswer, judge, lacks_transport};

/// Messages that a server may send before the link takes them.
const INBOUND: usize = 256;

/// What opening needs beside the registration.
#[derive(Clone, Debug)]
pub struct Dialer {
    /// Where connections may go.
    pub policy: Policy,
    /// What authorizes the daemon at servers.
    pub auth: Auth,
    /// The queue of questions.
    pub inputs: Inputs,
    /// Bounds and defaults.
    pub settings: Arc<Settings>,
    /// Starts and ends processes.
    pub keeper: Arc<Keeper>,
    /// Owner of tasks that outlive a link for a moment, such as reaping a process.
    pub tasks: TaskTracker,
    /// Counts what is under way.
    pub load: Load,
}

/// How a server's era is looked for where a probe may cost the life of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Approach {
    /// With the probe; a child that dies of it is started once more for the handshake.
    #[default]
    Thorough,
    /// With the probe only.
    Probe,
    /// With the legacy handshake only.
    Handshake,
}

impl Approach {
    /// For a child that died in so many attempts in a row: one process per attempt, and both ways by turns.
    #[must_use]
    pub fn after_crashes(crashes: u32) -> Self {
        match crashes {
            0 => Self::Thorough,
            odd if odd % 2 == 1 => Self::Handshake,
            _ => Self::Probe,
        }
    }
}

/// What is known before a dial, and what goes with it.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// What was found the last time.
    pub known: Known,
    /// How to look.
    pub approach: Approach,
    /// Where the standard error of a child goes.
    pub journal: Journal,
    /// The resources that apps follow.
    pub subscriptions: Subscriptions,
    /// What authorizes requests.
    pub account: Account,
    /// Gives the attempt up.
    pub cancel: CancellationToken,
}

/// An open link and what is worth remembering of how it was opened.
#[derive(Debug)]
pub struct Opened {
    /// The link.
    pub link: Arc<Link>,
    /// For the next time; `None` if the server was only too slow to be judged.
    pub verdict: Option<Verdict>,
    /// The session that the server gave.
    pub session: Option<Session>,
    /// Whether that session is one of an earlier run, so that nothing was exchanged with the server yet.
    pub resumed: bool,
}

/// What is known of a server from an earlier time.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// What era detection found.
    pub verdict: Option<Verdict>,
    /// The session to go on with.
    pub session: Option<Session>,
}

/// A dial that failed.
#[derive(Debug)]
pub struct OpenFailed {
    /// Why.
    pub error: Error,
    /// What is left of it. Close it, which may take a while, before the next dial: servers keep locks and ports.
    pub remains: Option<Transport>,
}

impl From<Error> for OpenFailed {
    fn from(error: Error) -> Self {
        Self {
            error,
            remains: None,
        }
    }
}

/// Neither transport: the reason is that of the one that got further.
fn neither(streamable: &Error, sse: &Error) -> Error {
    let no_sse = matches!(
        sse.reason(),
        Reason::NotAnMcpServer | Reason::NotSupported | Reason::UpstreamTimeout
    );
    let further = if no_sse { streamable } else { sse };
    let reason = match further.reason() {
        // That the server answered with a JSON-RPC error is not what is wrong.
        Reason::UpstreamError => Reason::NotAnMcpServer,
        other => other,
    };
    let message =
        format!("neither HTTP transport works: Streamable HTTP: {streamable}; HTTP+SSE: {sse}");
    let facts = further.facts().iter().cloned();
    facts.fold(Error::new(reason, message), |error, (key, value)| {
        error.with(key, value)
    })
}

/// Whether what was kept about a server may be wrong: it answers, but not as it did.
fn is_outdated(error: &Error) -> bool {
    error.rpc().is_some()
        || matches!(
            error.reason(),
            Reason::NotAnMcpServer | Reason::NotSupported
        )
}

/// Ids begin anywhere: on a server without sessions, one registration's `cancelled` must not hit another's request.
fn first_id() -> u64 {
    let bits = uuid::Uuid::new_v4().as_u128() & 0x7fff_ffff;
    u64::try_from(bits).unwrap_or(0) + 1
}

fn given_up() -> Error {
    Error::new(Reason::Superseded, "the attempt was given up")
}

fn connect_timeout(bound: Duration) -> Error {
    Error::new(
        Reason::UpstreamTimeout,
        format!("the server did not complete the handshake within {bound:?} (timeouts.connect)"),
    )
}

impl Dialer {
    /// How long opening a link to a server with this registration may take.
    #[must_use]
    pub fn connect_bound(&self, spec: &ServerSpec) -> Duration {
        spec.timeouts.connect.unwrap_or(self.settings.connect)
    }

    /// Opens a link within the server's connect timeout. Not cancel-safe: cancel with the token.
    ///
    /// # Errors
    /// Why the server cannot be used now, as soon as that is known: what is left of the dial is still to be closed.
    pub async fn open(
        &self,
        key: &ServerKey,
        spec: &ServerSpec,
        attempt: Attempt,
    ) -> Result<Opened, OpenFailed> {
        self.load.dials.count();
        let opened = self.attempt(key, spec, attempt).await;
        let failed = opened.as_ref().err();
        if failed.is_some_and(|failed| failed.error.reason() != Reason::Superseded) {
            self.load.failed_dials.count();
        }
        opened
    }

    async fn attempt(
        &self,
        key: &ServerKey,
        spec: &ServerSpec,
        attempt: Attempt,
    ) -> Result<Opened, OpenFailed> {
        let Attempt {
            known,
            approach,
            journal,
            subscriptions,
            account,
            cancel,
        } = attempt;
        let verdict = known.verdict.as_ref();
        let able = match &spec.capabilities {
            Some(explicit) => explicit.abilities,
            None => self.inputs.audience().settled(&key.namespace).await,
        };
        let hints = Hints {
            known: verdict.filter(|known| known.target == spec.target_fingerprint()),
            approach,
            able,
            journal: &journal,
            account: &account,
        };
        let bound = self.connect_bound(spec);
        let mut dial = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(given_up().into()),
            dial = tokio::time::timeout(bound, self.dial(spec, hints)) => {
                dial.unwrap_or_else(|_| Err(connect_timeout(bound)))?
            }
        };
        let resumed = known
            .session
            .as_ref()
            .and_then(|old| dial.resume(spec, old, able));
        let is_resumed = resumed.is_some();
        let agreeing = async {
            match resumed {
                Some(agreed) => Ok(agreed),
                None => tokio::time::timeout(bound, self.find(&mut dial, spec, hints))
                    .await
                    .unwrap_or_else(|_| Err(connect_timeout(bound))),
            }
        };
        let agreed = tokio::select! {
            biased;
            agreed = agreeing => agreed,
            () = cancel.cancelled() => Err(given_up()),
        };
        let agreed = match agreed {
            Ok(agreed) => agreed,
            Err(error) => {
                return Err(OpenFailed {
                    error: Redactor::new(spec).with_tokens_of(&account).error(error),
                    remains: Some(dial.transport),
                });
            }
        };
        let verdict = agreed.certain.then(|| Verdict {
            era: agreed.dialect.era(),
            version: agreed.dialect.version().to_owned(),
            transport: Some(dial.transport.kind()),
            target: spec.target_fingerprint(),
        });
        let session = dial.session(&agreed);
        let parts = LinkParts {
            dialect: agreed.dialect,
            peer: agreed.peer,
            transport: dial.transport.clone(),
            next_id: dial.next_id,
            asker: Asker::new(self.inputs.clone(), key.clone(), spec, agreed.told),
            redactor: Redactor::new(spec).with_tokens_of(&account),
            subscriptions,
            max_calls: self.settings.calls_per_server,
            max_rounds: self.settings.rounds,
            task_poll: self.settings.task_poll,
            close_grace: self.settings.close_grace,
            target: spec.transport.clone(),
            request_timeout: bound,
            load: self.load.clone(),
        };
        let link = Link::start(parts, dial.inbound);
        push::start(&link).await;
        Ok(Opened {
            link,
            verdict,
            session,
            resumed: is_resumed,
        })
    }

    /// Cancel-safe: nothing is started before the last wait is over.
    async fn dial(&self, spec: &ServerSpec, hints: Hints<'_>) -> Result<Dial> {
        let (inbound_tx, inbound) = mpsc::channel(INBOUND);
        let transport = match &spec.transport {
            TransportSpec::Http(http) => Transport::Http(Arc::new(self.http(http, hints.account)?)),
            TransportSpec::Stdio(_) if !self.settings.stdio_enabled => {
                return Err(Error::new(
                    Reason::DestinationBlocked,
                    "stdio servers are switched off (stdio.enabled)",
                ));
            }
            TransportSpec::Stdio(stdio) => {
                let options = &self.settings.stdio;
                let writer = hints.journal.begin(Redactor::new(spec));
                let spawned = Stdio::spawn(
                    stdio,
                    options,
                    &self.keeper,
                    writer,
                    inbound_tx,
                    &self.tasks,
                    &self.load,
                );
                Transport::Stdio(Arc::new(spawned.await?))
            }
            TransportSpec::UnixSocket(socket) => {
                self.policy.check_socket(&socket.path)?;
                let bytes = self.settings.message_bytes;
                match socket.protocol {
                    UnixProtocol::Http => {
                        let options = ClientOptions {
                            connect_timeout: self.settings.connect,
                            keepalive: self.settings.keepalive,
                        };
                        let client = self.policy.socket_client(&socket.path, options)?;
                        let grace = self.settings.close_grace;
                        let http = Http::on_socket(client, socket, bytes, grace)?;
                        Transport::Http(Arc::new(http))
                    }
                    UnixProtocol::Ndjson => {
                        let (path, tasks) = (&socket.path, &self.tasks);
                        let connecting =
                            UnixLines::connect(path, bytes, inbound_tx, tasks, &self.load);
                        Transport::UnixLines(Arc::new(connecting.await?))
                    }
                }
            }
        };
        Ok(Dial {
            transport,
            inbound,
            next_id: first_id(),
        })
    }

    /// Finds the transport to use: the chosen one, else what is known, else Streamable HTTP before HTTP+SSE.
    async fn find(&self, dial: &mut Dial, spec: &ServerSpec, hints: Hints<'_>) -> Result<Agreed> {
        let mode = spec.http_mode();
        if mode == Some(HttpMode::Sse) {
            return self.agree_over_sse(dial, spec, hints).await;
        }
        let known = hints.known;
        if known.is_some_and(|known| known.transport == Some(TransportKind::Sse)) {
            match self.agree_over_sse(dial, spec, hints).await {
                Err(error) if is_outdated(&error) => {
                    tracing::info!(%error, "the kept transport verdict no longer holds");
                    dial.transport.close().await;
                    let next_id = dial.next_id;
                    *dial = self.dial(spec, hints).await?;
                    dial.next_id = next_id;
                    let hints = Hints {
                        known: None,
                        ..hints
                    };
                    return self.agree(dial, spec, hints).await;
                }
                settled => return settled,
            }
        }
        self.agree(dial, spec, hints).await
    }

    /// The handshake over HTTP+SSE.
    async fn agree_over_sse(
        &self,
        dial: &mut Dial,
        spec: &ServerSpec,
        hints: Hints<'_>,
    ) -> Result<Agreed> {
        let TransportSpec::Http(http) = &spec.transport else {
            return Err(Error::internal("HTTP+SSE needs a URL"));
        };
        let http = self.http(http, hints.account)?;
        let (inbound_tx, inbound) = mpsc::channel(INBOUND);
        let opening = HttpSse::open(&http, &self.policy, inbound_tx, &self.tasks, &self.load);
        let bound = self.settings.probe;
        let opened = tokio::time::timeout(bound, opening).await;
        let sse = opened.unwrap_or_else(|_| {
            Err(Error::new(
                Reason::UpstreamTimeout,
                format!("the server named no URL to POST to within {bound:?} of GET"),
            ))
        })?;
        *dial = Dial {
            transport: Transport::HttpSse(Arc::new(sse)),
            inbound,
            next_id: dial.next_id,
        };
        let offer = spec.protocol_version.as_deref().unwrap_or(NEWEST_LEGACY);
        dial.initialize(spec, offer, hints.able).await
    }

    /// The legacy handshake; in `auto`, over HTTP+SSE if the server has no Streamable HTTP.
    async fn initialize(
        &self,
        dial: &mut Dial,
        spec: &ServerSpec,
        offer: &str,
        hints: Hints<'_>,
    ) -> Result<Agreed> {
        let error = match dial.initialize(spec, offer, hints.able).await {
            Err(error) if spec.http_mode() == Some(HttpMode::Auto) && lacks_transport(&error) => {
                error
            }
            settled => return settled,
        };
        tracing::debug!(%error, "no Streamable HTTP: trying HTTP+SSE");
        let agreed = self.agree_over_sse(dial, spec, hints).await;
        agreed.map_err(|sse| neither(&error, &sse))
    }

    fn http(&self, spec: &HttpSpec, account: &Account) -> Result<Http> {
        Http::new(
            account.http_client()?,
            &self.policy,
            spec,
            account.clone(),
            self.settings.message_bytes,
            self.settings.close_grace,
        )
    }

    /// Finds the version to speak: the pin, else what is known, else a probe.
    async fn agree(&self, dial: &mut Dial, spec: &ServerSpec, hints: Hints<'_>) -> Result<Agreed> {
        if let Some(pin) = &spec.protocol_version {
            return match era::era_of(pin) {
                Some(Era::Legacy) => self.initialize(dial, spec, pin, hints).await,
                _ => self.discover(dial, spec, hints).await,
            };
        }
        if hints.approach == Approach::Handshake {
            return dial.initialize(spec, NEWEST_LEGACY, hints.able).await;
        }
        if hints.era() == Some(Era::Legacy) {
            // The newest version is offered even if an older one was agreed before: the server may have learnt.
            match dial.initialize(spec, NEWEST_LEGACY, hints.able).await {
                Ok(agreed) => return Ok(agreed),
                // The server may have been upgraded: look again. Anything else is a failure of this attempt.
                Err(error) if is_outdated(&error) => {
                    tracing::info!(%error, "the kept era verdict no longer holds");
                }
                Err(error) => return Err(error),
            }
        }
        self.discover(dial, spec, hints).await
    }

    async fn discover(
        &self,
        dial: &mut Dial,
        spec: &ServerSpec,
        hints: Hints<'_>,
    ) -> Result<Agreed> {
        let wanted = spec
            .protocol_version
            .as_deref()
            .or(hints.known.map(|known| known.version.as_str()));
        let mut version = MODERN_VERSIONS
            .iter()
            .copied()
            .find(|known| Some(*known) == wanted)
            .unwrap_or(NEWEST_MODERN);
        let mut first = true;
        loop {
            let dialect = Dialect::new(Era::Modern, version, spec);
            let answer = dial.probe(&dialect, hints.able, self.settings.probe).await;
            let respawn = hints.approach == Approach::Thorough
                && hints.era() != Some(Era::Modern)
                && matches!(
                    (&answer, &dial.transport),
                    (
                        ProbeAnswer::Gone(_),
                        Transport::Stdio(_) | Transport::UnixLines(_)
                    )
                );
            // A child that ignores what it does not know is silent by nature; an HTTP server may only be slow.
            let silent = matches!(
                (&answer, &dial.transport),
                (ProbeAnswer::Silence, Transport::Http(_))
            );
            let result = match &answer {
                ProbeAnswer::Result(result) => Some(result.clone()),
                _ => None,
            };
            // A child that dies of a message it does not know is a legacy server: start it once more for the handshake. So is
            // one that hangs up.
            let judgement = if respawn {
                Judgement::Legacy(NEWEST_LEGACY)
            } else {
                judge(answer, version, first)
            };
            match judgement {
                Judgement::Modern(agreed) => {
                    result.as_ref().map_or(Ok(()), check_description)?;
                    let peer = peer_of(&result.unwrap_or(RawJson::EMPTY_OBJECT), Era::Modern);
                    return Ok(Agreed {
                        dialect: Dialect::new(Era::Modern, agreed, spec),
                        peer,
                        hello: None,
                        certain: true,
                        told: None,
                    });
                }
                Judgement::AskAgain(other) => version = other,
                Judgement::Legacy(_) if spec.protocol_version.is_some() => {
                    return Err(Error::new(
                        Reason::UpstreamProtocol,
                        format!("the server does not speak the pinned MCP version {version}"),
                    ));
                }
                Judgement::Legacy(offer) => {
                    if respawn {
                        dial.transport.close().await;
                        let next_id = dial.next_id;
                        *dial = self.dial(spec, hints).await?;
                        dial.next_id = next_id;
                    }
                    let mut agreed = self.initialize(dial, spec, offer, hints).await?;
                    agreed.certain = !silent;
                    return Ok(agreed);
                }
                Judgement::Fail(error) => return Err(error),
            }
            first = false;
        }
    }
}

/// What goes with an attempt on its way down.
#[derive(Clone, Copy)]
struct Hints<'a> {
    known: Option<&'a Verdict>,
    approach: Approach,
    /// What the server may ask for.
    able: Abilities,
    journal: &'a Journal,
    account: &'a Account,
}

impl Hints<'_> {
    fn era(self) -> Option<Era> {
        self.known.map(|known| known.era)
    }
}
