//! Fetch v0 to v3: clients older than Kafka 0.11 get message sets.

use std::path::Path;

use logcore_protocol::Struct;
use logcore_records::{BatchBuilder, Compression, EndTxnMarker, end_txn_marker, legacy};
use logcore_server::PartitionSpec;
use logcore_storage::{LogConfig, LogDir};

use super::common::{Client, Fetch, TestServer, fetched, int, partition, produce, properties, records};
use super::write_batch;

const LIMIT: usize = 64 << 20;

fn old(version: i16, offset: i64) -> Fetch {
    Fetch {
        version,
        offset,
        ..Fetch::default()
    }
}

fn ask(client: &mut Client, fetch: &Fetch) -> Struct {
    let response = fetch.call(client);
    fetched(&response)[0].clone()
}

type Message = (i64, i64, Vec<u8>);

/// The offset, timestamp and value of each whole message, all of which have this magic byte.
fn messages(bytes: &[u8], magic: u8) -> Vec<Message> {
    let whole = &bytes[..logcore_storage::whole_batches(bytes)];
    let mut found = Vec::new();
    assert!(whole.is_empty() || whole[16] == magic);
    legacy::for_each(whole, LIMIT, |message| {
        assert_eq!(message.key, Some(&b"key"[..]));
        let value = message.value.unwrap().to_vec();
        found.push((message.offset, message.timestamp, value));
        Ok(())
    })
    .unwrap();
    found
}

// If this failed, consumers older than Kafka 0.11 could not read, or would get wrong records.
#[test]
fn batches_of_each_codec_are_converted() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let codecs = &Compression::ALL[..4];
    for codec in codecs {
        write_batch(&mut client, *codec, &[b"one", b"two"]);
    }
    for version in 0..4 {
        let magic = u8::from(version >= 2);
        for offset in 0..8 {
            let part = ask(&mut client, &old(version, offset));
            assert_eq!((int(&part, "error_code"), int(&part, "high_watermark")), (0, 8));
            let time = if magic == 0 { -1 } else { 1000 };
            // Compressed messages come whole, as batches do.
            let first = if offset < 2 { offset } else { offset / 2 * 2 };
            let expected: Vec<Message> = (first..8)
                .map(|offset| (offset, time, [b"one", b"two"][offset as usize % 2].to_vec()))
                .collect();
            assert_eq!(
                messages(&records(&part), magic),
                expected,
                "v{version} from {offset}"
            );
        }
    }
    let seen = server.server.measurements();
    let name = |found: &&&str| **found == "FetchMessageConversions";
    let index = seen.topic_counters.iter().position(|found| name(&found));
    let counted = seen.all_topics[index.unwrap()];
    // Four versions, each from eight offsets. Of the uncompressed batch, offset 1 leaves out one record.
    assert_eq!(counted, 4 * (8 + 7 + 2 * (6 + 4 + 2)));
}

// If this failed, an old consumer would never get past a batch larger than its limit. It needs a part of the
// batch to notice that it must ask for more bytes.
#[test]
fn a_batch_above_the_limit_is_cut_before_version_3() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    write_batch(&mut client, Compression::None, &[&[1u8; 1000][..]; 3]);
    write_batch(&mut client, Compression::None, &[&[2; 1000]]);
    let limited = |version, bytes: i32| Fetch {
        partition_bytes_max: bytes,
        ..old(version, 0)
    };
    for version in 0..3 {
        let magic = u8::from(version >= 2);
        for (bytes, whole) in [(500, 0), (1500, 1), (3000, 2), (20_000, 4)] {
            let part = ask(&mut client, &limited(version, bytes));
            let sent = records(&part);
            assert!(sent.len() <= bytes as usize);
            assert!(
                whole == 4 || sent.len() == bytes as usize,
                "the response is filled with a part of the next message"
            );
            assert_eq!(messages(&sent, magic).len(), whole);
        }
    }
    let part = ask(&mut client, &limited(3, 500));
    assert_eq!(messages(&records(&part), 1).len(), 3);
}

// If this failed, an old consumer would get nothing of a partition until it has read another one to its end.
#[test]
fn partitions_share_a_response() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder
        .append(1000, Some(b"key"), Some(&[0; 900_000]), &[])
        .unwrap();
    let sent = builder.build().unwrap();
    for _ in 0..12 {
        for index in [0, 1] {
            client.call(0, 9, produce("t", 1, &[(index, &sent)]));
        }
    }
    for version in 0..3 {
        let fetch = Fetch {
            partitions: vec![0, 1],
            partition_bytes_max: 100 << 20,
            ..old(version, 0)
        };
        let response = fetch.call(&mut client);
        let sizes: Vec<_> = fetched(&response)
            .iter()
            .map(|part| records(part).len())
            .collect();
        assert!(
            sizes.iter().all(|size| (3 << 20..5 << 20).contains(size)),
            "{sizes:?}"
        );
    }
}

/// Appends a commit marker to partition 0 of `t`, as a transaction coordinator does.
fn append_marker(dir: &Path) {
    let config = |_: &str| LogConfig::default();
    let cluster = Some("abcdefghijklmnopqrstug");
    let logs = LogDir::open(&dir.join("logs"), 1, cluster, &config).unwrap();
    let committed = EndTxnMarker {
        committed: true,
        coordinator_epoch: 0,
    };
    let mut marker = end_txn_marker(7, 0, committed, 1000).unwrap();
    let log = &logs.get("t", 0).unwrap().log;
    log.append_as_coordinator(&mut marker, 3, 1000).unwrap();
    logs.close().unwrap();
}

// If this failed, an old consumer would read a marker as a record, or get zstd, which it cannot read.
#[test]
fn markers_are_left_out_and_zstd_is_refused() {
    let server = TestServer::start(&[]);
    write_batch(&mut server.client(), Compression::None, &[b"one"]);
    let dir = server.stop();
    append_marker(dir.path());
    let server = TestServer::start_in(dir, &[]);
    let mut client = server.client();
    write_batch(&mut client, Compression::None, &[b"two"]);
    let part = ask(&mut client, &old(2, 0));
    let offsets: Vec<_> = messages(&records(&part), 1).iter().map(|m| m.0).collect();
    assert_eq!(offsets, [0, 2]);
    write_batch(&mut client, Compression::Zstd, &[b"three"]);
    let part = ask(&mut client, &old(2, 0));
    assert_eq!(messages(&records(&part), 1).len(), 2);
    for version in 0..4 {
        let part = ask(&mut client, &old(version, 3));
        assert_eq!(int(&part, "error_code"), 76);
    }
    server.wait_for_line("zstd");
}

// If this failed, `message.downconversion.enable=false` would have no effect.
#[test]
fn conversion_can_be_turned_off() {
    let server = TestServer::start(&[("log.message.downconversion.enable", "false")]);
    let mut client = server.client();
    write_batch(&mut client, Compression::None, &[b"one"]);
    assert_eq!(int(&ask(&mut client, &old(3, 0)), "error_code"), 35);
    assert_eq!(int(&ask(&mut client, &old(4, 0)), "error_code"), 0);
    let config = properties(&[("message.downconversion.enable", "true")]);
    let spec = PartitionSpec {
        config,
        ..partition("own", 0)
    };
    server.server.create_partition(&spec).unwrap();
    let own = Fetch {
        topic: "own",
        ..old(3, 0)
    };
    assert_eq!(int(&ask(&mut client, &own), "error_code"), 0);
}

// If this failed, old consumers that do not read would fill the broker's memory, or stop newer consumers.
#[test]
fn old_consumers_that_do_not_read_stop_only_old_ones() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    for _ in 0..9 {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder
            .append(1000, Some(b"key"), Some(&[0; 900_000]), &[])
            .unwrap();
        client.call(0, 9, produce("t", 1, &[(0, &builder.build().unwrap())]));
    }
    let all = Fetch {
        partition_bytes_max: 100 << 20,
        ..old(3, 0)
    };
    let mut not_reading: Vec<_> = (0..12).map(|_| server.client()).collect();
    for client in &mut not_reading {
        client.send(1, 3, all.message());
    }
    server.wait_for_requests(1, 12);
    let part = ask(&mut client, &Fetch { version: 4, ..all });
    assert!(records(&part).len() > 8_000_000);
    // When some read, those that wait for memory get theirs. The order is not known, so all read at once.
    std::thread::scope(|scope| {
        for client in &mut not_reading {
            scope.spawn(|| {
                let (_, response) = client.receive(1, 3);
                assert!(records(&fetched(&response)[0]).len() > 6_000_000);
            });
        }
    });
}
