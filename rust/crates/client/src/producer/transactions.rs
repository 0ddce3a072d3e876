//! The transaction of a transactional producer, as far as its records go.
//!
//! Records are taken only between [`Transactions::begin`] and [`Transactions::close`]. A partition's batches
//! wait until the coordinator has added it; another thread takes such partitions by
//! [`Transactions::next_partitions`] and confirms them. After the first record that cannot be written the
//! rest is given up, because the transaction can only be aborted. The producer id, the requests to the
//! coordinator and the meaning of errors are the caller's. Under the accumulator's lock.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::accumulator::Accumulator;
use super::batch::ProducerId;
use super::partition_queue::Standing;
use super::transaction::Transaction;
use crate::error::ClientError;

impl<T> Accumulator<T> {
    pub(super) fn transaction_failed(&self) -> bool {
        self.transaction
            .as_ref()
            .is_some_and(|transaction| transaction.failures.first.is_some())
    }

    pub(super) fn begin_transaction(&mut self) {
        self.transaction = Some(Transaction {
            open: true,
            ..Transaction::default()
        });
        for queue in self.topics.values_mut() {
            for partition in &mut queue.partitions {
                partition.standing = Standing::Outside;
            }
        }
    }

    /// The partitions to add to the transaction; each is returned once.
    pub(super) fn take_partitions_to_add(&mut self) -> Vec<(Arc<str>, i32)> {
        self.transaction
            .as_mut()
            .map(|transaction| std::mem::take(&mut transaction.to_add))
            .unwrap_or_default()
    }

    /// The coordinator has added a partition.
    pub(super) fn partition_added(&mut self, topic: &str, partition: i32) {
        let queue = self.topics.get_mut(topic);
        let found = queue.and_then(|queue| queue.partitions.get_mut(usize::try_from(partition).ok()?));
        if let Some(found) = found {
            found.standing = Standing::Inside;
        }
    }

    /// A producer id, or a later epoch, for a producer without records: partitions number from 0.
    pub(super) fn number_anew(&mut self, producer: ProducerId) {
        self.set_producer_id(producer);
        for queue in self.topics.values_mut() {
            for partition in &mut queue.partitions {
                partition.number_anew();
            }
        }
    }

    fn has_gap(&self) -> bool {
        self.topics
            .values()
            .flat_map(|queue| &queue.partitions)
            .any(|partition| partition.needs_new_id)
    }
}

/// How the records of a transaction fare.
#[derive(Debug)]
pub struct TransactionStatus {
    /// The first failure: the transaction can only be aborted.
    pub failure: Option<ClientError>,
    /// Records that were not written.
    pub failed: usize,
    /// Sequence numbers have a gap: the next transaction needs a later epoch.
    pub gap: bool,
}

/// The transactions of one producer. Any thread may call it; it does not keep the producer open.
#[derive(Debug)]
pub struct Transactions<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Transactions<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        Self { shared }
    }

    /// The coordinator gave a producer id and epoch. No record may be open.
    pub fn set_producer(&self, id: i64, epoch: i16) {
        self.shared
            .accumulator
            .lock()
            .number_anew(ProducerId { id, epoch });
    }

    /// From now on records are taken.
    pub fn begin(&self) {
        self.shared.accumulator.lock().begin_transaction();
    }

    /// From now on no record is taken.
    pub fn close(&self) {
        if let Some(transaction) = &mut self.shared.accumulator.lock().transaction {
            transaction.open = false;
        }
    }

    /// The transaction can only be aborted: gives up what is not in flight.
    pub fn fail(&self) {
        if let Some(transaction) = &mut self.shared.accumulator.lock().transaction {
            transaction.failures.note(&ClientError::Purged, 0);
        }
        self.shared.wake.notify_one();
    }

    /// How the records fare.
    #[must_use]
    pub fn status(&self) -> TransactionStatus {
        let accumulator = self.shared.accumulator.lock();
        let transaction = accumulator.transaction.as_ref();
        TransactionStatus {
            failure: transaction.and_then(|transaction| transaction.failures.first.clone()),
            failed: transaction.map_or(0, |transaction| transaction.failures.records),
            gap: accumulator.has_gap(),
        }
    }

    /// Takes the partitions to add to the transaction. Without any, waits for them, at most `slice`. `None`
    /// once the producer is closed.
    #[must_use]
    pub fn next_partitions(&self, slice: Duration) -> Option<Vec<(Arc<str>, i32)>> {
        let mut accumulator = self.shared.accumulator.lock();
        let closed = || self.shared.closed.load(std::sync::atomic::Ordering::Acquire);
        let mut partitions = accumulator.take_partitions_to_add();
        if partitions.is_empty() && !closed() {
            self.shared.partitions_to_add.wait_for(&mut accumulator, slice);
            partitions = accumulator.take_partitions_to_add();
        }
        (!closed()).then_some(partitions)
    }

    /// The coordinator has added these partitions.
    pub fn partitions_added(&self, partitions: &[(String, i32)]) {
        let mut accumulator = self.shared.accumulator.lock();
        for (topic, partition) in partitions {
            accumulator.partition_added(topic, *partition);
        }
        drop(accumulator);
        self.shared.wake.notify_one();
    }
}
