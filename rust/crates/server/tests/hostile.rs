//! Random damage to requests: the server goes on serving, and stores only intact batches.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::io::{ErrorKind, Read};
use std::net::Shutdown;

use common::{Client, Fetch, TestServer, batch, check_log, fetched, int, produce, records};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Reads until the server closes the connection. A response may come before.
fn drain(mut client: Client) {
    match client.stream.shutdown(Shutdown::Write) {
        // The server has closed it already, before it read everything.
        Err(error) if error.kind() == ErrorKind::NotConnected => return,
        shut => shut.unwrap(),
    }
    if let Err(error) = client.stream.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

fn check_alive(server: &TestServer) {
    let response = Fetch::default().call(&mut server.client());
    let part = &fetched(&response)[0];
    assert_eq!(int(part, "error_code"), 0);
    assert_eq!(int(part, "high_watermark"), check_log(server, "t", 0));
    let _ = records(part);
    let defects = server.server.take_log_lines();
    assert!(
        defects.iter().all(|line| !line.message.contains("panicked")),
        "{defects:?}"
    );
}

// If this failed, one flipped bit in a request could stop the broker, or be stored.
#[test]
fn damaged_requests_do_no_harm() {
    let server = TestServer::start(&[("socket.request.max.bytes", "100000")]);
    // With a record to read, no damage makes a Fetch wait.
    let first = produce("t", 1, &[(0, &batch(&[b"first"]))]);
    server.client().call(0, 9, first);
    let mut runner = TestRunner::new(Config {
        cases: 500,
        failure_persistence: None,
        ..Config::default()
    });
    let damage = (0i16..2, any::<prop::sample::Index>(), 1u8..=255, any::<bool>());
    runner
        .run(&damage, |(key, index, mask, cut)| {
            let mut client = server.client();
            let mut frame = match key {
                0 => client.frame(0, 9, produce("t", 1, &[(0, &batch(&[b"some", b"records"]))])),
                _ => client.frame(1, 12, Fetch::default().message()),
            };
            let at = index.index(frame.len());
            if cut {
                frame.truncate(at);
            } else {
                frame[at] ^= mask;
            }
            client.send_raw(&frame);
            drain(client);
            check_alive(&server);
            Ok(())
        })
        .unwrap();
}

// If this failed, a port scanner could stop the broker.
#[test]
fn garbage_does_no_harm() {
    let server = TestServer::start(&[("socket.request.max.bytes", "100000")]);
    let mut runner = TestRunner::new(Config {
        cases: 500,
        failure_persistence: None,
        ..Config::default()
    });
    let garbage = (prop::collection::vec(any::<u8>(), 0..300), any::<bool>());
    runner
        .run(&garbage, |(mut bytes, framed)| {
            if framed {
                // With a correct length, the bytes reach the decoder.
                bytes.splice(0..0, (bytes.len() as i32).to_be_bytes());
            }
            let mut client = server.client();
            client.send_raw(&bytes);
            drain(client);
            check_alive(&server);
            Ok(())
        })
        .unwrap();
}
