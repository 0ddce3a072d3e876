//! A snapshot of the application's state on its way to disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::event::Event;
use super::options::{HostError, stopped};
use super::shared::Shared;
use crate::delivery::Delivery;
use crate::files::snapshots::SnapshotWriter;
use crate::raft::state_machine::Snapshots;
use crate::raft::types::SnapshotMeta;

/// The application should pause while more bytes wait for the disk.
const WAITING_BYTES: usize = 4 << 20;
/// More bytes are refused.
const LIMIT_BYTES: usize = 64 << 20;

enum Part {
    Bytes(Bytes),
    Finish(Saving),
}

/// Takes the bytes of a snapshot. The file is removed when this is dropped unfinished, or aborted.
pub struct SnapshotSink {
    parts: Option<(mpsc::UnboundedSender<Part>, Saving)>,
    waiting: Arc<AtomicUsize>,
}

impl SnapshotSink {
    /// Appends bytes. Does not wait. Returns false when the disk is behind: try again in some milliseconds.
    /// When the disk has failed, [`Event::Snapshot`] reports it and further bytes are dropped; the member
    /// goes on.
    ///
    /// Errors: [`HostError::Busy`] when far too much waits for the disk; [`HostError::Stopped`] after finish
    /// or abort.
    pub fn write(&self, bytes: Bytes) -> Result<bool, HostError> {
        let (parts, _) = self.parts.as_ref().ok_or_else(over)?;
        if parts.is_closed() {
            return Ok(true);
        }
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting > LIMIT_BYTES {
            return Err(HostError::Busy {
                what: "bytes of a snapshot",
                count: waiting,
            });
        }
        let waiting = waiting + bytes.len();
        self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        let was_taken = parts.send(Part::Bytes(bytes)).is_ok();
        Ok(!was_taken || waiting <= WAITING_BYTES)
    }

    /// Has the snapshot brought to disk. [`Event::Snapshot`] follows.
    ///
    /// Errors: [`HostError::Stopped`] after finish or abort.
    pub fn finish(&mut self) -> Result<(), HostError> {
        let (parts, saving) = self.parts.take().ok_or_else(over)?;
        // A disk that failed is reported by the event.
        let _ = parts.send(Part::Finish(saving));
        Ok(())
    }

    /// Gives the snapshot up; no event follows. Does nothing after it was finished.
    pub fn abort(&mut self) {
        self.parts = None;
    }
}

fn over() -> HostError {
    stopped("the snapshot was finished or aborted")
}

/// Marks that a snapshot is being written. There is at most one.
struct Saving(Arc<Shared>);

impl Drop for Saving {
    fn drop(&mut self) {
        self.0.saving.store(false, Ordering::Relaxed);
    }
}

/// What a finished snapshot becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// This member's newest.
    Newest,
    /// The state with which an ensemble begins when it is founded.
    First,
}

pub(super) fn begin(
    shared: Arc<Shared>,
    meta: SnapshotMeta,
    delivery: Delivery,
    index: u64,
    kind: Kind,
) -> (SnapshotSink, impl Future<Output = ()>) {
    let (sender, parts) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let sink = SnapshotSink {
        parts: Some((sender, Saving(shared.clone()))),
        waiting: waiting.clone(),
    };
    let saving = async move {
        let saved = save(&shared, meta, delivery, parts, &waiting, kind).await;
        let error = match saved {
            Ok(false) => return,
            Ok(true) => None,
            Err(error) => Some(error.to_string()),
        };
        if error.is_none()
            && let Some(node) = shared.node()
        {
            node.member.take_snapshot().await;
        }
        shared.events.report(Event::Snapshot { index, error });
    };
    (sink, saving)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Writes what comes. Returns whether it was finished.
async fn save(
    shared: &Arc<Shared>,
    meta: SnapshotMeta,
    delivery: Delivery,
    mut parts: mpsc::UnboundedReceiver<Part>,
    waiting: &AtomicUsize,
    kind: Kind,
) -> io::Result<bool> {
    let snapshots = shared.snapshots.clone();
    let mut writer: SnapshotWriter = blocking(move || snapshots.begin(meta, delivery)).await?;
    loop {
        let Some(first) = parts.recv().await else {
            return Ok(false);
        };
        let (mut next, mut chunks, mut bytes) = (Some(first), Vec::new(), 0);
        let mut finish = None;
        while let Some(part) = next {
            match part {
                Part::Bytes(chunk) => {
                    bytes += chunk.len();
                    chunks.push(chunk);
                }
                Part::Finish(saving) => finish = Some(saving),
            }
            if finish.is_some() || bytes >= WAITING_BYTES {
                break;
            }
            next = parts.try_recv().ok();
        }
        writer = blocking(move || {
            for chunk in &chunks {
                writer.write(chunk)?;
            }
            Ok(writer)
        })
        .await?;
        waiting.fetch_sub(bytes, Ordering::Relaxed);
        if finish.is_some() {
            let written = blocking(move || writer.finish()).await?;
            match kind {
                Kind::Newest => shared.snapshots.keep(&written).await?,
                Kind::First => {
                    *shared.first_state.lock() = Some(written);
                    shared.decided.notify_one();
                }
            }
            return Ok(true);
        }
    }
}
