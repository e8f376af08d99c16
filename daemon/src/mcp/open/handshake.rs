//! The first exchanges with a server: the probe, the legacy handshake, and going on with a session.

use std::time::Duration;

use tokio::sync::mpsc;

use super::judge::{ProbeAnswer, read_versions};
use crate::catalog::entry::Fields;
use crate::error::{Error, Reason, Result, RpcError};
use crate::mcp::era::{self, Dialect, Frame, LEGACY_VERSIONS, META_SERVER, Request};
use crate::mcp::link::Peer;
use crate::mcp::protocol::{self, Message, RawJson, method};
use crate::mcp::transport::{Exchange, Loss, Transport};
use crate::model::spec::{Abilities, ServerSpec};
use crate::model::status::{Era, Implementation, Session};

/// A handshake has no outcome that could be unknown: a server that closes its answer to `initialize` is none.
fn handshake_error(loss: Loss) -> Error {
    if loss.error.reason() == Reason::OutcomeUnknown {
        return Error::new(Reason::NotAnMcpServer, loss.error.message());
    }
    loss.error
}

/// A transport before anything is agreed.
pub(super) struct Dial {
    pub(super) transport: Transport,
    pub(super) inbound: mpsc::Receiver<Message>,
    pub(super) next_id: u64,
}

/// What was agreed.
pub(super) struct Agreed {
    pub(super) dialect: Dialect,
    pub(super) peer: Peer,
    /// The answer to the legacy handshake.
    pub(super) hello: Option<RawJson>,
    /// Whether the era was found by an answer, as opposed to silence over HTTP.
    pub(super) certain: bool,
    /// What a legacy server was told that it may ask for.
    pub(super) told: Option<Abilities>,
}

impl Dial {
    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    pub(super) async fn probe(
        &mut self,
        dialect: &Dialect,
        able: Abilities,
        bound: Duration,
    ) -> ProbeAnswer {
        let frame = dialect.encode(&Request::new(method::DISCOVER), self.take_id(), able);
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
    pub(super) async fn initialize(
        &mut self,
        spec: &ServerSpec,
        offer: &str,
        able: Abilities,
    ) -> Result<Agreed> {
        let mut offer = offer.to_owned();
        let mut again = spec.protocol_version.is_none();
        let result = loop {
            let dialect = Dialect::new(Era::Legacy, &offer, spec);
            let frame = dialect.encode_initialize(self.take_id(), able);
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
            told: Some(able),
        })
    }

    /// Goes on with a session of an earlier run without a handshake (MCP 2025-11-25 basic/transports, "Session
    /// Management"): the server says so when it no longer knows it. `None` where that cannot be.
    pub(super) fn resume(
        &self,
        spec: &ServerSpec,
        old: &Session,
        able: Abilities,
    ) -> Option<Agreed> {
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
            told: Some(old.told.unwrap_or(able)),
        })
    }

    /// The session to keep for the next start.
    pub(super) fn session(&self, agreed: &Agreed) -> Option<Session> {
        let (Transport::Http(http), Some(hello)) = (&self.transport, &agreed.hello) else {
            return None;
        };
        Some(Session {
            id: http.session_id()?,
            version: agreed.dialect.version().to_owned(),
            hello: hello.as_str().to_owned(),
            told: agreed.told,
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

pub(super) fn check_description(result: &RawJson) -> Result<()> {
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

pub(super) fn peer_of(result: &RawJson, era: Era) -> Peer {
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
