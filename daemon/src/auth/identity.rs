//! With what the daemon proves itself in TLS (RFC 8705).

use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::model::spec::ClientCertificate;

/// A certificate with its chain and its key.
///
/// # Errors
/// `INVALID_FIELD` for texts that are none.
pub(super) fn identity(certificate: &ClientCertificate) -> Result<reqwest::Identity> {
    let key = certificate.private_key.value.expose();
    let size = key.len() + 1 + certificate.chain.len();
    let mut pem = Zeroizing::new(Vec::with_capacity(size));
    pem.extend_from_slice(key.as_bytes());
    pem.push(b'\n');
    pem.extend_from_slice(certificate.chain.as_bytes());
    reqwest::Identity::from_pem(&pem).map_err(|_| {
        Error::invalid(
            "spec.http.client_certificate",
            "`certificate_pem` and `private_key_pem` must hold a certificate and its private key, in PEM form",
        )
    })
}
