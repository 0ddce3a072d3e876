//! The content of Fetch responses: records within the limits, errors, aborted transactions.

use logcore_protocol::Value;
use logcore_records::{BatchBuilder, Compression, EndTxnMarker, batches, end_txn_marker};

use super::common::{self, Client, Fetch, TestServer, fetched, int, records};
use super::write;

// If this failed, a consumer of some version would not get the produced records.
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

// If this failed, a consumer could run out of memory, or never get past a batch larger than its limit.
#[test]
fn limits_hold_except_for_the_first_batch() {
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

// If this failed, a read_committed response without records would name other transactions than Kafka's.
#[test]
fn aborted_transactions_are_null_where_a_batch_does_not_fit() {
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
        (size, 0, nothing.clone()), // no bytes are left
        (1 << 20, 0, nothing.clone()),
        (1 << 20, 1, nothing.clone()),
    ] {
        let answer = fetch(bytes_max, offset).call(&mut client);
        let parts = fetched(&answer);
        let aborted = |index: usize| parts[index].get("aborted_transactions").cloned();
        assert_eq!(aborted(0), nothing, "{bytes_max}");
        assert_eq!(aborted(1), expected, "{bytes_max}");
    }
}

// If this failed, a consumer whose offset, leader or topic is gone would get no error or a wrong one.
#[test]
fn errors_are_kafkas_and_end_the_wait() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    write(&mut client, 0, b"x");
    let waiting = || Fetch {
        wait_ms: 600_000,
        ..Fetch::default()
    };
    for (fetch, expected) in [
        (
            Fetch {
                offset: 2,
                ..waiting()
            },
            1,
        ),
        (
            Fetch {
                offset: -1,
                ..waiting()
            },
            1,
        ),
        (
            Fetch {
                partitions: vec![5],
                ..waiting()
            },
            3,
        ),
        (
            Fetch {
                leader_epoch: 2,
                ..waiting()
            },
            74,
        ),
        (
            Fetch {
                leader_epoch: 4,
                ..waiting()
            },
            75,
        ),
    ] {
        let response = fetch.call(&mut client);
        let part = &fetched(&response)[0];
        assert_eq!(int(part, "error_code"), expected);
        assert_eq!(int(part, "high_watermark"), -1);
    }
    let mut unknown = waiting().message();
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
            ..waiting()
        }
        .message(),
    );
    server.wait_for_requests(1, 7);
    server.server.delete_topic("t").unwrap();
    let (_, response) = client.receive(1, 12);
    assert_eq!(int(&fetched(&response)[0], "error_code"), 3);
}

// If this failed, a large response would be cut or mixed up when the client reads slowly. Or the deletion of
// a topic would cut the response that is being sent.
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
    // The socket's buffers cannot hold the response: after its first bytes, the rest is still being sent.
    client.stream.peek(&mut [0; 64]).unwrap();
    server.server.delete_topic("t").unwrap();
    let (_, response) = client.receive(1, fetch.version);
    let parts = fetched(&response);
    assert_eq!(records(&parts[0])[16..], sent[16..]);
    assert!(!records(&parts[1]).is_empty());
}

// If this failed, a read_committed consumer would get records of aborted or open transactions.
#[test]
fn read_committed_responses_name_aborted_transactions() {
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
        let aborted: Vec<_> = answer.get("aborted_transactions").unwrap().structs().collect();
        assert_eq!(aborted.len(), 1, "version {version}");
        assert_eq!(
            (int(aborted[0], "producer_id"), int(aborted[0], "first_offset")),
            (7, 0)
        );
        let only = records(&answer);
        assert_eq!(batches(&only).count(), 1);
        let plain = fetched(&fetch(0, false).call(&mut client)).remove(0);
        assert_eq!(batches(&records(&plain)).count(), 3);
        assert!(plain.get("aborted_transactions").is_none_or(Value::is_null));
    }
}
