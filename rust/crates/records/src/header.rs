//! The header of a record batch v2.
//!
//! Layout (KIP-98, `DefaultRecordBatch`), big-endian:
//!
//! ```text
//!  0  base offset            i64     23  last offset delta   i32
//!  8  batch length           i32     27  base timestamp      i64   ms since the epoch
//! 12  partition leader epoch i32     35  max timestamp       i64   ms since the epoch
//! 16  magic (2)              i8      43  producer id         i64   -1: none
//! 17  CRC-32C of 21..end     u32     51  producer epoch      i16
//! 21  attributes             i16     53  base sequence       i32
//!                                    57  record count        i32
//! 61  records
//! ```
//!
//! The batch length counts from byte 12. Attributes: bits 0-2 codec, bit 3 timestamp type, bit 4
//! transactional, bit 5 control, bit 6 delete horizon. The checksum does not cover the base offset and the
//! leader epoch, so a broker sets both without computing it again.

use crate::compression::Compression;
use crate::error::RecordError;

/// Bytes of a batch header.
pub const HEADER_SIZE: usize = 61;
/// Bytes of the base offset and the batch length, which the batch length does not count.
pub const LOG_OVERHEAD: usize = 12;
/// The magic byte of this format.
pub const MAGIC_V2: i8 = 2;

pub(crate) const LENGTH_AT: usize = 8;
pub(crate) const LEADER_EPOCH_AT: usize = 12;
/// The position of the magic byte in every format, legacy too.
pub(crate) const MAGIC_AT: usize = 16;
pub(crate) const CRC_AT: usize = 17;
/// The first byte that the checksum covers.
pub(crate) const ATTRIBUTES_AT: usize = 21;
pub(crate) const BASE_TIMESTAMP_AT: usize = 27;
pub(crate) const MAX_TIMESTAMP_AT: usize = 35;
pub(crate) const PRODUCER_ID_AT: usize = 43;
pub(crate) const PRODUCER_EPOCH_AT: usize = 51;
pub(crate) const BASE_SEQUENCE_AT: usize = 53;
pub(crate) const RECORD_COUNT_AT: usize = 57;

pub(crate) const CODEC_MASK: i16 = 0x07;
pub(crate) const LOG_APPEND_TIME_FLAG: i16 = 0x08;
pub(crate) const TRANSACTIONAL_FLAG: i16 = 0x10;
pub(crate) const CONTROL_FLAG: i16 = 0x20;
pub(crate) const DELETE_HORIZON_FLAG: i16 = 0x40;

/// Whose clock gives a batch's timestamps (`message.timestamp.type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimestampType {
    /// The producer's.
    CreateTime,
    /// The broker's; one timestamp for the whole batch.
    LogAppendTime,
}

/// Whether the batch at the front of `bytes` is part of a transaction, without parsing its header.
pub fn is_transactional(bytes: &[u8]) -> bool {
    bytes.get(MAGIC_AT) == Some(&(MAGIC_V2 as u8))
        && bytes.len() >= HEADER_SIZE
        && i16::from_be_bytes(array_at(bytes, ATTRIBUTES_AT)) & TRANSACTIONAL_FLAG != 0
}

/// The header's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchHeader {
    pub base_offset: i64,
    /// Bytes after the length field.
    pub batch_length: i32,
    pub partition_leader_epoch: i32,
    pub magic: i8,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    pub attributes: i16,
    /// Offset of the last record minus the base offset. In a compacted log that record may be gone.
    pub last_offset_delta: i32,
    /// Milliseconds since the epoch; -1 when the records have none.
    pub base_timestamp: i64,
    /// Milliseconds since the epoch. The timestamp of every record when the type is log append time.
    pub max_timestamp: i64,
    /// -1 when the producer is not idempotent.
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

/// Reads `N` bytes at `at`. Panics when there are fewer; callers check the length first.
#[inline]
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

impl BatchHeader {
    /// Reads the header at the front of `bytes`. The batch need not be complete.
    ///
    /// Errors: too few bytes, a magic byte other than 2, a batch length shorter than a header.
    /// [`crate::Batch::validate`] checks everything else.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        if let Some(&magic) = bytes.get(MAGIC_AT)
            && magic as i8 != MAGIC_V2
        {
            return Err(RecordError::UnsupportedMagic(magic as i8));
        }
        let Some(bytes) = bytes.first_chunk::<HEADER_SIZE>() else {
            return Err(RecordError::Truncated {
                what: "batch header",
                needed: HEADER_SIZE,
                available: bytes.len(),
            });
        };
        let header = Self {
            base_offset: i64::from_be_bytes(array_at(bytes, 0)),
            batch_length: i32::from_be_bytes(array_at(bytes, LENGTH_AT)),
            partition_leader_epoch: i32::from_be_bytes(array_at(bytes, LEADER_EPOCH_AT)),
            magic: bytes[MAGIC_AT] as i8,
            crc: u32::from_be_bytes(array_at(bytes, CRC_AT)),
            attributes: i16::from_be_bytes(array_at(bytes, ATTRIBUTES_AT)),
            last_offset_delta: i32::from_be_bytes(array_at(bytes, 23)),
            base_timestamp: i64::from_be_bytes(array_at(bytes, BASE_TIMESTAMP_AT)),
            max_timestamp: i64::from_be_bytes(array_at(bytes, MAX_TIMESTAMP_AT)),
            producer_id: i64::from_be_bytes(array_at(bytes, PRODUCER_ID_AT)),
            producer_epoch: i16::from_be_bytes(array_at(bytes, PRODUCER_EPOCH_AT)),
            base_sequence: i32::from_be_bytes(array_at(bytes, BASE_SEQUENCE_AT)),
            record_count: i32::from_be_bytes(array_at(bytes, RECORD_COUNT_AT)),
        };
        let minimum = (HEADER_SIZE - LOG_OVERHEAD) as i32;
        if header.batch_length < minimum {
            return Err(RecordError::InvalidLength {
                what: "batch",
                length: i64::from(header.batch_length),
                minimum: i64::from(minimum),
            });
        }
        Ok(header)
    }

    /// Writes the header to the first [`HEADER_SIZE`] bytes of `out`, with `self.crc` as the checksum.
    pub(crate) fn write(&self, out: &mut [u8]) {
        out[0..8].copy_from_slice(&self.base_offset.to_be_bytes());
        out[8..12].copy_from_slice(&self.batch_length.to_be_bytes());
        out[12..16].copy_from_slice(&self.partition_leader_epoch.to_be_bytes());
        out[16] = self.magic as u8;
        out[17..21].copy_from_slice(&self.crc.to_be_bytes());
        out[21..23].copy_from_slice(&self.attributes.to_be_bytes());
        out[23..27].copy_from_slice(&self.last_offset_delta.to_be_bytes());
        out[27..35].copy_from_slice(&self.base_timestamp.to_be_bytes());
        out[35..43].copy_from_slice(&self.max_timestamp.to_be_bytes());
        out[43..51].copy_from_slice(&self.producer_id.to_be_bytes());
        out[51..53].copy_from_slice(&self.producer_epoch.to_be_bytes());
        out[53..57].copy_from_slice(&self.base_sequence.to_be_bytes());
        out[57..61].copy_from_slice(&self.record_count.to_be_bytes());
    }

    /// Bytes of the whole batch, header included.
    #[inline]
    pub fn size(&self) -> usize {
        // A parsed length is never negative.
        LOG_OVERHEAD + self.batch_length.max(0) as usize
    }

    /// The offset of the batch's last record.
    #[inline]
    pub fn last_offset(&self) -> i64 {
        self.base_offset.wrapping_add(i64::from(self.last_offset_delta))
    }

    /// The offset that follows this batch.
    #[inline]
    pub fn next_offset(&self) -> i64 {
        self.last_offset().wrapping_add(1)
    }

    /// The codec of the records; an error when the number is not defined.
    #[inline]
    pub fn compression(&self) -> Result<Compression, RecordError> {
        Compression::from_code((self.attributes & CODEC_MASK) as u8)
    }

    #[inline]
    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes & LOG_APPEND_TIME_FLAG != 0 {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        }
    }

    /// Sets the timestamp type to create time.
    pub fn set_create_time(&mut self) {
        self.attributes &= !LOG_APPEND_TIME_FLAG;
    }

    /// Part of a transaction; control batches are, too.
    #[inline]
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL_FLAG != 0
    }

    /// Has markers of the broker, which consumers do not see.
    #[inline]
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL_FLAG != 0
    }

    /// The base timestamp is the time after which the cleaner may remove the batch's tombstones.
    #[inline]
    pub fn has_delete_horizon(&self) -> bool {
        self.attributes & DELETE_HORIZON_FLAG != 0
    }

    /// Written by an idempotent producer.
    #[inline]
    pub fn has_producer_id(&self) -> bool {
        self.producer_id >= 0
    }

    /// The sequence of the last record, -1 without one. Sequences wrap from `i32::MAX` to 0.
    #[inline]
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence < 0 {
            return -1;
        }
        let last = i64::from(self.base_sequence) + i64::from(self.last_offset_delta);
        (last & i64::from(i32::MAX)) as i32
    }
}
