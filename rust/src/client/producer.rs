//! `ProducerCore`: the native base of `cluster.Producer`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use logcore_client::producer::{Event, NewRecord, Report, Tracked};
use logcore_client::{ClientError, Producer};
use logcore_columns::{ColumnsError, ProduceRows};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::message::{Context, Delivered, Message, OFFSET_INVALID, headers, payload};
use super::network::Network;
use super::settings::Settings;
use super::transactions::TransactionCore;
use super::{SIGNAL_SLICE, deadline, exception, is_past, kafka_error, slice};
use crate::errors::columns_error;
use crate::log::table;

/// The native base of `cluster.Producer`, whose constructor starts it.
#[pyclass(module = "logcore._native", subclass, frozen)]
pub(crate) struct ProducerCore {
    running: std::sync::OnceLock<Running>,
}

struct Running {
    producer: Producer<Context>,
    on_delivery: Option<Py<PyAny>>,
    error_cb: Option<Py<PyAny>>,
    /// Whether `error_cb` is the application's; its calls then count as events that poll() serves.
    counts_errors: bool,
    /// Rows of tables were taken: they have no reports, so `flush` raises for those that were not written.
    took_rows: AtomicBool,
}

impl ProducerCore {
    fn started(&self) -> PyResult<&Running> {
        self.running
            .get()
            .ok_or_else(|| PyRuntimeError::new_err("Producer.__init__ was not called"))
    }

    /// The producer, if it was started in this process and is not closed.
    fn running(&self, py: Python<'_>) -> PyResult<&Running> {
        let running = self.started()?;
        running.check_open(py)?;
        Ok(running)
    }
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("Producer has been closed")
}

#[pymethods]
impl ProducerCore {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            running: std::sync::OnceLock::new(),
        }
    }

    /// Starts the background thread with a checked configuration.
    fn _start(
        &self,
        py: Python<'_>,
        config: &Bound<'_, PyDict>,
        on_delivery: Option<Py<PyAny>>,
        error_cb: Option<Py<PyAny>>,
        counts_errors: bool,
    ) -> PyResult<()> {
        let settings = Settings(config);
        let producer =
            Producer::new(settings.client()?, settings.producer()?).map_err(|error| exception(py, &error))?;
        self.running
            .set(Running {
                producer,
                on_delivery,
                error_cb,
                counts_errors,
                took_rows: AtomicBool::new(false),
            })
            .map_err(|_| PyRuntimeError::new_err("the producer was started before"))
    }

    /// Takes one record; returns before it is sent.
    ///
    /// `on_delivery(error, message)` is called from poll() or flush() once the record is written or given up.
    /// Raises BufferError when the queue is full, KafkaException for a record that can never be sent.
    #[pyo3(
        signature = (topic, value=None, key=None, partition=-1, callback=None, on_delivery=None,
                     timestamp=0, headers=None),
        text_signature = "($self, topic, value=None, key=None, partition=-1, callback=None, \
                          on_delivery=None, timestamp=0, headers=None)"
    )]
    #[allow(clippy::too_many_arguments)] // confluent-kafka's signature
    fn produce(
        &self,
        py: Python<'_>,
        topic: &Bound<'_, PyString>,
        value: Option<&Bound<'_, PyAny>>,
        key: Option<&Bound<'_, PyAny>>,
        partition: i32,
        callback: Option<Py<PyAny>>,
        on_delivery: Option<Py<PyAny>>,
        timestamp: i64,
        headers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let running = self.running(py)?;
        let callback = callback.or(on_delivery);
        if let Some(callback) = &callback
            && !callback.bind(py).is_callable()
        {
            return Err(PyTypeError::new_err("on_delivery must be callable"));
        }
        let context = (callback.is_some() || running.on_delivery.is_some()).then(|| Context {
            callback,
            key: key.map(|key| key.clone().unbind()),
            value: value.map(|value| value.clone().unbind()),
            headers: headers.map(|headers| headers.clone().unbind()),
        });
        let (key, value) = (payload("key", key)?, payload("value", value)?);
        let owned = self::headers(headers)?;
        let headers: Vec<(&[u8], Option<&[u8]>)> = owned
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_deref()))
            .collect();
        let record = NewRecord {
            partition: (partition >= 0).then_some(partition),
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &headers,
            timestamp: if timestamp > 0 { timestamp } else { now_ms() },
        };
        let produced = running.producer.produce(topic.to_str()?, &record, context);
        produced.map_err(|error| match error {
            // Another thread has closed it since the check above.
            ClientError::Closed => closed(),
            error => exception(py, &error),
        })
    }

    /// Takes the rows of an Arrow table, in their order; waits while the queue is full.
    fn _produce_table(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        topic: Option<&str>,
    ) -> PyResult<usize> {
        let running = self.running(py)?;
        let (batches, _) = table::import(table, ProduceRows::check)?;
        running.took_rows.store(true, Ordering::Relaxed);
        let mut taken = 0;
        for batch in &batches {
            let rows = ProduceRows::new(batch).map_err(|error| columns_error(py, &error))?;
            taken += running.take_rows(py, &rows, topic)?;
        }
        Ok(taken)
    }

    /// Waits up to `timeout` seconds for delivery reports and calls their callbacks; returns how many events
    /// it served.
    #[pyo3(signature = (timeout=None))]
    fn poll(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<usize> {
        let running = self.running(py)?;
        let until = deadline(timeout);
        let mut outstanding = running.producer.len();
        loop {
            let wait = slice(until);
            let event = match running.producer.next_event(Duration::ZERO) {
                Some(event) => Some(event),
                None if wait.is_zero() => None,
                None => py.detach(|| running.producer.next_event(wait)),
            };
            if let Some(event) = event {
                let served = running.serve(py, event)? + running.serve_waiting(py)?;
                if served > 0 {
                    return Ok(served);
                }
            }
            py.check_signals()?;
            running.check_open(py)?;
            let left = running.producer.len();
            // The last records had no callback: nothing is left to wait for.
            if is_past(until) || (outstanding > 0 && left == 0) {
                return Ok(0);
            }
            outstanding = outstanding.max(left);
        }
    }

    /// Sends all records at once, and waits up to `timeout` seconds until each is settled and reported.
    /// Returns the number of records still open.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<usize> {
        let running = self.running(py)?;
        let until = deadline(timeout);
        running.producer.set_flushing(true);
        let result = running.flush_until(py, until);
        running.producer.set_flushing(false);
        let left = result?;
        running.raise_for_rows(py)?;
        Ok(left)
    }

    /// Drops the records that are not in flight; their reports carry _PURGE_QUEUE.
    #[pyo3(signature = (in_queue=true, in_flight=true, blocking=true))]
    fn purge(&self, py: Python<'_>, in_queue: bool, in_flight: bool, blocking: bool) -> PyResult<()> {
        // Records in flight cannot be taken back. The broker's response settles them.
        let _ = (in_flight, blocking);
        let running = self.running(py)?;
        if in_queue {
            py.detach(|| running.producer.purge());
        }
        Ok(())
    }

    /// Records still open; none after closing.
    fn __len__(&self) -> PyResult<usize> {
        let running = self.started()?;
        Ok(if running.producer.is_closed() {
            0
        } else {
            running.producer.len()
        })
    }

    fn __bool__(&self) -> bool {
        true
    }

    /// Requests beside producing, over this producer's connections. `log` is called with failures that are
    /// tried again, by the threads that wait for requests; without it they wait for `poll`.
    #[pyo3(signature = (log=None))]
    fn _network(&self, py: Python<'_>, log: Option<Py<PyAny>>) -> PyResult<Network> {
        let producer = &self.running(py)?.producer;
        Ok(Network::new(
            producer.background(),
            producer.cluster(),
            false,
            log,
        ))
    }

    /// The transactions of this producer, which has a `transactional.id`.
    fn _transactions(&self, py: Python<'_>) -> PyResult<TransactionCore> {
        Ok(TransactionCore(self.running(py)?.producer.transactions()))
    }

    /// Stops the background thread. Records still open are dropped; returns how many.
    fn _stop(&self, py: Python<'_>) -> usize {
        self.running
            .get()
            .map_or(0, |running| py.detach(|| running.producer.close()))
    }

    /// Whether `_stop` was called.
    fn _closed(&self) -> bool {
        self.running
            .get()
            .is_some_and(|running| running.producer.is_closed())
    }
}

/// Why a row was not taken.
enum RowError {
    Client(ClientError),
    Columns(ColumnsError),
    NoTopic,
}

/// Takes the rows from `next` on, which is the first that was not taken.
fn append_rows(
    producer: &Producer<Context>,
    rows: &ProduceRows<'_>,
    next: &mut usize,
    topic: Option<&str>,
    now: i64,
) -> Result<(), RowError> {
    let mut headers = Vec::new();
    while *next < rows.len() {
        let row = rows.record(*next, &mut headers).map_err(RowError::Columns)?;
        let topic = topic.or_else(|| rows.topic(*next)).ok_or(RowError::NoTopic)?;
        let record = NewRecord {
            partition: rows.partition(*next),
            key: row.key,
            value: row.value,
            headers: &headers,
            timestamp: row.timestamp.unwrap_or(now),
        };
        producer.produce(topic, &record, None).map_err(RowError::Client)?;
        *next += 1;
    }
    Ok(())
}

fn now_ms() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| {
        i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
    })
}

impl Running {
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        if self.producer.is_closed() {
            return Err(closed());
        }
        let unforked = self.producer.background().fork_guard().check();
        unforked.map_err(|error| exception(py, &error))
    }

    fn flush_until(&self, py: Python<'_>, until: Option<Instant>) -> PyResult<usize> {
        loop {
            self.serve_waiting(py)?;
            let left = self.producer.len();
            if left == 0 || is_past(until) {
                return Ok(left);
            }
            // If a callback or another thread has closed it, nothing settles the rest.
            self.check_open(py)?;
            let wait = slice(until);
            py.detach(|| self.producer.wait_settled(wait));
            py.check_signals()?;
        }
    }

    /// Takes every row; waits while the queue is full.
    fn take_rows(&self, py: Python<'_>, rows: &ProduceRows<'_>, topic: Option<&str>) -> PyResult<usize> {
        let now = now_ms();
        let mut next = 0;
        loop {
            self.raise_for_rows(py)?;
            match py.detach(|| append_rows(&self.producer, rows, &mut next, topic, now)) {
                Ok(()) => return Ok(rows.len()),
                Err(RowError::Client(ClientError::QueueFull { .. })) if !self.producer.is_empty() => {
                    self.serve_waiting(py)?;
                    py.detach(|| self.producer.wait_settled(SIGNAL_SLICE));
                    py.check_signals()?;
                    self.check_open(py)?;
                }
                Err(RowError::Client(error)) => return Err(exception(py, &error)),
                Err(RowError::Columns(error)) => return Err(columns_error(py, &error)),
                Err(RowError::NoTopic) => {
                    return Err(PyValueError::new_err(format!(
                        "row {next} names no topic: pass one, or fill the column topic"
                    )));
                }
            }
        }
    }

    /// Raises when rows of tables were not written.
    fn raise_for_rows(&self, py: Python<'_>) -> PyResult<()> {
        if !self.took_rows.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.producer.take_failures().first {
            Some(error) => Err(exception(py, &error)),
            None => Ok(()),
        }
    }

    /// Serves the events that wait.
    fn serve_waiting(&self, py: Python<'_>) -> PyResult<usize> {
        let mut served = 0;
        while let Some(event) = self.producer.next_event(Duration::ZERO) {
            served += self.serve(py, event)?;
        }
        Ok(served)
    }

    fn serve(&self, py: Python<'_>, event: Event<Context>) -> PyResult<usize> {
        match event {
            Event::Report(report) => self.report(py, report),
            Event::Error(error) => {
                if let Some(error_cb) = &self.error_cb {
                    error_cb.call1(py, (kafka_error(py, &error)?,))?;
                }
                Ok(usize::from(self.counts_errors))
            }
        }
    }

    /// Calls the callbacks of one batch's records. After one that raises, the next poll calls the rest.
    fn report(&self, py: Python<'_>, mut report: Report<Context>) -> PyResult<usize> {
        let error = report
            .error
            .as_ref()
            .map(|error| kafka_error(py, error))
            .transpose()?;
        let topic = PyString::new(py, &report.topic).unbind();
        let latency = report.begun.elapsed().as_secs_f64();
        let mut served = 0;
        while let Some(Tracked {
            index,
            timestamp,
            context,
        }) = report.records.next()
        {
            let offset = if report.base_offset >= 0 {
                report.base_offset + i64::from(index)
            } else {
                OFFSET_INVALID
            };
            let append_time = report.append_time >= 0;
            let message = Message::delivered(Delivered {
                topic: topic.clone_ref(py),
                partition: report.partition,
                offset,
                timestamp: if append_time {
                    report.append_time
                } else {
                    timestamp
                },
                append_time,
                key: context.key,
                value: context.value,
                headers: context.headers,
                error: error.as_ref().map(|error| error.clone_ref(py)),
                latency,
            });
            let callback = context.callback.as_ref().or(self.on_delivery.as_ref());
            let error = error.as_ref().map(|error| error.clone_ref(py));
            let called = callback
                .map(|callback| callback.call1(py, (error, message.into_object(py)?)))
                .transpose();
            if let Err(failure) = called {
                if report.records.len() > 0 {
                    self.producer.put_back(report);
                }
                return Err(failure);
            }
            served += 1;
        }
        Ok(served)
    }
}
