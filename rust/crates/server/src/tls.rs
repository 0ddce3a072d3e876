//! TLS: the transport of listeners whose security protocol is SSL, and the handshake before it.
//!
//! Owns: what a listener's settings become (`rustls::ServerConfig`), which cipher suites there are, whom a certificate names,
//! and a connection's session. Does not own files or passwords: keys and certificates come opened, as DER. Source of the
//! meanings: `SslTransportLayer`, `DefaultSslEngineFactory`, `SslPrincipalMapper`.
//!
//! A session has at most 64 KiB of a handshake's message, or a record that is read, one that is to be sent and one that is
//! written. [`LARGE_BUFFERS`] have more, to send files with. The handshake has [`HANDSHAKE_PATIENCE`]. A crash loses sessions, as it loses connections; nothing of them is on disk.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CipherSuiteCommon, CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, InconsistentKeys,
    OtherError, RootCertStore, ServerConfig, ServerConnection, SignatureScheme, SupportedCipherSuite,
    SupportedProtocolVersion, Tls12CipherSuite,
};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::block_in_place;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use logcore_storage::LogSlice;

use crate::error::{Result, ServerError};
use crate::quotas::ANONYMOUS;
use crate::transport::{COPY_CHUNK, Transport, copy_slice, peer_closed, throw_away};

/// How long a handshake may take; `connections.max.idle.ms` if that is shorter, which is Kafka's only bound.
pub(crate) const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(30);
/// How long a peer whose handshake failed may take to read why.
const FAREWELL: Duration = Duration::from_secs(1);
/// What a record has at most: so much waits for what is written next.
const RECORD: usize = 16 * 1024;

/// So many certificates at most are read of one peer, its own among them: JSSE's
/// `jdk.tls.server.maxInboundCertificateChainLength`.
const CERTIFICATES: usize = 8;
/// So many bytes they have together: JSSE's `jdk.tls.maxHandshakeMessageSize`.
const CERTIFICATES_SIZE: usize = 32 * 1024;

/// So many bytes of names at most are told to clients that are asked for certificates. Java's end at messages that are longer
/// than [`CERTIFICATES_SIZE`], and show what they have where no name is told.
const NAMES_SIZE: usize = CERTIFICATES_SIZE - 1024;

/// So many sessions at a time read files in large pieces; whoever comes then, because peers are slow to read, takes a record
/// at a time.
static LARGE_BUFFERS: Semaphore = Semaphore::const_new(64);
/// So many threads at most wait to hear whom a certificate names.
static ASKING: Semaphore = Semaphore::const_new(4);

/// The suites of `ring`, those of TLS 1.2 without a limit of records: at it rustls ends a session between any two records, and
/// takes what is written afterwards for sent. Java and OpenSSL have no such limit.
static SUITES: LazyLock<Vec<SupportedCipherSuite>> = LazyLock::new(|| {
    let suites = ring::default_provider().cipher_suites;
    suites.into_iter().map(without_limit).collect()
});

fn without_limit(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let SupportedCipherSuite::Tls12(suite) = suite else {
        // TLS 1.3 changes its keys at the limit.
        return suite;
    };
    let common = CipherSuiteCommon {
        suite: suite.common.suite,
        hash_provider: suite.common.hash_provider,
        confidentiality_limit: u64::MAX,
    };
    SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite { common, ..*suite })))
}

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

/// The cipher suites there are, by the names Java has for them.
pub fn cipher_suites() -> Vec<String> {
    SUITES.iter().map(|suite| java_name(suite.suite())).collect()
}

/// rustls tells those of TLS 1.3 apart by their names.
fn java_name(suite: rustls::CipherSuite) -> String {
    let name = suite.as_str().unwrap_or_default();
    name.replacen("TLS13_", "TLS_", 1)
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

fn provider(names: &[String]) -> CryptoProvider {
    let mut provider = CryptoProvider {
        cipher_suites: SUITES.clone(),
        ..ring::default_provider()
    };
    if !names.is_empty() {
        let is_named = |suite: &rustls::SupportedCipherSuite| names.contains(&java_name(suite.suite()));
        provider.cipher_suites.retain(is_named);
    }
    provider
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

fn verifier(
    authorities: &[Vec<u8>],
    trusted: Vec<Vec<u8>>,
    required: bool,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots
            .add(CertificateDer::from(certificate.clone()))
            .map_err(|error| {
                bad(format!(
                    "a certificate of the trust store cannot be read: {error}"
                ))
            })?;
    }
    let trusted: Vec<_> = trusted.into_iter().map(CertificateDer::from).collect();
    let subjects = subjects(&roots, &trusted);
    let authorities = match roots.is_empty() {
        true => None,
        false => {
            let provider = Arc::clone(provider);
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let built = builder.build();
            Some(built.map_err(|error| bad(format!("the trust store cannot be used: {error}")))?)
        }
    };
    Ok(Arc::new(Verifier {
        authorities,
        trusted,
        subjects,
        required,
        provider: Arc::clone(provider),
    }))
}

/// Whom the certificates are for, each name once: `X509TrustManager.getAcceptedIssuers`. None at all where they are more than
/// [`NAMES_SIZE`].
fn subjects(authorities: &RootCertStore, trusted: &[CertificateDer<'static>]) -> Vec<DistinguishedName> {
    let mut all = authorities.clone();
    // Who cannot be read cannot come in, and needs no name.
    all.add_parsable_certificates(trusted.iter().cloned());
    let mut subjects: Vec<DistinguishedName> = Vec::new();
    for subject in all.subjects() {
        let is_told = |known: &DistinguishedName| known.as_ref() == subject.as_ref();
        if !subjects.iter().any(is_told) {
            subjects.push(subject);
        }
    }
    if subjects.iter().map(|each| 2 + each.as_ref().len()).sum::<usize>() > NAMES_SIZE {
        subjects.clear();
    }
    subjects
}

/// As Java trusts: those an authority vouches for, and whoever is in the trust store itself.
#[derive(Debug)]
struct Verifier {
    /// `None` where the trust store has no authority.
    authorities: Option<Arc<dyn ClientCertVerifier>>,
    trusted: Vec<CertificateDer<'static>>,
    /// What clients are told of the certificates that they may show one of.
    subjects: Vec<DistinguishedName>,
    required: bool,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        check_size(end_entity, intermediates)?;
        if self.trusted.contains(end_entity) {
            return Ok(ClientCertVerified::assertion());
        }
        match &self.authorities {
            Some(authorities) => {
                let chain = chain(end_entity, intermediates);
                authorities.verify_client_cert(end_entity, &chain, now)
            }
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// Refuses what is more than a client needs to say who it is.
fn check_size(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), CertificateError> {
    let count = 1 + intermediates.len();
    let size = end_entity.len() + intermediates.iter().map(|each| each.len()).sum::<usize>();
    if count <= CERTIFICATES && size <= CERTIFICATES_SIZE {
        return Ok(());
    }
    Err(CertificateError::Other(OtherError(Arc::new(bad(format!(
        "the client sent {count} certificates of {size} bytes, and at most {CERTIFICATES} of {CERTIFICATES_SIZE} bytes are read: its \
         key store (ssl.keystore.location) needs its own and those between it and its authority"
    ))))))
}

/// Those that lead from a peer's own certificate up, each by the name of the issuer, of those that share one the first: webpki
/// tries every order of them, which takes seconds.
fn chain<'a>(
    end_entity: &CertificateDer<'_>,
    intermediates: &'a [CertificateDer<'a>],
) -> Vec<CertificateDer<'a>> {
    // Who cannot be read vouches for nobody.
    let read = intermediates.iter().map(EndEntityCert::try_from);
    let read: Vec<_> = read.filter_map(Result::ok).collect();
    let mut chain: Vec<&EndEntityCert<'_>> = Vec::new();
    let Ok(own) = EndEntityCert::try_from(end_entity) else {
        return Vec::new();
    };
    let mut last = &own;
    while let Some(issuer) = read.iter().find(|each| each.subject() == last.issuer()) {
        if chain.iter().any(|each| std::ptr::eq(*each, issuer)) {
            break;
        }
        chain.push(issuer);
        last = issuer;
    }
    chain.into_iter().map(|each| each.der()).collect()
}

/// Why a handshake did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The peer went away.
    Gone,
    /// One of the two refused the other.
    Refused(String),
    /// The peer's certificate is trusted, and is nobody's by `ssl.principal.mapping.rules`.
    Nobody(String),
}

impl Failure {
    fn of(error: io::Error) -> Self {
        let refusal = error.get_ref();
        match refusal.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(ours))) => {
                Self::Refused(format!("invalid peer certificate: {ours}"))
            }
            Some(refusal) => Self::Refused(format!("{refusal}{}", advice(refusal))),
            None => Self::Gone,
        }
    }
}

/// What may be the cause.
fn advice(refusal: &rustls::Error) -> &'static str {
    match refusal {
        rustls::Error::InvalidMessage(_) => {
            "; the peer does not speak TLS: its security.protocol must be SSL"
        }
        rustls::Error::NoCertificatesPresented => {
            "; ssl.client.auth=required: the client needs a certificate of its own (ssl.keystore.location)"
        }
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "; no certificate in the trust store (ssl.truststore.location) vouches for the client's",
        rustls::Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        ) => "; the client does not trust this listener's certificate, or it is for another host name",
        rustls::Error::PeerIncompatible(_) => {
            "; the two have no protocol or cipher suite in common (ssl.enabled.protocols, ssl.cipher.suites)"
        }
        _ => "",
    }
}

/// A connection with TLS.
pub(crate) struct Tls {
    stream: TlsStream<TcpStream>,
    principal: String,
    /// What was written before more that follows at once: a record of its own costs a packet.
    pending: Vec<u8>,
}

impl AsyncRead for Tls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            // Frames tell their lengths: who closes without saying so in TLS cuts nothing off unnoticed.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            polled => polled,
        }
    }
}

impl Transport for Tls {
    fn principal(&self) -> &str {
        &self.principal
    }

    async fn write(&mut self, mut bytes: &[u8], more: bool) -> io::Result<()> {
        if !self.pending.is_empty() || (more && bytes.len() < RECORD) {
            let room = RECORD - self.pending.len();
            let (fits, rest) = bytes.split_at(bytes.len().min(room));
            self.pending.extend_from_slice(fits);
            bytes = rest;
            if more && self.pending.len() < RECORD {
                return Ok(());
            }
            let pending = std::mem::take(&mut self.pending);
            self.stream.write_all(&pending).await?;
        }
        self.stream.write_all(bytes).await?;
        if !more {
            self.stream.flush().await?;
        }
        Ok(())
    }

    async fn write_slice(&mut self, slice: &LogSlice) -> io::Result<()> {
        let Ok(_large) = LARGE_BUFFERS.try_acquire() else {
            return copy_slice(self, slice, RECORD as u64).await;
        };
        let limit = |stream: &mut TlsStream<TcpStream>, bytes| {
            stream.get_mut().1.set_buffer_limit(Some(bytes));
        };
        limit(&mut self.stream, COPY_CHUNK as usize);
        let copied = copy_slice(self, slice, COPY_CHUNK).await;
        // What a peer that does not read leaves in the session is one of the large buffers until it is gone.
        let flushed = match copied {
            Ok(()) => self.stream.flush().await,
            Err(error) => Err(error),
        };
        limit(&mut self.stream, RECORD);
        flushed
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        throw_away(self.stream.get_mut().0).await
    }

    async fn closed(&mut self) {
        peer_closed(self.stream.get_ref().0).await;
    }
}

impl Drop for Tls {
    /// A peer that is not told of the end takes it for an attack. What the socket has no room for is not waited for.
    fn drop(&mut self) {
        let (socket, session) = self.stream.get_mut();
        session.send_close_notify();
        let _ = session.write_tls(&mut AtOnce(socket));
    }
}

/// What a socket takes without waiting.
struct AtOnce<'a>(&'a TcpStream);

impl io::Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Says that nothing more is written, and waits for the peer to say so.
async fn finish(stream: &mut TcpStream) -> io::Result<()> {
    SockRef::from(&*stream).shutdown(Shutdown::Write)?;
    throw_away(stream).await
}

#[cfg(test)]
#[path = "../tests/common/certificates.rs"]
mod certificates;

#[cfg(test)]
pub(crate) mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use parking_lot::Mutex;
    use rustls::crypto::WebPkiSupportedAlgorithms;
    use rustls::pki_types::{
        AlgorithmIdentifier, InvalidSignature, ServerName, SignatureVerificationAlgorithm,
    };
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::runtime::Runtime;
    use tokio_rustls::{TlsConnector, client};

    use super::certificates::{Authority, Identity};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    type Client = client::TlsStream<TcpStream>;

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    }

    async fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (server, _) = listener.accept().await.unwrap();
        (server, client.unwrap())
    }

    async fn connect(
        tls: &ListenerTls,
        config: Arc<rustls::ClientConfig>,
    ) -> (Result<Tls, Failure>, io::Result<Client>) {
        let (server, client) = sockets().await;
        let connector = TlsConnector::from(config);
        let name = ServerName::try_from("localhost").unwrap();
        let both = async { tokio::join!(tls.accept(server), connector.connect(name, client)) };
        timeout(PATIENCE, both).await.unwrap()
    }

    /// A connection with its client.
    pub(crate) async fn pair() -> (Tls, Client) {
        let authority = Authority::new();
        let tls = ListenerTls::new(authority.options(ClientAuth::None)).unwrap();
        let (server, client) = connect(&tls, authority.client(None)).await;
        (server.unwrap(), client.unwrap())
    }

    fn refused(result: Result<Tls, Failure>) -> String {
        match result.err() {
            Some(Failure::Refused(reason) | Failure::Nobody(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    // If this failed, whoever has no certificate would be served as who has, or a trusted client would not be.
    #[test]
    fn who_is_asked_for_a_certificate_and_whom_it_names() {
        let (authority, strangers) = (Authority::new(), Authority::new());
        let ann = || authority.issue("/CN=ann");
        let options = |client_auth| authority.options(client_auth);
        runtime().block_on(async {
            for (client_auth, without, stranger) in [
                (ClientAuth::None, true, true),
                (ClientAuth::Requested, true, false),
                (ClientAuth::Required, false, false),
            ] {
                let tls = ListenerTls::new(options(client_auth)).unwrap();
                let nobody = connect(&tls, authority.client(None)).await.0;
                assert_eq!(nobody.is_ok(), without, "{client_auth:?}");
                if without {
                    assert_eq!(nobody.unwrap().principal(), ANONYMOUS);
                } else {
                    assert!(refused(nobody).contains("ssl.client.auth=required"));
                }
                let other = authority.client(Some(strangers.issue("/CN=ann")));
                let other = connect(&tls, other).await.0;
                assert_eq!(other.is_ok(), stranger, "{client_auth:?}");
                if !stranger {
                    assert!(refused(other).contains("ssl.truststore.location"));
                }
                let ann = ann();
                let size = ann.certificate.len();
                let served = connect(&tls, authority.client(Some(ann))).await.0.unwrap();
                let expected = match client_auth {
                    ClientAuth::None => ANONYMOUS.to_owned(),
                    _ => format!("{size} bytes"),
                };
                assert_eq!(served.principal(), expected);
            }
            // As in Java, who is in the trust store is trusted, whoever vouches for it.
            let bob = strangers.issue("/CN=bob");
            let mut own = options(ClientAuth::Required);
            own.authorities = vec![];
            own.trusted = vec![bob.certificate.to_vec()];
            let tls = ListenerTls::new(own.clone()).unwrap();
            assert!(connect(&tls, authority.client(Some(ann()))).await.0.is_err());
            assert!(connect(&tls, authority.client(Some(bob))).await.0.is_ok());
            own.authorities = vec![authority.certificate().to_vec()];
            own.principal = Arc::new(|_| Err("no rule applies".to_owned()));
            let tls = ListenerTls::new(own).unwrap();
            let nobody = connect(&tls, authority.client(Some(ann()))).await.0;
            assert_eq!(refused(nobody), "no rule applies");
            // A client that does not trust the server is told apart from one that went away.
            let distrust = connect(&tls, strangers.client(None)).await.0;
            assert!(refused(distrust).contains("does not trust this listener's certificate"));
        });
    }

    /// Counts the signatures that are checked.
    #[derive(Debug)]
    struct Counted {
        algorithm: &'static dyn SignatureVerificationAlgorithm,
        checks: Arc<AtomicUsize>,
    }

    impl SignatureVerificationAlgorithm for Counted {
        fn verify_signature(
            &self,
            public_key: &[u8],
            message: &[u8],
            signature: &[u8],
        ) -> Result<(), InvalidSignature> {
            self.checks.fetch_add(1, Ordering::Relaxed);
            let algorithm = self.algorithm;
            algorithm.verify_signature(public_key, message, signature)
        }

        fn public_key_alg_id(&self) -> AlgorithmIdentifier {
            self.algorithm.public_key_alg_id()
        }

        fn signature_alg_id(&self) -> AlgorithmIdentifier {
            self.algorithm.signature_alg_id()
        }
    }

    /// What trusts the authority, and how many signatures it has checked.
    fn counting(authority: &Authority) -> (Arc<dyn ClientCertVerifier>, Arc<AtomicUsize>) {
        let mut provider = provider(&[]);
        let checks = Arc::new(AtomicUsize::new(0));
        let counted = provider.signature_verification_algorithms.all.iter();
        let counted = counted.map(|algorithm| {
            let checks = Arc::clone(&checks);
            let algorithm = *algorithm;
            &*Box::leak(Box::new(Counted { algorithm, checks })) as &dyn SignatureVerificationAlgorithm
        });
        provider.signature_verification_algorithms = WebPkiSupportedAlgorithms {
            all: counted.collect::<Vec<_>>().leak(),
            ..provider.signature_verification_algorithms
        };
        let authorities = [authority.certificate().to_vec()];
        let verifier = verifier(&authorities, vec![], true, &Arc::new(provider)).unwrap();
        (verifier, checks)
    }

    // If this failed, one peer that nobody trusts would stop a thread of the network for seconds with one message, or a
    // client would not be let in for the certificates that are between its own and its authority's.
    #[test]
    fn what_a_peer_sends_is_gone_through_once() {
        let authority = Authority::new();
        let (verifier, checks) = counting(&authority);
        let verify = |own: &Identity, others: &[CertificateDer<'static>]| {
            checks.store(0, Ordering::Relaxed);
            let verified = verifier.verify_client_cert(&own.certificate, others, UnixTime::now());
            (verified, checks.load(Ordering::Relaxed))
        };
        // Each may have been issued by any other of them, and by the authority, if names are asked.
        for (count, extensions, refusal) in [
            (10, 430, "sent 11 certificates of "),
            (10, 0, "sent 11 certificates of "),
            (7, 430, "sent 8 certificates of "),
            (7, 100, ""),
        ] {
            let alike = |_| Authority::named("authority", extensions);
            let alike: Vec<_> = (0..count).map(alike).collect();
            let mallory = alike[0].issue("/CN=mallory");
            let others: Vec<_> = alike.iter().map(Authority::certificate).collect();
            let (verified, checks) = verify(&mallory, &others);
            let refused = verified.unwrap_err();
            if refusal.is_empty() {
                assert_eq!(refused, CertificateError::BadSignature.into());
                assert!((1..=2).contains(&checks), "{checks} signatures were checked");
                assert_eq!(chain(&mallory.certificate, &others).len(), 1);
            } else {
                let refused = Failure::of(io::Error::other(refused));
                let Failure::Refused(reason) = refused else {
                    panic!("{refused:?}");
                };
                assert!(reason.contains(refusal), "{reason}");
                assert_eq!(checks, 0);
            }
        }
        // As many as can be, in any order.
        let mut chain = vec![authority.subordinate("1")];
        for name in ["2", "3", "4", "5", "6"] {
            let next = chain[chain.len() - 1].subordinate(name);
            chain.push(next);
        }
        let ann = chain[chain.len() - 1].issue("/CN=ann");
        let mut others: Vec<_> = chain.iter().map(Authority::certificate).collect();
        others.push(authority.certificate());
        for _ in 0..2 {
            let (verified, checks) = verify(&ann, &others);
            verified.unwrap();
            assert_eq!(checks, 7);
            others.reverse();
        }
        others.retain(|each| *each != chain[2].certificate());
        assert!(verify(&ann, &others).0.is_err());
    }

    // If this failed, Java's and Go's clients would not show certificates that are trusted, for want of their issuers' names, or
    // be told more names than they read.
    #[test]
    fn clients_are_told_of_every_certificate_that_is_trusted() {
        let authority = Authority::new();
        let (ann, bob) = (Authority::named("ann", 0), authority.issue("/CN=bob"));
        let told = |authorities: &[&Authority], trusted: &[&CertificateDer<'_>]| {
            let authorities = authorities.iter().map(|each| each.certificate().to_vec());
            let authorities: Vec<_> = authorities.collect();
            let trusted = trusted.iter().map(|each| each.to_vec()).collect();
            let provider = Arc::new(provider(&[]));
            let made = verifier(&authorities, trusted, true, &provider);
            let names = made.unwrap().root_hint_subjects().to_vec();
            let name = |name: &DistinguishedName| {
                // What follows is the common name's text.
                let at = name.as_ref().windows(3).position(|id| id == [0x55, 4, 3]);
                String::from_utf8_lossy(&name.as_ref()[at.unwrap() + 5..]).into_owned()
            };
            names.iter().map(name).collect::<Vec<_>>()
        };
        let own = &authority.certificate();
        let pinned = &ann.certificate();
        let all = told(&[&authority], &[own, pinned, &bob.certificate, pinned]);
        assert_eq!(all, ["authority", "ann", "bob"]);
        assert_eq!(told(&[], &[pinned]), ["ann"]);
        assert_eq!(told(&[&authority], &[]), ["authority"]);
        let torn = CertificateDer::from(pinned[..100].to_vec());
        assert_eq!(told(&[&authority], &[&torn]), ["authority"]);
        let long = format!("/O={}", "x".repeat(60)).repeat(60);
        let many: Vec<_> = (0..8).map(|each| format!("{long}/CN={each}")).collect();
        let many: Vec<_> = many
            .iter()
            .map(|each| authority.issue(each).certificate)
            .collect();
        let most: Vec<_> = many[..7].iter().collect();
        assert_eq!(told(&[], &most).len(), 7);
        let more: Vec<_> = many.iter().collect();
        assert!(told(&[], &more).is_empty());
    }

    // If this failed, clients with certificates would take as many threads as there are of them while Python has much to do.
    #[test]
    fn few_threads_at_a_time_ask_whom_certificates_name() {
        const CLIENTS: usize = 12;
        let authority = Authority::new();
        let most = Arc::new(AtomicUsize::new(0));
        let now = AtomicUsize::new(0);
        let mut options = authority.options(ClientAuth::Required);
        // Nobody is told before all have come.
        let (gate, opened) = mpsc::channel::<()>();
        let opened = Mutex::new(opened);
        let top = Arc::clone(&most);
        options.principal = Arc::new(move |_| {
            top.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let _ = opened.lock().recv();
            now.fetch_sub(1, Ordering::SeqCst);
            Ok("ann".to_owned())
        });
        let tls = ListenerTls::new(options).unwrap();
        let client = authority.client(Some(authority.issue("/CN=ann")));
        runtime().block_on(async {
            let (mut served, mut clients) = (Vec::new(), Vec::new());
            for _ in 0..CLIENTS {
                let (server, socket) = sockets().await;
                let tls = tls.clone();
                served.push(tokio::spawn(async move { tls.accept(server).await.unwrap() }));
                let name = ServerName::try_from("localhost").unwrap();
                let connecting = TlsConnector::from(Arc::clone(&client)).connect(name, socket);
                clients.push(timeout(PATIENCE, connecting).await.unwrap().unwrap());
            }
            drop(gate);
            for each in served {
                let each = timeout(PATIENCE, each).await.unwrap().unwrap();
                assert_eq!(each.principal(), "ann");
            }
        });
        let most = most.load(Ordering::SeqCst);
        assert!((1..=4).contains(&most), "{most} at a time");
    }

    // If this failed, a mistake in the settings would show when the first client comes, or not at all.
    #[test]
    fn what_cannot_be_served_is_refused_at_once() {
        let authority = Authority::new();
        let with = |change: &dyn Fn(&mut TlsOptions)| {
            let mut options = authority.options(ClientAuth::None);
            change(&mut options);
            ListenerTls::new(options).unwrap_err().to_string()
        };
        let other: Identity = authority.issue("/CN=other");
        let mismatch = with(&|options| options.key = other.key.secret_der().to_vec());
        assert!(
            mismatch.starts_with("the private key is not that of"),
            "{mismatch}"
        );
        let none = with(&|options| options.certificates.clear());
        assert!(none.contains("certificate"), "{none}");
        let key = with(&|options| options.key = b"no key".to_vec());
        assert!(key.contains("private key"), "{key}");
        let torn = with(&|options| options.certificates[0].truncate(100));
        assert!(torn.contains("certificate"), "{torn}");
        let suites = with(&|options| {
            options.cipher_suites = vec!["TLS_AES_128_GCM_SHA256".to_owned()];
            options.protocols = vec!["TLSv1.2".to_owned()];
        });
        assert!(suites.contains("none of the cipher suites"), "{suites}");
        let version = with(&|options| options.protocols = vec!["SSLv3".to_owned()]);
        assert!(version.contains("SSLv3 is not served"), "{version}");
        assert!(cipher_suites().contains(&"TLS_AES_256_GCM_SHA384".to_owned()));
        assert!(cipher_suites().contains(&"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()));
    }

    // If this failed, an operator's choice of protocols and cipher suites would not hold.
    #[test]
    fn only_what_is_enabled_is_spoken() {
        let authority = Authority::new();
        let mut options = authority.options(ClientAuth::None);
        options.cipher_suites = vec![
            "TLS_AES_128_GCM_SHA256".to_owned(),
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384".to_owned(),
        ];
        runtime().block_on(async {
            for (protocol, suite) in [
                ("TLSv1.3", "TLS13_AES_128_GCM_SHA256"),
                ("TLSv1.2", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
            ] {
                options.protocols = vec![protocol.to_owned()];
                let tls = ListenerTls::new(options.clone()).unwrap();
                let (server, _client) = connect(&tls, authority.client(None)).await;
                let server = server.unwrap();
                let session = server.stream.get_ref().1;
                let spoken = session.negotiated_cipher_suite().unwrap();
                assert_eq!(spoken.suite().as_str(), Some(suite));
            }
        });
    }

    // If this failed, a request whose client is gone would wait to its end, one whose client only went on sending would be
    // dropped, or a peer would take the end of a connection for an attack.
    #[test]
    fn both_ends_are_seen() {
        runtime().block_on(async {
            let (mut tls, mut client) = pair().await;
            client.write_all(b"unread").await.unwrap();
            tls.stream.get_ref().0.readable().await.unwrap();
            let mut closed = std::pin::pin!(tls.closed());
            let first = poll_fn(|context| Poll::Ready(closed.as_mut().poll(context))).await;
            assert!(first.is_pending());
            client.shutdown().await.unwrap();
            timeout(PATIENCE, closed).await.unwrap();

            // Half closed: what was sent before is read, and what is answered arrives.
            let (mut tls, mut client) = pair().await;
            client.write_all(b"last").await.unwrap();
            client.shutdown().await.unwrap();
            let mut read = Vec::new();
            tls.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, b"last");
            tls.write(b"answer", false).await.unwrap();
            let mut answer = [0; 6];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"answer");

            // Without a word in TLS, which is how many clients go.
            let (mut tls, client) = pair().await;
            SockRef::from(client.get_ref().0)
                .shutdown(Shutdown::Write)
                .unwrap();
            assert_eq!(tls.read(&mut [0; 1]).await.unwrap(), 0);

            // The server's: the answer comes, then the end, in good order, whatever was not read.
            let (mut tls, mut client) = pair().await;
            client.write_all(&[7; 100_000]).await.unwrap();
            tls.write(b"bye", false).await.unwrap();
            let leaving = tokio::spawn(async move { tls.finish().await });
            let mut said = Vec::new();
            client.read_to_end(&mut said).await.unwrap();
            assert_eq!(said, b"bye");
            drop(client);
            timeout(PATIENCE, leaving).await.unwrap().unwrap().unwrap();

            let (mut tls, mut client) = pair().await;
            tls.write(b"bye", false).await.unwrap();
            drop(tls);
            let mut said = Vec::new();
            client.read_to_end(&mut said).await.unwrap();
            assert_eq!(said, b"bye");
        });
    }

    // If this failed, a session of TLS 1.2 would end after some millions of answers, the next of which nobody is sent.
    #[test]
    fn no_session_ends_by_the_number_of_its_records() {
        let authority = Authority::new();
        let mut options = authority.options(ClientAuth::None);
        options.protocols = vec!["TLSv1.2".to_owned()];
        runtime().block_on(async {
            // All there are, and those that are chosen.
            for chosen in ["", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"] {
                options.cipher_suites = match chosen {
                    "" => vec![],
                    chosen => vec![chosen.to_owned()],
                };
                let tls = ListenerTls::new(options.clone()).unwrap();
                let server = connect(&tls, authority.client(None)).await.0.unwrap();
                let session = server.stream.get_ref().1;
                let Some(SupportedCipherSuite::Tls12(suite)) = session.negotiated_cipher_suite() else {
                    panic!("no suite of TLS 1.2");
                };
                assert_eq!(suite.common.confidentiality_limit, u64::MAX);
            }
        });
    }

    // If this failed, what precedes a response's records would cost a packet of its own, or be lost.
    #[test]
    fn what_more_follows_waits_for_it() {
        runtime().block_on(async {
            let (mut tls, mut client) = pair().await;
            tls.write(b"head", true).await.unwrap();
            assert_eq!(tls.pending, b"head");
            tls.write(&[1; 3 * RECORD], true).await.unwrap();
            assert!(tls.pending.is_empty());
            tls.write(b"tail", true).await.unwrap();
            tls.write(b"", false).await.unwrap();
            let mut all = vec![0; 4 + 3 * RECORD + 4];
            client.read_exact(&mut all).await.unwrap();
            assert!(all.starts_with(b"head\x01") && all.ends_with(b"\x01tail"));
        });
    }
}
