//! Connections: idle ones, and those over TLS whose clients do not read.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use logcore_server::ListenerTls;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::certificates::Authority;
use super::common::{Client, Fetch, TestServer, batch, partition, produce, request};
use super::{ClientAuth, LIMITS, MEGABYTE, ONE_AT_A_TIME, PATIENCE, Watch, check_served, limit_files};

/// The port the helper process connects to; without it, the test that is the helper does nothing.
const PORT: &str = "LOGCORE_TEST_PORT";
const IDLE_CONNECTIONS: usize = 10_000;

/// Connects for [`idle_connections_are_cheap`], which starts it as a process of its own: both ends need a descriptor.
#[test]
fn holds_connections() {
    let Ok(port) = std::env::var(PORT) else {
        return;
    };
    limit_files(IDLE_CONNECTIONS as u64 + 100);
    let port: u16 = port.parse().unwrap();
    let mut held = Vec::new();
    for _ in 0..IDLE_CONNECTIONS {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // ApiVersions, as every client begins, so that it is idle after it was served.
        stream
            .write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff])
            .unwrap();
        let mut size = [0; 4];
        stream.read_exact(&mut size).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(size) as usize];
        stream.read_exact(&mut answer).unwrap();
        held.push(stream);
    }
    println!("\nconnected");
    // Until the test has seen enough.
    let _ = std::io::stdin().read(&mut [0; 1]);
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse::<usize>().unwrap() * 1024
}

// If this failed, clients that do nothing would cost what those that do something need.
#[test]
fn idle_connections_are_cheap() {
    let _alone = ONE_AT_A_TIME.lock();
    // The server keeps an eighth of the limit, up to 1,024, for logs.
    limit_files(IDLE_CONNECTIONS as u64 + 1_200);
    let server = TestServer::start(&[]);
    server.client().call(18, 0, request(18));
    let (watch, resident) = (Watch::start(), resident_bytes());
    let mut helper = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "connections::holds_connections", "--nocapture"])
        .env(PORT, server.port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(helper.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "connected"));
    let each = watch.now() / IDLE_CONNECTIONS;
    let resident_each = resident_bytes().saturating_sub(resident) / IDLE_CONNECTIONS;
    eprintln!("an idle connection has {each} bytes, {resident_each} of them resident");
    check_served(&server);
    assert!(each <= 20 * 1024, "{each}");
    assert!(resident_each <= 20 * 1024, "{resident_each}");
    drop(helper.stdin.take());
    assert!(helper.wait().unwrap().success());
    server.server.create_partition(&partition("more", 0)).unwrap();
}

const SESSIONS: usize = 100;

/// Waits until it is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it does not come to {what}");
        std::thread::yield_now();
    }
}

/// A client that has been served once, and its session's memory is given back.
fn secured(server: &TestServer, config: &std::sync::Arc<ClientConfig>, asks: &Fetch) -> TcpStream {
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(std::sync::Arc::clone(config), name).unwrap();
    let socket = TcpStream::connect(("127.0.0.1", server.secure_port)).unwrap();
    let mut client = Client::over(StreamOwned::new(session, socket));
    client.call(18, 0, request(18));
    if !asks.partitions.is_empty() {
        client.send(1, asks.version, asks.message());
    }
    client.stream.sock
}

// If this failed, whoever comes over TLS and does not go on, or does not read, would have the memory of those who do.
#[test]
fn sessions_are_cheap_whatever_their_peers_do() {
    let _alone = ONE_AT_A_TIME.lock();
    let authority = Authority::new();
    let tls = ListenerTls::new(authority.options(ClientAuth::None)).unwrap();
    // Little of an answer is the kernel's.
    let limits = [&LIMITS[..], &[("socket.send.buffer.bytes", "8192")]].concat();
    let server = TestServer::start_secured(&limits, tls);
    let config = authority.client(None);
    let nothing = Fetch {
        partitions: Vec::new(),
        ..Fetch::default()
    };
    drop(secured(&server, &config, &nothing));

    // Half of a greeting as long as one may be, in three records and the beginning of another.
    let length = 60_000;
    let mut hello = vec![1, 0, 0xff, 0xf0];
    hello.resize(length, 0);
    let records = hello.chunks(16 * 1024).flat_map(|part| {
        let size = (part.len() as u16).to_be_bytes();
        [&[0x16, 3, 1], &size[..], part].concat()
    });
    let records: Vec<u8> = records.collect();
    let watch = Watch::start();
    let greeting = [(); SESSIONS].map(|()| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.secure_port)).unwrap();
        stream.write_all(&records).unwrap();
        stream
    });
    until("all that was said", || watch.now() >= SESSIONS * length);
    let each = watch.peak() / SESSIONS;
    eprintln!("a handshake has at most {each} bytes");
    assert!(each <= 100 * 1024, "{each}");
    check_served(&server);
    drop(greeting);
    until("the end of all", || watch.now() < MEGABYTE);

    let watch = Watch::start();
    let idle = [(); SESSIONS].map(|()| secured(&server, &config, &nothing));
    let each = watch.now() / SESSIONS;
    eprintln!("an idle session has {each} bytes");
    assert!(each <= 40 * 1024, "{each}");
    drop(idle);

    let value = vec![b'v'; 1_900_000];
    for _ in 0..4 {
        let produce = produce("t", -1, &[(0, &batch(&[&value]))]);
        server.client().call(0, 9, produce);
    }
    let sent = || server.gauge("network_bytes_out");
    // What a large buffer takes at once leaves it no sooner than what it does not.
    let small = vec![b'v'; 240_000];
    let produce = produce("t", -1, &[(1, &batch(&[&small]))]);
    server.client().call(0, 9, produce);
    let answers = [
        (0, 4 * value.len(), SESSIONS, 640, 100),
        (1, small.len(), 3 * SESSIONS, 250, 70),
    ];
    for (partition, size, sessions, large, other) in answers {
        let (before, watch) = (sent(), Watch::start());
        let all = Fetch {
            partitions: vec![partition],
            partition_bytes_max: 20 << 20,
            ..Fetch::default()
        };
        let unread = (0..sessions).map(|_| secured(&server, &config, &all));
        let unread: Vec<_> = unread.collect();
        until("all answers", || sent() - before >= (sessions * size) as u64);
        check_served(&server);
        let peak = watch.peak();
        eprintln!("{sessions} answers that nobody reads have at most {peak} bytes");
        assert!(peak <= (64 * large + (sessions - 64) * other) * 1024, "{peak}");
        drop(unread);
        until("the end of all", || watch.now() < MEGABYTE);
    }
}
