//! Decodes fetched bytes and compares the rows with a model.
//!
//! Broken if they failed: Spark and Arrow users would silently read wrong, missing or repeated records.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use logcore_columns::{AbortedTransaction, Column, ColumnsError, DecodeOptions, Projection, decode_batches};
use logcore_records::{BatchBuilder, Compression, TimestampType, set_offsets_in_place};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

type Headers = Vec<(String, Option<Vec<u8>>)>;

/// One record: it is encoded, and must come back when decoded.
#[derive(Debug, Clone, PartialEq)]
struct Model {
    offset: i64,
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Headers,
}

#[derive(Debug, Clone)]
struct ModelBatch {
    compression: Compression,
    control: bool,
    records: Vec<Model>,
}

fn record() -> impl Strategy<Value = Model> {
    (
        0..4_000_000_000_000i64,
        option::of(vec(any::<u8>(), 0..20)),
        option::of(vec(any::<u8>(), 0..200)),
        vec(("[a-zé]{0,6}", option::of(vec(any::<u8>(), 0..8))), 0..3),
    )
        .prop_map(|(timestamp, key, value, headers)| Model {
            offset: 0,
            timestamp,
            key,
            value,
            headers,
        })
}

fn compression() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Gzip),
        Just(Compression::Snappy),
        Just(Compression::Lz4),
        Just(Compression::Zstd),
    ]
}

/// Batches with dense offsets from a first offset on.
fn log() -> impl Strategy<Value = Vec<ModelBatch>> {
    let batch = (compression(), prop::bool::weighted(0.1), vec(record(), 1..12));
    (0..1_000_000i64, vec(batch, 1..8)).prop_map(|(first, batches)| {
        let mut offset = first;
        let number = |(compression, control, mut records): (_, _, Vec<Model>)| {
            for record in &mut records {
                record.offset = offset;
                offset += 1;
            }
            ModelBatch {
                compression,
                control,
                records,
            }
        };
        batches.into_iter().map(number).collect()
    })
}

fn encode(batch: &ModelBatch) -> Vec<u8> {
    let mut builder = BatchBuilder::new(batch.compression, None);
    builder.set_control(batch.control);
    builder.set_base_offset(batch.records[0].offset, 0);
    for record in &batch.records {
        let headers: Vec<(&[u8], Option<&[u8]>)> = record
            .headers
            .iter()
            .map(|(key, value)| (key.as_bytes(), value.as_deref()))
            .collect();
        builder
            .append(
                record.timestamp,
                record.key.as_deref(),
                record.value.as_deref(),
                &headers,
            )
            .expect("the record fits");
    }
    builder.build().expect("the batch has records")
}

fn options(columns: &[Column], start: i64, end: i64, batch_rows: usize) -> DecodeOptions {
    let projection = Projection::new(columns.to_vec()).expect("some columns");
    DecodeOptions {
        start,
        end,
        batch_rows,
        ..DecodeOptions::new(projection, "orders", 3)
    }
}

fn owned(array: &arrow_array::BinaryArray, row: usize) -> Option<Vec<u8>> {
    array.is_valid(row).then(|| array.value(row).to_vec())
}

/// The rows of a batch with all columns.
fn rows(batch: &RecordBatch) -> Vec<Model> {
    let key = batch.column(0).as_binary::<i32>();
    let value = batch.column(1).as_binary::<i32>();
    let topic = batch.column(2).as_string::<i32>();
    let partition = batch.column(3).as_primitive::<Int32Type>();
    let offset = batch.column(4).as_primitive::<Int64Type>();
    let timestamp = batch.column(5).as_primitive::<TimestampMicrosecondType>();
    let timestamp_type = batch.column(6).as_primitive::<Int32Type>();
    let headers = batch.column(7).as_list::<i32>();
    (0..batch.num_rows())
        .map(|row| {
            assert_eq!(topic.value(row), "orders");
            assert_eq!(partition.value(row), 3);
            assert_eq!(timestamp_type.value(row), 0);
            assert_eq!(timestamp.value(row) % 1_000, 0);
            let list = headers.is_valid(row).then(|| headers.value(row));
            let entries = list.as_ref().map(|list| list.as_struct());
            assert!(
                entries.is_none_or(|entries| !entries.is_empty()),
                "no headers are null"
            );
            let headers = entries.map_or_else(Vec::new, |entries| {
                let keys = entries.column(0).as_string::<i32>();
                let values = entries.column(1).as_binary::<i32>();
                (0..entries.len())
                    .map(|index| (keys.value(index).to_owned(), owned(values, index)))
                    .collect()
            });
            Model {
                offset: offset.value(row),
                timestamp: timestamp.value(row) / 1_000,
                key: owned(key, row),
                value: owned(value, row),
                headers,
            }
        })
        .collect()
}

proptest! {
    // Broken if it failed: a reader of a range would miss records, or get others.
    #[test]
    fn rows_are_the_records_in_range(
        log in log(),
        from in -3i64..40,
        length in 0i64..60,
        batch_rows in 1usize..20,
        torn in 0usize..61,
    ) {
        let first = log[0].records[0].offset;
        let start = (first + from).max(0);
        let end = start + length;
        let mut bytes: Vec<u8> = log.iter().flat_map(encode).collect();
        // An incomplete batch at the end, as a Fetch response may have it.
        let last = log.last().expect("a batch").records.last().expect("a record").offset;
        bytes.extend_from_slice(&encode(&log[0])[..torn]);

        let options = options(&Column::ALL, start, end, batch_rows);
        let decoded = decode_batches(&bytes, &options).expect("undamaged bytes");

        let expected: Vec<Model> = log
            .iter()
            .filter(|batch| !batch.control)
            .flat_map(|batch| batch.records.clone())
            .filter(|record| (start..end).contains(&record.offset))
            .collect();
        let found: Vec<Model> = decoded.batches.iter().flat_map(rows).collect();
        prop_assert_eq!(found, expected);
        for (index, batch) in decoded.batches.iter().enumerate() {
            let full = index + 1 < decoded.batches.len();
            prop_assert!(batch.num_rows() <= batch_rows && (!full || batch.num_rows() == batch_rows));
        }
        // The next fetch starts there, and must not miss a record of the range.
        prop_assert!(decoded.next_offset >= end.min(last + 1) || decoded.next_offset == start);
    }

    // Broken if it failed: a reader of a time range would get records of other times, or miss records.
    #[test]
    fn rows_are_the_records_of_the_times(
        log in log(),
        pick in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let records: Vec<Model> = log
            .iter()
            .filter(|batch| !batch.control)
            .flat_map(|batch| batch.records.clone())
            .collect();
        let mut times: Vec<i64> = records.iter().map(|record| record.timestamp).collect();
        times.extend([0, i64::MAX]);
        let (one, other) = (times[pick.0.index(times.len())], times[pick.1.index(times.len())]);
        let (start_time, end_time) = (one.min(other), one.max(other));
        let bytes: Vec<u8> = log.iter().flat_map(encode).collect();
        let everything = options(&Column::ALL, 0, i64::MAX, 7);
        let options = DecodeOptions { start_time, end_time: Some(end_time), ..everything };
        let decoded = decode_batches(&bytes, &options).expect("undamaged bytes");
        let found: Vec<Model> = decoded.batches.iter().flat_map(rows).collect();
        let expected: Vec<Model> = records
            .into_iter()
            .filter(|record| (start_time..end_time).contains(&record.timestamp))
            .collect();
        prop_assert_eq!(found, expected);
    }

    // Broken if it failed: a reader of committed records would get aborted ones, or miss committed ones.
    #[test]
    fn aborted_transactions_are_left_out(
        steps in vec((0..3i64, 0..5u8), 1..60),
        markers_known: bool,
        start in 0i64..20,
    ) {
        let (bytes, records, mut aborted) = transactions(&steps);
        // As a log answers: transactions that ended before the start are not in the list.
        aborted.retain(|aborted| aborted.last_offset >= start);
        if !markers_known {
            aborted.iter_mut().for_each(|aborted| aborted.last_offset = i64::MAX);
        }
        let projection = Projection::new(vec![Column::Offset]).expect("a column");
        let options = DecodeOptions {
            start,
            aborted,
            ..DecodeOptions::new(projection, "orders", 0)
        };
        let decoded = decode_batches(&bytes, &options).expect("undamaged bytes");
        let found: Vec<i64> = decoded
            .batches
            .iter()
            .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec())
            .collect();
        let expected: Vec<i64> = records.into_iter().filter(|offset| *offset >= start).collect();
        prop_assert_eq!(found, expected);
    }

    // Broken if it failed: a column would have other values when fewer columns are read.
    #[test]
    fn fewer_columns_are_the_same_columns(log in log(), seed in 1u8..255) {
        let bytes: Vec<u8> = log.iter().flat_map(encode).collect();
        let wanted: Vec<Column> = Column::ALL
            .into_iter()
            .enumerate()
            .filter(|(index, _)| seed & (1 << index) != 0)
            .map(|(_, column)| column)
            .collect();
        let all = decode_batches(&bytes, &options(&Column::ALL, 0, i64::MAX, 7)).expect("undamaged");
        let some = decode_batches(&bytes, &options(&wanted, 0, i64::MAX, 7)).expect("undamaged");
        prop_assert_eq!(all.batches.len(), some.batches.len());
        for (all, some) in all.batches.iter().zip(&some.batches) {
            prop_assert_eq!(some.num_columns(), wanted.len());
            for (index, column) in wanted.iter().enumerate() {
                prop_assert_eq!(all.column_by_name(column.name()), Some(some.column(index)));
            }
        }
    }

    // Broken if it failed: damaged bytes would be read as records.
    #[test]
    fn a_flipped_bit_is_never_read_as_a_record(
        log in log(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut bytes: Vec<u8> = log.iter().flat_map(encode).collect();
        let columns = [Column::Key, Column::Value, Column::Timestamp];
        let options = options(&columns, 0, i64::MAX, 1000);
        let undamaged = decode_batches(&bytes, &options).expect("undamaged");
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // Offsets and leader epoch are not part of the checksum, and a changed length may end the decoding
        // early. Then the rows are the first of the undamaged rows. Every other flipped bit is an error.
        if let Ok(decoded) = decode_batches(&bytes, &options) {
            let found: usize = decoded.batches.iter().map(RecordBatch::num_rows).sum();
            let total: usize = undamaged.batches.iter().map(RecordBatch::num_rows).sum();
            prop_assert!(found <= total);
        }
    }

    // Broken if it failed: bytes that are not batches would end the process.
    #[test]
    fn garbage_is_an_error_and_no_panic(bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode_batches(&bytes, &options(&Column::ALL, 0, i64::MAX, 10));
    }
}

/// A log of three producers that write (0..=2), commit (3) or abort (4) in turn. Returns its bytes, the
/// offsets of the records that are not aborted, and the aborted transactions. An open transaction counts as
/// not aborted.
fn transactions(steps: &[(i64, u8)]) -> (Vec<u8>, Vec<i64>, Vec<AbortedTransaction>) {
    let (mut bytes, mut records, mut aborted) = (Vec::new(), Vec::new(), Vec::new());
    let mut open: [Option<i64>; 3] = [None; 3];
    let mut written: Vec<(i64, i64)> = Vec::new();
    for (offset, (producer, step)) in (0i64..).zip(steps) {
        let mut builder = BatchBuilder::new(Compression::None, None);
        // Producer 2 writes outside of transactions: a list of aborted transactions must not affect its
        // records.
        builder.set_transactional(*producer != 2);
        builder.set_producer_state(*producer, 0, 0);
        builder.set_base_offset(offset, 0);
        let ends = *step >= 3 && *producer != 2;
        builder.set_control(ends);
        builder.append(offset, None, None, &[]).expect("fits");
        bytes.extend(builder.build().expect("a record"));
        let transaction = &mut open[*producer as usize];
        if !ends {
            transaction.get_or_insert(offset);
            written.push((*producer, offset));
        } else if let Some(first) = transaction.take()
            && *step == 4
        {
            written.retain(|(by, at)| by != producer || *at < first);
            aborted.push(AbortedTransaction {
                producer_id: *producer,
                first_offset: first,
                last_offset: offset,
            });
        }
    }
    records.extend(written.iter().map(|(_, offset)| *offset));
    (bytes, records, aborted)
}

// Broken if it failed: reading other columns would cost as much as reading headers.
#[test]
fn headers_are_not_decoded_unless_wanted() {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder
        .append(1, None, Some(b"v"), &[(b"k", Some(b"h"))])
        .expect("fits");
    let mut bytes = builder.build().expect("one record");
    // The last bytes are the header. Its length of 1, for "h", becomes one beyond the record's end; the
    // checksum is right.
    let length_at = bytes.len() - 2;
    bytes[length_at] = 0x7e;
    logcore_records::set_producer_state_in_place(&mut bytes, -1, -1, -1);
    let decoded = decode_batches(&bytes, &options(&[Column::Value, Column::Offset], 0, 1, 10))
        .expect("values are whole");
    assert_eq!(decoded.batches[0].num_rows(), 1);
    assert!(decode_batches(&bytes, &options(&[Column::Headers], 0, 1, 10)).is_err());
}

// Broken if it failed: a batch of large rows would use unbounded memory.
#[test]
fn a_batch_is_not_larger_than_batch_bytes() {
    let mut builder = BatchBuilder::new(Compression::None, None);
    for row in 0..100 {
        let value = vec![b'v'; if row == 50 { 5_000 } else { 300 }];
        builder.append(1, None, Some(&value), &[]).expect("fits");
    }
    let bytes = builder.build().expect("records");
    let options = DecodeOptions {
        batch_bytes: 1_000,
        ..options(&[Column::Value], 0, i64::MAX, 1_000)
    };
    let decoded = decode_batches(&bytes, &options).expect("undamaged");
    let sizes: Vec<(usize, usize)> = decoded
        .batches
        .iter()
        .map(|batch| {
            let values = batch.column(0).as_binary::<i32>();
            (batch.num_rows(), values.values().len())
        })
        .collect();
    assert_eq!(sizes.iter().map(|(rows, _)| rows).sum::<usize>(), 100);
    assert!(
        sizes.iter().all(|(rows, bytes)| *bytes <= 1_000 || *rows == 1),
        "{sizes:?}"
    );
}

// Broken if it failed: records with very large times would be left out of a table, or have another time in
// it.
#[test]
fn the_largest_times_are_kept_or_refused_with_the_offset() {
    let largest = i64::MAX / 1_000;
    let times = [-1, largest, largest + 1, 1 << 62, i64::MAX];
    for (offset, time) in (0..).zip(times) {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.append(time, None, Some(b"v"), &[]).expect("fits");
        let mut bytes = builder.build().expect("one record");
        set_offsets_in_place(&mut bytes, offset, 0);
        let decode = |columns: &[Column]| decode_batches(&bytes, &options(columns, 0, i64::MAX, 9));
        let decoded = decode(&[Column::Offset]).expect("undamaged");
        assert_eq!(decoded.batches.len(), 1, "time {time}");
        assert_eq!(decoded.batches[0].num_rows(), 1, "time {time}");
        match decode(&[Column::Timestamp]) {
            Ok(decoded) => {
                let column = decoded.batches[0].column(0);
                let micros = column.as_primitive::<TimestampMicrosecondType>();
                assert_eq!(micros.value(0), time * 1_000);
            }
            Err(error) => {
                assert!(time > largest, "{time}: {error}");
                let text = error.to_string();
                assert!(text.contains(&format!("offset {offset} has the timestamp {time} ms")));
            }
        }
    }
}

// Broken if it failed: records of a topic with log append time would have their producers' times.
#[test]
fn log_append_time_is_used_and_has_its_type() {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.set_timestamp_type(TimestampType::LogAppendTime);
    builder.append(5, None, Some(b"v"), &[]).expect("fits");
    let mut bytes = builder.build().expect("one record");
    logcore_records::set_log_append_time_in_place(&mut bytes, 77);
    let decoded = decode_batches(
        &bytes,
        &options(&[Column::Timestamp, Column::TimestampType], 0, 1, 10),
    )
    .expect("undamaged");
    let batch = &decoded.batches[0];
    assert_eq!(
        batch
            .column(0)
            .as_primitive::<TimestampMicrosecondType>()
            .value(0),
        77_000
    );
    assert_eq!(batch.column(1).as_primitive::<Int32Type>().value(0), 1);
}

// Broken if it failed: an error would not say which of the fetched batches is damaged.
#[test]
fn a_wrong_checksum_is_reported_with_its_position() {
    let batch = ModelBatch {
        compression: Compression::None,
        control: false,
        records: vec![Model {
            offset: 0,
            timestamp: 1,
            key: None,
            value: Some(b"value".to_vec()),
            headers: vec![],
        }],
    };
    let mut bytes = encode(&batch);
    let first = bytes.len();
    bytes.extend(encode(&ModelBatch {
        records: vec![Model {
            offset: 1,
            ..batch.records[0].clone()
        }],
        ..batch
    }));
    let last = bytes.len() - 3;
    bytes[last] ^= 0x40;
    let error =
        decode_batches(&bytes, &options(&[Column::Value], 0, i64::MAX, 10)).expect_err("a damaged batch");
    assert!(
        matches!(
            error,
            ColumnsError::CorruptFetch { position, partition: 3, .. } if position == first as u64
        ),
        "{error}"
    );
}

// Broken if it failed: a record with a header key that is not UTF-8 would stop every read of its partition.
#[test]
fn header_keys_that_are_not_text_are_replaced() {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder
        .append(1, None, None, &[(&[0xff, b'k'], None)])
        .expect("fits");
    let bytes = builder.build().expect("one record");
    let decoded = decode_batches(&bytes, &options(&[Column::Headers], 0, 1, 10)).expect("undamaged");
    let list = decoded.batches[0].column(0).as_list::<i32>().value(0);
    assert_eq!(
        list.as_struct().column(0).as_string::<i32>().value(0),
        "\u{fffd}k"
    );
}

// Broken if it failed: a mistake in a range would look like a partition without records.
#[test]
fn an_invalid_range_is_refused() {
    for (start, end) in [(-1, 5), (5, 4)] {
        let error = decode_batches(&[], &options(&[Column::Value], start, end, 10)).expect_err("no range");
        assert!(matches!(error, ColumnsError::BadRange { .. }), "{error}");
    }
}
