//! The table of APIs: what this broker serves, one row for each API.
//!
//! Everything that treats APIs differently reads this table: ApiVersions, the dispatch, the memory budgets,
//! the metrics and, through the extension, Python's handlers. A new API is a row here and a handler, in
//! `api/` or in Python's `cluster/broker/handlers`. The fields and versions that the codec knows are the
//! protocol crate's; it knows more than is served.

use std::ops::RangeInclusive;

pub(crate) use logcore_protocol::API_VERSIONS;

pub(crate) const PRODUCE: i16 = 0;
pub(crate) const FETCH: i16 = 1;
pub(crate) const LIST_OFFSETS: i16 = 2;
pub(crate) const METADATA: i16 = 3;
pub(crate) const OFFSET_FETCH: i16 = 9;
pub(crate) const OFFSET_FOR_LEADER_EPOCH: i16 = 23;

/// Where the handler of an API is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweredBy {
    /// This crate, on the connection's task.
    Rust,
    /// Python, which takes the request from the control queue.
    Python,
}

/// What a handler may wait for. Handlers that wait do not count against the limit of handlers at work:
/// otherwise they could block the requests they wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// Its own work only.
    Nothing,
    /// The coordinator (ZooKeeper), or the controller that writes to it.
    Coordinator,
    /// Other members of a group. The request then gives back its memory, its time does not count as work, and
    /// it ends with its connection.
    Members,
}

/// How long the response may be in relation to the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// About as long.
    Short,
    /// Much longer: a short request can ask for everything. One such request of an API is answered at a time.
    Long,
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Api {
    /// Kafka's API key.
    pub key: i16,
    /// Kafka's name.
    pub name: &'static str,
    /// The first version that is served.
    pub first: i16,
    /// The last version that is served.
    pub last: i16,
    /// Where the handler is.
    pub answered_by: AnsweredBy,
    /// What the handler may wait for.
    pub waits_for: WaitsFor,
    /// How long the response may be.
    pub response: Response,
}

use AnsweredBy::{Python, Rust};
use Response::{Long, Short};
use WaitsFor::{Coordinator, Members, Nothing};

#[rustfmt::skip]
const TABLE: &[Api] = &[
    api(PRODUCE,                 "Produce",                      0..=12, Rust,   Nothing,     Short),
    api(FETCH,                   "Fetch",                        0..=17, Rust,   Nothing,     Short),
    api(LIST_OFFSETS,            "ListOffsets",                  0..=9,  Rust,   Nothing,     Short),
    api(METADATA,                "Metadata",                     0..=12, Python, Coordinator, Long),
    api(4,                       "LeaderAndIsr",                 0..=7,  Python, Coordinator, Short),
    api(5,                       "StopReplica",                  0..=4,  Python, Coordinator, Short),
    api(6,                       "UpdateMetadata",               0..=8,  Python, Coordinator, Short),
    api(7,                       "ControlledShutdown",           0..=3,  Python, Coordinator, Short),
    api(8,                       "OffsetCommit",                 0..=9,  Python, Nothing,     Short),
    api(OFFSET_FETCH,            "OffsetFetch",                  0..=9,  Python, Nothing,     Long),
    api(10,                      "FindCoordinator",              0..=6,  Python, Coordinator, Short),
    api(11,                      "JoinGroup",                    0..=9,  Python, Members,     Short),
    api(12,                      "Heartbeat",                    0..=4,  Python, Nothing,     Short),
    api(13,                      "LeaveGroup",                   0..=5,  Python, Nothing,     Short),
    api(14,                      "SyncGroup",                    0..=5,  Python, Members,     Short),
    api(15,                      "DescribeGroups",               0..=5,  Python, Nothing,     Long),
    api(16,                      "ListGroups",                   0..=5,  Python, Nothing,     Long),
    api(API_VERSIONS,            "ApiVersions",                  0..=4,  Rust,   Nothing,     Short),
    api(19,                      "CreateTopics",                 0..=7,  Python, Coordinator, Short),
    api(20,                      "DeleteTopics",                 0..=6,  Python, Coordinator, Short),
    api(21,                      "DeleteRecords",                0..=2,  Python, Nothing,     Short),
    api(22,                      "InitProducerId",               0..=5,  Python, Coordinator, Short),
    api(OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch",         0..=4,  Rust,   Nothing,     Short),
    api(24,                      "AddPartitionsToTxn",           0..=5,  Python, Nothing,     Short),
    api(25,                      "AddOffsetsToTxn",              0..=4,  Python, Coordinator, Short),
    api(26,                      "EndTxn",                       0..=5,  Python, Nothing,     Short),
    api(27,                      "WriteTxnMarkers",              0..=1,  Python, Nothing,     Short),
    api(28,                      "TxnOffsetCommit",              0..=5,  Python, Nothing,     Short),
    api(32,                      "DescribeConfigs",              0..=4,  Python, Nothing,     Long),
    api(33,                      "AlterConfigs",                 0..=2,  Python, Coordinator, Short),
    api(34,                      "AlterReplicaLogDirs",          0..=2,  Python, Nothing,     Short),
    api(35,                      "DescribeLogDirs",              0..=4,  Python, Nothing,     Long),
    api(37,                      "CreatePartitions",             0..=3,  Python, Coordinator, Short),
    api(42,                      "DeleteGroups",                 0..=2,  Python, Nothing,     Short),
    api(43,                      "ElectLeaders",                 0..=2,  Python, Coordinator, Short),
    api(44,                      "IncrementalAlterConfigs",      0..=1,  Python, Coordinator, Short),
    api(45,                      "AlterPartitionReassignments",  0..=0,  Python, Coordinator, Short),
    api(46,                      "ListPartitionReassignments",   0..=0,  Python, Coordinator, Long),
    api(47,                      "OffsetDelete",                 0..=0,  Python, Nothing,     Short),
    api(48,                      "DescribeClientQuotas",         0..=1,  Python, Nothing,     Long),
    api(49,                      "AlterClientQuotas",            0..=1,  Python, Coordinator, Short),
    api(50,                      "DescribeUserScramCredentials", 0..=0,  Python, Nothing,     Long),
    api(56,                      "AlterPartition",               0..=3,  Python, Coordinator, Short),
    api(57,                      "UpdateFeatures",               0..=1,  Python, Coordinator, Short),
    api(60,                      "DescribeCluster",              0..=1,  Python, Nothing,     Short),
    api(61,                      "DescribeProducers",            0..=0,  Python, Nothing,     Long),
    api(65,                      "DescribeTransactions",         0..=0,  Python, Nothing,     Long),
    api(66,                      "ListTransactions",             0..=1,  Python, Nothing,     Long),
    api(67,                      "AllocateProducerIds",          0..=0,  Python, Coordinator, Short),
    api(68,                      "ConsumerGroupHeartbeat",       0..=1,  Python, Nothing,     Short),
    api(69,                      "ConsumerGroupDescribe",        0..=1,  Python, Nothing,     Long),
];

const fn api(
    key: i16,
    name: &'static str,
    versions: RangeInclusive<i16>,
    answered_by: AnsweredBy,
    waits_for: WaitsFor,
    response: Response,
) -> Api {
    Api {
        key,
        name,
        first: *versions.start(),
        last: *versions.end(),
        answered_by,
        waits_for,
        response,
    }
}

/// One more than the largest key in the table.
pub(crate) const KEYS: usize = TABLE[TABLE.len() - 1].key as usize + 1;

/// The rows by key, for a look-up without a search: every request makes one.
static BY_KEY: [Option<&Api>; KEYS] = {
    let mut by_key = [None; KEYS];
    let mut row = 0;
    while row < TABLE.len() {
        by_key[TABLE[row].key as usize] = Some(&TABLE[row]);
        row += 1;
    }
    by_key
};

impl Api {
    /// The row of the API with this key, if it is served.
    pub(crate) fn of(key: i16) -> Option<&'static Self> {
        let index = usize::try_from(key).ok()?;
        BY_KEY.get(index).copied().flatten()
    }

    pub(crate) fn is_native(&self) -> bool {
        self.answered_by == Rust
    }

    /// Whether its handler waits for other members of a group.
    pub(crate) fn waits_for_members(&self) -> bool {
        self.waits_for == Members
    }

    pub(crate) fn serves(&self, version: i16) -> bool {
        (self.first..=self.last).contains(&version)
    }
}

/// The APIs that are served, by rising key.
pub fn apis() -> &'static [Api] {
    TABLE
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcore_protocol::{Direction, schema};

    // If this failed, ApiVersions would have an API or a version that the broker cannot read or answer, or
    // a row would have another API's name.
    #[test]
    fn every_row_is_one_the_codec_knows() {
        assert!(apis().is_sorted_by(|one, next| one.key < next.key));
        for api in apis() {
            let request = schema(api.key, Direction::Request).unwrap();
            assert_eq!(request.name, api.name);
            let valid = request.valid_versions();
            assert!(valid.contains(api.first) && valid.contains(api.last), "{api:?}");
            assert_eq!(Api::of(api.key), Some(api));
            assert!(api.serves(api.last) && !api.serves(api.last + 1));
        }
        for key in [i16::MIN, -1, 29, 62, 64, 70, i16::MAX] {
            assert_eq!(Api::of(key), None);
        }
    }
}
