//! If these fail, producers with Produce v0 to v2 lose records or are refused, or an old log cannot be read.
use super::*;
use crate::batch::Batch;
use crate::filter::{Entry, Left};
use proptest::prelude::*;

const LIMIT: usize = 1 << 20;

type Pair = (Option<Vec<u8>>, Option<Vec<u8>>);

fn put_nullable(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.extend_from_slice(&bytes.map_or(-1, |bytes| bytes.len() as i32).to_be_bytes());
    out.extend_from_slice(bytes.unwrap_or_default());
}

fn message(
    magic: u8,
    attributes: u8,
    offset: i64,
    timestamp: i64,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
) -> Vec<u8> {
    let mut body = vec![magic, attributes];
    if magic == 1 {
        body.extend_from_slice(&timestamp.to_be_bytes());
    }
    put_nullable(&mut body, key);
    put_nullable(&mut body, value);
    let mut out = offset.to_be_bytes().to_vec();
    out.extend_from_slice(&(body.len() as i32 + 4).to_be_bytes());
    out.extend_from_slice(&crc32fast::hash(&body).to_be_bytes());
    out.extend_from_slice(&body);
    out
}

fn set(magic: u8, pairs: &[Pair]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, (key, value)) in pairs.iter().enumerate() {
        let offset = index as i64;
        let bytes = message(magic, 0, offset, 1000 + offset, key.as_deref(), value.as_deref());
        out.extend_from_slice(&bytes);
    }
    out
}

fn wrapper(magic: u8, codec: Compression, offset: i64, set: &[u8]) -> Vec<u8> {
    let mut value = Vec::new();
    compression::compress(codec, None, set, &mut value).unwrap();
    if codec == Compression::Lz4 {
        // The error of old clients.
        value[6] = value[6].wrapping_add(1);
    }
    message(magic, codec.code(), offset, 1000, None, Some(&value))
}

fn collect(bytes: &[u8]) -> Result<Vec<(i64, i64, Pair)>, RecordError> {
    let mut out = Vec::new();
    for_each(bytes, LIMIT, |message| {
        let pair = (message.key.map(<[u8]>::to_vec), message.value.map(<[u8]>::to_vec));
        out.push((message.offset, message.timestamp, pair));
        Ok(())
    })?;
    Ok(out)
}

fn pairs() -> impl Strategy<Value = Vec<Pair>> {
    let bytes = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
    proptest::collection::vec((bytes(), bytes()), 1..12)
}

// Broken if it failed: a set with messages of two formats would be accepted, which Kafka refuses.
#[test]
fn a_set_has_one_format() {
    let pairs = [(None, Some(b"v".to_vec()))];
    let mixed = [set(0, &pairs), set(1, &pairs)].concat();
    assert!(matches!(
        to_v2(&mixed, TimestampType::CreateTime, LIMIT),
        Err(RecordError::InvalidLegacy(_))
    ));
    assert_eq!(collect(&mixed).unwrap().len(), 2);
}

proptest! {
    #[test]
    fn every_message_arrives_in_one_batch(pairs in pairs(), magic in 0u8..2, code in 0u8..4) {
        let codec = Compression::from_code(code).unwrap();
        let plain = set(magic, &pairs);
        let bytes = match codec {
            Compression::None => plain,
            _ => wrapper(magic, codec, pairs.len() as i64 - 1, &plain),
        };
        let converted = to_v2(&bytes, TimestampType::CreateTime, LIMIT).unwrap();
        let batch = Batch::parse(&converted).unwrap();
        batch.verify_crc().unwrap();
        batch.validate(LIMIT).unwrap();
        prop_assert_eq!(batch.bytes.len(), converted.len());
        prop_assert_eq!(batch.header.compression().unwrap(), codec);
        let records = batch.records(LIMIT).unwrap();
        for (index, record) in records.iter().enumerate() {
            let record = record.unwrap();
            prop_assert_eq!(record.offset, index as i64);
            prop_assert_eq!(record.timestamp, if magic == 0 { -1 } else { 1000 + index as i64 });
            prop_assert_eq!(record.key, pairs[index].0.as_deref());
            prop_assert_eq!(record.value, pairs[index].1.as_deref());
        }
        prop_assert_eq!(records.iter().count(), pairs.len());
    }

    #[test]
    fn a_changed_byte_is_an_error_or_an_offset(
        pairs in pairs(), magic in 0u8..2, code in 0u8..4, at: prop::sample::Index, bit in 0u8..8,
    ) {
        let codec = Compression::from_code(code).unwrap();
        let plain = set(magic, &pairs);
        let mut bytes = match codec {
            Compression::None => plain,
            _ => wrapper(magic, codec, 100, &plain),
        };
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // The checksum covers all but the offsets.
        if collect(&bytes).is_ok() {
            let mut rest = &bytes[..];
            let mut start = 0;
            while start + frame(rest).unwrap().len() <= at {
                start += frame(rest).unwrap().len();
                rest = &bytes[start..];
            }
            prop_assert!(at - start < 8, "byte {} of a message", at - start);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = to_v2(&bytes, TimestampType::CreateTime, LIMIT);
    }
}

#[test]
fn offsets_inside_a_v1_wrapper_count_back_from_the_wrapper() {
    let pairs: Vec<Pair> = vec![(None, Some(vec![1])); 3];
    let offsets = |bytes: &[u8]| -> Vec<i64> {
        let messages = collect(bytes).unwrap();
        messages.iter().map(|(offset, ..)| *offset).collect()
    };
    let plain = set(1, &pairs);
    let gzip = Compression::Gzip;
    assert_eq!(offsets(&wrapper(1, gzip, 42, &plain)), [40, 41, 42]);
    assert_eq!(offsets(&wrapper(1, gzip, 0, &plain)), [0, 1, 2]);
    assert!(collect(&wrapper(1, gzip, 1, &plain)).is_err());
    // In v0 the inner offsets are the messages' own.
    assert_eq!(offsets(&wrapper(0, gzip, 42, &set(0, &pairs))), [0, 1, 2]);
}

#[test]
fn messages_have_the_append_time_of_their_wrapper() {
    let mut value = Vec::new();
    let plain = set(1, &[(None, None), (None, None)]);
    compression::compress(Compression::Gzip, None, &plain, &mut value).unwrap();
    let bytes = message(1, 1 | LOG_APPEND_TIME_FLAG, 1, 77, None, Some(&value));
    let times: Vec<i64> = collect(&bytes).unwrap().iter().map(|m| m.1).collect();
    assert_eq!(times, [77, 77]);
}

#[test]
fn what_the_format_forbids_is_refused() {
    let gzip = Compression::Gzip;
    let plain = set(1, &[(None, Some(vec![1]))]);
    let nested = wrapper(1, gzip, 0, &wrapper(1, gzip, 0, &plain));
    assert!(matches!(collect(&nested), Err(RecordError::InvalidLegacy(_))));
    assert!(collect(&wrapper(0, gzip, 0, &plain)).is_err());
    assert!(collect(&wrapper(1, gzip, 0, &[])).is_err());
    assert!(collect(&wrapper(1, Compression::Zstd, 0, &plain)).is_err());
    assert!(collect(&message(1, 1, 0, 0, None, None)).is_err());
    assert!(collect(&message(2, 0, 0, 0, None, None)).is_err());
    assert!(collect(&plain[..plain.len() - 1]).is_err());
    assert_eq!(
        to_v2(&[], TimestampType::CreateTime, LIMIT),
        Err(RecordError::Empty)
    );
}

#[test]
fn the_limit_holds_over_all_wrappers_together() {
    let pairs: Vec<Pair> = vec![(None, Some(vec![0; 10_000]))];
    let one = wrapper(1, Compression::Gzip, 0, &set(1, &pairs));
    let three = one.repeat(3);
    assert!(to_v2(&three, TimestampType::CreateTime, 31_000).is_ok());
    assert!(matches!(
        to_v2(&three, TimestampType::CreateTime, 25_000),
        Err(RecordError::DecompressedTooLarge { .. })
    ));
}

proptest! {
    // If it failed, compacting an old log would move or change messages, or keep superseded ones.
    #[test]
    fn kept_messages_of_an_entry_are_unchanged(
        pairs in pairs(),
        stay in proptest::collection::vec(any::<bool>(), 12),
        magic in 0u8..2,
        codec in proptest::sample::select(&Compression::ALL[..4]),
    ) {
        let last = pairs.len() as i64 - 1;
        let bytes = if codec == Compression::None {
            set(magic, &pairs[..1])
        } else {
            wrapper(magic, codec, if magic == 1 { 500 + last } else { last }, &set(magic, &pairs))
        };
        let before = collect(&bytes).unwrap();
        let first = before[0].0;
        let mut out = b"front".to_vec();
        let keep = |entry: Entry<'_>| stay[(entry.offset - first) as usize];
        let filtered = filter(&bytes, LIMIT, keep, &mut out).unwrap();
        let expected: Vec<_> = before
            .iter()
            .filter(|(offset, ..)| stay[(offset - first) as usize])
            .cloned()
            .collect();
        prop_assert_eq!((filtered.read, filtered.kept), (before.len(), expected.len()));
        match filtered.left {
            Left::Whole => prop_assert_eq!(&expected, &before),
            Left::Nothing => prop_assert!(expected.is_empty()),
            Left::Rewritten => {
                prop_assert_eq!(collect(&out[5..]).unwrap(), expected);
                prop_assert_eq!(out[5 + MAGIC_AT], magic);
            }
        }
        if filtered.left != Left::Rewritten {
            prop_assert_eq!(&out[..], b"front");
        }
    }
}

fn batch_of(base_offset: i64, pairs: &[Pair], codec: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec, None);
    for (index, (key, value)) in pairs.iter().enumerate() {
        let header = [(&b"h"[..], Some(&b"left out"[..]))];
        builder
            .append(1000 + index as i64, key.as_deref(), value.as_deref(), &header)
            .unwrap();
    }
    let mut bytes = builder.build().unwrap();
    crate::set_offsets_in_place(&mut bytes, base_offset, 3);
    bytes
}

proptest! {
    // If it failed, consumers older than Kafka 0.11 would get wrong records, wrong offsets, or too few.
    #[test]
    fn old_consumers_get_the_same_messages(
        pairs in pairs(),
        magic in 0u8..2,
        codec in proptest::sample::select(&Compression::ALL[..4]),
        skipped in 0usize..12,
    ) {
        let from = 500 + skipped.min(pairs.len()) as i64;
        let bytes = batch_of(500, &pairs, codec);
        let mut out = b"front".to_vec();
        let converted = down_convert(&bytes, magic, from, LIMIT, &mut out).unwrap();
        prop_assert!(out.starts_with(b"front"));
        let timestamp = |index: i64| if magic == 0 { -1 } else { 1000 + index };
        let expected: Vec<_> = (0..).zip(&pairs)
            .map(|(index, pair)| (500 + index, timestamp(index), pair.clone()))
            .filter(|(offset, ..)| codec != Compression::None || *offset >= from)
            .collect();
        prop_assert_eq!(converted, expected.len() as u64);
        prop_assert_eq!(&collect(&out[5..]).unwrap(), &expected);
        if out.len() > 5 {
            prop_assert_eq!(out[5 + MAGIC_AT], magic);
            // Converted again, from v1 to v0 or to the same format.
            let (mut first, mut again) = (&out[5..], Vec::new());
            while !first.is_empty() {
                let (one, rest) = first.split_at(frame(first).unwrap().len());
                down_convert(one, 0, from, LIMIT, &mut again).unwrap();
                first = rest;
            }
            let untimed: Vec<_> = collect(&again).unwrap();
            prop_assert!(untimed.iter().all(|(_, timestamp, _)| *timestamp == -1));
            prop_assert_eq!(untimed.len(), expected.len());
            prop_assert_eq!(again[MAGIC_AT], 0);
        }
    }
}

// If it failed, old consumers would get batches they cannot read, or markers as records.
#[test]
fn batches_that_old_formats_cannot_store_are_left_out_or_refused() {
    let pairs: [Pair; 1] = [(None, Some(b"v".to_vec()))];
    let mut out = b"front".to_vec();
    assert_eq!(
        down_convert(&batch_of(0, &pairs, Compression::Zstd), 1, 0, LIMIT, &mut out),
        Err(RecordError::UnknownToFormat {
            codec: Compression::Zstd,
            magic: 1
        })
    );
    let committed = crate::EndTxnMarker {
        committed: true,
        coordinator_epoch: 0,
    };
    let marker = crate::end_txn_marker(7, 0, committed, 5).unwrap();
    assert_eq!(down_convert(&marker, 1, 0, LIMIT, &mut out), Ok(0));
    let mut damaged = batch_of(0, &pairs, Compression::None);
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(
        down_convert(&damaged, 1, 0, LIMIT, &mut out),
        Err(RecordError::CrcMismatch { .. })
    ));
    let bomb: [Pair; 1] = [(None, Some(vec![0; 10_000]))];
    assert!(matches!(
        down_convert(&batch_of(0, &bomb, Compression::Gzip), 1, 0, 9000, &mut out),
        Err(RecordError::DecompressedTooLarge { .. })
    ));
    assert_eq!(out, b"front");
}

// If it failed, readers of Kafka 0.8 and 0.9 would refuse lz4: they include the magic number in the checksum.
#[test]
fn lz4_frames_of_v0_have_the_checksum_of_old_readers() {
    let bytes = batch_of(0, &[(None, Some(vec![7; 100]))], Compression::Lz4);
    let header = |magic| {
        let mut out = Vec::new();
        down_convert(&bytes, magic, 0, LIMIT, &mut out).unwrap();
        let value = Outer::take(&mut &out[..]).unwrap().message.value.unwrap();
        value[..7].to_vec()
    };
    let (wrong, right) = (header(0), header(1));
    assert_eq!(wrong[..6], right[..6]);
    assert_ne!(wrong[6], right[6]);
    // xxHash32 of the first six and of the last two of 04 22 4d 18 60 40.
    assert_eq!(wrong[..6], [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40]);
    assert_eq!((wrong[6], right[6]), (0x1a, 0x82));
}
