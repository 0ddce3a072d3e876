//! Counts of what happened in histories.

use super::super::faulty_disk::KINDS;

/// Counts, by kind.
#[derive(Debug, Default, Clone)]
pub(in crate::crash) struct Tally {
    pub(in crate::crash) crashes: [usize; KINDS.len()],
    pub(in crate::crash) errors: [usize; KINDS.len()],
    pub(in crate::crash) refused: usize,
    pub(in crate::crash) power_losses: usize,
    pub(in crate::crash) process_ends: usize,
    pub(in crate::crash) crashes_while_opening: usize,
    pub(in crate::crash) closed: usize,
    pub(in crate::crash) appended: usize,
    pub(in crate::crash) flips_in_hints: usize,
    pub(in crate::crash) flips_cut: usize,
    pub(in crate::crash) flips_reported: usize,
    pub(in crate::crash) deletions: usize,
    pub(in crate::crash) truncated: usize,
    /// Flipped bits that no checksum covers.
    pub(in crate::crash) flips_uncovered: usize,
    /// Markers written.
    pub(in crate::crash) transactions: usize,
    /// Aborted transactions that a reader got.
    pub(in crate::crash) aborted: usize,
    /// Appends of another log's batches.
    pub(in crate::crash) fetched: usize,
    /// Logs that were truncated where another log differs.
    pub(in crate::crash) followed: usize,
    /// Completed compactions.
    pub(in crate::crash) compacted: usize,
}

impl Tally {
    pub(in crate::crash) fn add(&mut self, other: &Self) {
        for kind in 0..KINDS.len() {
            self.crashes[kind] += other.crashes[kind];
            self.errors[kind] += other.errors[kind];
        }
        self.refused += other.refused;
        self.power_losses += other.power_losses;
        self.process_ends += other.process_ends;
        self.crashes_while_opening += other.crashes_while_opening;
        self.closed += other.closed;
        self.appended += other.appended;
        self.flips_in_hints += other.flips_in_hints;
        self.flips_cut += other.flips_cut;
        self.flips_reported += other.flips_reported;
        self.deletions += other.deletions;
        self.truncated += other.truncated;
        self.flips_uncovered += other.flips_uncovered;
        self.transactions += other.transactions;
        self.aborted += other.aborted;
        self.fetched += other.fetched;
        self.followed += other.followed;
        self.compacted += other.compacted;
    }
}
