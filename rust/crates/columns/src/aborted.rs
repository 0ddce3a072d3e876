//! Which batches belong to aborted transactions.
//!
//! A producer has one transaction at a time, so a batch belongs to an aborted one if its producer has one that began at
//! or before it and whose marker has not come yet. The list says where the marker is, or does not (a Fetch response
//! does not): then the marker itself ends the transaction, as in Kafka's consumer (`CompletedFetch`).

use std::collections::HashMap;

use logcore_records::BatchHeader;

use crate::decode::AbortedTransaction;

/// The transactions of a list, by producer.
pub struct Aborted {
    /// First and last offset, in order of the first.
    by_producer: HashMap<i64, Vec<(i64, i64)>>,
}

impl Aborted {
    /// A list as a Fetch response or a log gives it, in any order.
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
    pub fn has(&self, header: &BatchHeader) -> bool {
        if self.by_producer.is_empty() || !header.is_transactional() {
            return false;
        }
        self.by_producer
            .get(&header.producer_id)
            .is_some_and(|ranges| contains(ranges, header.base_offset))
    }

    /// A control batch: a marker ends the transaction of its producer that began last before it.
    pub fn meet_marker(&mut self, header: &BatchHeader) {
        if let Some(ranges) = self.by_producer.get_mut(&header.producer_id) {
            let begun = ranges.partition_point(|(first, _)| *first <= header.base_offset);
            if let Some((_, last)) = begun.checked_sub(1).and_then(|at| ranges.get_mut(at)) {
                *last = (*last).min(header.base_offset);
            }
        }
    }
}

fn contains(ranges: &[(i64, i64)], offset: i64) -> bool {
    let begun = ranges.partition_point(|(first, _)| *first <= offset);
    begun.checked_sub(1).is_some_and(|at| offset <= ranges[at].1)
}
