//! The records of one partition on their way into its log.

use logcore_records::{Compression, RecordError, legacy};
use logcore_storage::{
    Appended, Log, LogConfig, ParsedBatches, ProduceOptions, RecordFaults, StorageError, Verification,
};

use super::batches::{Records, refuse_records};
use super::{ALL, Done, Part, Refused, Request, Result};
use crate::control::facts::{ReplicaFact, ReplicaFactKind};
use crate::log_lines::Level;
use crate::memory::decompression::{SHORT, SHORT_BUFFER};
use crate::partitions::registry::{Leadership, Partition};
use crate::shared::{Shared, now_ms};
use logcore_protocol::ErrorCode;

/// Topics that only the coordinators write (`Topic.isInternal`).
const INTERNAL_TOPICS: [&str; 2] = ["__consumer_offsets", "__transaction_state"];

pub(super) async fn append_part(
    shared: &Shared,
    version: i16,
    request: &Request,
    part: &Part,
    bytes: &mut [u8],
    verification: Verification,
) -> Result<Done> {
    let partition = part.partition.as_ref().ok_or_else(|| {
        let topic = &request.topics[part.topic];
        shared.registry.absence(topic, part.index)
    })?;
    let records = Records::parse(version, bytes)?;
    if !(ALL..=1).contains(&request.acks) {
        return Err(ErrorCode::INVALID_REQUIRED_ACKS.into());
    }
    let sent = bytes.len() as u64;
    let bytes = &mut bytes[..records.size()];
    let done = append_records(shared, partition, request, &records, bytes, verification).await;
    match &done {
        Ok(done) => partition.counts.produced(done.records(), sent),
        Err(refused) => partition.counts.produce_refused(refused.code, sent),
    }
    done
}

async fn append_records(
    shared: &Shared,
    partition: &Partition,
    request: &Request,
    records: &Records,
    bytes: &mut [u8],
    verification: Verification,
) -> Result<Done> {
    if !request.may_write_internal && INTERNAL_TOPICS.contains(&&*partition.topic) {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION.into());
    }
    let leadership = partition.lead(shared.node_id, -1).map_err(|code| Refused {
        leader: current_leader(partition, code),
        ..code.into()
    })?;
    let done = append_as_leader(
        shared,
        partition,
        leadership,
        request.acks,
        records,
        bytes,
        verification,
    )
    .await;
    done.map_err(|refused| with_log_start(partition, refused))
}

/// The current leader, for a client that asked another broker (KIP-951).
pub(super) fn current_leader(partition: &Partition, code: ErrorCode) -> Option<Leadership> {
    (code == ErrorCode::NOT_LEADER_OR_FOLLOWER).then(|| partition.leadership())
}

async fn append_as_leader(
    shared: &Shared,
    partition: &Partition,
    leadership: Leadership,
    acks: i16,
    records: &Records,
    bytes: &mut [u8],
    verification: Verification,
) -> Result<Done> {
    if acks == ALL && !partition.replicas.has_min_in_sync(&partition.log) {
        return Err(ErrorCode::NOT_ENOUGH_REPLICAS.into());
    }
    if bytes.is_empty() {
        return Ok(Done::of_nothing(partition.log.log_start_offset()));
    }
    records.check_base_offsets()?;
    // Before the append: a change in between refuses the append or the acknowledgement.
    let led_since = partition.led_since();
    let mut append = Append {
        shared,
        partition,
        leadership,
        records,
        bytes,
        verification,
    };
    let appended = append.run().await.map_err(|failed| match failed {
        Failed::Unreadable(error) => refuse_records(&error),
        Failed::Refused(error) => refuse_append(shared, partition, leadership, error),
        Failed::NotLeader => Refused {
            leader: Some(partition.leadership()),
            ..ErrorCode::NOT_LEADER_OR_FOLLOWER.into()
        },
    })?;
    let done = Done {
        base_offset: appended.first_offset,
        last_offset: appended.last_offset,
        log_append_time: appended.log_append_time,
        log_start_offset: appended.log_start_offset,
        led_since,
        acknowledged: None,
        leader: None,
    };
    if matches!(records, Records::Legacy(_)) {
        let count = &partition.counts.produce_message_conversions;
        count.add(done.records());
    }
    Ok(done)
}

/// Kafka sends the log start offset except with these codes (`ReplicaManager.appendToLocalLog`).
fn with_log_start(partition: &Partition, refused: Refused) -> Refused {
    let log_start_offset = match refused.code {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        | ErrorCode::NOT_LEADER_OR_FOLLOWER
        | ErrorCode::MESSAGE_TOO_LARGE
        | ErrorCode::RECORD_LIST_TOO_LARGE
        | ErrorCode::CORRUPT_MESSAGE
        | ErrorCode::KAFKA_STORAGE_ERROR => -1,
        _ => partition.log.log_start_offset(),
    };
    Refused {
        log_start_offset,
        ..refused
    }
}

struct Append<'a> {
    shared: &'a Shared,
    partition: &'a Partition,
    leadership: Leadership,
    records: &'a Records,
    bytes: &'a mut [u8],
    verification: Verification,
}

/// Why an append failed.
enum Failed {
    /// A message set that cannot be converted.
    Unreadable(RecordError),
    /// The log refused the batches.
    Refused(StorageError),
    /// The leader or its epoch changed meanwhile.
    NotLeader,
}

impl Failed {
    /// With more memory the append may succeed.
    fn needs_more_memory(&self) -> bool {
        matches!(
            self,
            Self::Unreadable(RecordError::DecompressedTooLarge { .. })
                | Self::Refused(StorageError::DecompressedTooLarge { .. })
        )
    }
}

impl Append<'_> {
    async fn run(&mut self) -> std::result::Result<Appended, Failed> {
        let config = self.partition.log.config();
        // A plain write goes to the page cache. These appends wait for the disk, and other connections must
        // not wait with them: with an fsync, the first of a leader epoch, and to a log that is about to move
        // to another directory.
        let waits = config.flush_messages != i64::MAX
            || self.partition.log.is_about_to_move()
            || !self.partition.log.has_saved_epoch(self.leadership.epoch);
        let done = if self.is_long(&config) {
            None
        } else if waits {
            Some(tokio::task::block_in_place(|| self.once(SHORT_BUFFER)))
        } else {
            Some(self.once(SHORT_BUFFER))
        };
        let appended = match done {
            Some(done) if !done.as_ref().is_err_and(Failed::needs_more_memory) => done,
            // The future is boxed, so that it is not a part of every connection's memory.
            Some(_) | None => Box::pin(self.with_permit()).await,
        }?;
        Ok(appended)
    }

    /// Whether a codec has more to do than a network thread may.
    fn is_long(&self, config: &LogConfig) -> bool {
        match self.records {
            Records::Legacy(_) => {
                let codec = legacy::codec(self.bytes);
                config.compression.is_some() || codec.is_ok_and(|codec| codec != Compression::None)
            }
            Records::Batches(parsed) => parsed.headers().iter().any(|batch| {
                let decompresses = config.decompresses(batch, self.shared.config.check_compressed);
                config.recompresses(batch) || decompresses && batch.size() > SHORT
            }),
        }
    }

    /// Appends with a permit to decompress, and with a larger one if that is needed.
    async fn with_permit(&mut self) -> std::result::Result<Appended, Failed> {
        let budgets = &self.shared.budgets;
        let mut permit = budgets.decompression(self.bytes.len()).await;
        loop {
            let done = tokio::task::block_in_place(|| self.once(permit.buffer_max));
            if !done.as_ref().is_err_and(Failed::needs_more_memory) {
                return done;
            }
            permit = match budgets.larger_decompression(permit).await {
                Some(larger) => larger,
                None => return done,
            };
        }
    }

    fn once(&mut self, buffer_max: usize) -> std::result::Result<Appended, Failed> {
        let options = ProduceOptions {
            leader_epoch: self.leadership.epoch,
            now_ms: now_ms(),
            check_compressed: self.shared.config.check_compressed,
            buffer_max,
            offload: |work| tokio::task::block_in_place(work),
            verification: self.verification,
        };
        let (registry, partition) = (&self.shared.registry, self.partition);
        let append = |bytes: &mut [u8], parsed: &ParsedBatches, options| {
            let append = |log: &Log| {
                let appended = log.append_produced(bytes, parsed, options)?;
                partition.set_lacks_space(false);
                if !appended.duplicate {
                    self.shared.note_append(partition, log, appended.bytes);
                }
                Ok(appended)
            };
            let append = || registry.append(partition, append).map_err(Failed::Refused);
            let appended = partition.while_leading(self.leadership, append);
            appended.unwrap_or(Err(Failed::NotLeader))
        };
        match self.records {
            Records::Batches(parsed) => append(self.bytes, parsed, options),
            Records::Legacy(_) => {
                // A message set may decompress to as much as the largest request.
                let most = buffer_max.min(self.shared.config.request_bytes_max);
                legacy::validate(self.bytes).map_err(Failed::Unreadable)?;
                let timestamp_type = partition.log.config().timestamp_type;
                let mut converted =
                    legacy::to_v2(self.bytes, timestamp_type, most).map_err(Failed::Unreadable)?;
                let parsed = ParsedBatches::parse(&converted).map_err(Failed::Refused)?;
                let options = ProduceOptions {
                    // The conversion read every message.
                    check_compressed: false,
                    ..options
                };
                append(&mut converted, &parsed, options)
            }
        }
    }
}

/// The client gets what Kafka sends, which is little more than a code. The log line has the reason.
fn refuse_append(
    shared: &Shared,
    partition: &Partition,
    leadership: Leadership,
    error: StorageError,
) -> Refused {
    if error.is_disk_full() {
        partition.set_lacks_space(true);
        shared.replica_facts.add_once(ReplicaFact {
            topic: partition.topic.to_string(),
            partition: partition.index,
            leader_epoch: leadership.epoch,
            broker: shared.node_id,
            kind: ReplicaFactKind::LacksSpace,
        });
    } else if matches!(error, StorageError::OutOfOrderSequence { .. }) && partition.lacks_space() {
        // The producer sent it before it knew that the batch before was refused. It tries both again.
        return ErrorCode::KAFKA_STORAGE_ERROR.into();
    }
    let what = format_args!("Produce to {partition} refused");
    let code = shared.storage_error(what, Some(partition), &error);
    if error.is_storage_failure() {
        return code.into();
    }
    // The text has positions and numbers, so it cannot be the key.
    let key = format!("refused {partition} {}", code.0);
    let text = format!("{what}: {error}");
    shared
        .lines
        .push_limited_with(Level::Warning, &key, text, || partition.fields());
    let faults: Option<RecordFaults> = match error {
        StorageError::InvalidRecords(faults) => Some(faults),
        _ => None,
    };
    Refused {
        faults,
        ..code.into()
    }
}
