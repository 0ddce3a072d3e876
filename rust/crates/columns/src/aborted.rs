//! Which batches belong to aborted transactions.
//!
//! A producer has one transaction at a time. So a batch belongs to an aborted transaction if its producer
//! began one at or before the batch and the transaction's marker comes later. A log's list says where the
//! marker is. A Fetch response's list does not: then the marker itself ends the transaction, as in Kafka's
//! consumer (`CompletedFetch`).

use std::collections::HashMap;

use logcore_records::BatchHeader;
use logcore_storage::AbortedTxn;

/// A transaction that was aborted: readers of committed records leave its records out.
///
/// Source: `AbortedTransaction` in a Fetch response, and a segment's `.txnindex` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTransaction {
    pub producer_id: i64,
    /// The offset of its first record.
    pub first_offset: i64,
    /// The offset of its abort marker; `i64::MAX` when that is not known, as in a Fetch response.
    pub last_offset: i64,
}

impl From<AbortedTxn> for AbortedTransaction {
    fn from(aborted: AbortedTxn) -> Self {
        Self {
            producer_id: aborted.producer_id,
            first_offset: aborted.first_offset,
            last_offset: aborted.last_offset,
        }
    }
}

/// Aborted transactions, by producer.
pub struct Aborted {
    /// First and last offset of each transaction, in order of the first.
    by_producer: HashMap<i64, Vec<(i64, i64)>>,
}

impl Aborted {
    /// The transactions of a list from a Fetch response or a log, in any order.
    pub fn new(list: &[AbortedTransaction]) -> Self {
        let mut by_producer: HashMap<i64, Vec<(i64, i64)>> = HashMap::new();
        for aborted in list {
            by_producer
                .entry(aborted.producer_id)
                .or_default()
                .push((aborted.first_offset, aborted.last_offset));
        }
        for ranges in by_producer.values_mut() {
            ranges.sort_unstable();
        }
        Self { by_producer }
    }

    /// Whether the batch was written in one of them.
    #[inline]
    pub fn contains(&self, header: &BatchHeader) -> bool {
        if self.by_producer.is_empty() || !header.is_transactional() {
            return false;
        }
        self.by_producer
            .get(&header.producer_id)
            .is_some_and(|ranges| in_one_of(ranges, header.base_offset))
    }

    /// Takes note of a control batch: it ends the last transaction that its producer began before it.
    pub fn end_at_marker(&mut self, header: &BatchHeader) {
        if let Some(ranges) = self.by_producer.get_mut(&header.producer_id) {
            let begun = ranges.partition_point(|(first, _)| *first <= header.base_offset);
            if let Some((_, last)) = begun.checked_sub(1).and_then(|at| ranges.get_mut(at)) {
                *last = (*last).min(header.base_offset);
            }
        }
    }
}

fn in_one_of(ranges: &[(i64, i64)], offset: i64) -> bool {
    let begun = ranges.partition_point(|(first, _)| *first <= offset);
    begun.checked_sub(1).is_some_and(|at| offset <= ranges[at].1)
}
