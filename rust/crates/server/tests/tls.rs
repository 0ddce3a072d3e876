//! A listener with TLS: what it serves, whom it lets in, and what those cost who do not come in.
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

/// All that is still sent; a reset is an end, too.
fn rest(stream: &mut impl Read) -> Vec<u8> {
    let mut rest = Vec::new();
    if let Err(error) = stream.read_to_end(&mut rest) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    rest
}

/// Returns once so many connections were accepted.
fn accepted(server: &TestServer, count: u64) {
    let begun = Instant::now();
    while server.gauge("connections_accepted") != count {
        assert!(begun.elapsed() < TIMEOUT);
        std::thread::yield_now();
    }
}

fn authentications(server: &TestServer) -> (u64, u64) {
    let all = server.server.measurements().authentications;
    let of_tls = all.into_iter().find(|(name, ..)| name == "SSL").unwrap();
    (of_tls.1, of_tls.2)
}

// If this failed, what clients send or are sent over TLS would not be what is in the log.
#[test]
fn records_go_in_and_out_as_they_are() {
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
    // Requests sent ahead are answered in their order.
    let frames = [(); 20].map(|()| client.frame(18, 0, request(18))).concat();
    client.send_raw(&frames);
    for number in 0..20 {
        assert_eq!(client.receive(18, 0).0, 100 + 5 + 1 + number);
    }
    assert_eq!(authentications(&server), (1, 0));
    // The end of the server is told in TLS.
    let dir = server.stop();
    assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0);
    drop(dir);
}

// If this failed, somebody who does not speak TLS could keep others out, or an operator would not learn why a client fails.
#[test]
fn what_is_no_tls_costs_its_sender_a_connection() {
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
        let said = rest(&mut stream);
        assert!(said.is_empty() || said[0] == 0x15, "an alert at most: {said:?}");
    }
    let said = server.wait_for_line("its security.protocol must be SSL");
    assert!(said.contains("the TLS handshake failed"), "{said}");
    let mut nobody = client(&server, authority.client(None));
    let frame = nobody.frame(18, 0, request(18));
    // The client may be told before or after it has sent its request.
    let _ = nobody.stream.write_all(&frame);
    let told = nobody.stream.read(&mut [0; 1]).unwrap_err();
    assert!(told.to_string().contains("CertificateRequired"), "{told}");
    server.wait_for_line("ssl.client.auth=required");
    client(&server, own()).call(18, 0, request(18));
    // Who went before it was refused was not.
    let (authenticated, failed) = authentications(&server);
    assert_eq!(authenticated, 1);
    assert!((4..=5).contains(&failed), "{failed}");
    // A client that speaks TLS where none is spoken is told apart in the log.
    let mut lost = socket(server.port);
    let name = ServerName::try_from("localhost").unwrap();
    let mut session = ClientConnection::new(own(), name).unwrap();
    session.write_tls(&mut lost).unwrap();
    assert!(rest(&mut lost).is_empty());
    server.wait_for_line("TLS or HTTP, perhaps");
}

// If this failed, whoever says nothing in TLS's handshake would have connections beyond all limits, or for ever.
#[test]
fn a_silent_handshake_has_a_place_and_its_time() {
    let authority = Authority::new();
    let limits = [
        ("max.connections.per.ip", "3"),
        ("connections.max.idle.ms", "5000"),
    ];
    let server = start(&authority, ClientAuth::None, &limits);
    let mut silent = [(); 3].map(|()| socket(server.secure_port));
    silent[0].write_all(b"\x16\x03\x01").unwrap();
    assert!(rest(&mut socket(server.secure_port)).is_empty());
    let said = server.wait_for_line("max.connections.per.ip");
    let refused = |line: &&str| line.contains("max.connections.per.ip");
    let said = said.lines().find(refused).unwrap();
    assert!(!said.contains("handshake"), "{said}");
    for stream in &mut silent {
        assert!(rest(stream).is_empty());
    }
    server.wait_for_line("the TLS handshake did not end within 5 s");
    // Those who are gone have left their places.
    client(&server, authority.client(None)).call(18, 0, request(18));
    assert_eq!(authentications(&server), (1, 0));
}

// If this failed, those in TLS's handshake could keep brokers from each other.
#[test]
fn a_handshake_gives_way() {
    let authority = Authority::new();
    let server = start(&authority, ClientAuth::None, &[("max.connections", "2")]);
    let mut silent = [(); 2].map(|()| socket(server.secure_port));
    accepted(&server, 2);
    // Brokers' listener has room for one more, whoever else has come.
    server.client().call(18, 0, request(18));
    server.wait_for_line("in the TLS handshake: there are more than max.connections");
    assert!(rest(&mut silent[0]).is_empty(), "the oldest goes");
}

// If this failed, a server that stops would wait for those who never finish their handshake.
#[test]
fn nobody_waits_for_a_handshake_at_the_end() {
    let authority = Authority::new();
    let server = start(&authority, ClientAuth::None, &[]);
    let mut silent = socket(server.secure_port);
    silent.write_all(b"\x16\x03").unwrap();
    accepted(&server, 1);
    let begun = Instant::now();
    drop(server.stop());
    assert!(begun.elapsed() < TIMEOUT);
    assert!(rest(&mut silent).is_empty());
}
