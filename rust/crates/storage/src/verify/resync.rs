//! Finds the next intact batch after damaged bytes.
//!
//! So a torn tail is distinguished from damage in the middle, and the records after the damage are counted. A
//! position counts when it has a header that fits the file and the offsets, and the checksum of the batch is
//! right. The bytes read for checksums are bounded for each file: forged headers cost a few passes over the
//! file, no more.

use std::fs::File;
use std::io;

use logcore_records::HEADER_SIZE;

use crate::segment::scan::StoredBatch;
use crate::slice::read_at_most;

const WINDOW: usize = 1 << 20;
/// The start of a batch: offset, length, epoch or checksum, magic. It is examined at every position.
const FRONT: usize = 17;
/// Bytes read for checksums before the search gives up, in addition to four times the file's size.
const CHECKSUM_BUDGET: u64 = 64 << 20;

/// Bytes that may be read for checksums in a file of `size` bytes.
pub(super) fn budget(size: u64) -> u64 {
    CHECKSUM_BUDGET.saturating_add(size.saturating_mul(4))
}

/// Position of the next intact batch in `[from, end)` whose offset is in `[least, most]`. Reading for
/// checksums uses up `budget`; `None` when it is used up, too.
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
        // The next window starts with the first position that was not examined.
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

/// Whether an intact batch starts here. `None` when the check would exceed the budget.
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

    // Broken if it failed: forged headers would make a file take hours, or an intact batch after them would
    // be missed.
    #[test]
    fn forged_headers_cost_no_more_than_the_budget() {
        const FORGED: usize = 500;
        let whole = crate::verify::tests::batch(0..10);
        let mut bytes = Vec::new();
        for number in 0..FORGED {
            // The header's length takes all the rest of the file.
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
        // A batch whose offset is out of range does not count.
        let found = next_intact(&file, range, (1, 100), &mut enough).unwrap();
        assert_eq!(found, None);
    }
}
