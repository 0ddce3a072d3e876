//! From the checked configuration dict (Kafka's property names, typed values) to the client crate's settings.
//!
//! `cluster.client._config` has parsed and checked every value; a missing one means the crate's default.

use std::time::Duration;

use logcore_client::partitioner::Partitioner;
use logcore_client::{ClientConfig, ConsumerConfig, OffsetReset, ProducerConfig};
use logcore_records::Compression;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The configuration dict.
pub(crate) struct Settings<'a, 'py>(pub(crate) &'a Bound<'py, PyDict>);

impl Settings<'_, '_> {
    fn number<T: TryFrom<i64>>(&self, name: &str, slot: &mut T) -> PyResult<()> {
        if let Some(item) = self.0.get_item(name)? {
            let value: i64 = item.extract()?;
            *slot = T::try_from(value)
                .map_err(|_| PyValueError::new_err(format!("{name}={value} is out of range")))?;
        }
        Ok(())
    }

    fn millis(&self, name: &str, slot: &mut Duration) -> PyResult<()> {
        if let Some(item) = self.0.get_item(name)? {
            let value: f64 = item.extract()?;
            *slot = Duration::try_from_secs_f64(value / 1000.0)
                .map_err(|_| PyValueError::new_err(format!("{name}={value} is out of range")))?;
        }
        Ok(())
    }

    fn flag(&self, name: &str, slot: &mut bool) -> PyResult<()> {
        if let Some(item) = self.0.get_item(name)? {
            *slot = item.extract()?;
        }
        Ok(())
    }

    fn kilobytes(&self, name: &str, slot: &mut usize) -> PyResult<()> {
        let mut kilobytes = *slot / 1024;
        self.number(name, &mut kilobytes)?;
        *slot = kilobytes.saturating_mul(1024);
        Ok(())
    }

    /// The settings of every client.
    pub(crate) fn client(&self) -> PyResult<ClientConfig> {
        let mut config = ClientConfig::default();
        if let Some(item) = self.0.get_item("bootstrap.servers")? {
            config.bootstrap = item.extract()?;
        }
        if let Some(item) = self.0.get_item("client.id")? {
            config.client_id = item.extract()?;
        }
        self.millis("socket.timeout.ms", &mut config.request_timeout)?;
        self.millis("socket.connection.setup.timeout.ms", &mut config.connect_timeout)?;
        self.millis("reconnect.backoff.ms", &mut config.reconnect_backoff)?;
        self.millis("reconnect.backoff.max.ms", &mut config.reconnect_backoff_max)?;
        self.millis("retry.backoff.ms", &mut config.retry_backoff)?;
        self.number("receive.message.max.bytes", &mut config.receive_bytes_max)?;
        self.millis("topic.metadata.refresh.interval.ms", &mut config.metadata_refresh)?;
        self.millis("topic.metadata.propagation.max.ms", &mut config.topic_propagation)?;
        self.flag("allow.auto.create.topics", &mut config.allow_auto_create)?;
        Ok(config)
    }

    /// The other settings of a producer.
    pub(crate) fn producer(&self) -> PyResult<ProducerConfig> {
        let mut config = ProducerConfig::default();
        self.number("acks", &mut config.acks)?;
        self.flag("enable.idempotence", &mut config.idempotence)?;
        self.millis("linger.ms", &mut config.linger)?;
        self.number("batch.size", &mut config.batch_bytes)?;
        self.number("batch.num.messages", &mut config.batch_messages)?;
        self.number("queue.buffering.max.messages", &mut config.queue_messages_max)?;
        self.kilobytes("queue.buffering.max.kbytes", &mut config.queue_bytes_max)?;
        self.number("message.max.bytes", &mut config.message_bytes_max)?;
        self.number("retries", &mut config.retries)?;
        self.number("max.in.flight", &mut config.in_flight_max)?;
        self.millis("delivery.timeout.ms", &mut config.delivery_timeout)?;
        self.millis("request.timeout.ms", &mut config.ack_timeout)?;
        self.millis("sticky.partitioning.linger.ms", &mut config.sticky_linger)?;
        config.compression_level = match self.0.get_item("compression.level")? {
            Some(item) => item.extract()?,
            None => None,
        };
        if let Some(item) = self.0.get_item("transactional.id")? {
            config.transactional_id = Some(item.extract()?);
        }
        if let Some(item) = self.0.get_item("compression.type")? {
            let name: String = item.extract()?;
            config.compression = compression(&name)?;
        }
        if let Some(item) = self.0.get_item("partitioner")? {
            let name: String = item.extract()?;
            config.partitioner = Partitioner::from_name(&name)
                .ok_or_else(|| PyValueError::new_err(format!("no partitioner is named {name:?}")))?;
        }
        Ok(config)
    }

    /// The other settings of a consumer.
    pub(crate) fn consumer(&self) -> PyResult<ConsumerConfig> {
        let mut config = ConsumerConfig::default();
        if let Some(item) = self.0.get_item("client.rack")? {
            config.rack = item.extract()?;
        }
        self.number("fetch.min.bytes", &mut config.fetch_bytes_min)?;
        self.number("fetch.max.bytes", &mut config.fetch_bytes_max)?;
        self.millis("fetch.wait.max.ms", &mut config.fetch_wait)?;
        self.number("max.partition.fetch.bytes", &mut config.partition_bytes_max)?;
        self.kilobytes("queued.max.messages.kbytes", &mut config.queued_bytes_max)?;
        self.millis("fetch.error.backoff.ms", &mut config.error_backoff)?;
        self.flag("enable.partition.eof", &mut config.partition_eof)?;
        self.flag("check.crcs", &mut config.check_crcs)?;
        self.flag("enable.auto.offset.store", &mut config.auto_store)?;
        if let Some(item) = self.0.get_item("isolation.level")? {
            config.read_committed = item.extract::<String>()? == "read_committed";
        }
        if let Some(item) = self.0.get_item("auto.offset.reset")? {
            config.offset_reset = match item.extract::<String>()?.as_str() {
                "earliest" => OffsetReset::Earliest,
                "latest" => OffsetReset::Latest,
                _ => OffsetReset::Error,
            };
        }
        Ok(config)
    }
}

fn compression(name: &str) -> PyResult<Compression> {
    let all = [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];
    all.into_iter()
        .find(|codec| codec.name() == name)
        .ok_or_else(|| PyValueError::new_err(format!("no compression is named {name:?}")))
}
