//! Opening a link: dial, find the era and the transport, agree on a version (MCP 2026-07-28 basic/versioning and the
//! "Backward Compatibility" sections of its transports; MCP 2025-11-25 basic/lifecycle).
//!
//! [`judge`] is the whole of era detection and [`lacks_transport`] of transport detection, as pure functions; the rest of
//! this file performs their verdicts.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::base::ServerKey;
use crate::catalog::entry::Fields;
use crate::error::{Error, Reason, Result, RpcError};
use crate::inputs::Inputs;
use crate::mcp::Settings;
use crate::mcp::asker::Asker;
use crate::mcp::era::{
    self, Dialect, Frame, LEGACY_VERSIONS, META_SERVER, MODERN_VERSIONS, NEWEST_LEGACY,
    NEWEST_MODERN, Request,
};
use crate::mcp::link::{Link, LinkParts, Peer};
use crate::mcp::protocol::{self, Message, RawJson, code, method};
use crate::mcp::push;
use crate::mcp::subscriptions::Subscriptions;
use crate::mcp::transport::http::Http;
use crate::mcp::transport::http_sse::HttpSse;
use crate::mcp::transport::redact::Redactor;
use crate::mcp::transport::stdio::Stdio;
use crate::mcp::transport::unix::UnixLines;
use crate::mcp::transport::{Exchange, Loss, Transport};
use crate::model::spec::{HttpMode, HttpSpec, ServerSpec, TransportSpec, UnixProtocol};
use crate::model::status::{Era, Implementation, Session, TransportKind, Verdict};
use crate::policy::{ClientOptions, Policy};

/// Messages that a server may send before the link takes them.
const INBOUND: usize = 256;

/// What opening needs beside the registration.
#[derive(Clone, Debug)]
pub struct Dialer {
    /// The HTTP client that every server shares.
    pub client: reqwest::Client,
    /// Where connections may go.
    pub policy: Policy,
    /// The queue of questions.
    pub inputs: Inputs,
    /// Bounds and defaults.
    pub settings: Arc<Settings>,
    /// Owner of tasks that outlive a link for a moment, such as reaping a process.
    pub tasks: TaskTracker,
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

/// How a server answered the probe.
#[derive(Clone, Debug)]
pub enum ProbeAnswer {
    /// With a result.
    Result(RawJson),
    /// With a JSON-RPC error, by whatever status.
    Rpc(RpcError),
    /// With an HTTP status and no JSON-RPC error.
    Status(u16, Error),
    /// With something that is not MCP.
    Garbage,
    /// Not in time.
    Silence,
    /// It ended the connection.
    Gone(Error),
}

/// What a probe's answer means.
#[derive(Clone, PartialEq, Debug)]
pub enum Judgement {
    /// Modern, with this version.
    Modern(&'static str),
    /// Modern, but it wants to be asked with this version.
    AskAgain(&'static str),
    /// Legacy; offer this version first.
    Legacy(&'static str),
    /// No verdict.
    Fail(Error),
}

/// Judges a server's era by its answer to `server/discover`. `first` is false on the second probe.
#[must_use]
pub fn judge(answer: ProbeAnswer, asked: &'static str, first: bool) -> Judgement {
    match answer {
        ProbeAnswer::Result(result) => match read_versions(result.get("supportedVersions")) {
            // Some legacy servers answer every method they do not know with an empty result.
            None => Judgement::Legacy(NEWEST_LEGACY),
            Some(versions) => choose(&versions, asked).unwrap_or_else(|| no_common(&versions)),
        },
        ProbeAnswer::Rpc(error) if error.code == code::UNSUPPORTED_VERSION => {
            let data = error
                .data
                .clone()
                .and_then(|data| RawJson::parse(data).ok());
            let versions =
                read_versions(data.and_then(|data| data.get("supported"))).unwrap_or_default();
            match choose(&versions, asked) {
                Some(Judgement::Legacy(version)) => Judgement::Legacy(version),
                Some(Judgement::Modern(version)) if first => Judgement::AskAgain(version),
                None if first && versions.is_empty() => Judgement::AskAgain(asked),
                _ => no_common(&versions),
            }
        }
        ProbeAnswer::Rpc(error)
            if matches!(error.code, code::HEADER_MISMATCH | code::MISSING_CAPABILITY) =>
        {
            Judgement::Fail(Error::upstream(error))
        }
        ProbeAnswer::Status(status, error)
            if matches!(status, 401 | 403 | 407 | 429) || status >= 500 =>
        {
            Judgement::Fail(error)
        }
        ProbeAnswer::Gone(error) => Judgement::Fail(error),
        ProbeAnswer::Rpc(_)
        | ProbeAnswer::Status(..)
        | ProbeAnswer::Garbage
        | ProbeAnswer::Silence => Judgement::Legacy(NEWEST_LEGACY),
    }
}

fn read_versions(list: Option<RawJson>) -> Option<Vec<String>> {
    let elements = list?.elements()?;
    Some(elements.iter().filter_map(RawJson::read).collect())
}

fn choose(versions: &[String], asked: &'static str) -> Option<Judgement> {
    let offered = |version: &&'static str| versions.iter().any(|other| other == version);
    if offered(&asked) {
        return Some(Judgement::Modern(asked));
    }
    if let Some(version) = MODERN_VERSIONS.iter().copied().find(offered) {
        return Some(Judgement::Modern(version));
    }
    LEGACY_VERSIONS
        .iter()
        .copied()
        .find(offered)
        .map(Judgement::Legacy)
}

/// A handshake has no outcome that could be unknown: a server that closes its answer to `initialize` is none.
fn handshake_error(loss: Loss) -> Error {
    if loss.error.reason() == Reason::OutcomeUnknown {
        return Error::new(Reason::NotAnMcpServer, loss.error.message());
    }
    loss.error
}

/// Whether a refused handshake over Streamable HTTP means that the server has no such transport: by its status alone,
/// never by what it says. A JSON-RPC error comes from somebody who reads what is POSTed; with 404 and 405 some old servers
/// decorate their refusal with one, but those that modern servers give out are theirs.
#[must_use]
pub fn lacks_transport(error: &Error) -> bool {
    let modern = |rpc: &RpcError| {
        matches!(
            rpc.code,
            code::METHOD_NOT_FOUND
                | code::UNSUPPORTED_VERSION
                | code::HEADER_MISMATCH
                | code::MISSING_CAPABILITY
        )
    };
    match error.http_status() {
        Some(400) => error.rpc().is_none(),
        Some(404 | 405) => !error.rpc().is_some_and(modern),
        _ => false,
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

/// What a child wrote to its standard error is usually the real reason why it did not start.
fn with_stderr(error: Error, transport: &Transport) -> Error {
    let tail = transport.stderr_tail();
    if tail.is_empty() {
        error
    } else {
        error.with("stderr_tail", tail)
    }
}

fn no_common(versions: &[String]) -> Judgement {
    Judgement::Fail(Error::new(
        Reason::UpstreamProtocol,
        format!(
            "the server speaks MCP versions {versions:?}; the daemon speaks {MODERN_VERSIONS:?} and {LEGACY_VERSIONS:?}"
        ),
    ))
}

impl Dialer {
    /// Opens a link within the server's connect timeout. A dial that fails, is cancelled or takes too long is closed
    /// before this returns, so that the next one never meets the remains of it. Not cancel-safe: cancel with the token.
    ///
    /// # Errors
    /// Why the server cannot be used now.
    pub async fn open(
        &self,
        key: &ServerKey,
        spec: &ServerSpec,
        known: &Known,
        subscriptions: &Subscriptions,
        cancel: &CancellationToken,
    ) -> Result<Opened> {
        let verdict = known.verdict.as_ref();
        let verdict = verdict.filter(|known| known.target == spec.target_fingerprint());
        let bound = spec.timeouts.connect.unwrap_or(self.settings.connect);
        let mut dial = tokio::select! {
            dial = tokio::time::timeout(bound, self.dial(spec)) => {
                dial.unwrap_or_else(|_| Err(connect_timeout(bound)))?
            }
            () = cancel.cancelled() => return Err(given_up()),
        };
        let resumed = known
            .session
            .as_ref()
            .and_then(|old| dial.resume(spec, old));
        let is_resumed = resumed.is_some();
        let agreeing = async {
            match resumed {
                Some(agreed) => Ok(agreed),
                None => tokio::time::timeout(bound, self.find(&mut dial, spec, verdict))
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
                dial.transport.close().await;
                return Err(Redactor::new(spec).error(with_stderr(error, &dial.transport)));
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
            asker: Asker::new(self.inputs.clone(), key.clone(), spec),
            redactor: Redactor::new(spec),
            subscriptions: subscriptions.clone(),
            max_calls: self.settings.calls_per_server,
            max_rounds: self.settings.rounds,
            request_timeout: spec.timeouts.connect.unwrap_or(self.settings.connect),
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

    async fn dial(&self, spec: &ServerSpec) -> Result<Dial> {
        let (inbound_tx, inbound) = mpsc::channel(INBOUND);
        let transport = match &spec.transport {
            TransportSpec::Http(http) => Transport::Http(Arc::new(self.http(http)?)),
            TransportSpec::Stdio(_) if !self.settings.stdio_enabled => {
                return Err(Error::new(
                    Reason::DestinationBlocked,
                    "stdio servers are switched off (stdio.enabled)",
                ));
            }
            TransportSpec::Stdio(stdio) => Transport::Stdio(Arc::new(Stdio::spawn(
                stdio,
                &self.settings.stdio,
                inbound_tx,
                &self.tasks,
            )?)),
            TransportSpec::UnixSocket(socket) => {
                self.policy.check_socket(&socket.path)?;
                let bytes = self.settings.message_bytes;
                match socket.protocol {
                    UnixProtocol::Http => {
                        let options = ClientOptions {
                            connect_timeout: self.settings.connect,
                        };
                        let client = self.policy.socket_client(&socket.path, options)?;
                        let grace = self.settings.close_grace;
                        let http = Http::on_socket(client, socket, bytes, grace)?;
                        Transport::Http(Arc::new(http))
                    }
                    UnixProtocol::Ndjson => {
                        let connecting =
                            UnixLines::connect(&socket.path, bytes, inbound_tx, &self.tasks);
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
    async fn find(
        &self,
        dial: &mut Dial,
        spec: &ServerSpec,
        known: Option<&Verdict>,
    ) -> Result<Agreed> {
        let mode = spec.http_mode();
        if mode == Some(HttpMode::Sse) {
            return self.agree_over_sse(dial, spec).await;
        }
        if known.is_some_and(|known| known.transport == Some(TransportKind::Sse)) {
            match self.agree_over_sse(dial, spec).await {
                Err(error) if is_outdated(&error) => {
                    tracing::info!(%error, "the kept transport verdict no longer holds");
                    dial.transport.close().await;
                    let next_id = dial.next_id;
                    *dial = self.dial(spec).await?;
                    dial.next_id = next_id;
                    return self.agree(dial, spec, None).await;
                }
                settled => return settled,
            }
        }
        self.agree(dial, spec, known).await
    }

    /// The handshake over HTTP+SSE.
    async fn agree_over_sse(&self, dial: &mut Dial, spec: &ServerSpec) -> Result<Agreed> {
        let TransportSpec::Http(http) = &spec.transport else {
            return Err(Error::internal("HTTP+SSE needs a URL"));
        };
        let http = self.http(http)?;
        let (inbound_tx, inbound) = mpsc::channel(INBOUND);
        let opening = HttpSse::open(&http, &self.policy, inbound_tx, &self.tasks);
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
        dial.initialize(spec, offer).await
    }

    /// The legacy handshake; in `auto`, over HTTP+SSE if the server has no Streamable HTTP.
    async fn initialize(&self, dial: &mut Dial, spec: &ServerSpec, offer: &str) -> Result<Agreed> {
        let error = match dial.initialize(spec, offer).await {
            Err(error) if spec.http_mode() == Some(HttpMode::Auto) && lacks_transport(&error) => {
                error
            }
            settled => return settled,
        };
        tracing::debug!(%error, "no Streamable HTTP: trying HTTP+SSE");
        let agreed = self.agree_over_sse(dial, spec).await;
        agreed.map_err(|sse| neither(&error, &sse))
    }

    fn http(&self, spec: &HttpSpec) -> Result<Http> {
        Http::new(
            self.client.clone(),
            &self.policy,
            spec,
            self.settings.message_bytes,
            self.settings.close_grace,
        )
    }

    /// Finds the version to speak: the pin, else what is known, else a probe.
    async fn agree(
        &self,
        dial: &mut Dial,
        spec: &ServerSpec,
        known: Option<&Verdict>,
    ) -> Result<Agreed> {
        if let Some(pin) = &spec.protocol_version {
            return match era::era_of(pin) {
                Some(Era::Legacy) => self.initialize(dial, spec, pin).await,
                _ => self.discover(dial, spec, known).await,
            };
        }
        if known.is_some_and(|known| known.era == Era::Legacy) {
            // The newest version is offered even if an older one was agreed before: the server may have learnt.
            match dial.initialize(spec, NEWEST_LEGACY).await {
                Ok(agreed) => return Ok(agreed),
                // The server may have been upgraded: look again. Anything else is a failure of this attempt.
                Err(error) if is_outdated(&error) => {
                    tracing::info!(%error, "the kept era verdict no longer holds");
                }
                Err(error) => return Err(error),
            }
        }
        self.discover(dial, spec, known).await
    }

    async fn discover(
        &self,
        dial: &mut Dial,
        spec: &ServerSpec,
        known: Option<&Verdict>,
    ) -> Result<Agreed> {
        let wanted = spec
            .protocol_version
            .as_deref()
            .or(known.map(|known| known.version.as_str()));
        let mut version = MODERN_VERSIONS
            .iter()
            .copied()
            .find(|known| Some(*known) == wanted)
            .unwrap_or(NEWEST_MODERN);
        let mut first = true;
        loop {
            let dialect = Dialect::new(Era::Modern, version, spec);
            let answer = dial.probe(&dialect, self.settings.probe).await;
            let respawn = matches!(
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
                        *dial = self.dial(spec).await?;
                        dial.next_id = next_id;
                    }
                    let mut agreed = self.initialize(dial, spec, offer).await?;
                    agreed.certain = !silent;
                    return Ok(agreed);
                }
                Judgement::Fail(error) => return Err(error),
            }
            first = false;
        }
    }
}

/// A transport before anything is agreed.
struct Dial {
    transport: Transport,
    inbound: mpsc::Receiver<Message>,
    next_id: u64,
}

/// What was agreed.
struct Agreed {
    dialect: Dialect,
    peer: Peer,
    /// The answer to the legacy handshake.
    hello: Option<RawJson>,
    /// Whether the era was found by an answer, as opposed to silence over HTTP.
    certain: bool,
}

impl Dial {
    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    async fn probe(&mut self, dialect: &Dialect, bound: Duration) -> ProbeAnswer {
        let frame = dialect.encode(&Request::new(method::DISCOVER), self.take_id());
        let answer = tokio::time::timeout(bound, self.ask(frame, false)).await;
        match answer {
            Err(_) => ProbeAnswer::Silence,
            Ok(Ok(Ok(result))) => ProbeAnswer::Result(result),
            Ok(Ok(Err(rpc))) => ProbeAnswer::Rpc(rpc),
            Ok(Err(loss)) if loss.error.reason() == Reason::OutcomeUnknown => ProbeAnswer::Garbage,
            Ok(Err(loss)) => match loss.refusal {
                Some(refusal) if refusal.status == 401 => ProbeAnswer::Status(401, loss.error),
                Some(refusal) => match refusal.rpc {
                    Some(rpc) if refusal.status < 500 => ProbeAnswer::Rpc(rpc),
                    _ => ProbeAnswer::Status(refusal.status, loss.error),
                },
                None if loss.error.reason() == Reason::NotAnMcpServer => ProbeAnswer::Garbage,
                None => ProbeAnswer::Gone(loss.error),
            },
        }
    }

    /// The legacy handshake. A server that refuses the offered version and names others is asked once more.
    async fn initialize(&mut self, spec: &ServerSpec, offer: &str) -> Result<Agreed> {
        let mut offer = offer.to_owned();
        let mut again = spec.protocol_version.is_none();
        let result = loop {
            let dialect = Dialect::new(Era::Legacy, &offer, spec);
            let frame = dialect.encode_initialize(self.take_id());
            match self.ask(frame, true).await.map_err(handshake_error)? {
                Ok(result) => break result,
                Err(rpc) => {
                    let data = rpc.data.clone().and_then(|data| RawJson::parse(data).ok());
                    let supported = read_versions(data.and_then(|data| data.get("supported")));
                    let other = supported.and_then(|versions| {
                        LEGACY_VERSIONS
                            .iter()
                            .find(|known| versions.iter().any(|one| one == *known))
                    });
                    match other {
                        Some(other) if again && *other != offer => (*other).clone_into(&mut offer),
                        _ => return Err(Error::upstream(rpc)),
                    }
                    again = false;
                }
            }
        };
        check_description(&result)?;
        let version = result
            .get("protocolVersion")
            .and_then(|version| version.read::<String>());
        let Some(version) = version else {
            return Err(Error::new(
                Reason::NotAnMcpServer,
                "the answer to `initialize` names no protocol version",
            ));
        };
        if era::era_of(&version) != Some(Era::Legacy) {
            return Err(Error::new(
                Reason::UpstreamProtocol,
                format!(
                    "the server chose MCP version `{version}`; the daemon speaks {LEGACY_VERSIONS:?}"
                ),
            ));
        }
        if let Some(pin) = spec
            .protocol_version
            .as_ref()
            .filter(|pin| **pin != version)
        {
            return Err(Error::new(
                Reason::UpstreamProtocol,
                format!("the server speaks MCP version `{version}`, not the pinned `{pin}`"),
            ));
        }
        let dialect = Dialect::new(Era::Legacy, &version, spec);
        if let Transport::Http(http) = &self.transport {
            http.set_version(&version);
        }
        let body = protocol::encode_notification(method::INITIALIZED, None);
        let headers = dialect.message_headers(method::INITIALIZED);
        self.transport
            .send(body, &headers)
            .await
            .map_err(|loss| loss.error)?;
        Ok(Agreed {
            dialect,
            peer: peer_of(&result, Era::Legacy),
            hello: Some(result),
            certain: true,
        })
    }

    /// Goes on with a session of an earlier run without a handshake (MCP 2025-11-25 basic/transports, "Session
    /// Management"): the server says so when it no longer knows it. `None` where that cannot be.
    fn resume(&self, spec: &ServerSpec, old: &Session) -> Option<Agreed> {
        let Transport::Http(http) = &self.transport else {
            return None;
        };
        let hello = RawJson::parse(old.hello.clone()).ok()?;
        if era::era_of(&old.version) != Some(Era::Legacy) {
            return None;
        }
        http.resume_session(&old.id, &old.version);
        Some(Agreed {
            dialect: Dialect::new(Era::Legacy, &old.version, spec),
            peer: peer_of(&hello, Era::Legacy),
            hello: Some(hello),
            certain: true,
        })
    }

    /// The session to keep for the next start.
    fn session(&self, agreed: &Agreed) -> Option<Session> {
        let (Transport::Http(http), Some(hello)) = (&self.transport, &agreed.hello) else {
            return None;
        };
        Some(Session {
            id: http.session_id()?,
            version: agreed.dialect.version().to_owned(),
            hello: hello.as_str().to_owned(),
        })
    }

    /// One exchange of the handshake. Pings of the server are answered; nothing else may come yet.
    async fn ask(
        &mut self,
        frame: Frame,
        handshake: bool,
    ) -> std::result::Result<std::result::Result<RawJson, RpcError>, Loss> {
        let mut exchange = match (&self.transport, handshake) {
            (Transport::Http(http), true) => {
                Exchange::Http(Box::new(http.initialize(frame).await?))
            }
            _ => self.transport.request(frame).await?,
        };
        loop {
            let message = tokio::select! {
                biased;
                message = exchange.next() => message?,
                // A child's requests come beside the exchange; over HTTP nothing does.
                Some(message) = self.inbound.recv() => message,
            };
            match message {
                Message::Response { outcome, .. } => return Ok(outcome),
                Message::Request { id, method, .. } if method == method::PING => {
                    let pong = protocol::encode_response(&id, &Ok(RawJson::EMPTY_OBJECT));
                    self.transport.send(pong, &[]).await?;
                }
                _ => {}
            }
        }
    }
}

/// Most that a server may say about itself, in bytes: it is kept in every status. Longer instructions are cut.
const MAX_DESCRIPTION: usize = 64 * 1024;

fn check_description(result: &RawJson) -> Result<()> {
    let parts = ["capabilities", "serverInfo", "_meta"].map(|name| result.get(name));
    let size: usize = parts.iter().flatten().map(|part| part.as_str().len()).sum();
    if size > MAX_DESCRIPTION {
        return Err(Error::new(
            Reason::MessageTooLarge,
            format!("the server describes itself in {size} bytes; {MAX_DESCRIPTION} are enough"),
        ));
    }
    Ok(())
}

fn instructions(result: &RawJson) -> String {
    let mut text: String = result
        .get("instructions")
        .and_then(|text| text.read())
        .unwrap_or_default();
    if text.len() > MAX_DESCRIPTION {
        let end = text.floor_char_boundary(MAX_DESCRIPTION);
        text.truncate(end);
        text.push_str("\n[cut here]");
    }
    text
}

fn peer_of(result: &RawJson, era: Era) -> Peer {
    let info = match era {
        Era::Legacy => result.get("serverInfo"),
        Era::Modern => result
            .get("_meta")
            .and_then(|meta| meta.get(META_SERVER))
            .or_else(|| result.get("serverInfo")),
    };
    let info = info
        .and_then(|info| Fields::of(&info))
        .map(|mut fields| Implementation {
            name: fields.text("name"),
            title: fields.text("title"),
            version: fields.text("version"),
            extra: fields.rest(),
        });
    Peer {
        info,
        instructions: instructions(result),
        capabilities: result.get("capabilities"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Judgement, ProbeAnswer, judge, lacks_transport};
    use crate::error::{Error, Reason, RpcError};
    use crate::mcp::protocol::RawJson;

    const NEW: &str = "2026-07-28";
    const OLD: Judgement = Judgement::Legacy("2025-11-25");

    fn rpc(code: i64, data: Option<&str>) -> ProbeAnswer {
        ProbeAnswer::Rpc(RpcError {
            code,
            message: String::new(),
            data: data.map(str::to_owned),
        })
    }

    fn result(json: &str) -> ProbeAnswer {
        ProbeAnswer::Result(RawJson::parse(json.to_owned()).unwrap())
    }

    fn status(code: u16) -> ProbeAnswer {
        ProbeAnswer::Status(code, Error::new(Reason::NotAnMcpServer, "x"))
    }

    #[test]
    fn every_known_way_to_refuse_the_probe() {
        // Old servers, as they are in the field.
        for old in [
            rpc(-32601, None),
            rpc(-32602, None),
            rpc(-32600, None),
            rpc(-32000, None),
            result("{}"),
            status(400),
            status(404),
            status(405),
            ProbeAnswer::Garbage,
            ProbeAnswer::Silence,
        ] {
            assert_eq!(judge(old.clone(), NEW, true), OLD, "{old:?}");
        }
        // Modern servers.
        assert_eq!(
            judge(result(r#"{"supportedVersions":["2026-07-28"]}"#), NEW, true),
            Judgement::Modern(NEW)
        );
        assert_eq!(
            judge(
                rpc(-32022, Some(r#"{"supported":["2026-07-28"]}"#)),
                NEW,
                true
            ),
            Judgement::AskAgain(NEW)
        );
        assert_eq!(
            judge(rpc(-32022, None), NEW, true),
            Judgement::AskAgain(NEW)
        );
        assert_eq!(
            judge(
                rpc(-32022, Some(r#"{"supported":["2099-01-01","2025-06-18"]}"#)),
                NEW,
                true
            ),
            Judgement::Legacy("2025-06-18")
        );
        // No verdict.
        for unclear in [
            rpc(-32022, Some(r#"{"supported":["2099-01-01"]}"#)),
            rpc(-32021, None),
            result(r#"{"supportedVersions":["2099-01-01"]}"#),
            status(401),
            status(403),
            status(429),
            status(502),
            ProbeAnswer::Gone(Error::internal("x")),
        ] {
            assert!(
                matches!(judge(unclear.clone(), NEW, true), Judgement::Fail(_)),
                "{unclear:?}"
            );
        }
        // The second time is the last.
        let again = judge(
            rpc(-32022, Some(r#"{"supported":["2026-07-28"]}"#)),
            NEW,
            false,
        );
        assert!(matches!(again, Judgement::Fail(_)));
    }

    #[test]
    fn a_transport_is_missed_by_status_alone() {
        let refused = |status: u16, code: Option<i64>| {
            let error = match code {
                None => Error::new(Reason::NotAnMcpServer, "HTTP 404 401 405 not found"),
                Some(code) => Error::upstream(RpcError {
                    code,
                    message: "Session not found".to_owned(),
                    data: None,
                }),
            };
            lacks_transport(&error.with("http_status", status.to_string()))
        };
        for status in [400, 404, 405] {
            assert!(refused(status, None), "{status}");
        }
        for status in [200, 401, 403, 406, 409, 410, 415, 429, 500, 501, 503] {
            assert!(!refused(status, None), "{status}");
        }
        // Somebody reads what is POSTed.
        assert!(!refused(400, Some(-32000)));
        for modern in [-32601, -32020, -32021, -32022] {
            assert!(!refused(404, Some(modern)) && !refused(405, Some(modern)));
        }
        assert!(refused(405, Some(-32000)));
        assert!(!lacks_transport(&Error::new(
            Reason::UpstreamTimeout,
            "404"
        )));
    }
}
