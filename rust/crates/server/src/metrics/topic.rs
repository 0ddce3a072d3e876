//! Records and bytes by topic (`BrokerTopicMetrics`).
//!
//! Each partition has its own counters, so that requests to different partitions write to different memory. A
//! topic's count is the sum of its partitions. The count of all topics also has the counts of deleted
//! partitions.

use super::Counter;
use logcore_protocol::ErrorCode;

pub(crate) const TOPIC_COUNTERS: usize = 10;

/// The names of the counters, in the order of [`TopicCounts::values`].
pub(crate) const TOPIC_COUNTER_NAMES: [&str; TOPIC_COUNTERS] = [
    "BytesIn",
    "BytesOut",
    "BytesRejected",
    "MessagesIn",
    "FailedProduceRequests",
    "FailedFetchRequests",
    "TotalProduceRequests",
    "TotalFetchRequests",
    "ProduceMessageConversions",
    "FetchMessageConversions",
];

/// The counters of one partition, or of the deleted ones.
#[derive(Default)]
pub(crate) struct TopicCounts {
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    /// Bytes that were refused as larger than `max.message.bytes`.
    pub(crate) bytes_rejected: Counter,
    pub(crate) messages_in: Counter,
    /// Partitions of Produce requests that were refused for an unexpected reason; see [`is_expected`].
    pub(crate) failed_produce_requests: Counter,
    /// Partitions of Fetch requests that were refused for an unexpected reason; see [`is_expected`].
    pub(crate) failed_fetch_requests: Counter,
    pub(crate) total_produce_requests: Counter,
    /// Partitions of Fetch requests. A Fetch that waits counts once. Kafka counts each look.
    pub(crate) total_fetch_requests: Counter,
    pub(crate) produce_message_conversions: Counter,
    pub(crate) fetch_message_conversions: Counter,
}

impl TopicCounts {
    fn counters(&self) -> [&Counter; TOPIC_COUNTERS] {
        [
            &self.bytes_in,
            &self.bytes_out,
            &self.bytes_rejected,
            &self.messages_in,
            &self.failed_produce_requests,
            &self.failed_fetch_requests,
            &self.total_produce_requests,
            &self.total_fetch_requests,
            &self.produce_message_conversions,
            &self.fetch_message_conversions,
        ]
    }

    pub(crate) fn values(&self) -> [u64; TOPIC_COUNTERS] {
        self.counters().map(Counter::get)
    }

    pub(crate) fn absorb(&self, other: &Self) {
        for (mine, theirs) in self.counters().iter().zip(other.values()) {
            mine.add(theirs);
        }
    }

    /// A partition of a Produce request was appended, or is a duplicate, which Kafka counts, too.
    pub(crate) fn produced(&self, records: u64, bytes: u64) {
        self.total_produce_requests.add(1);
        self.messages_in.add(records);
        self.bytes_in.add(bytes);
    }

    pub(crate) fn produce_refused(&self, code: ErrorCode, bytes: u64) {
        self.total_produce_requests.add(1);
        if code == ErrorCode::MESSAGE_TOO_LARGE {
            self.bytes_rejected.add(bytes);
        }
        if !is_expected(code) {
            self.failed_produce_requests.add(1);
        }
    }

    pub(crate) fn fetched(&self, bytes: u64, by_follower: bool) {
        self.total_fetch_requests.add(1);
        if !by_follower {
            self.bytes_out.add(bytes);
        }
    }

    pub(crate) fn fetch_refused(&self, code: ErrorCode) {
        self.total_fetch_requests.add(1);
        if !is_expected(code) {
            self.failed_fetch_requests.add(1);
        }
    }
}

/// Whether a healthy broker answers this error. Kafka's counters of failed requests leave these errors out
/// (`ReplicaManager.appendToLocalLog`, `ReplicaManager.readFromLog`).
fn is_expected(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode::NOT_LEADER_OR_FOLLOWER
            | ErrorCode::MESSAGE_TOO_LARGE
            | ErrorCode::RECORD_LIST_TOO_LARGE
            | ErrorCode::CORRUPT_MESSAGE
            | ErrorCode::KAFKA_STORAGE_ERROR
            | ErrorCode::FENCED_LEADER_EPOCH
            | ErrorCode::UNKNOWN_LEADER_EPOCH
            | ErrorCode::OFFSET_OUT_OF_RANGE
            | ErrorCode::UNKNOWN_TOPIC_ID
            | ErrorCode::INCONSISTENT_TOPIC_ID
            | ErrorCode::INVALID_TOPIC_EXCEPTION
    )
}

pub(crate) fn add(sum: &mut [u64; TOPIC_COUNTERS], more: &[u64; TOPIC_COUNTERS]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}
