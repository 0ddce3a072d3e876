//! TLS: the transport of listeners whose security protocol is SSL, and the handshake before it.
//!
//! Owns: what a listener's settings become (`rustls::ServerConfig`), which cipher suites there are, whom a certificate names,
//! and a connection's session. Does not own files or passwords: keys and certificates come opened, as DER. Source of the
//! meanings: `SslTransportLayer`, `DefaultSslEngineFactory`, `SslPrincipalMapper`.
//!
//! A session has at most 64 KiB of a handshake's message, or a record that is read, one that is to be sent and one that is
//! written. A few have larger buffers, to send files with (`session.rs`). The handshake has
//! [`HANDSHAKE_PATIENCE`]. A crash loses sessions, as it loses connections; nothing of them is on disk.

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
use crate::net::transport::throw_away;
use crate::quotas::ANONYMOUS;

/// How long a handshake may take; `connections.max.idle.ms` if that is shorter, which is Kafka's only bound.
pub(crate) const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(30);
/// How long a peer whose handshake failed may take to read why.
const FAREWELL: Duration = Duration::from_secs(1);
/// So many threads at most wait to hear whom a certificate names.
static ASKING: Semaphore = Semaphore::const_new(4);

/// Says whom a certificate (DER) names, or why it names nobody. Called on a network's thread, and may take its time.
pub type PrincipalOf = Arc<dyn Fn(&[u8]) -> Result<String, String> + Send + Sync>;

/// Whether clients are asked for certificates (`ssl.client.auth`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// No.
    None,
    /// Those who have none may come, too.
    Requested,
    /// Those who have none may not.
    Required,
}

/// What a listener serves TLS with.
#[derive(Clone)]
pub struct TlsOptions {
    /// The server's certificate and those between it and its authority, in DER.
    pub certificates: Vec<Vec<u8>>,
    /// The key of the first, in DER: PKCS #8, PKCS #1 or SEC 1.
    pub key: Vec<u8>,
    /// Whose word for clients' certificates counts, in DER: authorities only, for nobody asks them whether they are.
    pub authorities: Vec<Vec<u8>>,
    /// Certificates that clients may have whoever vouches for them, in DER.
    pub trusted: Vec<Vec<u8>>,
    /// Whether clients are asked for theirs.
    pub client_auth: ClientAuth,
    /// `TLSv1.2`, `TLSv1.3`
    pub protocols: Vec<String>,
    /// Of [`cipher_suites`]; none at all stands for all.
    pub cipher_suites: Vec<String>,
    /// Whom a certificate names.
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
    /// Checks what there is.
    ///
    /// # Errors
    /// [`ServerError::Tls`]: a key or certificate that cannot be read, a pair that does not belong together, no protocol or
    /// cipher suite.
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
            // Nobody looks at the certificate of a session that is resumed, however long ago it was valid.
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
                    // Its alert would be lost with what the peer has sent meanwhile.
                    let _ = timeout(FAREWELL, finish(&mut stream)).await;
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
                // It is never closed.
                let _turn = ASKING.acquire().await;
                block_in_place(|| (self.principal)(certificate)).map_err(Failure::Nobody)?
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
        _ => Err(bad(format!("{name} is not served: TLSv1.2 and TLSv1.3 are"))),
    }
}

fn bad(reason: String) -> ServerError {
    ServerError::Tls(reason)
}

/// What is wrong with a key and its certificate.
fn unusable(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            "the private key is not that of the first certificate: name the key and the certificate that were made for each other".to_owned()
        }
        rustls::Error::NoCertificatesPresented => "there is no certificate".to_owned(),
        rustls::Error::InvalidCertificate(reason) => format!(
            "the certificate cannot be used ({reason:?}): an X.509 certificate of version 3, with the extension subjectAltName, is needed"
        ),
        other => format!(
            "the key and its certificate cannot be used: {other}; keys are RSA from 2,048 bits, ECDSA on P-256 or P-384, or Ed25519"
        ),
    }
}

/// Says that nothing more is written, and waits for the peer to say so.
async fn finish(stream: &mut TcpStream) -> io::Result<()> {
    SockRef::from(&*stream).shutdown(Shutdown::Write)?;
    throw_away(stream).await
}

#[cfg(test)]
#[path = "../../../tests/common/certificates.rs"]
mod certificates;

#[cfg(test)]
pub(crate) mod tests;
