//! If these fail, clients and brokers read different records from one batch, or a hostile batch stops a
//! broker.
use super::*;
use crate::builder::BatchBuilder;
use crate::header::{RECORD_COUNT_AT, TimestampType};
use proptest::prelude::*;

const LIMIT: usize = 1 << 22;

type Bytes = Vec<u8>;

#[derive(Debug, Clone)]
struct Sample {
    timestamp: i64,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: Vec<(Bytes, Option<Bytes>)>,
}

fn sample() -> impl Strategy<Value = Sample> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
    let nullable = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200));
    let headers = proptest::collection::vec((bytes(), nullable()), 0..3);
    let timestamp = prop_oneof![any::<i64>(), 0i64..2_000_000_000_000];
    (timestamp, nullable(), nullable(), headers).prop_map(|(timestamp, key, value, headers)| Sample {
        timestamp,
        key,
        value,
        headers,
    })
}

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    proptest::collection::vec(sample(), 1..30)
}

fn append(builder: &mut BatchBuilder, sample: &Sample) {
    let headers: Vec<(&[u8], Option<&[u8]>)> = sample
        .headers
        .iter()
        .map(|(key, value)| (&key[..], value.as_deref()))
        .collect();
    let before = builder.estimated_size();
    let (key, value) = (sample.key.as_deref(), sample.value.as_deref());
    builder.append(sample.timestamp, key, value, &headers).unwrap();
    let added = builder.estimated_size() - before;
    assert!(added <= BatchBuilder::record_size_bound(key, value, &headers));
}

fn build(codec: Compression, samples: &[Sample]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec, None);
    for sample in samples {
        append(&mut builder, sample);
    }
    builder.build().unwrap()
}

fn one_record() -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder
        .append(5, Some(b"key"), Some(b"value"), &[(b"h", None)])
        .unwrap();
    builder.build().unwrap()
}

/// Applies `change` to a batch and sets the checksum.
fn changed(mut bytes: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut bytes);
    set_crc(&mut bytes);
    bytes
}

fn validate(bytes: &[u8]) -> Result<(), RecordError> {
    let batch = Batch::parse(bytes)?;
    batch.verify_crc()?;
    batch.validate(LIMIT).map(drop)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_built_is_read(samples in samples(), code in 0u8..5) {
        let codec = Compression::from_code(code).unwrap();
        let bytes = build(codec, &samples);
        let batch = Batch::parse(&bytes).unwrap();
        prop_assert_eq!(batch.bytes.len(), bytes.len());
        batch.verify_crc().unwrap();
        batch.validate(LIMIT).unwrap();
        let max = samples.iter().map(|sample| sample.timestamp).max().unwrap();
        prop_assert_eq!(batch.header.max_timestamp, max);
        prop_assert_eq!(batch.header.record_count as usize, samples.len());

        let mut scratch = Vec::new();
        let again: Vec<_> = batch
            .records_in(&mut scratch, LIMIT)
            .unwrap()
            .map(|record| record.unwrap().offset)
            .collect();
        prop_assert_eq!(again.len(), samples.len());

        let records = batch.records(LIMIT).unwrap();
        for (index, (record, sample)) in records.iter().zip(&samples).enumerate() {
            let record = record.unwrap();
            prop_assert_eq!(record.offset, index as i64);
            prop_assert_eq!(record.timestamp, sample.timestamp);
            prop_assert_eq!(record.key, sample.key.as_deref());
            prop_assert_eq!(record.value, sample.value.as_deref());
            let headers: Vec<_> = record
                .headers()
                .map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec)))
                .collect();
            prop_assert_eq!(&headers, &sample.headers);
        }
    }

    #[test]
    fn a_changed_byte_never_panics(
        samples in samples(), code in 0u8..5, at: prop::sample::Index, byte: u8, sets_crc: bool,
    ) {
        let mut bytes = build(Compression::from_code(code).unwrap(), &samples);
        let at = at.index(bytes.len());
        let same = bytes[at] == byte;
        bytes[at] = byte;
        if sets_crc {
            // An attacker sets the checksum, too.
            set_crc(&mut bytes);
        }
        for batch in batches(&bytes) {
            let Ok(batch) = batch else { continue };
            // The checksum finds every change in the bytes it covers. The base offset and leader epoch come
            // before them.
            let is_covered = at >= MAGIC_END || (8..12).contains(&at);
            if is_covered && !same && !sets_crc {
                prop_assert!(batch.verify_crc().is_err());
            }
            let _ = batch.validate(LIMIT);
            if let Ok(records) = batch.records(LIMIT) {
                for record in &records {
                    let _ = record.map(|record| record.headers().count());
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Some(magic) = bytes.get_mut(16) {
            *magic = 2;
        }
        if bytes.len() >= HEADER_SIZE {
            let length = (bytes.len() - LOG_OVERHEAD) as i32;
            bytes[8..12].copy_from_slice(&length.to_be_bytes());
        }
        for batch in batches(&bytes).flatten() {
            let _ = batch.validate(LIMIT);
        }
    }

    #[test]
    fn an_incomplete_batch_ends_the_iteration(
        samples in samples(), count in 1usize..5, cut: prop::sample::Index,
    ) {
        let one = build(Compression::None, &samples);
        let all = one.repeat(count);
        let cut = cut.index(all.len() + 1);
        let mut walk = batches(&all[..cut]);
        let whole = walk.by_ref().map(Result::unwrap).count();
        prop_assert_eq!(whole, cut / one.len());
        prop_assert_eq!(walk.valid_bytes(), whole * one.len());
        prop_assert_eq!(walk.remaining().len(), cut % one.len());
    }
}

/// The first byte after the magic byte, which decides whether the bytes are a batch at all.
const MAGIC_END: usize = 17;

#[test]
fn a_batch_is_what_kafka_writes() {
    // Encoded by hand from KIP-98, so that an error made both in writing and in reading is found.
    let bytes = one_record();
    let records = [
        0x22, // 17 bytes follow
        0, 0, 0, // attributes, timestamp delta, offset delta
        6, b'k', b'e', b'y', 10, b'v', b'a', b'l', b'u', b'e', //
        2, 2, b'h', 1, // one header: "h", null
    ];
    let mut expected = vec![0; HEADER_SIZE];
    expected[11] = (49 + records.len()) as u8;
    expected[12..16].fill(0xff);
    expected[16] = 2;
    expected[34] = 5;
    expected[42] = 5;
    expected[43..57].fill(0xff);
    expected[60] = 1;
    expected.extend_from_slice(&records);
    set_crc(&mut expected);
    assert_eq!(bytes, expected);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn a_builder_is_used_again() {
    let mut builder = BatchBuilder::new(Compression::Lz4, None);
    assert_eq!(builder.build(), Err(RecordError::Empty));
    let mut out = Vec::new();
    for round in 0..3i32 {
        builder.set_producer_state(7, 1, round * 2);
        builder.append(i64::from(round), None, None, &[]).unwrap();
        assert_eq!(builder.append(9, None, None, &[]).unwrap(), 1);
        assert_eq!(builder.len(), 2);
        builder.build_into(&mut out).unwrap();
        assert!(builder.is_empty());
        assert_eq!(builder.estimated_size(), HEADER_SIZE);
    }
    let sequences: Vec<_> = batches(&out)
        .map(|batch| {
            let batch = batch.unwrap();
            validate(batch.bytes).unwrap();
            (batch.header.base_sequence, batch.header.last_sequence())
        })
        .collect();
    assert_eq!(sequences, [(0, 1), (2, 3), (4, 5)]);
}

#[test]
fn flags_and_state_are_kept() {
    let mut builder = BatchBuilder::new(Compression::Zstd, Some(3));
    builder.set_producer_state(12, 3, i32::MAX);
    builder.set_transactional(true);
    builder.set_control(true);
    builder.set_base_offset(100, 4);
    builder.append(1, Some(b"k"), None, &[]).unwrap();
    builder.append(2, Some(b"k"), None, &[]).unwrap();
    let bytes = builder.build().unwrap();
    let header = Batch::parse(&bytes).unwrap().header;
    assert!(header.is_transactional() && header.is_control() && header.has_producer_id());
    assert!(!header.has_delete_horizon());
    assert_eq!(header.compression(), Ok(Compression::Zstd));
    assert_eq!((header.last_offset(), header.partition_leader_epoch), (101, 4));
    // Sequences wrap to zero.
    assert_eq!(header.last_sequence(), 0);
}

#[test]
fn changes_in_place_keep_the_checksum_right() {
    let mut bytes = one_record();
    set_offsets_in_place(&mut bytes, 1 << 40, 77);
    validate(&bytes).unwrap();
    set_log_append_time_in_place(&mut bytes, 123_456);
    validate(&bytes).unwrap();
    set_producer_state_in_place(&mut bytes, 5, 6, 7);
    validate(&bytes).unwrap();
    let batch = Batch::parse(&bytes).unwrap();
    let header = &batch.header;
    assert_eq!(header.timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!(
        (header.base_offset, header.next_offset()),
        (1 << 40, (1 << 40) + 1)
    );
    assert_eq!(header.partition_leader_epoch, 77);
    assert_eq!(
        (header.producer_id, header.producer_epoch, header.base_sequence),
        (5, 6, 7)
    );
    let records = batch.records(LIMIT).unwrap();
    let record = records.iter().next().unwrap().unwrap();
    assert_eq!((record.offset, record.timestamp), (1 << 40, 123_456));
}

#[test]
fn an_intact_batch_that_contradicts_itself_is_refused() {
    let put = |at: usize, bytes: &'static [u8]| {
        changed(one_record(), |batch| {
            batch[at..at + bytes.len()].copy_from_slice(bytes);
        })
    };
    let inconsistent = |bytes: Vec<u8>| {
        let error = validate(&bytes).unwrap_err();
        assert!(!error.is_corruption(), "{error}");
    };
    inconsistent(put(ATTRIBUTES_AT, &[0x00, 0x05])); // unknown codec
    inconsistent(put(ATTRIBUTES_AT, &[0x00, 0x10])); // transactional without a producer
    inconsistent(put(23, &[0, 0, 0, 1])); // last offset delta above the count
    inconsistent(put(RECORD_COUNT_AT, &[0, 0, 0, 0]));
    inconsistent(put(RECORD_COUNT_AT, &[0xff; 4]));
    inconsistent(put(PRODUCER_ID_AT, &[0; 8])); // a producer without a sequence
    inconsistent(put(HEADER_SIZE, &[0x20])); // the record is shorter than its fields
    inconsistent(put(HEADER_SIZE, &[0x24])); // the record is longer than the batch
    inconsistent(put(HEADER_SIZE, &[0x01])); // negative length
    inconsistent(put(HEADER_SIZE + 14, &[0x04])); // a header count of two for one header
    inconsistent(put(HEADER_SIZE + 15, &[0x01])); // a header without a key
    inconsistent(put(0, &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]));

    // A count of two for one record, and of one for two records.
    let counts = |batch: &mut [u8], count: u8| {
        batch[26] = count - 1;
        batch[60] = count;
    };
    inconsistent(changed(one_record(), |batch| counts(batch, 2)));
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.append(0, None, None, &[]).unwrap();
    builder.append(0, None, None, &[]).unwrap();
    let two = builder.build().unwrap();
    inconsistent(changed(two, |batch| counts(batch, 1)));
}

// If this failed, a few bytes could take offsets without records: two billion with each batch.
#[test]
fn a_count_above_the_payloads_capacity_is_refused() {
    let claims = |mut bytes: Vec<u8>, count: i32| {
        bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
        bytes[RECORD_COUNT_AT..RECORD_COUNT_AT + 4].copy_from_slice(&count.to_be_bytes());
        set_crc(&mut bytes);
        bytes
    };
    for codec in Compression::ALL {
        // The smallest records: as many in their bytes as a producer can have.
        let mut builder = BatchBuilder::new(codec, None);
        for _ in 0..200_000 {
            builder.append(0, None, None, &[]).unwrap();
        }
        let dense = builder.build().unwrap();
        validate(&dense).unwrap();
        let mut builder = BatchBuilder::new(codec, None);
        builder.append(0, Some(&[0; 1000]), None, &[]).unwrap();
        let error = validate(&claims(builder.build().unwrap(), i32::MAX)).unwrap_err();
        assert!(
            matches!(error, RecordError::InconsistentBatch(_)),
            "{codec}: {error}"
        );
    }
}

#[test]
fn damage_is_corruption() {
    let mut bytes = one_record();
    bytes[HEADER_SIZE + 6] ^= 1;
    let error = validate(&bytes).unwrap_err();
    assert!(matches!(error, RecordError::CrcMismatch { .. }) && error.is_corruption());
    let mut bytes = one_record();
    bytes[16] = 1;
    assert_eq!(validate(&bytes), Err(RecordError::UnsupportedMagic(1)));
    let mut bytes = one_record();
    bytes[8..12].copy_from_slice(&48i32.to_be_bytes());
    assert!(matches!(validate(&bytes), Err(RecordError::InvalidLength { .. })));
    let mut walk = batches(&bytes);
    assert!(walk.next().is_some_and(|batch| batch.is_err()));
    assert!(walk.next().is_none());
    assert_eq!(walk.valid_bytes(), 0);
}

// If this failed, a batch that Kafka accepts would be refused: Kafka corrects offset deltas and ignores
// undefined attribute bits.
#[test]
fn wrong_offset_deltas_and_undefined_bits_are_accepted() {
    let in_order = |at: usize, byte: u8| {
        let bytes = changed(one_record(), |batch| batch[at] = byte);
        let batch = Batch::parse(&bytes).unwrap();
        batch.validate(LIMIT).unwrap().in_order
    };
    assert!(in_order(ATTRIBUTES_AT, 0x01)); // an undefined bit
    assert!(in_order(ATTRIBUTES_AT + 1, 0x80)); // another one
    assert!(!in_order(HEADER_SIZE + 3, 0x02)); // the first offset delta is 1
    assert!(!in_order(HEADER_SIZE + 3, 0x01)); // or -1
}
