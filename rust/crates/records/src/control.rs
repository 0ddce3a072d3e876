//! Transaction markers: control batches of one record (`EndTransactionMarker`, `ControlRecordType`, KIP-98).
//!
//! ```text
//! key    version            i16  0
//!        type               i16  0 abort, 1 commit; other types do not end a transaction
//! value  version            i16  0
//!        coordinator epoch  i32
//! ```
//!
//! A later version only adds fields after these. No I/O.

use crate::batch::Batch;
use crate::builder::BatchBuilder;
use crate::compression::Compression;
use crate::error::RecordError;

const VERSION: i16 = 0;
const ABORT: i16 = 0;
const COMMIT: i16 = 1;
/// The most bytes that a compressed control record may decompress to.
const DECOMPRESSED_MAX: usize = 64 << 10;

/// A transaction's end: commit or abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndTxnMarker {
    /// The transaction was committed; aborted otherwise.
    pub committed: bool,
    /// The epoch of the coordinator that wrote the marker. An older epoch belongs to a replaced coordinator.
    pub coordinator_epoch: i32,
}

impl EndTxnMarker {
    /// The marker in a control batch; `None` when it has another control record, or none because it was
    /// compacted.
    ///
    /// Errors: an invalid record, or a marker whose value is too short.
    pub fn of(batch: &Batch<'_>) -> Result<Option<Self>, RecordError> {
        if !batch.header.is_control() {
            return Ok(None);
        }
        let records = batch.records(DECOMPRESSED_MAX)?;
        let Some(record) = records.iter().next() else {
            return Ok(None);
        };
        let record = record?;
        let committed = match record.key.and_then(control_type) {
            Some(ABORT) => false,
            Some(COMMIT) => true,
            _ => return Ok(None),
        };
        let Some([v0, v1, e0, e1, e2, e3]) = record.value.and_then(|value| value.first_chunk()) else {
            return Err(invalid("a transaction's marker has no coordinator epoch"));
        };
        if i16::from_be_bytes([*v0, *v1]) < 0 {
            return Err(invalid("a transaction's marker has a negative version"));
        }
        Ok(Some(Self {
            committed,
            coordinator_epoch: i32::from_be_bytes([*e0, *e1, *e2, *e3]),
        }))
    }
}

fn control_type(key: &[u8]) -> Option<i16> {
    let [v0, v1, t0, t1] = *key.first_chunk()?;
    (i16::from_be_bytes([v0, v1]) >= 0).then_some(i16::from_be_bytes([t0, t1]))
}

fn invalid(reason: &'static str) -> RecordError {
    RecordError::InvalidRecord { index: 0, reason }
}

/// The control batch that ends a producer's transaction, written for a transaction coordinator.
///
/// Errors: those of [`BatchBuilder::build`].
pub fn end_txn_marker(
    producer_id: i64,
    producer_epoch: i16,
    marker: EndTxnMarker,
    timestamp_ms: i64,
) -> Result<Vec<u8>, RecordError> {
    let kind = if marker.committed { COMMIT } else { ABORT };
    let mut key = [0; 4];
    key[..2].copy_from_slice(&VERSION.to_be_bytes());
    key[2..].copy_from_slice(&kind.to_be_bytes());
    let mut value = [0; 6];
    value[..2].copy_from_slice(&VERSION.to_be_bytes());
    value[2..].copy_from_slice(&marker.coordinator_epoch.to_be_bytes());
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.set_producer_state(producer_id, producer_epoch, -1);
    builder.set_transactional(true);
    builder.set_control(true);
    builder.append(timestamp_ms, Some(&key), Some(&value), &[])?;
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: Kafka would not see our transactions end, or we would read an abort as a commit.
    #[test]
    fn markers_are_written_and_read() {
        for committed in [true, false] {
            let marker = EndTxnMarker {
                committed,
                coordinator_epoch: 0x0102_0304,
            };
            let bytes = end_txn_marker(7, 3, marker, 1000).unwrap();
            let batch = Batch::parse(&bytes).unwrap();
            batch.verify_crc().unwrap();
            batch.validate(1000).unwrap();
            assert!(batch.header.is_control() && batch.header.is_transactional());
            let header = &batch.header;
            assert_eq!(
                (header.producer_id, header.producer_epoch, header.base_sequence),
                (7, 3, -1)
            );
            let records = batch.records(100).unwrap();
            let record = records.iter().next().unwrap().unwrap();
            assert_eq!(record.key.unwrap(), [0, 0, 0, u8::from(committed)]);
            assert_eq!(record.value.unwrap(), [0, 0, 1, 2, 3, 4]);
            assert_eq!(EndTxnMarker::of(&batch).unwrap(), Some(marker));
        }
    }

    fn control(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.set_control(true);
        builder.append(0, Some(key), Some(value), &[]).unwrap();
        builder.build().unwrap()
    }

    // Broken if it failed: another control record would end a transaction, or invalid bytes would panic.
    #[test]
    fn other_control_records_are_not_markers() {
        let of = |bytes: &[u8]| EndTxnMarker::of(&Batch::parse(bytes).unwrap());
        let value = [0, 0, 0, 0, 0, 1];
        for key in [&[][..], &[0], &[0, 0, 0], &[0, 0, 0, 2], &[0xff, 0xff, 0, 1]] {
            assert_eq!(of(&control(key, &value)).unwrap(), None, "{key:?}");
        }
        for value in [&[][..], &[0, 0, 0, 0, 0], &[0xff, 0, 0, 0, 0, 1]] {
            assert!(of(&control(&[0, 0, 0, 1], value)).is_err(), "{value:?}");
        }
        // A later version may have more fields.
        let later = control(&[0, 1, 0, 1, 9], &[0, 1, 0, 0, 0, 5, 9]);
        assert_eq!(of(&later).unwrap().unwrap().coordinator_epoch, 5);
        let mut data = BatchBuilder::new(Compression::None, None);
        data.append(0, Some(&[0, 0, 0, 1]), Some(&value), &[]).unwrap();
        assert_eq!(of(&data.build().unwrap()).unwrap(), None);
    }
}
