//! A listener with TLS: its responses, client certificates, and clients that do not finish the handshake.
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use certificates::Authority;
use common::{Client, Fetch, TIMEOUT, TestServer, batch, fetched, int, produce, produced, records, request};
use logcore_server::{ClientAuth, ListenerTls, TlsOptions};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

type Secured = Client<StreamOwned<ClientConnection, TcpStream>>;

fn start(authority: &Authority, client_auth: ClientAuth, config: &[(&str, &str)]) -> TestServer {
    let tls = ListenerTls::new(authority.options(client_auth)).unwrap();
    TestServer::start_secured(config, tls)
}

fn socket(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn client(server: &TestServer, config: Arc<ClientConfig>) -> Secured {
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(config, name).unwrap();
    Client::over(StreamOwned::new(session, socket(server.secure_port)))
}

/// Reads until the server closes or resets the connection.
fn read_to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut received = Vec::new();
    if let Err(error) = stream.read_to_end(&mut received) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    received
}

/// Returns once so many connections were accepted.
fn wait_for_accepted(server: &TestServer, count: u64) {
    let begun = Instant::now();
    while server.gauge("connections_accepted") != count {
        assert!(begun.elapsed() < TIMEOUT);
        std::thread::yield_now();
    }
}

/// The numbers of successful and failed authentications on the listener with TLS.
fn authentications(server: &TestServer) -> (u64, u64) {
    let all = server.server.measurements().authentications;
    let of_tls = all.into_iter().find(|(name, ..)| name == "SSL").unwrap();
    (of_tls.1, of_tls.2)
}

// If this failed, records would change on their way through TLS.
#[test]
fn records_are_the_same_over_tls() {
    let authority = Authority::new();
    let server = start(&authority, ClientAuth::None, &[]);
    let mut client = client(&server, authority.client(None));
    let value = vec![b'v'; 900_000];
    let batch = batch(&[b"small", &value]);
    for _ in 0..4 {
        let body = client.call(0, 9, produce("t", -1, &[(0, &batch)]));
        assert_eq!(int(&produced(&body), "error_code"), 0);
    }
    let fetch = Fetch::default();
    let secured = records(&fetched(&fetch.call(&mut client))[0]);
    let plain = records(&fetched(&fetch.call(&mut server.client()))[0]);
    assert!(secured.len() > 900_000);
    assert!(secured == plain);
    // Several requests sent at once are answered in their order.
    let frames = [(); 20].map(|()| client.frame(18, 0, request(18))).concat();
    client.send_raw(&frames);
    for number in 0..20 {
        assert_eq!(client.receive(18, 0).0, 100 + 5 + 1 + number);
    }
    assert_eq!(authentications(&server), (1, 0));
    // A server that stops closes the TLS session, too.
    let dir = server.stop();
    assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0);
    drop(dir);
}

// If this failed, clients without TLS could stop others, or the log would not say why a client failed.
#[test]
fn a_failed_handshake_closes_its_own_connection() {
    let authority = Authority::new();
    let server = start(&authority, ClientAuth::Required, &[]);
    let own = || authority.client(Some(authority.issue("/CN=ann")));
    let request_of_plaintext = server.client().frame(18, 0, request(18));
    let mut hello = vec![0x16, 3, 1, 0x40, 0];
    hello.resize(2_000, 0xff);
    let garbage: [&[u8]; 4] = [&request_of_plaintext, b"GET / HTTP/1.1\r\n\r\n", &[0; 64], &hello];
    for sent in garbage {
        let mut stream = socket(server.secure_port);
        stream.write_all(sent).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let received = read_to_end(&mut stream);
        assert!(
            received.is_empty() || received[0] == 0x15,
            "more than an alert: {received:?}"
        );
    }
    let lines = server.wait_for_line("its security.protocol must be SSL");
    assert!(lines.contains("the TLS handshake failed"), "{lines}");
    let mut anonymous = client(&server, authority.client(None));
    let frame = anonymous.frame(18, 0, request(18));
    // The alert may come before or after the client has sent its request.
    let _ = anonymous.stream.write_all(&frame);
    let alert = anonymous.stream.read(&mut [0; 1]).unwrap_err();
    assert!(alert.to_string().contains("CertificateRequired"), "{alert}");
    server.wait_for_line("ssl.client.auth=required");
    client(&server, own()).call(18, 0, request(18));
    // One of the five may have disconnected before the server refused it.
    let (authenticated, failed) = authentications(&server);
    assert_eq!(authenticated, 1);
    assert!((4..=5).contains(&failed), "{failed}");
    // A client with TLS on a listener without has its own log line.
    let mut plain = socket(server.port);
    let name = ServerName::try_from("localhost").unwrap();
    let mut session = ClientConnection::new(own(), name).unwrap();
    session.write_tls(&mut plain).unwrap();
    assert!(read_to_end(&mut plain).is_empty());
    server.wait_for_line("TLS or HTTP, perhaps");
}

// If this failed, clients that never finish the TLS handshake could open connections without limit, or keep
// them.
#[test]
fn a_silent_handshake_counts_as_a_connection_and_times_out() {
    let authority = Authority::new();
    let limits = [
        ("max.connections.per.ip", "3"),
        ("connections.max.idle.ms", "5000"),
    ];
    let server = start(&authority, ClientAuth::None, &limits);
    let mut silent = [(); 3].map(|()| socket(server.secure_port));
    silent[0].write_all(b"\x16\x03\x01").unwrap();
    assert!(read_to_end(&mut socket(server.secure_port)).is_empty());
    let lines = server.wait_for_line("max.connections.per.ip");
    let refused = |line: &&str| line.contains("max.connections.per.ip");
    let line = lines.lines().find(refused).unwrap();
    assert!(!line.contains("handshake"), "{line}");
    for stream in &mut silent {
        assert!(read_to_end(stream).is_empty());
    }
    server.wait_for_line("the TLS handshake did not end within 5 s");
    // The closed connections no longer count.
    client(&server, authority.client(None)).call(18, 0, request(18));
    assert_eq!(authentications(&server), (1, 0));
}

// If this failed, clients in the TLS handshake could keep brokers from connecting to each other.
#[test]
fn a_handshake_is_closed_for_a_broker() {
    let authority = Authority::new();
    let server = start(&authority, ClientAuth::None, &[("max.connections", "2")]);
    let mut silent = [(); 2].map(|()| socket(server.secure_port));
    wait_for_accepted(&server, 2);
    // The brokers' listener accepts one connection in any case.
    server.client().call(18, 0, request(18));
    server.wait_for_line("in the TLS handshake: there are more than max.connections");
    assert!(read_to_end(&mut silent[0]).is_empty(), "the oldest is closed");
}

// If this failed, a server that stops would wait for clients that never finish their handshake.
#[test]
fn a_stop_does_not_wait_for_handshakes() {
    let authority = Authority::new();
    let server = start(&authority, ClientAuth::None, &[]);
    let mut silent = socket(server.secure_port);
    silent.write_all(b"\x16\x03").unwrap();
    wait_for_accepted(&server, 1);
    let begun = Instant::now();
    drop(server.stop());
    assert!(begun.elapsed() < TIMEOUT);
    assert!(read_to_end(&mut silent).is_empty());
}
