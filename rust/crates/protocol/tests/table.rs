//! The table of messages. If one of these failed, it would differ from Kafka 3.9 and 4.x, or names would not
//! be found.

use std::collections::BTreeMap;

use logcore_protocol::{
    Direction, FieldType, StructSchema, Value, data_schema, field_names, request_schemas, schema, schemas,
};

fn walk(schema: &'static StructSchema, visit: &mut dyn FnMut(&'static StructSchema)) {
    visit(schema);
    for field in &schema.fields {
        if let FieldType::Struct(inner) | FieldType::Array(&FieldType::Struct(inner)) = field.kind {
            walk(inner, visit);
        }
    }
}

/// Key, name and highest version of every API that a Kafka 3.9.1 broker in ZooKeeper mode advertises. The
/// lowest is 0.
const ADVERTISED: &[(i16, &str, i16)] = &[
    (0, "Produce", 11),
    (1, "Fetch", 17),
    (2, "ListOffsets", 9),
    (3, "Metadata", 12),
    (4, "LeaderAndIsr", 7),
    (5, "StopReplica", 4),
    (6, "UpdateMetadata", 8),
    (7, "ControlledShutdown", 3),
    (8, "OffsetCommit", 9),
    (9, "OffsetFetch", 9),
    (10, "FindCoordinator", 6),
    (11, "JoinGroup", 9),
    (12, "Heartbeat", 4),
    (13, "LeaveGroup", 5),
    (14, "SyncGroup", 5),
    (15, "DescribeGroups", 5),
    (16, "ListGroups", 5),
    (17, "SaslHandshake", 1),
    (18, "ApiVersions", 4),
    (19, "CreateTopics", 7),
    (20, "DeleteTopics", 6),
    (21, "DeleteRecords", 2),
    (22, "InitProducerId", 5),
    (23, "OffsetForLeaderEpoch", 4),
    (24, "AddPartitionsToTxn", 5),
    (25, "AddOffsetsToTxn", 4),
    (26, "EndTxn", 4),
    (27, "WriteTxnMarkers", 1),
    (28, "TxnOffsetCommit", 4),
    (29, "DescribeAcls", 3),
    (30, "CreateAcls", 3),
    (31, "DeleteAcls", 3),
    (32, "DescribeConfigs", 4),
    (33, "AlterConfigs", 2),
    (34, "AlterReplicaLogDirs", 2),
    (35, "DescribeLogDirs", 4),
    (36, "SaslAuthenticate", 2),
    (37, "CreatePartitions", 3),
    (38, "CreateDelegationToken", 3),
    (39, "RenewDelegationToken", 2),
    (40, "ExpireDelegationToken", 2),
    (41, "DescribeDelegationToken", 3),
    (42, "DeleteGroups", 2),
    (43, "ElectLeaders", 2),
    (44, "IncrementalAlterConfigs", 1),
    (45, "AlterPartitionReassignments", 0),
    (46, "ListPartitionReassignments", 0),
    (47, "OffsetDelete", 0),
    (48, "DescribeClientQuotas", 1),
    (49, "AlterClientQuotas", 1),
    (50, "DescribeUserScramCredentials", 0),
    (51, "AlterUserScramCredentials", 0),
    (56, "AlterPartition", 3),
    (57, "UpdateFeatures", 1),
    (58, "Envelope", 0),
    (60, "DescribeCluster", 1),
    (61, "DescribeProducers", 0),
    (65, "DescribeTransactions", 0),
    (66, "ListTransactions", 1),
    (67, "AllocateProducerIds", 0),
    (68, "ConsumerGroupHeartbeat", 0),
    (69, "ConsumerGroupDescribe", 0),
];

/// Key, name, first and last of the stable versions that Kafka 4.1 and 4.2 add.
const ADDED: &[(i16, &str, i16, i16)] = &[
    (0, "Produce", 12, 13),
    (1, "Fetch", 18, 18),
    (2, "ListOffsets", 10, 11),
    (3, "Metadata", 13, 13),
    (8, "OffsetCommit", 10, 10),
    (9, "OffsetFetch", 10, 10),
    (15, "DescribeGroups", 6, 6),
    (26, "EndTxn", 5, 5),
    (27, "WriteTxnMarkers", 2, 2),
    (28, "TxnOffsetCommit", 5, 5),
    (45, "AlterPartitionReassignments", 1, 1),
    (57, "UpdateFeatures", 2, 2),
    (60, "DescribeCluster", 2, 2),
    (66, "ListTransactions", 2, 2),
    (68, "ConsumerGroupHeartbeat", 1, 1),
    (69, "ConsumerGroupDescribe", 1, 1),
    (71, "GetTelemetrySubscriptions", 0, 0),
    (72, "PushTelemetry", 0, 0),
    (74, "ListConfigResources", 0, 1),
    (75, "DescribeTopicPartitions", 0, 0),
    (76, "ShareGroupHeartbeat", 1, 1),
    (77, "ShareGroupDescribe", 1, 1),
    (78, "ShareFetch", 1, 2),
    (79, "ShareAcknowledge", 1, 2),
    (83, "InitializeShareGroupState", 0, 0),
    (84, "ReadShareGroupState", 0, 0),
    (85, "WriteShareGroupState", 0, 1),
    (86, "DeleteShareGroupState", 0, 0),
    (87, "ReadShareGroupStateSummary", 0, 1),
    (88, "StreamsGroupHeartbeat", 0, 0),
    (89, "StreamsGroupDescribe", 0, 0),
    (90, "DescribeShareGroupOffsets", 0, 1),
    (91, "AlterShareGroupOffsets", 0, 0),
    (92, "DeleteShareGroupOffsets", 0, 0),
];

/// Name, first and last version of each key in the two lists.
fn expected() -> BTreeMap<i16, (&'static str, i16, i16)> {
    let mut expected: BTreeMap<_, _> = ADVERTISED
        .iter()
        .map(|&(key, name, last)| (key, (name, 0, last)))
        .collect();
    for &(key, name, first, last) in ADDED {
        let entry = expected.entry(key).or_insert((name, first, first - 1));
        assert_eq!((entry.0, entry.2 + 1), (name, first));
        entry.2 = last;
    }
    expected
}

/// If this failed, a version that Kafka serves could not be read, or its response could not be written.
#[test]
fn every_request_and_its_response_are_in_the_table() {
    let expected = expected();
    let keys: Vec<_> = request_schemas().filter_map(|schema| schema.api_key).collect();
    assert_eq!(keys, expected.keys().copied().collect::<Vec<_>>());
    for (key, (name, first, last)) in expected {
        for direction in [Direction::Request, Direction::Response] {
            let schema = schema(key, direction).unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(
                (schema.name, schema.api_key, schema.direction),
                (name, Some(key), Some(direction))
            );
            let valid = schema.valid_versions();
            assert_eq!((valid.first, valid.last), (first, last), "{name}");
        }
    }
}

/// If this failed, a request could be read in a version in which it cannot be answered.
#[test]
fn requests_and_responses_have_the_same_versions() {
    for request in request_schemas() {
        let key = request.api_key.expect("a request has a key");
        let response = schema(key, Direction::Response).expect("every request has a response");
        assert_eq!(request.name, response.name);
        assert_eq!(request.valid_versions(), response.valid_versions(), "{request}");
        assert_eq!(
            request.flexible_versions(),
            response.flexible_versions(),
            "{request}"
        );
    }
    assert!(schema(-1, Direction::Request).is_none());
    assert!(schema(i16::MAX, Direction::Request).is_none());
    assert!(schema(52, Direction::Request).is_none(), "Vote is KRaft's");
}

/// If this failed, records of Kafka's internal topics could not be read.
#[test]
fn data_schemas_are_in_the_table() {
    for (name, first, last) in [
        ("ConsumerProtocolSubscription", 0, 3),
        ("ConsumerProtocolAssignment", 0, 3),
        ("OffsetCommitKey", 0, 1),
        ("OffsetCommitValue", 0, 4),
        ("GroupMetadataKey", 2, 2),
        ("GroupMetadataValue", 0, 4),
        ("TransactionLogKey", 0, 0),
        ("TransactionLogValue", 0, 1),
    ] {
        let valid = data_schema(name)
            .unwrap_or_else(|| panic!("{name} is missing"))
            .valid_versions();
        assert_eq!((valid.first, valid.last), (first, last), "{name}");
    }
    assert!(data_schema("Produce").is_none());
}

/// If this failed, a field could hide another, or have a default of another type.
#[test]
fn fields_are_consistent() {
    for schema in schemas() {
        let (valid, flexible) = (schema.valid_versions(), schema.flexible_versions());
        walk(schema.root, &mut |fields| {
            for (index, field) in fields.fields.iter().enumerate() {
                let what = format!("{schema}: {}.{}", fields.name, field.name);
                assert_eq!(
                    fields.field_index(field.name),
                    Some(index),
                    "{what} is there twice"
                );
                assert_eq!(field_names()[field.name_id], field.name, "{what}");
                for version in valid.first..=valid.last {
                    let tagged = field.tagged.contains(version);
                    assert!(
                        !tagged || flexible.contains(version),
                        "{what} is tagged in a version without tags"
                    );
                    assert!(
                        !tagged || field.versions.contains(version),
                        "{what} is tagged in a version that lacks it"
                    );
                }
                let tags = fields
                    .fields
                    .iter()
                    .filter(|other| !other.tagged.is_empty() && other.tag == field.tag);
                assert!(
                    field.tagged.is_empty() || tags.count() == 1,
                    "{what} shares its tag"
                );
                assert!(
                    field.default.is_null() || same_type(&field.kind, &field.default),
                    "{what}"
                );
            }
        });
    }
}

fn same_type(kind: &FieldType, value: &Value) -> bool {
    matches!(
        (kind, value),
        (FieldType::Bool, Value::Bool(_))
            | (FieldType::Int8, Value::I8(_))
            | (FieldType::Int16, Value::I16(_))
            | (FieldType::Int32, Value::I32(_))
            | (FieldType::Int64, Value::I64(_))
            | (FieldType::Uint16, Value::U16(_))
            | (FieldType::Uint32, Value::U32(_))
            | (FieldType::Float64, Value::F64(_))
            | (FieldType::Uuid, Value::Uuid(_))
            | (FieldType::String, Value::Str(_))
            | (FieldType::Bytes | FieldType::Records, Value::Bytes(_))
            | (FieldType::Array(_), Value::Array(_))
            | (FieldType::Struct(_), Value::Struct(_))
    )
}

/// If this failed, an array's count could not be checked against the remaining bytes, because its elements
/// had none.
#[test]
fn no_element_of_an_array_is_free() {
    for schema in schemas() {
        let valid = schema.valid_versions();
        walk(schema.root, &mut |fields| {
            for field in &fields.fields {
                let FieldType::Array(FieldType::Struct(element)) = field.kind else {
                    continue;
                };
                for version in valid.first..=valid.last {
                    let present = field.versions.contains(version);
                    let plain = |inner: &logcore_protocol::Field| {
                        inner.versions.contains(version) && !inner.tagged.contains(version)
                    };
                    let costs =
                        schema.flexible_versions().contains(version) || element.fields.iter().any(plain);
                    assert!(costs || !present, "{schema} version {version}: {}", field.name);
                }
            }
        });
    }
}

/// If this failed, a ShareFetch response could have null records, at which Apache's client closes its
/// connection.
#[test]
fn records_are_null_only_where_kafka_says_so() {
    for (key, version, nullable) in [(1, 4, true), (1, 18, true), (78, 1, false), (78, 2, false)] {
        let records = schema(key, Direction::Response)
            .and_then(|schema| schema.nested(&["responses", "partitions"]))
            .and_then(|fields| fields.fields.iter().find(|field| field.name == "records"))
            .expect("both have records");
        assert_eq!(records.nullable.contains(version), nullable, "{key} {version}");
    }
}

/// If this failed, code that looks fields up by name would panic.
#[test]
fn names_are_found() {
    let fetch = schema(1, Direction::Request).expect("Fetch");
    assert_eq!(fetch.field_index("cluster_id"), Some(0));
    let partition = fetch
        .nested(&["topics", "partitions"])
        .expect("partitions are structs");
    assert_eq!(partition.field_index("partition"), Some(0));
    assert!(fetch.nested(&["topics", "partitions", "partition"]).is_none());
    assert!(fetch.nested(&["nonsense"]).is_none());
    let update = schema(6, Direction::Request).expect("UpdateMetadata");
    assert!(
        update.field_index("is_kraft_controller").is_some(),
        "Kafka's rule for runs of capitals"
    );
}

/// If this failed, a field that a version lacks would have another value than in Kafka.
#[test]
fn defaults_are_kafkas() {
    let mut fetch = schema(1, Direction::Request).expect("Fetch").message();
    assert_eq!(fetch.get("max_bytes"), Some(&Value::I32(i32::MAX)));
    assert_eq!(fetch.get("cluster_id"), Some(&Value::Null));
    assert_eq!(fetch.get("rack_id").and_then(Value::as_str), Some(""));
    let state = fetch
        .get("replica_state")
        .and_then(|state| state.get("replica_epoch"));
    assert_eq!(state, Some(&Value::I64(-1)));
    let topic = fetch.element("topics");
    assert_eq!(topic.get("topic_id"), Some(&Value::Uuid([0; 16])));
    fetch.push("topics", topic);
    assert_eq!(
        fetch.get("topics").map(|topics| topics.structs().count()),
        Some(1)
    );
}
