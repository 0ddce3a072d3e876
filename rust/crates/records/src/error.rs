//! What can be wrong with the bytes of a batch, a message or a compressed payload.

use crate::compression::Compression;

/// Every way record bytes can be refused. Which Kafka error code it becomes is the caller's decision; the doc of
/// each variant names the one Apache Kafka answers with on produce.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Fewer bytes than the structure needs (CORRUPT_MESSAGE).
    #[error("{what} needs {needed} bytes but only {available} remain")]
    Truncated {
        what: &'static str,
        needed: usize,
        available: usize,
    },

    /// A batch or message length that cannot be (CORRUPT_MESSAGE).
    #[error("the length field of the {what} is {length}, allowed is at least {minimum}")]
    InvalidLength {
        what: &'static str,
        length: i64,
        minimum: i64,
    },

    /// A magic byte that this place does not accept (CORRUPT_MESSAGE).
    #[error("magic byte {0} is not a known record format")]
    UnsupportedMagic(i8),

    /// The checksum in the bytes is not the checksum of the bytes (CORRUPT_MESSAGE).
    #[error("checksum mismatch: {stored:#010x} is stored, {computed:#010x} was computed over the bytes")]
    CrcMismatch { stored: u32, computed: u32 },

    /// A codec number that is not defined (UNSUPPORTED_COMPRESSION_TYPE).
    #[error("compression codec {0} is not defined")]
    UnknownCompression(u8),

    /// A codec name that is not defined (INVALID_CONFIG).
    #[error("compression type \"{0}\" is not one of none, gzip, snappy, lz4, zstd")]
    UnknownCompressionName(String),

    /// A codec that came after the message format (UNSUPPORTED_COMPRESSION_TYPE).
    #[error("messages v{magic} cannot be compressed with {codec}")]
    UnknownToFormat { codec: Compression, magic: u8 },

    /// The compressed payload cannot be read, or the codec failed to write it (CORRUPT_MESSAGE).
    #[error("{codec} payload cannot be processed: {reason}")]
    Codec { codec: Compression, reason: String },

    /// Decompression would exceed the limit given (MESSAGE_TOO_LARGE).
    #[error("{codec} payload decompresses to more than the limit of {limit} bytes")]
    DecompressedTooLarge { codec: Compression, limit: usize },

    /// The header contradicts itself or its records (INVALID_RECORD).
    #[error("inconsistent batch: {0}")]
    InconsistentBatch(String),

    /// A record that cannot be read (INVALID_RECORD).
    #[error("record {index} of the batch is invalid: {reason}")]
    InvalidRecord { index: usize, reason: &'static str },

    /// A varint longer than its type allows (INVALID_RECORD).
    #[error("varint is longer than {0} bytes")]
    VarintTooLong(usize),

    /// A legacy message that cannot be read (INVALID_RECORD).
    #[error("legacy message set is invalid: {0}")]
    InvalidLegacy(&'static str),
    /// A set of old messages has a compressed one among others.
    #[error("a compressed message of the old formats has to be the only one of its request")]
    MessagesBesideWrapper,

    /// A producer's message of the old formats says that its time is the broker's (INVALID_TIMESTAMP).
    #[error("a message claims append time, which only a broker gives")]
    ClaimedAppendTime,

    /// A message of the old formats has a time before 1970 (UNKNOWN_SERVER_ERROR, as Kafka has no other).
    #[error("a message has the negative timestamp {0}")]
    NegativeTimestamp(i64),

    /// A record or batch to be written would not fit the format's 31-bit lengths (MESSAGE_TOO_LARGE).
    #[error("{what} of {size} bytes does not fit into a batch")]
    TooLarge { what: &'static str, size: usize },

    /// A batch without records was to be built.
    #[error("a batch needs at least one record")]
    Empty,
}

impl RecordError {
    /// True when the bytes were damaged or are not a batch at all (Kafka's CORRUPT_MESSAGE), false when an intact
    /// batch says something that is not allowed.
    pub fn is_corruption(&self) -> bool {
        matches!(
            self,
            Self::Truncated { .. }
                | Self::InvalidLength { .. }
                | Self::UnsupportedMagic(_)
                | Self::CrcMismatch { .. }
                | Self::Codec { .. }
        )
    }
}
