//! Batches and message sets that Apache Kafka 3.9.1 wrote (see `golden/GoldenBatches.java`) are read as Kafka
//! reads them. If this fails, a topic of an existing cluster, or a Java client's batch, is not readable here.
#![allow(clippy::unwrap_used)]

use logcore_records::{Batch, BatchHeader, Compression, TimestampType, batches, legacy};

const LIMIT: usize = 1 << 20;
const BASE_OFFSET: i64 = 10;
const TIME: i64 = 1_700_000_000_000;

fn golden(name: &str) -> Vec<u8> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    std::fs::read(format!("{directory}/{name}.bin")).unwrap()
}

/// Offset, timestamp, key and value of the three records in every file but the control batch's.
type Plain = (i64, i64, Option<Vec<u8>>, Option<Vec<u8>>);

fn expected(times: [i64; 3]) -> Vec<Plain> {
    let own = |text: &str| Some(text.as_bytes().to_vec());
    vec![
        (BASE_OFFSET, times[0], own("k1"), own("v1")),
        (BASE_OFFSET + 1, times[1], None, Some(vec![b'a'; 300])),
        (BASE_OFFSET + 2, times[2], own("k3"), None),
    ]
}

fn plain(batch: &Batch<'_>) -> Vec<Plain> {
    let records = batch.records(LIMIT).unwrap();
    let plain = records.iter().map(|record| {
        let record = record.unwrap();
        let own = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        (
            record.offset,
            record.timestamp,
            own(record.key),
            own(record.value),
        )
    });
    plain.collect()
}

/// The only batch in `bytes`, checked as a broker checks a produced batch.
fn only_batch(bytes: &[u8]) -> Batch<'_> {
    let mut walk = batches(bytes);
    let batch = walk.next().unwrap().unwrap();
    assert!(walk.next().is_none());
    assert_eq!(walk.valid_bytes(), bytes.len());
    batch.verify_crc().unwrap();
    batch.validate(LIMIT).unwrap();
    batch
}

#[test]
fn batches_v2_of_every_codec() {
    for codec in Compression::ALL {
        let bytes = golden(&format!("v2-{codec}"));
        let batch = only_batch(&bytes);
        let expected_header = BatchHeader {
            base_offset: BASE_OFFSET,
            batch_length: bytes.len() as i32 - 12,
            partition_leader_epoch: 7,
            magic: 2,
            crc: batch.header.crc,
            attributes: i16::from(codec.code()),
            last_offset_delta: 2,
            base_timestamp: TIME,
            max_timestamp: TIME,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: 3,
        };
        assert_eq!(batch.header, expected_header);
        assert_eq!(plain(&batch), expected([TIME, TIME - 7, TIME]), "{codec}");
        let records = batch.records(LIMIT).unwrap();
        let first = records.iter().next().unwrap().unwrap();
        let headers: Vec<_> = first.headers().collect();
        assert_eq!(headers, [(&b"h"[..], Some(&b"x"[..])), (b"h", None)]);
    }
}

#[test]
fn batches_v2_with_append_time_and_with_a_producer() {
    let bytes = golden("v2-none-append-time");
    let batch = only_batch(&bytes);
    assert_eq!(batch.header.timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!(plain(&batch), expected([TIME + 500; 3]));

    let bytes = golden("v2-none-transactional");
    let header = only_batch(&bytes).header;
    assert!(header.is_transactional() && !header.is_control());
    assert_eq!((header.producer_id, header.producer_epoch), (4711, 3));
    assert_eq!((header.base_sequence, header.last_sequence()), (17, 19));

    let bytes = golden("v2-control");
    let batch = only_batch(&bytes);
    assert!(batch.header.is_transactional() && batch.header.is_control());
    assert_eq!(batch.header.partition_leader_epoch, 5);
    let records = batch.records(LIMIT).unwrap();
    let marker = records.iter().next().unwrap().unwrap();
    // Version 0, type 1: commit; version 0, coordinator epoch 9.
    assert_eq!(marker.key, Some(&[0, 0, 0, 1][..]));
    assert_eq!(marker.value, Some(&[0, 0, 0, 0, 0, 9][..]));
}

#[test]
fn message_sets_of_every_codec() {
    for magic in 0..2 {
        for codec in ["none", "gzip", "snappy", "lz4"] {
            let bytes = golden(&format!("v{magic}-{codec}"));
            assert!(legacy::is_legacy(&bytes));
            let times = match magic {
                0 => [-1; 3],
                _ => [TIME, TIME - 7, TIME],
            };
            check_legacy(&bytes, times);
        }
    }
    check_legacy(&golden("v1-gzip-append-time"), [TIME + 500; 3]);
}

fn check_legacy(bytes: &[u8], times: [i64; 3]) {
    let mut messages: Vec<Plain> = Vec::new();
    legacy::for_each(bytes, LIMIT, |message| {
        messages.push((
            message.offset,
            message.timestamp,
            message.key.map(<[u8]>::to_vec),
            message.value.map(<[u8]>::to_vec),
        ));
        Ok(())
    })
    .unwrap();
    assert_eq!(messages, expected(times));

    let converted = legacy::to_v2(bytes, TimestampType::CreateTime, LIMIT).unwrap();
    let mut from_zero = expected(times);
    for record in &mut from_zero {
        record.0 -= BASE_OFFSET;
    }
    assert_eq!(plain(&only_batch(&converted)), from_zero);
}
