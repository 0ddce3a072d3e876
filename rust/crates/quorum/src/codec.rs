//! Reads bytes that came from a disk or a peer. Every length is checked before anything is taken or
//! allocated.

use bytes::{Buf, Bytes, TryGetError};
use thiserror::Error;

/// Bytes that are not what they should be.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    #[error("bytes are missing: {0}")]
    CutOff(#[from] TryGetError),
    #[error("{0} bytes follow the end")]
    TooLong(usize),
    #[error("{0}")]
    Invalid(String),
}

pub(crate) fn invalid<T>(what: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed::Invalid(what.into()))
}

/// Takes `count` bytes from the front, without a copy.
pub(crate) fn take(bytes: &mut Bytes, count: usize) -> Result<Bytes, Malformed> {
    if bytes.len() < count {
        return Err(Malformed::CutOff(TryGetError {
            requested: count,
            available: bytes.len(),
        }));
    }
    Ok(bytes.split_to(count))
}

/// Refuses bytes that are left over.
pub(crate) fn end(bytes: &Bytes) -> Result<(), Malformed> {
    match bytes.len() {
        0 => Ok(()),
        left => Err(Malformed::TooLong(left)),
    }
}

pub(crate) fn get_bool(bytes: &mut Bytes) -> Result<bool, Malformed> {
    match bytes.try_get_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => invalid(format!("{other} stands where 0 or 1 should")),
    }
}

pub(crate) fn get_array<const SIZE: usize>(bytes: &mut Bytes) -> Result<[u8; SIZE], Malformed> {
    let mut array = [0; SIZE];
    bytes.try_copy_to_slice(&mut array)?;
    Ok(array)
}
