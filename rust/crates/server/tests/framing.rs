//! Frames: bytes that are not a request close their own connection only, and responses keep their order.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::collections::HashSet;
use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use common::{Fetch, TestServer, batch, fetched, int, produce, produced, request};
use logcore_server::{Features, apis};

const TIMEOUT: Duration = Duration::from_secs(20);

// If this failed, a client with bad frames could stop the broker, disturb others, or fill the broker's log.
#[test]
fn bad_frames_close_their_own_connection_only() {
    let server = TestServer::start(&[
        ("socket.request.max.bytes", "1000000"),
        ("slow.request.log.ms", "-1"),
    ]);
    let mut other = server.client();
    other.call(0, 9, produce("t", 1, &[(0, &batch(&[b"kept"]))]));
    let http = b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n".as_slice();
    let bad: [(&[u8], &str); 7] = [
        (&(-1i32).to_be_bytes(), "is negative"),
        (&1_000_001i32.to_be_bytes(), "socket.request.max.bytes"),
        (http, "socket.request.max.bytes"),
        (&[0, 0, 0, 3, 0, 0, 0], "not a request"),
        (&[0, 0, 0, 0], "not a request"),
        // An unknown API key, and an unknown version of a known API.
        (
            &[0, 0, 0, 10, 0x7f, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff],
            "not a request",
        ),
        (
            &[0, 0, 0, 11, 0, 0, 0, 99, 0, 0, 0, 1, 0xff, 0xff, 0],
            "API 0 version 99",
        ),
    ];
    let mut logged = HashSet::new();
    for (bytes, reason) in bad {
        let mut bad_client = server.client();
        bad_client.send_raw(bytes);
        assert!(bad_client.is_closed(), "{bytes:?}");
        if logged.insert(reason) {
            let lines = server.wait_for_line(reason);
            assert_eq!(lines.lines().count(), 1, "one line for {bytes:?}: {lines}");
        } else {
            let again = server.server.take_log_lines();
            assert!(again.is_empty(), "logged within a minute: {again:?}");
        }
        let response = Fetch::default().call(&mut other);
        assert_eq!(int(&fetched(&response)[0], "high_watermark"), 1);
    }
}

// If this failed, a false length in a body would make the server allocate memory for it.
#[test]
fn a_malformed_body_closes_the_connection() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let mut frame = client.frame(0, 8, produce("t", 1, &[(0, &batch(&[b"x"]))]));
    // The offset of the number of topics: after header, transactional id, acks and timeout.
    let count = 4 + 8 + 2 + 4 + 2 + 2 + 4;
    frame[count..count + 4].copy_from_slice(&i32::MAX.to_be_bytes());
    client.send_raw(&frame);
    assert!(client.is_closed());
    server.wait_for_line("malformed request");
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, 0);
}

// If this failed, a frame that arrives in several reads would be refused.
#[test]
fn frames_may_arrive_byte_by_byte_or_all_at_once() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let frame = client.frame(0, 9, produce("t", 1, &[(0, &batch(&[b"slow"]))]));
    for byte in &frame {
        client.send_raw(&[*byte]);
    }
    let (first, _) = client.receive(0, 9);
    let large = vec![b'x'; 40_000];
    let mut together = Vec::new();
    for round in 0..20 {
        let value: &[u8] = if round % 2 == 0 { b"small" } else { &large };
        together.extend(client.frame(0, 9, produce("t", 1, &[(0, &batch(&[value]))])));
    }
    client.send_raw(&together);
    for round in 0..20 {
        let (id, body) = client.receive(0, 9);
        assert_eq!(id, first + 1 + round);
        assert_eq!(int(&produced(&body), "base_offset"), i64::from(round) + 1);
    }
}

// If this failed, a client newer than this broker could not find out its versions.
#[test]
fn api_versions_answers_every_version() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    // A version of the future, with an unknown body.
    client.send_raw(&[
        0, 0, 0, 16, 0, 18, 0, 77, 0, 0, 0, 9, 0xff, 0xff, 0, 1, 2, 3, 4, 5,
    ]);
    let (id, body) = client.receive(18, 0);
    assert_eq!(id, 9);
    assert_eq!(int(body.as_struct().unwrap(), "error_code"), 35);
    let keys = |body: &logcore_protocol::Value| -> Vec<(i64, i64, i64)> {
        let keys = body.get("api_keys").unwrap().structs();
        keys.map(|key| {
            (
                int(key, "api_key"),
                int(key, "min_version"),
                int(key, "max_version"),
            )
        })
        .collect()
    };
    assert_eq!(keys(&body), [(18, 0, 4)]);
    for version in 0..=4 {
        let mut message = request(18);
        if version >= 3 {
            message
                .set("client_software_name", "a-client")
                .set("client_software_version", "1.0");
        }
        let body = client.call(18, version, message);
        assert_eq!(int(body.as_struct().unwrap(), "error_code"), 0);
        let expected: Vec<_> = apis()
            .iter()
            .map(|api| (i64::from(api.key), i64::from(api.first), i64::from(api.last)))
            .collect();
        assert_eq!(keys(&body), expected);
    }
    let mut nonsense = request(18);
    nonsense
        .set("client_software_name", "-")
        .set("client_software_version", "1");
    assert_eq!(
        int(client.call(18, 3, nonsense).as_struct().unwrap(), "error_code"),
        42
    );
}

// If this failed, one host could use up the broker's connections.
#[test]
fn connections_per_ip_are_limited() {
    let server = TestServer::start(&[("max.connections.per.ip", "1")]);
    let mut first = server.client();
    first.call(18, 0, request(18));
    assert!(server.client().is_closed());
    first.call(18, 0, request(18));
    drop(first);
    // Another connection is accepted once the server has seen the end of the first.
    let begun = std::time::Instant::now();
    while {
        let mut next = server.client();
        next.send(18, 0, request(18));
        next.is_closed()
    } {
        assert!(
            begun.elapsed() < common::TIMEOUT,
            "the closed connection still counts"
        );
    }
}

// If this failed, idle connections would add up to the limit of connections.
#[test]
fn idle_connections_are_closed() {
    let server = TestServer::start(&[("connections.max.idle.ms", "50")]);
    assert!(server.client().is_closed());
    server.wait_for_line("idle for connections.max.idle.ms");
    let begun = std::time::Instant::now();
    loop {
        let mut client = server.client();
        // The server may close the connection before this.
        let _ = client.stream.write_all(&[0, 0]);
        assert!(client.is_closed());
        let lines = server.server.take_log_lines();
        if lines
            .iter()
            .any(|line| line.message.contains("a frame was begun"))
        {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "no line about a frame that was begun");
    }
}

// If this failed, clients that never read would keep their connections and responses for ever.
#[test]
fn a_client_that_does_not_read_is_closed() {
    let server = TestServer::start(&[
        ("connections.max.idle.ms", "2000"),
        ("socket.send.buffer.bytes", "65536"),
    ]);
    let large = batch(&[&[b'x'; 900_000]]);
    let mut client = server.client();
    client.call(0, 9, produce("t", 1, &[(0, &large)]));
    // More than the kernel's buffers on both sides can hold.
    let fetch = client.frame(1, 12, Fetch::default().message());
    client.send_raw(&fetch.repeat(50));
    server.wait_for_line("read nothing of its response");
    server.client().call(18, 0, request(18));
}

// If this failed, a response would be sent only with the one to the next request on its connection.
#[test]
fn responses_are_sent_before_a_wait() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let value = vec![b'x'; 16_000];
    let poll = Fetch {
        offset: 6,
        wait_ms: 600_000,
        ..Fetch::default()
    };
    // Three requests come with the first half of another one, or with one that waits.
    for round in 0..2 {
        let mut together = Vec::new();
        for _ in 0..3 {
            together.extend(client.frame(0, 9, produce("t", 1, &[(0, &batch(&[&value]))])));
        }
        let last = if round == 0 {
            client.frame(0, 9, produce("t", 1, &[(1, &batch(&[b"x"]))]))
        } else {
            client.frame(1, 12, poll.message())
        };
        let half = if round == 0 { last.len() / 2 } else { last.len() };
        together.extend(&last[..half]);
        client.send_raw(&together);
        for number in 0..3 {
            let (_, body) = client.receive(0, 9);
            assert_eq!(int(&produced(&body), "base_offset"), 3 * round + number);
        }
        client.send_raw(&last[half..]);
        if round == 0 {
            client.receive(0, 9);
        }
    }
    server.wait_for_gauge("delayed_fetches", 1);
    let more = client.frame(0, 9, produce("t", 1, &[(1, &batch(&[b"x"]))]));
    client.send_raw(&more);
    server
        .client()
        .call(0, 9, produce("t", 1, &[(0, &batch(&[b"end"]))]));
    let (_, body) = client.receive(1, 12);
    assert_eq!(int(&fetched(&body)[0], "high_watermark"), 7);
    let (_, body) = client.receive(0, 9);
    assert_eq!(int(&produced(&body), "base_offset"), 1);
}

// If this failed, a bad frame would lose the responses to the requests before it.
#[test]
fn responses_are_sent_before_the_connection_closes() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let mut together = Vec::new();
    for _ in 0..3 {
        together.extend(client.frame(0, 9, produce("t", 1, &[(0, &batch(&[b"good"]))])));
    }
    together.extend((-1i32).to_be_bytes());
    client.send_raw(&together);
    for number in 0..3 {
        let (_, body) = client.receive(0, 9);
        assert_eq!(int(&produced(&body), "base_offset"), number);
    }
    assert!(client.is_closed());
    server.wait_for_line("is negative");
}

// If this failed, a client of a server that stops would get no response to a request that was executed.
#[test]
fn a_stop_answers_all_executed_requests() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let mut sender = client.stream.try_clone().unwrap();
    let frame = client.frame(0, 9, produce("t", 1, &[(0, &batch(&[b"more"]))]));
    let answered = std::thread::scope(|scope| {
        // The client sends far more requests than the server reads.
        scope.spawn(move || while sender.write_all(&frame).is_ok() {});
        while server.server.offsets("t", 0).unwrap().log_end < 100 {
            std::thread::yield_now();
        }
        scope.spawn(|| server.server.stop(TIMEOUT).unwrap());
        let mut answered = 0;
        while client.stream.peek(&mut [0]).unwrap() > 0 {
            let (_, body) = client.receive(0, 9);
            assert_eq!(int(&produced(&body), "base_offset"), answered);
            answered += 1;
        }
        // The server may have closed it by now.
        let _ = client.stream.shutdown(Shutdown::Both);
        answered
    });
    let again = TestServer::start_in(server.stop(), &[]);
    assert_eq!(again.server.offsets("t", 0).unwrap().log_end, answered);
}

// If this failed, clients would not use what the cluster has finalized, or old ones would fail at a version 0
// (KAFKA-17011).
#[test]
fn features_are_told() {
    let server = TestServer::start(&[]);
    let told = |version| {
        let mut message = request(18);
        message
            .set("client_software_name", "test")
            .set("client_software_version", "1");
        let body = server.client().call(18, version, message);
        let body = body.as_struct().unwrap().clone();
        let count = |name| body.get(name).unwrap().structs().count();
        let epoch = int(&body, "finalized_features_epoch");
        (count("supported_features"), count("finalized_features"), epoch)
    };
    assert_eq!(told(4), (0, 0, -1));
    server.server.set_features(Features {
        supported: vec![("a".to_owned(), 0, 2), ("b".to_owned(), 1, 1)],
        finalized: vec![("a".to_owned(), 2)],
        epoch: 7,
    });
    assert_eq!(told(4), (2, 1, 7));
    assert_eq!(told(3), (1, 1, 7));
}
