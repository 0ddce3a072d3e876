//! The settings of a client, parsed and checked. Python owns the properties' names, defaults and ranges.

use std::time::Duration;

use logcore_records::BatchBuilder;
use logcore_records::compression::Compression;

use crate::partitioner::Partitioner;

/// What every client needs to reach a cluster.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// `bootstrap.servers`, split: host and port.
    pub bootstrap: Vec<(String, u16)>,
    /// `client.id`.
    pub client_id: String,
    /// `socket.timeout.ms`: the time for an answer, beside the time that the request asks the broker to wait.
    pub request_timeout: Duration,
    /// `socket.connection.setup.timeout.ms`: TCP connect and ApiVersions together.
    pub connect_timeout: Duration,
    /// `reconnect.backoff.ms`: doubled after each failure.
    pub reconnect_backoff: Duration,
    /// `reconnect.backoff.max.ms`.
    pub reconnect_backoff_max: Duration,
    /// `retry.backoff.ms`: pause before a request is repeated.
    pub retry_backoff: Duration,
    /// `receive.message.max.bytes`: a longer response ends the connection and is not allocated.
    pub receive_bytes_max: usize,
    /// `topic.metadata.refresh.interval.ms`.
    pub metadata_refresh: Duration,
    /// `topic.metadata.propagation.max.ms`: how long a topic may be unknown before it counts as missing.
    pub topic_propagation: Duration,
    /// `allow.auto.create.topics`: whether asking about a topic may create it.
    pub allow_auto_create: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            bootstrap: vec![("localhost".into(), 9092)],
            client_id: "logcore".into(),
            request_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(30),
            reconnect_backoff: Duration::from_millis(100),
            reconnect_backoff_max: Duration::from_secs(10),
            retry_backoff: Duration::from_millis(100),
            receive_bytes_max: 100_000_000,
            metadata_refresh: Duration::from_secs(300),
            topic_propagation: Duration::from_secs(30),
            allow_auto_create: true,
        }
    }
}

/// The producer's own settings.
#[derive(Debug, Clone)]
pub struct ProducerConfig {
    /// `acks`: 0, 1 or -1 (all).
    pub acks: i16,
    /// `enable.idempotence`.
    pub idempotence: bool,
    /// `linger.ms`: how long a batch may wait for more records.
    pub linger: Duration,
    /// `batch.size`: bytes of a batch before compression.
    pub batch_bytes: usize,
    /// `batch.num.messages`.
    pub batch_messages: usize,
    /// `queue.buffering.max.messages`.
    pub queue_messages_max: usize,
    /// `queue.buffering.max.kbytes`, in bytes.
    pub queue_bytes_max: usize,
    /// `message.max.bytes`.
    pub message_bytes_max: usize,
    /// `compression.type` (`compression.codec`).
    pub compression: Compression,
    /// `compression.level`; `None` is the codec's own default.
    pub compression_level: Option<i32>,
    /// `delivery.timeout.ms` (`message.timeout.ms`).
    pub delivery_timeout: Duration,
    /// `request.timeout.ms`: how long the broker may wait for its replicas.
    pub ack_timeout: Duration,
    /// `retries` (`message.send.max.retries`).
    pub retries: u32,
    /// `max.in.flight.requests.per.connection`.
    pub in_flight_max: usize,
    /// `partitioner`.
    pub partitioner: Partitioner,
    /// `sticky.partitioning.linger.ms`: how long records without a key stay on one partition.
    pub sticky_linger: Duration,
    /// `transactional.id`. With one, batches are transactional, and their producer id comes from outside.
    pub transactional_id: Option<String>,
}

impl ProducerConfig {
    /// A builder of batches with this compression, transactional or not.
    pub(crate) fn batch_builder(&self) -> BatchBuilder {
        let mut builder = BatchBuilder::new(self.compression, self.compression_level);
        builder.set_transactional(self.transactional_id.is_some());
        builder
    }
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            acks: -1,
            idempotence: true,
            linger: Duration::from_millis(5),
            batch_bytes: 1_000_000,
            batch_messages: 10_000,
            queue_messages_max: 100_000,
            queue_bytes_max: 1 << 30,
            message_bytes_max: 1_000_000,
            compression: Compression::None,
            compression_level: None,
            delivery_timeout: Duration::from_secs(300),
            ack_timeout: Duration::from_secs(30),
            retries: i32::MAX as u32,
            in_flight_max: 5,
            partitioner: Partitioner::ConsistentRandom,
            sticky_linger: Duration::from_millis(10),
            transactional_id: None,
        }
    }
}

/// Where a partition without a usable offset starts: `auto.offset.reset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetReset {
    /// The log's first offset.
    Earliest,
    /// The log's end.
    Latest,
    /// Nowhere: the application gets an error.
    Error,
}

/// The consumer's own settings.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// `client.rack`: brokers may name a replica in this rack to read from (KIP-392).
    pub rack: String,
    /// `fetch.min.bytes`.
    pub fetch_bytes_min: i32,
    /// `fetch.max.bytes`: of one response.
    pub fetch_bytes_max: i32,
    /// `fetch.wait.max.ms`: how long the broker may wait for `fetch_bytes_min`.
    pub fetch_wait: Duration,
    /// `max.partition.fetch.bytes` (`fetch.message.max.bytes`).
    pub partition_bytes_max: i32,
    /// `queued.max.messages.kbytes`, in bytes: how much may be fetched ahead of the application.
    pub queued_bytes_max: usize,
    /// `fetch.error.backoff.ms`.
    pub error_backoff: Duration,
    /// `auto.offset.reset`.
    pub offset_reset: OffsetReset,
    /// `enable.partition.eof`.
    pub partition_eof: bool,
    /// `check.crcs`.
    pub check_crcs: bool,
    /// `isolation.level` = `read_committed`.
    pub read_committed: bool,
    /// `enable.auto.offset.store`: a message handed to the application becomes the offset to commit.
    pub auto_store: bool,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            rack: String::new(),
            fetch_bytes_min: 1,
            fetch_bytes_max: 52_428_800,
            fetch_wait: Duration::from_millis(500),
            partition_bytes_max: 1_048_576,
            queued_bytes_max: 65_536 * 1024,
            error_backoff: Duration::from_millis(500),
            offset_reset: OffsetReset::Latest,
            partition_eof: false,
            check_crcs: true,
            read_committed: true,
            auto_store: true,
        }
    }
}
