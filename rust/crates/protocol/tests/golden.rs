//! Bytes derived by hand from the protocol's definition. If one of these failed, no other Kafka would
//! understand us, even where our own encoder and decoder agree.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use logcore_protocol::{
    Direction, Gap, Problem, ProtocolError, RequestHeader, Str, Struct, Value, decode_data, decode_request,
    decode_response, decode_response_header, encode_data, encode_request, encode_response,
    encode_response_header, encode_response_with_gaps, request_header_version, response_header_version,
    schema,
};

fn message(key: i16, direction: Direction) -> Struct {
    schema(key, direction).expect("the API is in the table").message()
}

#[track_caller]
fn assert_request(key: i16, version: i16, message: &Value, expected: &[u8]) {
    let mut bytes = Vec::new();
    encode_request(key, version, message, &mut bytes).unwrap();
    assert_eq!(bytes, expected);
    assert_eq!(
        &decode_request(key, version, &Bytes::from(bytes)).unwrap(),
        message
    );
}

fn produce(transactional_id: Option<&str>) -> Value {
    let mut request = message(0, Direction::Request);
    request
        .set("transactional_id", transactional_id)
        .set("acks", -1i16)
        .set("timeout_ms", 1500);
    let mut topic = request.element("topic_data").with("name", "ab");
    let partition = topic
        .element("partition_data")
        .with("index", 7)
        .with("records", b"xyz".to_vec());
    topic.push("partition_data", partition);
    request.push("topic_data", topic);
    request.into()
}

#[test]
fn produce_in_both_encodings() {
    assert_request(
        0,
        3,
        &produce(None),
        b"\xff\xff\xff\xff\x00\x00\x05\xdc\x00\x00\x00\x01\x00\x02ab\
          \x00\x00\x00\x01\x00\x00\x00\x07\x00\x00\x00\x03xyz",
    );
    assert_request(
        0,
        9,
        &produce(Some("tx")),
        b"\x03tx\xff\xff\x00\x00\x05\xdc\x02\x03ab\x02\x00\x00\x00\x07\x04xyz\x00\x00\x00",
    );
}

#[test]
fn api_versions_request_of_a_client() {
    let request = message(18, Direction::Request)
        .with("client_software_name", "kcat")
        .with("client_software_version", "1.7");
    assert_request(18, 3, &request.into(), b"\x05kcat\x041.7\x00");
    assert_request(18, 0, &message(18, Direction::Request).into(), b"");
}

#[test]
fn metadata_asks_for_all_topics_by_null() {
    let request = message(3, Direction::Request).with("topics", Value::Null);
    assert_request(3, 1, &request.clone().into(), b"\xff\xff\xff\xff");
    assert_request(3, 12, &request.into(), b"\x00\x01\x00\x00");
}

#[test]
fn tagged_fields_come_last_in_the_order_of_their_tags_and_only_when_set() {
    let state = message(1, Direction::Request)
        .element("replica_state")
        .with("replica_id", 5)
        .with("replica_epoch", 9i64);
    let mut request = message(1, Direction::Request);
    request
        .set("replica_state", state)
        .set("cluster_id", "c")
        .set("max_bytes", 1)
        .set("session_epoch", 0);
    assert_request(
        1,
        15,
        &request.into(),
        b"\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\x01\x01\x01\
          \x02\x00\x02\x02c\x01\x0d\0\0\0\x05\0\0\0\0\0\0\0\x09\0",
    );
}

#[test]
fn nullable_structs_have_a_marker_byte() {
    let mut response = message(68, Direction::Response);
    let encode = |response: &Struct| {
        let mut bytes = Vec::new();
        encode_response(68, 0, &response.clone().into(), &mut bytes).unwrap();
        assert_eq!(
            decode_response(68, 0, &Bytes::from(bytes.clone())).unwrap(),
            response.clone().into()
        );
        bytes
    };
    // throttle_time_ms, error_code, error_message (null), member_id (null), member_epoch,
    // heartbeat_interval_ms.
    let head = [0; 4 + 2 + 1 + 1 + 4 + 4];
    assert_eq!(encode(&response), [&head[..], b"\xff\0"].concat());
    response.set("assignment", response.element("assignment"));
    assert_eq!(encode(&response), [&head[..], b"\x01\x01\0\0"].concat());
}

#[test]
fn fields_that_a_version_lacks_are_refused_or_ignored() {
    // Produce version 2 has no transactional id, and must not lose it silently.
    let error = encode_request(0, 2, &produce(Some("tx")), &mut Vec::new()).unwrap_err();
    assert!(matches!(
        &error,
        ProtocolError::Encode { path, problem: Problem::NotInVersion(_), .. }
            if path == "transactional_id"
    ));
    // A throttle time is ignorable.
    let response = message(0, Direction::Response).with("throttle_time_ms", 5);
    let mut bytes = Vec::new();
    encode_response(0, 0, &response.into(), &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
    let decoded = decode_response(0, 0, &Bytes::from(bytes)).unwrap();
    assert_eq!(decoded.get("throttle_time_ms"), Some(&Value::I32(0)));
}

#[test]
fn errors_name_the_field_and_leave_the_output_unchanged() {
    let mut request = message(0, Direction::Request);
    let mut topic = request.element("topic_data").with("name", "t");
    topic.push(
        "partition_data",
        topic.element("partition_data").with("index", 1i64),
    );
    request.push("topic_data", topic);
    let mut out = b"before".to_vec();
    let error = encode_request(0, 3, &request.into(), &mut out).unwrap_err();
    assert_eq!(out, b"before");
    assert_eq!(
        error.to_string(),
        "ProduceRequest version 3: cannot encode topic_data[0].partition_data[0].index: \
         expected int32, found int64"
    );
    let mut bytes = Vec::new();
    encode_request(0, 3, &produce(None), &mut bytes).unwrap();
    bytes.truncate(bytes.len() - 1);
    assert_eq!(
        decode_request(0, 3, &Bytes::from(bytes)).unwrap_err().to_string(),
        "ProduceRequest version 3: cannot decode topic_data[0].partition_data[0].records at byte 28: \
         3 more bytes are needed, 2 remain"
    );
    assert_eq!(
        decode_request(0, 14, &Bytes::new()).unwrap_err().to_string(),
        "ProduceRequest has no version 14: versions 0-13 exist"
    );
}

#[test]
fn strings_and_bytes_share_the_buffer() {
    let mut bytes = Vec::new();
    encode_request(0, 9, &produce(Some("tx")), &mut bytes).unwrap();
    let body = Bytes::from(bytes);
    let range = body.as_ptr_range();
    let decoded = decode_request(0, 9, &body).unwrap();
    let topic = decoded.get("topic_data").unwrap().structs().next().unwrap();
    assert!(range.contains(&topic.get("name").unwrap().as_str().unwrap().as_ptr()));
    let partition = topic.get("partition_data").unwrap().structs().next().unwrap();
    assert!(range.contains(&partition.get("records").unwrap().as_bytes().unwrap().as_ptr()));
}

#[test]
fn gaps_have_the_positions_of_the_records() {
    let fetch = |records: [Value; 2]| -> Value {
        let mut response = message(1, Direction::Response);
        let mut topic = response.element("responses").with("topic_id", [7; 16]);
        for (index, records) in (0i32..).zip(records) {
            let partition = topic
                .element("partitions")
                .with("partition_index", index)
                .with("records", records);
            topic.push("partitions", partition);
        }
        response.push("responses", topic);
        response.into()
    };
    let (first, second) = (vec![1u8; 200], vec![2u8; 3]);
    let mut whole = Vec::new();
    encode_response(
        1,
        13,
        &fetch([first.clone().into(), second.clone().into()]),
        &mut whole,
    )
    .unwrap();
    let mut holed = Vec::new();
    let with_gaps = fetch([Value::Gap(200), Value::Gap(3)]);
    let gaps = encode_response_with_gaps(1, 13, &with_gaps, &mut holed).unwrap();
    assert_eq!(holed.len() + 203, whole.len());
    let [
        Gap {
            position: one,
            length: 200,
        },
        Gap {
            position: two,
            length: 3,
        },
    ] = gaps[..]
    else {
        panic!("{gaps:?}")
    };
    let filled = [&holed[..one], &first, &holed[one..two], &second, &holed[two..]].concat();
    assert_eq!(filled, whole);
    assert!(encode_response(1, 13, &with_gaps, &mut Vec::new()).is_err());
}

#[test]
fn request_headers() {
    let header = |api_key, api_version| RequestHeader {
        api_key,
        api_version,
        correlation_id: 5,
        client_id: Some(Str::from("me")),
    };
    for (key, version, header_version, bytes) in [
        (7, 0, 0, &b"\0\x07\0\0\0\0\0\x05"[..]),
        (7, 1, 1, b"\0\x07\0\x01\0\0\0\x05\0\x02me"),
        (0, 8, 1, b"\0\0\0\x08\0\0\0\x05\0\x02me"),
        (0, 9, 2, b"\0\0\0\x09\0\0\0\x05\0\x02me\0"),
        (18, 3, 2, b"\0\x12\0\x03\0\0\0\x05\0\x02me\0"),
        (18, 99, 2, b"\0\x12\0\x63\0\0\0\x05\0\x02me\0"),
        (17, 1, 1, b"\0\x11\0\x01\0\0\0\x05\0\x02me"),
    ] {
        assert_eq!(request_header_version(key, version), Ok(header_version));
        let mut out = Vec::new();
        header(key, version).encode(&mut out).unwrap();
        assert_eq!(out, bytes);
        out.extend_from_slice(b"body");
        let mut request = Bytes::from(out);
        let decoded = RequestHeader::decode(&mut request).unwrap();
        assert_eq!(&request[..], b"body");
        let client_id = (header_version > 0).then(|| Str::from("me"));
        assert_eq!(
            decoded,
            RequestHeader {
                client_id,
                ..header(key, version)
            }
        );
    }
    let mut tagged = Bytes::from_static(b"\0\0\0\x09\0\0\0\x05\xff\xff\x02\x00\x01z\x05\x02yybody");
    assert_eq!(RequestHeader::decode(&mut tagged).unwrap().client_id, None);
    assert_eq!(&tagged[..], b"body");
    let mut latin_1 = Bytes::from_static(b"\0\0\0\x01\0\0\0\x05\0\x03a\xe9zbody");
    let decoded = RequestHeader::decode(&mut latin_1).unwrap();
    assert_eq!(decoded.client_id, Some(Str::from("a\u{fffd}z")));
    assert_eq!(&latin_1[..], b"body");
}

#[test]
fn response_headers() {
    for (key, version, header_version) in [(18, 4, 0), (18, 0, 0), (3, 8, 0), (3, 9, 1), (7, 3, 1), (7, 0, 0)]
    {
        assert_eq!(response_header_version(key, version), Ok(header_version));
        let mut out = Vec::new();
        encode_response_header(key, version, 258, &mut out).unwrap();
        let expected = [&[0, 0, 1, 2][..], &[0][..header_version as usize]].concat();
        assert_eq!(out, expected);
        out.extend_from_slice(b"body");
        let mut response = Bytes::from(out);
        assert_eq!(decode_response_header(key, version, &mut response), Ok(258));
        assert_eq!(&response[..], b"body");
    }
}

#[test]
fn group_records() {
    let key = schema_message("OffsetCommitKey")
        .with("group", "g")
        .with("topic", "t")
        .with("partition", 1);
    assert_data("OffsetCommitKey", 1, &key.into(), b"\0\x01g\0\x01t\0\0\0\x01");
    let value = schema_message("OffsetCommitValue")
        .with("offset", 9i64)
        .with("leader_epoch", 2)
        .with("commit_timestamp", 1i64);
    assert_data(
        "OffsetCommitValue",
        3,
        &value.into(),
        b"\0\0\0\0\0\0\0\x09\0\0\0\x02\0\0\0\0\0\0\0\0\0\x01",
    );
    let mut assignment = schema_message("ConsumerProtocolAssignment");
    let topic = assignment
        .element("assigned_partitions")
        .with("topic", "t")
        .with("partitions", vec![0, 3]);
    assignment.push("assigned_partitions", topic);
    assert_data(
        "ConsumerProtocolAssignment",
        0,
        &assignment.into(),
        b"\0\0\0\x01\0\x01t\0\0\0\x02\0\0\0\0\0\0\0\x03\xff\xff\xff\xff",
    );
    assert_eq!(
        decode_data("Nonsense", 0, &Bytes::new()).unwrap_err().to_string(),
        "there is no data schema named \"Nonsense\""
    );
}

fn schema_message(name: &str) -> Struct {
    logcore_protocol::data_schema(name)
        .expect("the schema is in the table")
        .message()
}

#[track_caller]
fn assert_data(name: &str, version: i16, message: &Value, expected: &[u8]) {
    let mut bytes = Vec::new();
    encode_data(name, version, message, &mut bytes).unwrap();
    assert_eq!(bytes, expected);
    assert_eq!(&decode_data(name, version, &Bytes::from(bytes)).unwrap(), message);
}
