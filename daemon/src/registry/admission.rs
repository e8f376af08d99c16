//! What a registration has to be before it is looked at any further, and the id of one that was given none.

use super::declared::check_changeable;
use super::refusal::{has_other_id, id_taken, too_many};
use super::{NewServer, Outcome, Registry, Server, is_same};
use crate::base::{Namespace, ServerId};
use crate::error::{Error, Reason, Result};
use crate::mcp::era::{LEGACY_VERSIONS, MODERN_VERSIONS, era_of};
use crate::mcp::transport::http::custom_headers;
use crate::model::spec::{HttpMode, MAX_ID, ServerSpec, TransportSpec, normalize_id, short_hash};
use crate::model::status::Era;
use crate::model::validate::check_spec;

impl Registry {
    /// Whether this daemon takes such a registration.
    ///
    /// # Errors
    /// `INVALID_FIELD`, `DESTINATION_BLOCKED`.
    pub(super) fn check(&self, spec: &ServerSpec) -> Result<()> {
        check_settings(spec)?;
        match &spec.transport {
            TransportSpec::Http(http) => self.0.dialer.policy.check_url(&http.url),
            TransportSpec::Stdio(_) if !self.0.dialer.settings.stdio_enabled => Err(Error::new(
                Reason::DestinationBlocked,
                "servers that are child processes are switched off; the operator allows them with stdio.enabled",
            )),
            TransportSpec::Stdio(_) => Ok(()),
            TransportSpec::UnixSocket(socket) => self.0.dialer.policy.check_socket(&socket.path),
        }
    }

    /// What [`Registry::add`] would do now, and with which server if it is registered already.
    ///
    /// # Errors
    /// As [`Registry::add`].
    pub fn judge(&self, new: &NewServer) -> Result<(Option<Server>, Outcome)> {
        self.check(&new.spec)?;
        let wanted = new.wanted_id.as_deref().map(normalize_id);
        let (known, same) = self.look_up(&new.namespace, wanted.as_ref(), &new.spec);
        if let (Some(wanted), Some(other)) = (&wanted, &known)
            && !is_same(&other.record.spec, &new.spec)
        {
            return Err(id_taken(wanted, &other.record, &new.spec));
        }
        let Some(server) = known.or(same) else {
            let count = self.count();
            if count >= self.0.limit {
                return Err(too_many(count));
            }
            return Ok((None, Outcome::Created));
        };
        let outcome = match wanted {
            Some(wanted) if server.record.key.id != wanted => {
                if !server.record.generated_id {
                    return Err(has_other_id(&server.record, &wanted));
                }
                Outcome::Migrated
            }
            _ if server.record.spec == new.spec => Outcome::Existing,
            _ => {
                check_changeable(&server)?;
                Outcome::Updated
            }
        };
        Ok((Some(server), outcome))
    }

    /// An id that says what it is, is the same for the same server, and leaves plain ids to people.
    pub(super) fn generate_id(&self, namespace: &Namespace, spec: &ServerSpec) -> ServerId {
        let mut salt = String::new();
        loop {
            let hash = short_hash(&format!("{}\u{0}{}{salt}", spec.name, spec.target()));
            let mut slug = normalize_id(&spec.name).as_str().to_owned();
            slug.truncate(MAX_ID - hash.len() - 1);
            let id = normalize_id(&format!("{slug}-{hash}"));
            if self.get(namespace, id.as_str()).is_err() {
                return id;
            }
            salt.push('+');
        }
    }
}

/// Whether settings can be those of a server, wherever it is.
///
/// # Errors
/// `INVALID_FIELD`.
pub fn check_settings(spec: &ServerSpec) -> Result<()> {
    let versions: Vec<&str> = MODERN_VERSIONS
        .iter()
        .chain(LEGACY_VERSIONS)
        .copied()
        .collect();
    check_spec(spec, &versions)?;
    match &spec.transport {
        TransportSpec::Http(http) => {
            custom_headers(&http.headers, "spec.http.headers")?;
            check_pin(spec)
        }
        TransportSpec::Stdio(_) => Ok(()),
        TransportSpec::UnixSocket(socket) => {
            custom_headers(&socket.headers, "spec.unix_socket.headers").map(drop)
        }
    }
}

/// A transport that only legacy versions have cannot be pinned to another.
fn check_pin(spec: &ServerSpec) -> Result<()> {
    match &spec.protocol_version {
        Some(pin)
            if spec.http_mode() == Some(HttpMode::Sse) && era_of(pin) != Some(Era::Legacy) =>
        {
            Err(Error::invalid(
                "spec.protocol_version",
                format!("HTTP+SSE has no version `{pin}`; pin one of {LEGACY_VERSIONS:?}, or none"),
            ))
        }
        _ => Ok(()),
    }
}
