//! HTTP/2 over TLS, and mutual TLS. The certificates are for tests only, and their keys are public: no program but a test may
//! trust them.

use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

const CERTIFICATE: &[u8] = include_bytes!("tls/certificate.pem");
const KEY: &[u8] = include_bytes!("tls/key.pem");
const CLIENT_ROOT: &[u8] = include_bytes!("tls/client-ca.pem");

/// A certificate that a site with mutual TLS takes, and its key.
pub const CLIENT: (&str, &str) = (
    include_str!("tls/client.pem"),
    include_str!("tls/client-key.pem"),
);

/// Variable that names the roots which a daemon trusts.
pub const TRUST: &str = "SSL_CERT_FILE";

/// The file to trust, see [`TRUST`].
pub fn roots() -> PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fake/tls/certificate.pem")
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    let all: Result<_, _> = CertificateDer::pem_reader_iter(BufReader::new(pem)).collect();
    all.expect("a certificate")
}

fn key() -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(KEY).expect("a private key")
}

/// Takes TLS connections that speak HTTP/2.
pub(super) fn acceptor() -> TlsAcceptor {
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates(CERTIFICATE), key());
    let mut config = config.expect("a certificate with its key");
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Takes TLS connections of clients that have a certificate, see [`CLIENT`].
pub(crate) fn mutual() -> TlsAcceptor {
    let mut roots = RootCertStore::empty();
    for root in certificates(CLIENT_ROOT) {
        roots.add(root).expect("a root");
    }
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
    let config = ServerConfig::builder()
        .with_client_cert_verifier(verifier.expect("a verifier"))
        .with_single_cert(certificates(CERTIFICATE), key());
    let mut config = config.expect("a certificate with its key");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}
