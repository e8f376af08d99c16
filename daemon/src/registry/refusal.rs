//! Why a registration, a change or a look-up is refused, in words that name the remedy.

use crate::base::{Namespace, ServerId};
use crate::error::{Error, Reason, Result};
use crate::model::spec::{ServerSpec, TransportSpec};
use crate::model::status::ServerRecord;

/// Whether the registration is still the one with this etag (empty: any).
///
/// # Errors
/// `ETAG_MISMATCH` with the etag that holds now.
pub(super) fn check_etag(record: &ServerRecord, etag: &str) -> Result<()> {
    if etag.is_empty() || etag == record.etag() {
        return Ok(());
    }
    Err(Error::new(
        Reason::EtagMismatch,
        format!(
            "server `{}` has changed since etag `{etag}`; read it again",
            record.key.id
        ),
    )
    .with("etag", record.etag()))
}

/// As many servers are registered as may be.
pub(super) fn too_many(count: usize) -> Error {
    Error::new(
        Reason::TooMany,
        format!(
            "{count} servers are registered, which is the limit (limits.servers); remove some first"
        ),
    )
}

/// No server has this id.
pub(super) fn server_not_found(namespace: &Namespace, id: &str) -> Error {
    Error::new(
        Reason::ServerNotFound,
        format!("there is no server `{id}` in namespace `{namespace}`; ListServers shows the ids"),
    )
    .with("namespace", namespace.as_str())
    .with("server_id", id)
}

/// The same server is registered under another id that was chosen.
pub(super) fn has_other_id(record: &ServerRecord, wanted: &ServerId) -> Error {
    let id = &record.key.id;
    Error::new(
        Reason::ServerIdTaken,
        format!(
            "server `{}` at {} is registered under id `{id}`; use that id, give `{wanted}` another name, or remove `{id}` first",
            record.spec.name,
            shown_target(&record.spec)
        ),
    )
    .with("server_id", id.as_str())
}

/// The id belongs to another server.
pub(super) fn id_taken(id: &ServerId, holder: &ServerRecord, wanted: &ServerSpec) -> Error {
    Error::new(
        Reason::ServerIdTaken,
        format!(
            "id `{id}` belongs to server `{}` at {}; `{}` at {} needs another id",
            holder.spec.name,
            shown_target(&holder.spec),
            wanted.name,
            shown_target(wanted)
        ),
    )
    .with("server_id", id.as_str())
}

/// A target for people. Arguments of a command may hold what is nobody's business: they are left out.
fn shown_target(spec: &ServerSpec) -> String {
    match &spec.transport {
        TransportSpec::Http(http) => format!("`{}`", http.url),
        TransportSpec::Stdio(stdio) => format!("command `{}`", stdio.command),
        TransportSpec::UnixSocket(socket) => format!("socket `{}`", socket.path),
    }
}

/// Nothing is registered in this namespace.
pub(super) fn namespace_not_found(namespace: &Namespace) -> Error {
    Error::new(
        Reason::NamespaceNotFound,
        format!(
            "nothing is registered in namespace `{namespace}`; AddServer makes a namespace exist"
        ),
    )
    .with("namespace", namespace.as_str())
}
