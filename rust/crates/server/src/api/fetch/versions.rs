//! The abilities of clients by Fetch version.

/// The first versions whose clients know batches v2, messages v1, and a first message above the requested
/// size (KIP-74).
pub(super) const BATCHES_SINCE: i16 = 4;
pub(super) const MESSAGES_V1_SINCE: i16 = 2;
pub(super) const SOFT_LIMIT_SINCE: i16 = 3;

/// The first versions that may read from a follower (KIP-392), and that know zstd (KIP-110).
pub(super) const FOLLOWERS_SINCE: i16 = 11;
pub(super) const ZSTD_SINCE: i16 = 10;
/// Whether clients of this version know no batches v2.
pub(super) fn is_old(version: i16) -> bool {
    version < BATCHES_SINCE
}

/// Whether the requested size is a hard limit for clients of this version. A larger batch is sent in part,
/// and the client then asks for more.
pub(super) fn has_hard_limit(version: i16) -> bool {
    version < SOFT_LIMIT_SINCE
}
