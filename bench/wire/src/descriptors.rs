//! The process's limit of open files. Each connection is an open file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::BenchError;

/// Open files beside the connections: the standard streams, epoll, the batch's file.
const OTHERS: u64 = 64;

/// Raises the soft limit to the hard one, and returns it.
pub(crate) fn raise() -> Result<Option<u64>, BenchError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised)
            .map_err(|error| BenchError::io("raising the limit of open files")(error.into()))?;
    }
    Ok(limit.maximum)
}

/// Raises the limit, and fails if it is too low for so many connections.
pub(crate) fn allow(connections: u32) -> Result<(), BenchError> {
    let need = u64::from(connections) + OTHERS;
    match raise()? {
        Some(allowed) if allowed < need => Err(BenchError::Descriptors { need, allowed }),
        _ => Ok(()),
    }
}
