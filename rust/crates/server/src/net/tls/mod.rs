//! TLS of listeners with the security protocol SSL: their configuration, the handshake, and sessions.
//!
//! Owns the `rustls::ServerConfig` of a listener, the cipher suites, the verification of clients'
//! certificates, and a connection's session. Reads no files and knows no passwords: keys and certificates
//! come as DER. The network threads call it. Nothing is on disk. Source: `SslTransportLayer`,
//! `DefaultSslEngineFactory`, `SslPrincipalMapper`.
//!
//! Memory of a session: during the handshake at most 64 KiB of a message, afterwards three records (one read,
//! one pending, one being written). A few sessions have larger buffers to send files (`session.rs`).

mod client_certificates;
mod failure;
mod session;
mod suites;

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{InconsistentKeys, ServerConfig, ServerConnection, SupportedProtocolVersion};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::block_in_place;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use self::client_certificates::verifier;
pub(crate) use self::failure::Failure;
use self::session::RECORD;
pub(crate) use self::session::Tls;
pub use self::suites::cipher_suites;
use self::suites::provider;
use crate::error::{Result, ServerError};
use crate::net::transport::discard_rest;
use crate::quotas::ANONYMOUS;

/// How long a handshake may take. `connections.max.idle.ms`, Kafka's only bound, counts if it is shorter.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a peer may take to read the alert of a failed handshake.
const ALERT_TIMEOUT: Duration = Duration::from_secs(1);
/// Network threads that call `PrincipalOf` at the same time.
static PRINCIPAL_CALLS: Semaphore = Semaphore::const_new(4);

/// The principal of a certificate (DER), or why it has none. Called on a network thread, and may block.
pub type PrincipalOf = Arc<dyn Fn(&[u8]) -> Result<String, String> + Send + Sync>;

/// Whether clients are asked for certificates (`ssl.client.auth`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not.
    None,
    /// Clients without a certificate are served too.
    Requested,
    /// Clients without a certificate are refused.
    Required,
}

/// The TLS options of a listener.
#[derive(Clone)]
pub struct TlsOptions {
    /// The server's certificate chain, in DER, its own certificate first.
    pub certificates: Vec<Vec<u8>>,
    /// The key of the first, in DER: PKCS #8, PKCS #1 or SEC 1.
    pub key: Vec<u8>,
    /// Authorities that may sign clients' certificates, in DER. That they are authorities is not checked
    /// here.
    pub authorities: Vec<Vec<u8>>,
    /// Clients' certificates that are accepted with any issuer, in DER.
    pub trusted: Vec<Vec<u8>>,
    /// Whether clients are asked for certificates.
    pub client_auth: ClientAuth,
    /// `TLSv1.2`, `TLSv1.3`
    pub protocols: Vec<String>,
    /// Some of [`cipher_suites`]; empty stands for all.
    pub cipher_suites: Vec<String>,
    /// The principal of a client's certificate.
    pub principal: PrincipalOf,
}

/// TLS of one listener.
#[derive(Clone)]
pub struct ListenerTls {
    acceptor: TlsAcceptor,
    principal: PrincipalOf,
}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ListenerTls")
    }
}

impl ListenerTls {
    /// Checks the options and builds the configuration.
    ///
    /// # Errors
    /// [`ServerError::Tls`]: a key or certificate that cannot be read, a key that is not the certificate's,
    /// no protocol or cipher suite.
    pub fn new(options: TlsOptions) -> Result<Self> {
        let provider = Arc::new(provider(&options.cipher_suites));
        let versions = options.protocols.iter().map(|name| version(name));
        let versions = versions.collect::<Result<Vec<_>>>()?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|_| {
                bad("none of the cipher suites belongs to one of the enabled protocols".to_owned())
            })?;
        let builder = match options.client_auth {
            ClientAuth::None => builder.with_no_client_auth(),
            asked => builder.with_client_cert_verifier(verifier(
                &options.authorities,
                options.trusted,
                asked == ClientAuth::Required,
                &provider,
            )?),
        };
        let key = PrivateKeyDer::try_from(options.key)
            .map_err(|reason| bad(format!("the private key cannot be read: {reason}")))?;
        let chain = options.certificates.into_iter().map(CertificateDer::from);
        let mut config = builder
            .with_single_cert(chain.collect(), key)
            .map_err(|error| bad(unusable(&error)))?;
        if options.client_auth != ClientAuth::None {
            // A resumed session would not be checked again, though its certificate may have expired.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            principal: options.principal,
        })
    }

    /// The handshake. Cancelled, it closes the connection.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Result<Tls, Failure> {
        let limited = |session: &mut ServerConnection| session.set_buffer_limit(Some(RECORD));
        let accepting = self.acceptor.accept_with(stream, limited).into_fallible();
        match accepting.await {
            Ok(stream) => self.identify(stream).await,
            Err((error, mut stream)) => {
                let failure = Failure::of(error);
                if !matches!(failure, Failure::Gone) {
                    // Closing with unread bytes would reset the connection, and the peer would lose the
                    // alert.
                    let _ = timeout(ALERT_TIMEOUT, finish(&mut stream)).await;
                }
                Err(failure)
            }
        }
    }

    async fn identify(&self, stream: TlsStream<TcpStream>) -> Result<Tls, Failure> {
        let certificates = stream.get_ref().1.peer_certificates();
        let principal = match certificates.and_then(<[_]>::first) {
            None => ANONYMOUS.to_owned(),
            Some(certificate) => {
                // The semaphore is never closed, so this is a permit.
                let _permit = PRINCIPAL_CALLS.acquire().await;
                block_in_place(|| (self.principal)(certificate)).map_err(Failure::NoPrincipal)?
            }
        };
        Ok(Tls {
            stream,
            principal,
            pending: Vec::new(),
        })
    }
}

fn version(name: &str) -> Result<&'static SupportedProtocolVersion> {
    match name {
        "TLSv1.2" => Ok(&rustls::version::TLS12),
        "TLSv1.3" => Ok(&rustls::version::TLS13),
        _ => Err(bad(format!("{name} is not supported; TLSv1.2 and TLSv1.3 are"))),
    }
}

fn bad(reason: String) -> ServerError {
    ServerError::Tls(reason)
}

/// Why a key and its certificate cannot be used.
fn unusable(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            "the private key is not that of the first certificate: use the key that was made for it"
                .to_owned()
        }
        rustls::Error::NoCertificatesPresented => "there is no certificate".to_owned(),
        rustls::Error::InvalidCertificate(reason) => format!(
            "the certificate cannot be used ({reason:?}): an X.509 certificate of version 3 with \
             subjectAltName is needed"
        ),
        other => format!(
            "the key and its certificate cannot be used: {other}; supported keys are RSA from 2,048 bits, \
             ECDSA on P-256 or P-384, and Ed25519"
        ),
    }
}

/// Shuts down the sending side, and waits until the peer does the same.
async fn finish(stream: &mut TcpStream) -> io::Result<()> {
    SockRef::from(&*stream).shutdown(Shutdown::Write)?;
    discard_rest(stream).await
}

#[cfg(test)]
#[path = "../../../tests/common/certificates.rs"]
mod certificates;

#[cfg(test)]
pub(crate) mod tests;
