//! Encodes Arrow rows as batches, and reads the batches.
//!
//! Broken if they failed: records would differ from a data frame's rows, or a batch would be larger than its
//! log takes.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, LargeStringBuilder, MapBuilder, StringBuilder};
use arrow_array::{
    ArrayRef, BinaryViewArray, FixedSizeBinaryArray, Float64Array, Int64Array, LargeBinaryArray, NullArray,
    RecordBatch, StringArray, StringViewArray, TimestampNanosecondArray, TimestampSecondArray,
};
use arrow_schema::Schema;
use logcore_columns::{ColumnsError, EncodeOptions, encode_rows};
use logcore_records::{Compression, batches};

type Row = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<Header>);
type Header = (String, Option<Vec<u8>>);

const NOW: i64 = 77;

fn options(compression: Compression, batch_bytes: usize) -> EncodeOptions {
    EncodeOptions {
        compression,
        level: None,
        batch_bytes,
        now_ms: NOW,
    }
}

fn table(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .expect("columns of one length")
}

fn encode(table: &RecordBatch, options: &EncodeOptions) -> Result<Vec<u8>, ColumnsError> {
    encode_rows(&table.schema(), std::slice::from_ref(table), options)
}

fn read(bytes: &[u8]) -> Vec<Row> {
    let mut rows = Vec::new();
    for batch in batches(bytes) {
        let batch = batch.expect("whole batches");
        batch.verify_crc().expect("a checksum");
        batch.validate(1 << 30).expect("what a log accepts");
        for record in &batch.records(1 << 30).expect("records") {
            let record = record.expect("a record");
            let headers = record.headers().map(|(name, value)| {
                let name = String::from_utf8(name.to_vec()).expect("text");
                (name, value.map(<[u8]>::to_vec))
            });
            rows.push((
                record.timestamp,
                record.key.map(<[u8]>::to_vec),
                record.value.map(<[u8]>::to_vec),
                headers.collect(),
            ));
        }
    }
    rows
}

fn some(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(bytes.to_vec())
}

// Broken if it failed: a data frame could not be appended, or with wrong bytes, because of the Arrow layout
// that its library uses.
#[test]
fn every_layout_of_bytes_is_taken() {
    let layouts: Vec<ArrayRef> = vec![
        Arc::new(BinaryViewArray::from(vec![Some(&b"ab"[..]), None, Some(b"")])),
        Arc::new(LargeBinaryArray::from(vec![Some(&b"ab"[..]), None, Some(b"")])),
        Arc::new(StringArray::from(vec![Some("ab"), None, Some("")])),
        Arc::new(StringViewArray::from(vec![Some("ab"), None, Some("")])),
    ];
    for layout in layouts {
        let bytes = encode(&table(vec![("value", layout)]), &options(Compression::None, 1000))
            .expect("bytes of some layout");
        let expected = [some(b"ab"), None, some(b"")].map(|value| (NOW, None, value, vec![]));
        assert_eq!(read(&bytes), expected);
    }
    let fixed = FixedSizeBinaryArray::try_from(vec![&b"ab"[..], b"cd"]).expect("two of two");
    let columns: Vec<(&str, ArrayRef)> =
        vec![("key", Arc::new(fixed)), ("value", Arc::new(NullArray::new(2)))];
    let bytes = encode(&table(columns), &options(Compression::Zstd, 1000)).expect("keys only");
    assert_eq!(
        read(&bytes),
        [b"ab", b"cd"].map(|key| (NOW, some(key), None, vec![]))
    );
}

// Broken if it failed: records would have other times than their rows.
#[test]
fn times_of_every_unit_are_milliseconds_rounded_down() {
    let value: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampSecondArray::from(vec![Some(2), None, Some(0)])),
        Arc::new(TimestampNanosecondArray::from(vec![
            Some(2_000_999_999),
            None,
            Some(999_999),
        ])),
        Arc::new(Int64Array::from(vec![Some(2_000), None, Some(0)])),
    ];
    for times in columns {
        let table = table(vec![("timestamp", times), ("value", value.clone())]);
        let bytes = encode(&table, &options(Compression::None, 1000)).expect("times");
        let found: Vec<i64> = read(&bytes).iter().map(|row| row.0).collect();
        assert_eq!(found, [2_000, NOW, 0]);
    }
}

// Broken if it failed: rows of a slice, or rows whose headers are a map, would be appended with another row's
// headers.
#[test]
fn headers_of_slices_and_maps_stay_with_their_rows() {
    let mut map = MapBuilder::new(None, StringBuilder::new(), BinaryBuilder::new());
    for row in 0..3 {
        for header in 0..row {
            map.keys().append_value(format!("{row}{header}"));
            map.values().append_option((header > 0).then_some(b"x"));
        }
        map.append(row != 1).expect("a row");
    }
    let table = table(vec![
        ("headers", Arc::new(map.finish())),
        ("value", Arc::new(StringArray::from(vec!["a", "b", "c"]))),
    ]);
    let expected = [
        (NOW, None, some(b"b"), vec![]),
        (
            NOW,
            None,
            some(b"c"),
            vec![("20".to_owned(), None), ("21".to_owned(), some(b"x"))],
        ),
    ];
    let bytes = encode(&table.slice(1, 2), &options(Compression::None, 1000)).expect("a slice");
    assert_eq!(read(&bytes), expected);
}

// Broken if it failed: a log would refuse the batches as too large.
#[test]
fn no_batch_is_larger_than_batch_bytes_with_any_codec() {
    // Bytes that no codec can compress.
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let values: Vec<Vec<u8>> = (0..4_000)
        .map(|row| (0..row % 300).map(|_| noise()).collect())
        .collect();
    let mut column = LargeStringBuilder::new();
    for (row, _) in values.iter().enumerate() {
        column.append_value(row.to_string());
    }
    let table = table(vec![
        ("key", Arc::new(column.finish())),
        ("value", Arc::new(LargeBinaryArray::from_iter_values(&values))),
    ]);
    for codec in Compression::ALL {
        let bytes = encode(&table, &options(codec, 10_000)).expect("rows");
        let sizes: Vec<usize> = batches(&bytes)
            .map(|batch| batch.expect("a batch").bytes.len())
            .collect();
        assert!(sizes.iter().all(|size| *size <= 10_000), "{codec}: {sizes:?}");
        // Batches must not be needlessly small either.
        assert!(sizes.len() <= bytes.len() / 9_000 + 1, "{codec}: {}", sizes.len());
        let expected: Vec<Row> = values
            .iter()
            .enumerate()
            .map(|(row, value)| (NOW, some(row.to_string().as_bytes()), some(value), vec![]))
            .collect();
        assert_eq!(read(&bytes), expected);
    }
}

// Broken if it failed: a wrong column or row would be appended as another record, or the error would not name
// it.
#[test]
fn columns_and_rows_that_cannot_be_records_are_refused_by_name() {
    let text = || -> ArrayRef { Arc::new(StringArray::from(vec!["a"])) };
    let numbers: ArrayRef = Arc::new(Float64Array::from(vec![1.5]));
    let mut unnamed = MapBuilder::new(None, BinaryBuilder::new(), BinaryBuilder::new());
    unnamed.keys().append_value(b"k");
    unnamed.values().append_value(b"v");
    unnamed.append(true).expect("a row");
    let refused: Vec<(Vec<(&str, ArrayRef)>, &str)> = vec![
        (vec![("timestamp", numbers.clone())], "has neither"),
        (vec![("value", text()), ("valeu", text())], "no column \"valeu\""),
        (
            vec![("value", numbers.clone())],
            "column value has the type Float64; binary or string is needed",
        ),
        (
            vec![("value", text()), ("timestamp", numbers.clone())],
            "column timestamp has the type Float64",
        ),
        (
            vec![("value", text()), ("headers", numbers)],
            "column headers has the type Float64",
        ),
        (
            vec![("value", text()), ("headers", Arc::new(unnamed.finish()))],
            "headers' key has the type Binary; string",
        ),
        (
            vec![
                ("value", text()),
                ("timestamp", Arc::new(Int64Array::from(vec![-1]))),
            ],
            "row 0 cannot be appended: its timestamp is before 1970",
        ),
        (
            vec![
                ("value", text()),
                ("timestamp", Arc::new(TimestampNanosecondArray::from(vec![-1]))),
            ],
            "row 0 cannot be appended: its timestamp is before 1970",
        ),
        (
            vec![
                ("value", text()),
                (
                    "timestamp",
                    Arc::new(TimestampSecondArray::from(vec![i64::MAX / 1000 + 1])),
                ),
            ],
            "row 0 cannot be appended: its timestamp is more than 64 bits",
        ),
    ];
    for (columns, reason) in refused {
        let error = encode(&table(columns), &options(Compression::None, 1000))
            .expect_err("not a record")
            .to_string();
        assert!(error.contains(reason), "{error}");
    }
    let empty = Schema::empty();
    assert!(matches!(
        encode_rows(&empty, &[], &options(Compression::None, 1000)),
        Err(ColumnsError::NothingToAppend)
    ));
    let none = table(vec![("value", text())]).slice(0, 0);
    let nothing = encode(&none, &options(Compression::None, 1000)).expect("no rows");
    assert!(nothing.is_empty());
}
