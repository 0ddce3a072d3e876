//! If these fail, producers that speak Produce v0 to v2 lose records or are refused, or an old log cannot be read.
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
        let bytes = message(
            magic,
            0,
            offset,
            1000 + offset,
            key.as_deref(),
            value.as_deref(),
        );
        out.extend_from_slice(&bytes);
    }
    out
}

fn wrapper(magic: u8, codec: Compression, offset: i64, set: &[u8]) -> Vec<u8> {
    let mut value = Vec::new();
    compression::compress(codec, None, set, &mut value).unwrap();
    if codec == Compression::Lz4 {
        // What old clients got wrong.
        value[6] = value[6].wrapping_add(1);
    }
    message(magic, codec.code(), offset, 1000, None, Some(&value))
}

fn collect(bytes: &[u8]) -> Result<Vec<(i64, i64, Pair)>, RecordError> {
    let mut out = Vec::new();
    for_each(bytes, LIMIT, |message| {
        let pair = (
            message.key.map(<[u8]>::to_vec),
            message.value.map(<[u8]>::to_vec),
        );
        out.push((message.offset, message.timestamp, pair));
        Ok(())
    })?;
    Ok(out)
}

fn pairs() -> impl Strategy<Value = Vec<Pair>> {
    let bytes = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
    proptest::collection::vec((bytes(), bytes()), 1..12)
}

// Broken if it failed: a set of messages of two formats would be taken, which Kafka refuses.
#[test]
fn one_format_a_set() {
    let pairs = [(None, Some(b"v".to_vec()))];
    let mixed = [set(0, &pairs), set(1, &pairs)].concat();
    assert!(matches!(
        to_v2(&mixed, LIMIT),
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
        let converted = to_v2(&bytes, LIMIT).unwrap();
        let batch = Batch::parse(&converted).unwrap();
        batch.verify_crc().unwrap();
        batch.validate_deep(LIMIT).unwrap();
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
        // Only the offsets are outside the checksum.
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
        let _ = to_v2(&bytes, LIMIT);
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
    // In v0 the inner offsets are what they say.
    assert_eq!(offsets(&wrapper(0, gzip, 42, &set(0, &pairs))), [0, 1, 2]);
}

#[test]
fn the_append_time_of_a_wrapper_is_that_of_its_messages() {
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
    assert!(matches!(
        collect(&nested),
        Err(RecordError::InvalidLegacy(_))
    ));
    assert!(collect(&wrapper(0, gzip, 0, &plain)).is_err());
    assert!(collect(&wrapper(1, gzip, 0, &[])).is_err());
    assert!(collect(&wrapper(1, Compression::Zstd, 0, &plain)).is_err());
    assert!(collect(&message(1, 1, 0, 0, None, None)).is_err());
    assert!(collect(&message(2, 0, 0, 0, None, None)).is_err());
    assert!(collect(&plain[..plain.len() - 1]).is_err());
    assert_eq!(to_v2(&[], LIMIT), Err(RecordError::Empty));
}

#[test]
fn the_limit_holds_over_all_wrappers_together() {
    let pairs: Vec<Pair> = vec![(None, Some(vec![0; 10_000]))];
    let one = wrapper(1, Compression::Gzip, 0, &set(1, &pairs));
    let three = one.repeat(3);
    assert!(to_v2(&three, 31_000).is_ok());
    assert!(matches!(
        to_v2(&three, 25_000),
        Err(RecordError::DecompressedTooLarge { .. })
    ));
}

proptest! {
    // If it failed, compaction of an old log would move or change messages, or keep what is superseded.
    #[test]
    fn what_stays_of_an_entry_is_unchanged(
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
