//! Leader epochs as the batches of a log tell them.
//!
//! No checksum covers a batch's leader epoch, and epochs never go back. So where batches contradict each other, those are
//! believed that the most batches agree with: the longest sequence of epochs that do not fall. A flipped bit then costs
//! its batch's word, and not the log its epochs, by which leaders are fenced and followers truncate.
//!
//! A plain value of whoever walks over the batches, in their order.

use std::collections::BTreeMap;

/// Contradictions are resolved whenever there are so many runs, so that a log full of them takes no more memory.
const RUNS_MAX: usize = 1 << 16;
/// Runs that are not believed and told one by one.
const DOUBTED_MAX: usize = 1_000;

/// Batches of one leader epoch, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochRun {
    pub(crate) epoch: i32,
    /// The base offsets of the first and the last batch.
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// Where the first batch is in its segment.
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

/// Epochs that do not contradict each other, and those that contradict them.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// One run an epoch, epochs and offsets rising. A run is of all its epoch's batches, and begins with the first.
    pub(crate) believed: Vec<EpochRun>,
    /// In the order of offsets; the first thousand.
    pub(crate) doubted: Vec<EpochRun>,
}

impl EpochRuns {
    /// Takes in the next batch. One without an epoch (the old formats, -1) says nothing.
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

    /// What the batches say, contradictions resolved.
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
    /// The entries of a file of epochs.
    pub(crate) fn entries(&self) -> Vec<(i32, i64)> {
        let entry = |run: &EpochRun| (run.epoch, run.first);
        self.believed.iter().map(entry).collect()
    }
}

/// The numbers of the runs that together have the most batches while their epochs do not fall; of several such choices the
/// one with the lower epochs, which fence nobody who is right.
fn longest_rising(runs: &[EpochRun]) -> Vec<usize> {
    // By the last epoch of a choice: its batches, which rise with the epoch, and its last run.
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

    // Broken if it failed: one flipped bit, in any batch, would make another epoch the log's.
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
            // No epoch at all.
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

    // Broken if it failed: a log whose epochs go to and fro would take memory without bound.
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
        // Broken if it failed: what is believed would fall, or fewer batches be believed than could.
        #[test]
        fn as_many_as_can_be(epochs in proptest::collection::vec(0i32..6, 0..10)) {
            let (entries, _) = resolve(&epochs);
            proptest::prop_assert!(entries.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
            let mut runs = EpochRuns::default();
            for (offset, epoch) in (0..).zip(&epochs) {
                runs.add(*epoch, offset, 0);
            }
            let believed: u64 = runs.resolve().believed.iter().map(|run| run.batches).sum();
            let most = (0u32..1 << epochs.len())
                .filter(|choice| {
                    let chosen: Vec<_> = (0..epochs.len()).filter(|n| choice & (1 << n) != 0).map(|n| epochs[n]).collect();
                    chosen.is_sorted()
                })
                .map(u32::count_ones)
                .max();
            proptest::prop_assert_eq!(Some(believed as u32), most);
        }
    }
}
