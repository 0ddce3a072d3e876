//! If these fail, a batch that no consumer can read is stored, or one that Kafka accepts is refused.
use proptest::prelude::*;

use super::*;
use crate::batch::set_crc;
use crate::builder::BatchBuilder;
use crate::compression::compress;
use crate::header::{HEADER_SIZE, RECORD_COUNT_AT};

const CODECS: [Compression; 4] = [
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];
const LIMIT: usize = 64 << 20;

/// The encoded records of `values`.
fn payload(values: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    for (index, value) in values.iter().enumerate() {
        let header: &[(&[u8], Option<&[u8]>)] = if index % 3 == 0 {
            &[(b"h", Some(b"v")), (b"n", None)]
        } else {
            &[]
        };
        let key: Option<&[u8]> = if index % 2 == 0 { Some(b"key") } else { None };
        builder
            .append(1000 + index as i64, key, Some(value), header)
            .unwrap();
    }
    builder.build().unwrap()[HEADER_SIZE..].to_vec()
}

/// A batch whose header has `count` records and whose payload is `compressed`.
fn wrap(codec: Compression, compressed: &[u8], count: i32) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.append(1000, None, None, &[]).unwrap();
    let mut batch = builder.build().unwrap();
    batch.truncate(HEADER_SIZE);
    batch[22] |= codec.code();
    batch.extend_from_slice(compressed);
    let length = (batch.len() - 12) as i32;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    batch[RECORD_COUNT_AT..RECORD_COUNT_AT + 4].copy_from_slice(&count.to_be_bytes());
    set_crc(&mut batch);
    batch
}

fn packed(codec: Compression, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    compress(codec, None, payload, &mut out).unwrap();
    out
}

fn check(bytes: &[u8]) -> Result<Vec<CheckedRecord>, RecordError> {
    check_within(bytes, &Limits::within(LIMIT)).map(|(records, _)| records)
}

fn check_within(bytes: &[u8], limits: &Limits) -> Result<(Vec<CheckedRecord>, RecordSummary), RecordError> {
    let batch = Batch::parse(bytes).unwrap();
    batch.verify_crc().unwrap();
    let mut records = Vec::new();
    let summary = batch.check_records(limits, |record| records.push(*record))?;
    Ok((records, summary))
}

/// Values, some longer than a piece.
fn values() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let value = prop_oneof![
        9 => proptest::collection::vec(any::<u8>(), 0..300),
        1 => (0u8..4, 60_000usize..200_000).prop_map(|(byte, size)| vec![byte; size]),
    ];
    proptest::collection::vec(value, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // Broken if it failed: the check would read other records than a consumer does.
    #[test]
    fn the_check_sees_the_records_a_reader_sees(values in values(), code in 0u8..5) {
        let codec = Compression::from_code(code).unwrap();
        let bytes = wrap(codec, &packed(codec, &payload(&values)), values.len() as i32);
        let (checked, summary) = check_within(&bytes, &Limits::within(LIMIT)).unwrap();
        let batch = Batch::parse(&bytes).unwrap();
        let records = batch.records(LIMIT).unwrap();
        let read: Vec<_> = records
            .iter()
            .enumerate()
            .map(|(index, record)| {
                let record = record.unwrap();
                CheckedRecord {
                    index,
                    offset: record.offset,
                    timestamp: record.timestamp,
                    key_size: record.key.map(<[u8]>::len),
                    value_size: record.value.map(<[u8]>::len),
                }
            })
            .collect();
        prop_assert_eq!(checked, read);
        prop_assert_eq!(summary.max_timestamp, 999 + values.len() as i64);
        prop_assert!(summary.in_order);
    }

    // Broken if it failed: the check would accept what a reader refuses, or refuse what it accepts.
    #[test]
    fn the_check_and_a_reader_agree_on_damaged_batches(
        values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..40),
        code in 0u8..5,
        position: prop::sample::Index,
        byte: u8,
        cut: bool,
    ) {
        let codec = Compression::from_code(code).unwrap();
        let mut records = payload(&values);
        let at = position.index(records.len());
        if cut { records.truncate(at) } else { records[at] = byte }
        let bytes = wrap(codec, &packed(codec, &records), values.len() as i32);
        let batch = Batch::parse(&bytes).unwrap();
        let read = batch.records(LIMIT).unwrap().iter().all(|record| record.is_ok());
        prop_assert_eq!(check(&bytes).is_ok(), read);
    }

    // Broken if it failed: bytes from a socket would stop the process.
    #[test]
    fn random_payloads_are_refused_or_read(
        payload in proptest::collection::vec(any::<u8>(), 0..300), code in 0u8..5,
    ) {
        let _ = check(&wrap(Compression::from_code(code).unwrap(), &payload, 3));
    }
}

// Broken if it failed: a batch that no consumer can decompress would be stored and stop every consumer.
#[test]
fn a_payload_that_cannot_be_decompressed_is_refused() {
    let records = payload(&vec![
        b"a value that repeats, a value that repeats".to_vec();
        2000
    ]);
    for codec in CODECS {
        let compressed = packed(codec, &records);
        check(&wrap(codec, &compressed, 2000)).unwrap();
        for cut in [0, 1, 10, compressed.len() / 2, compressed.len() - 1] {
            let error = check(&wrap(codec, &compressed[..cut], 2000))
                .map(|records| records.len())
                .unwrap_err();
            assert!(
                matches!(
                    error,
                    RecordError::Codec { .. } | RecordError::InvalidRecord { .. }
                ),
                "{codec} cut to {cut}: {error}"
            );
        }
        let noise = vec![0x55; compressed.len()];
        let error = check(&wrap(codec, &noise, 2000)).unwrap_err();
        assert!(matches!(error, RecordError::Codec { .. }), "{codec}: {error}");
        for other in CODECS.into_iter().filter(|other| *other != codec) {
            assert!(
                check(&wrap(other, &compressed, 2000)).is_err(),
                "{codec} as {other}"
            );
        }
    }
}

// Broken if it failed: a batch whose header does not count its records would be stored.
#[test]
fn a_wrong_count_and_trailing_bytes_are_refused() {
    let values = vec![b"value".to_vec(); 100];
    for codec in CODECS {
        let records = payload(&values);
        check(&wrap(codec, &packed(codec, &records), 100)).unwrap();
        for count in [99, 101] {
            let error = check(&wrap(codec, &packed(codec, &records), count)).unwrap_err();
            assert!(
                matches!(error, RecordError::InvalidRecord { index, .. } if index == count.min(100) as usize),
                "{codec}: {error}"
            );
        }
        let trailing = [&records[..], &[0]].concat();
        let error = check(&wrap(codec, &packed(codec, &trailing), 100)).unwrap_err();
        assert!(error.to_string().contains("bytes remain"), "{codec}: {error}");
    }
}

// Broken if it failed: we would refuse or store the wrong offset deltas of old clients, which Kafka corrects.
#[test]
fn wrong_offset_deltas_are_reported() {
    for codec in Compression::ALL {
        let one = payload(&[b"value".to_vec()]);
        let mut two = [&one[..], &one[..]].concat();
        let bytes = wrap(codec, &packed(codec, &two), 2);
        assert!(!check_within(&bytes, &Limits::within(LIMIT)).unwrap().1.in_order);
        two[one.len() + 3] = 2; // zigzag of 1
        let bytes = wrap(codec, &packed(codec, &two), 2);
        assert!(check_within(&bytes, &Limits::within(LIMIT)).unwrap().1.in_order);
    }
}

// Broken if it failed: a small request could keep a processor busy for minutes.
#[test]
fn a_bomb_is_refused_at_the_limit() {
    let zeros = payload(&[vec![0; 20 << 20]]);
    for codec in CODECS {
        let bytes = wrap(codec, &packed(codec, &zeros), 1);
        check(&bytes).unwrap();
        let error = check_within(&bytes, &Limits::within(4 << 20)).unwrap_err();
        assert!(
            matches!(error, RecordError::DecompressedTooLarge { .. }),
            "{codec}: {error}"
        );
    }
}

// Broken if it failed: a raw snappy block or a large zstd window would take memory without a permit.
#[test]
fn memory_that_grows_with_the_batch_is_granted_first() {
    let limits = Limits {
        output_max: LIMIT,
        buffer_max: 1 << 20,
        offload: |work| work(),
    };
    let records = payload(&vec![vec![7; 1000]; 4000]);
    let raw = snap::raw::Encoder::new().compress_vec(&records).unwrap();
    let raw = wrap(Compression::Snappy, &raw, 4000);
    let error = check_within(&raw, &limits).unwrap_err();
    assert!(matches!(error, RecordError::DecompressedTooLarge { limit, .. } if limit == 1 << 20));
    check(&raw).unwrap();

    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(25).unwrap();
    std::io::Write::write_all(&mut encoder, &records).unwrap();
    let windowed = wrap(Compression::Zstd, &encoder.finish().unwrap(), 4000);
    let error = check_within(&windowed, &limits).unwrap_err();
    assert!(
        matches!(error, RecordError::DecompressedTooLarge { .. }),
        "{error}"
    );
    check(&windowed).unwrap();
}

// Broken if it failed: decompressing a long batch would block a network thread.
#[test]
fn a_long_batch_is_decompressed_in_the_offload() {
    use std::cell::Cell;
    thread_local!(static OFFLOADED: Cell<usize> = const { Cell::new(0) });
    let limits = Limits {
        offload: |work| {
            OFFLOADED.set(OFFLOADED.get() + 1);
            work();
        },
        ..Limits::within(LIMIT)
    };
    for codec in CODECS {
        OFFLOADED.set(0);
        let short = payload(&vec![vec![7; 100]; 1000]);
        check_within(&wrap(codec, &packed(codec, &short), 1000), &limits).unwrap();
        assert_eq!(OFFLOADED.get(), 0, "{codec}");
        let long = payload(&vec![vec![7; 100]; 20_000]);
        check_within(&wrap(codec, &packed(codec, &long), 20_000), &limits).unwrap();
        assert!(OFFLOADED.get() > 10, "{codec}: {}", OFFLOADED.get());
    }
}

// Broken if it failed: a payload of several frames or members would be refused or read in part.
#[test]
fn concatenated_frames_are_one_payload() {
    let values = vec![b"value".to_vec(); 50];
    let records = payload(&values);
    let (front, back) = records.split_at(records.len() / 2);
    for codec in [Compression::Gzip, Compression::Snappy, Compression::Zstd] {
        let compressed = [packed(codec, front), packed(codec, back)].concat();
        check(&wrap(codec, &compressed, 50)).unwrap();
    }
}
