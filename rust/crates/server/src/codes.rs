//! The effect of a request's version on error codes. The list of codes is in `protocol`.

pub use logcore_protocol::ErrorCode;

/// The code for a request version. Versions without KAFKA_STORAGE_ERROR make the client look for the leader
/// again.
pub(crate) fn for_version(code: ErrorCode, has_storage_error: bool) -> ErrorCode {
    match code {
        ErrorCode::KAFKA_STORAGE_ERROR if !has_storage_error => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        code => code,
    }
}
