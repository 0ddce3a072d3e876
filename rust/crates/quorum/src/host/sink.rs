//! A snapshot on its way to the disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::{Event, HostError, Shared, stopped};
use crate::delivery::Delivery;
use crate::machine::Snapshots;
use crate::snapshots::SnapshotWriter;
use crate::types::SnapshotMeta;

/// Bytes that may wait for the disk before whoever writes is to wait, and before more is refused.
const WAITING_BYTES: usize = 4 << 20;
const MOST_BYTES: usize = 64 << 20;

enum Part {
    Bytes(Bytes),
    Finish(Saving),
}

/// Where a snapshot's bytes go. One that is dropped, or aborted, leaves nothing.
pub struct SnapshotSink {
    parts: Option<(mpsc::UnboundedSender<Part>, Saving)>,
    waiting: Arc<AtomicUsize>,
}

impl SnapshotSink {
    /// Appends bytes. Does not wait; `false`: the disk is behind, come back in some milliseconds. Once the disk has failed
    /// [`Event::Snapshot`] tells why, and what comes behind is dropped: the member goes on.
    ///
    /// Errors: [`HostError::Busy`] when much too much waits for the disk; [`HostError::Stopped`] when it was finished or aborted.
    pub fn write(&self, bytes: Bytes) -> Result<bool, HostError> {
        let (parts, _) = self.parts.as_ref().ok_or_else(over)?;
        if parts.is_closed() {
            return Ok(true);
        }
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting > MOST_BYTES {
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

    /// Has it brought to disk; [`Event::Snapshot`] follows.
    ///
    /// Errors: as of [`SnapshotSink::write`].
    pub fn finish(&mut self) -> Result<(), HostError> {
        let (parts, saving) = self.parts.take().ok_or_else(over)?;
        // Of a disk that failed the event is told already, or will be.
        let _ = parts.send(Part::Finish(saving));
        Ok(())
    }

    /// Gives it up; no event follows. Does nothing after it was finished.
    pub fn abort(&mut self) {
        self.parts = None;
    }
}

fn over() -> HostError {
    stopped("the snapshot was finished or aborted")
}

/// That a snapshot is being written; there is one at most.
struct Saving(Arc<Shared>);

impl Drop for Saving {
    fn drop(&mut self) {
        self.0.saving.store(false, Ordering::Relaxed);
    }
}

/// What is done with a snapshot that was finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It becomes this member's newest.
    Newest,
    /// An ensemble is to begin with it, when it is founded.
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
            // A member that just failed has nothing to remove.
            let _ = node.member.raft().trigger().snapshot().await;
        }
        shared.events.tell(Event::Snapshot { index, error });
    };
    (sink, saving)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Writes what comes; whether it was finished.
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
