//! Finding the next intact batch behind bytes that are none.
//!
//! Tells damage in the middle of a log from a torn tail, and how much is behind it. A place counts only if a header that
//! fits the file and the offsets stands there and the checksum over all its bytes is right. How much is read for
//! checksums is bounded, so that bytes made to look like headers cost no more than a few passes over the file.

use std::fs::File;
use std::io;

use logcore_records::HEADER_SIZE;

use crate::scan::StoredBatch;
use crate::slice::read_at_most;

const WINDOW: usize = 1 << 20;
/// The first bytes of a batch that are looked at for every position: offset, length, checksum or epoch, magic.
const FRONT: usize = 17;
/// Bytes read for checksums before the search is given up, besides twice the range.
const CHECKSUM_BUDGET: u64 = 64 << 20;

/// Where in `[from, end)` of the file the next intact batch begins, of offsets in `[least, most]`.
pub(super) fn next_intact(
    file: &File,
    from: u64,
    end: u64,
    least: i64,
    most: i64,
) -> io::Result<Option<u64>> {
    let mut window = vec![0; WINDOW.min(end.saturating_sub(from) as usize)];
    let mut budget = CHECKSUM_BUDGET + 2 * end.saturating_sub(from);
    let mut at = from;
    while at + FRONT as u64 <= end {
        let wanted = window.len().min((end - at) as usize);
        let filled = read_at_most(file, &mut window[..wanted], at)?;
        if filled < FRONT {
            return Ok(None);
        }
        for start in 0..=filled - FRONT {
            let position = at + start as u64;
            if !plausible(&window[start..start + FRONT], end - position, least, most) {
                continue;
            }
            match intact(file, position, end, &mut budget)? {
                Some(true) => return Ok(Some(position)),
                Some(false) => {}
                None => return Ok(None),
            }
        }
        // The next window begins with the first position not looked at.
        at += (filled - FRONT + 1) as u64;
    }
    Ok(None)
}

fn plausible(front: &[u8], remaining: u64, least: i64, most: i64) -> bool {
    let offset = i64::from_be_bytes([
        front[0], front[1], front[2], front[3], front[4], front[5], front[6], front[7],
    ]);
    let length = i32::from_be_bytes([front[8], front[9], front[10], front[11]]);
    front[16] <= 2
        && (least..=most).contains(&offset)
        && u64::try_from(length).is_ok_and(|length| length > 0 && length <= remaining)
}

/// Whether an intact batch begins here; `None` when looking would read too much.
fn intact(file: &File, position: u64, end: u64, budget: &mut u64) -> io::Result<Option<bool>> {
    let mut header = [0; HEADER_SIZE];
    let filled = read_at_most(file, &mut header, position)?;
    let Ok(batch) = StoredBatch::parse(&header[..filled], position) else {
        return Ok(Some(false));
    };
    if batch.end() > end {
        return Ok(Some(false));
    }
    let Some(rest) = budget.checked_sub(batch.size) else {
        return Ok(None);
    };
    *budget = rest;
    let mut bytes = vec![0; batch.size as usize];
    let filled = read_at_most(file, &mut bytes, position)?;
    Ok(Some(filled == bytes.len() && batch.verify(&bytes).is_ok()))
}
