//! Reads committed entries and queues them for the application.

use std::io;
use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::{sleep, sleep_until};

use super::shared::{Node, Shared, TICK};
use crate::reader::{Delivered, Reader};

/// The most bytes of one read of the log.
const READ_BYTES: usize = 256 << 10;

pub(super) async fn deliver(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let failed = |error: io::Error| format!("reading the committed entries: {error}");
    let mut reader = Reader::default();
    loop {
        shared.events.has_space().await;
        match reader.take(&node.member, READ_BYTES).await.map_err(failed)? {
            None => shared.more.notified().await,
            Some(Delivered::Install(snapshot)) => {
                let my_next = shared.proposals.next_ticket();
                let installed = shared.events.install(&snapshot, reader.delivery(), my_next);
                installed.map_err(failed)?;
            }
            Some(Delivered::Entries(entries)) => shared.events.deliver(entries),
        }
    }
}

/// Wakes the application at the end of an interval for the entries that came in it.
pub(super) async fn wake_at_intervals(shared: Arc<Shared>) -> Result<(), String> {
    loop {
        let end = shared.events.interval_end().await;
        sleep_until(end.into()).await;
        shared.events.wake_now();
    }
}

/// Has the disk note what is committed, for the next start. A disk that hangs delays nothing else.
pub(super) async fn write_committed(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let mut written = 0;
    loop {
        sleep(TICK).await;
        let before = shared.feed.committed_before();
        if before == written {
            continue;
        }
        written = before;
        let store = node.member.store().clone();
        let done = spawn_blocking(move || store.write_committed()).await;
        done.map_err(|error| format!("noting what is committed: {error}"))?;
    }
}
