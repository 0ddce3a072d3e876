//! Batches that the server has to decompress, because of their topic's settings or for a lookup by time, small ones that become
//! large: how much memory they take together, who waits for them, and for whom it ends. Memory is the process's, so each test has
//! it for itself.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{Client, TestServer, int, produce, produced, properties, request};
use logcore_protocol::{Struct, Value};
use logcore_records::{BatchBuilder, Compression, set_max_timestamp_in_place};

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
    serving_with(&[], settings)
}

/// A server with these settings of its own and of its topic.
fn serving_with(own: &[(&str, &str)], settings: &[(&str, &str)]) -> TestServer {
    let server = TestServer::start(own);
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

/// A batch of a codec whose payload lacks its last bytes, with the length and checksum that fit it.
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

// If this failed, one producer's batch that cannot be decompressed would be acknowledged, and stop every consumer of its partition;
// or an operator could not turn the check off.
#[test]
fn a_compressed_batch_is_checked_unless_the_operator_says_otherwise() {
    let _alone = ONE_AT_A_TIME.lock();
    let off = [("logcore.produce.check.compressed", "false")];
    for (own, code) in [(&[][..], 2), (&off[..], 0)] {
        let server = serving_with(own, &[]);
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

// If this failed, a raw snappy block would be decompressed in memory that nobody granted, or be refused.
#[test]
fn a_long_raw_snappy_block_is_appended() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = serving(&[("max.message.bytes", "20000000")]);
    let mut plain = BatchBuilder::new(Compression::None, None);
    plain
        .append(1, Some(b"k"), Some(&[7; 4 * MEGABYTE]), &[])
        .unwrap();
    let plain = plain.build().unwrap();
    let mut built = plain[..61].to_vec();
    built[22] |= Compression::Snappy.code();
    // Raw snappy without compression: the length as a varint, then one literal with a length of four bytes.
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

/// ListOffsets of the first record at or after a time.
fn looking_for(timestamp: i64) -> Struct {
    let mut message = request(2);
    message.set("replica_id", -1);
    let topic = message.element("topics").with("name", "t");
    let part = topic.element("partitions").with("timestamp", timestamp);
    let part = Value::Struct(part);
    message.push("topics", topic.with("partitions", vec![part]));
    message
}

/// The error code and the offset.
fn listed(body: &Value) -> (i64, i64) {
    let topic = body.get("topics").unwrap().structs().next().unwrap();
    let part = topic.get("partitions").unwrap().structs().next().unwrap();
    (int(part, "error_code"), int(part, "offset"))
}

/// A server that stores what producers claim.
fn credulous() -> TestServer {
    let own = [("logcore.produce.check.compressed", "false")];
    serving_with(&own, &[("retention.ms", "-1")])
}

/// A bomb that says it has a record of the time 9, and has none.
fn liar() -> Vec<u8> {
    let mut built = bomb(BOMB);
    set_max_timestamp_in_place(&mut built, 9);
    built
}

/// Appends it so often.
fn append(client: &mut Client, records: &[u8], count: usize) {
    for _ in 0..count {
        client.call(0, 9, produce("t", 1, &[(0, records)]));
    }
}

// If this failed, a dozen questions of fifty bytes each could take more memory than there is.
#[test]
fn lookups_by_time_are_bounded_together() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = credulous();
    append(&mut server.client(), &liar(), 1);
    forget_peak();
    let before = peak_bytes();
    let mut clients: Vec<Client> = (0..COUNT).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(2, 5, looking_for(1));
    }
    for client in &mut clients {
        assert_eq!(listed(&client.receive(2, 5).1), (0, 0));
    }
    let more = peak_bytes() - before;
    assert!(more < 4 * BOMB, "{} MB more", more / MEGABYTE);
}

// If this failed, who makes headers lie could have the server look for what is not there, in as many batches as they like, when
// they are gone themselves, and when it is to stop.
#[test]
fn a_lookup_with_a_long_way_ends_with_its_client_and_with_the_server() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = credulous();
    let mut client = server.client();
    let sent = liar();
    let open = || server.server.measurements().connections[0].1;
    // So many that a closed side's second is far less than looking into all of them takes.
    let mut whole = Duration::ZERO;
    for _ in 0..100 {
        if whole > Duration::from_secs(4) {
            break;
        }
        append(&mut client, &sent, 16);
        let begun = Instant::now();
        assert_eq!(listed(&client.call(2, 5, looking_for(5))), (0, -1));
        whole = begun.elapsed();
    }
    let counts = server.server.requests_begun();
    let asked = counts.iter().find(|(key, _)| *key == 2).unwrap().1;
    let mut leaving = server.client();
    leaving.send(2, 5, looking_for(5));
    server.wait_for_requests(2, asked + 1);
    let begun = Instant::now();
    drop(leaving);
    server.wait_until("the end of what nobody waits for", || open() == 2);
    assert!(begun.elapsed() < whole * 3 / 4);
    client.send(2, 5, looking_for(5));
    server.wait_for_requests(2, asked + 2);
    server.stop();
    // It leads no more, which is not what the whole way would have told.
    assert_eq!(listed(&client.receive(2, 5).1).0, 6);
}
