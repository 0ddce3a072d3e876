//! The settings of one log, with Kafka's names, units and defaults (`TopicConfig`, `LogConfig`).
//!
//! Plain values. A log replaces its value whole, so a reader sees all of a change or nothing of it.

use logcore_records::Compression;
pub use logcore_records::TimestampType;

use crate::error::{Result, StorageError};

/// The most bytes a batch may decompress to while its records are checked. Kafka has no such limit: it keeps
/// one record at a time in memory, but each may be as large.
pub const DECOMPRESSED_MAX: usize = 256 << 20;

/// Settings of one partition's log. The field's doc names the topic setting.
#[derive(Debug, Clone, PartialEq)]
pub struct LogConfig {
    /// `segment.bytes`: a segment is rolled before it grows larger.
    pub segment_bytes: u64,
    /// `segment.ms`: a segment is rolled when its first record is this much older than the next.
    pub segment_ms: i64,
    /// `segment.jitter.ms`: the largest random part that is taken off `segment.ms`.
    pub segment_jitter_ms: i64,
    /// `index.interval.bytes`: one index entry for at least this many bytes of log.
    pub index_interval_bytes: u32,
    /// `segment.index.bytes`: the preallocated (sparse) size of an active segment's index files.
    pub segment_index_bytes: u32,
    /// `max.message.bytes`: the largest batch accepted, header included.
    pub max_message_bytes: u32,
    /// `min.insync.replicas`: the replicas that must be in sync for an append with acks=all. The server
    /// enforces it.
    pub min_insync_replicas: u32,
    /// `compression.type`: the codec of every batch; `None`, which Kafka calls `producer`, leaves batches as
    /// they were sent.
    pub compression: Option<Compression>,
    /// `compression.gzip.level`; -1 is the codec's default.
    pub compression_gzip_level: i32,
    /// `compression.lz4.level`: checked and otherwise unused, because the codec has one level.
    pub compression_lz4_level: i32,
    /// `compression.zstd.level`.
    pub compression_zstd_level: i32,
    /// `message.downconversion.enable`: old clients get the format they know. The server converts.
    pub downconversion: bool,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`: how far in the past a create time may be.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`: how far in the future a create time may be.
    pub timestamp_after_max_ms: i64,
    /// `message.timestamp.difference.max.ms`: applies where one of the two is not set.
    pub timestamp_difference_max_ms: i64,
    /// `retention.ms`; -1 keeps records for ever.
    pub retention_ms: i64,
    /// `retention.bytes`; -1 keeps everything.
    pub retention_bytes: i64,
    /// `cleanup.policy` contains `delete`: retention applies.
    pub cleanup_delete: bool,
    /// `cleanup.policy` contains `compact`: every record needs a key.
    pub cleanup_compact: bool,
    /// `delete.retention.ms`: how long a compacted log keeps a tombstone after its first cleaning.
    pub delete_retention_ms: i64,
    /// `min.cleanable.dirty.ratio`: a log is compacted when more than this part of it is dirty, 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
    /// `min.compaction.lag.ms`: a segment with a younger record is not compacted.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`: a log with an older dirty record is compacted whatever its dirty ratio.
    pub max_compaction_lag_ms: i64,
    /// `flush.messages`: fsync after this many records, `i64::MAX` leaves it to the operating system.
    pub flush_messages: i64,
    /// `flush.ms`: fsync when the oldest unflushed append is this old; `i64::MAX` is never.
    /// [`crate::Log::maintain`] does it.
    pub flush_ms: i64,
    /// `file.delete.delay.ms`: how long a segment's files stay on disk as `.deleted`.
    pub file_delete_delay_ms: i64,
    /// `producer.id.expiration.ms`: the state of a producer that was idle for longer is removed.
    pub producer_id_expiration_ms: i64,
    /// `producer.id.expiration.check.interval.ms`: the interval of that check, in the records' time, so that
    /// a producer of old records is kept at least this long.
    pub producer_id_expiration_check_ms: i64,
    /// Fsync a segment inside the append that begins the next one. Kafka does it in the background, as
    /// [`crate::Log::maintain`] does; an embedded log has no background thread.
    pub flush_on_roll: bool,
}

const WEEK_MS: i64 = 7 * 24 * 60 * 60 * 1000;

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: WEEK_MS,
            segment_jitter_ms: 0,
            index_interval_bytes: 4096,
            segment_index_bytes: 10 << 20,
            max_message_bytes: (1 << 20) + 12,
            min_insync_replicas: 1,
            compression: None,
            compression_gzip_level: -1,
            compression_lz4_level: 9,
            compression_zstd_level: 3,
            downconversion: true,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: i64::MAX,
            timestamp_difference_max_ms: i64::MAX,
            retention_ms: WEEK_MS,
            retention_bytes: -1,
            cleanup_delete: true,
            cleanup_compact: false,
            delete_retention_ms: 86_400_000,
            min_cleanable_dirty_ratio: 0.5,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            flush_messages: i64::MAX,
            flush_ms: i64::MAX,
            file_delete_delay_ms: 60_000,
            producer_id_expiration_ms: 86_400_000,
            producer_id_expiration_check_ms: 600_000,
            flush_on_roll: false,
        }
    }
}

impl LogConfig {
    /// Sets one topic setting by Kafka's name from its text in a topic's configuration.
    ///
    /// `Ok(false)`: this crate does not use the name; nothing changed. Errors: a value of another type or
    /// outside Kafka's bounds.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "segment.bytes" => {
                self.segment_bytes = number("segment.bytes", value, 14, i32::MAX.into())? as u64
            }
            "segment.ms" => self.segment_ms = number("segment.ms", value, 1, i64::MAX)?,
            "segment.jitter.ms" => {
                self.segment_jitter_ms = number("segment.jitter.ms", value, 0, i64::MAX)?;
            }
            "index.interval.bytes" => {
                self.index_interval_bytes = number("index.interval.bytes", value, 0, i32::MAX.into())? as u32;
            }
            "segment.index.bytes" => {
                self.segment_index_bytes = number("segment.index.bytes", value, 4, i32::MAX.into())? as u32;
            }
            "max.message.bytes" => {
                self.max_message_bytes = number("max.message.bytes", value, 0, i32::MAX.into())? as u32;
            }
            "min.insync.replicas" => {
                self.min_insync_replicas = number("min.insync.replicas", value, 1, i32::MAX.into())? as u32;
            }
            "compression.type" => self.compression = codec(value)?,
            "compression.gzip.level" => {
                self.compression_gzip_level = level("compression.gzip.level", value, Compression::Gzip)?;
            }
            "compression.lz4.level" => {
                self.compression_lz4_level = level("compression.lz4.level", value, Compression::Lz4)?;
            }
            "compression.zstd.level" => {
                self.compression_zstd_level = level("compression.zstd.level", value, Compression::Zstd)?;
            }
            "message.downconversion.enable" => {
                self.downconversion = boolean("message.downconversion.enable", value)?;
            }
            "message.timestamp.type" => {
                self.timestamp_type = match value.trim() {
                    "CreateTime" => TimestampType::CreateTime,
                    "LogAppendTime" => TimestampType::LogAppendTime,
                    _ => {
                        return Err(StorageError::InvalidConfig {
                            name: "message.timestamp.type",
                            value: value.to_owned(),
                            reason: "CreateTime or LogAppendTime is needed",
                        });
                    }
                }
            }
            "message.timestamp.before.max.ms" => {
                self.timestamp_before_max_ms = number("message.timestamp.before.max.ms", value, 0, i64::MAX)?;
            }
            "message.timestamp.after.max.ms" => {
                self.timestamp_after_max_ms = number("message.timestamp.after.max.ms", value, 0, i64::MAX)?;
            }
            "message.timestamp.difference.max.ms" => {
                self.timestamp_difference_max_ms =
                    number("message.timestamp.difference.max.ms", value, 0, i64::MAX)?;
            }
            "retention.ms" => self.retention_ms = number("retention.ms", value, -1, i64::MAX)?,
            "retention.bytes" => self.retention_bytes = number("retention.bytes", value, i64::MIN, i64::MAX)?,
            "cleanup.policy" => self.set_cleanup_policy(value)?,
            "delete.retention.ms" => {
                self.delete_retention_ms = number("delete.retention.ms", value, 0, i64::MAX)?;
            }
            "min.cleanable.dirty.ratio" => {
                self.min_cleanable_dirty_ratio = ratio("min.cleanable.dirty.ratio", value)?;
            }
            "min.compaction.lag.ms" => {
                self.min_compaction_lag_ms = number("min.compaction.lag.ms", value, 0, i64::MAX)?;
            }
            "max.compaction.lag.ms" => {
                self.max_compaction_lag_ms = number("max.compaction.lag.ms", value, 1, i64::MAX)?;
            }
            "flush.messages" => self.flush_messages = number("flush.messages", value, 1, i64::MAX)?,
            "flush.ms" => self.flush_ms = number("flush.ms", value, 0, i64::MAX)?,
            "file.delete.delay.ms" => {
                self.file_delete_delay_ms = number("file.delete.delay.ms", value, 0, i64::MAX)?;
            }
            "producer.id.expiration.check.interval.ms" => {
                self.producer_id_expiration_check_ms =
                    number("producer.id.expiration.check.interval.ms", value, 1, i64::MAX)?;
            }
            "producer.id.expiration.ms" => {
                self.producer_id_expiration_ms = number("producer.id.expiration.ms", value, 1, i64::MAX)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// How far in the past and in the future a create time may be
    /// (`LogConfig.getMessageTimestampBeforeMaxMs`, `…AfterMaxMs`).
    pub fn timestamp_limits_ms(&self) -> (i64, i64) {
        let limit = |limit| match limit {
            i64::MAX => self.timestamp_difference_max_ms,
            set => set,
        };
        (
            limit(self.timestamp_before_max_ms),
            limit(self.timestamp_after_max_ms),
        )
    }

    /// The level for a codec, on its own scale; `None` is its default.
    pub fn compression_level(&self, codec: Compression) -> Option<i32> {
        match codec {
            Compression::Gzip => Some(self.compression_gzip_level).filter(|level| *level > 0),
            Compression::Zstd => Some(self.compression_zstd_level),
            Compression::None | Compression::Snappy | Compression::Lz4 => None,
        }
    }

    /// Checks settings against each other (`LogConfig.validateValues`).
    ///
    /// Errors: [`StorageError::InvalidConfig`].
    pub fn check(&self) -> Result<()> {
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms {
            return Err(StorageError::InvalidConfig {
                name: "min.compaction.lag.ms",
                value: self.min_compaction_lag_ms.to_string(),
                reason: "at most max.compaction.lag.ms is needed",
            });
        }
        Ok(())
    }

    fn set_cleanup_policy(&mut self, value: &str) -> Result<()> {
        let (mut delete, mut compact) = (false, false);
        // An empty list keeps everything.
        let policies = value.split(',').map(str::trim);
        for policy in policies.filter(|_| !value.trim().is_empty()) {
            match policy {
                "delete" => delete = true,
                "compact" => compact = true,
                _ => {
                    return Err(StorageError::InvalidConfig {
                        name: "cleanup.policy",
                        value: value.to_owned(),
                        reason: "a list of delete and compact is needed",
                    });
                }
            }
        }
        (self.cleanup_delete, self.cleanup_compact) = (delete, compact);
        Ok(())
    }
}

fn number(name: &'static str, value: &str, least: i64, most: i64) -> Result<i64> {
    match value.trim().parse::<i64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(_) => Err(StorageError::InvalidConfig {
            name,
            value: value.to_owned(),
            reason: "the number is outside the setting's bounds",
        }),
        Err(_) => Err(StorageError::InvalidConfig {
            name,
            value: value.to_owned(),
            reason: "a whole number is needed",
        }),
    }
}

/// The names of `BrokerCompressionType`: those of the codecs, and `uncompressed` for none.
fn codec(value: &str) -> Result<Option<Compression>> {
    let invalid = || StorageError::InvalidConfig {
        name: "compression.type",
        value: value.to_owned(),
        reason: "one of uncompressed, zstd, lz4, snappy, gzip, producer is needed",
    };
    match value {
        "producer" => Ok(None),
        "uncompressed" => Ok(Some(Compression::None)),
        "none" => Err(invalid()),
        codec => codec.parse().map(Some).map_err(|_| invalid()),
    }
}

/// One of the codec's levels. Gzip's default, -1, is outside the range.
fn level(name: &'static str, value: &str, codec: Compression) -> Result<i32> {
    if codec == Compression::Gzip && value.trim() == "-1" {
        return Ok(-1);
    }
    let (least, most) = codec.levels().unwrap_or(0..=0).into_inner();
    number(name, value, least.into(), most.into()).map(|level| level as i32)
}

fn boolean(name: &'static str, value: &str) -> Result<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(StorageError::InvalidConfig {
            name,
            value: value.to_owned(),
            reason: "true or false is needed",
        }),
    }
}

fn ratio(name: &'static str, value: &str) -> Result<f64> {
    match value.trim().parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err(StorageError::InvalidConfig {
            name,
            value: value.to_owned(),
            reason: "a number from 0 to 1 is needed",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: a topic's settings would be misread, or a bad value be ignored.
    #[test]
    fn settings_by_name() {
        let mut config = LogConfig::default();
        assert!(config.set("segment.bytes", "1048576").unwrap());
        assert!(config.set("cleanup.policy", "compact, delete").unwrap());
        assert!(config.set("message.timestamp.type", "LogAppendTime").unwrap());
        assert!(config.set("min.cleanable.dirty.ratio", "0.25").unwrap());
        assert_eq!(config.min_cleanable_dirty_ratio, 0.25);
        assert!(config.set("message.downconversion.enable", "FALSE").unwrap());
        assert!(!config.downconversion);
        assert!(config.set("min.insync.replicas", "2").unwrap());
        assert_eq!(config.min_insync_replicas, 2);
        assert!(!config.set("unclean.leader.election.enable", "true").unwrap());
        for (name, codec) in [
            ("producer", None),
            ("uncompressed", Some(Compression::None)),
            ("zstd", Some(Compression::Zstd)),
        ] {
            assert!(config.set("compression.type", name).unwrap());
            assert_eq!(config.compression, codec);
        }
        assert_eq!(config.compression_level(Compression::Gzip), None);
        for (name, level) in [("gzip", "9"), ("lz4", "17"), ("zstd", "-131072")] {
            let name = format!("compression.{name}.level");
            assert!(config.set(&name, level).unwrap());
        }
        assert_eq!(config.compression_level(Compression::Gzip), Some(9));
        assert_eq!(config.compression_level(Compression::Zstd), Some(-131_072));
        assert_eq!(config.segment_bytes, 1 << 20);
        assert!(config.cleanup_compact && config.cleanup_delete);
        assert_eq!(config.timestamp_type, TimestampType::LogAppendTime);
        for (name, value) in [
            ("segment.bytes", "13"),
            ("segment.bytes", "2147483648"),
            ("retention.ms", "-2"),
            ("flush.messages", "zero"),
            ("cleanup.policy", "shred"),
            ("message.downconversion.enable", "perhaps"),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("min.cleanable.dirty.ratio", "NaN"),
            ("max.compaction.lag.ms", "0"),
            ("message.timestamp.type", "Never"),
            ("compression.type", "none"),
            ("compression.gzip.level", "0"),
            ("compression.lz4.level", "18"),
            ("compression.zstd.level", "23"),
            ("min.insync.replicas", "0"),
        ] {
            let error = config.set(name, value).unwrap_err();
            assert_eq!(error.kafka_code(), 40, "{name}={value}");
        }
        config.set("max.compaction.lag.ms", "5").unwrap();
        config.set("min.compaction.lag.ms", "5").unwrap();
        config.check().unwrap();
        config.set("min.compaction.lag.ms", "6").unwrap();
        assert_eq!(config.check().unwrap_err().kafka_code(), 40);
    }
}
