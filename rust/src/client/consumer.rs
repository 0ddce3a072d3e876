//! `ConsumerCore`: the data path under `cluster.Consumer`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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

/// The native part of `cluster.Consumer`.
#[pyclass(module = "logcore._native", frozen)]
pub(crate) struct ConsumerCore {
    consumer: Consumer,
    error_cb: Option<Py<PyAny>>,
    interrupted: AtomicBool,
    /// The topic of the last message, with its name.
    last_topic: Mutex<Option<(Arc<str>, Py<PyString>)>>,
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
            last_topic: Mutex::new(None),
        })
    }

    /// One message, or None after `timeout` seconds or when interrupted.
    #[pyo3(signature = (timeout=None))]
    fn poll(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<Message>>> {
        let until = deadline(timeout);
        loop {
            if let Some(item) = self.report_and_take(py, 1, slice(until))?.pop() {
                return self.convert(py, item)?.into_object(py).map(Some);
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
        let mut items = Vec::new();
        while items.len() < max {
            let taken = if items.is_empty() {
                self.report_and_take(py, max, slice(until))
            } else if self.consumer.cluster().reporter().is_empty() {
                self.take(py, max - items.len(), slice(until))
            } else {
                // error_cb may raise, and the messages would be lost; the next call runs it.
                break;
            };
            match taken {
                Ok(more) => items.extend(more),
                Err(error) => {
                    // A signal handler raised. The next call returns what this one would have.
                    self.consumer.give_back(items);
                    return Err(error);
                }
            }
            if is_past(until) || self.interrupted.swap(false, Ordering::AcqRel) {
                break;
            }
        }
        let mut messages = Vec::with_capacity(items.len());
        for item in items {
            messages.push(self.convert(py, item)?.into_object(py)?);
        }
        PyList::new(py, messages)
    }

    /// Makes a waiting or the next poll() or consume() return early.
    fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Release);
        self.consumer.interrupt();
    }

    /// Adds (topic, partition, offset) triples. Offsets: -2 the beginning, -1 the end, -1000 not known yet
    /// (`seek` begins), other negatives as auto.offset.reset says.
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

    /// The position of a partition, or None when it is not assigned.
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

    /// Requests beside fetching, over this consumer's connections. `log` is called with failures that are
    /// tried again, by the threads that wait for requests; without it they wait for `poll`.
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
    /// Up to `max` items. Waits one slice without the GIL for the first.
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

    fn convert(&self, py: Python<'_>, item: Item) -> PyResult<Message> {
        match item {
            Item::Message(message) => {
                let name = self.topic_name(py, &message.batch.topic);
                Ok(Message::consumed(message, name))
            }
            Item::Event(Event::End((topic, partition), offset)) => {
                let error = end_of_partition(py, &topic, partition, offset)?;
                Ok(Message::event(py, &topic, partition, offset, error))
            }
            Item::Event(Event::Failed((topic, partition), error)) => {
                let error = kafka_error(py, &error)?;
                Ok(Message::event(py, &topic, partition, OFFSET_INVALID, error))
            }
        }
    }

    /// A topic's name as Python's string, which consecutive messages share.
    fn topic_name(&self, py: Python<'_>, topic: &Arc<str>) -> Py<PyString> {
        let mut last = self.last_topic.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((known, name)) if Arc::ptr_eq(known, topic) => name.clone_ref(py),
            _ => {
                let name = PyString::intern(py, topic).unbind();
                *last = Some((Arc::clone(topic), name.clone_ref(py)));
                name
            }
        }
    }

    /// Calls error_cb with the failures that are tried again, then takes items. A report that comes before an
    /// item is told before it.
    fn report_and_take(&self, py: Python<'_>, max: usize, slice: Duration) -> PyResult<Vec<Item>> {
        loop {
            self.report_errors(py)?;
            let items = self.take(py, max, slice)?;
            if items.is_empty() || self.consumer.cluster().reporter().is_empty() {
                return Ok(items);
            }
            self.consumer.give_back(items);
        }
    }

    /// Calls error_cb with the failures that are tried again.
    fn report_errors(&self, py: Python<'_>) -> PyResult<()> {
        while let Some(error) = self.consumer.cluster().reporter().next() {
            if let Some(error_cb) = &self.error_cb {
                error_cb.call1(py, (kafka_error(py, &error)?,))?;
            }
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
