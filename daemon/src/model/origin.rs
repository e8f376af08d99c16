//! Who began something, as far as it is known when it begins; kept with what outlives its caller.

use serde::{Deserialize, Serialize};

use crate::base::Caller;

/// The app behind an RPC.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// Its user, as the kernel names it; `None` if it bears a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Its group, as the kernel names it; `None` if it bears a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Its process, where the kernel knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The program that this process ran when it connected, where that can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The id of the token that it bears.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// The name of that token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_name: Option<String>,
    /// The id of the RPC.
    pub rpc_id: String,
}

impl Origin {
    /// An RPC of this caller, with this id; `program` is what it runs, where that can be seen.
    #[must_use]
    pub fn of(caller: &Caller, program: Option<String>, rpc_id: &str) -> Self {
        let process = caller.process();
        let bearer = caller.bearer();
        Self {
            uid: process.map(|process| process.uid),
            gid: process.map(|process| process.gid),
            pid: process.and_then(|process| process.pid),
            program,
            token_id: bearer.map(|bearer| bearer.id.to_string()),
            token_name: bearer.map(|bearer| bearer.name.clone()),
            rpc_id: rpc_id.to_owned(),
        }
    }
}
