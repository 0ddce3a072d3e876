//! The results of operations for operators, as Python tuples.

use logcore_server::{ErrorCode, LogDirDescription, LogDirMove, RecordsDeleted};
use logcore_storage::ActiveProducer;

/// Path, total and usable bytes, replicas.
pub(crate) type LogDir = (String, Option<(u64, u64)>, Vec<Replica>);
/// Topic, partition, bytes, lag, whether it is a future replica.
type Replica = (String, i32, u64, i64, bool);
/// Id, epoch, last sequence, last timestamp, coordinator epoch, start of the open transaction.
pub(crate) type Producer = (i64, i16, i32, i64, i32, i64);

/// Kafka's value for a missing offset.
const NO_OFFSET: i64 = -1;

pub(crate) fn deleted(results: Vec<RecordsDeleted>) -> Vec<(i16, i64)> {
    let pair = |result: RecordsDeleted| match result {
        Ok(start) => (ErrorCode::NONE.0, start),
        Err(code) => (code.0, NO_OFFSET),
    };
    results.into_iter().map(pair).collect()
}

pub(crate) fn log_dir(dir: LogDirDescription) -> LogDir {
    let replicas = dir.replicas.into_iter().map(|replica| {
        (
            replica.topic,
            replica.partition,
            replica.size,
            replica.lag,
            replica.is_future,
        )
    });
    let space = dir.space.map(|space| (space.total, space.usable));
    (dir.path, space, replicas.collect())
}

pub(crate) fn moves(wanted: Vec<(String, i32, String)>) -> Vec<LogDirMove> {
    let one = |(topic, partition, destination)| LogDirMove {
        topic,
        partition,
        destination,
    };
    wanted.into_iter().map(one).collect()
}

pub(crate) fn producers(described: Result<Vec<ActiveProducer>, ErrorCode>) -> (i16, Vec<Producer>) {
    let one = |producer: ActiveProducer| {
        (
            producer.producer_id,
            producer.epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.transaction_start.unwrap_or(NO_OFFSET),
        )
    };
    match described {
        Ok(producers) => (ErrorCode::NONE.0, producers.into_iter().map(one).collect()),
        Err(code) => (code.0, Vec::new()),
    }
}
