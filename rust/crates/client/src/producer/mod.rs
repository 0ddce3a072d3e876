//! The producer: `produce` from any thread, acknowledgements as reports.
//!
//! Owns records from `produce` until their report is taken. A crash of the process loses what is not
//! acknowledged. A crash of the broker loses nothing within the delivery timeout, and with idempotence writes
//! nothing twice.

pub(crate) mod accumulator;
#[cfg(test)]
mod accumulator_tests;
pub(crate) mod batch;
pub(crate) mod dispatch;
mod partition_queue;
mod record;
mod report;
mod sender;
mod topic_queue;
mod transaction;
#[cfg(test)]
mod transaction_tests;
mod transactions;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use self::accumulator::{Accumulator, Wake};
pub use self::record::{HeaderSlice, NewRecord};
pub use self::report::{Report, Tracked};
pub use self::transaction::Failures;
pub use self::transactions::{TransactionStatus, Transactions};
use crate::cluster::Cluster;
use crate::config::{ClientConfig, ProducerConfig};
use crate::error::{ClientError, Result};
use crate::reporter::Reporter;
use crate::runtime::Background;

/// What [`Producer::next_event`] returns.
#[derive(Debug)]
pub enum Event<T> {
    /// Records were written or given up.
    Report(Report<T>),
    /// A broker that cannot be reached, or another failure that is tried again.
    Error(ClientError),
}

/// The reports that the application has not taken, and the signal of a new one.
type Reports<T> = (Mutex<VecDeque<Report<T>>>, Condvar);

#[derive(Debug)]
pub(crate) struct Shared<T> {
    pub(crate) config: ProducerConfig,
    pub(crate) cluster: Arc<Cluster>,
    accumulator: Mutex<Accumulator<T>>,
    wake: Notify,
    /// Waits with the accumulator's lock: partitions are to be added to the transaction, or it is closed.
    partitions_to_add: Condvar,
    reports: Arc<Reports<T>>,
    /// Set under the accumulator's lock: records taken before count as open, later ones are refused.
    closed: AtomicBool,
}

impl<T> Shared<T> {
    fn deliver(&self, reports: Vec<Report<T>>) {
        if reports.is_empty() {
            return;
        }
        let (queue, arrived) = &*self.reports;
        queue.lock().extend(reports);
        arrived.notify_all();
    }

    /// Batches are settled: wakes the sender and the threads that flush.
    fn batches_settled(&self) {
        self.wake.notify_one();
        let (queue, arrived) = &*self.reports;
        // The lock orders this against a thread that is about to wait.
        drop(queue.lock());
        arrived.notify_all();
    }
}

/// See the module. `T` is what a caller attaches to a record and finds in its report.
#[derive(Debug)]
pub struct Producer<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    background: Arc<Background>,
}

impl<T: Send + 'static> Producer<T> {
    /// Starts the producer's thread. Connects to nothing yet.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(client: ClientConfig, config: ProducerConfig) -> Result<Self> {
        let background = Arc::new(Background::start("logcore-producer")?);
        let reports: Arc<Reports<T>> = Arc::default();
        let waiting = Arc::clone(&reports);
        let reporter = Reporter::new(move || {
            let (queue, arrived) = &*waiting;
            // The lock orders this against a thread that is about to wait.
            drop(queue.lock());
            arrived.notify_all();
        });
        let (propagation, backoff) = (client.topic_propagation, client.retry_backoff);
        let cluster = Arc::new(Cluster::new(client, Arc::new(reporter)));
        let shared = Arc::new(Shared {
            accumulator: Mutex::new(Accumulator::new(config.clone(), propagation, backoff)),
            config,
            cluster: Arc::clone(&cluster),
            wake: Notify::new(),
            partitions_to_add: Condvar::new(),
            reports,
            closed: AtomicBool::new(false),
        });
        background.spawn(cluster.keep_fresh());
        background.spawn(sender::run(Arc::clone(&shared)));
        Ok(Self { shared, background })
    }

    /// Takes a record; returns before it is sent. Its report comes only when there is a `context`.
    ///
    /// # Errors
    /// [`ClientError::QueueFull`], [`ClientError::MessageTooLarge`], [`ClientError::UnknownPartition`],
    /// [`ClientError::UnknownTopic`], [`ClientError::Closed`] or [`ClientError::Forked`].
    pub fn produce(&self, topic: &str, record: &NewRecord<'_>, context: Option<T>) -> Result<()> {
        self.background.fork_guard().check()?;
        let now = Instant::now();
        let mut accumulator = self.shared.accumulator.lock();
        if self.is_closed() {
            return Err(ClientError::Closed);
        }
        let result = accumulator.append(topic, record, context, now);
        let name = match result {
            Ok(Wake::Metadata) => accumulator.topic_name(topic),
            _ => None,
        };
        drop(accumulator);
        // A refused record's context is dropped here, outside the lock: dropping may run the caller's code.
        match result.map_err(|(error, _context)| error)? {
            Wake::No => {}
            Wake::Sender => self.shared.wake.notify_one(),
            Wake::Metadata => {
                if let Some(name) = name
                    && !self.shared.cluster.track(&name)
                {
                    self.shared.cluster.refresh_soon();
                }
                self.shared.wake.notify_one();
            }
        }
        Ok(())
    }

    /// The records that were not written since the last call, with or without a report.
    pub fn take_failures(&self) -> Failures {
        self.shared.accumulator.lock().take_failures()
    }

    /// Takes the oldest event. Without one, waits for the next, at most `slice`.
    pub fn next_event(&self, slice: Duration) -> Option<Event<T>> {
        let (queue, arrived) = &*self.shared.reports;
        let reporter = self.shared.cluster.reporter();
        let report = {
            let mut queue = queue.lock();
            if queue.is_empty() && reporter.is_empty() && !slice.is_zero() {
                arrived.wait_for(&mut queue, slice);
            }
            queue.pop_front()
        };
        let Some(report) = report else {
            return reporter.next().map(Event::Error);
        };
        self.shared.accumulator.lock().reported(report.records.len());
        Some(Event::Report(report))
    }

    /// Puts back the rest of a report whose handling was interrupted; it is the next event.
    pub fn put_back(&self, report: Report<T>) {
        self.shared.accumulator.lock().not_reported(report.records.len());
        self.shared.reports.0.lock().push_front(report);
    }

    /// Waits, at most `slice`, until there is an event or the last record is settled.
    pub fn wait_settled(&self, slice: Duration) {
        let (queue, arrived) = &*self.shared.reports;
        let mut queue = queue.lock();
        // The sender settles a batch before it takes this lock to notify, so no wake-up is lost.
        if queue.is_empty() && self.shared.accumulator.lock().messages() > 0 {
            arrived.wait_for(&mut queue, slice);
        }
    }

    /// Records that wait, are in flight, or are settled and not reported yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.accumulator.lock().messages()
    }

    /// Whether [`Producer::len`] is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// While on, batches do not wait for more records. Calls nest.
    pub fn set_flushing(&self, on: bool) {
        self.shared.accumulator.lock().set_flushing(on);
        self.shared.wake.notify_one();
    }

    /// Gives up all records not in flight; they are reported as purged.
    pub fn purge(&self) {
        let reports = self.shared.accumulator.lock().give_up(&ClientError::Purged);
        self.shared.deliver(reports);
        self.shared.batches_settled();
    }

    /// The transactions of this producer; without `transactional.id` there are none.
    #[must_use]
    pub fn transactions(&self) -> Transactions<T> {
        Transactions::new(Arc::clone(&self.shared))
    }

    /// The cluster behind this producer.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.shared.cluster
    }

    /// The background thread, for requests beside producing.
    #[must_use]
    pub fn background(&self) -> &Arc<Background> {
        &self.background
    }

    /// Takes no more records and stops the thread. Drops the records that are not acknowledged: flush first.
    /// Returns the number of records that were neither acknowledged nor reported.
    pub fn close(&self) -> usize {
        let accumulator = self.shared.accumulator.lock();
        self.shared.closed.store(true, Ordering::Release);
        self.shared.partitions_to_add.notify_all();
        drop(accumulator);
        self.background.stop();
        // Threads that wait look again and find the producer closed.
        self.shared.batches_settled();
        self.len()
    }

    /// Whether [`Producer::close`] was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }
}
