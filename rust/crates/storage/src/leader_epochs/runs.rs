//! Leader epochs from the batches of a log.
//!
//! No checksum covers a batch's leader epoch, and epochs never go back. Where batches contradict each other,
//! the longest sequence of batches whose epochs do not fall is believed. So a flipped bit makes one batch
//! doubtful, and does not cost the log its epochs, which fence leaders and truncate followers.
//!
//! A plain value. The caller adds the batches in their order.

use std::collections::BTreeMap;

/// Contradictions are resolved at this number of runs, so that memory is bounded.
const RUNS_MAX: usize = 1 << 16;
/// The most runs that are reported as doubtful.
const DOUBTED_MAX: usize = 1_000;

/// Batches of one leader epoch, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochRun {
    pub(crate) epoch: i32,
    /// The base offsets of the first and the last batch.
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// The position of the first batch in its segment.
    pub(crate) position: u64,
    pub(crate) batches: u64,
}

/// The epochs of the batches so far.
#[derive(Debug)]
pub(crate) struct EpochRuns {
    runs: Vec<EpochRun>,
    doubted: Vec<EpochRun>,
    resolve_at: usize,
}

impl Default for EpochRuns {
    fn default() -> Self {
        Self {
            runs: Vec::new(),
            doubted: Vec::new(),
            resolve_at: RUNS_MAX,
        }
    }
}

/// Epochs that do not contradict each other, and those that do.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// One run for each epoch; epochs and offsets rise. A run has all batches of its epoch, and begins with
    /// the first.
    pub(crate) believed: Vec<EpochRun>,
    /// In the order of offsets; the first thousand.
    pub(crate) doubted: Vec<EpochRun>,
}

impl EpochRuns {
    /// Adds the next batch. A batch without an epoch (old formats, -1) is skipped.
    pub(crate) fn add(&mut self, epoch: i32, offset: i64, position: u64) {
        if epoch < 0 {
            return;
        }
        if let Some(run) = self.runs.last_mut().filter(|run| run.epoch == epoch) {
            run.last = offset;
            run.batches += 1;
            return;
        }
        if self.runs.len() >= self.resolve_at {
            self.resolve_runs();
            self.resolve_at = RUNS_MAX.max(2 * self.runs.len());
        }
        self.runs.push(EpochRun {
            epoch,
            first: offset,
            last: offset,
            position,
            batches: 1,
        });
    }

    /// The result, with contradictions resolved.
    pub(crate) fn resolve(mut self) -> Resolved {
        self.resolve_runs();
        Resolved {
            believed: self.runs,
            doubted: self.doubted,
        }
    }

    fn resolve_runs(&mut self) {
        let mut believed: Vec<EpochRun> = Vec::new();
        let mut chosen = longest_rising(&self.runs).into_iter().peekable();
        for (number, run) in self.runs.iter().enumerate() {
            if chosen.next_if_eq(&number).is_none() {
                if self.doubted.len() < DOUBTED_MAX {
                    self.doubted.push(*run);
                }
                continue;
            }
            match believed.last_mut().filter(|last| last.epoch == run.epoch) {
                Some(last) => {
                    last.last = run.last;
                    last.batches += run.batches;
                }
                None => believed.push(*run),
            }
        }
        self.runs = believed;
    }
}

impl Resolved {
    /// The entries for the epochs' file.
    pub(crate) fn entries(&self) -> Vec<(i32, i64)> {
        let entry = |run: &EpochRun| (run.epoch, run.first);
        self.believed.iter().map(entry).collect()
    }
}

/// The indexes of the runs that together have the most batches while their epochs do not fall. Of equal
/// choices the one with lower epochs, because a lower epoch fences no current leader.
fn longest_rising(runs: &[EpochRun]) -> Vec<usize> {
    // For the last epoch of a choice: its number of batches, which rises with the epoch, and its last run.
    let mut best: BTreeMap<i32, (u64, usize)> = BTreeMap::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(runs.len());
    for (number, run) in runs.iter().enumerate() {
        let found = best.range(..=run.epoch).next_back().map(|(_, best)| *best);
        let batches = found.map_or(0, |(batches, _)| batches) + run.batches;
        before.push(found.map(|(_, number)| number));
        while let Some((&epoch, _)) = best
            .range(run.epoch..)
            .next()
            .filter(|(_, (others, _))| *others <= batches)
        {
            best.remove(&epoch);
        }
        best.insert(run.epoch, (batches, number));
    }
    let mut next = best.last_key_value().map(|(_, (_, number))| *number);
    let mut chosen = Vec::new();
    while let Some(number) = next {
        chosen.push(number);
        next = before[number];
    }
    chosen.reverse();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(epochs: &[i32]) -> (Vec<(i32, i64)>, Vec<i64>) {
        let mut runs = EpochRuns::default();
        for (offset, epoch) in (0..).zip(epochs) {
            runs.add(*epoch, offset, 0);
        }
        let resolved = runs.resolve();
        let doubted = resolved.doubted.iter().map(|run| run.first).collect();
        (resolved.entries(), doubted)
    }

    // Broken if it failed: one flipped bit in any batch would change the epochs of the log.
    #[test]
    fn one_flipped_bit() {
        const BIG: i32 = 1 << 30;
        for (epochs, entries, doubted) in [
            (&[0, 0, 1, 1, 5][..], &[(0, 0), (1, 2), (5, 4)][..], &[][..]),
            (&[0, 0, BIG, 0, 0], &[(0, 0)], &[2]),
            (&[BIG, 0, 0], &[(0, 1)], &[0]),
            (&[BIG, 0], &[(0, 1)], &[0]),
            (&[5, 5, 1, 5, 5], &[(5, 0)], &[2]),
            (&[0, 5, 5, 1], &[(0, 0), (5, 1)], &[3]),
            (&[0, 0, BIG, 1, 1], &[(0, 0), (1, 3)], &[2]),
            // Without an epoch.
            (&[-1, 2, -1, 2], &[(2, 1)], &[]),
            (&[], &[], &[]),
        ] {
            assert_eq!(
                resolve(epochs),
                (entries.to_vec(), doubted.to_vec()),
                "{epochs:?}"
            );
        }
    }

    // Broken if it failed: a log whose epochs go back and forth would take memory without bound.
    #[test]
    fn contradictions_without_end() {
        let mut runs = EpochRuns::default();
        for offset in 0..4 * RUNS_MAX as i64 {
            runs.add((offset % 2) as i32, offset, 0);
        }
        assert!(runs.runs.len() <= RUNS_MAX);
        let resolved = runs.resolve();
        assert!(resolved.believed.len() <= 2 && resolved.doubted.len() == DOUBTED_MAX);
    }

    proptest::proptest! {
        // Broken if it failed: believed epochs would fall, or fewer batches would be believed than possible.
        #[test]
        fn as_many_as_can_be(epochs in proptest::collection::vec(0i32..6, 0..10)) {
            let (entries, _) = resolve(&epochs);
            let ascending = |pair: &[(i32, i64)]| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1;
            proptest::prop_assert!(entries.windows(2).all(ascending));
            let mut runs = EpochRuns::default();
            for (offset, epoch) in (0..).zip(&epochs) {
                runs.add(*epoch, offset, 0);
            }
            let believed: u64 = runs.resolve().believed.iter().map(|run| run.batches).sum();
            let most = (0u32..1 << epochs.len())
                .filter(|choice| {
                    let numbers = (0..epochs.len()).filter(|n| choice & (1 << n) != 0);
                    let chosen: Vec<_> = numbers.map(|n| epochs[n]).collect();
                    chosen.is_sorted()
                })
                .map(u32::count_ones)
                .max();
            proptest::prop_assert_eq!(Some(believed as u32), most);
        }
    }
}
