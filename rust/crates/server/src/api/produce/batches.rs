//! Parses a partition's records of a Produce request, and checks what depends on the request's version
//! (`ProduceRequest.validateRecords`, `ByteBufferLogInputStream`).

use logcore_records::{Compression, MAGIC_V2, RecordError, batches};
use logcore_storage::ParsedBatches;

use super::{Refused, Result};
use logcore_protocol::ErrorCode;

/// The position of the length in every format. The length counts the bytes after it.
const LENGTH_POSITION: usize = 8;
const FRAME: usize = 12;
/// The position of the magic byte in every format.
const MAGIC_POSITION: usize = 16;
/// The smallest length of any format (`LegacyRecord.RECORD_OVERHEAD_V0`).
const LENGTH_MIN: i64 = 14;

/// The records of a partition, parsed once for everything that follows.
pub(super) enum Records {
    /// Messages v0 and v1, with their size in bytes. They are converted before they are appended.
    Legacy(usize),
    Batches(ParsedBatches),
}

impl Records {
    pub(super) fn parse(version: i16, records: &[u8]) -> Result<Self> {
        if version < 3 && records.get(MAGIC_POSITION) != Some(&(MAGIC_V2 as u8)) {
            whole_messages(records).map(Self::Legacy)
        } else {
            whole_batches(version, records).map(Self::Batches)
        }
    }

    /// The size in bytes. An incomplete last batch is not counted: it is dropped, as in Kafka.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Legacy(size) => *size,
            Self::Batches(parsed) => parsed.size(),
        }
    }

    /// Producers send base offset 0: the broker gives offsets.
    pub(super) fn check_base_offsets(&self) -> Result<()> {
        match self {
            Self::Batches(parsed) if parsed.headers().iter().any(|batch| batch.base_offset != 0) => {
                Err(ErrorCode::INVALID_RECORD.into())
            }
            Self::Batches(_) | Self::Legacy(_) => Ok(()),
        }
    }
}

/// The batch of a partition, or before version 3 the batches.
fn whole_batches(version: i16, records: &[u8]) -> Result<ParsedBatches> {
    let mut iterator = batches(records);
    let mut parsed = ParsedBatches::default();
    // Kafka sends a message only for the first batch.
    let refused = |refused: Refused, parsed: &ParsedBatches| Refused {
        message: refused.message.filter(|_| parsed.headers().is_empty()),
        ..refused
    };
    while is_whole(iterator.remaining()).map_err(|error| refused(error, &parsed))? {
        let is_v2 = iterator.remaining().get(MAGIC_POSITION) == Some(&(MAGIC_V2 as u8));
        if version >= 3 && !parsed.headers().is_empty() && is_v2 {
            // A request may have only one batch for a partition.
            return Err(ErrorCode::INVALID_RECORD.into());
        }
        let Some(batch) = iterator.next() else { break };
        let batch = batch.map_err(|error| refused(refuse_records(&error), &parsed))?;
        if version < 7 && matches!(batch.header.compression(), Ok(Compression::Zstd)) {
            return Err(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE.into());
        }
        parsed.push(batch.header);
    }
    if parsed.headers().is_empty() && version >= 3 {
        return Err(ErrorCode::INVALID_RECORD.into());
    }
    Ok(parsed)
}

/// The size of the whole messages at the front of a message set.
fn whole_messages(records: &[u8]) -> Result<usize> {
    let mut size = 0;
    while let Some(next) = framed_size(&records[size..])? {
        match records.get(size + MAGIC_POSITION) {
            Some(0..=2) if size + next <= records.len() => size += next,
            Some(magic) if *magic > 2 => {
                return Err(refuse_records(&RecordError::UnsupportedMagic(*magic as i8)));
            }
            _ => break,
        }
    }
    Ok(size)
}

/// The size of the batch or message at the front, of any format. `None` if there is no whole length.
fn framed_size(records: &[u8]) -> Result<Option<usize>> {
    let Some(&[a, b, c, d]) = records.get(LENGTH_POSITION..FRAME) else {
        return Ok(None);
    };
    let length = i64::from(i32::from_be_bytes([a, b, c, d]));
    if length < LENGTH_MIN {
        return Err(refuse_records(&RecordError::InvalidLength {
            what: "batch",
            length,
            minimum: LENGTH_MIN,
        }));
    }
    Ok(Some(FRAME + length as usize))
}

/// Whether a batch is complete. As in Kafka, the length is checked before the magic byte. Messages of an old
/// format are refused.
fn is_whole(records: &[u8]) -> Result<bool> {
    let Some(size) = framed_size(records)? else {
        return Ok(false);
    };
    let is_whole = size <= records.len();
    match records.get(MAGIC_POSITION) {
        None => Ok(false),
        Some(0 | 1) if is_whole => Err(ErrorCode::INVALID_RECORD.into()),
        Some(0..=2) => Ok(is_whole),
        // An unknown format is refused, complete or not.
        Some(_) => Ok(true),
    }
}

pub(super) fn refuse_records(error: &RecordError) -> Refused {
    let code = match error {
        RecordError::UnknownCompression(_) => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
        RecordError::DecompressedTooLarge { .. } | RecordError::TooLarge { .. } => {
            ErrorCode::MESSAGE_TOO_LARGE
        }
        RecordError::ClaimedAppendTime => ErrorCode::INVALID_TIMESTAMP,
        RecordError::NegativeTimestamp(_) | RecordError::Codec { .. } => ErrorCode::UNKNOWN_SERVER_ERROR,
        error if error.is_corruption() => ErrorCode::CORRUPT_MESSAGE,
        _ => ErrorCode::INVALID_RECORD,
    };
    // Kafka sends a message for errors that it finds before it parses the batch.
    let message = match error {
        RecordError::InvalidLength { length, .. } if *length < LENGTH_MIN => Some(format!(
            "Record size {length} is less than the minimum record overhead ({LENGTH_MIN})"
        )),
        RecordError::UnsupportedMagic(magic) => Some(format!("Invalid magic found in record: {magic}")),
        _ => None,
    };
    Refused {
        message,
        ..code.into()
    }
}
