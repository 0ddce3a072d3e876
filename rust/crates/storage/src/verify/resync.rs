//! Finding the next intact batch behind bytes that are none.
//!
//! Tells damage in the middle of a log from a torn tail, and how much is behind it. A place counts only if a header that
//! fits the file and the offsets stands there and the checksum over all its bytes is right. How much is read for
//! checksums is bounded for a file, so that bytes made to look like headers cost no more than a few passes over it.

use std::fs::File;
use std::io;

use logcore_records::HEADER_SIZE;

use crate::segment::scan::StoredBatch;
use crate::slice::read_at_most;

const WINDOW: usize = 1 << 20;
/// The first bytes of a batch that are looked at for every position: offset, length, checksum or epoch, magic.
const FRONT: usize = 17;
/// Bytes read for checksums before the search in a file is given up, besides four times its size.
const CHECKSUM_BUDGET: u64 = 64 << 20;

/// How many bytes may be read for checksums in a file of `size` bytes.
pub(super) fn budget(size: u64) -> u64 {
    CHECKSUM_BUDGET.saturating_add(size.saturating_mul(4))
}

/// Where in `[from, end)` of the file the next intact batch begins, of offsets in `[least, most]`. What is read for
/// checksums is taken off `budget`; `None` also when that is used up.
pub(super) fn next_intact(
    file: &File,
    (from, end): (u64, u64),
    (least, most): (i64, i64),
    budget: &mut u64,
) -> io::Result<Option<u64>> {
    let mut window = vec![0; WINDOW.min(end.saturating_sub(from) as usize)];
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
            match intact(file, position, end, budget)? {
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
        *budget = 0;
        return Ok(None);
    };
    *budget = rest;
    let mut bytes = vec![0; batch.size as usize];
    let filled = read_at_most(file, &mut bytes, position)?;
    Ok(Some(filled == bytes.len() && batch.verify(&bytes).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    // Broken if it failed: a file made to look damaged would be read for hours, or what is intact in it not be found.
    #[test]
    fn forged_headers_cost_no_more_than_the_budget() {
        const FORGED: usize = 500;
        let whole = crate::verify::tests::batch(0..10);
        let mut bytes = Vec::new();
        for number in 0..FORGED {
            // A header of a batch that would take all the rest of the file.
            let rest = (FORGED - number) * HEADER_SIZE + whole.len();
            let mut header = whole[..HEADER_SIZE].to_vec();
            header[8..12].copy_from_slice(&((rest - 12) as i32).to_be_bytes());
            bytes.extend(header);
        }
        bytes.extend(&whole);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let range = (0, bytes.len() as u64);
        let mut enough = budget(range.1);
        let found = next_intact(&file, range, (0, 100), &mut enough).unwrap();
        assert_eq!(found, Some((FORGED * HEADER_SIZE) as u64));
        assert!(enough < budget(range.1));
        let mut scarce = 10 * range.1;
        let found = next_intact(&file, range, (0, 100), &mut scarce).unwrap();
        assert_eq!((found, scarce), (None, 0));
        // Offsets that cannot come next are nobody's batch.
        let found = next_intact(&file, range, (1, 100), &mut enough).unwrap();
        assert_eq!(found, None);
    }
}
