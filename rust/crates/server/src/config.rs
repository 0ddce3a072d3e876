//! The settings of the data plane, by Kafka's property names and with Kafka's defaults.
//!
//! Source: `SocketServerConfigs`, `ServerLogConfigs`, `ServerConfigs`, `ServerTopicConfigSynonyms`. Unknown
//! names are ignored here: Python reads the property file and warns about them.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use logcore_storage::{CleanerConfig, LoadProgress, LogConfig};

use crate::error::{Result, ServerError};

/// The options of [`crate::Server::open`].
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// `broker.id`
    pub node_id: i32,
    /// The cluster's id, checked against every directory's `meta.properties`.
    pub cluster_id: String,
    /// `log.dirs`
    pub log_dirs: Vec<String>,
    /// Kafka's properties by name.
    pub properties: Properties,
    /// Shows another thread how far the opening is.
    pub progress: Arc<LoadProgress>,
}

/// The window of rates: `quota.window.num` samples of `quota.window.size.seconds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) samples: usize,
    pub(crate) length: Duration,
}

impl Window {
    pub(crate) fn length_ms(self) -> u64 {
        self.length.as_millis() as u64
    }

    /// The time after which a sample has expired.
    pub(crate) fn whole_ms(self) -> u64 {
        self.length_ms().saturating_mul(self.samples as u64)
    }
}

/// Settings by name, as text.
pub type Properties = HashMap<String, String>;

/// Kafka has no maximum. This is more than any machine's cores, and can still be started.
const NETWORK_THREADS_MAX: usize = 4096;

/// Kafka has no maximum. Each fetcher is a thread.
const FETCHERS_MAX: usize = 1024;

/// Settings that cannot change while the server is open. The comment of a field names its property.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    /// `socket.request.max.bytes`
    pub(crate) request_bytes_max: usize,
    /// `socket.listen.backlog.size`
    pub(crate) listen_backlog: i32,
    /// `socket.send.buffer.bytes`. `None` (-1) lets the operating system tune it.
    pub(crate) send_buffer_bytes: Option<usize>,
    /// `socket.receive.buffer.bytes`. `None` lets the operating system tune it, which is the default here.
    pub(crate) receive_buffer_bytes: Option<usize>,
    /// `connections.max.idle.ms`. `None` stands for never.
    pub(crate) connection_idle_max: Option<Duration>,
    /// `socket.busy.poll.us`, which Kafka does not have: how long a thread polls for a quick client's next
    /// request.
    pub(crate) busy_poll: Duration,
    /// `slow.request.log.ms`, which Kafka does not have. `None` stands for never.
    pub(crate) slow_request: Option<Duration>,
    /// `logcore.produce.check.compressed`, which Kafka does not have: whether compressed batches from
    /// producers are decompressed and their records checked.
    pub(crate) check_compressed: bool,
    /// `queued.max.request.bytes`. `None` stands for no limit, which is Kafka's default. Here there is one,
    /// because a thousand slow clients could use all of the machine's memory; a client that needs more only
    /// waits.
    pub(crate) request_memory: Option<usize>,
    /// `queued.max.requests`
    pub(crate) queued_requests_max: usize,
    /// `fetch.max.bytes`
    pub(crate) fetch_bytes_max: u64,
    /// `max.incremental.fetch.session.cache.slots`
    pub(crate) fetch_sessions_max: usize,
    /// `replica.selector.class` is `RackAwareReplicaSelector` (KIP-392); else consumers read from leaders.
    pub(crate) rack_aware_selector: bool,
    /// `log.retention.check.interval.ms`
    pub(crate) retention_check_interval: Duration,
    /// `log.flush.scheduler.interval.ms`. `None` stands for never.
    pub(crate) flush_check_interval: Option<Duration>,
    /// `log.flush.offset.checkpoint.interval.ms`
    pub(crate) checkpoint_interval: Duration,
    /// `num.recovery.threads.per.data.dir`. By default the storage crate chooses.
    pub(crate) recovery_threads: Option<NonZeroUsize>,
    /// `num.network.threads`. The default is the number of cores.
    pub(crate) network_threads: Option<NonZeroUsize>,
    /// `quota.window.num` and `quota.window.size.seconds`
    pub(crate) quota_window: Window,
    /// `replication.quota.window.*`
    pub(crate) replication_quota_window: Window,
    /// `alter.log.dirs.replication.quota.window.*`
    pub(crate) moves_quota_window: Window,
    /// `inter.broker.listener.name`, or `security.inter.broker.protocol` if that is not set.
    pub(crate) inter_broker_listener: String,
    pub(crate) replica: ReplicaConfig,
}

/// The settings of replication.
#[derive(Debug, Clone)]
pub(crate) struct ReplicaConfig {
    /// `num.replica.fetchers`, for each leader's broker.
    pub(crate) fetchers: usize,
    /// `replica.fetch.max.bytes`, of one partition. One batch is fetched even if it is larger.
    pub(crate) fetch_bytes_max: i32,
    /// `replica.fetch.response.max.bytes`, of one response. One batch is fetched even if it is larger.
    pub(crate) response_bytes_max: i32,
    /// `replica.fetch.wait.max.ms`
    pub(crate) wait_max: Duration,
    /// `replica.fetch.min.bytes`
    pub(crate) bytes_min: i32,
    /// `replica.fetch.backoff.ms`: the longest pause before a failed fetch is repeated.
    pub(crate) backoff: Duration,
    /// `replica.socket.timeout.ms`
    pub(crate) socket_timeout: Duration,
    /// `replica.lag.time.max.ms`
    pub(crate) lag_max: Duration,
}

/// Settings that can change while the server runs (`DynamicBrokerConfig`). Requests do not read them: they go
/// to the limits on connections, the logs and the cleaner.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DynamicConfig {
    pub(crate) connections: ConnectionLimits,
    /// `log.cleaner.*`
    pub(crate) cleaner: CleanerConfig,
    pub(crate) replication_rates: ReplicationRates,
    /// `transaction.partition.verification.enable`
    pub(crate) verify_transactions: bool,
    pub(crate) log_defaults: LogConfig,
}

/// The bounds of replication's throttles, in bytes a second.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReplicationRates {
    /// `leader.replication.throttled.rate`
    pub(crate) leader: u64,
    /// `follower.replication.throttled.rate`
    pub(crate) follower: u64,
    /// `replica.alter.log.dirs.io.max.bytes.per.second`
    pub(crate) moves: u64,
}

impl ReplicationRates {
    pub(crate) const NO_BOUND: u64 = i64::MAX as u64;
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConnectionLimits {
    /// `max.connections` and `max.connection.creation.rate`
    pub(crate) broker: ListenerLimits,
    /// The same with the prefix `listener.name.<name>.`, by the name in lower case.
    pub(crate) listeners: HashMap<String, ListenerLimits>,
    /// `max.connections.per.ip`
    pub(crate) per_ip_max: usize,
    /// `max.connections.per.ip.overrides`, resolved.
    pub(crate) per_ip_overrides: HashMap<IpAddr, usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ListenerLimits {
    pub(crate) connections_max: usize,
    /// Connections a second. `None` stands for no limit.
    pub(crate) creation_rate: Option<f64>,
}

impl ListenerLimits {
    pub(crate) const NONE: Self = Self {
        connections_max: i32::MAX as usize,
        creation_rate: None,
    };
}

impl ConnectionLimits {
    pub(crate) fn listener(&self, name: &str) -> ListenerLimits {
        let own = self.listeners.get(&name.to_lowercase());
        own.copied().unwrap_or(ListenerLimits::NONE)
    }

    pub(crate) fn per_ip(&self, ip: IpAddr) -> usize {
        let own = self.per_ip_overrides.get(&ip);
        own.copied().unwrap_or(self.per_ip_max)
    }
}

/// The default memory of requests, unless twice the longest request is more. Half of it is for other requests
/// than the longest.
const REQUEST_MEMORY: usize = 256 << 20;

/// The default of a socket's send buffer. A consumer reads the bytes while they are in the processor's cache,
/// which larger tuned buffers prevent, and the sender wakes a third as often as with Kafka's 100 KiB
/// (bench/results/fetch-profile.md).
const SEND_BUFFER: i32 = 320 << 10;

const CONNECTIONS_MAX: &str = "max.connections";
const CREATION_RATE: &str = "max.connection.creation.rate";
const LISTENER_PREFIX: &str = "listener.name.";

/// Broker properties and the topic settings whose defaults they are. Of several, the last one that is set
/// wins.
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
    (
        "log.message.timestamp.difference.max.ms",
        "message.timestamp.difference.max.ms",
        1,
    ),
    ("log.retention.hours", "retention.ms", 3_600_000),
    ("log.retention.minutes", "retention.ms", 60_000),
    ("log.retention.ms", "retention.ms", 1),
    ("log.retention.bytes", "retention.bytes", 1),
    ("log.cleaner.delete.retention.ms", "delete.retention.ms", 1),
    ("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms", 1),
    ("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms", 1),
    ("min.insync.replicas", "min.insync.replicas", 1),
    ("compression.gzip.level", "compression.gzip.level", 1),
    ("compression.lz4.level", "compression.lz4.level", 1),
    ("compression.zstd.level", "compression.zstd.level", 1),
    ("log.flush.interval.messages", "flush.messages", 1),
    ("log.flush.scheduler.interval.ms", "flush.ms", 1),
    ("log.flush.interval.ms", "flush.ms", 1),
    ("log.segment.delete.delay.ms", "file.delete.delay.ms", 1),
    ("producer.id.expiration.ms", "producer.id.expiration.ms", 1),
    (
        "producer.id.expiration.check.interval.ms",
        "producer.id.expiration.check.interval.ms",
        1,
    ),
];

/// The same for settings with words or fractions.
const TOPIC_DEFAULT_WORDS: &[(&str, &str)] = &[
    ("log.message.timestamp.type", "message.timestamp.type"),
    ("log.cleanup.policy", "cleanup.policy"),
    ("compression.type", "compression.type"),
    (
        "log.message.downconversion.enable",
        "message.downconversion.enable",
    ),
    ("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
];

impl ServerConfig {
    /// Reads the settings.
    ///
    /// # Errors
    /// [`ServerError::InvalidConfig`] for a value that is not of its setting's type or outside its bounds.
    pub(crate) fn new(properties: &Properties) -> Result<Self> {
        let of = Source(properties);
        Ok(Self {
            request_bytes_max: of.request_bytes_max()?,
            listen_backlog: of.number("socket.listen.backlog.size", 50, 1, i32::MAX)?,
            send_buffer_bytes: of.buffer("socket.send.buffer.bytes", SEND_BUFFER)?,
            receive_buffer_bytes: of.buffer("socket.receive.buffer.bytes", -1)?,
            connection_idle_max: of.duration("connections.max.idle.ms", Some(600_000), -1)?,
            busy_poll: Duration::from_micros(of.number("socket.busy.poll.us", 100, 0, 10_000)?),
            // Kafka's request log is off, because it has every request. This one has slow requests only.
            slow_request: of.duration("slow.request.log.ms", Some(1000), -1)?,
            check_compressed: of.flag("logcore.produce.check.compressed", true)?,
            request_memory: of.request_memory()?,
            queued_requests_max: of.number("queued.max.requests", 500, 1, i32::MAX as usize)?,
            fetch_bytes_max: of.number("fetch.max.bytes", 57_671_680, 1024, i32::MAX as u64)?,
            fetch_sessions_max: of.number(
                "max.incremental.fetch.session.cache.slots",
                1000,
                0,
                i32::MAX as usize,
            )?,
            rack_aware_selector: of.rack_aware_selector()?,
            retention_check_interval: of.interval("log.retention.check.interval.ms", 300_000)?,
            flush_check_interval: of.duration("log.flush.scheduler.interval.ms", None, 0)?,
            checkpoint_interval: of.interval("log.flush.offset.checkpoint.interval.ms", 60_000)?,
            recovery_threads: of.threads("num.recovery.threads.per.data.dir", i32::MAX as usize)?,
            network_threads: of.threads("num.network.threads", NETWORK_THREADS_MAX)?,
            quota_window: of.quota_window("quota.window.num", "quota.window.size.seconds")?,
            replication_quota_window: of.quota_window(
                "replication.quota.window.num",
                "replication.quota.window.size.seconds",
            )?,
            moves_quota_window: of.quota_window(
                "alter.log.dirs.replication.quota.window.num",
                "alter.log.dirs.replication.quota.window.size.seconds",
            )?,
            inter_broker_listener: of.inter_broker_listener(),
            replica: of.replica()?,
        })
    }
}

impl DynamicConfig {
    /// Reads the settings.
    ///
    /// # Errors
    /// As [`ServerConfig::new`].
    pub(crate) fn new(properties: &Properties) -> Result<Self> {
        let of = Source(properties);
        Ok(Self {
            connections: of.connections()?,
            cleaner: of.cleaner()?,
            replication_rates: of.replication_rates()?,
            verify_transactions: of.flag("transaction.partition.verification.enable", true)?,
            log_defaults: of.log_defaults()?,
        })
    }

    /// The settings of a log before its topic's settings are known. Nothing is deleted or compacted, because
    /// the topic may keep it.
    pub(crate) fn until_configured(&self) -> LogConfig {
        LogConfig {
            retention_ms: -1,
            retention_bytes: -1,
            cleanup_compact: false,
            ..self.log_defaults.clone()
        }
    }

    /// The settings of a topic's logs: the broker's defaults and the topic's own.
    ///
    /// # Errors
    /// [`ServerError::Storage`] for an invalid value.
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
    fn threads(&self, name: &str, most: usize) -> Result<Option<NonZeroUsize>> {
        self.number(name, 0, 1, most).map(NonZeroUsize::new)
    }

    fn number<T: FromStr + PartialOrd + Copy>(&self, name: &str, default: T, least: T, most: T) -> Result<T> {
        let Some(text) = self.0.get(name) else {
            return Ok(default);
        };
        match text.trim().parse() {
            Ok(number) if number >= least && number <= most => Ok(number),
            Ok(_) => Err(invalid(name, text, "the number is outside the setting's bounds")),
            Err(_) => Err(invalid(
                name,
                text,
                "a whole number within the setting's bounds is needed",
            )),
        }
    }

    /// -1 leaves the choice to the operating system.
    fn buffer(&self, name: &str, default: i32) -> Result<Option<usize>> {
        Ok(usize::try_from(self.number(name, default, -1, i32::MAX)?).ok())
    }

    /// A negative number and the largest one stand for never.
    fn duration(&self, name: &str, default_ms: Option<u64>, least: i64) -> Result<Option<Duration>> {
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

    fn request_bytes_max(&self) -> Result<usize> {
        self.number("socket.request.max.bytes", 104_857_600, 1, i32::MAX as usize)
    }

    /// A limit must allow the longest request (`KafkaConfig`).
    fn request_memory(&self) -> Result<Option<usize>> {
        let (name, least) = ("queued.max.request.bytes", self.request_bytes_max()?);
        let bytes = self.number(name, 0, i64::MIN, i64::MAX)?;
        match (self.0.get(name), usize::try_from(bytes)) {
            (None, _) => Ok(Some(REQUEST_MEMORY.max(2 * least))),
            (Some(_), Err(_) | Ok(0)) => Ok(None),
            (Some(_), Ok(bytes)) if bytes >= least => Ok(Some(bytes)),
            (Some(text), Ok(_)) => Err(invalid(
                name,
                text,
                "at least socket.request.max.bytes is needed, or -1 for no limit",
            )),
        }
    }

    fn quota_window(&self, samples: &str, seconds: &str) -> Result<Window> {
        Ok(Window {
            samples: self.number(samples, 11, 1, i32::MAX as usize)?,
            length: Duration::from_secs(self.number(seconds, 1, 1, i32::MAX as u64)?),
        })
    }

    fn replication_rates(&self) -> Result<ReplicationRates> {
        let rate = |name| self.number(name, ReplicationRates::NO_BOUND, 0, ReplicationRates::NO_BOUND);
        Ok(ReplicationRates {
            leader: rate("leader.replication.throttled.rate")?,
            follower: rate("follower.replication.throttled.rate")?,
            moves: rate("replica.alter.log.dirs.io.max.bytes.per.second")?,
        })
    }

    fn replica(&self) -> Result<ReplicaConfig> {
        let bytes = |name, default| self.number(name, default, 0, i32::MAX);
        let ms = |name, default, least| {
            let ms = self.number(name, default, least, i32::MAX as u64)?;
            Ok::<_, ServerError>(Duration::from_millis(ms))
        };
        let lag_max = self.number("replica.lag.time.max.ms", 30_000, 0, i64::MAX as u64)?;
        Ok(ReplicaConfig {
            fetchers: self.number("num.replica.fetchers", 1, 1, FETCHERS_MAX)?,
            fetch_bytes_max: bytes("replica.fetch.max.bytes", 1 << 20)?,
            response_bytes_max: bytes("replica.fetch.response.max.bytes", 10 << 20)?,
            wait_max: ms("replica.fetch.wait.max.ms", 500, 0)?,
            bytes_min: bytes("replica.fetch.min.bytes", 1)?,
            backoff: ms("replica.fetch.backoff.ms", 1000, 0)?,
            socket_timeout: ms("replica.socket.timeout.ms", 30_000, 1)?,
            lag_max: Duration::from_millis(lag_max),
        })
    }

    fn inter_broker_listener(&self) -> String {
        let name = self.0.get("inter.broker.listener.name");
        let name = name.or_else(|| self.0.get("security.inter.broker.protocol"));
        name.map_or("PLAINTEXT", |name| name.trim()).to_owned()
    }

    fn connections(&self) -> Result<ConnectionLimits> {
        let limits = ConnectionLimits {
            broker: self.listener_limits("")?,
            listeners: self.listeners()?,
            per_ip_max: self.count("max.connections.per.ip")?,
            per_ip_overrides: self.per_ip_overrides()?,
        };
        if limits.per_ip_max == 0 && limits.per_ip_overrides.is_empty() {
            return Err(invalid(
                "max.connections.per.ip",
                "0",
                "no client could connect: name the addresses that may in max.connections.per.ip.overrides",
            ));
        }
        Ok(limits)
    }

    /// A number of connections. The default is no limit.
    fn count(&self, name: &str) -> Result<usize> {
        self.number(name, i32::MAX as usize, 0, i32::MAX as usize)
    }

    fn listener_limits(&self, prefix: &str) -> Result<ListenerLimits> {
        let rate = self.number(&format!("{prefix}{CREATION_RATE}"), i32::MAX, 0, i32::MAX)?;
        Ok(ListenerLimits {
            connections_max: self.count(&format!("{prefix}{CONNECTIONS_MAX}"))?,
            creation_rate: (rate != i32::MAX).then_some(f64::from(rate)),
        })
    }

    fn listeners(&self) -> Result<HashMap<String, ListenerLimits>> {
        let mut listeners = HashMap::new();
        for name in self.0.keys() {
            let rest = name.strip_prefix(LISTENER_PREFIX).unwrap_or_default();
            for setting in [CONNECTIONS_MAX, CREATION_RATE] {
                let listener = rest.strip_suffix(setting);
                if let Some(listener) = listener.and_then(|name| name.strip_suffix('.')) {
                    let limits = self.listener_limits(&format!("{LISTENER_PREFIX}{listener}."))?;
                    listeners.insert(listener.to_owned(), limits);
                }
            }
        }
        Ok(listeners)
    }

    /// `host:count` pairs. The count holds for each address of a host.
    fn per_ip_overrides(&self) -> Result<HashMap<IpAddr, usize>> {
        let name = "max.connections.per.ip.overrides";
        let text = self.0.get(name).map_or("", |text| text.trim());
        let mut overrides = HashMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let bad = |reason| invalid(name, text, reason);
            let (host, count) = pair
                .rsplit_once(':')
                .ok_or_else(|| bad("host:count pairs, separated by commas, are needed"))?;
            let count = count.trim().parse::<u32>();
            let count = count.map_err(|_| bad("a count of connections is no whole number"))?;
            let host = host.trim().trim_start_matches('[').trim_end_matches(']');
            let found = (host, 0).to_socket_addrs();
            for address in found.map_err(|_| bad("a host in it cannot be resolved"))? {
                overrides.insert(address.ip().to_canonical(), count as usize);
            }
        }
        Ok(overrides)
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.0.get(name).map(|text| text.trim()) {
            None => Ok(default),
            Some(text) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(text) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(text) => Err(invalid(name, text, "true or false is needed")),
        }
    }

    fn rack_aware_selector(&self) -> Result<bool> {
        const NAME: &str = "replica.selector.class";
        match self.0.get(NAME).map_or("", |text| text.trim()) {
            "" | "org.apache.kafka.common.replica.LeaderSelector" => Ok(false),
            "org.apache.kafka.common.replica.RackAwareReplicaSelector" => Ok(true),
            text => Err(invalid(
                NAME,
                text,
                "RackAwareReplicaSelector and LeaderSelector of org.apache.kafka.common.replica are the only \
                 selectors",
            )),
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
            load_factor: self.number("log.cleaner.io.buffer.load.factor", default.load_factor, 0.0, 1.0)?,
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
            backoff_ms: self.number("log.cleaner.backoff.ms", default.backoff_ms, 0, i64::MAX as u64)?,
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
            // A negative number stands for ever in every unit.
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

    // If this failed, a property would be read in the wrong unit, or lose to one of lower priority.
    #[test]
    fn broker_properties_become_topic_defaults() {
        let properties_of = properties(&[
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
            ("log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308"),
        ]);
        let fixed = ServerConfig::new(&properties_of).unwrap();
        assert_eq!(fixed.connection_idle_max, None);
        assert_eq!(fixed.request_bytes_max, 104_857_600);
        let config = DynamicConfig::new(&properties_of).unwrap();
        assert_eq!(config.log_defaults.min_cleanable_dirty_ratio, 0.2);
        assert_eq!(config.log_defaults.max_compaction_lag_ms, 77);
        assert_eq!(config.cleaner.threads, 3);
        assert_eq!(config.cleaner.io_max_bytes_per_second, f64::MAX);
        assert_eq!(config.log_defaults.retention_ms, 5);
        assert_eq!(config.log_defaults.segment_ms, 3_600_000);
        assert_eq!(config.log_defaults.segment_jitter_ms, 7);
        assert_eq!(config.log_defaults.max_message_bytes, 2000);
        let topic = config.topic(&properties(&[("max.message.bytes", "9")])).unwrap();
        assert_eq!((topic.max_message_bytes, topic.retention_ms), (9, 5));
    }

    // If this failed, a listener or an address would have the limits of another.
    #[test]
    fn connection_limits_are_read_by_listener_and_address() {
        let config = DynamicConfig::new(&properties(&[
            ("max.connections", "100"),
            ("listener.name.external.max.connections", "10"),
            ("listener.name.external.max.connection.creation.rate", "7"),
            ("listener.name.other.ssl.keystore.location", "x"),
            ("max.connections.per.ip", "5"),
            ("max.connections.per.ip.overrides", "127.0.0.2:9, [::1]:8,::2:7"),
        ]));
        let limits = config.unwrap().connections;
        assert_eq!(limits.broker.connections_max, 100);
        assert_eq!(limits.broker.creation_rate, None);
        assert_eq!(limits.listeners.len(), 1);
        assert_eq!(limits.listener("OTHER"), ListenerLimits::NONE);
        let external = limits.listener("EXTERNAL");
        assert_eq!(external.connections_max, 10);
        assert_eq!(external.creation_rate, Some(7.0));
        for (ip, expected) in [("127.0.0.1", 5), ("127.0.0.2", 9), ("::1", 8), ("::2", 7)] {
            assert_eq!(limits.per_ip(ip.parse().unwrap()), expected, "{ip}");
        }
    }

    // If this failed, requests would wait for each other one by one where the longest may be very long.
    #[test]
    fn half_of_the_memory_is_not_for_the_longest_request() {
        let memory = |pairs: &[(&str, &str)]| {
            let config = ServerConfig::new(&properties(pairs)).unwrap();
            config.request_memory
        };
        assert_eq!(memory(&[]), Some(256 << 20));
        let longest = ("socket.request.max.bytes", "314572800");
        assert_eq!(memory(&[longest]), Some(600 << 20));
        let own = ("queued.max.request.bytes", "314572800");
        assert_eq!(memory(&[longest, own]), Some(300 << 20));
    }

    // If this failed, a mistyped limit would silently become the default.
    #[test]
    fn bad_values_are_named() {
        for (name, value) in [
            ("socket.request.max.bytes", "0"),
            ("queued.max.requests", "many"),
            ("num.network.threads", "0"),
            ("log.segment.bytes", "1"),
            ("log.message.timestamp.type", "Sometime"),
            ("compression.type", "none"),
            ("min.insync.replicas", "0"),
            ("replica.selector.class", "com.example.Selector"),
            ("log.cleaner.enable", "perhaps"),
            ("log.cleaner.min.cleanable.ratio", "2"),
            ("log.cleaner.dedupe.buffer.size", "47"),
            ("log.cleaner.io.max.bytes.per.second", "0"),
            ("max.connections", "-1"),
            ("listener.name.external.max.connections", "x"),
            ("listener.name.a.b.max.connection.creation.rate", "-2"),
            ("max.connections.per.ip", "0"),
            ("max.connections.per.ip.overrides", "127.0.0.1"),
            ("max.connections.per.ip.overrides", "127.0.0.1:many"),
            ("quota.window.num", "0"),
            ("queued.max.request.bytes", "100"),
        ] {
            let properties = properties(&[(name, value)]);
            let fixed = ServerConfig::new(&properties).err();
            let error = fixed.or_else(|| DynamicConfig::new(&properties).err()).unwrap();
            assert!(
                error.to_string().starts_with(&format!("{name}={value} ")),
                "{error}"
            );
        }
        assert!(
            DynamicConfig::new(&Properties::new())
                .unwrap()
                .topic(&properties(&[("segment.bytes", "x")]))
                .is_err()
        );
    }
}
