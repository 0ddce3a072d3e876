//! Errors in the bytes of a batch, a message or a compressed payload.

use crate::codec::Compression;

/// Why record bytes are refused. The caller chooses the Kafka error code. Each variant names the code of
/// Apache Kafka's Produce response.
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

    /// A batch or message length below the minimum (CORRUPT_MESSAGE).
    #[error("the length field of the {what} is {length}, allowed is at least {minimum}")]
    InvalidLength {
        what: &'static str,
        length: i64,
        minimum: i64,
    },

    /// A magic byte that the caller does not accept (CORRUPT_MESSAGE).
    #[error("magic byte {0} is not a known record format")]
    UnsupportedMagic(i8),

    /// The stored checksum differs from that of the bytes (CORRUPT_MESSAGE).
    #[error("checksum mismatch: {stored:#010x} is stored, {computed:#010x} was computed over the bytes")]
    CrcMismatch { stored: u32, computed: u32 },

    /// An undefined codec number (UNSUPPORTED_COMPRESSION_TYPE).
    #[error("compression codec {0} is not defined")]
    UnknownCompression(u8),

    /// An undefined codec name (INVALID_CONFIG).
    #[error("compression type \"{0}\" is not one of none, gzip, snappy, lz4, zstd")]
    UnknownCompressionName(String),

    /// A codec newer than the message format (UNSUPPORTED_COMPRESSION_TYPE).
    #[error("messages v{magic} cannot be compressed with {codec}")]
    UnknownToFormat { codec: Compression, magic: u8 },

    /// The compressed payload cannot be read, or the codec could not write it (UNKNOWN_SERVER_ERROR).
    #[error("{codec} payload cannot be processed: {reason}")]
    Codec { codec: Compression, reason: String },

    /// The payload decompresses to more than the limit (MESSAGE_TOO_LARGE).
    #[error("{codec} payload decompresses to more than the limit of {limit} bytes")]
    DecompressedTooLarge { codec: Compression, limit: usize },

    /// The header contradicts itself or its records (INVALID_RECORD).
    #[error("inconsistent batch: {0}")]
    InconsistentBatch(String),

    /// An invalid record (INVALID_RECORD).
    #[error("record {index} of the batch is invalid: {reason}")]
    InvalidRecord { index: usize, reason: &'static str },

    /// A varint longer than its type allows (INVALID_RECORD).
    #[error("varint is longer than {0} bytes")]
    VarintTooLong(usize),

    /// An invalid legacy message (INVALID_RECORD).
    #[error("legacy message set is invalid: {0}")]
    InvalidLegacy(&'static str),
    /// A legacy message set has a compressed message next to others.
    #[error("a compressed message of the old formats has to be the only one of its request")]
    MessagesBesideWrapper,

    /// A producer's legacy message says that its timestamp is the broker's (INVALID_TIMESTAMP).
    #[error("a message claims append time, which only a broker gives")]
    ClaimedAppendTime,

    /// A legacy message has a timestamp before 1970 (UNKNOWN_SERVER_ERROR, as in Kafka).
    #[error("a message has the negative timestamp {0}")]
    NegativeTimestamp(i64),

    /// A record or batch too large for the format's 31-bit lengths (MESSAGE_TOO_LARGE).
    #[error("{what} of {size} bytes does not fit into a batch")]
    TooLarge { what: &'static str, size: usize },

    /// A batch was to be built without records.
    #[error("a batch needs at least one record")]
    Empty,
}

impl RecordError {
    /// True when the bytes are damaged or not a batch (Kafka's CORRUPT_MESSAGE). False when an intact batch
    /// has something that is not allowed.
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
