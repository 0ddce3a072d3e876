//! `ConsumerCore`: the data path under `cluster.Consumer`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use logcore_client::ClientError;
use logcore_client::Consumer;
use logcore_client::consumer::{Event, Item, Start};
use logcore_client::error::local;
use logcore_client::offsets::PartitionKey;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::message::{Message, OFFSET_INVALID};
use super::network::Network;
use super::settings::Settings;
use super::{ERROR_TYPES, deadline, exception, is_past, kafka_error, slice};

/// confluent-kafka's logical offsets.
const OFFSET_BEGINNING: i64 = -2;
const OFFSET_END: i64 = -1;
const OFFSET_STORED: i64 = -1000;

/// (position, stored offset, stored leader epoch, log start, high watermark); -1001 and -1 where unknown.
type Progress = (i64, i64, i32, i64, i64);

/// See the module.
#[pyclass(module = "logcore._native", frozen)]
pub(crate) struct ConsumerCore {
    consumer: Consumer,
    error_cb: Option<Py<PyAny>>,
    interrupted: AtomicBool,
}

fn key(topic: &str, partition: i32) -> PartitionKey {
    (Arc::from(topic), partition)
}

/// Any other negative offset means that there is no committed one.
fn start(offset: i64) -> Start {
    match offset {
        OFFSET_BEGINNING => Start::Beginning,
        OFFSET_END => Start::End,
        OFFSET_STORED => Start::Unknown,
        offset if offset >= 0 => Start::Offset(offset),
        _ => Start::Reset,
    }
}

#[pymethods]
impl ConsumerCore {
    #[new]
    fn new(py: Python<'_>, config: &Bound<'_, PyDict>, error_cb: Option<Py<PyAny>>) -> PyResult<Self> {
        let settings = Settings(config);
        let consumer =
            Consumer::new(settings.client()?, settings.consumer()?).map_err(|error| exception(py, &error))?;
        Ok(Self {
            consumer,
            error_cb,
            interrupted: AtomicBool::new(false),
        })
    }

    /// One message, or None after `timeout` seconds or when interrupted.
    #[pyo3(signature = (timeout=None))]
    fn poll(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<Message>>> {
        let until = deadline(timeout);
        loop {
            let items = self.take(py, 1, slice(until))?;
            for item in items {
                if let Some(message) = self.convert(py, item, &mut HashMap::new())? {
                    return Ok(Some(Py::new(py, message)?));
                }
            }
            if is_past(until) || self.interrupted.swap(false, Ordering::AcqRel) {
                return Ok(None);
            }
        }
    }

    /// Up to `max` messages: as many as come within `timeout` seconds.
    fn consume<'py>(
        &self,
        py: Python<'py>,
        max: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let until = deadline(timeout);
        let list = PyList::empty(py);
        let mut names = HashMap::new();
        while list.len() < max {
            for item in self.take(py, max - list.len(), slice(until))? {
                if let Some(message) = self.convert(py, item, &mut names)? {
                    list.append(Py::new(py, message)?)?;
                }
            }
            if is_past(until) || self.interrupted.swap(false, Ordering::AcqRel) {
                break;
            }
        }
        Ok(list)
    }

    /// Makes a waiting or the next poll() or consume() return early.
    fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Release);
        self.consumer.interrupt();
    }

    /// Adds (topic, partition, offset) triples. Offsets: -2 the beginning, -1 the end, -1000 not known yet (`seek`
    /// begins), other negatives as auto.offset.reset says.
    fn assign(&self, partitions: Vec<(String, i32, i64)>) {
        let partitions = partitions.into_iter();
        self.consumer.assign(
            partitions
                .map(|(topic, partition, offset)| (key(&topic, partition), start(offset)))
                .collect(),
        );
    }

    /// Removes partitions; None removes all.
    fn unassign(&self, partitions: Option<Vec<(String, i32)>>) {
        match partitions {
            None => self.consumer.unassign_all(),
            Some(partitions) => {
                let keys: Vec<PartitionKey> = partitions
                    .iter()
                    .map(|(topic, partition)| key(topic, *partition))
                    .collect();
                self.consumer.unassign(&keys);
            }
        }
    }

    /// False when the partition is not assigned.
    fn seek(&self, topic: &str, partition: i32, offset: i64) -> bool {
        self.consumer.seek(&key(topic, partition), start(offset))
    }

    /// False when the partition is not assigned.
    fn set_paused(&self, topic: &str, partition: i32, paused: bool) -> bool {
        self.consumer.set_paused(&key(topic, partition), paused)
    }

    /// How far a partition has come, or None when it is not assigned.
    fn progress(&self, topic: &str, partition: i32) -> Option<Progress> {
        let progress = self.consumer.progress(&key(topic, partition))?;
        let (stored, epoch) = progress.stored.unwrap_or((OFFSET_INVALID, -1));
        let position = progress.position.unwrap_or(OFFSET_INVALID);
        Some((
            position,
            stored,
            epoch,
            progress.log_start,
            progress.high_watermark,
        ))
    }

    /// Sets the offset to commit; false when the partition is not assigned.
    fn store(&self, topic: &str, partition: i32, offset: i64, leader_epoch: i32) -> bool {
        self.consumer.store(&key(topic, partition), offset, leader_epoch)
    }

    /// (topic, partition, offset, leader epoch) of every partition with an offset to commit.
    fn stored(&self) -> Vec<(String, i32, i64, i32)> {
        let stored = self.consumer.stored().into_iter();
        stored
            .map(|((topic, partition), offset, epoch)| (topic.to_string(), partition, offset, epoch))
            .collect()
    }

    /// Requests beside fetching, over this consumer's connections. `log` is called with failures that are tried again,
    /// by the threads that wait for requests; without it they wait for `poll`.
    #[pyo3(signature = (log=None))]
    fn network(&self, log: Option<Py<PyAny>>) -> Network {
        let consumer = &self.consumer;
        Network::new(
            consumer.background(),
            consumer.cluster(),
            consumer.read_committed(),
            log,
        )
    }

    /// Stops the background thread.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.consumer.close());
    }
}

impl ConsumerCore {
    /// What is there; waits a slice without the GIL when nothing is.
    fn take(&self, py: Python<'_>, max: usize, slice: Duration) -> PyResult<Vec<Item>> {
        self.consumer
            .background()
            .fork_guard()
            .check()
            .map_err(|error| exception(py, &error))?;
        if max == 1 {
            let items = self.consumer.take(1, Duration::ZERO);
            if !items.is_empty() || slice.is_zero() || self.interrupted.load(Ordering::Acquire) {
                return Ok(items);
            }
        }
        let items = py.detach(|| {
            let slice = if self.interrupted.load(Ordering::Acquire) {
                Duration::ZERO
            } else {
                slice
            };
            self.consumer.take(max, slice)
        });
        if items.is_empty() {
            py.check_signals()?;
        }
        Ok(items)
    }

    /// The message for an item; `None` for errors that went to error_cb.
    fn convert(
        &self,
        py: Python<'_>,
        item: Item,
        names: &mut HashMap<usize, Py<PyString>>,
    ) -> PyResult<Option<Message>> {
        match item {
            Item::Message(message) => {
                // Messages of a batch share their topic's name; its address tells whose it is.
                let address = Arc::as_ptr(&message.shelf.topic).cast::<u8>() as usize;
                let name = names
                    .entry(address)
                    .or_insert_with(|| PyString::intern(py, &message.shelf.topic).unbind())
                    .clone_ref(py);
                Ok(Some(Message::consumed(message, name)))
            }
            Item::Event(Event::End((topic, partition), offset)) => {
                let error = end_of_partition(py, &topic, partition, offset)?;
                Ok(Some(Message::event(py, &topic, partition, offset, error)))
            }
            Item::Event(Event::Failed((topic, partition), error)) => {
                let error = kafka_error(py, &error)?;
                Ok(Some(Message::event(py, &topic, partition, OFFSET_INVALID, error)))
            }
            Item::Error(error) => {
                self.report(py, &error)?;
                Ok(None)
            }
        }
    }

    fn report(&self, py: Python<'_>, error: &ClientError) -> PyResult<()> {
        if let Some(error_cb) = &self.error_cb {
            error_cb.call1(py, (kafka_error(py, error)?,))?;
        }
        Ok(())
    }
}

fn end_of_partition(py: Python<'_>, topic: &str, partition: i32, offset: i64) -> PyResult<Py<PyAny>> {
    let text = format!("{topic}-{partition}: the end is reached at offset {offset}");
    match ERROR_TYPES.get(py) {
        Some((class, _)) => class.call1(py, (local::PARTITION_EOF, text)),
        None => Err(pyo3::exceptions::PyRuntimeError::new_err(
            "cluster.client is not imported",
        )),
    }
}
