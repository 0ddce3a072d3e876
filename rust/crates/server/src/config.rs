//! The settings the data plane acts on, by Kafka's property names, with Kafka's defaults.
//!
//! Source: `SocketServerConfigs`, `ServerLogConfigs`, `ServerConfigs`, `ServerTopicConfigSynonyms`. Names that are not known
//! here are somebody else's: whoever read the property file warns about those nobody knows.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use logcore_storage::{CleanerConfig, LogConfig};

use crate::error::{Result, ServerError};

/// Settings by name, as text.
pub type Properties = HashMap<String, String>;

/// Settings of one server. The field's doc names the property.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    /// `socket.request.max.bytes`
    pub(crate) request_bytes_max: usize,
    /// `socket.listen.backlog.size`
    pub(crate) listen_backlog: i32,
    /// `socket.send.buffer.bytes`; unless it is set, the operating system tunes the buffer by itself.
    pub(crate) send_buffer_bytes: Option<usize>,
    /// `socket.receive.buffer.bytes`; unless it is set, the operating system tunes the buffer by itself.
    pub(crate) receive_buffer_bytes: Option<usize>,
    /// `max.connections`
    pub(crate) connections_max: usize,
    /// `max.connections.per.ip`
    pub(crate) connections_per_ip_max: usize,
    /// `connections.max.idle.ms`; `None` is never.
    pub(crate) connection_idle_max: Option<Duration>,
    /// `slow.request.log.ms`, ours; `None` is never.
    pub(crate) slow_request: Option<Duration>,
    /// `queued.max.requests`
    pub(crate) queued_requests_max: usize,
    /// `fetch.max.bytes`
    pub(crate) fetch_bytes_max: u64,
    /// `max.incremental.fetch.session.cache.slots`
    pub(crate) fetch_sessions_max: usize,
    /// `log.retention.check.interval.ms`
    pub(crate) retention_check_interval: Duration,
    /// `log.flush.scheduler.interval.ms`; `None` is never.
    pub(crate) flush_check_interval: Option<Duration>,
    /// `log.flush.offset.checkpoint.interval.ms`
    pub(crate) checkpoint_interval: Duration,
    /// `num.recovery.threads.per.data.dir`; unless it is set, the storage crate chooses.
    pub(crate) recovery_threads: Option<NonZeroUsize>,
    /// `log.cleaner.*`
    pub(crate) cleaner: CleanerConfig,
    /// What a topic has that overrides nothing.
    pub(crate) log_defaults: LogConfig,
}

/// Broker-wide properties and the topic setting they are the default of; of several the last one that is set wins.
const TOPIC_DEFAULTS: &[(&str, &str, i64)] = &[
    ("log.segment.bytes", "segment.bytes", 1),
    ("log.roll.hours", "segment.ms", 3_600_000),
    ("log.roll.ms", "segment.ms", 1),
    ("log.roll.jitter.hours", "segment.jitter.ms", 3_600_000),
    ("log.roll.jitter.ms", "segment.jitter.ms", 1),
    ("log.index.interval.bytes", "index.interval.bytes", 1),
    ("log.index.size.max.bytes", "segment.index.bytes", 1),
    ("message.max.bytes", "max.message.bytes", 1),
    (
        "log.message.timestamp.before.max.ms",
        "message.timestamp.before.max.ms",
        1,
    ),
    (
        "log.message.timestamp.after.max.ms",
        "message.timestamp.after.max.ms",
        1,
    ),
    ("log.retention.hours", "retention.ms", 3_600_000),
    ("log.retention.minutes", "retention.ms", 60_000),
    ("log.retention.ms", "retention.ms", 1),
    ("log.retention.bytes", "retention.bytes", 1),
    ("log.cleaner.delete.retention.ms", "delete.retention.ms", 1),
    (
        "log.cleaner.min.compaction.lag.ms",
        "min.compaction.lag.ms",
        1,
    ),
    (
        "log.cleaner.max.compaction.lag.ms",
        "max.compaction.lag.ms",
        1,
    ),
    ("log.flush.interval.messages", "flush.messages", 1),
    ("log.flush.scheduler.interval.ms", "flush.ms", 1),
    ("log.flush.interval.ms", "flush.ms", 1),
    ("log.segment.delete.delay.ms", "file.delete.delay.ms", 1),
    ("producer.id.expiration.ms", "producer.id.expiration.ms", 1),
];

/// The same for settings that are words or fractions.
const TOPIC_DEFAULT_WORDS: &[(&str, &str)] = &[
    ("log.message.timestamp.type", "message.timestamp.type"),
    ("log.cleanup.policy", "cleanup.policy"),
    (
        "log.cleaner.min.cleanable.ratio",
        "min.cleanable.dirty.ratio",
    ),
];

impl ServerConfig {
    /// Reads the settings.
    ///
    /// # Errors
    /// [`ServerError::InvalidConfig`] for a value that is not of its setting's type or outside its bounds.
    pub(crate) fn new(properties: &Properties) -> Result<Self> {
        let of = Source(properties);
        Ok(Self {
            request_bytes_max: of.number(
                "socket.request.max.bytes",
                104_857_600,
                1,
                i32::MAX as usize,
            )?,
            listen_backlog: of.number("socket.listen.backlog.size", 50, 1, i32::MAX)?,
            send_buffer_bytes: of.buffer("socket.send.buffer.bytes")?,
            receive_buffer_bytes: of.buffer("socket.receive.buffer.bytes")?,
            connections_max: of.number(
                "max.connections",
                i32::MAX as usize,
                0,
                i32::MAX as usize,
            )?,
            connections_per_ip_max: of.number(
                "max.connections.per.ip",
                i32::MAX as usize,
                0,
                i32::MAX as usize,
            )?,
            connection_idle_max: of.duration("connections.max.idle.ms", Some(600_000), -1)?,
            // Kafka's request log is off because it tells of every request. Ours tells of what no broker in order does.
            slow_request: of.duration("slow.request.log.ms", Some(1000), -1)?,
            queued_requests_max: of.number("queued.max.requests", 500, 1, i32::MAX as usize)?,
            fetch_bytes_max: of.number("fetch.max.bytes", 57_671_680, 1024, i32::MAX as u64)?,
            fetch_sessions_max: of.number(
                "max.incremental.fetch.session.cache.slots",
                1000,
                0,
                i32::MAX as usize,
            )?,
            retention_check_interval: of.interval("log.retention.check.interval.ms", 300_000)?,
            flush_check_interval: of.duration("log.flush.scheduler.interval.ms", None, 0)?,
            checkpoint_interval: of.interval("log.flush.offset.checkpoint.interval.ms", 60_000)?,
            recovery_threads: NonZeroUsize::new(of.number(
                "num.recovery.threads.per.data.dir",
                0,
                1,
                i32::MAX as usize,
            )?),
            cleaner: of.cleaner()?,
            log_defaults: of.log_defaults()?,
        })
    }

    /// The settings of a topic's logs: the broker's defaults and the topic's own.
    ///
    /// # Errors
    /// [`ServerError::Storage`] for a value that a topic setting cannot have.
    pub(crate) fn topic(&self, overrides: &Properties) -> Result<LogConfig> {
        let mut config = self.log_defaults.clone();
        for (name, value) in overrides {
            config.set(name, value)?;
        }
        Ok(config)
    }
}

struct Source<'a>(&'a Properties);

impl Source<'_> {
    fn number<T: FromStr + PartialOrd + Copy>(
        &self,
        name: &str,
        default: T,
        least: T,
        most: T,
    ) -> Result<T> {
        let Some(text) = self.0.get(name) else {
            return Ok(default);
        };
        match text.trim().parse() {
            Ok(number) if number >= least && number <= most => Ok(number),
            Ok(_) => Err(invalid(
                name,
                text,
                "the number is outside the setting's bounds",
            )),
            Err(_) => Err(invalid(
                name,
                text,
                "a whole number within the setting's bounds is needed",
            )),
        }
    }

    /// `None` and -1 leave the choice to the operating system.
    fn buffer(&self, name: &str) -> Result<Option<usize>> {
        Ok(usize::try_from(self.number(name, -1, -1, i32::MAX)?).ok())
    }

    /// Negative and the largest number mean never.
    fn duration(
        &self,
        name: &str,
        default_ms: Option<u64>,
        least: i64,
    ) -> Result<Option<Duration>> {
        let default = default_ms.map_or(i64::MAX, |ms| ms as i64);
        let ms = self.number(name, default, least, i64::MAX)?;
        let never = ms < 0 || ms == i64::MAX;
        Ok((!never).then(|| Duration::from_millis(ms.unsigned_abs())))
    }

    fn interval(&self, name: &str, default_ms: u64) -> Result<Duration> {
        Ok(Duration::from_millis(self.number(
            name,
            default_ms,
            1,
            i64::MAX as u64,
        )?))
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.0.get(name).map(|text| text.trim()) {
            None => Ok(default),
            Some(text) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(text) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(text) => Err(invalid(name, text, "true or false is needed")),
        }
    }

    fn cleaner(&self) -> Result<CleanerConfig> {
        let default = CleanerConfig::default();
        let config = CleanerConfig {
            enabled: self.flag("log.cleaner.enable", default.enabled)?,
            threads: self.number("log.cleaner.threads", default.threads, 0, i32::MAX as usize)?,
            dedupe_buffer_bytes: self.number(
                "log.cleaner.dedupe.buffer.size",
                default.dedupe_buffer_bytes,
                0,
                i64::MAX as u64,
            )?,
            load_factor: self.number(
                "log.cleaner.io.buffer.load.factor",
                default.load_factor,
                0.0,
                1.0,
            )?,
            io_buffer_bytes: self.number(
                "log.cleaner.io.buffer.size",
                default.io_buffer_bytes,
                0,
                i32::MAX as usize,
            )?,
            io_max_bytes_per_second: self.number(
                "log.cleaner.io.max.bytes.per.second",
                default.io_max_bytes_per_second,
                0.0,
                f64::MAX,
            )?,
            backoff_ms: self.number(
                "log.cleaner.backoff.ms",
                default.backoff_ms,
                0,
                i64::MAX as u64,
            )?,
        };
        config.check()?;
        Ok(config)
    }

    fn log_defaults(&self) -> Result<LogConfig> {
        let mut config = LogConfig::default();
        for (broker, topic, unit) in TOPIC_DEFAULTS {
            let Some(text) = self.0.get(*broker) else {
                continue;
            };
            let number: i64 = self.number(broker, 0, i64::MIN, i64::MAX)?;
            // A negative number means "for ever" in every unit.
            let value = if number < 0 {
                number
            } else {
                number.saturating_mul(*unit)
            };
            config
                .set(topic, &value.to_string())
                .map_err(|_| invalid(broker, text, "the number is outside the setting's bounds"))?;
        }
        for (broker, topic) in TOPIC_DEFAULT_WORDS {
            if let Some(text) = self.0.get(*broker) {
                config
                    .set(topic, text)
                    .map_err(|_| invalid(broker, text, "the setting has no such value"))?;
            }
        }
        config.check()?;
        Ok(config)
    }
}

fn invalid(name: &str, value: &str, reason: &'static str) -> ServerError {
    ServerError::InvalidConfig {
        name: name.to_owned(),
        value: value.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(pairs: &[(&str, &str)]) -> Properties {
        let owned = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        owned.collect()
    }

    // If this failed, an operator's property would be read in the wrong unit or lose to a weaker one.
    #[test]
    fn broker_properties_become_topic_defaults() {
        let config = ServerConfig::new(&properties(&[
            ("log.retention.hours", "2"),
            ("log.retention.ms", "5"),
            ("log.roll.hours", "1"),
            ("log.roll.jitter.hours", "2"),
            ("log.roll.jitter.ms", "7"),
            ("message.max.bytes", "2000"),
            ("log.retention.bytes", "-1"),
            ("connections.max.idle.ms", "-1"),
            ("log.cleaner.min.cleanable.ratio", "0.2"),
            ("log.cleaner.max.compaction.lag.ms", "77"),
            ("log.cleaner.threads", "3"),
            (
                "log.cleaner.io.max.bytes.per.second",
                "1.7976931348623157E308",
            ),
        ]))
        .unwrap();
        assert_eq!(config.log_defaults.min_cleanable_dirty_ratio, 0.2);
        assert_eq!(config.log_defaults.max_compaction_lag_ms, 77);
        assert_eq!(config.cleaner.threads, 3);
        assert_eq!(config.cleaner.io_max_bytes_per_second, f64::MAX);
        assert_eq!(config.log_defaults.retention_ms, 5);
        assert_eq!(config.log_defaults.segment_ms, 3_600_000);
        assert_eq!(config.log_defaults.segment_jitter_ms, 7);
        assert_eq!(config.log_defaults.max_message_bytes, 2000);
        assert_eq!(config.connection_idle_max, None);
        assert_eq!(config.request_bytes_max, 104_857_600);
        let topic = config
            .topic(&properties(&[("max.message.bytes", "9")]))
            .unwrap();
        assert_eq!((topic.max_message_bytes, topic.retention_ms), (9, 5));
    }

    // If this failed, a mistyped limit would silently become the default.
    #[test]
    fn bad_values_are_named() {
        for (name, value) in [
            ("socket.request.max.bytes", "0"),
            ("queued.max.requests", "many"),
            ("log.segment.bytes", "1"),
            ("log.message.timestamp.type", "Sometime"),
            ("log.cleaner.enable", "perhaps"),
            ("log.cleaner.min.cleanable.ratio", "2"),
            ("log.cleaner.dedupe.buffer.size", "47"),
            ("log.cleaner.io.max.bytes.per.second", "0"),
        ] {
            let error = ServerConfig::new(&properties(&[(name, value)])).unwrap_err();
            assert!(
                error.to_string().starts_with(&format!("{name}={value} ")),
                "{error}"
            );
        }
        assert!(
            ServerConfig::new(&Properties::new())
                .unwrap()
                .topic(&properties(&[("segment.bytes", "x")]))
                .is_err()
        );
    }
}
