//! Produce: batches that are written, and batches that are refused with Kafka's error codes.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use common::{
    Client, Fetch, TestServer, batch, current_leader, fetched, int, is_readable, partition, produce,
    produced, records,
};
use logcore_protocol::{ErrorCode, Struct, Value};
use logcore_records::{BatchBuilder, Compression};

fn code(client: &mut Client, version: i16, topic: &str, index: i32, records: &[u8]) -> i64 {
    let body = client.call(0, version, produce(topic, 1, &[(index, records)]));
    int(&produced(&body), "error_code")
}

/// Sends a Produce request, and answers its one question whether a partition is in the transaction.
fn call_asking(
    server: &TestServer,
    client: &mut Client,
    version: i16,
    request: Struct,
    answer: i16,
) -> Value {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                assert!(is_readable(server.server.wake_fd()), "no question");
                server.server.take_requests(usize::MAX);
                let asked = server.server.take_verifications();
                if let [question] = &asked[..] {
                    assert_eq!((&*question.transactional_id, question.producer_id), ("tx", 5));
                    assert_eq!(question.adds, version >= 12);
                    server.server.verified(question.number, ErrorCode(answer));
                    return;
                }
            }
        });
        client.call(0, version, request)
    })
}

fn built(build: impl FnOnce(&mut BatchBuilder)) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.append(1, None, Some(b"value"), &[]).unwrap();
    build(&mut builder);
    builder.build().unwrap()
}

// If this failed, a consumer would get other records than the producer sent.
#[test]
fn every_version_is_stored_and_acknowledged() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    for version in 3..=12i16 {
        let sent = batch(&[b"a", b"b"]);
        let body = client.call(0, version, produce("t", -1, &[(0, &sent)]));
        let answer = produced(&body);
        let offset = i64::from(version - 3) * 2;
        assert_eq!(int(&answer, "error_code"), 0);
        assert_eq!(int(&answer, "base_offset"), offset);
        assert_eq!(int(&answer, "log_append_time_ms"), -1);
        let stored = server.server.read("t", 0, offset, 1).unwrap();
        assert_eq!(stored[..8], offset.to_be_bytes());
        assert_eq!(stored[12..16], 3i32.to_be_bytes(), "leader epoch");
        assert_eq!(stored[16..], sent[16..]);
    }
    assert_eq!(server.server.offsets("t", 0).unwrap().high_watermark, 20);
}

// If this failed, a damaged batch would be stored, or a client would get another error code than Kafka's.
#[test]
fn refused_batches_are_not_stored_and_have_kafkas_codes() {
    let server = TestServer::start(&[("message.max.bytes", "2000")]);
    let mut client = server.client();
    let good = batch(&[b"good"]);
    let mut wrong_crc = good.clone();
    *wrong_crc.last_mut().unwrap() ^= 1;
    let mut old_format = good.clone();
    old_format[16] = 1;
    let two = [good.clone(), good.clone()].concat();
    let mut with_offsets = good.clone();
    logcore_records::set_offsets_in_place(&mut with_offsets, 5, 0);
    let control = built(|builder| builder.set_control(true));
    // A compressed batch is counted only when it is decompressed. No batch can have so many records.
    let mut too_many = BatchBuilder::new(Compression::Gzip, None);
    too_many.append(1, None, Some(b"value"), &[]).unwrap();
    let mut too_many = too_many.build().unwrap();
    too_many[23..27].copy_from_slice(&(i32::MAX - 1).to_be_bytes());
    too_many[57..61].copy_from_slice(&i32::MAX.to_be_bytes());
    let crc = logcore_records::crc32c(&too_many[21..]);
    too_many[17..21].copy_from_slice(&crc.to_be_bytes());
    let transactional = built(|builder| {
        builder.set_transactional(true);
        builder.set_producer_state(5, 0, 0);
    });
    for (records, expected) in [
        (&wrong_crc[..], 2),
        (&batch(&[&[0; 3000]]), 10),
        (b"", 87),
        (&good[..good.len() - 1], 87),
        (&old_format, 87),
        // The length is checked before the magic byte.
        (&[0; 20], 2),
        (&[&good[..], &[0; 20]].concat(), 2),
        (&two, 87),
        (&with_offsets, 87),
        (&control, 87),
        (&too_many, 87),
        (&transactional, 53),
    ] {
        assert_eq!(code(&mut client, 9, "t", 0, records), expected);
    }
    server
        .server
        .create_partition(&partition("__consumer_offsets", 0))
        .unwrap();
    assert_eq!(code(&mut client, 9, "__consumer_offsets", 0, &good), 17);
    let mut admin = server.client();
    admin.client_id = "__admin_client";
    assert_eq!(code(&mut admin, 9, "__consumer_offsets", 0, &good), 0);
    assert_eq!(code(&mut client, 9, "nowhere", 0, &good), 3);
    assert_eq!(code(&mut client, 9, "t", 2, &good), 3);
    let body = client.call(0, 9, produce("t", 7, &[(0, &good)]));
    assert_eq!(int(&produced(&body), "error_code"), 21);
    for (version, answer, expected) in [
        (9, 120, 48),
        (11, 120, 120),
        (9, 51, 19),
        (12, 51, 51),
        (12, 120, 120),
        (9, 90, 47),
        (9, 49, 49),
    ] {
        let mut with_id = produce("t", 1, &[(0, &transactional)]);
        with_id.set("transactional_id", "tx");
        let body = call_asking(&server, &mut client, version, with_id, answer);
        assert_eq!(int(&produced(&body), "error_code"), expected, "{answer}");
    }
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, 0);
    assert_eq!(code(&mut client, 9, "t", 0, &good), 0);
}

// If this failed, one bad partition would fail the good ones of its request.
#[test]
fn partitions_of_one_request_are_independent() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let good = batch(&[&[5; 20_000]]);
    let mut bad = good.clone();
    bad[100] ^= 1;
    let transactional = built(|builder| {
        builder.set_transactional(true);
        builder.set_producer_state(5, 0, 0);
    });
    let mut with_unknown_id = produce("t", 1, &[(1, &good), (0, &transactional)]);
    with_unknown_id.set("transactional_id", "tx");
    let body = call_asking(&server, &mut client, 8, with_unknown_id, 120);
    let topic = body.get("responses").unwrap().structs().next().unwrap();
    let parts = topic.get("partition_responses").unwrap().structs();
    let codes: Vec<i64> = parts.map(|part| int(part, "error_code")).collect();
    assert_eq!(codes, [0, 48]);
    let body = client.call(0, 8, produce("t", 1, &[(0, &bad), (1, &good), (9, &good)]));
    let topic = body.get("responses").unwrap().structs().next().unwrap().clone();
    let codes: Vec<_> = topic
        .get("partition_responses")
        .unwrap()
        .structs()
        .map(|part| int(part, "error_code"))
        .collect();
    assert_eq!(codes, [2, 0, 3]);
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, 0);
    assert_eq!(server.server.offsets("t", 1).unwrap().log_end, 2);
}

// If this failed, a retry of an idempotent producer would be stored twice, or a gap would be accepted.
#[test]
fn sequences_of_idempotent_producers() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let numbered =
        |epoch: i16, sequence: i32| built(|builder| builder.set_producer_state(77, epoch, sequence));
    for (epoch, sequence, expected) in [(1, 0, 0), (1, 1, 0), (1, 1, 0), (1, 5, 45), (0, 2, 47), (1, 2, 0)] {
        let sent = numbered(epoch, sequence);
        assert_eq!(
            code(&mut client, 9, "t", 0, &sent),
            expected,
            "epoch {epoch}, sequence {sequence}"
        );
    }
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, 3);
}

// If this failed, a producer with acks=0 would get an unexpected response, or would not notice an error.
#[test]
fn acks_zero_has_no_response_and_closes_on_an_error() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    client.send(0, 9, produce("t", 0, &[(0, &batch(&[b"quiet"]))]));
    // The next response is for the next request.
    let response = Fetch::default().call(&mut client);
    assert_eq!(int(&fetched(&response)[0], "high_watermark"), 1);
    client.send(0, 9, produce("unknown", 0, &[(0, &batch(&[b"lost"]))]));
    assert!(client.is_closed());
    server.wait_for_line("unknown-0: UNKNOWN_TOPIC_OR_PARTITION");
}

// If this failed, one small request could fill the broker's log, or write its own lines into it.
#[test]
fn a_failed_request_with_acks_zero_is_one_short_log_line() {
    let server = TestServer::start(&[("slow.request.log.ms", "-1")]);
    let mut client = server.client();
    let topic = format!("a\nforged{}", "x".repeat(30_000));
    let parts: Vec<(i32, &[u8])> = (0..5000).map(|index| (index, &[][..])).collect();
    client.send(0, 9, produce(&topic, 0, &parts));
    assert!(client.is_closed());
    let lines = server.wait_for_line("acks=0");
    assert!(lines.contains(r"a\nforgedxxx"), "{lines}");
    assert!(lines.contains("and 4997 partitions more"), "{lines}");
    assert!(lines.lines().count() == 1 && lines.len() < 1500, "{lines}");
}

// If this failed, a broker would append to a partition that another broker leads.
#[test]
fn only_the_leader_appends() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let mut elsewhere = partition("t", 0);
    (elsewhere.leader_id, elsewhere.leader_epoch) = (2, 4);
    server.server.create_partition(&elsewhere).unwrap();
    let body = client.call(0, 10, produce("t", 1, &[(0, &batch(&[b"x"]))]));
    let answer = produced(&body);
    assert_eq!(int(&answer, "error_code"), 6);
    assert_eq!(current_leader(&answer), (2, 4));
    assert!(server.server.append("t", 0, &batch(&[b"x"])).is_err());
}

/// The index and message of each bad record, and the message of the partition.
fn faults(answer: &Struct) -> (Vec<(i64, String)>, String) {
    let text = |of: &Struct, name: &str| of.get(name).unwrap().as_str().unwrap().to_owned();
    let errors = answer.get("record_errors").unwrap().structs();
    let errors = errors.map(|error| {
        let why = text(error, "batch_index_error_message");
        (int(error, "batch_index"), why)
    });
    (errors.collect(), text(answer, "error_message"))
}

// If this failed, a producer could not find out which of its records are bad.
#[test]
fn bad_records_are_named_by_their_index() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let strict = common::properties(&[
        ("cleanup.policy", "compact"),
        ("message.timestamp.after.max.ms", "3600000"),
    ]);
    server.server.update_topic_config("t", &strict).unwrap();
    let batch = |times: &[i64]| {
        let mut builder = BatchBuilder::new(Compression::Lz4, None);
        for (number, time) in times.iter().enumerate() {
            let key = (number % 2 == 0).then_some(&b"k"[..]);
            builder.append(*time, key, Some(b"v"), &[]).unwrap();
        }
        builder.build().unwrap()
    };
    let mut ask = |records: &[u8]| produced(&client.call(0, 9, produce("t", 1, &[(0, records)])));
    let answer = ask(&batch(&[5, 5, 5, 5]));
    assert_eq!(
        (int(&answer, "error_code"), int(&answer, "log_start_offset")),
        (87, 0)
    );
    let keyless = "Compacted topic cannot accept message without key in topic partition t-0";
    let (errors, message) = faults(&answer);
    assert_eq!(errors, [(1, keyless.to_owned()), (3, keyless.to_owned())]);
    assert!(message.contains("due to 2 record errors in total"), "{message}");
    let far = i64::MAX / 4;
    let answer = ask(&batch(&[5, 5, far]));
    assert_eq!(int(&answer, "error_code"), 32);
    let (errors, _) = faults(&answer);
    assert_eq!((errors[0].0, errors[1].0), (1, 2));
    assert!(
        errors[1]
            .1
            .starts_with(&format!("Timestamp {far} of message with offset 2 is out"))
    );
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, 0);
}

// If this failed, a producer would keep the bad records that have no message, and send them again for ever.
#[test]
fn bad_records_without_a_message_are_named() {
    let server = TestServer::start(&[]);
    let compacted = common::properties(&[("cleanup.policy", "compact")]);
    server.server.update_topic_config("t", &compacted).unwrap();
    let keyless = batch(&[&b"v"[..]; 1200]);
    let body = server.client().call(0, 9, produce("t", 1, &[(0, &keyless)]));
    let answer = produced(&body);
    let errors: Vec<_> = answer.get("record_errors").unwrap().structs().collect();
    let indexes: Vec<_> = errors.iter().map(|error| int(error, "batch_index")).collect();
    assert_eq!(indexes, (0..1200).collect::<Vec<i64>>());
    let has_text = |error: &&Struct| !error.get("batch_index_error_message").unwrap().is_null();
    assert_eq!(errors.iter().filter(|error| has_text(error)).count(), 1000);
}

// If this failed, LogAppendTime would keep the producers' timestamps, or store batches with wrong checksums.
#[test]
fn log_append_time_is_the_brokers() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let stamped = common::properties(&[("message.timestamp.type", "LogAppendTime")]);
    server.server.update_topic_config("t", &stamped).unwrap();
    let body = client.call(0, 9, produce("t", 1, &[(0, &batch(&[b"a", b"b"]))]));
    let time = int(&produced(&body), "log_append_time_ms");
    assert!(time > 1_700_000_000_000);
    let response = Fetch::default().call(&mut client);
    let stored = records(&fetched(&response)[0]);
    let stored = logcore_records::Batch::parse(&stored).unwrap();
    stored.verify_crc().unwrap();
    assert_eq!(stored.header.max_timestamp, time);
}

// If this failed, clients older than Kafka 0.11 would be refused, or their records would change.
#[test]
fn message_sets_are_converted() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let mut message = Vec::new();
    // Magic 1, no compression, a timestamp, no key, and a value of two bytes (KIP-32).
    message.extend([1, 0]);
    message.extend(1_700_000_000_123i64.to_be_bytes());
    message.extend((-1i32).to_be_bytes());
    message.extend(2i32.to_be_bytes());
    message.extend(b"ok");
    let mut set = 0i64.to_be_bytes().to_vec();
    set.extend((message.len() as i32 + 4).to_be_bytes());
    set.extend(crc32(&message).to_be_bytes());
    set.extend(&message);
    for version in 0..=2 {
        assert_eq!(code(&mut client, version, "t", 0, &set), 0, "version {version}");
    }
    // An incomplete message at the end is dropped, even if it is the only one.
    for end in [0, 10, set.len() - 1] {
        let with_a_part = [&set[..], &set[..end]].concat();
        assert_eq!(code(&mut client, 2, "t", 0, &with_a_part), 0, "{end}");
        let body = client.call(0, 2, produce("t", -1, &[(0, &set[..end])]));
        let answer = produced(&body);
        assert_eq!(int(&answer, "error_code"), 0, "{end}");
        assert_eq!(int(&answer, "base_offset"), -1, "{end}");
    }
    let stored_end = 3 + 3;
    set[17] ^= 64;
    assert_ne!(code(&mut client, 2, "t", 0, &set), 0);
    let response = Fetch::default().call(&mut client);
    let stored = records(&fetched(&response)[0]);
    let first = logcore_records::Batch::parse(&stored).unwrap();
    assert_eq!(first.header.base_timestamp, 1_700_000_000_123);
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, stored_end);
}

/// CRC-32 (IEEE), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(!0, step)
}

// If this failed, logs would grow until the disk is full.
#[test]
fn retention_runs_by_itself() {
    let server = TestServer::start(&[
        ("log.retention.check.interval.ms", "1"),
        ("log.retention.bytes", "1"),
        ("log.segment.bytes", "1000"),
    ]);
    let mut client = server.client();
    for _ in 0..5 {
        assert_eq!(code(&mut client, 9, "t", 0, &batch(&[&[1; 900]])), 0);
    }
    server.wait_until("a deleted segment", || {
        server.server.offsets("t", 0).unwrap().log_start > 0
    });
    let response = Fetch::default().call(&mut client);
    assert_eq!(int(&fetched(&response)[0], "error_code"), 1);
}
