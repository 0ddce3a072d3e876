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
    Io { what: String, source: std::io::Error },

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

    /// The system allows fewer open files than the run needs.
    #[error(
        "{need} open files are needed and {allowed} are allowed; raise the hard limit (ulimit -Hn) and try again"
    )]
    Descriptors { need: u64, allowed: u64 },

    /// The broker stopped answering.
    #[error("{open} requests were not answered: nothing came from the peer for 30 s")]
    Stalled { open: u64 },

    /// A thread of the run panicked, which is a mistake in this program.
    #[error("a thread of the run panicked")]
    Panicked,
}

impl BenchError {
    /// The peer left while something was awaited of it.
    pub(crate) fn closed() -> Self {
        Self::Protocol("the peer closed the connection instead of answering".to_owned())
    }

    /// Says what was being done when `source` happened.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
