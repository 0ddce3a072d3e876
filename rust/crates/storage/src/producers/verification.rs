//! Verifications of transactions that are under way (KIP-890, `VerificationStateEntry`).
//!
//! Before the first batch of a transaction, a leader asks the transaction coordinator whether this partition
//! is in it. A verification has a guard. A marker of the producer ends the verification, so that a batch that
//! was verified before the marker cannot be appended after it: nothing would end its transaction.
//!
//! In memory only: after a restart the batch is verified again.

use std::collections::HashMap;

/// How a batch of a producer's transaction is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verification {
    /// Without a question.
    #[default]
    Off,
    /// The transaction must be open here.
    Open,
    /// The transaction must be open here, or this verification must not have ended.
    Guarded(u64),
}

#[derive(Debug, Default)]
pub(crate) struct Verifications {
    /// The guards by producer id.
    under_way: HashMap<i64, u64>,
    last: u64,
}

impl Verifications {
    /// The guard of the verification that is under way, or of a new one.
    pub(crate) fn begin(&mut self, producer_id: i64) -> u64 {
        let Self { under_way, last } = self;
        *under_way.entry(producer_id).or_insert_with(|| {
            *last += 1;
            *last
        })
    }

    pub(crate) fn holds(&self, producer_id: i64, guard: u64) -> bool {
        self.under_way.get(&producer_id) == Some(&guard)
    }

    /// The transaction is open, or a marker was appended.
    pub(crate) fn end(&mut self, producer_id: i64) {
        if !self.under_way.is_empty() {
            self.under_way.remove(&producer_id);
        }
    }

    /// The batch is not appended.
    pub(crate) fn give_up(&mut self, producer_id: i64, guard: u64) {
        if self.holds(producer_id, guard) {
            self.under_way.remove(&producer_id);
        }
    }
}
