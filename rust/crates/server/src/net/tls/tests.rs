//! Handshakes, certificates and sessions, with rustls as the client.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::Poll;

use parking_lot::Mutex;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, ServerName, SignatureVerificationAlgorithm, UnixTime,
};
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, DistinguishedName, SupportedCipherSuite};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::{TlsConnector, client};

use super::certificates::{Authority, Identity};
use super::client_certificates::chain;
use super::*;
use crate::net::transport::Transport;

const TIMEOUT: Duration = Duration::from_secs(20);

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
    timeout(TIMEOUT, both).await.unwrap()
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
        Some(Failure::Refused(reason) | Failure::NoPrincipal(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

// If this failed, a client without a certificate would be served like one with, or a trusted client refused.
#[test]
fn certificates_are_asked_for_and_name_principals() {
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
            let anonymous = connect(&tls, authority.client(None)).await.0;
            assert_eq!(anonymous.is_ok(), without, "{client_auth:?}");
            if without {
                assert_eq!(anonymous.unwrap().principal(), ANONYMOUS);
            } else {
                assert!(refused(anonymous).contains("ssl.client.auth=required"));
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
        // As in Java, a certificate in the trust store is trusted, whoever signed it.
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
        let unmapped = connect(&tls, authority.client(Some(ann()))).await.0;
        assert_eq!(refused(unmapped), "no rule applies");
        // A client that does not trust the server has another failure than one that closed the connection.
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

/// A verifier that trusts the authority, and the number of signatures that it has checked.
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

// If this failed, one untrusted peer could block a network thread for seconds with one message, or a client
// would be refused because of the certificates between its own and its authority.
#[test]
fn a_chain_is_checked_once() {
    let authority = Authority::new();
    let (verifier, checks) = counting(&authority);
    let verify = |own: &Identity, others: &[CertificateDer<'static>]| {
        checks.store(0, Ordering::Relaxed);
        let verified = verifier.verify_client_cert(&own.certificate, others, UnixTime::now());
        (verified, checks.load(Ordering::Relaxed))
    };
    // By their names, each may have been issued by any other one and by the authority.
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
    // The longest chain, in any order.
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

// If this failed, Java's and Go's clients would not send trusted certificates, because their issuers' names
// are missing, or would get more names than they read.
#[test]
fn clients_get_the_names_of_all_trusted_certificates() {
    let authority = Authority::new();
    let (ann, bob) = (Authority::named("ann", 0), authority.issue("/CN=bob"));
    let names = |authorities: &[&Authority], trusted: &[&CertificateDer<'_>]| {
        let authorities = authorities.iter().map(|each| each.certificate().to_vec());
        let authorities: Vec<_> = authorities.collect();
        let trusted = trusted.iter().map(|each| each.to_vec()).collect();
        let provider = Arc::new(provider(&[]));
        let made = verifier(&authorities, trusted, true, &provider);
        let names = made.unwrap().root_hint_subjects().to_vec();
        let name = |name: &DistinguishedName| {
            // The common name's text follows.
            let at = name.as_ref().windows(3).position(|id| id == [0x55, 4, 3]);
            String::from_utf8_lossy(&name.as_ref()[at.unwrap() + 5..]).into_owned()
        };
        names.iter().map(name).collect::<Vec<_>>()
    };
    let own = &authority.certificate();
    let pinned = &ann.certificate();
    let all = names(&[&authority], &[own, pinned, &bob.certificate, pinned]);
    assert_eq!(all, ["authority", "ann", "bob"]);
    assert_eq!(names(&[], &[pinned]), ["ann"]);
    assert_eq!(names(&[&authority], &[]), ["authority"]);
    let torn = CertificateDer::from(pinned[..100].to_vec());
    assert_eq!(names(&[&authority], &[&torn]), ["authority"]);
    let long = format!("/O={}", "x".repeat(60)).repeat(60);
    let many: Vec<_> = (0..8).map(|each| format!("{long}/CN={each}")).collect();
    let many: Vec<_> = many
        .iter()
        .map(|each| authority.issue(each).certificate)
        .collect();
    let most: Vec<_> = many[..7].iter().collect();
    assert_eq!(names(&[], &most).len(), 7);
    let more: Vec<_> = many.iter().collect();
    assert!(names(&[], &more).is_empty());
}

// If this failed, clients with certificates would take a thread each while Python is busy.
#[test]
fn few_threads_call_for_principals_at_the_same_time() {
    const CLIENTS: usize = 12;
    let authority = Authority::new();
    let most = Arc::new(AtomicUsize::new(0));
    let now = AtomicUsize::new(0);
    let mut options = authority.options(ClientAuth::Required);
    // No call returns before all clients have come.
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
            clients.push(timeout(TIMEOUT, connecting).await.unwrap().unwrap());
        }
        drop(gate);
        for each in served {
            let each = timeout(TIMEOUT, each).await.unwrap().unwrap();
            assert_eq!(each.principal(), "ann");
        }
    });
    let most = most.load(Ordering::SeqCst);
    assert!((1..=4).contains(&most), "{most} at a time");
}

// If this failed, a mistake in the settings would show with the first client, or never.
#[test]
fn unusable_options_are_refused_at_once() {
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
    assert!(version.contains("SSLv3 is not supported"), "{version}");
    assert!(cipher_suites().contains(&"TLS_AES_256_GCM_SHA384".to_owned()));
    assert!(cipher_suites().contains(&"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()));
}

// If this failed, an operator's choice of protocols and cipher suites would have no effect.
#[test]
fn only_enabled_protocols_and_suites_are_used() {
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

// If this failed, a request whose client is gone would wait to its end, one whose client keeps sending would
// be dropped, or a peer would take the end of a connection for an attack.
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
        timeout(TIMEOUT, closed).await.unwrap();

        // Half closed: earlier bytes are read, and the response arrives.
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

        // Without a TLS alert, as many clients close.
        let (mut tls, client) = pair().await;
        SockRef::from(client.get_ref().0)
            .shutdown(Shutdown::Write)
            .unwrap();
        assert_eq!(tls.read(&mut [0; 1]).await.unwrap(), 0);

        // The server's end: the response comes, then the alert, whatever was not read.
        let (mut tls, mut client) = pair().await;
        client.write_all(&[7; 100_000]).await.unwrap();
        tls.write(b"bye", false).await.unwrap();
        let leaving = tokio::spawn(async move { tls.finish().await });
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"bye");
        drop(client);
        timeout(TIMEOUT, leaving).await.unwrap().unwrap().unwrap();

        let (mut tls, mut client) = pair().await;
        tls.write(b"bye", false).await.unwrap();
        drop(tls);
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"bye");
    });
}

// If this failed, a TLS 1.2 session would end after some millions of responses, and later ones would be lost.
#[test]
fn no_session_ends_by_the_number_of_its_records() {
    let authority = Authority::new();
    let mut options = authority.options(ClientAuth::None);
    options.protocols = vec!["TLSv1.2".to_owned()];
    runtime().block_on(async {
        // All suites, and a chosen one.
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

// If this failed, the bytes before a response's records would cost a packet of their own, or be lost.
#[test]
fn bytes_wait_for_those_that_follow() {
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
