//! Ranges of versions.

use std::fmt;

/// An inclusive range of versions; empty when `first > last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub first: i16,
    pub last: i16,
}

impl Versions {
    pub const NONE: Self = Self { first: 0, last: -1 };

    /// Whether the range contains this version.
    #[inline]
    pub const fn contains(self, version: i16) -> bool {
        version >= self.first && version <= self.last
    }

    /// Whether no version is in the range.
    pub const fn is_empty(self) -> bool {
        self.first > self.last
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_empty(), self.last) {
            (true, _) => out.write_str("none"),
            (false, i16::MAX) => write!(out, "{}+", self.first),
            (false, last) if last == self.first => write!(out, "{last}"),
            (false, last) => write!(out, "{}-{last}", self.first),
        }
    }
}
