//! What goes in and out by topic, as `BrokerTopicMetrics` means it.
//!
//! Each partition counts for itself, so that requests to different partitions touch different memory; a topic is the sum of its
//! partitions, all topics are the sum of the topics and of what was counted for partitions that are gone.

use super::Counter;
use crate::codes::ErrorCode;

/// How many counters there are.
pub(crate) const TOPIC_COUNTERS: usize = 10;

/// The counters' names, in the order of [`TopicCounts::values`].
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

/// Of one partition, or of those that are gone.
#[derive(Default)]
pub(crate) struct TopicCounts {
    /// Bytes of batches that clients sent and that were taken.
    pub(crate) bytes_in: Counter,
    /// Bytes of batches sent to consumers.
    pub(crate) bytes_out: Counter,
    /// Bytes that were refused because they are larger than `max.message.bytes`.
    pub(crate) bytes_rejected: Counter,
    /// Records in them.
    pub(crate) messages_in: Counter,
    /// Partitions of Produce requests refused for what was in them, or because the broker failed; see [`is_known`].
    pub(crate) failed_produce_requests: Counter,
    /// Partitions of Fetch requests where the broker failed; see [`is_known`].
    pub(crate) failed_fetch_requests: Counter,
    /// Partitions of Produce requests.
    pub(crate) total_produce_requests: Counter,
    /// Partitions of Fetch requests; one that waits and looks again counts once, where Kafka counts each look.
    pub(crate) total_fetch_requests: Counter,
    /// Records that were converted from an older format.
    pub(crate) produce_message_conversions: Counter,
    /// Records that were converted to an older format.
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

    /// Takes over what another has counted.
    pub(crate) fn absorb(&self, other: &Self) {
        for (mine, theirs) in self.counters().iter().zip(other.values()) {
            mine.add(theirs);
        }
    }

    /// A part of a Produce request was appended, or had been before: Kafka counts what is sent once more, too.
    pub(crate) fn produced(&self, records: u64, bytes: u64) {
        self.total_produce_requests.add(1);
        self.messages_in.add(records);
        self.bytes_in.add(bytes);
    }

    /// A part of a Produce request was refused.
    pub(crate) fn produce_refused(&self, code: ErrorCode, bytes: u64) {
        self.total_produce_requests.add(1);
        if code == ErrorCode::MESSAGE_TOO_LARGE {
            self.bytes_rejected.add(bytes);
        }
        if !is_known(code) {
            self.failed_produce_requests.add(1);
        }
    }

    /// A part of a Fetch request was answered.
    pub(crate) fn fetched(&self, bytes: u64, by_follower: bool) {
        self.total_fetch_requests.add(1);
        if !by_follower {
            self.bytes_out.add(bytes);
        }
    }

    /// A part of a Fetch request was refused.
    pub(crate) fn fetch_refused(&self, code: ErrorCode) {
        self.total_fetch_requests.add(1);
        if !is_known(code) {
            self.failed_fetch_requests.add(1);
        }
    }
}

/// Errors that a broker in order answers in the course of things: Kafka's counters of failed requests leave them out
/// (`ReplicaManager.appendToLocalLog`, `ReplicaManager.readFromLog`).
fn is_known(code: ErrorCode) -> bool {
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

/// Adds the counters of `more` to `sum`.
pub(crate) fn add(sum: &mut [u64; TOPIC_COUNTERS], more: &[u64; TOPIC_COUNTERS]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}
