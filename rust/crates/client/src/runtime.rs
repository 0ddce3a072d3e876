//! A client's background thread, with a tokio runtime.
//!
//! Owns the thread, on which a client's connections, sender and fetcher run. Dropping it stops the thread and
//! waits for it. Threads do not survive `fork`; [`ForkGuard`] notices one.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::{ClientError, Result};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// Notes that this process is a forked child. The interpreter's at-fork hook calls it.
pub fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of forks at the time a client was made.
#[derive(Debug, Clone, Copy)]
pub struct ForkGuard(u64);

impl ForkGuard {
    /// A guard that fails after the next fork.
    #[must_use]
    pub fn new() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process was forked since.
    #[must_use]
    pub fn forked(self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.0
    }

    /// Fails when this process was forked since.
    ///
    /// # Errors
    /// [`ClientError::Forked`].
    pub fn check(self) -> Result<()> {
        if self.forked() {
            Err(ClientError::Forked)
        } else {
            Ok(())
        }
    }
}

impl Default for ForkGuard {
    fn default() -> Self {
        Self::new()
    }
}

/// A running background thread.
#[derive(Debug)]
pub struct Background {
    handle: Handle,
    running: Mutex<Option<Running>>,
    fork: ForkGuard,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Background {
    /// Starts the thread under the name `name` (cut to 15 bytes by the kernel).
    ///
    /// # Errors
    /// [`ClientError::Config`] when the operating system has no thread or event queue left.
    pub fn start(name: &str) -> Result<Self> {
        let failed =
            |what: std::io::Error| ClientError::Config(format!("cannot start the client's thread: {what}"));
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // An error means that the sender was dropped, which stops the thread, too.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_timeout(Duration::from_millis(200));
            })
            .map_err(failed)?;
        Ok(Self {
            handle,
            running: Mutex::new(Some(Running { stop, thread })),
            fork: ForkGuard::new(),
        })
    }

    /// Starts a task on the thread.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.handle.spawn(task);
    }

    /// The fork guard of the moment the thread started.
    #[must_use]
    pub fn fork_guard(&self) -> ForkGuard {
        self.fork
    }

    /// Starts `task` on the thread; its result comes through the returned [`Waiter`].
    ///
    /// # Errors
    /// [`ClientError::Forked`] in a child of the process that made the client.
    pub fn run<T, F>(&self, task: F) -> Result<Waiter<T>>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.fork.check()?;
        if self.running.lock().is_none() {
            return Err(ClientError::Closed);
        }
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // The waiter's timeout may have passed.
            let _ = sender.send(task.await);
        });
        Ok(Waiter { receiver })
    }

    /// Stops the thread and waits for it. Tasks are dropped at their next await.
    pub fn stop(&self) {
        let Some(Running { stop, thread }) = self.running.lock().take() else {
            return;
        };
        if self.fork.forked() {
            // Only the parent has the thread; joining it here would wait for ever.
            std::mem::forget((stop, thread));
            return;
        }
        // An error means that the thread has ended.
        let _ = stop.send(());
        let _ = thread.join();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The result of a task on the background thread, for another thread to wait for.
#[derive(Debug)]
pub struct Waiter<T> {
    receiver: std::sync::mpsc::Receiver<T>,
}

impl<T> Waiter<T> {
    /// Waits at most `slice`. `None`: not yet.
    ///
    /// # Errors
    /// [`ClientError::Closed`] when the background thread stopped before the task was done.
    pub fn wait(&mut self, slice: Duration) -> Result<Option<T>> {
        match self.receiver.recv_timeout(slice) {
            Ok(result) => Ok(Some(result)),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => Ok(None),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => Err(ClientError::Closed),
        }
    }
}

/// The time until `deadline`, at most `slice`: threads that must notice signals wait in slices.
#[must_use]
pub fn slice_until(deadline: Option<Instant>, slice: Duration) -> Duration {
    deadline.map_or(slice, |deadline| {
        deadline.saturating_duration_since(Instant::now()).min(slice)
    })
}
