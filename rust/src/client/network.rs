//! `Network`: requests of any API over a client's connections, and the cluster's metadata.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use logcore_client::metadata::Metadata;
use logcore_client::offsets::list_offsets;
use logcore_client::{Background, Cluster, Purpose, Reporter, Target};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::settings::Settings;
use super::{SIGNAL_SLICE, exception, kafka_error};

/// (topic, partition, offset, timestamp, leader epoch, KafkaError or None)
type Listed = (String, i32, i64, i64, i32, Option<Py<PyAny>>);

/// Requests of any API. Made from a producer or consumer, it shares their connections.
#[pyclass(module = "logcore._native", frozen)]
pub(crate) struct Network {
    background: Arc<Background>,
    cluster: Arc<Cluster>,
    read_committed: bool,
    /// Called with each report while a request waits. With `None`, the application takes the reports itself.
    log: Option<Py<PyAny>>,
}

impl Network {
    pub(crate) fn new(
        background: &Arc<Background>,
        cluster: &Arc<Cluster>,
        read_committed: bool,
        log: Option<Py<PyAny>>,
    ) -> Self {
        Self {
            background: Arc::clone(background),
            cluster: Arc::clone(cluster),
            read_committed,
            log,
        }
    }
}

/// -1 is any broker, -2 the controller.
fn target(broker: i32) -> Target {
    match broker {
        -1 => Target::Any,
        -2 => Target::Controller,
        id => Target::Broker(id),
    }
}

fn purpose(name: &str) -> PyResult<Purpose> {
    match name {
        "general" => Ok(Purpose::General),
        "group" => Ok(Purpose::Group),
        _ => Err(PyValueError::new_err(format!(
            "a connection is general or group, not {name:?}"
        ))),
    }
}

fn timeout(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.001)).unwrap_or(Duration::from_secs(u32::MAX.into()))
}

#[pymethods]
impl Network {
    /// A network of its own, for administration. `log` is called with failures that are tried again, by the
    /// threads that wait for requests.
    #[new]
    #[pyo3(signature = (config, log=None))]
    fn create(py: Python<'_>, config: &Bound<'_, PyDict>, log: Option<Py<PyAny>>) -> PyResult<Self> {
        let config = Settings(config).client()?;
        let background = Background::start("logcore-admin").map_err(|error| exception(py, &error))?;
        let background = Arc::new(background);
        let cluster = Arc::new(Cluster::new(config, Arc::new(Reporter::new(|| {}))));
        background.spawn(Arc::clone(&cluster).keep_fresh());
        Ok(Self {
            background,
            cluster,
            read_committed: false,
            log,
        })
    }

    /// The failures that are tried again and were not reported yet.
    fn take_errors(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let mut errors = Vec::new();
        while let Some(error) = self.cluster.reporter().next() {
            errors.push(kafka_error(py, &error)?);
        }
        Ok(errors)
    }

    /// Sends an encoded request body and returns the response's body.
    #[pyo3(signature = (api_key, version, body, *, broker=-1, purpose="general", timeout=60.0),
           text_signature = "($self, api_key, version, body, *, broker=-1, purpose='general', timeout=60.0)")]
    #[allow(clippy::too_many_arguments)] // keyword arguments
    fn request<'py>(
        &self,
        py: Python<'py>,
        api_key: i16,
        version: i16,
        body: &[u8],
        broker: i32,
        purpose: &str,
        timeout: f64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (cluster, body) = (Arc::clone(&self.cluster), Bytes::copy_from_slice(body));
        let (target, purpose, timeout) = (target(broker), self::purpose(purpose)?, self::timeout(timeout));
        let answer = self.run(py, async move {
            cluster
                .raw_request(target, purpose, api_key, version, &body, timeout)
                .await
        })?;
        Ok(PyBytes::new(py, &answer))
    }

    /// The versions of an API that a broker serves, or None.
    #[pyo3(signature = (api_key, *, broker=-1, purpose="general", timeout=60.0),
           text_signature = "($self, api_key, *, broker=-1, purpose='general', timeout=60.0)")]
    fn versions(
        &self,
        py: Python<'_>,
        api_key: i16,
        broker: i32,
        purpose: &str,
        timeout: f64,
    ) -> PyResult<Option<(i16, i16)>> {
        let cluster = Arc::clone(&self.cluster);
        let (target, purpose, timeout) = (target(broker), self::purpose(purpose)?, self::timeout(timeout));
        self.run(py, async move {
            cluster.served(target, purpose, api_key, timeout).await
        })
    }

    /// Fresh metadata as a dict; `topics` None asks about all. Tried again until the timeout.
    #[pyo3(signature = (topics, *, create=false, timeout=60.0))]
    fn metadata<'py>(
        &self,
        py: Python<'py>,
        topics: Option<Vec<String>>,
        create: bool,
        timeout: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let cluster = Arc::clone(&self.cluster);
        let timeout = self::timeout(timeout);
        let topics: Option<Vec<Arc<str>>> = topics.map(|topics| topics.into_iter().map(Arc::from).collect());
        let fresh = self.run(py, async move {
            cluster.refresh_within(topics.as_deref(), create, timeout).await
        })?;
        metadata_dict(py, &fresh)
    }

    /// Offsets by timestamp of (topic, partition, timestamp) triples. Timestamps are in milliseconds; -1 is
    /// the end, -2 the beginning, -3 the record with the latest time. `read_committed`: the end is the last
    /// stable offset. None means the client's own setting.
    #[pyo3(signature = (questions, *, timeout=60.0, read_committed=None))]
    fn list_offsets(
        &self,
        py: Python<'_>,
        questions: Vec<(String, i32, i64)>,
        timeout: f64,
        read_committed: Option<bool>,
    ) -> PyResult<Vec<Listed>> {
        let cluster = Arc::clone(&self.cluster);
        let read_committed = read_committed.unwrap_or(self.read_committed);
        let timeout = self::timeout(timeout);
        let asked = questions
            .into_iter()
            .map(|(topic, partition, timestamp)| ((Arc::from(topic), partition), timestamp))
            .collect();
        let answers = self.run(py, async move {
            Ok(list_offsets(&cluster, asked, read_committed, timeout).await)
        })?;
        let mut listed = Vec::with_capacity(answers.len());
        for ((topic, partition), answer) in answers {
            listed.push(match answer {
                Ok(found) => (
                    topic.to_string(),
                    partition,
                    found.offset,
                    found.timestamp,
                    found.leader_epoch,
                    None,
                ),
                Err(error) => {
                    let error = kafka_error(py, &error)?;
                    (topic.to_string(), partition, -1001, -1, -1, Some(error))
                }
            });
        }
        Ok(listed)
    }

    /// Stops the background thread; requests under way fail.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.background.stop());
    }
}

impl Network {
    fn run<T, F>(&self, py: Python<'_>, task: F) -> PyResult<T>
    where
        T: Send + 'static,
        F: Future<Output = logcore_client::Result<T>> + Send + 'static,
    {
        let mut waiter = self.background.run(task).map_err(|error| exception(py, &error))?;
        loop {
            let waited = py.detach(|| waiter.wait(SIGNAL_SLICE));
            if let Some(log) = &self.log {
                for error in self.take_errors(py)? {
                    log.call1(py, (error,))?;
                }
            }
            match waited.map_err(|error| exception(py, &error))? {
                Some(result) => return result.map_err(|error| exception(py, &error)),
                None => py.check_signals()?,
            }
        }
    }
}

fn metadata_dict<'py>(py: Python<'py>, metadata: &Metadata) -> PyResult<Bound<'py, PyDict>> {
    let brokers = PyDict::new(py);
    for broker in &metadata.brokers {
        brokers.set_item(broker.id, (&broker.host, broker.port))?;
    }
    let topics = PyDict::new(py);
    for topic in metadata.topics.values() {
        let partitions = PyList::empty(py);
        for partition in &topic.partitions {
            partitions.append((
                partition.id,
                partition.error,
                partition.leader,
                partition.leader_epoch,
                &partition.replicas,
                &partition.isr,
            ))?;
        }
        let id = topic.id.map(|id| PyBytes::new(py, &id));
        topics.set_item(&*topic.name, (topic.error, topic.internal, partitions, id))?;
    }
    let dict = PyDict::new(py);
    dict.set_item("cluster_id", metadata.cluster_id.as_deref())?;
    dict.set_item("controller", metadata.controller)?;
    dict.set_item("brokers", brokers)?;
    dict.set_item("topics", topics)?;
    Ok(dict)
}
