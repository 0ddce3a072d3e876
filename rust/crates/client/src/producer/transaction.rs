//! What a transaction has of its records: whether it takes any, whether one has failed, and which partitions
//! are to be added to it. Also the records that failed, of any producer. Pure; under the accumulator's lock.

use std::sync::Arc;

use crate::error::{ClientError, Result};

/// Records that were not written: how many, and why the first one was not.
#[derive(Debug, Default)]
pub struct Failures {
    pub first: Option<ClientError>,
    pub records: usize,
}

impl Failures {
    pub(super) fn note(&mut self, error: &ClientError, records: usize) {
        self.records += records;
        self.first.get_or_insert_with(|| error.clone());
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) open: bool,
    pub(super) failures: Failures,
    /// Partitions to be added to the transaction, for `next_partitions`.
    pub(super) to_add: Vec<(Arc<str>, i32)>,
}

impl Transaction {
    /// Whether records are taken.
    pub(super) fn check_open(&self) -> Result<()> {
        match (self.open, &self.failures.first) {
            (true, None) => Ok(()),
            (_, Some(_)) => Err(ClientError::NoTransaction(
                "this one has failed; call abort_transaction()",
            )),
            (false, None) => Err(ClientError::NoTransaction("call begin_transaction() first")),
        }
    }

    /// The partition is to be added to the transaction.
    pub(super) fn add_later(&mut self, topic: &Arc<str>, partition: i32) {
        self.to_add.push((Arc::clone(topic), partition));
    }
}

/// Notes that `count` records are not written.
pub(super) fn note_failure(
    failures: &mut Failures,
    transaction: &mut Option<Transaction>,
    error: &ClientError,
    count: usize,
) {
    failures.note(error, count);
    if let Some(transaction) = transaction {
        transaction.failures.note(error, count);
    }
}
