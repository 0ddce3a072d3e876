//! The memory of connections: idle ones, and those over TLS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use logcore_server::ListenerTls;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::certificates::Authority;
use super::common::{Client, Fetch, TestServer, batch, partition, produce, request};
use super::{Allocated, ClientAuth, LIMITS, MEGABYTE, ONE_AT_A_TIME, TIMEOUT, check_served, limit_files};

/// The port that the child process connects to. Without it, the child's test does nothing.
const PORT: &str = "LOGCORE_TEST_PORT";
const IDLE_CONNECTIONS: usize = 10_000;

/// The child process of [`idle_connections_are_cheap`]: both ends of a connection need a descriptor.
#[test]
fn child_that_opens_connections() {
    let Ok(port) = std::env::var(PORT) else {
        return;
    };
    limit_files(IDLE_CONNECTIONS as u64 + 100);
    let port: u16 = port.parse().unwrap();
    let mut streams = Vec::new();
    for _ in 0..IDLE_CONNECTIONS {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // ApiVersions, so that the connection was served before it is idle.
        stream
            .write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff])
            .unwrap();
        let mut size = [0; 4];
        stream.read_exact(&mut size).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(size) as usize];
        stream.read_exact(&mut answer).unwrap();
        streams.push(stream);
    }
    println!("\nconnected");
    // Until the test closes the pipe.
    let _ = std::io::stdin().read(&mut [0; 1]);
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse::<usize>().unwrap() * 1024
}

// If this failed, idle clients would use the memory that active ones need.
#[test]
fn idle_connections_are_cheap() {
    let _alone = ONE_AT_A_TIME.lock();
    // The server reserves an eighth of the limit, up to 1,024, for logs.
    limit_files(IDLE_CONNECTIONS as u64 + 1_200);
    let server = TestServer::start(&[]);
    server.client().call(18, 0, request(18));
    let (allocated, resident) = (Allocated::since_now(), resident_bytes());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "connections::child_that_opens_connections",
            "--nocapture",
        ])
        .env(PORT, server.port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "connected"));
    let each = allocated.now() / IDLE_CONNECTIONS;
    let resident_each = resident_bytes().saturating_sub(resident) / IDLE_CONNECTIONS;
    eprintln!("an idle connection uses {each} bytes, {resident_each} of them resident");
    check_served(&server);
    assert!(each <= 20 * 1024, "{each}");
    assert!(resident_each <= 20 * 1024, "{resident_each}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    server.server.create_partition(&partition("more", 0)).unwrap();
}

const SESSIONS: usize = 100;

/// Waits without requests, which would allocate memory.
fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < TIMEOUT, "timed out waiting for {what}");
        std::thread::yield_now();
    }
}

/// The socket of a client over TLS that was served once and sent `fetch`. The client's own session is gone,
/// so only the server's memory is counted.
fn connect(server: &TestServer, config: &std::sync::Arc<ClientConfig>, fetch: &Fetch) -> TcpStream {
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(std::sync::Arc::clone(config), name).unwrap();
    let socket = TcpStream::connect(("127.0.0.1", server.secure_port)).unwrap();
    let mut client = Client::over(StreamOwned::new(session, socket));
    client.call(18, 0, request(18));
    if !fetch.partitions.is_empty() {
        client.send(1, fetch.version, fetch.message());
    }
    client.stream.sock
}

// If this failed, clients over TLS that send half a handshake, or do not read, would use the memory that
// others need.
#[test]
fn tls_sessions_are_cheap() {
    let _alone = ONE_AT_A_TIME.lock();
    let authority = Authority::new();
    let tls = ListenerTls::new(authority.options(ClientAuth::None)).unwrap();
    // The kernel's buffers hold little of a response.
    let limits = [&LIMITS[..], &[("socket.send.buffer.bytes", "8192")]].concat();
    let server = TestServer::start_secured(&limits, tls);
    let config = authority.client(None);
    let nothing = Fetch {
        partitions: Vec::new(),
        ..Fetch::default()
    };
    drop(connect(&server, &config, &nothing));

    // Most of the longest ClientHello, in four TLS records.
    let length = 60_000;
    let mut hello = vec![1, 0, 0xff, 0xf0];
    hello.resize(length, 0);
    let records = hello.chunks(16 * 1024).flat_map(|part| {
        let size = (part.len() as u16).to_be_bytes();
        [&[0x16, 3, 1], &size[..], part].concat()
    });
    let records: Vec<u8> = records.collect();
    let allocated = Allocated::since_now();
    let handshakes = [(); SESSIONS].map(|()| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.secure_port)).unwrap();
        stream.write_all(&records).unwrap();
        stream
    });
    wait_until("the handshakes' bytes", || allocated.now() >= SESSIONS * length);
    let each = allocated.peak() / SESSIONS;
    eprintln!("a handshake uses at most {each} bytes");
    assert!(each <= 100 * 1024, "{each}");
    check_served(&server);
    drop(handshakes);
    wait_until("the end of all connections", || allocated.now() < MEGABYTE);

    let allocated = Allocated::since_now();
    let idle = [(); SESSIONS].map(|()| connect(&server, &config, &nothing));
    let each = allocated.now() / SESSIONS;
    eprintln!("an idle session uses {each} bytes");
    assert!(each <= 40 * 1024, "{each}");
    drop(idle);

    let value = vec![b'v'; 1_900_000];
    for _ in 0..4 {
        let produce = produce("t", -1, &[(0, &batch(&[&value]))]);
        server.client().call(0, 9, produce);
    }
    let sent = || server.gauge("network_bytes_out");
    // An unread short response stays in a session's buffer for as long as a long one.
    let small = vec![b'v'; 240_000];
    let produce = produce("t", -1, &[(1, &batch(&[&small]))]);
    server.client().call(0, 9, produce);
    let responses = [
        (0, 4 * value.len(), SESSIONS, 640, 100),
        (1, small.len(), 3 * SESSIONS, 250, 70),
    ];
    for (partition, size, sessions, large, other) in responses {
        let (before, allocated) = (sent(), Allocated::since_now());
        let all = Fetch {
            partitions: vec![partition],
            partition_bytes_max: 20 << 20,
            ..Fetch::default()
        };
        let unread = (0..sessions).map(|_| connect(&server, &config, &all));
        let unread: Vec<_> = unread.collect();
        wait_until("all responses", || sent() - before >= (sessions * size) as u64);
        check_served(&server);
        let peak = allocated.peak();
        eprintln!("{sessions} unread responses use at most {peak} bytes");
        assert!(peak <= (64 * large + (sessions - 64) * other) * 1024, "{peak}");
        drop(unread);
        wait_until("the end of all connections", || allocated.now() < MEGABYTE);
    }
}
