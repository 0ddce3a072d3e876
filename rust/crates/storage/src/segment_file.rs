//! The content of a segment's files, one file at a time, for dumps and scripts.
//!
//! Judges nothing. A batch with a wrong checksum is shown and marked, and the walk continues after its
//! length, as in Apache Kafka's `DumpLogSegments`. Opens files for reading only. Any thread may open one.

use std::fs::File;
use std::path::{Path, PathBuf};

use logcore_records::{BatchHeader, Compression};

use crate::error::{Result, StorageError};
use crate::index::transactions::{self, AbortedTxn};
use crate::producers::snapshot;
use crate::segment::scan::StoredBatch;
use crate::slice::read_at_most;

/// Bytes of a message up to its magic byte: offset, length, checksum or epoch, magic.
const FRONT: u64 = 17;
/// The smallest length (`LegacyRecord.RECORD_OVERHEAD_V0`).
const LENGTH_MIN: i32 = 14;
/// Bytes that the length does not count.
const LOG_OVERHEAD: u64 = 12;

/// One batch or legacy message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchInFile {
    pub position: u64,
    pub bytes: Vec<u8>,
    pub magic: i8,
    /// Of a compressed legacy message: the last offset inside it.
    pub base_offset: i64,
    pub last_offset: i64,
    /// Milliseconds since the epoch, -1 when there is none.
    pub max_timestamp: i64,
    /// The attributes. A legacy message has one byte of them.
    pub attributes: i16,
    /// The stored checksum.
    pub crc: u32,
    /// The stored checksum is right.
    pub valid: bool,
    /// The header, of a v2 batch.
    pub header: Option<BatchHeader>,
}

impl BatchInFile {
    /// The codec of the records.
    pub fn compression(&self) -> Result<Compression, logcore_records::RecordError> {
        Compression::from_code((self.attributes & 0x07) as u8)
    }
}

/// A walk over the batches of a `.log` file.
#[derive(Debug)]
pub struct SegmentFile {
    path: PathBuf,
    file: File,
    position: u64,
    end: u64,
}

impl SegmentFile {
    /// Opens a file to read it from `position` to `limit` or to its end.
    pub fn open(path: &Path, position: u64, limit: Option<u64>) -> Result<Self> {
        let file = File::open(path).map_err(StorageError::io("open", path))?;
        let size = file.metadata().map_err(StorageError::io("read", path))?.len();
        Ok(Self {
            path: path.to_path_buf(),
            file,
            position,
            end: limit.map_or(size, |limit| limit.min(size)),
        })
    }

    /// Bytes that have not been read. Without a next batch they are no whole batch.
    pub fn remaining(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }

    /// The next batch; `None` when the rest is no whole batch.
    ///
    /// Errors: [`StorageError::Corrupt`] for an impossible length or format; the disk's.
    pub fn next_batch(&mut self) -> Result<Option<BatchInFile>> {
        if self.remaining() <= FRONT {
            return Ok(None);
        }
        let front = self.read(FRONT as usize)?;
        let Some(front) = front.first_chunk::<{ FRONT as usize }>() else {
            return Ok(None);
        };
        let length = i32::from_be_bytes([front[8], front[9], front[10], front[11]]);
        if length < LENGTH_MIN {
            return Err(self.corrupt(format!("a length of {length} bytes is invalid")));
        }
        let size = LOG_OVERHEAD + length as u64;
        if size > self.remaining() {
            return Ok(None);
        }
        let bytes = self.read(size as usize)?;
        if (bytes.len() as u64) < size {
            return Ok(None);
        }
        let batch = self.describe(bytes)?;
        self.position += size;
        Ok(Some(batch))
    }

    fn describe(&self, bytes: Vec<u8>) -> Result<BatchInFile> {
        let stored = StoredBatch::parse(&bytes, self.position).map_err(|reason| self.corrupt(reason))?;
        let legacy_crc = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
        let header = stored.header.clone();
        Ok(BatchInFile {
            position: self.position,
            valid: stored.verify(&bytes).is_ok(),
            magic: stored.magic,
            base_offset: stored.base_offset,
            last_offset: stored.last_offset,
            max_timestamp: stored.max_timestamp,
            attributes: header
                .as_ref()
                .map_or(i16::from(bytes[FRONT as usize]), |h| h.attributes),
            crc: header.as_ref().map_or(legacy_crc, |h| h.crc),
            header,
            bytes,
        })
    }

    fn read(&self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let filled = read_at_most(&self.file, &mut bytes, self.position)
            .map_err(StorageError::io("read", &self.path))?;
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn corrupt(&self, reason: String) -> StorageError {
        StorageError::Corrupt {
            path: self.path.clone(),
            position: self.position,
            reason,
        }
    }
}

/// A producer in a `.snapshot` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerInFile {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub coordinator_epoch: i32,
    /// -1 without an open transaction.
    pub transaction_first_offset: i64,
    pub last_timestamp: i64,
    /// The last batch; `None` when it is unknown.
    pub last_batch: Option<LastBatch>,
}

/// The last batch of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastBatch {
    pub first_sequence: i32,
    pub last_sequence: i32,
    pub last_offset: i64,
    pub offset_delta: i32,
    pub timestamp: i64,
}

/// The producers in a `.snapshot` file, in the file's order.
///
/// Errors: [`StorageError::NotFound`], [`StorageError::Corrupt`], the disk's.
pub fn read_producers(path: &Path) -> Result<Vec<ProducerInFile>> {
    let Some(entries) = snapshot::read_entries(path)? else {
        return Err(StorageError::NotFound {
            path: path.to_path_buf(),
        });
    };
    Ok(entries
        .into_iter()
        .map(|(producer_id, entry)| ProducerInFile {
            producer_id,
            producer_epoch: entry.epoch,
            coordinator_epoch: entry.coordinator_epoch,
            transaction_first_offset: entry.transaction_start.unwrap_or(-1),
            last_timestamp: entry.last_timestamp,
            last_batch: entry.batches.back().map(|batch| LastBatch {
                first_sequence: batch.first_sequence(),
                last_sequence: batch.last_sequence,
                last_offset: batch.last_offset,
                offset_delta: batch.offset_delta,
                timestamp: batch.timestamp,
            }),
        })
        .collect())
}

/// The aborted transactions in a `.txnindex` file.
///
/// Errors: [`StorageError::NotFound`], [`StorageError::Corrupt`], the disk's.
pub fn read_aborted(path: &Path) -> Result<Vec<AbortedTxn>> {
    if !path.exists() {
        return Err(StorageError::NotFound {
            path: path.to_path_buf(),
        });
    }
    transactions::read(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kafka-3.9.1/golden-0");

    fn walk(path: &Path, limit: Option<u64>) -> (Vec<BatchInFile>, u64) {
        let mut file = SegmentFile::open(path, 0, limit).unwrap();
        let mut batches = Vec::new();
        while let Some(batch) = file.next_batch().unwrap() {
            batches.push(batch);
        }
        (batches, file.remaining())
    }

    // Broken if it failed: a dump would leave out batches, or show damaged ones as intact.
    #[test]
    fn every_batch_is_shown_damaged_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00000000000000000132.log");
        let mut bytes = std::fs::read(Path::new(FIXTURE).join("00000000000000000132.log")).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let (whole, rest) = walk(&path, None);
        assert_eq!(rest, 0);
        assert!(whole.iter().all(|batch| batch.valid));
        assert_eq!((whole[0].base_offset, whole[0].position), (132, 0));
        let (some, rest) = walk(&path, Some(whole[1].position + 20));
        assert_eq!((some.len(), rest), (1, 20));

        bytes[100] ^= 1;
        bytes.extend([0; 16]);
        std::fs::write(&path, &bytes).unwrap();
        let (damaged, rest) = walk(&path, None);
        assert_eq!((damaged.len(), rest), (whole.len(), 16));
        assert!(!damaged[0].valid && damaged[1].valid);
        bytes.extend([0; 16]);
        std::fs::write(&path, &bytes).unwrap();
        let mut file = SegmentFile::open(&path, whole.last().unwrap().position, None).unwrap();
        file.next_batch().unwrap();
        assert!(matches!(file.next_batch(), Err(StorageError::Corrupt { .. })));
    }

    // Broken if it failed: a dump of Kafka's snapshots and transaction indexes would show wrong content.
    #[test]
    fn small_files() {
        let producers = read_producers(&Path::new(FIXTURE).join("00000000000000000164.snapshot")).unwrap();
        // Five idempotent producers and the transactional one.
        assert_eq!(producers.len(), 6);
        let aborted = read_aborted(&Path::new(FIXTURE).join("00000000000000000161.txnindex")).unwrap();
        assert_eq!(aborted.len(), 1);
        let missing = Path::new(FIXTURE).join("none.snapshot");
        assert!(matches!(
            read_producers(&missing),
            Err(StorageError::NotFound { .. })
        ));
        assert!(matches!(
            read_aborted(&missing),
            Err(StorageError::NotFound { .. })
        ));
    }
}
