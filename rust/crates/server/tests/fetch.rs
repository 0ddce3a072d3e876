//! Fetch and ListOffsets: limits, long polls, sessions, epochs, and what is read while a topic is deleted.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use common::{
    Client, Fetch, TestServer, batch, fetched, int, only_part, partition, produce, produced, records, request,
};
use logcore_protocol::{Struct, Value};
use logcore_records::{BatchBuilder, Compression, EndTxnMarker, batches, end_txn_marker};
use logcore_server::PartitionSpec;

fn write(client: &mut Client, index: i32, value: &[u8]) -> Vec<u8> {
    let sent = batch(&[value]);
    let body = client.call(0, 9, produce("t", 1, &[(index, &sent)]));
    assert_eq!(int(&produced(&body), "error_code"), 0);
    sent
}

// If this failed, a consumer of some version would not get what was produced.
#[test]
fn every_version_returns_the_records() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let sent = write(&mut client, 0, &[9; 300_000]);
    for version in 4..=17 {
        let fetch = Fetch {
            version,
            ..Fetch::default()
        };
        let response = fetch.call(&mut client);
        let part = &fetched(&response)[0];
        assert_eq!(int(part, "error_code"), 0, "version {version}");
        assert_eq!(int(part, "high_watermark"), 1);
        assert_eq!(int(part, "last_stable_offset"), 1);
        assert_eq!(records(part)[16..], sent[16..]);
    }
}

// If this failed, a consumer could be sent more than it has memory for, or be stuck before a batch larger than its limit.
#[test]
fn limits_hold_but_the_first_batch_is_whole() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let size = write(&mut client, 0, &[1; 1000]).len() as i32;
    for _ in 0..9 {
        write(&mut client, 0, &[1; 1000]);
        write(&mut client, 1, &[2; 1000]);
    }
    let both = || Fetch {
        partitions: vec![0, 1],
        ..Fetch::default()
    };
    let sizes = |fetch: Fetch, client: &mut Client| -> Vec<i32> {
        let response = fetch.call(client);
        fetched(&response)
            .iter()
            .map(|part| records(part).len() as i32)
            .collect()
    };
    assert_eq!(
        sizes(
            Fetch {
                bytes_max: 1,
                ..both()
            },
            &mut client
        ),
        [size, 0]
    );
    assert_eq!(
        sizes(
            Fetch {
                partition_bytes_max: 1,
                ..both()
            },
            &mut client
        ),
        [size, 0]
    );
    let limited = sizes(
        Fetch {
            partition_bytes_max: 3 * size,
            ..both()
        },
        &mut client,
    );
    assert_eq!(limited, [3 * size, 3 * size]);
    let limited = sizes(
        Fetch {
            bytes_max: 11 * size + 5,
            ..both()
        },
        &mut client,
    );
    assert_eq!(limited[0], 10 * size);
    assert!(limited[1] <= size + 5);
    assert_eq!(sizes(both(), &mut client), [10 * size, 9 * size]);
}

// If this failed, a reader of committed records that gets none would be told other things of transactions than Kafka tells it.
#[test]
fn nothing_is_told_of_transactions_where_a_batch_has_no_room() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let size = write(&mut client, 0, &[1; 1000]).len() as i32;
    write(&mut client, 1, &[2; 1000]);
    let fetch = |bytes_max, offset| Fetch {
        committed: true,
        partitions: vec![0, 1],
        bytes_max,
        offset,
        ..Fetch::default()
    };
    let nothing = Some(Value::Array(Vec::new()));
    for (bytes_max, offset, expected) in [
        (size + 5, 0, Some(Value::Null)),
        (size, 0, nothing.clone()), // there is no room for anything
        (1 << 20, 0, nothing.clone()),
        (1 << 20, 1, nothing.clone()),
    ] {
        let answer = fetch(bytes_max, offset).call(&mut client);
        let parts = fetched(&answer);
        let told = |index: usize| parts[index].get("aborted_transactions").cloned();
        assert_eq!(told(0), nothing, "{bytes_max}");
        assert_eq!(told(1), expected, "{bytes_max}");
    }
}

// If this failed, consumers would poll in a busy loop or see records late.
#[test]
fn a_long_poll_is_woken_by_the_append() {
    let server = TestServer::start(&[]);
    let mut consumer = server.client();
    let mut producer = server.client();
    let size = write(&mut producer, 1, b"first").len() as i32;
    let poll = Fetch {
        wait_ms: 600_000,
        bytes_min: size + 1,
        partitions: vec![0, 1],
        ..Fetch::default()
    };
    consumer.send(1, poll.version, poll.message());
    // The server looks at the poll before or after this append: it is answered in both cases, and not before it.
    write(&mut producer, 0, b"second");
    let (_, response) = consumer.receive(1, poll.version);
    assert!(
        fetched(&response)
            .iter()
            .all(|part| records(part).len() as i32 >= size)
    );
}

// If this failed, an idle consumer would hang beyond its patience, or a stop would wait for all long polls.
#[test]
fn a_long_poll_ends_with_its_time_and_with_the_server() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let response = Fetch {
        wait_ms: 20,
        ..Fetch::default()
    }
    .call(&mut client);
    assert!(records(&fetched(&response)[0]).is_empty());
    let poll = Fetch {
        wait_ms: 600_000,
        ..Fetch::default()
    };
    client.send(1, poll.version, poll.message());
    server.wait_for_requests(1, 2);
    server.server.stop(std::time::Duration::from_secs(20)).unwrap();
    let (_, response) = client.receive(1, poll.version);
    assert_eq!(int(&fetched(&response)[0], "error_code"), 0);
    assert!(client.is_closed());
}

// If this failed, a consumer that lost its place, its leader or its topic would be told nothing or the wrong thing.
#[test]
fn errors_are_kafkas_and_end_the_wait() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    write(&mut client, 0, b"x");
    let patient = || Fetch {
        wait_ms: 600_000,
        ..Fetch::default()
    };
    for (fetch, expected) in [
        (
            Fetch {
                offset: 2,
                ..patient()
            },
            1,
        ),
        (
            Fetch {
                offset: -1,
                ..patient()
            },
            1,
        ),
        (
            Fetch {
                partitions: vec![5],
                ..patient()
            },
            3,
        ),
        (
            Fetch {
                leader_epoch: 2,
                ..patient()
            },
            74,
        ),
        (
            Fetch {
                leader_epoch: 4,
                ..patient()
            },
            75,
        ),
    ] {
        let response = fetch.call(&mut client);
        let part = &fetched(&response)[0];
        assert_eq!(int(part, "error_code"), expected);
        assert_eq!(int(part, "high_watermark"), -1);
    }
    let mut unknown = patient().message();
    unknown.set("topics", Vec::<Value>::new());
    let stranger = unknown.element("topics").with("topic_id", [9u8; 16]);
    let part = stranger.element("partitions");
    unknown.push("topics", stranger.with("partitions", vec![Value::Struct(part)]));
    let response = client.call(1, 13, unknown);
    assert_eq!(int(&fetched(&response)[0], "error_code"), 100);
    client.send(
        1,
        12,
        Fetch {
            offset: 1,
            ..patient()
        }
        .message(),
    );
    server.wait_for_requests(1, 7);
    server.server.delete_topic("t").unwrap();
    let (_, response) = client.receive(1, 12);
    assert_eq!(int(&fetched(&response)[0], "error_code"), 3);
}

// If this failed, consumers with sessions (KIP-227) would miss records or be sent every partition every time.
#[test]
fn sessions_send_what_changed() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let fetch = |session: (i32, i32), partitions: Vec<i32>, client: &mut Client| {
        let response = Fetch {
            session,
            partitions,
            offset: 0,
            ..Fetch::default()
        }
        .call(client);
        let root = response.as_struct().unwrap().clone();
        let indexes: Vec<_> = fetched(&response)
            .iter()
            .map(|part| int(part, "partition_index"))
            .collect();
        (int(&root, "session_id") as i32, int(&root, "error_code"), indexes)
    };
    let (id, _, indexes) = fetch((0, 0), vec![0, 1], &mut client);
    assert!(id > 0);
    assert_eq!(indexes, [0, 1]);
    assert_eq!(fetch((id, 1), vec![], &mut client), (id, 0, vec![]));
    write(&mut client, 1, b"new");
    assert_eq!(fetch((id, 2), vec![], &mut client), (id, 0, vec![1]));
    assert_eq!(fetch((id, 2), vec![], &mut client), (0, 71, vec![]));
    assert_eq!(fetch((id ^ 1, 1), vec![], &mut client), (0, 70, vec![]));
    assert_eq!(fetch((id, -1), vec![0], &mut client), (0, 0, vec![0]));
    assert_eq!(fetch((id, 3), vec![], &mut client), (0, 70, vec![]));
}

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

// If this failed, a consumer could not find the beginning, the end or a time.
#[test]
fn list_offsets_finds_ends_and_times() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    assert_eq!(int(&list(&mut client, 9, -1), "offset"), 0);
    for time in [1000, 3000, 2000] {
        let mut builder = logcore_records::BatchBuilder::new(logcore_records::Compression::None, None);
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

// If this failed, a consumer could not notice that the log it read from was cut (KIP-320).
#[test]
fn offset_for_leader_epoch_tells_where_epochs_end() {
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

// If this failed, a large response would be cut or mixed up when the client reads slower than the broker sends, and a topic
// deleted meanwhile would take the records from under a consumer that is reading them.
#[test]
fn a_slow_reader_gets_everything_even_of_a_deleted_topic() {
    let server = TestServer::start(&[("message.max.bytes", "40000000")]);
    let mut client = server.client();
    let value: Vec<u8> = (0..30_000_000u32).map(|number| (number / 7) as u8).collect();
    let sent = write(&mut client, 0, &value);
    write(&mut client, 1, b"after it");
    let fetch = Fetch {
        partitions: vec![0, 1],
        partition_bytes_max: 40_000_000,
        ..Fetch::default()
    };
    client.send(1, fetch.version, fetch.message());
    // The socket's buffers cannot hold the response: once its head is here, the rest is still being sent.
    client.stream.peek(&mut [0; 64]).unwrap();
    server.server.delete_topic("t").unwrap();
    let (_, response) = client.receive(1, fetch.version);
    let parts = fetched(&response);
    assert_eq!(records(&parts[0])[16..], sent[16..]);
    assert!(!records(&parts[1]).is_empty());
}

// If this failed, a consumer of committed records would be given aborted ones, or those of open transactions.
#[test]
fn committed_readers_are_told_what_was_aborted() {
    let dir = tempfile::tempdir().unwrap();
    let logs = logcore_storage::LogDir::open(
        &dir.path().join("logs"),
        1,
        Some("abcdefghijklmnopqrstug"),
        &|_| logcore_storage::LogConfig::default(),
    )
    .unwrap();
    let created = logs.create("t", 0, common::TOPIC_ID, logcore_storage::LogConfig::default());
    let log = &created.unwrap().log;
    let begin = |producer_id| {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.set_producer_state(producer_id, 0, 0);
        builder.set_transactional(true);
        builder.append(1, None, Some(b"v"), &[]).unwrap();
        log.append_as_leader(&mut builder.build().unwrap(), 0, 1).unwrap();
    };
    begin(7);
    begin(8);
    let abort = EndTxnMarker {
        committed: false,
        coordinator_epoch: 0,
    };
    let mut marker = end_txn_marker(7, 0, abort, 1).unwrap();
    log.append_as_coordinator(&mut marker, 0, 1).unwrap();
    logs.close().unwrap();
    drop(logs);

    let server = TestServer::start_in(dir, &[]);
    let mut client = server.client();
    for version in 4..=17 {
        let fetch = |offset, committed| Fetch {
            version,
            offset,
            committed,
            ..Fetch::default()
        };
        let answer = fetched(&fetch(0, true).call(&mut client)).remove(0);
        assert_eq!(
            (int(&answer, "last_stable_offset"), int(&answer, "high_watermark")),
            (1, 3)
        );
        let told: Vec<_> = answer.get("aborted_transactions").unwrap().structs().collect();
        assert_eq!(told.len(), 1, "version {version}");
        assert_eq!(
            (int(told[0], "producer_id"), int(told[0], "first_offset")),
            (7, 0)
        );
        let only = records(&answer);
        assert_eq!(batches(&only).count(), 1);
        let plain = fetched(&fetch(0, false).call(&mut client)).remove(0);
        assert_eq!(batches(&records(&plain)).count(), 3);
        assert!(plain.get("aborted_transactions").is_none_or(Value::is_null));
    }
}

// If this failed, a consumer in an old segment would wait for bytes that no read of that segment can have.
#[test]
fn a_long_poll_does_not_wait_in_an_older_segment() {
    let server = TestServer::start(&[("log.segment.bytes", "1000")]);
    let mut client = server.client();
    for _ in 0..3 {
        write(&mut client, 0, &[1; 700]);
    }
    let ask = |offset, wait_ms| Fetch {
        offset,
        wait_ms,
        bytes_min: 1 << 20,
        ..Fetch::default()
    };
    let response = ask(0, 600_000).call(&mut client);
    assert!(!records(&fetched(&response)[0]).is_empty());
    // In the last segment it does.
    client.send(1, 12, ask(2, 600_000).message());
    server.wait_for_gauge("delayed_fetches", 1);
}

// If this failed, a consumer would read a topic of the same name for the one it has offsets of.
#[test]
fn a_session_is_not_carried_over_to_a_topic_of_the_same_name() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let ask = |session| Fetch {
        version: 17,
        session,
        ..Fetch::default()
    };
    let response = ask((0, 0)).call(&mut client);
    let id = match response.get("session_id") {
        Some(Value::I32(id)) => *id,
        other => panic!("{other:?}"),
    };
    let mut next = |epoch| {
        let bare = Fetch {
            partitions: Vec::new(),
            ..ask((id, epoch))
        };
        let response = bare.call(&mut client);
        int(&fetched(&response)[0], "error_code")
    };
    server.server.delete_topic("t").unwrap();
    assert_eq!(next(1), 3);
    let mut anew = common::partition("t", 0);
    anew.topic_id = [5; 16];
    server.server.create_partition(&anew).unwrap();
    assert_eq!(next(2), 103);
}

// If this failed, who waits on a log of an older Kafka would wait on when its topic is given an id, or the topic keep the name
// of its id after it is gone.
#[test]
fn a_topic_is_given_an_id() {
    let server = TestServer::start(&[]);
    let with_id = |topic_id| PartitionSpec {
        topic_id,
        ..partition("old", 0)
    };
    server.server.create_partition(&with_id([0; 16])).unwrap();
    let mut client = server.client();
    let poll = Fetch {
        topic: "old",
        wait_ms: 600_000,
        ..Fetch::default()
    };
    client.send(1, poll.version, poll.message());
    server.wait_for_gauge("delayed_fetches", 1);
    server.server.create_partition(&with_id([8; 16])).unwrap();
    let stored = produce("old", 1, &[(0, &batch(&[b"a"]))]);
    server.client().call(0, 9, stored);
    let (_, body) = client.receive(1, poll.version);
    assert_eq!(int(&fetched(&body)[0], "high_watermark"), 1);
    assert!(server.server.create_partition(&with_id([9; 16])).is_err());
    server.server.delete_topic("old").unwrap();
    let by_id = Fetch {
        version: 13,
        topic: "old",
        ..Fetch::default()
    };
    let body = by_id.call(&mut client);
    let unknown_topic_id = 100;
    assert_eq!(int(&fetched(&body)[0], "error_code"), unknown_topic_id);
}

// If this failed, a client that has nothing more to send would not get what it waits for.
#[test]
fn a_half_closed_client_gets_its_answer() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let poll = Fetch {
        wait_ms: 200,
        ..Fetch::default()
    };
    client.send(1, poll.version, poll.message());
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    let (_, response) = client.receive(1, poll.version);
    assert_eq!(int(&fetched(&response)[0], "error_code"), 0);
    assert!(client.is_closed());
}
