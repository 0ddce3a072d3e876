//! If these fail, a compacted log has records that were never written, or at wrong offsets, or lacks some.
use super::*;
use crate::builder::BatchBuilder;
use crate::header::TimestampType;
use proptest::prelude::*;

const LIMIT: usize = 1 << 22;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Sample {
    offset: i64,
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn records(batch: &Batch<'_>) -> Vec<Sample> {
    let records = batch.records(LIMIT).unwrap();
    records
        .iter()
        .map(|record| {
            let record = record.unwrap();
            Sample {
                offset: record.offset,
                timestamp: record.timestamp,
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                headers: record
                    .headers()
                    .map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec)))
                    .collect(),
            }
        })
        .collect()
}

fn sample() -> impl Strategy<Value = Sample> {
    let nullable = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..50));
    let header = (proptest::collection::vec(any::<u8>(), 0..9), nullable());
    (
        0i64..2_000_000_000_000,
        nullable(),
        nullable(),
        proptest::collection::vec(header, 0..3),
    )
        .prop_map(|(timestamp, key, value, headers)| Sample {
            offset: 0,
            timestamp,
            key,
            value,
            headers,
        })
}

fn build(codec: Compression, append_time: bool, samples: &[Sample]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec, None);
    builder.set_base_offset(1000, 7);
    builder.set_producer_state(5, 2, 40);
    if append_time {
        builder.set_timestamp_type(TimestampType::LogAppendTime);
    }
    for sample in samples {
        let headers: Vec<(&[u8], Option<&[u8]>)> = sample
            .headers
            .iter()
            .map(|(key, value)| (&key[..], value.as_deref()))
            .collect();
        let (key, value) = (sample.key.as_deref(), sample.value.as_deref());
        builder.append(sample.timestamp, key, value, &headers).unwrap();
    }
    builder.build().unwrap()
}

proptest! {
    // Any choice of records in any codec: the kept records are unchanged, and so are the batch's offsets.
    #[test]
    fn kept_records_are_unchanged(
        samples in proptest::collection::vec((sample(), any::<bool>()), 1..30),
        codec in proptest::sample::select(&Compression::ALL[..]),
        append_time: bool,
        horizon in proptest::option::of((0i64..2_000_000_000_000, any::<bool>())),
    ) {
        let (samples, stay): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
        let bytes = build(codec, append_time, &samples);
        let batch = Batch::parse(&bytes).unwrap();
        let before = records(&batch);
        let mut visited = Vec::new();
        let mut out = b"front".to_vec();
        let filtered = BatchFilter::new().open(&batch, LIMIT).unwrap().filter(
            horizon.map(|(at_ms, always)| NewHorizon { at_ms, always }),
            |entry| {
                visited.push((entry.offset, entry.key.map(<[u8]>::to_vec), entry.has_value));
                stay[(entry.offset - 1000) as usize]
            },
            &mut out,
        ).unwrap();
        let seen: Vec<_> = before
            .iter()
            .map(|r| (r.offset, r.key.clone(), r.value.is_some()))
            .collect();
        prop_assert_eq!(visited, seen);
        let expected: Vec<Sample> = before
            .iter()
            .filter(|r| stay[(r.offset - 1000) as usize])
            .cloned()
            .collect();
        prop_assert_eq!((filtered.read, filtered.kept), (before.len(), expected.len()));
        let due = horizon.filter(|(_, always)| *always || expected.iter().any(|r| r.value.is_none()));
        match filtered.left {
            Left::Nothing => prop_assert!(expected.is_empty()),
            Left::Whole => {
                prop_assert!(due.is_none());
                prop_assert_eq!(&expected, &before);
                prop_assert_eq!(filtered.max_timestamp, batch.header.max_timestamp);
            }
            Left::Rewritten => {
                prop_assert!(due.is_some() || expected.len() < before.len());
                let after = Batch::parse(&out[5..]).unwrap();
                prop_assert_eq!(after.bytes.len(), out.len() - 5);
                after.verify_crc().unwrap();
                prop_assert_eq!(records(&after), expected.clone());
                let (old, new) = (&batch.header, &after.header);
                prop_assert_eq!(new.last_offset(), old.last_offset());
                prop_assert_eq!((new.base_offset, new.partition_leader_epoch), (1000, 7));
                let producer = (new.producer_id, new.producer_epoch, new.base_sequence);
                prop_assert_eq!(producer, (5, 2, 40));
                prop_assert_eq!(new.last_sequence(), old.last_sequence());
                prop_assert_eq!(new.compression().unwrap(), codec);
                prop_assert_eq!(new.timestamp_type(), old.timestamp_type());
                prop_assert_eq!(new.has_delete_horizon(), due.is_some());
                if let Some((at_ms, _)) = due {
                    prop_assert_eq!(new.base_timestamp, at_ms);
                }
                let newest = expected.iter().map(|r| r.timestamp).max();
                prop_assert_eq!(Some(new.max_timestamp), newest);
                prop_assert_eq!(filtered.max_timestamp, new.max_timestamp);
            }
        }
        if filtered.left != Left::Rewritten {
            prop_assert_eq!(&out[..], b"front");
        }
    }

    // Invalid records cost an error and leave the output unchanged.
    #[test]
    fn invalid_records_are_refused(
        mut payload in proptest::collection::vec(any::<u8>(), 0..60), count in 0i32..5,
    ) {
        let header = BatchHeader {
            base_offset: 0,
            batch_length: (HEADER_SIZE - 12 + payload.len()) as i32,
            partition_leader_epoch: 0,
            magic: 2,
            crc: 0,
            attributes: 0,
            last_offset_delta: 4,
            base_timestamp: 0,
            max_timestamp: 0,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: count,
        };
        let mut bytes = vec![0; HEADER_SIZE];
        header.write(&mut bytes);
        bytes.append(&mut payload);
        let batch = Batch::parse(&bytes).unwrap();
        let mut out = Vec::new();
        let horizon = Some(NewHorizon { at_ms: 5, always: true });
        let mut filter = BatchFilter::new();
        if filter.open(&batch, LIMIT).unwrap().filter(horizon, |_| true, &mut out).is_err() {
            prop_assert!(out.is_empty());
        }
    }
}

// If this failed, a producer whose records are all removed would be refused as out of order.
#[test]
fn an_empty_batch_keeps_its_producers_state() {
    let sample = Sample {
        offset: 0,
        timestamp: 77,
        key: None,
        value: None,
        headers: Vec::new(),
    };
    let bytes = build(Compression::Zstd, false, &vec![sample; 3]);
    let before = Batch::parse(&bytes).unwrap();
    let mut out = Vec::new();
    write_empty(&before.header, &mut out).unwrap();
    let after = Batch::parse(&out).unwrap();
    after.verify_crc().unwrap();
    assert!(records(&after).is_empty());
    assert_eq!(after.header.last_offset(), 1002);
    assert_eq!(after.header.last_sequence(), before.header.last_sequence());
    assert_eq!((after.header.producer_id, after.header.producer_epoch), (5, 2));
    assert_eq!(after.header.compression().unwrap(), Compression::None);
    assert_eq!(
        (after.header.base_timestamp, after.header.max_timestamp),
        (-1, 77)
    );
}
