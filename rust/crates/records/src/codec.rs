//! The compression codecs of record batches: codes, names and levels. [`crate::compression`] has their code.

use std::fmt;
use std::ops::RangeInclusive;

/// How the records of a batch are compressed. The discriminants are the codes in a batch's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Compression {
    #[default]
    None = 0,
    Gzip = 1,
    Snappy = 2,
    Lz4 = 3,
    Zstd = 4,
}

impl Compression {
    /// Every codec, by code.
    pub const ALL: [Compression; 5] = [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];

    /// The code in the lowest three bits of a batch's attributes.
    #[inline]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The levels that `compression.<codec>.level` accepts; `None` for codecs without that setting.
    ///
    /// Source: `GzipCompression`, `Lz4Compression` and `ZstdCompression` of Kafka 3.9, whose gzip takes -1,
    /// the default, too.
    pub fn levels(self) -> Option<RangeInclusive<i32>> {
        match self {
            Self::None | Self::Snappy => None,
            Self::Gzip => Some(1..=9),
            Self::Lz4 => Some(1..=17),
            Self::Zstd => Some(-131_072..=22),
        }
    }

    /// The name in `compression.type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
