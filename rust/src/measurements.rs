//! Binding of the server's measurements: one object for each scrape, read field by field.

use logcore_server::{ApiMeasurements, HistogramValues, Measurements};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyMeasurements>()
}

/// The cumulative counts and the sum of a histogram.
type Histogram = (Vec<u64>, f64);
/// Name, numbers of requests by version and of errors by code, histograms of each stage's time and of sizes.
type Api = (
    String,
    Vec<(i16, u64)>,
    Vec<(i16, u64)>,
    Vec<Histogram>,
    Histogram,
);

#[pyclass(frozen, name = "Measurements", module = "logcore._native")]
pub(crate) struct PyMeasurements(pub(crate) Measurements);

fn histogram(values: &HistogramValues) -> Histogram {
    (values.cumulative.clone(), values.sum)
}

fn api(api: &ApiMeasurements) -> Api {
    (
        api.name.clone(),
        api.requests.clone(),
        api.errors.clone(),
        api.times.iter().map(histogram).collect(),
        histogram(&api.request_bytes),
    )
}

#[pymethods]
impl PyMeasurements {
    #[getter]
    fn time_bounds(&self) -> Vec<f64> {
        self.0.time_bounds.clone()
    }

    #[getter]
    fn size_bounds(&self) -> Vec<u64> {
        self.0.size_bounds.clone()
    }

    #[getter]
    fn stages(&self) -> Vec<&'static str> {
        self.0.stages.clone()
    }

    #[getter]
    fn apis(&self) -> Vec<Api> {
        self.0.apis.iter().map(api).collect()
    }

    #[getter]
    fn topic_counters(&self) -> Vec<&'static str> {
        self.0.topic_counters.clone()
    }

    #[getter]
    fn topics(&self) -> Vec<(&str, &[u64])> {
        let topics = self.0.topics.iter();
        topics.map(|(name, counts)| (&**name, &**counts)).collect()
    }

    #[getter]
    fn all_topics(&self) -> Vec<u64> {
        self.0.all_topics.clone()
    }

    #[getter]
    fn partitions<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let partitions = self.0.partitions.iter();
        partitions
            .map(|partition| {
                (
                    &*partition.topic,
                    partition.partition,
                    partition.size_bytes,
                    partition.segments,
                    partition.log_start_offset,
                    partition.log_end_offset,
                    partition.leads,
                    partition.offline,
                )
                    .into_pyobject(py)
            })
            .collect()
    }

    #[getter]
    fn connections(&self) -> Vec<(String, u64)> {
        self.0.connections.clone()
    }

    #[getter]
    fn authentications(&self) -> Vec<(String, u64, u64)> {
        self.0.authentications.clone()
    }

    #[getter]
    fn gauges<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let gauges = PyDict::new(py);
        for (name, value) in &self.0.gauges {
            gauges.set_item(name, value)?;
        }
        Ok(gauges)
    }
}
