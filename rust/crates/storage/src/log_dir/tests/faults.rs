//! Failing disks, and several directories side by side.

use std::sync::Arc;

use parking_lot::Condvar;
use rustix::io::Errno;

use super::*;
use crate::files::disk::Change;
use crate::files::disk::watch::{Watcher, watch};

/// Fails every change below a path.
struct Broken(Errno);

impl Watcher for Broken {
    fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        match change {
            Change::Write { .. } => Ok(Some((1, self.0.into()))),
            Change::Create { .. } | Change::Sync { .. } => Err(self.0.into()),
            _ => Ok(None),
        }
    }
}

fn try_append(partition: &Partition) -> Result<()> {
    let mut batch = batch_of(&[(1, b"v")], None);
    partition.log.append_as_leader(&mut batch, 0, 1).map(|_| ())
}

// Broken if it failed: a broker would go on acknowledging, and creating logs, on a failing disk.
#[test]
fn a_failed_write_takes_the_directory_offline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let logs = open(&path).unwrap();
    let create = |topic: &str| logs.create(topic, 0, [7; 16], LogConfig::default());
    let (bad, good) = (create("a").unwrap(), create("b").unwrap());
    append(&good.log, b"kept");
    let watching = watch(&path.join("a-0"), Arc::new(Broken(Errno::IO)));
    assert!(matches!(try_append(&bad), Err(StorageError::Io { .. })));
    drop(watching);
    assert!(logs.failure().unwrap().contains("a-0"));
    assert_eq!(good.log.failure(), logs.failure());
    for error in [
        try_append(&bad).unwrap_err(),
        try_append(&good).unwrap_err(),
        create("c").unwrap_err(),
        logs.maintain(0).unwrap_err(),
        logs.checkpoint().unwrap_err(),
        logs.close().unwrap_err(),
    ] {
        assert!(matches!(error, StorageError::Offline { .. }), "{error}");
    }
    assert!(!path.join("c-0").exists());
    assert!(!path.join(".kafka_cleanshutdown").exists());
    let logs = open(&path).unwrap();
    assert_eq!(logs.failure(), None);
    assert_eq!(logs.get("b", 0).unwrap().log.log_end_offset(), 1);
}

// Broken if it failed: a full disk, missing file descriptors or one damaged file would stop all logs of a
// directory.
#[test]
fn a_full_disk_and_a_damaged_file_do_not_fail_the_directory() {
    for (errno, own) in [
        (Errno::NOSPC, false),
        (Errno::DQUOT, false),
        (Errno::MFILE, false),
        (Errno::FBIG, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let logs = open(&path).unwrap();
        let create = |topic: &str| logs.create(topic, 0, [7; 16], LogConfig::default());
        let (one, other) = (create("a").unwrap(), create("b").unwrap());
        let watching = watch(&path.join("a-0"), Arc::new(Broken(errno)));
        try_append(&one).unwrap_err();
        drop(watching);
        assert_eq!((one.log.failure().is_some(), logs.failure()), (own, None));
        assert_eq!(try_append(&one).is_err(), own);
        try_append(&other).unwrap();
        assert_eq!(logs.close().is_err(), own);
    }
    let damaged = StorageError::Corrupt {
        path: PathBuf::new(),
        position: 0,
        reason: String::new(),
    };
    let short = StorageError::io("read", "x")(io::ErrorKind::UnexpectedEof.into());
    assert!(!damaged.is_directory_failure() && !short.is_directory_failure());
}

// Broken if it failed: a checkpoint that the disk refuses would be retried for ever, and logs be created
// meanwhile.
#[test]
fn a_failed_checkpoint_takes_the_directory_offline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let logs = open(&path).unwrap();
    logs.create("a", 0, [7; 16], LogConfig::default()).unwrap();
    let checkpoint = path.join("recovery-point-offset-checkpoint.tmp");
    let watching = watch(&checkpoint, Arc::new(Broken(Errno::IO)));
    logs.checkpoint().unwrap_err();
    drop(watching);
    assert!(logs.failure().unwrap().contains("recovery-point"));
}

// Broken if it failed: records appended after a lost end would count as damaged once torn, or one log's
// checkpoint would stop all logs of a full disk.
#[test]
fn a_recovery_point_beyond_the_end_is_lowered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let logs = open(&path).unwrap();
    let created = logs.create("a", 0, [7; 16], LogConfig::default()).unwrap();
    try_append(&created).unwrap();
    created.log.flush().unwrap();
    logs.checkpoint().unwrap();
    drop((logs, created));
    let checkpoint = path.join("recovery-point-offset-checkpoint");
    let saved = || fs::read_to_string(&checkpoint).unwrap();
    fs::write(&checkpoint, saved().replace("a 0 1", "a 0 9")).unwrap();
    let temporary = path.join("recovery-point-offset-checkpoint.tmp");
    let watching = watch(&temporary, Arc::new(Broken(Errno::NOSPC)));
    let full = open(&path).unwrap();
    assert_eq!(full.failure(), None);
    assert!(saved().contains("a 0 9"));
    drop((full, watching));
    drop(open(&path).unwrap());
    assert!(saved().contains("a 0 1"));
}

// Broken if it failed: a broker would serve an arbitrary one of two copies, and delete both.
#[test]
fn one_partition_in_two_directories_is_refused() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = [one.path().to_path_buf(), other.path().to_path_buf()];
    for (path, topics) in [(one.path(), ["a", "t"]), (other.path(), ["b", "t"])] {
        let logs = open(path).unwrap();
        for topic in topics {
            logs.create(topic, 3, [7; 16], LogConfig::default()).unwrap();
        }
        logs.close().unwrap();
    }
    let error = check_duplicates(&paths).unwrap_err().to_string();
    for part in [
        "duplicate log directories for t-3",
        &*one.path().join("t-3").to_string_lossy(),
    ] {
        assert!(error.contains(part), "{error}");
    }
    // During a move between them it may be in both.
    let future = partition_dir::with_suffix("t", 3, Kind::Future).unwrap();
    fs::rename(other.path().join("t-3"), other.path().join(future)).unwrap();
    check_duplicates(&paths).unwrap();
    check_duplicates(&[one.path().to_path_buf(), one.path().join("none")]).unwrap();
}

// Broken if it failed: the progress of a long recovery would not be reported, or its thread count not be
// followed.
#[test]
fn loading_reports_its_progress_and_uses_its_threads() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path()).unwrap();
    let mut size = 0;
    for partition in 0..3 {
        let created = logs.create("t", partition, [7; 16], LogConfig::default());
        let created = created.unwrap();
        append(&created.log, &[b'v'; 1000]);
        size += created.log.size_bytes();
    }
    drop(logs);
    let (at_once, changed) = (Mutex::new(0), Condvar::new());
    let opening = Opening {
        // Waits until all three loads run at once.
        on_log: &|_| {
            let mut here = at_once.lock();
            *here += 1;
            changed.notify_all();
            let timeout = std::time::Duration::from_secs(60);
            changed.wait_while_for(&mut here, |here| *here < 3, timeout);
        },
        threads: std::num::NonZeroUsize::new(3),
        ..Opening::new(&|_| LogConfig::default())
    };
    let logs = LogDir::open_with(dir.path(), 1, None, &opening).unwrap();
    let progress = &opening.progress;
    assert_eq!((progress.logs_done(), progress.logs_total()), (3, 3));
    assert_eq!((progress.bytes_checked(), progress.bytes_total()), (size, size));
    assert_eq!(*at_once.lock(), 3);
    logs.close().unwrap();

    let threads = Mutex::new(std::collections::BTreeSet::new());
    let opening = Opening {
        on_log: &|_| {
            let thread = format!("{:?}", std::thread::current().id());
            threads.lock().insert(thread);
        },
        threads: std::num::NonZeroUsize::new(1),
        ..Opening::new(&|_| LogConfig::default())
    };
    let logs = LogDir::open_with(dir.path(), 1, None, &opening).unwrap();
    assert_eq!((threads.lock().len(), logs.partitions().len()), (1, 3));
    assert_eq!(
        (opening.progress.logs_total(), opening.progress.bytes_total()),
        (3, 0)
    );
}
