//! Peers that are slow, or gone without a word: they cost nobody else anything, and in the end they are missed.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use common::{Client, Fetch, TestServer, batch, fetched, int, produce, produced};

/// More than there are threads.
const SLOW: usize = 40;

/// Ends a connection of which the other side hears nothing. Where that needs a right this process lacks, the connection is
/// left open and silent: `false`.
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
        eprintln!("a peer cannot vanish without a word here (CAP_NET_ADMIN): it stays silent");
        forget(client.stream);
        return false;
    }
    // A socket under repair is closed without FIN or RST.
    true
}

/// Open until the process ends.
fn forget(stream: TcpStream) {
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

// If this failed, a few clients behind bad lines would keep all others from being served, or would never be themselves.
#[test]
fn a_byte_at_a_time_holds_nobody_up() {
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
    for place in 0..length {
        for (client, frame) in &mut slow {
            client.send_raw(&frame[place..=place]);
        }
        if place + 1 < length {
            assert_eq!(server.server.offsets("t", 0).unwrap().log_end, 0);
            check_served(&mut honest, place as i64);
        }
    }
    let answers = slow.iter_mut().map(|(client, _)| client.receive(0, 9).1);
    let mut offsets: Vec<_> = answers
        .map(|answer| int(&produced(&answer), "base_offset"))
        .collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..SLOW as i64).collect::<Vec<_>>());
}

// If this failed, hosts that lost power or their network would hold connections, and what they asked for, for ever.
#[test]
fn peers_that_vanish_are_missed() {
    let server = TestServer::start(&[("connections.max.idle.ms", "1000")]);
    let mut idle = server.client();
    idle.call(18, 0, common::request(18));
    let mut halfway = server.client();
    let frame = halfway.frame(0, 9, produce("t", 1, &[(0, &batch(&[b"half"]))]));
    halfway.send_raw(&frame[..frame.len() / 2]);
    let gone = vanish(idle);
    vanish(halfway);
    if gone {
        let mut polling = server.client();
        let poll = Fetch {
            wait_ms: i32::MAX,
            ..Fetch::default()
        };
        polling.send(1, 12, poll.message());
        server.wait_for_gauge("delayed_fetches", 1);
        vanish(polling);
    }
    // The one that asks is left.
    server.wait_for_gauge("connections", 1);
    server.wait_for_gauge("delayed_fetches", 0);
    check_served(&mut server.client(), 0);
}
