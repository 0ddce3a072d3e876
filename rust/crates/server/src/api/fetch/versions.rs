//! What clients of which Fetch version know.

/// The first versions whose clients know batches v2, messages v1, and that the first message may be larger than they asked for
/// (KIP-74).
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

/// Whether what a client of this version asked for is all it has room for: a batch that is larger is sent in part, by which it
/// sees that it has to ask for more.
pub(super) fn has_hard_limit(version: i16) -> bool {
    version < SOFT_LIMIT_SINCE
}
