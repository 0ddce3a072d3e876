//! The errors of a run.

use logcore_records::RecordError;

/// An error that ends a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),

    /// A socket or file operation failed.
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },

    /// The peer sent an unexpected message.
    #[error("unexpected bytes from the peer: {0}")]
    Protocol(String),

    /// The broker answered with an error code.
    #[error("{api} of partition {partition} failed with Kafka error code {code}")]
    Broker {
        api: &'static str,
        partition: i32,
        code: i16,
    },

    /// The broker refused a request that is of no partition.
    #[error("{api} failed with Kafka error code {code}")]
    Refused { api: &'static str, code: i16 },

    /// A batch could not be built or read.
    #[error("record batch: {0}")]
    Record(#[from] RecordError),

    /// The system allows fewer open files than the run needs.
    #[error("the run needs {need} open files and the limit is {allowed}; raise the hard limit (ulimit -Hn)")]
    Descriptors { need: u64, allowed: u64 },

    /// The broker stopped answering.
    #[error("{open} requests were not answered: the peer sent nothing for 30 s")]
    Stalled { open: u64 },

    /// A group's rebalance did not end.
    #[error("the groups did not settle in {seconds} s; {open} members wait for a rebalance")]
    Unsettled { seconds: u64, open: usize },

    /// A broker's Metadata misses a leader or an in-sync replica.
    #[error("broker {broker} does not know the wanted leaders of {topics} topics yet, the first is {first}")]
    NotReady {
        broker: String,
        topics: usize,
        first: String,
    },

    /// A thread of the run panicked, which is a defect of this program.
    #[error("a thread of the run panicked")]
    Panicked,
}

impl BenchError {
    /// The peer closed the connection while a response was missing.
    pub(crate) fn closed() -> Self {
        Self::Protocol("the peer closed the connection instead of answering".to_owned())
    }

    /// An I/O error with the operation that failed.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
