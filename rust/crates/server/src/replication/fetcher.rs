//! One fetcher: a thread with one connection to one leader's broker, and the partitions fetched over it.
//!
//! The thread has a runtime of its own, so writing to a slow disk holds up no other fetcher and no client.
//! Python's threads add partitions, change the address and stop it. After a failure of the connection or of
//! the whole request, the fetcher connects again after a pause. A panic is logged, and the fetcher goes on
//! with a new connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::address::BrokerAddress;
use super::exchange::Link;
use super::following::{Context, Due, Failing, Following};
use super::session::Asked;
use crate::descriptors::advice;
use crate::log_lines::Level;

/// How long a Fetch may run on after a partition was added. A leader without new records holds a Fetch for
/// `replica.fetch.wait.max.ms`, and the partition would wait as long. With acks=all, its producers would too.
const FETCH_GOES_ON: Duration = Duration::from_millis(20);

pub(super) struct Fetcher {
    context: Arc<Context>,
    leader_id: i32,
    number: usize,
    /// Some may be over; the thread removes them.
    partitions: Mutex<Vec<Arc<Following>>>,
    /// A partition was added.
    added: watch::Sender<()>,
    address: watch::Sender<Option<BrokerAddress>>,
    stop: watch::Sender<bool>,
}

/// The partitions to ask for, and when the next of the others is due.
struct Work {
    due: Vec<(Arc<Following>, Asked)>,
    next: Option<Instant>,
    is_idle: bool,
}

impl Fetcher {
    pub(super) fn new(
        context: Arc<Context>,
        leader_id: i32,
        number: usize,
        address: Option<BrokerAddress>,
    ) -> Self {
        Self {
            context,
            leader_id,
            number,
            partitions: Mutex::default(),
            added: watch::Sender::new(()),
            address: watch::Sender::new(address),
            stop: watch::Sender::new(false),
        }
    }

    pub(super) fn add(&self, following: Arc<Following>) {
        self.partitions.lock().push(following);
        self.added.send_replace(());
    }

    pub(super) fn set_address(&self, address: Option<BrokerAddress>) {
        self.address.send_if_modified(|current| {
            let is_new = *current != address;
            if is_new {
                *current = address;
            }
            is_new
        });
    }

    /// Ends the thread after the answer that it handles.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(super) fn is_idle(&self) -> bool {
        let mut partitions = self.partitions.lock();
        partitions.retain(|one| !one.is_over());
        partitions.is_empty()
    }

    /// The thread.
    pub(super) fn run(&self) {
        loop {
            let reason = match catch_unwind(AssertUnwindSafe(|| self.serve())) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => format!("cannot have an event loop: {error}{}", advice(&error)),
                Err(_) => "panicked, which is a defect of the server".to_owned(),
            };
            let leader = self.leader_id;
            let text = format!("the fetcher of what broker {leader} leads {reason}; it begins again");
            let lines = &self.context.shared.lines;
            lines.push_limited(Level::Error, &format!("fetcher {leader} ended"), text);
            std::thread::sleep(self.context.shared.config.replica.backoff);
        }
    }

    /// Returns when the fetcher is stopped.
    fn serve(&self) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut stopped = self.stop.subscribe();
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => {}
                () = self.fetch() => {}
            }
        });
        Ok(())
    }

    async fn fetch(&self) {
        let mut link = Link::new(Arc::clone(&self.context), self.number);
        let mut address = self.address.subscribe();
        let mut added = self.added.subscribe();
        let mut failing = None;
        loop {
            added.mark_unchanged();
            let work = self.work();
            if work.due.is_empty() {
                if work.is_idle {
                    link.close();
                }
                wait_for_work(&mut added, work.next).await;
                continue;
            }
            let current = address.borrow_and_update().clone();
            let failed = match current {
                Some(current) => {
                    let patience = outlasts_an_addition(&mut added);
                    let exchange = link.exchange(&current, work.due, self.wait(work.next), patience);
                    tokio::select! {
                        result = exchange => result.err(),
                        // What it asks may never be answered.
                        _ = address.changed() => {
                            link.restart();
                            continue;
                        }
                    }
                }
                None => Some("it is not among the brokers that are alive".to_owned()),
            };
            let Some(reason) = failed else {
                failing = None;
                continue;
            };
            link.restart();
            let now = Failing::again(failing);
            if self.address.borrow().is_some() || now.lasts() {
                self.log_failure(&reason);
            }
            failing = Some(now);
            tokio::select! {
                () = tokio::time::sleep(self.context.pause(now.times)) => {}
                _ = address.changed() => {}
            }
        }
    }

    fn work(&self) -> Work {
        let all = {
            let mut partitions = self.partitions.lock();
            partitions.retain(|one| !one.is_over());
            partitions.clone()
        };
        let mut work = Work {
            due: Vec::with_capacity(all.len()),
            next: None,
            is_idle: all.is_empty(),
        };
        let now = Instant::now();
        for following in all {
            match following.ask(&self.context, now) {
                Due::Now(asked) => work.due.push((following, asked)),
                Due::At(at) => work.next = Some(work.next.map_or(at, |next| next.min(at))),
                Due::Never => {}
            }
        }
        work
    }

    /// How long a leader may hold a Fetch: until another partition is to be asked for again.
    fn wait(&self, next: Option<Instant>) -> Duration {
        let most = self.context.shared.config.replica.wait_max;
        next.map_or(most, |next| {
            most.min(next.saturating_duration_since(Instant::now()))
        })
    }

    fn log_failure(&self, reason: &str) {
        let (leader, count) = (self.leader_id, self.partitions.lock().len());
        self.context.shared.lines.push_limited(
            Level::Warning,
            &format!("fetcher {leader}"),
            format!(
                "broker {leader} leads {count} partitions that cannot be fetched from it now: {reason}; it \
                 is tried again until it works or they have another leader"
            ),
        );
    }
}

async fn wait_for_work(added: &mut watch::Receiver<()>, next: Option<Instant>) {
    let due = async {
        match next {
            Some(next) => tokio::time::sleep_until(next.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // The sender lives as long as the fetcher.
        _ = added.changed() => {}
        () = due => {}
    }
}

/// Returns when a partition was added and the running Fetch still is not answered.
async fn outlasts_an_addition(added: &mut watch::Receiver<()>) {
    let _ = added.changed().await;
    tokio::time::sleep(FETCH_GOES_ON).await;
}
