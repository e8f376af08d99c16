//! Who is at the other end of a connection: the kernel names the caller; nothing that the caller says counts.

use tokio::net::UnixStream;

use crate::base::Caller;
use crate::error::{Error, Result};

/// The process that made a connection, as the kernel recorded it at that moment.
///
/// # Errors
/// INTERNAL if the kernel does not tell.
pub fn caller_of(stream: &UnixStream) -> Result<Caller> {
    let peer = stream.peer_cred().map_err(|cause| {
        Error::internal(format!("the kernel does not name the caller: {cause}"))
    })?;
    Ok(Caller {
        uid: peer.uid(),
        gid: peer.gid(),
        pid: peer.pid(),
    })
}
