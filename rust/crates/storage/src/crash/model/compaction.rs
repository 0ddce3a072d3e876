//! What a compaction may remove from a log: nothing that a reader would miss.

use std::collections::BTreeMap;

use super::transactions::Fates;
use super::{Found, Model, Rec, Records, What, own};

/// What is known of a log's keys, from records that were certain and from those that are there.
struct Evidence {
    fates: Fates,
    /// The newest committed record of each key that a compaction may have read, and the oldest that is there.
    newest: BTreeMap<Vec<u8>, i64>,
    oldest_found: BTreeMap<Vec<u8>, i64>,
}

impl Model {
    /// Compares the records that were found from `from` on with the earlier ones below `certain`: only a
    /// compaction may have removed some, and only superseded ones.
    pub(super) fn check_kept(&self, from: i64, certain: i64, found: &Found) {
        let from = from.min(certain);
        let missing: Vec<(&i64, &Rec)> = self
            .records
            .range(from..certain)
            .filter(|(offset, _)| !found.records.contains_key(offset))
            .collect();
        if let Some((offset, record)) = missing.iter().find(|(o, _)| **o >= self.compacted) {
            panic!("record {offset} is lost: {record:?}");
        }
        if missing.is_empty() {
            return;
        }
        let evidence = self.evidence(from, certain, found);
        for (offset, record) in missing {
            assert!(
                evidence.may_remove(*offset, record),
                "record {offset} is lost to a compaction: {record:?}"
            );
        }
        // The remaining records of a transaction are decided as before, unless damage removed its marker.
        let left = Fates::of(found.records.iter());
        let mut kept: Records = self.records.range(..certain).map(own).collect();
        kept.extend(found.records.clone());
        let kept = Fates::of(kept.iter());
        for (offset, record) in found.records.range(from..certain) {
            let before = kept.committed.contains(offset);
            let now = left.committed.contains(offset);
            assert!(before == now, "record {offset} has another fate: {record:?}");
        }
    }

    fn evidence(&self, from: i64, certain: i64, found: &Found) -> Evidence {
        // Records that a compaction used are on disk; only damage removes them.
        let known = if self.damaged {
            certain.max(self.settled)
        } else {
            certain
        };
        let mut all: Records = self.records.clone();
        all.retain(|offset, _| *offset < known);
        all.extend(found.records.clone());
        let fates = Fates::of(all.iter());
        let committed = |records: &Records, to: i64| -> Vec<(Vec<u8>, i64)> {
            records
                .range(from.min(to)..to)
                .filter(|(offset, _)| fates.committed.contains(offset))
                .filter_map(|(offset, record)| Some((record.key.clone()?, *offset)))
                .collect()
        };
        let newest = committed(&all, self.compacted).into_iter().collect();
        let mut oldest_found = committed(&found.records, i64::MAX);
        oldest_found.reverse();
        Evidence {
            newest,
            oldest_found: oldest_found.into_iter().collect(),
            fates,
        }
    }
}

impl Evidence {
    /// True when a compaction may remove this record.
    fn may_remove(&self, offset: i64, record: &Rec) -> bool {
        if matches!(record.what, What::Marker { .. }) || self.fates.aborted.contains(&offset) {
            return true;
        }
        if !self.fates.committed.contains(&offset) {
            return false;
        }
        let Some(key) = &record.key else {
            return true;
        };
        if self.newest.get(key).is_some_and(|newest| *newest > offset) {
            // It is superseded; the newest one is checked by itself.
            return true;
        }
        // A tombstone may be removed once everything that it deletes is gone.
        record.value.is_none() && self.oldest_found.get(key).is_none_or(|old| *old > offset)
    }
}
