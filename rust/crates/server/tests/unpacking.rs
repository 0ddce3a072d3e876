//! Batches that their topic's settings force the server to decompress, small ones that become large: how much memory they
//! take together, and who waits for them. Memory is the process's, so each test has it for itself.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::fs;
use std::sync::Mutex;

use common::{Client, TestServer, int, produce, produced, properties};
use logcore_records::{BatchBuilder, Compression};

const MEGABYTE: usize = 1 << 20;
/// What each of them decompresses to.
const BOMB: usize = 100 * MEGABYTE;
const COUNT: usize = 12;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Zeros under a key, compressed a thousandfold.
fn bomb(bytes: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::Zstd, Some(1));
    let value = vec![0; bytes];
    builder.append(1, Some(b"k"), Some(&value), &[]).unwrap();
    let built = builder.build().unwrap();
    assert!(built.len() < MEGABYTE);
    built
}

fn serving(settings: &[(&str, &str)]) -> TestServer {
    let server = TestServer::start(&[]);
    let settings = properties(settings);
    server.server.update_topic_config("t", &settings).unwrap();
    server
}

/// So many clients send it at once, and the server has all their requests.
fn send_all(server: &TestServer, records: &[u8]) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..COUNT).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(0, 9, produce("t", 1, &[(0, records)]));
    }
    clients
}

fn codes(clients: Vec<Client>) -> Vec<i64> {
    let receive = |mut client: Client| int(&produced(&client.receive(0, 9).1), "error_code");
    clients.into_iter().map(receive).collect()
}

fn is_answered(client: &Client) -> bool {
    client.stream.set_nonblocking(true).unwrap();
    let answered = client.stream.peek(&mut [0]).is_ok();
    client.stream.set_nonblocking(false).unwrap();
    answered
}

/// The most the process ever had since it was forgotten.
fn peak_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: usize = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kib * 1024
}

fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

// If this failed, a dozen small requests could take more memory than there is.
#[test]
fn what_is_compressed_anew_is_bounded_together() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = serving(&[
        ("compression.type", "uncompressed"),
        ("max.message.bytes", "200000000"),
    ]);
    let sent = bomb(BOMB);
    forget_peak();
    let before = peak_bytes();
    assert_eq!(codes(send_all(&server, &sent)), [0; COUNT]);
    let more = peak_bytes() - before;
    assert!(more < 5 * BOMB, "{} MB more", more / MEGABYTE);
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, COUNT as i64);
}

// If this failed, whoever has a compacted topic, or one that limits its records' times, could stop everybody else.
#[test]
fn nobody_waits_for_what_is_decompressed() {
    let _alone = ONE_AT_A_TIME.lock();
    for settings in [
        ("cleanup.policy", "compact"),
        ("message.timestamp.before.max.ms", "9000000000000"),
    ] {
        let server = serving(&[settings]);
        // The first write of an epoch waits for the disk.
        let first = produce("t", 1, &[(0, &bomb(1))]);
        server.client().call(0, 9, first);
        let clients = send_all(&server, &bomb(BOMB));
        // The others' round trips.
        server.wait_for_requests(0, 1 + COUNT as u64);
        let answered = clients.iter().filter(|client| is_answered(client)).count();
        assert!(answered < COUNT / 2, "{answered} were answered first");
        assert_eq!(codes(clients), [0; COUNT]);
    }
}

// If this failed, what decompresses to more than the limit would be taken for a broken batch, and small batches of others
// would wait for it, or not be appended at all.
#[test]
fn what_is_too_large_is_told_so_and_keeps_no_turn() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = serving(&[
        ("compression.type", "uncompressed"),
        ("max.message.bytes", "20000000"),
    ]);
    let mut client = server.client();
    let sent = bomb(300 * MEGABYTE);
    for _ in 0..2 {
        let body = client.call(0, 9, produce("t", 1, &[(0, &sent)]));
        assert_eq!(int(&produced(&body), "error_code"), 10);
    }
    for bytes in [MEGABYTE, 17 * MEGABYTE] {
        client.call(0, 9, produce("t", 1, &[(0, &bomb(bytes))]));
    }
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, 2);
}
