//! How many files this process may have open: a connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::BenchError;

/// What a run opens beside its connections: the standard streams, epoll, the batch's file.
const OTHERS: u64 = 64;

/// Raises the limit as far as the system allows.
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

/// Makes room for so many connections, or says what stands in the way.
pub(crate) fn allow(connections: u32) -> Result<(), BenchError> {
    let need = u64::from(connections) + OTHERS;
    match raise()? {
        Some(allowed) if allowed < need => Err(BenchError::Descriptors { need, allowed }),
        _ => Ok(()),
    }
}
