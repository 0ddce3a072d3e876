//! Reading beside the process that writes.

use super::*;

// Broken if it failed: a Spark task could not read a log that a broker is writing, or would read half a batch
// or disturb the broker.
#[test]
fn a_reader_beside_a_live_writer() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path());
    fill(&writer, 3);
    let before = names(dir.path());
    let reader = Log::open_read_only(dir.path()).unwrap();
    assert_eq!(values_from(&reader, 0), values_from(&writer, 0));
    for round in 1..40 {
        fill(&writer, 3);
        assert_eq!(reader.log_end_offset(), round * 3);
        reader.refresh().unwrap();
        assert_eq!(reader.log_end_offset(), round * 3 + 3);
        assert_eq!(values_from(&reader, round), values_from(&writer, round));
    }
    assert!(writer.segment_count() > 3);
    // A batch that is being written.
    let active = writer.active();
    let whole = writer
        .read(119, 1 << 20, i64::MAX, true)
        .unwrap()
        .read_to_vec()
        .unwrap();
    let path = active.path();
    let mut bytes = std::fs::read(path).unwrap();
    bytes.extend(&whole[..whole.len() - 1]);
    std::fs::write(path, bytes).unwrap();
    reader.refresh().unwrap();
    assert_eq!(reader.log_end_offset(), 120);
    assert!(matches!(
        reader.append_as_leader(&mut batch_at(0, &[b"x"]), 0, 0),
        Err(StorageError::ReadOnly { .. })
    ));
    assert!(matches!(
        reader.delete_old_segments(0),
        Err(StorageError::ReadOnly { .. })
    ));
    reader.close().unwrap();
    assert!(names(dir.path()).starts_with(&before[..2]));
}

// Broken if it failed: a reader would lose an open segment that retention deletes, or keep serving it after a
// refresh.
#[test]
fn retention_under_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path());
    fill(&writer, 60);
    let reader = Log::open_read_only(dir.path()).unwrap();
    writer.update_config(LogConfig {
        retention_bytes: 3000,
        file_delete_delay_ms: 0,
        ..small()
    });
    writer.maintain(5000).unwrap();
    assert!(writer.log_start_offset() > 0);
    // What was opened stays readable; a refresh sees what is left.
    assert_eq!(values_from(&reader, 0).len(), 60);
    reader.refresh().unwrap();
    assert_eq!(reader.log_start_offset(), writer.log_start_offset());
    assert_eq!(
        values_from(&reader, reader.log_start_offset()),
        values_from(&writer, writer.log_start_offset())
    );
}

// Broken if it failed: a reader would go on with records that the broker has truncated, or take its new ones
// for damage.
#[test]
fn a_truncation_under_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path());
    fill(&writer, 60);
    let reader = Log::open_read_only(dir.path()).unwrap();
    assert_eq!(values_from(&reader, 0).len(), 60);
    for (target, batch) in [(33, 1), (5, 2), (0, 3)] {
        writer.truncate_to(target).unwrap();
        for _ in 0..20 {
            let values = vec![&[b'x'; 40][..]; batch];
            writer.append_as_leader(&mut batch_at(7, &values), 0, 0).unwrap();
        }
        reader.refresh().unwrap();
        assert_eq!(values_from(&reader, 0), values_from(&writer, 0));
    }
    writer.truncate_fully_and_start_at(100, None).unwrap();
    fill(&writer, 3);
    reader.refresh().unwrap();
    assert_eq!(values_from(&reader, 100), values_from(&writer, 100));
    writer.truncate_fully_and_start_at(50, None).unwrap();
    reader.refresh().unwrap();
    assert_eq!((reader.log_start_offset(), reader.log_end_offset()), (50, 50));
}

// Broken if it failed: a reader would go on in another log with the same name.
#[test]
fn another_log_of_the_same_name_is_not_read() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("t-0");
    let writer = open(&dir);
    fill(&writer, 6);
    let reader = Log::open_read_only(&dir).unwrap();
    std::fs::rename(&dir, parent.path().join("t-0.deleted")).unwrap();
    assert!(matches!(reader.refresh(), Err(StorageError::NotFound { .. })));
    fill(&open(&dir), 9);
    assert!(matches!(reader.refresh(), Err(StorageError::NotFound { .. })));
    assert_eq!(values_from(&reader, 0).len(), 6);
}

// Broken if it failed: a reader would find no log while its owner starts it again at another offset.
#[test]
fn a_log_may_have_no_segment_for_a_moment() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path());
    fill(&writer, 6);
    let reader = Log::open_read_only(dir.path()).unwrap();
    for name in names(dir.path()) {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    reader.refresh().unwrap();
    assert_eq!(values_from(&reader, 0).len(), 6);
}

// Broken if it failed: a path without a log would open as an empty one.
#[test]
fn a_directory_without_a_log_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_path_buf(), dir.path().join("missing")] {
        assert!(matches!(
            Log::open_read_only(&path),
            Err(StorageError::NotFound { .. })
        ));
    }
    assert!(names(dir.path()).is_empty());
}
