//! Clients that are slow, or vanish without closing their connection: others are served, and the server
//! closes the connection.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use common::{Client, Fetch, TestServer, batch, fetched, int, produce, produced};

/// More clients than the server has threads.
const SLOW: usize = 40;

/// Closes a connection without sending anything to the server. Without the capability for that, the
/// connection stays open and silent, and this returns false.
fn vanish(client: Client) -> bool {
    let (on, size) = (1i32, size_of::<i32>() as libc::socklen_t);
    let fd = client.stream.as_raw_fd();
    // SAFETY: the descriptor is open, and the option is an int that outlives the call.
    let set = unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR,
            (&raw const on).cast(),
            size,
        )
    };
    if set != 0 {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        eprintln!("no CAP_NET_ADMIN to close a connection silently: it stays open");
        leak(client.stream);
        return false;
    }
    // A socket under repair is closed without FIN or RST.
    true
}

/// Leaves the connection open until the process ends.
fn leak(stream: TcpStream) {
    let _kept = std::os::fd::IntoRawFd::into_raw_fd(stream);
}

fn check_served(client: &mut Client, expected: i64) {
    let answer = client.call(0, 9, produce("t", 1, &[(1, &batch(&[b"honest"]))]));
    assert_eq!(int(&produced(&answer), "base_offset"), expected);
    let fetch = Fetch {
        partitions: vec![1],
        offset: expected,
        ..Fetch::default()
    };
    let part = &fetched(&fetch.call(client))[0];
    assert_eq!(int(part, "high_watermark"), expected + 1);
}

// If this failed, a few clients with slow networks would stop all others, or would not be served themselves.
#[test]
fn slow_clients_stop_no_others() {
    let server = TestServer::start(&[]);
    let mut honest = server.client();
    let mut slow: Vec<_> = (0..SLOW)
        .map(|_| {
            let mut client = server.client();
            client.stream.set_nodelay(true).unwrap();
            let frame = client.frame(0, 9, produce("t", 1, &[(0, &batch(&[b"slow"]))]));
            (client, frame)
        })
        .collect();
    let length = slow[0].1.len();
    for index in 0..length {
        for (client, frame) in &mut slow {
            client.send_raw(&frame[index..=index]);
        }
        if index + 1 < length {
            assert_eq!(server.server.offsets("t", 0).unwrap().log_end, 0);
            check_served(&mut honest, index as i64);
        }
    }
    let answers = slow.iter_mut().map(|(client, _)| client.receive(0, 9).1);
    let mut offsets: Vec<_> = answers
        .map(|answer| int(&produced(&answer), "base_offset"))
        .collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..SLOW as i64).collect::<Vec<_>>());
}

// If this failed, hosts that lost power or their network would keep their connections and requests for ever.
#[test]
fn connections_of_vanished_clients_are_closed() {
    let server = TestServer::start(&[("connections.max.idle.ms", "1000")]);
    let mut idle = server.client();
    idle.call(18, 0, common::request(18));
    let mut partial = server.client();
    let frame = partial.frame(0, 9, produce("t", 1, &[(0, &batch(&[b"half"]))]));
    partial.send_raw(&frame[..frame.len() / 2]);
    let vanished = vanish(idle);
    vanish(partial);
    if vanished {
        let mut polling = server.client();
        let poll = Fetch {
            wait_ms: i32::MAX,
            ..Fetch::default()
        };
        polling.send(1, 12, poll.message());
        server.wait_for_gauge("delayed_fetches", 1);
        vanish(polling);
    }
    // The connection of `wait_for_gauge` is left.
    server.wait_for_gauge("connections", 1);
    server.wait_for_gauge("delayed_fetches", 0);
    check_served(&mut server.client(), 0);
}
