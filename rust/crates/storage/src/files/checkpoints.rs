//! Kafka's text checkpoints: a version, a count, one entry a line.
//!
//! ```text
//! 0                    version, always 0
//! 2                    how many entries follow
//! user_activity 0 115  entry: "topic partition offset" (OffsetCheckpointFile) or "epoch offset"
//! user_activity 1 98   (LeaderEpochCheckpointFile)
//! ```
//!
//! Each line ends in `\n`, the last one too. An empty file has no entries; Kafka creates it so. Files are
//! replaced whole (`CheckpointFile`), so a crash leaves the old or the new one. Only the holder of the
//! directory's lock writes them.

use std::collections::BTreeMap;
use std::path::Path;

pub use super::names::{
    CLEANER_FILE, HIGH_WATERMARK_FILE, LEADER_EPOCH_FILE, LOG_START_FILE, RECOVERY_POINT_FILE,
};
use crate::error::{Result, StorageError};
use crate::files;

/// Far more than any broker has partitions: one line each.
const SIZE_MAX: u64 = 256 << 20;

/// Offsets of partitions, by topic and partition number.
pub type Offsets = BTreeMap<(String, i32), i64>;

/// Reads a file of `topic partition offset` lines; no entries when the file is not there.
pub fn read_offsets(path: &Path) -> Result<Offsets> {
    let mut offsets = Offsets::new();
    for line in read_lines(path)? {
        let mut parts = line.text.split_whitespace();
        let entry = (|| {
            let topic = parts.next()?;
            let partition = parts.next()?.parse().ok()?;
            let offset = parts.next()?.parse().ok()?;
            parts
                .next()
                .is_none()
                .then(|| ((topic.to_owned(), partition), offset))
        })();
        match entry {
            Some((key, offset)) => offsets.insert(key, offset),
            None => return Err(line.malformed(path)),
        };
    }
    Ok(offsets)
}

/// Replaces a file of `topic partition offset` lines.
pub fn write_offsets(path: &Path, offsets: &Offsets) -> Result<()> {
    let lines = offsets
        .iter()
        .map(|((topic, partition), offset)| format!("{topic} {partition} {offset}\n"));
    files::replace_file(path, text_of(offsets.len(), lines).as_bytes())
}

/// Reads a file of `epoch start-offset` lines; no entries when the file is not there.
pub fn read_epochs(path: &Path) -> Result<Vec<(i32, i64)>> {
    let mut epochs = Vec::new();
    for line in read_lines(path)? {
        let mut parts = line.text.split_whitespace();
        let entry = (|| {
            let epoch = parts.next()?.parse().ok()?;
            let offset = parts.next()?.parse().ok()?;
            parts.next().is_none().then_some((epoch, offset))
        })();
        match entry {
            Some(entry) => epochs.push(entry),
            None => return Err(line.malformed(path)),
        }
    }
    Ok(epochs)
}

/// Replaces a file of `epoch start-offset` lines.
pub fn write_epochs(path: &Path, epochs: &[(i32, i64)]) -> Result<()> {
    files::replace_file(path, epochs_text(epochs).as_bytes())
}

/// [`write_epochs`] without waiting for the disk ([`files::replace_file_unsynced`]).
pub(crate) fn write_epochs_unsynced(path: &Path, epochs: &[(i32, i64)]) -> Result<()> {
    files::replace_file_unsynced(path, epochs_text(epochs).as_bytes())
}

fn epochs_text(epochs: &[(i32, i64)]) -> String {
    let lines = epochs.iter().map(|(epoch, offset)| format!("{epoch} {offset}\n"));
    text_of(epochs.len(), lines)
}

struct Line {
    position: u64,
    text: String,
}

impl Line {
    fn malformed(&self, path: &Path) -> StorageError {
        corrupt(path, self.position, format!("malformed line {:?}", self.text))
    }
}

fn corrupt(path: &Path, position: u64, reason: String) -> StorageError {
    StorageError::Corrupt {
        path: path.to_path_buf(),
        position,
        reason,
    }
}

fn read_lines(path: &Path) -> Result<Vec<Line>> {
    let Some(bytes) = files::read_small(path, SIZE_MAX)? else {
        return Ok(Vec::new());
    };
    let text = String::from_utf8(bytes)
        .map_err(|e| corrupt(path, e.utf8_error().valid_up_to() as u64, "not text".into()))?;
    let mut position = 0;
    let mut lines = Vec::new();
    for raw in text.split_inclusive('\n') {
        lines.push(Line {
            position,
            text: raw.trim_end_matches(['\n', '\r']).to_owned(),
        });
        position += raw.len() as u64;
    }
    if lines.len() < 2 {
        // Kafka also reads an empty file, or one with only a version, as no entries.
        return Ok(Vec::new());
    }
    if lines[0].text != "0" {
        return Err(corrupt(
            path,
            0,
            format!("version {:?} is not known, 0 is", lines[0].text),
        ));
    }
    let count: usize = lines[1].text.parse().map_err(|_| lines[1].malformed(path))?;
    let entries = lines.split_off(2);
    if entries.len() != count {
        return Err(corrupt(
            path,
            lines[1].position,
            format!("{count} entries are announced, {} are there", entries.len()),
        ));
    }
    Ok(entries)
}

fn text_of(count: usize, lines: impl Iterator<Item = String>) -> String {
    let mut text = format!("0\n{count}\n");
    text.extend(lines);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: Kafka could not read our checkpoints, or we could not read Kafka's.
    #[test]
    fn golden_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RECOVERY_POINT_FILE);
        let offsets = Offsets::from([
            (("user_activity".to_owned(), 0), 115),
            (("user_activity".to_owned(), 1), 98),
        ]);
        write_offsets(&path, &offsets).unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            b"0\n2\nuser_activity 0 115\nuser_activity 1 98\n"
        );
        assert_eq!(read_offsets(&path).unwrap(), offsets);

        let path = dir.path().join(LEADER_EPOCH_FILE);
        write_epochs(&path, &[(0, 0), (3, 77)]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"0\n2\n0 0\n3 77\n");
        assert_eq!(read_epochs(&path).unwrap(), [(0, 0), (3, 77)]);
    }

    // Broken if it failed: a damaged checkpoint would be read as offsets, or an empty one would stop the
    // start.
    #[test]
    fn damaged_and_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        assert!(read_offsets(&path).unwrap().is_empty());
        for empty in ["", "0\n", "0\n0\n"] {
            std::fs::write(&path, empty).unwrap();
            assert!(read_offsets(&path).unwrap().is_empty(), "{empty:?}");
        }
        for bad in [
            "1\n0\n",
            "0\n2\na 0 1\n",
            "0\n1\na 0\n",
            "0\n1\na 0 1 2\n",
            "0\n1\na x 1\n",
            "0\n99999999999999\n",
        ] {
            std::fs::write(&path, bad).unwrap();
            assert!(
                matches!(read_offsets(&path), Err(StorageError::Corrupt { .. })),
                "{bad:?}"
            );
        }
        std::fs::write(&path, b"0\n1\n\xff 0 1\n").unwrap();
        assert!(matches!(read_offsets(&path), Err(StorageError::Corrupt { .. })));
    }
}
