//! Fetch v0 to v3: what was found in the formats that these clients know, messages v0 (Fetch v0 and v1) or v1.
//!
//! Unlike file ranges these responses are in memory, so they are bounded: one has at most [`RESPONSE_MAX`] and what it takes to
//! send a batch, all together what [`crate::memory::fetch::FetchRoom`] has for them, and one at a time is converted. So clients that do not read hold
//! up others as old, for as long as [`crate::memory::answers`] allows, and nobody else. What was looked at for those is in memory as
//! long: beyond what there may be of that, a client is told of no messages. Source of the rules: `KafkaApis.handleFetchRequest`,
//! `RecordsUtil.downConvert`; Kafka's `LazyDownConversionRecords` converts while it sends, and fills up what was announced.

use bytes::Bytes;

use logcore_records::{RecordError, legacy::down_convert};
use logcore_storage::{LogSlice, first_batch};

use super::look::{Found, Look, Refused};
use super::versions::{MESSAGES_V1_SINCE, has_hard_limit, is_old};
use crate::codes::ErrorCode;
use crate::log_lines::Level;
use crate::memory::budget::Permit;
use crate::partitions::fetch_session::Wanted;
use crate::shared::Shared;

/// What one response reads.
pub(super) const RESPONSE_MAX: u64 = 8 << 20;

/// A place among those that wait to be converted, if there is anything. Without one nothing was found, as if there were nothing
/// yet: the client asks again.
pub(super) fn permit_to_wait(shared: &Shared, version: i16, looks: &mut [Look]) -> Permit {
    if !is_old(version) || super::size(looks) == 0 {
        return Permit::default();
    }
    match shared.budgets.fetch_conversions.acquire_or_refuse(looks.len()) {
        Ok(permit) => permit,
        Err(reason) => {
            let key = "fetches that cannot wait to be converted";
            shared.lines.seldom(Level::Warning, key, reason);
            for found in looks.iter_mut().flatten() {
                found.slice = None;
            }
            Permit::default()
        }
    }
}

/// Puts messages in place of what was found for a client that knows no batches. What is held is until they are sent. Waits for
/// other clients to read.
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
            found.place.counts.fetch_message_conversions.add(count);
            found.messages = Some(messages);
        }
        Err(code) => *look = Err(Refused::from(code)),
    }
}

/// The messages of a slice, and how many of them were converted: not many more bytes than were read, but the first batch's in
/// any case.
fn messages(
    shared: &Shared,
    version: i16,
    wanted: &Wanted,
    found: &Found,
    slice: &LogSlice,
) -> Result<(Bytes, u64), ErrorCode> {
    let what = format_args!("Fetch of {} failed", found.place);
    let read = slice
        .read_whole_batches()
        .map_err(|error| shared.storage_error(what, Some(&found.place), &error))?;
    let magic = u8::from(version >= MESSAGES_V1_SINCE);
    let limit = shared.config.request_bytes_max;
    let (mut out, mut converted, mut rest) = (Vec::new(), 0, &read[..]);
    while let Some(batch) = first_batch(rest).filter(|_| out.len() < read.len()) {
        let done = out.len();
        match down_convert(batch, magic, wanted.offset, limit, &mut out) {
            Ok(count) => converted += count,
            // What there is before it can be sent; the next request begins with it.
            Err(_) if done > 0 => break,
            Err(error) => {
                let key = format!("conversion of {}", found.place);
                let text = format!("Fetch v{version} of {}: {error}", found.place);
                shared
                    .lines
                    .seldom_with(Level::Warning, &key, text, || found.place.fields());
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
