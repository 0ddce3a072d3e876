//! The checks of a producer's records, and what the leader changes in its batches.

use logcore_records::compression::compress;
use logcore_records::{HEADER_SIZE, set_max_timestamp_in_place};

use super::*;
use crate::record_faults::{Fault, RecordFaults};

const KEY: Option<&[u8]> = Some(b"k");

fn keyed(compression: Compression, keys: &[Option<&[u8]>], timestamp: i64) -> Vec<u8> {
    let mut builder = BatchBuilder::new(compression, None);
    for key in keys {
        builder
            .append(timestamp, *key, Some(b"value"), &[(b"h", Some(b"1"))])
            .unwrap();
    }
    builder.build().unwrap()
}

fn refused(log: &Log, batch: &[u8]) -> RecordFaults {
    match log.append_as_leader(&mut batch.to_vec(), 0, 10_000) {
        Err(StorageError::InvalidRecords(faults)) => faults,
        other => panic!("{other:?}"),
    }
}

fn opened(dir: &Path, settings: &[(&str, &str)]) -> Log {
    let mut config = small();
    for (name, value) in settings {
        assert!(config.set(name, value).unwrap());
    }
    Log::open(dir, config, false, 0).unwrap()
}

/// The stored batch at an offset.
fn stored(log: &Log, offset: i64) -> Vec<u8> {
    let slice = log.read(offset, 1, log.log_end_offset(), true).unwrap();
    let bytes = slice.read_to_vec().unwrap();
    Batch::parse(&bytes).unwrap().verify_crc().unwrap();
    bytes
}

// Broken if it failed: a producer could not tell which of its records to drop, or would drop good ones.
#[test]
fn each_invalid_record_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let log = opened(
        dir.path(),
        &[
            ("cleanup.policy", "compact"),
            ("message.timestamp.before.max.ms", "1000"),
        ],
    );
    for codec in [Compression::None, Compression::Zstd] {
        let key: Option<&[u8]> = Some(b"k");
        let faults = refused(&log, &keyed(codec, &[key, None, key, None], 9_500));
        let found: Vec<_> = faults.first().iter().map(|one| (one.index, one.fault)).collect();
        assert_eq!(found, [(1, Fault::Keyless), (3, Fault::Keyless)]);
        assert!(!faults.is_about_time());
        assert_eq!(faults.compressed, codec != Compression::None);
        let late = Fault::Time {
            timestamp: 8_999,
            offset: 1,
            earliest: 9_000,
            latest: 10_000i64.wrapping_add(i64::MAX),
        };
        let faults = refused(&log, &keyed(codec, &[None, key], 8_999));
        assert_eq!((faults.first()[1].fault, faults.count()), (late, 2));
        assert!(faults.is_about_time());
    }
    assert_eq!(log.log_end_offset(), 0);
}

// Broken if it failed: a batch of millions of bad records would take many times its size of memory.
#[test]
fn a_limited_number_of_faults_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let log = opened(dir.path(), &[("cleanup.policy", "compact")]);
    let faults = refused(&log, &keyed(Compression::Zstd, &[None; 5000], 1));
    assert_eq!((faults.first().len(), faults.count()), (1000, 5000));
    // Of many more the number is kept: a producer takes a record that is not named for a good one.
    assert_eq!(faults.rest(), (1000..5000).collect::<Vec<i32>>());
    let faults = refused(&log, &keyed(Compression::Zstd, &[None; 20_000], 1));
    assert_eq!((faults.rest().len(), faults.count()), (16_384, 20_000));
}

// Broken if it failed: a cluster that sets only the older limit on timestamps would accept any.
#[test]
fn the_older_limit_on_timestamps_applies_where_the_newer_are_not_set() {
    let dir = tempfile::tempdir().unwrap();
    let difference = ("message.timestamp.difference.max.ms", "1000");
    let key: Option<&[u8]> = Some(b"k");
    let log = opened(&dir.path().join("both"), &[difference]);
    for time in [8_999, 11_001] {
        let faults = refused(&log, &keyed(Compression::None, &[key], time));
        assert!(faults.is_about_time());
    }
    log.append_as_leader(&mut keyed(Compression::None, &[key], 9_000), 0, 10_000)
        .unwrap();
    let before = ("message.timestamp.before.max.ms", "5000");
    let log = opened(&dir.path().join("one"), &[difference, before]);
    log.append_as_leader(&mut keyed(Compression::None, &[key], 5_000), 0, 10_000)
        .unwrap();
    let faults = refused(&log, &keyed(Compression::None, &[key], 11_001));
    assert!(faults.is_about_time());
}

// Broken if it failed: a producer that copies old records would write a batch twice when it retries after a
// lost response.
#[test]
fn a_producer_of_old_records_is_known_until_the_next_check_for_idle_ones() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [
        ("producer.id.expiration.ms", "1000"),
        ("producer.id.expiration.check.interval.ms", "500"),
    ];
    let log = opened(dir.path(), &settings);
    // Its records have the timestamp 1000.
    let sent = producer_batch(7, 0, 0, 2);
    log.maintain(99_000).unwrap();
    log.append_as_leader(&mut sent.clone(), 0, 99_100).unwrap();
    log.maintain(99_499).unwrap();
    let again = log.append_as_leader(&mut sent.clone(), 0, 99_499).unwrap();
    assert!(again.duplicate);
    log.maintain(99_500).unwrap();
    assert_eq!(log.producer_count(), 0);
}

// Broken if it failed: a topic that keeps everything could not be configured, or would lose records.
#[test]
fn an_empty_cleanup_policy_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    let log = opened(dir.path(), &[("cleanup.policy", " "), ("retention.ms", "1")]);
    log.append_as_leader(&mut keyed(Compression::None, &[None], 1), 0, 1)
        .unwrap();
    log.roll(1).unwrap();
    assert_eq!(log.delete_old_segments(1_000_000).unwrap(), 0);
    assert!(!log.config().cleanup_compact);
}

// Broken if it failed: a producer could pretend that its timestamps are the broker's, or lose records because
// of a flag.
#[test]
fn only_the_broker_sets_append_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut claimed = batch_at(7, &[b"a"]);
    logcore_records::set_log_append_time_in_place(&mut claimed, 9);
    let log = opened(dir.path(), &[("message.timestamp.type", "LogAppendTime")]);
    let faults = refused(&log, &claimed);
    assert!(matches!(
        faults.first()[0].fault,
        Fault::AppendTime {
            timestamp: 9,
            value_bytes: Some(1),
            ..
        }
    ));
    let dir = tempfile::tempdir().unwrap();
    let log = opened(dir.path(), &[]);
    log.append_as_leader(&mut claimed, 0, 50).unwrap();
    let header = Batch::parse(&stored(&log, 0)).unwrap().header;
    assert_eq!(header.timestamp_type(), TimestampType::CreateTime);
    assert_eq!((header.base_timestamp, header.max_timestamp), (7, 9));
    // The same when the records are rewritten, because their offsets do not start at 0.
    let times = [40, 30, 20];
    let mut builder = BatchBuilder::new(Compression::None, None);
    for time in times {
        builder.append(time, Some(b"k"), Some(b"v"), &[]).unwrap();
    }
    let mut misnumbered = builder.build().unwrap();
    // After the length, the attributes and a timestamp of one byte each.
    misnumbered[HEADER_SIZE + 3] = 2;
    logcore_records::set_log_append_time_in_place(&mut misnumbered, 40);
    log.append_as_leader(&mut misnumbered, 0, 50).unwrap();
    let kept = stored(&log, 1);
    let kept = Batch::parse(&kept).unwrap();
    let records = kept.records(1000).unwrap();
    let read: Vec<i64> = records.iter().map(|one| one.unwrap().timestamp).collect();
    assert_eq!(read, times);
    assert_eq!(kept.header.max_timestamp, 40);
    logcore_records::set_log_append_time_in_place(&mut claimed, -1);
    assert!(refused(&log, &claimed).is_about_time());
}

// Broken if it failed: batches would not have their topic's codec, or would change with it.
#[test]
fn batches_get_the_codec_of_their_topic() {
    for target in Compression::ALL {
        let name = if target == Compression::None {
            "uncompressed"
        } else {
            target.name()
        };
        let dir = tempfile::tempdir().unwrap();
        let log = opened(dir.path(), &[("compression.type", name)]);
        for (number, codec) in Compression::ALL.into_iter().enumerate() {
            let mut builder = BatchBuilder::new(codec, None);
            builder.set_producer_state(7, 0, 2 * number as i32);
            for key in [None, Some(&b"k"[..])] {
                builder
                    .append(1000 - number as i64, key, Some(&[9; 300]), &[(b"h", None)])
                    .unwrap();
            }
            let sent = builder.build().unwrap();
            let appended = log.append_as_leader(&mut sent.clone(), 4, 5000).unwrap();
            assert_eq!(appended.first_offset, 2 * number as i64);
            let bytes = stored(&log, appended.first_offset);
            let (was, is) = (Batch::parse(&sent).unwrap(), Batch::parse(&bytes).unwrap());
            assert_eq!(is.header.compression().unwrap(), target);
            assert_eq!(appended.bytes, is.bytes.len() as u64);
            assert_eq!(is.header.partition_leader_epoch, 4);
            assert_eq!(
                (
                    is.header.producer_id,
                    is.header.base_sequence,
                    is.header.max_timestamp
                ),
                (7, was.header.base_sequence, was.header.max_timestamp)
            );
            if codec == target {
                assert_eq!(bytes[16..], sent[16..], "it has the codec already");
            }
            let (was, is) = (was.records(1 << 20).unwrap(), is.records(1 << 20).unwrap());
            for (was, is) in was.iter().zip(is.iter()) {
                let (was, is) = (was.unwrap(), is.unwrap());
                assert_eq!(
                    (was.timestamp, was.key, was.value),
                    (is.timestamp, is.key, is.value)
                );
                assert!(was.headers().eq(is.headers()));
            }
            // A retry is recognised by its producer, whatever its codec.
            let again = log.append_as_leader(&mut sent.clone(), 4, 5000).unwrap();
            assert!(again.duplicate);
        }
    }
}

// Broken if it failed: a level would be ignored, or a recompressed batch exceed its topic's limit.
#[test]
fn levels_and_limits_apply_to_recompressed_batches() {
    let text: Vec<u8> = (0..60_000u32)
        .flat_map(|n| (n * n % 977).to_string().into_bytes())
        .collect();
    let size = |settings: &[(&str, &str)]| {
        let dir = tempfile::tempdir().unwrap();
        let roomy = [("segment.bytes", "1000000"), ("max.message.bytes", "1000000")];
        let log = opened(dir.path(), &[&roomy, settings].concat());
        let appended = log.append_as_leader(&mut batch_at(1, &[&text]), 0, 1).unwrap();
        appended.bytes
    };
    for (codec, least, most) in [("gzip", "1", "9"), ("zstd", "-7", "19")] {
        let level = format!("compression.{codec}.level");
        let [fast, small] = [least, most].map(|n| size(&[("compression.type", codec), (&level, n)]));
        assert!(small < fast, "{codec}: {small} at {most}, {fast} at {least}");
    }
    let dir = tempfile::tempdir().unwrap();
    let log = opened(
        dir.path(),
        &[("compression.type", "uncompressed"), ("max.message.bytes", "500")],
    );
    let mut builder = BatchBuilder::new(Compression::Zstd, None);
    builder.append(1, None, Some(&[0; 1000]), &[]).unwrap();
    let mut batch = builder.build().unwrap();
    let refused = log.check_append(&batch).unwrap_err();
    let error = log.append_as_leader(&mut batch, 0, 1).unwrap_err();
    assert_eq!((error.kafka_code(), log.log_end_offset()), (10, 0));
    assert_eq!(
        refused.kafka_code(),
        10,
        "an append in pieces fails before the first piece"
    );
}

// Broken if it failed: a consumer could not learn the leader epoch of an empty partition.
#[test]
fn an_epoch_begins_with_its_leader() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    assert_eq!(log.epoch_end_offset(4), None);
    log.begin_epoch(4);
    assert_eq!(log.epoch_end_offset(4), Some((4, 0)));
    assert_eq!((log.epoch_start(4), log.epoch_start(3)), (Some(0), None));
    assert!(!log.has_saved_epoch(4));
    log.append_as_leader(&mut batch_at(1, &[b"a"]), 4, 1).unwrap();
    assert!(log.has_saved_epoch(4) && !log.has_saved_epoch(6));
    log.begin_epoch(6);
    assert!(!log.has_saved_epoch(4) && !log.has_saved_epoch(6));
    log.begin_epoch(5);
    assert_eq!((log.latest_epoch(), log.epoch_start(6)), (Some(6), Some(1)));
    assert_eq!(log.epoch_end_offset(4), Some((4, 1)));
    assert_eq!(
        log.append_as_leader(&mut batch_at(1, &[b"b"]), 4, 1)
            .unwrap_err()
            .kafka_code(),
        74
    );
    log.append_as_leader(&mut batch_at(1, &[b"b"]), 6, 1).unwrap();
    drop(log);
    let log = Log::open(dir.path(), small(), false, 0).unwrap();
    assert_eq!((log.epoch_of(0), log.epoch_of(1)), (Some(4), Some(6)));
}

// Broken if it failed: a long poll would wait for bytes that no read of its segment can return.
#[test]
fn a_read_stops_at_its_segment() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    log.append_as_leader(&mut batch_at(1, &[b"a", b"b"]), 0, 1)
        .unwrap();
    assert!(!log.is_in_older_segment(0, 2));
    log.roll(1).unwrap();
    assert!(log.is_in_older_segment(0, 2));
    assert!(!log.is_in_older_segment(2, 2));
    log.append_as_leader(&mut batch_at(1, &[b"c"]), 0, 1).unwrap();
    assert!(log.is_in_older_segment(1, 3));
    assert!(!log.is_in_older_segment(2, 3));
}

/// A gzip batch of 100 records with the key `k`.
fn gzipped() -> Vec<u8> {
    keyed(Compression::Gzip, &[KEY; 100], 9_500)
}

// Broken if it failed: a server could not bound the memory of appends, or give one of them more; or a
// producer whose batch needs more memory would get a corruption error.
#[test]
fn an_append_needs_no_more_memory_than_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let within = |buffer_max| ProduceOptions {
        buffer_max,
        ..ProduceOptions::new(0, 10_000)
    };
    // Recompressing needs all records at once; checking needs none of this memory.
    let log = opened(&dir.path().join("own"), &[("compression.type", "zstd")]);
    let Err(error) = produce(&log, &mut gzipped(), within(1000)) else {
        panic!("100 records are more than 1000 bytes");
    };
    assert!(
        matches!(error, StorageError::DecompressedTooLarge { limit: 1000, .. }),
        "{error}"
    );
    assert_eq!(error.kafka_code(), 10);
    assert_eq!(log.log_end_offset(), 0);
    produce(&log, &mut gzipped(), within(10_000)).unwrap();
    let log = opened(&dir.path().join("producer's"), &[("cleanup.policy", "compact")]);
    produce(&log, &mut gzipped(), within(0)).unwrap();
}

// Broken if it failed: a server would not know which appends take long, and run them where others wait.
#[test]
fn what_is_decompressed_and_compressed_is_known_before() {
    let dir = tempfile::tempdir().unwrap();
    let config = |settings: &[(&str, &str)]| {
        let dir = tempfile::tempdir_in(dir.path()).unwrap();
        opened(dir.path(), settings).config()
    };
    let header = |batch: &[u8]| Batch::parse(batch).unwrap().header;
    let plain = header(&keyed(Compression::None, &[None], 1));
    let zstd = header(&keyed(Compression::Zstd, &[None], 1));
    let mut builder = BatchBuilder::new(Compression::Zstd, None);
    builder.set_timestamp_type(TimestampType::LogAppendTime);
    builder.append(1, None, None, &[]).unwrap();
    let append_time = header(&builder.build().unwrap());
    let compact = config(&[("cleanup.policy", "compact")]);
    let limited = config(&[("message.timestamp.after.max.ms", "1000")]);
    let default = config(&[]);
    assert!(default.decompresses(&zstd, true) && !default.decompresses(&plain, true));
    assert!(!default.decompresses(&zstd, false) && default.decompresses(&append_time, false));
    for topic in [compact, limited] {
        assert!(topic.decompresses(&zstd, false) && !topic.decompresses(&plain, false));
    }
    assert!(!default.recompresses(&zstd) && !default.recompresses(&plain));
    let own = config(&[("compression.type", "zstd")]);
    assert!(own.recompresses(&plain) && !own.recompresses(&zstd));
    assert!(config(&[("compression.type", "uncompressed")]).recompresses(&zstd));
}

// Broken if it failed: retention would delete new records, and searches by time would miss them, because a
// client's compressed batches do not state the largest timestamp of their records.
#[test]
fn a_compressed_batch_has_the_largest_timestamp_of_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let compact: &[(&str, &str)] = &[("cleanup.policy", "compact")];
    let append_time: &[(&str, &str)] = &[("message.timestamp.type", "LogAppendTime")];
    for (name, settings, checked, stated, expected) in [
        ("right", &[][..], true, 9_500, 9_500),
        ("none", &[], true, -1, 9_500),
        ("earlier", &[], true, 9_499, 9_500),
        ("later", &[], true, 9_700, 9_500),
        ("without the check", &[], false, 9_700, 9_700),
        (
            "a compacted topic is always checked",
            compact,
            false,
            9_700,
            9_500,
        ),
        ("append time", append_time, true, 9_700, 10_000),
    ] {
        let log = opened(&dir.path().join(name), settings);
        let mut batch = keyed(Compression::Zstd, &[Some(b"k"), Some(b"l")], 9_500);
        set_max_timestamp_in_place(&mut batch, stated);
        let options = ProduceOptions {
            check_compressed: checked,
            ..ProduceOptions::new(0, 10_000)
        };
        produce(&log, &mut batch, options).unwrap();
        let bytes = stored(&log, 0);
        let header = Batch::parse(&bytes).unwrap().header;
        assert_eq!(header.max_timestamp, expected, "{name}");
    }
}

/// A batch with another payload, and the checksum and length that fit it.
fn with_payload(mut batch: Vec<u8>, payload: &[u8]) -> Vec<u8> {
    batch.truncate(HEADER_SIZE);
    batch.extend_from_slice(payload);
    let length = (batch.len() - 12) as i32;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    // Writing the timestamp writes the checksum, too.
    set_max_timestamp_in_place(&mut batch, 9_500);
    batch
}

// Broken if it failed: a batch that no consumer can read would be acknowledged and stop every consumer of the
// partition.
#[test]
fn a_compressed_batch_that_does_not_match_its_header_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = opened(dir.path(), &[]);
    for codec in [
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ] {
        let batch = keyed(codec, &[KEY; 3], 9_500);
        let compressed = |records: &[u8]| {
            let mut payload = Vec::new();
            compress(codec, None, records, &mut payload).unwrap();
            with_payload(batch.clone(), &payload)
        };
        let records = keyed(Compression::None, &[KEY; 3], 9_500)[HEADER_SIZE..].to_vec();
        let one = records.len() / 3;
        let noise = with_payload(batch.clone(), &[0x55; 40]);
        let cut = with_payload(batch.clone(), &batch[HEADER_SIZE..batch.len() - 1]);
        for (what, sent, code) in [
            ("noise", noise, -1),
            ("cut short", cut, -1),
            ("too few records", compressed(&records[..2 * one]), 87),
            (
                "too many records",
                compressed(&[&records[..], &records[..one]].concat()),
                87,
            ),
            ("trailing bytes", compressed(&[&records[..], &[0]].concat()), 87),
            (
                "a record that is cut short",
                compressed(&records[..records.len() - 1]),
                87,
            ),
        ] {
            let error = produce(&log, &mut sent.clone(), ProduceOptions::new(0, 10_000)).unwrap_err();
            assert_eq!(error.kafka_code(), code, "{codec}, {what}: {error}");
            assert_eq!(log.log_end_offset(), 0, "{codec}, {what}");
        }
        assert_eq!(log.failure(), None);
    }
    for (end, codec) in [Compression::Gzip, Compression::Zstd].into_iter().enumerate() {
        // A broker whose operator turned the check off stores it.
        let mut noise = with_payload(keyed(codec, &[KEY; 3], 9_500), &[0x55; 40]);
        produce(&log, &mut noise, unchecked(10_000)).unwrap();
        assert_eq!(log.log_end_offset(), 3 * (end as i64 + 1));
    }
}

/// A batch whose records have these offset deltas.
fn numbered(codec: Compression, deltas: &[u8], key: Option<&[u8]>) -> Vec<u8> {
    let mut payload = Vec::new();
    for delta in deltas {
        let one = keyed(Compression::None, &[key], 9_500);
        payload.extend(&one[HEADER_SIZE..]);
        let at = payload.len() - (one.len() - HEADER_SIZE) + 3;
        // Zigzag: 1 is -1.
        payload[at] = *delta;
    }
    let mut batch = keyed(Compression::None, &vec![key; deltas.len()], 9_500);
    batch.truncate(HEADER_SIZE);
    batch[22] |= codec.code();
    compress(codec, None, &payload, &mut batch).unwrap();
    let length = (batch.len() - 12) as i32;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    // Writing the timestamp writes the checksum, too.
    set_max_timestamp_in_place(&mut batch, 9_500);
    batch
}

// Broken if it failed: a client with wrong offset deltas, which Kafka accepts, would be refused; or two
// records of the log would have one offset.
#[test]
fn wrong_offset_deltas_are_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let key: Option<&[u8]> = Some(b"k");
    for (number, (codec, settings)) in [
        (Compression::None, &[][..]),
        (Compression::None, &[("compression.type", "lz4")]),
        (Compression::Gzip, &[("cleanup.policy", "compact")]),
        (Compression::Gzip, &[("message.timestamp.before.max.ms", "1000")]),
        (Compression::Lz4, &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let log = opened(&dir.path().join(number.to_string()), settings);
        for base in [0, 3] {
            let mut sent = numbered(codec, &[10, 1, 4], key);
            let appended = log.append_as_leader(&mut sent, 0, 10_000).unwrap();
            assert_eq!((appended.first_offset, appended.last_offset), (base, base + 2));
            let bytes = stored(&log, base);
            let batch = Batch::parse(&bytes).unwrap();
            assert!(batch.validate(1000).unwrap().in_order);
            let records = batch.records(1000).unwrap();
            let offsets: Vec<_> = records.iter().map(|record| record.unwrap().offset).collect();
            assert_eq!(offsets, [base, base + 1, base + 2]);
            if number != 1 {
                assert_eq!(batch.header.compression(), Ok(codec));
            }
        }
    }
}

// Broken if it failed: a producer would not learn which record lacks a key when its offset deltas are wrong,
// too.
#[test]
fn a_record_without_a_key_is_named_whatever_its_offset_delta() {
    let dir = tempfile::tempdir().unwrap();
    let log = opened(dir.path(), &[("cleanup.policy", "compact")]);
    for codec in [Compression::None, Compression::Gzip] {
        let faults = refused(&log, &numbered(codec, &[10, 0], None));
        let found: Vec<_> = faults.first().iter().map(|one| one.index).collect();
        assert_eq!(found, [0, 1]);
    }
}
