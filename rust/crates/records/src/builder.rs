//! Encoding records into a batch v2.
//!
//! Each record is encoded once, into one buffer with space for the header in front. `build` compresses it if
//! asked to, fills in the header and computes the checksum. The producer uses it for every record, from one
//! thread at a time.

use crate::batch::{length_field, set_crc};
use crate::compression::{self, Compression};
use crate::error::RecordError;
use crate::header::{
    BatchHeader, CONTROL_FLAG, HEADER_SIZE, LOG_APPEND_TIME_FLAG, MAGIC_V2, TRANSACTIONAL_FLAG, TimestampType,
};
use crate::varint::{self, Scratch};

/// Collects records and builds batches of them, one after another.
#[derive(Debug)]
pub struct BatchBuilder {
    compression: Compression,
    level: Option<i32>,
    /// Space for the header, then the encoded records.
    buffer: Vec<u8>,
    count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
    base_offset: i64,
    leader_epoch: i32,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    flags: i16,
}

impl BatchBuilder {
    /// An empty builder. `level` is the codec's level, `None` its default. A level out of range is clamped.
    pub fn new(compression: Compression, level: Option<i32>) -> Self {
        Self::with_capacity(compression, level, 0)
    }

    /// [`BatchBuilder::new`] with memory for a batch of `capacity` bytes.
    pub fn with_capacity(compression: Compression, level: Option<i32>, capacity: usize) -> Self {
        Self {
            compression,
            level,
            buffer: empty_buffer(capacity),
            count: 0,
            base_timestamp: -1,
            max_timestamp: -1,
            base_offset: 0,
            leader_epoch: -1,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            flags: 0,
        }
    }

    /// Appends one record and returns its offset delta. `timestamp_ms` is milliseconds since the epoch, -1
    /// for none.
    ///
    /// Errors: the record does not fit into a batch's 31-bit lengths. Nothing was appended then.
    #[inline]
    pub fn append(
        &mut self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
    ) -> Result<i32, RecordError> {
        let offset_delta = self.count;
        let base_timestamp = if offset_delta == 0 {
            timestamp_ms
        } else {
            self.base_timestamp
        };
        let timestamp_delta = timestamp_ms.wrapping_sub(base_timestamp);
        let body = body_size(timestamp_delta, offset_delta, key, value, headers);
        // The length prefix takes five bytes at most. This check covers every cast below.
        let size = self.buffer.len() + varint::MAX_I32_SIZE + body;
        if size > i32::MAX as usize || offset_delta == i32::MAX {
            return Err(RecordError::TooLarge {
                what: "record",
                size: body,
            });
        }
        self.buffer.reserve(varint::MAX_I32_SIZE + body);
        encode_record(
            &mut self.buffer,
            body,
            timestamp_delta,
            offset_delta,
            key,
            value,
            headers,
        );
        self.base_timestamp = base_timestamp;
        self.max_timestamp = if offset_delta == 0 {
            timestamp_ms
        } else {
            self.max_timestamp.max(timestamp_ms)
        };
        self.count += 1;
        Ok(offset_delta)
    }

    /// The most bytes that a record can add to a batch, whatever its position and timestamp.
    pub fn record_size_bound(
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
    ) -> usize {
        varint::MAX_I32_SIZE + body_size(i64::MIN, i32::MIN, key, value, headers)
    }

    /// Bytes of the batch so far, header included, before compression.
    #[inline]
    pub fn estimated_size(&self) -> usize {
        self.buffer.len()
    }

    /// Records so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The codec.
    #[inline]
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// The largest timestamp so far in milliseconds since the epoch, -1 before the first record.
    pub fn max_timestamp(&self) -> i64 {
        self.max_timestamp
    }

    /// The producer id, epoch and base sequence of the next batches; -1, -1, -1 for none.
    pub fn set_producer_state(&mut self, producer_id: i64, producer_epoch: i16, base_sequence: i32) {
        self.producer_id = producer_id;
        self.producer_epoch = producer_epoch;
        self.base_sequence = base_sequence;
    }

    /// Marks the next batches as part of a transaction.
    pub fn set_transactional(&mut self, transactional: bool) {
        self.set_flag(TRANSACTIONAL_FLAG, transactional);
    }

    /// Marks the next batches as control batches, whose records are markers.
    pub fn set_control(&mut self, control: bool) {
        self.set_flag(CONTROL_FLAG, control);
    }

    /// With log append time, readers give all records the largest timestamp.
    pub fn set_timestamp_type(&mut self, timestamp_type: TimestampType) {
        self.set_flag(
            LOG_APPEND_TIME_FLAG,
            timestamp_type == TimestampType::LogAppendTime,
        );
    }

    /// The offset of the first record, 0 unless set, and the leader epoch, -1 unless set.
    pub fn set_base_offset(&mut self, base_offset: i64, leader_epoch: i32) {
        self.base_offset = base_offset;
        self.leader_epoch = leader_epoch;
    }

    fn set_flag(&mut self, flag: i16, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    /// Finishes the batch and begins the next with the same settings. The caller sets the next base sequence.
    ///
    /// An uncompressed batch is the buffer itself, not a copy. Errors: no records, a failed codec, or a batch
    /// above 2 GiB. After an error the builder is unchanged.
    pub fn build(&mut self) -> Result<Vec<u8>, RecordError> {
        if self.compression != Compression::None {
            let mut out = Vec::new();
            self.build_into(&mut out)?;
            return Ok(out);
        }
        let header = self.header(self.buffer.len())?;
        let capacity = self.buffer.len();
        let mut batch = std::mem::replace(&mut self.buffer, empty_buffer(capacity));
        header.write(&mut batch);
        set_crc(&mut batch);
        self.reset();
        Ok(batch)
    }

    /// Like [`BatchBuilder::build`], but appends the batch to `out` and reuses its own buffer.
    pub fn build_into(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        if self.count == 0 {
            return Err(RecordError::Empty);
        }
        let start = out.len();
        let result = self.write_batch(out, start);
        if result.is_err() {
            out.truncate(start);
        } else {
            self.reset();
        }
        result
    }

    /// [`BatchBuilder::build_into`] for batches of at most `limit` bytes. Compressing random bytes makes them
    /// larger: a batch that exceeds `limit` only through compression is written uncompressed.
    pub fn build_within(&mut self, limit: usize, out: &mut Vec<u8>) -> Result<(), RecordError> {
        let start = out.len();
        let plain_fits = self.buffer.len() <= limit;
        let codec = self.compression;
        if self.count == 0 || codec == Compression::None || !plain_fits {
            return self.build_into(out);
        }
        let written = self.write_batch(out, start).and_then(|()| {
            if out.len() - start <= limit {
                return Ok(());
            }
            out.truncate(start);
            self.compression = Compression::None;
            self.write_batch(out, start)
        });
        self.compression = codec;
        match written {
            Ok(()) => self.reset(),
            Err(_) => out.truncate(start),
        }
        written
    }

    fn write_batch(&mut self, out: &mut Vec<u8>, start: usize) -> Result<(), RecordError> {
        if self.compression == Compression::None {
            out.extend_from_slice(&self.buffer);
        } else {
            out.extend_from_slice(&[0; HEADER_SIZE]);
            let records = &self.buffer[HEADER_SIZE..];
            compression::compress(self.compression, self.level, records, out)?;
        }
        let header = self.header(out.len() - start)?;
        header.write(&mut out[start..]);
        set_crc(&mut out[start..]);
        Ok(())
    }

    /// The header of a batch of `size` bytes, without its checksum.
    fn header(&self, size: usize) -> Result<BatchHeader, RecordError> {
        if self.count == 0 {
            return Err(RecordError::Empty);
        }
        Ok(BatchHeader {
            base_offset: self.base_offset,
            batch_length: length_field(size)?,
            partition_leader_epoch: self.leader_epoch,
            magic: MAGIC_V2,
            crc: 0,
            attributes: self.flags | i16::from(self.compression.code()),
            last_offset_delta: self.count - 1,
            base_timestamp: self.base_timestamp,
            max_timestamp: self.max_timestamp,
            producer_id: self.producer_id,
            producer_epoch: self.producer_epoch,
            base_sequence: self.base_sequence,
            record_count: self.count,
        })
    }

    /// Removes the records; keeps the settings and the buffer.
    pub fn reset(&mut self) {
        self.buffer.truncate(HEADER_SIZE);
        self.count = 0;
        self.base_timestamp = -1;
        self.max_timestamp = -1;
    }
}

fn empty_buffer(capacity: usize) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(capacity.max(HEADER_SIZE));
    buffer.resize(HEADER_SIZE, 0);
    buffer
}

#[inline]
fn bytes_size(bytes: Option<&[u8]>) -> usize {
    match bytes {
        // A length above `i32::MAX` counts as five bytes here too; `append` refuses the sum.
        Some(bytes) => varint::size_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX)) + bytes.len(),
        None => 1,
    }
}

#[inline]
fn body_size(
    timestamp_delta: i64,
    offset_delta: i32,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[(&[u8], Option<&[u8]>)],
) -> usize {
    let mut size = 1 + varint::size_i64(timestamp_delta) + varint::size_i32(offset_delta);
    size += bytes_size(key) + bytes_size(value);
    size += varint::size_i32(i32::try_from(headers.len()).unwrap_or(i32::MAX));
    for (key, value) in headers {
        size += bytes_size(Some(key)) + bytes_size(*value);
    }
    size
}

/// Appends one record. The caller has checked that all lengths fit an `i32`.
#[inline]
fn encode_record(
    out: &mut Vec<u8>,
    body: usize,
    timestamp_delta: i64,
    offset_delta: i32,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[(&[u8], Option<&[u8]>)],
) {
    let mut front = Scratch::new();
    front.i32(body as i32);
    front.u8(0);
    front.i64(timestamp_delta);
    front.i32(offset_delta);
    front.i32(key.map_or(-1, |key| key.len() as i32));
    out.extend_from_slice(front.bytes());
    out.extend_from_slice(key.unwrap_or_default());
    write_bytes(out, value);
    varint::write_i32(out, headers.len() as i32);
    for (key, value) in headers {
        write_bytes(out, Some(key));
        write_bytes(out, *value);
    }
}

#[inline]
fn write_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    varint::write_i32(out, bytes.map_or(-1, |bytes| bytes.len() as i32));
    out.extend_from_slice(bytes.unwrap_or_default());
}
