//! One record batch v2 in a slice of bytes: its checks, its records, and the fields a broker changes in
//! place.
//!
//! Reading a batch copies nothing. The layout is in [`crate::header`] and [`crate::record`].

use std::borrow::Cow;

use crate::compression::{self, Compression};
use crate::error::RecordError;
use crate::header::{
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BatchHeader, CRC_AT, HEADER_SIZE, LEADER_EPOCH_AT, LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD, MAX_TIMESTAMP_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, array_at,
};
use crate::record::{RECORD_SIZE_MIN, RecordBase, RecordIter, Records};

/// The checksum of batches v2. It covers everything from the attributes on.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// A complete batch. Only its length and magic byte have been checked.
#[derive(Debug, Clone)]
pub struct Batch<'a> {
    pub header: BatchHeader,
    /// Exactly this batch, header included.
    pub bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Reads the batch at the front of `bytes`. More bytes may follow it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let header = BatchHeader::parse(bytes)?;
        let size = header.size();
        match bytes.get(..size) {
            Some(bytes) => Ok(Self { header, bytes }),
            None => Err(RecordError::Truncated {
                what: "batch",
                needed: size,
                available: bytes.len(),
            }),
        }
    }

    /// Compares the stored checksum with that of the bytes.
    pub fn verify_crc(&self) -> Result<(), RecordError> {
        let computed = crc32c(&self.bytes[ATTRIBUTES_AT..]);
        if computed == self.header.crc {
            Ok(())
        } else {
            Err(RecordError::CrcMismatch {
                stored: self.header.crc,
                computed,
            })
        }
    }

    /// The bytes after the header: the records, compressed if the attributes say so.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_SIZE..]
    }

    /// The records. Compressed records are decompressed into a new buffer, to at most `limit` bytes.
    pub fn records(&self, limit: usize) -> Result<Records<'a>, RecordError> {
        let codec = self.header.compression()?;
        let bytes = if codec == Compression::None {
            Cow::Borrowed(self.payload())
        } else {
            let mut out = Vec::new();
            compression::decompress(codec, self.payload(), limit, &mut out)?;
            Cow::Owned(out)
        };
        Ok(Records {
            base: RecordBase::of(&self.header),
            bytes,
        })
    }

    /// Like [`Batch::records`], but decompresses into `scratch`, whose capacity is reused from batch to
    /// batch. Uncompressed batches leave `scratch` unchanged.
    pub fn records_in<'r>(
        &self,
        scratch: &'r mut Vec<u8>,
        limit: usize,
    ) -> Result<RecordIter<'r>, RecordError>
    where
        'a: 'r,
    {
        let codec = self.header.compression()?;
        let bytes = if codec == Compression::None {
            self.payload()
        } else {
            compression::decompress(codec, self.payload(), limit, scratch)?;
            &scratch[..]
        };
        Ok(RecordIter::new(RecordBase::of(&self.header), bytes))
    }

    /// Checks that a producer's batch has a sequence. A coordinator writes transactional batches without one.
    pub fn check_sequence(&self) -> Result<(), RecordError> {
        let header = &self.header;
        if header.has_producer_id() && header.base_sequence < 0 && !header.is_control() {
            return Err(RecordError::InconsistentBatch(format!(
                "producer id {} with the base sequence {}",
                header.producer_id, header.base_sequence
            )));
        }
        Ok(())
    }

    /// Checks the header of a new batch: a known codec, a count that matches the last offset delta, and a
    /// producer id if it is transactional. Undefined attribute bits are ignored, as Kafka does.
    pub fn check_header(&self) -> Result<Compression, RecordError> {
        let header = &self.header;
        let codec = header.compression()?;
        let inconsistent = |text: String| Err(RecordError::InconsistentBatch(text));
        let (count, delta) = (header.record_count, header.last_offset_delta);
        if count <= 0 || count - 1 != delta {
            return inconsistent(format!("{count} records with the last offset delta {delta}"));
        }
        if header.base_offset.checked_add(i64::from(count)).is_none() {
            return inconsistent(format!("base offset {} with {count} records", header.base_offset));
        }
        // A count that does not fit the payload is refused before anything is decompressed.
        let size = self.payload().len();
        let most = codec.most_decompressed(size) / RECORD_SIZE_MIN;
        if count as usize > most {
            return inconsistent(format!(
                "{count} records in {size} bytes with the codec {codec}, which cannot hold more than {most}"
            ));
        }
        if header.is_transactional() && !header.has_producer_id() {
            return inconsistent("transactional without a producer id".to_owned());
        }
        Ok(codec)
    }
}

/// Iterates over the batches in `bytes`; see [`Batches`].
pub fn batches(bytes: &[u8]) -> Batches<'_> {
    Batches {
        bytes,
        position: 0,
        failed: false,
    }
}

/// Yields each complete batch. Ends before an incomplete batch without an error, and after the first error.
#[derive(Debug, Clone)]
pub struct Batches<'a> {
    bytes: &'a [u8],
    position: usize,
    failed: bool,
}

impl<'a> Batches<'a> {
    /// Bytes of the batches yielded so far.
    pub fn valid_bytes(&self) -> usize {
        self.position
    }

    /// The bytes after [`Batches::valid_bytes`].
    pub fn remaining(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<Batch<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.remaining();
        if self.failed || rest.is_empty() {
            return None;
        }
        match Batch::parse(rest) {
            Ok(batch) => {
                self.position += batch.bytes.len();
                Some(Ok(batch))
            }
            Err(RecordError::Truncated { .. }) => None,
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

impl std::iter::FusedIterator for Batches<'_> {}

/// Sets a batch's base offset and leader epoch. The checksum does not cover them and stays valid.
///
/// `batch` starts with a parsed batch. Panics when it is shorter.
pub fn set_offsets_in_place(batch: &mut [u8], base_offset: i64, leader_epoch: i32) {
    batch[..8].copy_from_slice(&base_offset.to_be_bytes());
    batch[LEADER_EPOCH_AT..LEADER_EPOCH_AT + 4].copy_from_slice(&leader_epoch.to_be_bytes());
}

/// Sets the broker's time `now_ms` (milliseconds since the epoch) on all records of a batch, and the
/// checksum.
///
/// `batch` is exactly one parsed batch with a verified checksum. Panics when it is shorter.
pub fn set_log_append_time_in_place(batch: &mut [u8], now_ms: i64) {
    let attributes = i16::from_be_bytes(array_at(batch, ATTRIBUTES_AT)) | LOG_APPEND_TIME_FLAG;
    batch[ATTRIBUTES_AT..ATTRIBUTES_AT + 2].copy_from_slice(&attributes.to_be_bytes());
    batch[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_AT + 8].copy_from_slice(&now_ms.to_be_bytes());
    set_crc(batch);
}

/// Undoes [`set_log_append_time_in_place`]: the records have their own timestamps again, of which
/// `max_timestamp` is the largest (milliseconds since the epoch). Sets the checksum.
///
/// `batch` is exactly one parsed batch with a verified checksum. Panics when it is shorter.
pub fn set_create_time_in_place(batch: &mut [u8], max_timestamp: i64) {
    let attributes = i16::from_be_bytes(array_at(batch, ATTRIBUTES_AT)) & !LOG_APPEND_TIME_FLAG;
    batch[ATTRIBUTES_AT..ATTRIBUTES_AT + 2].copy_from_slice(&attributes.to_be_bytes());
    set_max_timestamp_in_place(batch, max_timestamp);
}

/// The header's largest timestamp, in milliseconds since the epoch.
///
/// `batch` is exactly one parsed batch. Panics when it is shorter.
pub fn max_timestamp_of(batch: &[u8]) -> i64 {
    i64::from_be_bytes(array_at(batch, MAX_TIMESTAMP_AT))
}

/// Sets the header's largest timestamp, in milliseconds since the epoch, and the checksum.
///
/// `batch` is exactly one parsed batch. Panics when it is shorter.
pub fn set_max_timestamp_in_place(batch: &mut [u8], max_timestamp: i64) {
    batch[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_AT + 8].copy_from_slice(&max_timestamp.to_be_bytes());
    set_crc(batch);
}

/// Sets a batch's producer id, epoch and base sequence, and the checksum. An idempotent producer does so when
/// its epoch was raised and it sends the batch again.
///
/// `batch` is exactly one parsed batch. Panics when it is shorter.
pub fn set_producer_state_in_place(
    batch: &mut [u8],
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
) {
    batch[PRODUCER_ID_AT..PRODUCER_ID_AT + 8].copy_from_slice(&producer_id.to_be_bytes());
    batch[PRODUCER_EPOCH_AT..PRODUCER_EPOCH_AT + 2].copy_from_slice(&producer_epoch.to_be_bytes());
    batch[BASE_SEQUENCE_AT..BASE_SEQUENCE_AT + 4].copy_from_slice(&base_sequence.to_be_bytes());
    set_crc(batch);
}

/// Computes the checksum of a batch and stores it.
pub(crate) fn set_crc(batch: &mut [u8]) {
    let crc = crc32c(&batch[ATTRIBUTES_AT..]);
    batch[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
}

/// The batch length field of a batch of `size` bytes.
pub(crate) fn length_field(size: usize) -> Result<i32, RecordError> {
    i32::try_from(size - LOG_OVERHEAD).map_err(|_| RecordError::TooLarge { what: "batch", size })
}

#[cfg(test)]
mod tests;
