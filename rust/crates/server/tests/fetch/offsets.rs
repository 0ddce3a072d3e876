//! ListOffsets and OffsetForLeaderEpoch.

use logcore_protocol::{Struct, Value};
use logcore_records::{BatchBuilder, Compression};

use super::common::{Client, TestServer, int, only_part, produce, request};
use super::{write, write_batch};

fn list(client: &mut Client, version: i16, timestamp: i64) -> Struct {
    let mut message = request(2);
    message.set("replica_id", -1);
    let topic = message.element("topics").with("name", "t");
    let part = topic.element("partitions").with("timestamp", timestamp);
    message.push("topics", topic.with("partitions", vec![Value::Struct(part)]));
    let body = client.call(2, version, message);
    let topic = body.get("topics").unwrap().structs().next().unwrap();
    topic.get("partitions").unwrap().structs().next().unwrap().clone()
}

// If this failed, a consumer could not find the start, the end or the offset of a time.
#[test]
fn list_offsets_finds_ends_and_times() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    assert_eq!(int(&list(&mut client, 9, -1), "offset"), 0);
    for time in [1000, 3000, 2000] {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.append(time, None, Some(b"v"), &[]).unwrap();
        let sent = builder.build().unwrap();
        client.call(0, 9, produce("t", 1, &[(0, &sent)]));
    }
    for (version, timestamp, offset, time) in [
        (1, -1, 3, -1),
        (1, -2, 0, -1),
        (9, -1, 3, -1),
        (9, -2, 0, -1),
        (7, -3, 1, 3000),
        (8, -4, 0, -1),
        (9, -5, -1, -1),
        (9, 0, 0, 1000),
        (9, 1001, 1, 3000),
        (9, 3001, -1, -1),
    ] {
        let found = list(&mut client, version, timestamp);
        assert_eq!(int(&found, "error_code"), 0);
        assert_eq!(
            (int(&found, "offset"), int(&found, "timestamp")),
            (offset, time),
            "{timestamp} at v{version}"
        );
        let epoch = if version >= 4 && offset >= 0 { 3 } else { -1 };
        assert_eq!(int(&found, "leader_epoch"), epoch, "{timestamp} at v{version}");
    }
    assert_eq!(int(&list(&mut client, 6, -3), "error_code"), 35);
    assert_eq!(int(&list(&mut client, 9, -6), "error_code"), 35);
}

// If this failed, a consumer could not notice that the log it read from was truncated (KIP-320).
#[test]
fn offset_for_leader_epoch_finds_the_ends_of_epochs() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    write(&mut client, 0, b"in epoch 3");
    let ends: Vec<_> = [(2, -1), (3, -1), (9, -1), (3, 2)]
        .into_iter()
        .map(|(epoch, known)| {
            let mut message = request(23);
            let topic = message.element("topics").with("topic", "t");
            let part = topic
                .element("partitions")
                .with("leader_epoch", epoch)
                .with("current_leader_epoch", known);
            message.push("topics", topic.with("partitions", vec![Value::Struct(part)]));
            let part = only_part(&client.call(23, 4, message));
            (
                int(&part, "error_code"),
                int(&part, "leader_epoch"),
                int(&part, "end_offset"),
            )
        })
        .collect();
    assert_eq!(ends[1], (0, 3, 1));
    assert_eq!(ends[3].0, 74);
    assert_eq!((ends[0].0, ends[2].0), (0, 0));
}

fn list_segments(client: &mut Client, replica: i32, timestamp: i64, count: i32) -> (i64, Vec<i64>) {
    let mut message = request(2);
    message.set("replica_id", replica);
    let topic = message.element("topics").with("name", "t");
    let part = topic.element("partitions");
    let part = part.with("timestamp", timestamp).with("max_num_offsets", count);
    message.push("topics", topic.with("partitions", vec![Value::Struct(part)]));
    let body = client.call(2, 0, message);
    let topic = body.get("topics").unwrap().structs().next().unwrap();
    let part = topic.get("partitions").unwrap().structs().next().unwrap();
    let offsets = part.get("old_style_offsets").unwrap().as_array().unwrap();
    let offsets = offsets.iter().map(|offset| offset.as_i64().unwrap()).collect();
    (int(part, "error_code"), offsets)
}

// If this failed, clients of Kafka 0.8 and 0.9 could not find the start or the end.
#[test]
fn list_offsets_0_lists_the_starts_of_segments() {
    let server = TestServer::start(&[("log.segment.bytes", "1000")]);
    let mut client = server.client();
    assert_eq!(list_segments(&mut client, -1, -1, 10), (0, vec![0]));
    for _ in 0..3 {
        write_batch(&mut client, Compression::None, &[&[0; 700][..], &[0; 100]]);
    }
    for (timestamp, count, expected) in [
        (-1, 1, &[6][..]),
        (-1, 10, &[6, 4, 2, 0]),
        (-1, 0, &[]),
        (-2, 10, &[0]),
        (i64::MAX, 2, &[6, 4]),
        (0, 10, &[]),
    ] {
        let found = list_segments(&mut client, -1, timestamp, count);
        assert_eq!(found, (0, expected.to_vec()), "{timestamp} {count}");
    }
    assert_eq!(list_segments(&mut client, -1, -1, -1).0, -1);
}

// If this failed, a short request could get a response of any length: each repetition lists all segments.
#[test]
fn list_offsets_0_refuses_a_repeated_partition() {
    let server = TestServer::start(&[]);
    let mut message = request(2);
    message.set("replica_id", -1);
    let topic = message.element("topics").with("name", "t");
    let part = topic.element("partitions").with("timestamp", -1_i64);
    let parts = vec![Value::Struct(part.clone()), Value::Struct(part)];
    message.push("topics", topic.with("partitions", parts));
    let body = server.client().call(2, 0, message);
    let topic = body.get("topics").unwrap().structs().next().unwrap();
    let parts = topic.get("partitions").unwrap().structs();
    let codes: Vec<i64> = parts.map(|part| int(part, "error_code")).collect();
    assert_eq!(codes, [42, 42]);
}
