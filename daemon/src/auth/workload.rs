//! Assertions that the platform writes for a workload: read anew for every token request, and only where the operator
//! allows it.

use std::path::{Path, PathBuf};

use tokio::io::AsyncReadExt as _;

use crate::base::Secret;
use crate::error::{Error, Reason, Result};
use crate::model::auth::Assertion;

/// Longest assertion, in bytes.
const MAX_ASSERTION: u64 = 64 * 1024;

/// The assertion as it is now.
///
/// # Errors
/// `CREDENTIALS_REFUSED` if the file is outside of `dirs` (links are followed first), cannot be read, or holds no JWT.
pub(super) async fn assertion(source: &Assertion, dirs: &[PathBuf]) -> Result<Secret<String>> {
    let path = match source {
        Assertion::Given(secret) => return Ok(secret.value.clone()),
        Assertion::File(path) => Path::new(path),
    };
    let failed = |what: String| {
        Error::new(
            Reason::CredentialsRefused,
            format!(
                "the assertion in `{}` cannot be used: {what}",
                path.display()
            ),
        )
    };
    // What it is, not what it is called: a link may lead anywhere.
    let real = tokio::fs::canonicalize(path);
    let real = real.await.map_err(|cause| failed(cause.to_string()))?;
    let mut allowed = false;
    for dir in dirs {
        let dir = tokio::fs::canonicalize(dir).await;
        allowed |= dir.is_ok_and(|dir| real.starts_with(dir));
    }
    if !allowed {
        return Err(failed(
            "it is not below a directory in auth.assertion_dirs".to_owned(),
        ));
    }
    let file = tokio::fs::File::open(&real).await;
    let file = file.map_err(|cause| failed(cause.to_string()))?;
    let mut bytes = zeroize::Zeroizing::new(Vec::new());
    let mut bounded = file.take(MAX_ASSERTION + 1);
    let read = bounded.read_to_end(&mut bytes).await;
    read.map_err(|cause| failed(cause.to_string()))?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    let is_jwt = text.split('.').count() == 3 && !text.contains(char::is_whitespace);
    if !is_jwt || bytes.len() as u64 > MAX_ASSERTION {
        return Err(failed("it holds no JWT".to_owned()));
    }
    Ok(Secret::new(text.to_owned()))
}
