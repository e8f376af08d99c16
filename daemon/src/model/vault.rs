//! Where the key that encrypts secrets at rest may be.

use serde::{Deserialize, Serialize};

/// Where the key that encrypts secrets at rest is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyBackend {
    /// What the service manager passes, if it does, else a file.
    #[default]
    Auto,
    /// What the service manager passes.
    Credential,
    /// A file.
    KeyFile,
    /// The keyring of the user's session.
    Keyring,
}
