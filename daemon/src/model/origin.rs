//! Who began something, as far as it is known when it begins; kept with what outlives its caller.

use serde::{Deserialize, Serialize};

/// The app behind an RPC.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// Its user, as the kernel names it.
    pub uid: u32,
    /// Its group, as the kernel names it.
    pub gid: u32,
    /// Its process, where the kernel knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The program that this process ran when it connected, where that can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The id of the RPC.
    pub rpc_id: String,
}
