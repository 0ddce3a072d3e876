//! Who appends and who waits for the disk.

use std::cell::Cell;
use std::io;

use parking_lot::Mutex;

use super::*;
use crate::files::disk::{Change, watch};

thread_local! {
    static ASIDE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Counts how often this thread has something to do where it keeps nobody waiting.
fn counted(work: &mut dyn FnMut()) {
    let before = ASIDE.take().unwrap_or_default();
    work();
    ASIDE.set(Some(before + 1));
}

fn append(log: &Log) {
    let mut batch = batch_at(1, &[&[b'v'; 200]]);
    let options = ProduceOptions {
        offload: counted,
        ..ProduceOptions::new(0, 1)
    };
    produce(log, &mut batch, options).unwrap();
}

// Broken if it failed: everybody whose requests a network thread of the server reads would wait for the disk with one append.
#[test]
fn who_must_not_wait_is_asked_before() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(open(dir.path()));
    append(&log);
    assert_eq!(ASIDE.take(), None);
    for _ in 0..50 {
        append(&log);
    }
    assert_eq!(ASIDE.take(), Some(log.segment_count() - 1));
    // Somebody has the log, and waits for the disk.
    let held = log.writer.lock();
    let appending = std::thread::scope(|scope| {
        let (asked, was_asked) = std::sync::mpsc::channel();
        RELEASED.set(asked).unwrap();
        let appending = scope.spawn(|| {
            let mut batch = batch_at(1, &[b"v"]);
            let options = ProduceOptions {
                offload: told,
                ..ProduceOptions::new(0, 1)
            };
            produce(&log, &mut batch, options).map(|appended| appended.first_offset)
        });
        was_asked.recv_timeout(PATIENCE).unwrap();
        drop(held);
        appending.join().unwrap()
    });
    assert_eq!(appending.unwrap(), 51);
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
static RELEASED: OnceLock<std::sync::mpsc::Sender<()>> = OnceLock::new();

/// Tells that it is asked before it does what it is given.
fn told(work: &mut dyn FnMut()) {
    RELEASED.get().unwrap().send(()).unwrap();
    work();
}

/// Whether somebody has the log while its files are removed.
#[derive(Default)]
struct Removals {
    log: OnceLock<Arc<Log>>,
    held: Mutex<Vec<bool>>,
}

impl watch::Watcher for Removals {
    fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        if let (Change::Remove { .. }, Some(log)) = (change, self.log.get()) {
            self.held.lock().push(log.writer.try_lock().is_none());
        }
        Ok(None)
    }
}

// Broken if it failed: who appends would wait while large files are removed.
#[test]
fn files_are_removed_without_the_log() {
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
    let held = std::mem::take(&mut *removals.held.lock());
    assert!(held.len() > 20 && !held.contains(&true), "{held:?}");
}
