//! Who waits for the disk while others append.

use std::io;

use parking_lot::Mutex;

use super::*;
use crate::disk::{Change, watch};

/// What an append would be told at each change to the log's files.
#[derive(Default)]
struct Asks {
    log: OnceLock<Arc<Log>>,
    told: Mutex<Vec<(String, bool)>>,
}

impl watch::Watcher for Asks {
    fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        if let Some(log) = self.log.get() {
            let may_wait = log.append_may_wait(1);
            let change = format!("{change:?}").chars().take(400).collect();
            self.told.lock().push((change, may_wait));
        }
        Ok(None)
    }
}

// Broken if it failed: everybody whose requests the server's network threads read would wait for the disk with an append to a log
// from which segments are deleted.
#[test]
fn appends_are_told_of_who_waits_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig {
        retention_bytes: 1,
        file_delete_delay_ms: 0,
        ..small()
    };
    let log = Arc::new(Log::open(dir.path(), config, false, 0).unwrap());
    for number in 0..100 {
        let mut batch = batch_at(1, &[&[b'v'; 200]]);
        log.append_as_leader(&mut batch, number / 10, 1).unwrap();
    }
    assert!(log.append_may_wait(2000) && !log.append_may_wait(1));
    log.flush().unwrap();
    let asks = Arc::new(Asks::default());
    let _watching = watch::watch(dir.path(), asks.clone());
    assert!(asks.log.set(log.clone()).is_ok());
    log.maintain(5).unwrap();
    log.advance_log_start_offset(log.log_end_offset()).unwrap();
    assert!(!log.append_may_wait(1));
    for _ in 0..20 {
        let mut batch = batch_at(1, &[&[b'v'; 200]]);
        log.append_as_leader(&mut batch, 9, 1).unwrap();
    }
    let told = std::mem::take(&mut *asks.told.lock());
    let of = |kind: &str, what: &str| {
        let found = told
            .iter()
            .filter(|(change, _)| change.starts_with(kind) && change.contains(what));
        found.map(|(_, may_wait)| *may_wait).collect::<Vec<_>>()
    };
    let epochs = of("", "leader-epoch-checkpoint");
    assert!(
        epochs.len() > 1 && epochs.iter().all(|may_wait| *may_wait),
        "{told:#?}"
    );
    let begun = of("Create", ".log");
    assert!(
        begun.len() > 1 && begun.iter().all(|may_wait| *may_wait),
        "{told:#?}"
    );
    let renamed = of("Rename", ".deleted");
    assert!(
        renamed.len() > 20 && renamed.iter().all(|may_wait| *may_wait),
        "{told:#?}"
    );
    // What takes long with a large file is done without the lock.
    let removed = of("Remove", ".deleted");
    assert!(removed.len() > 20 && !removed.contains(&true), "{told:#?}");
}
