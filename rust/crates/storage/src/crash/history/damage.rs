//! What must follow from a flipped bit: damage is reported or repaired, and what is served is right.

use super::{Flipped, History, What};
use crate::crash::model::{Found, Rec};
use crate::crash::reader::read_from;
use crate::error::StorageError;
use crate::log::Log;

impl History {
    /// Opens the damaged log and checks what it serves. The history ends with this.
    pub(super) fn check_flipped(&mut self, flipped: &Flipped) {
        self.model.damaged = true;
        let reported = match self.open() {
            Ok(opened) => self.check_served(opened.log(), flipped),
            Err(error) => {
                let named = matches!(error, StorageError::Corrupt { .. });
                assert!(named, "a bit of {}: {error}", flipped.file);
                true
            }
        };
        match flipped.what {
            What::Covered { .. } => self.tally.flips_reported += usize::from(reported),
            _ => self.tally.flips_uncovered += 1,
        }
    }

    /// True when a read met the damage.
    fn check_served(&mut self, log: &Log, flipped: &Flipped) -> bool {
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        let read = read_from(log, start, end, 1 << 20);
        let reported = read.is_err();
        let (Ok(mut found) | Err((mut found, _))) = read;
        match flipped.what {
            What::BaseOffset => self.leave_out_the_moved(&mut found, flipped),
            What::LeaderEpoch => self.correct_epochs(&mut found, flipped),
            _ => {}
        }
        let may_lack = matches!(flipped.what, What::LogStart | What::BaseOffset);
        if reported || may_lack {
            self.check_records(&found);
        } else {
            // The bit is in deleted data, or has no effect.
            let mut certain = self.certain.min(self.model.end);
            if flipped.what == What::LeaderEpoch {
                // Above the recovery point, a tail that contradicts the batches before it is torn.
                certain = certain.min(flipped.offset).min(end);
            }
            self.model.restarted(certain, start, end, &found);
        }
        // The records after the damage, as far as they can be read.
        let next = flipped.last_offset + 1;
        if matches!(flipped.what, What::Covered { .. }) && (start..end).contains(&next) {
            let (Ok(found) | Err((found, _))) = read_from(log, next, end, 1 << 20);
            self.check_records(&found);
        }
        reported
    }

    fn check_records(&self, found: &Found) {
        let certain = self.certain.min(self.model.end);
        for (offset, record) in &found.records {
            self.model.check_record(certain, *offset, record);
        }
    }

    /// The records of the batch with the wrong base offset are served at other offsets; only they are.
    fn leave_out_the_moved(&self, found: &mut Found, flipped: &Flipped) {
        let own = |record: &Rec| {
            let attempts = self.model.attempts.iter().map(|attempt| &attempt.records);
            let mut known = attempts.chain([&self.model.records]);
            known.any(|records| {
                let own = records.range(flipped.offset..=flipped.last_offset);
                own.map(|(_, record)| record).any(|known| known == record)
            })
        };
        found.records.retain(|_, record| !own(record));
    }

    fn correct_epochs(&self, found: &mut Found, flipped: &Flipped) {
        let records = found.records.range_mut(flipped.offset..=flipped.last_offset);
        for (offset, record) in records {
            let attempts = self.model.attempts.iter().map(|attempt| &attempt.records);
            let mut known = attempts.chain([&self.model.records]);
            let same = known.find_map(|records| {
                let known = records.get(offset)?;
                (known.value == record.value && known.key == record.key).then_some(known)
            });
            if let Some(known) = same {
                record.epoch = known.epoch;
            }
        }
    }
}
