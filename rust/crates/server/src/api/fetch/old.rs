//! Fetch v0 to v3: batches converted to the formats of old clients, messages v0 (Fetch v0 and v1) or v1.
//!
//! Unlike file ranges these responses are in memory, so they are bounded. One has at most [`RESPONSE_MAX`]
//! and the bytes of a batch. All of them share the budget `fetch_messages`, and one is converted at a time.
//! So clients that do not read delay other old clients only, and not for long ([`crate::net::response`]). The
//! partitions of waiting requests share `fetch_conversions`; at its bound a client gets no messages. Source:
//! `KafkaApis.handleFetchRequest`, `RecordsUtil.downConvert`. Kafka's `LazyDownConversionRecords` converts
//! while it sends, and pads to the announced length.

use bytes::Bytes;

use logcore_records::{RecordError, legacy::down_convert};
use logcore_storage::{LogSlice, first_batch};

use super::look::{Found, Look, Refused};
use super::versions::{MESSAGES_V1_SINCE, has_hard_limit, is_old};
use crate::log_lines::Level;
use crate::memory::budget::Permit;
use crate::partitions::fetch_session::Wanted;
use crate::shared::Shared;
use logcore_protocol::ErrorCode;

pub(super) const RESPONSE_MAX: u64 = 8 << 20;

/// A permit to wait for conversion, if there are batches. Without a permit the result has no batches, as if
/// there were none yet, and the client asks again.
pub(super) fn permit_to_wait(shared: &Shared, version: i16, looks: &mut [Look]) -> Permit {
    if !is_old(version) || super::size(looks) == 0 {
        return Permit::default();
    }
    match shared.budgets.fetch_conversions.acquire_or_refuse(looks.len()) {
        Ok(permit) => permit,
        Err(reason) => {
            let key = "fetches that cannot wait for conversion";
            shared.lines.push_limited(Level::Warning, key, reason);
            for found in looks.iter_mut().flatten() {
                found.slice = None;
            }
            Permit::default()
        }
    }
}

/// Replaces the batches by messages, for a client that knows no batches. The permit is for the messages until
/// they are sent. Waits for other clients to read theirs.
pub(super) async fn convert(shared: &Shared, version: i16, wanted: &[Wanted], looks: &mut [Look]) -> Permit {
    let slices = looks.iter().flatten().flat_map(|found| &found.slice);
    let bytes = slices.map(|slice| slice.len).sum::<u64>();
    if bytes == 0 {
        return Permit::default();
    }
    let messages = shared.budgets.fetch_messages.acquire(bytes as usize).await;
    let _converter = shared.budgets.fetch_converter.acquire(1).await;
    tokio::task::block_in_place(|| {
        for (wanted, look) in wanted.iter().zip(looks) {
            convert_one(shared, version, wanted, look);
        }
    });
    messages
}

fn convert_one(shared: &Shared, version: i16, wanted: &Wanted, look: &mut Look) {
    let Ok(found) = look else { return };
    let Some(slice) = found.slice.take() else {
        return;
    };
    match messages(shared, version, wanted, found, &slice) {
        Ok((messages, count)) => {
            found.partition.counts.fetch_message_conversions.add(count);
            found.messages = Some(messages);
        }
        Err(code) => *look = Err(Refused::from(code)),
    }
}

/// The messages of a slice, and the number of converted ones. They are not much longer than the slice, but
/// the first batch is always converted.
fn messages(
    shared: &Shared,
    version: i16,
    wanted: &Wanted,
    found: &Found,
    slice: &LogSlice,
) -> Result<(Bytes, u64), ErrorCode> {
    let what = format_args!("Fetch of {} failed", found.partition);
    let read = slice
        .read_whole_batches()
        .map_err(|error| shared.storage_error(what, Some(&found.partition), &error))?;
    let magic = u8::from(version >= MESSAGES_V1_SINCE);
    let limit = shared.config.request_bytes_max;
    let (mut out, mut converted, mut rest) = (Vec::new(), 0, &read[..]);
    while let Some(batch) = first_batch(rest).filter(|_| out.len() < read.len()) {
        let done = out.len();
        match down_convert(batch, magic, wanted.offset, limit, &mut out) {
            Ok(count) => converted += count,
            // The messages before it are sent. The next request begins with it.
            Err(_) if done > 0 => break,
            Err(error) => {
                let key = format!("conversion of {}", found.partition);
                let text = format!("Fetch v{version} of {}: {error}", found.partition);
                shared
                    .lines
                    .push_limited_with(Level::Warning, &key, text, || found.partition.fields());
                return Err(code_of(&error));
            }
        }
        rest = &rest[batch.len()..];
    }
    if has_hard_limit(version) {
        out.truncate(usize::try_from(wanted.bytes_max).unwrap_or(usize::MAX));
    }
    Ok((out.into(), converted))
}

fn code_of(error: &RecordError) -> ErrorCode {
    match error {
        RecordError::UnknownToFormat { .. } => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
        RecordError::DecompressedTooLarge { .. } | RecordError::TooLarge { .. } => {
            ErrorCode::MESSAGE_TOO_LARGE
        }
        _ => ErrorCode::CORRUPT_MESSAGE,
    }
}
