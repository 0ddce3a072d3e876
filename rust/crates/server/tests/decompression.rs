//! Decompression of small batches that become large, for a Produce or a lookup by time: its memory and its
//! time.
//!
//! The tests measure the memory of the whole process, so they run one at a time.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{Client, TestServer, int, produce, produced, properties, request};
use logcore_protocol::{Struct, Value};
use logcore_records::{BatchBuilder, Compression, set_max_timestamp_in_place};

const MEGABYTE: usize = 1 << 20;
/// The decompressed size of a batch.
const BOMB: usize = 100 * MEGABYTE;
/// The number of clients that send a batch at the same time.
const COUNT: usize = 12;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A batch with one record of zeros, less than a hundredth of their size.
fn bomb(bytes: usize) -> Vec<u8> {
    bomb_of(Compression::Zstd, bytes)
}

fn bomb_of(codec: Compression, bytes: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec, Some(1));
    let value = vec![0; bytes];
    builder.append(1, Some(b"k"), Some(&value), &[]).unwrap();
    let built = builder.build().unwrap();
    assert!(built.len() < MEGABYTE);
    built
}

fn start(settings: &[(&str, &str)]) -> TestServer {
    start_with(&[], settings)
}

/// A server with settings of its own and of its topic.
fn start_with(own: &[(&str, &str)], settings: &[(&str, &str)]) -> TestServer {
    let server = TestServer::start(own);
    let settings = properties(settings);
    server.server.update_topic_config("t", &settings).unwrap();
    server
}

/// `count` clients send the batch at the same time.
fn send_all(server: &TestServer, records: &[u8], count: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| server.client()).collect();
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

/// The largest resident size of the process since [`reset_peak`].
fn peak_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: usize = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kib * 1024
}

fn reset_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

// If this failed, a dozen small requests could use all memory.
#[test]
fn recompressed_batches_share_a_budget() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = start(&[
        ("compression.type", "uncompressed"),
        ("max.message.bytes", "200000000"),
    ]);
    let sent = bomb(BOMB);
    reset_peak();
    let before = peak_bytes();
    assert_eq!(codes(send_all(&server, &sent, COUNT)), [0; COUNT]);
    let more = peak_bytes() - before;
    assert!(more < 5 * BOMB, "{} MB more", more / MEGABYTE);
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, COUNT as i64);
}

// If this failed, a producer to a compacted topic, or one that limits timestamps, could stop all other
// clients.
#[test]
fn decompression_does_not_stop_other_requests() {
    let _alone = ONE_AT_A_TIME.lock();
    // Each takes much longer than a machine with busy cores lets a request wait.
    let slow = bomb_of(Compression::Gzip, BOMB);
    for settings in [
        ("cleanup.policy", "compact"),
        ("message.timestamp.before.max.ms", "9000000000000"),
    ] {
        let server = start_with(&[("num.network.threads", "1")], &[settings]);
        let mut other = server.client();
        // The first write of an epoch waits for the disk.
        other.call(0, 9, produce("t", 1, &[(0, &bomb(1))]));
        let clients = send_all(&server, &slow, COUNT);
        // If the one network thread decompressed, it would answer about one request for each batch.
        let mut answered = 0;
        while !clients.iter().all(is_answered) {
            other.call(18, 0, request(18));
            answered += 1;
        }
        assert!(answered > 3 * COUNT, "only {answered} were answered meanwhile");
        assert_eq!(codes(clients), [0; COUNT]);
    }
}

// If this failed, a batch that decompresses to more than the limit would get the error of a broken one. Or it
// would keep its permit, and small batches would wait for ever.
#[test]
fn a_batch_too_large_to_decompress_is_refused_and_keeps_no_permit() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = start(&[
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

/// A compressed batch without its last bytes, with the length and checksum that fit it.
fn cut_short(codec: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec, None);
    for number in 0..1000 {
        builder.append(number, Some(b"k"), Some(b"value"), &[]).unwrap();
    }
    let mut built = builder.build().unwrap();
    built.truncate(built.len() - 3);
    let length = (built.len() - 12) as i32;
    built[8..12].copy_from_slice(&length.to_be_bytes());
    // Writing the timestamp writes the checksum, too.
    set_max_timestamp_in_place(&mut built, 999);
    built
}

// If this failed, a batch that cannot be decompressed would be acknowledged, and stop every consumer of its
// partition. Or an operator could not turn the check off.
#[test]
fn compressed_batches_are_checked_unless_the_setting_is_off() {
    let _alone = ONE_AT_A_TIME.lock();
    let off = [("logcore.produce.check.compressed", "false")];
    for (own, code) in [(&[][..], -1), (&off[..], 0)] {
        let server = start_with(own, &[]);
        let mut client = server.client();
        for codec in [
            Compression::Gzip,
            Compression::Snappy,
            Compression::Lz4,
            Compression::Zstd,
        ] {
            let body = client.call(0, 9, produce("t", 1, &[(0, &cut_short(codec))]));
            assert_eq!(int(&produced(&body), "error_code"), code, "{codec}");
        }
        let end = if code == 0 { 4000 } else { 0 };
        assert_eq!(server.server.offsets("t", 0).unwrap().log_end, end);
    }
}

// If this failed, a raw snappy block would be decompressed without a permit, or be refused.
#[test]
fn a_long_raw_snappy_block_is_appended() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = start(&[("max.message.bytes", "20000000")]);
    let mut plain = BatchBuilder::new(Compression::None, None);
    plain
        .append(1, Some(b"k"), Some(&[7; 4 * MEGABYTE]), &[])
        .unwrap();
    let plain = plain.build().unwrap();
    let mut built = plain[..61].to_vec();
    built[22] |= Compression::Snappy.code();
    // A raw snappy block without compression: the length as a varint, then one literal with a length of four
    // bytes.
    let mut length = plain.len() - 61;
    let literal = (length as u32 - 1).to_le_bytes();
    while length >= 0x80 {
        built.push(length as u8 | 0x80);
        length >>= 7;
    }
    built.extend([length as u8, 63 << 2]);
    built.extend(literal);
    built.extend(&plain[61..]);
    let length = (built.len() - 12) as i32;
    built[8..12].copy_from_slice(&length.to_be_bytes());
    set_max_timestamp_in_place(&mut built, 1);
    let body = server.client().call(0, 9, produce("t", 1, &[(0, &built)]));
    assert_eq!(int(&produced(&body), "error_code"), 0);
}

/// A ListOffsets request for the first record at or after a time.
fn list_offsets(timestamp: i64) -> Struct {
    let mut message = request(2);
    message.set("replica_id", -1);
    let topic = message.element("topics").with("name", "t");
    let part = topic.element("partitions").with("timestamp", timestamp);
    let part = Value::Struct(part);
    message.push("topics", topic.with("partitions", vec![part]));
    message
}

/// The error code and the offset of a ListOffsets response.
fn listed(body: &Value) -> (i64, i64) {
    let topic = body.get("topics").unwrap().structs().next().unwrap();
    let part = topic.get("partitions").unwrap().structs().next().unwrap();
    (int(part, "error_code"), int(part, "offset"))
}

/// A server that does not check compressed batches.
fn start_without_check() -> TestServer {
    let own = [("logcore.produce.check.compressed", "false")];
    start_with(&own, &[("retention.ms", "-1")])
}

/// A large batch whose header has the maximum timestamp 9, although no record has it.
fn bomb_with_wrong_time() -> Vec<u8> {
    let mut built = bomb(BOMB);
    set_max_timestamp_in_place(&mut built, 9);
    built
}

/// Appends the batch `count` times.
fn append(client: &mut Client, records: &[u8], count: usize) {
    for _ in 0..count {
        client.call(0, 9, produce("t", 1, &[(0, records)]));
    }
}

// If this failed, a dozen requests of fifty bytes each could use all memory.
#[test]
fn lookups_by_time_share_a_budget() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = start_without_check();
    append(&mut server.client(), &bomb_with_wrong_time(), 1);
    reset_peak();
    let before = peak_bytes();
    let mut clients: Vec<Client> = (0..COUNT).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(2, 5, list_offsets(1));
    }
    for client in &mut clients {
        assert_eq!(listed(&client.receive(2, 5).1), (0, 0));
    }
    let more = peak_bytes() - before;
    assert!(more < 4 * BOMB, "{} MB more", more / MEGABYTE);
}

// If this failed, batches with wrong headers could make a lookup search many batches after its client
// disconnected, or delay a stop.
#[test]
fn a_long_lookup_ends_with_its_client_and_with_the_server() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = start_without_check();
    let mut client = server.client();
    let sent = bomb_with_wrong_time();
    let open = || server.server.measurements().connections[0].1;
    // So many batches that a full lookup takes much longer than the second after which a closed connection is
    // noticed.
    let mut whole = Duration::ZERO;
    for _ in 0..100 {
        if whole > Duration::from_secs(4) {
            break;
        }
        append(&mut client, &sent, 16);
        let begun = Instant::now();
        assert_eq!(listed(&client.call(2, 5, list_offsets(5))), (0, -1));
        whole = begun.elapsed();
    }
    let counts = server.server.requests_begun();
    let asked = counts.iter().find(|(key, _)| *key == 2).unwrap().1;
    let mut leaving = server.client();
    leaving.send(2, 5, list_offsets(5));
    server.wait_for_requests(2, asked + 1);
    let begun = Instant::now();
    drop(leaving);
    server.wait_until("the end of the lookup", || open() == 2);
    assert!(begun.elapsed() < whole * 3 / 4);
    client.send(2, 5, list_offsets(5));
    server.wait_for_requests(2, asked + 2);
    server.stop();
    // The server no longer leads the partition. A full lookup would have found no offset.
    assert_eq!(listed(&client.receive(2, 5).1).0, 6);
}
