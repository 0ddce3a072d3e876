//! Appends on a slow disk.

use std::cell::Cell;
use std::io;

use parking_lot::Mutex;

use super::*;
use crate::files::disk::{Change, watch};

thread_local! {
    static OFFLOADED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Counts how often this thread offloads work.
fn counted(work: &mut dyn FnMut()) {
    let before = OFFLOADED.take().unwrap_or_default();
    work();
    OFFLOADED.set(Some(before + 1));
}

fn append(log: &Log) {
    let mut batch = batch_at(1, &[&[b'v'; 200]]);
    let options = ProduceOptions {
        offload: counted,
        ..ProduceOptions::new(0, 1)
    };
    produce(log, &mut batch, options).unwrap();
}

// Broken if it failed: a network thread of the server, and all its connections, would wait for the disk.
#[test]
fn work_that_waits_for_the_disk_is_offloaded() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(open(dir.path()));
    append(&log);
    assert_eq!(OFFLOADED.take(), None);
    for _ in 0..50 {
        append(&log);
    }
    assert_eq!(OFFLOADED.take(), Some(log.segment_count() - 1));
    // Another thread has the lock and waits for the disk.
    let locked = log.writer.lock();
    let appending = std::thread::scope(|scope| {
        let (asked, was_asked) = std::sync::mpsc::channel();
        RELEASED.set(asked).unwrap();
        let appending = scope.spawn(|| {
            let mut batch = batch_at(1, &[b"v"]);
            let options = ProduceOptions {
                offload: counting_offload,
                ..ProduceOptions::new(0, 1)
            };
            produce(&log, &mut batch, options).map(|appended| appended.first_offset)
        });
        was_asked.recv_timeout(PATIENCE).unwrap();
        drop(locked);
        appending.join().unwrap()
    });
    assert_eq!(appending.unwrap(), 51);
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
static RELEASED: OnceLock<std::sync::mpsc::Sender<()>> = OnceLock::new();

/// Reports that it was called, and then does the work.
fn counting_offload(work: &mut dyn FnMut()) {
    RELEASED.get().unwrap().send(()).unwrap();
    work();
}

/// Whether the writer lock is free while files are removed.
#[derive(Default)]
struct Removals {
    log: OnceLock<Arc<Log>>,
    locked: Mutex<Vec<bool>>,
}

impl watch::Watcher for Removals {
    fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        if let (Change::Remove { .. }, Some(log)) = (change, self.log.get()) {
            self.locked.lock().push(log.writer.try_lock().is_none());
        }
        Ok(None)
    }
}

// Broken if it failed: appends would wait while large files are removed.
#[test]
fn files_are_removed_without_the_writer_lock() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig {
        retention_bytes: 1,
        file_delete_delay_ms: 0,
        ..small()
    };
    let log = Arc::new(Log::open(dir.path(), config, false, 0).unwrap());
    for _ in 0..100 {
        append(&log);
    }
    let removals = Arc::new(Removals::default());
    let _watching = watch::watch(dir.path(), removals.clone());
    assert!(removals.log.set(log.clone()).is_ok());
    log.maintain(5).unwrap();
    let locked = std::mem::take(&mut *removals.locked.lock());
    assert!(locked.len() > 20 && !locked.contains(&true), "{locked:?}");
}
