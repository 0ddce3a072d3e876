//! `TransactionCore`: the records of a transaction, for `cluster.client`, which talks to the coordinator.

use std::time::Duration;

use logcore_client::producer::Transactions;
use pyo3::prelude::*;

use super::kafka_error;
use super::message::Context;

/// (first failure, records that failed, whether a later epoch is needed)
type Status = (Option<Py<PyAny>>, usize, bool);

/// The records of a transactional producer's transaction. It does not keep the producer open.
#[pyclass(module = "logcore._native", frozen)]
pub(crate) struct TransactionCore(pub(crate) Transactions<Context>);

#[pymethods]
impl TransactionCore {
    /// The coordinator gave a producer id and epoch. No record may be open.
    fn set_producer(&self, id: i64, epoch: i16) {
        self.0.set_producer(id, epoch);
    }

    /// From now on records are taken.
    fn begin(&self) {
        self.0.begin();
    }

    /// From now on no record is taken.
    fn close(&self) {
        self.0.close();
    }

    /// The transaction can only be aborted: gives up what is not in flight.
    fn fail(&self) {
        self.0.fail();
    }

    /// How the records fare.
    fn status(&self, py: Python<'_>) -> PyResult<Status> {
        let status = self.0.status();
        let failure = status.failure.map(|error| kafka_error(py, &error)).transpose()?;
        Ok((failure, status.failed, status.gap))
    }

    /// Takes the partitions to add to the transaction; waits up to `timeout` seconds for them. None once the
    /// producer is closed.
    fn next_partitions(&self, py: Python<'_>, timeout: f64) -> Option<Vec<(String, i32)>> {
        let slice = Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or(Duration::from_secs(60));
        let partitions = py.detach(|| self.0.next_partitions(slice))?;
        let named = |(topic, partition): (std::sync::Arc<str>, i32)| (topic.to_string(), partition);
        Some(partitions.into_iter().map(named).collect())
    }

    /// The coordinator has added these partitions.
    #[allow(clippy::needless_pass_by_value)] // extracted from Python
    fn partitions_added(&self, partitions: Vec<(String, i32)>) {
        self.0.partitions_added(&partitions);
    }
}
