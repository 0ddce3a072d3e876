//! Broken if they failed: a typed column would have wrong values, or values at other records' rows; a record
//! could stop a task, or damage its neighbours.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use arrow_array::{Array, BinaryArray, Int64Array, RecordBatch, StructArray};
use arrow_schema::{DataType, Field, Fields, TimeUnit};
use proptest::prelude::*;

use super::*;

fn field(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn value(fields: Vec<Field>) -> FieldRef {
    Arc::new(field("value", DataType::Struct(Fields::from(fields))))
}

fn batch(values: &[Option<&[u8]>]) -> RecordBatch {
    let offsets: Int64Array = (0..values.len() as i64).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("offset", Arc::new(offsets)),
        ("value", Arc::new(BinaryArray::from(values.to_vec()))),
    ];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

fn texts(values: &[&str]) -> RecordBatch {
    let values: Vec<Option<&[u8]>> = values.iter().map(|text| Some(text.as_bytes())).collect();
    batch(&values)
}

fn json(fields: Vec<Field>) -> TypedDecoder {
    TypedDecoder::new(value(fields), Format::Json, Some("_corrupt_record"), false).expect("types of JSON")
}

fn csv(fields: Vec<Field>, columns: &[&str]) -> TypedDecoder {
    let columns = columns.iter().map(|name| (*name).to_owned()).collect();
    let format = Format::Csv {
        delimiter: b',',
        columns,
    };
    TypedDecoder::new(value(fields), format, Some("_corrupt_record"), false).expect("types of CSV")
}

fn avro(fields: Vec<Field>, schema: &str, framed: bool) -> TypedDecoder {
    let schema = schema.to_owned();
    let format = Format::Avro { schema, framed };
    TypedDecoder::new(value(fields), format, None, false).expect("a schema of Avro")
}

fn decode(decoder: &mut TypedDecoder, batch: &RecordBatch) -> Typed {
    decoder.decode(batch).expect("a batch with values")
}

fn structs(typed: &Typed) -> &StructArray {
    typed
        .batch
        .column_by_name("value")
        .expect("the typed column")
        .as_struct()
}

/// The field `a` of each row; `None` for a row without a struct, or with a null in it.
fn integers(typed: &Typed) -> Vec<Option<i64>> {
    let found = structs(typed);
    let a = found
        .column_by_name("a")
        .expect("field a")
        .as_primitive::<Int64Type>();
    (0..a.len())
        .map(|row| (found.is_valid(row) && a.is_valid(row)).then(|| a.value(row)))
        .collect()
}

/// Which rows have their bytes in the column of malformed records.
fn corrupt_rows(typed: &Typed) -> Vec<usize> {
    let kept = typed
        .batch
        .column_by_name("_corrupt_record")
        .expect("the column")
        .as_binary::<i32>();
    (0..kept.len()).filter(|row| kept.is_valid(*row)).collect()
}

fn a() -> Vec<Field> {
    vec![field("a", DataType::Int64)]
}

#[test]
fn records_of_json_and_null_ones_are_rows() {
    let mut decoder = json(a());
    let values: [Option<&[u8]>; 4] = [
        Some(br#"{"a": 1, "b": [2]}"#),
        None,
        Some(b" {} \n"),
        Some(br#"{"a":null}"#),
    ];
    let found = decode(&mut decoder, &batch(&values));
    assert_eq!(integers(&found), [Some(1), None, None, None]);
    let nulls: Vec<bool> = (0..4).map(|row| structs(&found).is_null(row)).collect();
    assert_eq!(nulls, [false, true, false, false]);
    assert_eq!((found.malformed, found.first.clone()), (0, None));
    assert_eq!(corrupt_rows(&found), [0usize; 0]);
    assert_eq!(
        found.batch.column(0).as_primitive::<Int64Type>().values(),
        &[0, 1, 2, 3]
    );
}

#[test]
fn what_is_not_one_object_is_malformed_and_harms_no_neighbour() {
    for bad in [
        "",
        " ",
        "{",
        r#"{"a":1"#,
        r#"{"a":"#,
        r#"{"a":1}}"#,
        r#"{"a":1}{"a":2}"#,
        r#"{"a":1} {"#,
        "1",
        "null",
        "[]",
        r#""x""#,
        "tru",
        r#"{"a":1}1"#,
        r#"{"a" 1}"#,
        r#"{a:1}"#,
        r#"{"a":"x"}"#,
        r#"{"a":{}}"#,
        r#"{"a":[1]}"#,
        r#"{"a":true}"#,
        r#"{"a":1.5}"#,
        r#"{"a":1e3}"#,
        r#"{"a":9223372036854775808}"#,
        r#"{"a":1-2}"#,
        "\\",
        "\"",
        r#"{"a":"\ud800"}"#,
        r#"{"b":"\x"}"#,
    ] {
        let values = [r#"{"a":1}"#, bad, r#"{"a":2}"#, bad, bad, r#"{"a":3}"#];
        let mut decoder = json(a());
        for _ in 0..2 {
            let found = decode(&mut decoder, &texts(&values));
            assert_eq!(
                integers(&found),
                [Some(1), None, Some(2), None, None, Some(3)],
                "{bad:?}"
            );
            assert_eq!(corrupt_rows(&found), [1, 3, 4], "{bad:?}");
            assert_eq!(found.malformed, 3);
            let first = found.first.clone().expect("the first malformed record");
            assert_eq!(first.row, 1);
            assert!(!first.reason.is_empty());
        }
    }
}

#[test]
fn bytes_that_are_not_utf8_are_malformed() {
    let mut decoder = json(vec![field("a", DataType::Utf8)]);
    let values: [Option<&[u8]>; 3] = [
        Some(b"{\"a\":\"\xe2\x82\"}"),
        Some(b"{\"a\":\"\xac\"}"),
        Some(br#"{"a":"x"}"#),
    ];
    let found = decode(&mut decoder, &batch(&values));
    assert_eq!(corrupt_rows(&found), [0, 1]);
    assert_eq!(structs(&found).column(0).as_string::<i32>().value(2), "x");
}

#[test]
fn malformed_rows_are_dropped_with_their_other_columns() {
    let mut decoder = TypedDecoder::new(value(a()), Format::Json, None, true).expect("a decoder");
    let found = decode(&mut decoder, &texts(&[r#"{"a":1}"#, "x", r#"{"a":3}"#]));
    assert_eq!(integers(&found), [Some(1), Some(3)]);
    assert_eq!(
        found.batch.column(0).as_primitive::<Int64Type>().values(),
        &[0, 2]
    );
    assert_eq!(found.malformed, 1);
    assert_eq!(found.batch.num_columns(), 2);
}

#[test]
fn json_has_structs_lists_maps_decimals_and_times() {
    let inner = DataType::Struct(Fields::from(vec![
        field("x", DataType::Int32),
        field("y", DataType::Utf8),
    ]));
    let list = DataType::List(Arc::new(field("element", inner)));
    let pair = Fields::from(vec![
        Field::new("key", DataType::Utf8, false),
        field("value", DataType::Int32),
    ]);
    let entries = Arc::new(Field::new("entries", DataType::Struct(pair), false));
    let fields = vec![
        field("list", list),
        field("map", DataType::Map(entries, false)),
        field("price", DataType::Decimal128(5, 2)),
        field("day", DataType::Date32),
        field(
            "at",
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        ),
        field("local", DataType::Timestamp(TimeUnit::Microsecond, None)),
        field("text", DataType::Utf8),
        field("ratio", DataType::Float64),
        field("bytes", DataType::Binary),
    ];
    let whole = r#"{"list":[{"x":1,"y":"a","z":0},null,{"x":"2"}],"map":{"k":3,"l":null},"price":12.345,
        "day":"1970-01-02","at":"1970-01-01T02:00:00.000001+01:00","local":"1970-01-01 00:00:01","text":12,
        "ratio":1e-3,"bytes":"AP8="}"#;
    let mut decoder = json(fields.clone());
    let found = decode(
        &mut decoder,
        &texts(&[
            whole,
            r#"{"at":1700000000}"#,
            r#"{"day":20000}"#,
            r#"{"price":1000}"#,
            r#"{"at":"1970-01-01"}"#,
            r#"{"at":"yesterday!"}"#,
            r#"{"list":[{"x":2.5}]}"#,
            r#"{"map":{"k":"x"}}"#,
            r#"{"bytes":"00ff"}"#,
            r#"{"bytes":"="}"#,
        ]),
    );
    assert_eq!(corrupt_rows(&found), [1, 2, 3, 5, 6, 7, 9]);
    assert_eq!(structs(&found).fields(), &Fields::from(fields));
    let column = |name| structs(&found).column_by_name(name).expect("a field");
    let items = column("list").as_list::<i32>().value(0);
    assert_eq!(
        items.as_struct().column(0).as_primitive::<Int32Type>().values()[..],
        [1, 0, 2]
    );
    assert!(items.is_null(1));
    let pairs = column("map").as_map().value(0);
    assert_eq!(pairs.column(0).as_string::<i32>().value(1), "l");
    assert_eq!(
        pairs
            .column(1)
            .as_primitive::<Int32Type>()
            .iter()
            .collect::<Vec<_>>(),
        [Some(3), None]
    );
    assert_eq!(column("price").as_primitive::<Decimal128Type>().value(0), 1235);
    assert_eq!(column("day").as_primitive::<Date32Type>().value(0), 1);
    let at = column("at").as_primitive::<TimestampMicrosecondType>();
    assert_eq!((at.value(0), at.value(4)), (3_600_000_001, 0));
    assert_eq!(
        column("local")
            .as_primitive::<TimestampMicrosecondType>()
            .value(0),
        1_000_000
    );
    assert_eq!(column("text").as_string::<i32>().value(0), "12");
    assert_eq!(column("bytes").as_binary::<i32>().value(0), [0, 0xff]);
    assert!((column("ratio").as_primitive::<Float64Type>().value(0) - 0.001).abs() < 1e-12);
}

#[test]
fn huge_numbers_and_deep_nesting_are_malformed_and_stop_nothing() {
    let fields = vec![
        field("a", DataType::Int64),
        field("d", DataType::Decimal128(38, 10)),
    ];
    let digits = "9".repeat(100_000);
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    let values = [
        r#"{"a":1,"d":1.5}"#.to_owned(),
        format!(r#"{{"a":{digits}}}"#),
        format!(r#"{{"d":{digits}}}"#),
        format!(r#"{{"d":0.{digits}}}"#),
        r#"{"d":1e65537}"#.to_owned(),
        deep,
        objects,
        "[".repeat(300_000),
        format!(
            r#"{{"a":2,"ignored":{}{},"s":"{}"}}"#,
            "[".repeat(900),
            "]".repeat(900),
            "[".repeat(5000)
        ),
    ];
    let texts: Vec<&str> = values.iter().map(String::as_str).collect();
    let found = decode(&mut json(fields), &self::texts(&texts));
    assert_eq!(corrupt_rows(&found), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((integers(&found)[0], integers(&found)[8]), (Some(1), Some(2)));
}

#[test]
fn types_without_values_in_a_format_are_refused() {
    let columns = vec!["a".to_owned()];
    for (data_type, format) in [
        (DataType::Duration(TimeUnit::Microsecond), Format::Json),
        (
            DataType::Binary,
            Format::Csv {
                delimiter: b',',
                columns,
            },
        ),
    ] {
        let refused = TypedDecoder::new(value(vec![field("a", data_type)]), format, None, false);
        let refused = refused.err().expect("no such values").to_string();
        assert!(refused.contains("has no values of type"), "{refused}");
    }
    let mut decoder = json(a());
    assert!(
        decoder
            .decode(&batch(&[]).project(&[0]).expect("a column"))
            .is_err()
    );
}

#[test]
fn lines_of_csv() {
    let fields = vec![
        field("name", DataType::Utf8),
        field("a", DataType::Int64),
        field("price", DataType::Decimal128(5, 2)),
        field(
            "at",
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        ),
    ];
    let mut decoder = csv(fields, &["a", "other", "name", "price", "at"]);
    let good = "7,x,\"B,\"\"6\"\"\",1.005,1970-01-01T00:00:01Z";
    for bad in [
        "",
        "\n",
        "1,x",
        "1,x,n,1,,",
        "x,,,,",
        "1.5,,,,",
        "1,,\"n,,",
        "1,,,,\n2,,,,",
        "1,,,,\n2",
        "1,,,1000,",
        "1,,,,noon",
    ] {
        let found = decode(&mut decoder, &texts(&[good, bad, "2,,,,", bad, "3,,,,\r\n"]));
        assert_eq!(
            integers(&found),
            [Some(7), None, Some(2), None, Some(3)],
            "{bad:?}"
        );
        assert_eq!(corrupt_rows(&found), [1, 3], "{bad:?}");
        let names = structs(&found).column(0).as_string::<i32>();
        assert_eq!(names.value(0), "B,\"6\"");
        assert!(names.is_null(2));
        assert_eq!(
            structs(&found)
                .column(2)
                .as_primitive::<Decimal128Type>()
                .value(0),
            101
        );
        assert_eq!(
            structs(&found)
                .column(3)
                .as_primitive::<TimestampMicrosecondType>()
                .value(0),
            1_000_000
        );
    }
}

/// Avro's encoding of a long.
fn long(number: i64) -> Vec<u8> {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    let mut bytes = Vec::new();
    while rest >= 0x80 {
        bytes.push((rest as u8) | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// Avro's encoding of a string.
fn string(text: &str) -> Vec<u8> {
    [long(text.len() as i64), text.as_bytes().to_vec()].concat()
}

const FLIGHT: &str = r#"{"type":"record","name":"Flight","fields":[
    {"name":"a","type":"long"},
    {"name":"carrier","type":["null","string"],"default":null},
    {"name":"kind","type":{"type":"enum","name":"Kind","symbols":["ON","OFF"]}},
    {"name":"tags","type":{"type":"array","items":"string"}},
    {"name":"at","type":{"type":"long","logicalType":"timestamp-millis"}}]}"#;

fn flight(a: i64, carrier: Option<&str>) -> Vec<u8> {
    let carrier = carrier.map_or_else(|| long(0), |name| [long(1), string(name)].concat());
    let tags = [long(2), string("x"), string("y"), long(0)].concat();
    [long(a), carrier, long(1), tags, long(5)].concat()
}

fn flight_fields() -> Vec<Field> {
    let schema = avro_schema(FLIGHT).expect("a schema");
    schema
        .fields()
        .iter()
        .map(|field| field.as_ref().clone())
        .collect()
}

#[test]
fn records_of_avro() {
    let fields = flight_fields();
    let types: Vec<&DataType> = fields.iter().map(Field::data_type).collect();
    let element = Arc::new(field("element", DataType::Utf8));
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    assert_eq!(
        types,
        [
            &DataType::Int64,
            &DataType::Utf8,
            &DataType::Utf8,
            &DataType::List(element),
            &utc
        ]
    );
    let mut decoder = avro(fields, FLIGHT, false);
    let good = flight(7, Some("UA"));
    let long_one = [good.clone(), vec![0]].concat();
    let twice = [good.clone(), good.clone()].concat();
    let values: Vec<Option<&[u8]>> = vec![
        Some(&good),
        None,
        Some(&good[..good.len() - 1]),
        Some(&good),
        Some(&long_one),
        Some(&twice),
        Some(b""),
        Some(&[0xff; 30]),
        Some(&good),
    ];
    let found = decode(&mut decoder, &batch(&values));
    let seven = Some(7);
    assert_eq!(
        integers(&found),
        [seven, None, None, seven, None, None, None, None, seven]
    );
    assert_eq!(found.malformed, 5);
    assert_eq!(found.first.as_ref().map(|first| first.row), Some(2));
    let column = |name| structs(&found).column_by_name(name).expect("a field");
    assert_eq!(column("carrier").as_string::<i32>().value(8), "UA");
    assert_eq!(column("kind").as_string::<i32>().value(8), "OFF");
    assert_eq!(
        column("tags")
            .as_list::<i32>()
            .value(8)
            .as_string::<i32>()
            .value(1),
        "y"
    );
    assert_eq!(
        column("at").as_primitive::<TimestampMicrosecondType>().value(8),
        5000
    );
}

#[test]
fn avro_decodes_the_wanted_fields_only() {
    let fields: Vec<Field> = flight_fields()
        .into_iter()
        .filter(|one| one.name() == "a" || one.name() == "at")
        .collect();
    let mut decoder = avro(fields.into_iter().rev().collect(), FLIGHT, false);
    let record = flight(9, None);
    let found = decode(&mut decoder, &batch(&[Some(&record)]));
    assert_eq!(integers(&found), [Some(9)]);
    assert_eq!(structs(&found).num_columns(), 2);
}

#[test]
fn framed_avro_is_read_by_its_writers_schema() {
    let framed = |id: u32, body: Vec<u8>| [vec![0], id.to_be_bytes().to_vec(), body].concat();
    let old = r#"{"type":"record","name":"Flight","fields":[
        {"name":"gone","type":"string"},{"name":"a","type":"int"}]}"#;
    let new = r#"{"type":"record","name":"Flight","fields":[{"name":"a","type":"long"},
        {"name":"carrier","type":"string","default":"none"}]}"#;
    let fields = vec![field("a", DataType::Int64), field("carrier", DataType::Utf8)];
    let mut decoder = avro(fields, new, true);
    let records = [
        framed(8, [long(1), string("UA")].concat()),
        framed(7, [string("x"), long(2)].concat()),
        framed(9, long(1)),
        long(1),
        framed(8, [long(3), string("B6")].concat()),
        vec![0, 0, 0],
    ];
    let values: Vec<Option<&[u8]>> = records.iter().map(|record| Some(record.as_slice())).collect();
    let given = batch(&values);
    assert_eq!(decoder.unknown_schemas(&given).expect("ids"), [7, 8, 9]);
    decoder.add_schema(7, Some(old.to_owned()));
    decoder.add_schema(8, Some(new.to_owned()));
    decoder.add_schema(9, None);
    assert_eq!(decoder.unknown_schemas(&given).expect("ids"), [0u32; 0]);
    let found = decode(&mut decoder, &given);
    assert_eq!(integers(&found), [Some(1), Some(2), None, None, Some(3), None]);
    let carriers = structs(&found).column(1).as_string::<i32>();
    assert_eq!(
        [carriers.value(0), carriers.value(1), carriers.value(4)],
        ["UA", "none", "B6"]
    );
    let first = found.first.expect("a malformed record");
    assert_eq!(
        (first.row, first.reason.as_str()),
        (2, "the registry has no schema 9")
    );
}

#[test]
fn avro_schemas_that_cannot_be_columns_are_refused() {
    for bad in [
        "{",
        r#""long""#,
        r#"{"type":"record","name":"R","fields":[{"name":"u","type":["int","string"]}]}"#,
    ] {
        assert!(
            matches!(avro_schema(bad), Err(ColumnsError::Typed { .. })),
            "{bad}"
        );
    }
}

/// The descriptors of a message and of its parts, as protoc writes them.
fn descriptors() -> Vec<u8> {
    use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
    use prost_reflect::prost_types::{
        DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    };
    let field = |name: &str, number, kind: Type, label: Label, of: Option<&str>| FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        r#type: Some(kind.into()),
        label: Some(label.into()),
        type_name: of.map(str::to_owned),
        ..FieldDescriptorProto::default()
    };
    let message = |name: &str, fields: Vec<FieldDescriptorProto>| DescriptorProto {
        name: Some(name.to_owned()),
        field: fields,
        ..DescriptorProto::default()
    };
    let one = Label::Optional;
    let flight = message(
        "Flight",
        vec![
            field("a", 1, Type::Int64, one, None),
            field("big_one", 2, Type::Uint64, one, None),
            field("raw", 3, Type::Bytes, one, None),
            field("places", 4, Type::Message, Label::Repeated, Some(".p.Place")),
            field("ratio", 5, Type::Double, one, None),
        ],
    );
    let place = message("Place", vec![field("name", 1, Type::String, one, None)]);
    let tree = message(
        "Tree",
        vec![field("left", 1, Type::Message, one, Some(".p.Tree"))],
    );
    let file = FileDescriptorProto {
        name: Some("f.proto".to_owned()),
        package: Some("p".to_owned()),
        message_type: vec![flight, place, tree],
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    };
    prost::Message::encode_to_vec(&FileDescriptorSet { file: vec![file] })
}

#[test]
fn messages_of_protobuf() {
    let schema = protobuf_schema(&descriptors(), "p.Flight").expect("a message");
    let fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|field| field.as_ref().clone())
        .collect();
    let decoder = |framed| {
        let message = "p.Flight".to_owned();
        let format = Format::Protobuf {
            descriptors: descriptors(),
            message,
            framed,
        };
        TypedDecoder::new(value(fields.clone()), format, None, false).expect("a decoder")
    };
    let whole: &[u8] = &[
        0x08, 0x96, 0x01, 0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x1a, 2, 0, 0xff,
        0x22, 3, 0x0a, 1, b'x', 0x22, 0, 0x29, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f,
    ];
    let values: [Option<&[u8]>; 5] = [Some(whole), Some(&whole[..1]), None, Some(b""), Some(b"\x08\x07")];
    let found = decode(&mut decoder(false), &batch(&values));
    assert_eq!(integers(&found), [Some(150), None, None, None, Some(7)]);
    assert_eq!(found.first.as_ref().map(|first| first.row), Some(1));
    assert!(structs(&found).is_valid(3), "an empty message is one");
    let column = |name| structs(&found).column_by_name(name).expect("a field");
    assert_eq!(
        column("big_one").as_primitive::<Decimal128Type>().value(0),
        i128::from(u64::MAX)
    );
    assert_eq!(column("raw").as_binary::<i32>().value(0), [0, 0xff]);
    assert_eq!(
        column("places")
            .as_list::<i32>()
            .value(0)
            .as_struct()
            .column(0)
            .as_string::<i32>()
            .value(0),
        "x"
    );
    assert!(column("ratio").as_primitive::<Float64Type>().value(0).is_nan());

    let framed: Vec<u8> = [&[0, 0, 0, 0, 9, 4, 2, 0], whole].concat();
    let short: Vec<u8> = [&[0, 0, 0, 0, 9, 0], whole].concat();
    let values: [Option<&[u8]>; 4] = [Some(&framed), Some(whole), Some(&short), Some(&framed[..7])];
    assert_eq!(
        integers(&decode(&mut decoder(true), &batch(&values))),
        [Some(150), None, Some(150), None]
    );

    for message in ["p.Tree", "p.Other"] {
        assert!(
            matches!(
                protobuf_schema(&descriptors(), message),
                Err(ColumnsError::Typed { .. })
            ),
            "{message}"
        );
    }
}

/// A record, and the integer that it has when it is well-formed.
fn record() -> impl Strategy<Value = (Option<Vec<u8>>, Option<i64>)> {
    let good = |number: i64| (Some(format!(r#"{{"a":{number}}}"#).into_bytes()), Some(number));
    let fixed = |text: &'static str| (Some(text.as_bytes().to_vec()), None);
    prop_oneof![
        8 => any::<i64>().prop_map(good),
        1 => Just((None, None)),
        1 => any::<i64>().prop_map(|number| (Some(format!(r#"{{"a":{number}"#).into_bytes()), None)),
        1 => any::<i64>().prop_map(|a| (Some(format!(r#"{{"a":1}}{{"a":{a}}}"#).into_bytes()), None)),
        1 => Just(fixed(r#"{"a":"x"}"#)),
        1 => Just(fixed("")),
        1 => Just(fixed(r#""a"#)),
        // No such bytes hold an integer a.
        1 => proptest::collection::vec(any::<u8>(), 0..6).prop_map(|bytes| (Some(bytes), None)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_mix_of_records_gives_the_good_ones_at_their_places(
        records in proptest::collection::vec(record(), 0..200),
        copies in 1usize..12,
    ) {
        let records = vec![records; copies].concat();
        let values: Vec<Option<&[u8]>> = records.iter().map(|(bytes, _)| bytes.as_deref()).collect();
        let expected: Vec<Option<i64>> = records.iter().map(|(_, number)| *number).collect();
        let found = decode(&mut json(a()), &batch(&values));
        prop_assert_eq!(integers(&found), expected);
        let kept = corrupt_rows(&found);
        prop_assert_eq!(kept.len(), found.malformed);
        prop_assert_eq!(kept.first().copied(), found.first.as_ref().map(|first| first.row));
        for (row, (bytes, _)) in records.iter().enumerate() {
            // An object without an integer a may be well-formed: `{}`.
            let malformed = kept.binary_search(&row).is_ok();
            prop_assert_eq!(structs(&found).is_null(row), malformed || bytes.is_none());
        }
    }
}
