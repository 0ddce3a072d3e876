//! Binding of the `server` crate: the broker's data plane for Python.
//!
//! Calls that may block release the GIL. Requests cross as [`PyRequest`] objects. A request that is dropped
//! without a response closes its connection, so no client waits for a handler that failed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use logcore_protocol::{Direction, ErrorCode, schema};
use logcore_server::{
    AnsweredBy, Api, BrokerAddress, ClientQuota, ControlRequest, Features, ListenerSpec, PartitionSpec,
    Properties, Replica, Server, ServerError as CoreError, ServerOptions, WaitsFor,
};
use logcore_storage::LoadProgress;
use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyString};

use crate::codec::{api_schema, protocol_error, py_to_value, value_to_py};
use crate::measurements::PyMeasurements;
use crate::server_admin;
use crate::server_errors::{self, server_error};
use crate::tls::PyListenerTls;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    server_errors::register(module)?;
    module.add_class::<PyLoadProgress>()?;
    module.add_class::<PyServer>()?;
    module.add_class::<PyRequest>()?;
    module.add_function(wrap_pyfunction!(apis, module)?)?;
    Ok(())
}

/// The table of APIs: key, name, first and last version, whether Rust answers, whether the handler may wait
/// for others.
#[pyfunction]
fn apis() -> Vec<(i16, &'static str, i16, i16, bool, bool)> {
    let row = |api: &Api| {
        let native = api.answered_by == AnsweredBy::Rust;
        let waits = api.waits_for != WaitsFor::Nothing;
        (api.key, api.name, api.first, api.last, native, waits)
    };
    logcore_server::apis().iter().map(row).collect()
}

/// Runs without the GIL. An error of the crate becomes an exception.
fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, CoreError> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| server_error(py, error))
}

/// Settings as text: Kafka writes booleans in lower case.
fn properties(config: &Bound<'_, PyDict>) -> PyResult<Properties> {
    let mut properties = Properties::new();
    for (name, value) in config {
        let text = if let Ok(flag) = value.cast::<PyBool>() {
            if flag.is_true() { "true" } else { "false" }.to_owned()
        } else if value.is_instance_of::<PyInt>() || value.is_instance_of::<PyString>() {
            value.str()?.to_string()
        } else {
            let kind = value.get_type();
            return Err(PyTypeError::new_err(format!(
                "{name}: a setting is a str, an int or a bool, not a {}",
                kind.name()?
            )));
        };
        properties.insert(name.extract()?, text);
    }
    Ok(properties)
}

fn topic_id(bytes: &[u8]) -> PyResult<[u8; 16]> {
    bytes
        .try_into()
        .map_err(|_| PyValueError::new_err(format!("a topic id is 16 bytes, found {} bytes", bytes.len())))
}

/// The id of a broker with a replica, its rack, and the names of its listeners.
type PyReplica = (i32, Option<String>, Vec<String>);

/// The attributes of `cluster.controller.PartitionSpec`.
#[derive(FromPyObject)]
struct PySpec<'py> {
    topic: String,
    topic_id: PyBackedBytes,
    partition: i32,
    leader_epoch: i32,
    leader_id: i32,
    config: Bound<'py, PyDict>,
    new: bool,
    replicas: Vec<PyReplica>,
    isr: Vec<i32>,
    #[pyo3(default = -1)]
    partition_epoch: i32,
}

impl PySpec<'_> {
    fn into_core(self) -> PyResult<PartitionSpec> {
        let replica = |(id, rack, listeners)| Replica {
            id,
            rack,
            listeners,
            in_sync: self.isr.contains(&id),
        };
        Ok(PartitionSpec {
            topic: self.topic,
            topic_id: topic_id(&self.topic_id)?,
            partition: self.partition,
            leader_epoch: self.leader_epoch,
            leader_id: self.leader_id,
            partition_epoch: self.partition_epoch,
            replicas: self.replicas.into_iter().map(replica).collect(),
            config: properties(&self.config)?,
            new: self.new,
        })
    }
}

/// The progress of opening a server. Any thread may read it while another one opens the server.
#[pyclass(frozen, name = "LoadProgress", module = "logcore._native")]
struct PyLoadProgress(Arc<LoadProgress>);

#[pymethods]
impl PyLoadProgress {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    #[getter]
    fn logs_done(&self) -> u64 {
        self.0.logs_done()
    }

    #[getter]
    fn logs_total(&self) -> u64 {
        self.0.logs_total()
    }

    #[getter]
    fn bytes_checked(&self) -> u64 {
        self.0.bytes_checked()
    }

    #[getter]
    fn bytes_total(&self) -> u64 {
        self.0.bytes_total()
    }
}

/// Topic, partition, leader's epoch, broker and kind of a fact about a follower.
type PyReplicaFact = (String, i32, i32, i32, &'static str);

/// Number, transactional id, producer (id and epoch) and partition (topic and index) of a question.
type PyQuestion = (u64, String, (i64, i16), (String, i32), bool);

/// User, client id and values of a client quota.
type PyClientQuota = (Option<String>, Option<String>, HashMap<String, f64>);

#[pyclass(frozen, name = "Server", module = "logcore._native")]
struct PyServer(Server);

#[pymethods]
impl PyServer {
    #[new]
    #[pyo3(signature = (*, node_id, cluster_id, log_dirs, config, progress = None))]
    fn new(
        py: Python<'_>,
        node_id: i32,
        cluster_id: String,
        log_dirs: Vec<String>,
        config: &Bound<'_, PyDict>,
        progress: Option<PyRef<'_, PyLoadProgress>>,
    ) -> PyResult<Self> {
        let progress = progress.map_or_else(Arc::default, |progress| Arc::clone(&progress.0));
        let options = ServerOptions {
            node_id,
            cluster_id,
            log_dirs,
            properties: properties(config)?,
            progress,
        };
        detached(py, || Server::open(&options)).map(Self)
    }

    #[pyo3(signature = (listeners, tls = HashMap::new()))]
    fn start(
        &self,
        py: Python<'_>,
        listeners: Vec<(String, String, u16)>,
        tls: HashMap<String, PyRef<'_, PyListenerTls>>,
    ) -> PyResult<Vec<u16>> {
        let listeners: Vec<_> = listeners
            .into_iter()
            .map(|(name, host, port)| ListenerSpec {
                tls: tls.get(&name).map(|tls| tls.0.clone()),
                name,
                host,
                port,
            })
            .collect();
        detached(py, || self.0.start(&listeners))
    }

    #[getter]
    fn wake_fd(&self) -> i32 {
        self.0.wake_fd()
    }

    fn take_requests(&self, max: usize) -> Vec<PyRequest> {
        self.0
            .take_requests(max)
            .into_iter()
            .map(PyRequest::new)
            .collect()
    }

    fn take_gone(&self) -> Vec<String> {
        self.0.take_gone()
    }

    fn take_failed(&self) -> (Vec<(String, i32)>, Option<String>) {
        let failed = self.0.take_failed();
        (failed.partitions, failed.every_dir)
    }

    fn take_replica_facts(&self) -> Vec<PyReplicaFact> {
        let facts = self.0.take_replica_facts().into_iter();
        facts
            .map(|fact| {
                let kind = fact.kind.name();
                (fact.topic, fact.partition, fact.leader_epoch, fact.broker, kind)
            })
            .collect()
    }

    fn take_replicated(&self) -> Vec<(u64, i16)> {
        let taken = self.0.take_replicated().into_iter();
        taken.map(|(number, code)| (number, code.0)).collect()
    }

    fn take_verifications(&self) -> Vec<PyQuestion> {
        let taken = self.0.take_verifications().into_iter();
        taken
            .map(|asked| {
                let producer = (asked.producer_id, asked.producer_epoch);
                let partition = (asked.topic, asked.partition);
                (
                    asked.number,
                    asked.transactional_id,
                    producer,
                    partition,
                    asked.adds,
                )
            })
            .collect()
    }

    fn verified(&self, number: u64, code: i16) {
        self.0.verified(number, ErrorCode(code));
    }

    fn set_features(&self, supported: Vec<(String, i16, i16)>, finalized: Vec<(String, i16)>, epoch: i64) {
        self.0.set_features(Features {
            supported,
            finalized,
            epoch,
        });
    }

    fn take_log_lines<'py>(&self, py: Python<'py>) -> PyResult<Vec<(i32, String, Bound<'py, PyDict>)>> {
        let lines = self.0.take_log_lines().into_iter();
        lines
            .map(|line| {
                let fields = PyDict::new(py);
                for (name, value) in line.fields {
                    fields.set_item(name, value)?;
                }
                Ok((line.level as i32, line.message, fields))
            })
            .collect()
    }

    fn create_partition(&self, py: Python<'_>, spec: PySpec<'_>) -> PyResult<()> {
        let spec = spec.into_core()?;
        detached(py, || self.0.create_partition(&spec))
    }

    fn stop_partition(&self, py: Python<'_>, topic: &str, partition: i32, delete: bool) -> PyResult<()> {
        detached(py, || self.0.stop_partition(topic, partition, delete))
    }

    #[expect(clippy::too_many_arguments, reason = "they are those of the Python method")]
    fn set_isr(
        &self,
        py: Python<'_>,
        topic: &str,
        partition: i32,
        leader_epoch: i32,
        isr: Vec<i32>,
        pending: Vec<i32>,
        partition_epoch: i32,
    ) -> PyResult<bool> {
        detached(py, || {
            self.0
                .set_isr(topic, partition, leader_epoch, &isr, &pending, partition_epoch)
        })
    }

    fn set_brokers(&self, py: Python<'_>, brokers: Vec<(i32, String, u16)>) {
        let brokers = brokers.into_iter();
        let brokers: Vec<_> = brokers
            .map(|(id, host, port)| BrokerAddress { id, host, port })
            .collect();
        py.detach(|| self.0.set_brokers(&brokers));
    }

    fn set_broker_epoch(&self, epoch: i64) {
        self.0.set_broker_epoch(epoch);
    }

    fn delete_topic(&self, py: Python<'_>, topic: &str) -> PyResult<()> {
        detached(py, || self.0.delete_topic(topic))
    }

    fn update_topic_config(&self, py: Python<'_>, topic: &str, config: &Bound<'_, PyDict>) -> PyResult<()> {
        let properties = properties(config)?;
        detached(py, || self.0.update_topic_config(topic, &properties))
    }

    fn check_config(&self, py: Python<'_>, properties: &Bound<'_, PyDict>) -> PyResult<()> {
        let properties = self::properties(properties)?;
        detached(py, || self.0.check_config(&properties))
    }

    fn update_config(&self, py: Python<'_>, properties: &Bound<'_, PyDict>) -> PyResult<()> {
        let properties = self::properties(properties)?;
        detached(py, || self.0.update_config(&properties))
    }

    fn set_client_quotas(&self, py: Python<'_>, quotas: Vec<PyClientQuota>) -> PyResult<()> {
        let quotas: Vec<_> = quotas
            .into_iter()
            .map(|(user, client_id, values)| ClientQuota {
                user,
                client_id,
                values,
            })
            .collect();
        detached(py, || self.0.set_client_quotas(&quotas))
    }

    fn set_ip_quotas(&self, py: Python<'_>, quotas: Vec<(Option<String>, f64)>) -> PyResult<()> {
        detached(py, || self.0.set_ip_quotas(&quotas))
    }

    fn partitions<'py>(&self, py: Python<'py>) -> Vec<(String, Bound<'py, PyBytes>, i32)> {
        self.0
            .partitions()
            .into_iter()
            .map(|(topic, id, partition)| (topic, PyBytes::new(py, &id), partition))
            .collect()
    }

    fn know_topic(&self, topic: &str, id: &[u8], partitions: i32, offline: Vec<i32>) -> PyResult<()> {
        let id = topic_id(id)?;
        self.0.know_topic(topic, id, partitions, &offline);
        Ok(())
    }

    fn forget_topic(&self, topic: &str) {
        self.0.forget_topic(topic);
    }

    fn partitions_left(&self) -> u64 {
        self.0.partitions_left()
    }

    fn offsets(&self, py: Python<'_>, topic: &str, partition: i32) -> PyResult<(i64, i64, i64)> {
        let offsets = detached(py, || self.0.offsets(topic, partition))?;
        Ok((offsets.log_start, offsets.high_watermark, offsets.log_end))
    }

    fn append(&self, py: Python<'_>, topic: &str, partition: i32, batches: PyBackedBytes) -> PyResult<i64> {
        detached(py, || self.0.append(topic, partition, &batches))
    }

    fn append_and_report(
        &self,
        py: Python<'_>,
        topic: &str,
        partition: i32,
        batches: PyBackedBytes,
        number: u64,
        timeout_ms: u64,
    ) -> PyResult<bool> {
        let timeout = Duration::from_millis(timeout_ms);
        detached(py, || {
            self.0
                .append_and_report(topic, partition, &batches, number, timeout)
        })
    }

    #[pyo3(signature = (topic, partition, offset, max_bytes, to_end = false))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        partition: i32,
        offset: i64,
        max_bytes: u64,
        to_end: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let read = if to_end { Server::read_to_end } else { Server::read };
        let batches = detached(py, || read(&self.0, topic, partition, offset, max_bytes))?;
        Ok(PyBytes::new(py, &batches))
    }

    fn delete_records(&self, py: Python<'_>, offsets: Vec<(String, i32, i64)>) -> PyResult<Vec<(i16, i64)>> {
        let deleted = detached(py, || self.0.delete_records(&offsets))?;
        Ok(server_admin::deleted(deleted))
    }

    fn describe_log_dirs(&self, py: Python<'_>) -> PyResult<Vec<server_admin::LogDir>> {
        let described = detached(py, || self.0.describe_log_dirs())?;
        Ok(described.into_iter().map(server_admin::log_dir).collect())
    }

    fn alter_replica_log_dirs(
        &self,
        py: Python<'_>,
        moves: Vec<(String, i32, String)>,
    ) -> PyResult<Vec<i16>> {
        let moves = server_admin::moves(moves);
        let codes = detached(py, || self.0.alter_replica_log_dirs(&moves))?;
        Ok(codes.into_iter().map(|code| code.0).collect())
    }

    fn describe_producers(
        &self,
        py: Python<'_>,
        topic: &str,
        partition: i32,
    ) -> PyResult<(i16, Vec<server_admin::Producer>)> {
        let described = detached(py, || self.0.describe_producers(topic, partition))?;
        Ok(server_admin::producers(described))
    }

    fn measurements(&self, py: Python<'_>) -> PyMeasurements {
        PyMeasurements(py.detach(|| self.0.measurements()))
    }

    #[pyo3(signature = (grace_seconds = 2.0))]
    fn stop(&self, py: Python<'_>, grace_seconds: f64) -> PyResult<()> {
        let grace = Duration::try_from_secs_f64(grace_seconds)
            .map_err(|error| PyValueError::new_err(format!("grace_seconds: {error}")))?;
        detached(py, || self.0.stop(grace))
    }
}

#[pyclass(frozen, name = "Request", module = "logcore._native")]
struct PyRequest {
    /// Dropped before the request, whose memory it uses.
    body: PyOnceLock<Py<PyAny>>,
    request: Mutex<ControlRequest>,
    large: bool,
}

impl PyRequest {
    fn new(request: ControlRequest) -> Self {
        Self {
            body: PyOnceLock::new(),
            large: request.is_large(),
            request: Mutex::new(request),
        }
    }
}

#[pymethods]
impl PyRequest {
    #[getter]
    fn api_key(&self) -> i16 {
        self.request.lock().header.api_key
    }

    #[getter]
    fn api_version(&self) -> i16 {
        self.request.lock().header.api_version
    }

    #[getter]
    fn correlation_id(&self) -> i32 {
        self.request.lock().header.correlation_id
    }

    #[getter]
    fn client_id(&self) -> Option<String> {
        let request = self.request.lock();
        request.header.client_id.as_deref().map(str::to_owned)
    }

    #[getter]
    fn connection_id(&self) -> String {
        self.request.lock().connection.id.clone()
    }

    #[getter]
    fn client_host(&self) -> String {
        self.request.lock().connection.client_host.clone()
    }

    #[getter]
    fn listener(&self) -> String {
        self.request.lock().connection.listener.clone()
    }

    #[getter]
    fn principal(&self) -> String {
        self.request.lock().connection.principal.clone()
    }

    #[getter]
    fn answered(&self) -> bool {
        self.request.lock().is_answered()
    }

    #[getter]
    fn large(&self) -> bool {
        self.large
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let convert = || {
            // The lock is released before Python allocates.
            let value = self.request.lock().take_body();
            value_to_py(py, &value).map(Bound::unbind)
        };
        Ok(self.body.get_or_try_init(py, convert)?.bind(py).clone())
    }

    #[pyo3(signature = (body, release_gil = false))]
    fn respond(&self, py: Python<'_>, body: &Bound<'_, PyAny>, release_gil: bool) -> PyResult<()> {
        let (key, version) = {
            let request = self.request.lock();
            (request.header.api_key, request.header.api_version)
        };
        let message = py_to_value(api_schema(key, Direction::Response)?, version, body)?;
        // The message may have very many parts. It is dropped before the GIL is taken again.
        let respond = move || self.request.lock().respond(&message);
        let responded = if release_gil {
            py.detach(respond)
        } else {
            respond()
        };
        responded.map_err(protocol_error)
    }

    fn close(&self) {
        self.request.lock().close();
    }

    fn __repr__(&self) -> String {
        let request = self.request.lock();
        let header = &request.header;
        let name = schema(header.api_key, Direction::Request).map_or("unknown", |schema| schema.name);
        format!(
            "<Request {name} v{} #{} from {}>",
            header.api_version, header.correlation_id, request.connection.id
        )
    }
}
