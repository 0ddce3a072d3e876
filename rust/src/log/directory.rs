//! The extension's `LogDir`: a directory of logs, as a broker has one, with its lock and checkpoints.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use logcore_records::Compression;
use logcore_storage::log_dir::{LogDir, Partition};
use logcore_storage::metadata::MetaProperties;
use logcore_storage::parse_partition_dir;
use logcore_storage::{LogConfig, StorageError, process::Owner, uuid};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::encode::{self, system_now_ms};
use super::handle::Handle;
use super::settings::{apply, settings};
use super::{PyLog, off_gil};

/// The broker id in a new directory.
const DEFAULT_BROKER: i32 = 0;

/// A directory of logs that this process writes.
#[pyclass(name = "LogDir", frozen, module = "logcore._native")]
pub(super) struct PyLogDir {
    dir: Arc<LogDir>,
    owner: Owner,
    compression: Compression,
    config: LogConfig,
    topics: HashMap<String, LogConfig>,
    /// The handles given to Python. All objects for a partition share one, so that its appends wake all
    /// followers.
    handles: Mutex<BTreeMap<(String, i32), Arc<Handle>>>,
}

#[pymethods]
impl PyLogDir {
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        broker_id: Option<i32>,
        compression: &str,
        config: &Bound<'_, PyDict>,
        topics: HashMap<String, Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let compression = encode::codec(compression)?;
        let config = settings(config)?;
        let topics = topics
            .into_iter()
            .map(|(topic, given)| Ok((topic, apply(config.clone(), &given)?)))
            .collect::<PyResult<HashMap<_, _>>>()?;
        let dir = off_gil(py, || {
            let broker_id = match broker_id {
                Some(id) => id,
                None => owner(&path)?,
            };
            LogDir::open(&path, broker_id, None, &|topic| {
                topics.get(topic).unwrap_or(&config).clone()
            })
        })?;
        Ok(Self {
            dir: Arc::new(dir),
            owner: Owner::this(),
            compression,
            config,
            topics,
            handles: Mutex::new(BTreeMap::new()),
        })
    }

    /// Topic and number of each partition, sorted.
    fn partitions(&self) -> Vec<(String, i32)> {
        let partitions = self.dir.partitions();
        let key = |partition: &Arc<Partition>| (partition.topic.clone(), partition.partition);
        partitions.iter().map(key).collect()
    }

    fn get(&self, topic: &str, partition: i32) -> Option<PyLog> {
        self.dir
            .get(topic, partition)
            .map(|partition| self.log_of(partition))
    }

    /// Creates an empty log. Its topic id is that of the topic's other partitions, or a new one.
    fn create(
        &self,
        py: Python<'_>,
        topic: &str,
        partition: i32,
        config: &Bound<'_, PyDict>,
    ) -> PyResult<PyLog> {
        let base = self.topics.get(topic).unwrap_or(&self.config).clone();
        let config = apply(base, config)?;
        let created = off_gil(py, || {
            self.check_process()?;
            let known = self.dir.partitions().iter().find_map(|known| {
                let same = known.topic == topic;
                known.topic_id.filter(|_| same)
            });
            let id = match known {
                Some(id) => id,
                None => uuid::random()?,
            };
            self.dir.create(topic, partition, id, config)
        })?;
        Ok(self.log_of(created))
    }

    fn delete(&self, py: Python<'_>, topic: &str, partition: i32) -> PyResult<()> {
        off_gil(py, || {
            self.check_process()?;
            self.dir.delete(topic, partition)?;
            let key = (topic.to_owned(), partition);
            if let Some(handle) = self.handles.lock().remove(&key) {
                handle.notify();
            }
            Ok(())
        })
    }

    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        off_gil(py, || {
            self.check_process()?;
            self.dir.checkpoint()
        })
    }

    fn maintain(&self, py: Python<'_>) -> PyResult<()> {
        off_gil(py, || {
            self.check_process()?;
            self.dir.maintain(system_now_ms())
        })
    }

    /// Does nothing in a forked child: the parent closes the directory.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.owner.is_this() {
            return Ok(());
        }
        off_gil(py, || {
            let closed = self.dir.close();
            for handle in self.handles.lock().values() {
                handle.notify();
            }
            closed
        })
    }

    /// Directories of logs that could not be loaded, and why.
    #[getter]
    fn failures(&self) -> Vec<(PathBuf, String)> {
        let failures = self.dir.failures().iter();
        failures
            .map(|(path, error)| (path.clone(), error.to_string()))
            .collect()
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.dir.path().to_path_buf()
    }
}

impl PyLogDir {
    fn log_of(&self, partition: Arc<Partition>) -> PyLog {
        let key = (partition.topic.clone(), partition.partition);
        let mut handles = self.handles.lock();
        let handle = match handles.get(&key) {
            Some(known) if known.is_of(&partition) => known.clone(),
            _ => {
                let new = Arc::new(Handle::member(self.dir.clone(), partition, self.owner));
                handles.insert(key, new.clone());
                new
            }
        };
        PyLog::new_over(handle, self.compression)
    }

    fn check_process(&self) -> Result<(), StorageError> {
        self.owner.check(|| self.dir.path().to_path_buf())
    }
}

/// The broker id in the directory's `meta.properties`, or the default when there is no directory.
fn owner(path: &std::path::Path) -> Result<i32, StorageError> {
    let known = MetaProperties::read(path)?;
    let id = known.as_ref().and_then(|meta| meta.broker_id()?.parse().ok());
    Ok(id.unwrap_or(DEFAULT_BROKER))
}

/// Topic and partition of a directory's name, None for other names.
#[pyfunction]
pub(super) fn partition_of_directory(name: &str) -> Option<(String, i32)> {
    parse_partition_dir(name)
}
