//! Why a run could not be finished.

use logcore_records::RecordError;

/// Every way a command fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),

    /// A socket or file operation failed.
    #[error("{what}: {source}")]
    Io {
        what: String,
        source: std::io::Error,
    },

    /// The peer sent something that is not what was asked for.
    #[error("unexpected bytes from the peer: {0}")]
    Protocol(String),

    /// The broker answered with an error code of Kafka's.
    #[error("{api} for partition {partition} was answered with Kafka error code {code}")]
    Broker {
        api: &'static str,
        partition: i32,
        code: i16,
    },

    /// A batch could not be built or read.
    #[error("record batch: {0}")]
    Record(#[from] RecordError),

    /// A thread of the run panicked, which is a mistake in this program.
    #[error("a thread of the run panicked")]
    Panicked,
}

impl BenchError {
    /// Says what was being done when `source` happened.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
