//! HTTP/2 over TLS. The certificate is for this host only, and its key is public: no program but a test may trust it.

use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

const CERTIFICATE: &[u8] = include_bytes!("tls/certificate.pem");
const KEY: &[u8] = include_bytes!("tls/key.pem");

/// Variable that names the roots which a daemon trusts.
pub const TRUST: &str = "SSL_CERT_FILE";

/// The file to trust, see [`TRUST`].
pub fn roots() -> PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fake/tls/certificate.pem")
}

/// Takes TLS connections that speak HTTP/2.
pub(super) fn acceptor() -> TlsAcceptor {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_reader_iter(BufReader::new(CERTIFICATE)).collect();
    let key = PrivateKeyDer::from_pem_slice(KEY).expect("a private key");
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates.expect("a certificate"), key);
    let mut config = config.expect("a certificate with its key");
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}
