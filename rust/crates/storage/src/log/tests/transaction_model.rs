//! Any sequence of transactions, rolls, truncations and crashes, compared with the list of what was appended.

use proptest::prelude::*;

use super::transactions::{begin, end, keeps_producers};
use super::*;
use crate::AbortedTxn;

const PRODUCERS: i64 = 4;

#[derive(Debug, Clone)]
enum Step {
    /// A producer writes so many records into its transaction.
    Write(i64, usize),
    Decide(i64, bool),
    Plain,
    Roll,
    /// Truncate so many batches.
    Truncate(usize),
    CloseAndOpen,
    /// Open again without closing, with the recovery point at this percentage of the log.
    Crash(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..PRODUCERS, 1usize..4).prop_map(|(producer, count)| Step::Write(producer, count)),
        4 => (0..PRODUCERS, any::<bool>()).prop_map(|(producer, commit)| Step::Decide(producer, commit)),
        2 => Just(Step::Plain),
        1 => Just(Step::Roll),
        1 => (1usize..6).prop_map(Step::Truncate),
        1 => Just(Step::CloseAndOpen),
        1 => (0i64..=100).prop_map(Step::Crash),
    ]
}

/// One batch: its first offset and number of records; in a transaction, or the marker of one.
#[derive(Debug, Clone, Copy)]
struct Batch {
    first: i64,
    count: i64,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Plain,
    Data(i64),
    Marker(i64, bool),
}

/// What follows from the batches: the log end, the last stable offset, the aborted transactions.
fn consequences(batches: &[Batch]) -> (i64, i64, Vec<AbortedTxn>) {
    let mut open: Vec<(i64, i64)> = Vec::new();
    let mut aborted = Vec::new();
    let mut log_end = 0;
    for batch in batches {
        log_end = batch.first + batch.count;
        match batch.what {
            What::Data(producer) if open.iter().all(|(other, _)| *other != producer) => {
                open.push((producer, batch.first));
            }
            What::Marker(producer, committed) => {
                let Some(at) = open.iter().position(|(other, _)| *other == producer) else {
                    continue;
                };
                let (_, first_offset) = open.remove(at);
                if !committed {
                    aborted.push(AbortedTxn {
                        producer_id: producer,
                        first_offset,
                        last_offset: batch.first,
                        last_stable_offset: open.first().map_or(log_end, |(_, first)| *first),
                    });
                }
            }
            What::Data(_) | What::Plain => {}
        }
    }
    let stable = open.first().map_or(log_end, |(_, first)| *first);
    (log_end, stable, aborted)
}

struct Run {
    dir: tempfile::TempDir,
    log: Option<Log>,
    batches: Vec<Batch>,
}

impl Run {
    fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    fn reopen(&mut self, clean: bool, recovery_point: i64) {
        self.log = None;
        let opened = Log::open(self.dir.path(), keeps_producers(), clean, recovery_point);
        self.log = Some(opened.unwrap());
    }

    /// The next sequence of a producer follows from its batches in the log.
    fn sequence(&self, producer: i64) -> i32 {
        let own = |batch: &&Batch| matches!(batch.what, What::Data(other) if other == producer);
        self.batches
            .iter()
            .filter(own)
            .map(|batch| batch.count as i32)
            .sum()
    }

    fn push(&mut self, first: i64, count: i64, what: What) {
        self.batches.push(Batch { first, count, what });
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Write(producer, count) => {
                let first = begin(self.log(), producer, self.sequence(producer), count);
                self.push(first, count as i64, What::Data(producer));
            }
            Step::Decide(producer, committed) => {
                let offset = end(self.log(), producer, committed);
                self.push(offset, 1, What::Marker(producer, committed));
            }
            Step::Plain => {
                let offset = self.log().log_end_offset();
                fill(self.log(), 1);
                self.push(offset, 1, What::Plain);
            }
            Step::Roll => self.log().roll(0).unwrap(),
            Step::Truncate(count) => {
                let kept = self.batches.len().saturating_sub(count);
                let target = self.batches.get(kept).map_or(0, |batch| batch.first);
                assert_eq!(self.log().truncate_to(target).unwrap(), target);
                self.batches.truncate(kept);
            }
            Step::CloseAndOpen => {
                self.log().close().unwrap();
                self.reopen(true, 0);
            }
            Step::Crash(percent) => {
                let known = self.log().log_end_offset() * percent / 100;
                self.reopen(false, known);
            }
        }
    }

    fn check(&self) {
        let log = self.log();
        let (log_end, stable, aborted) = consequences(&self.batches);
        assert_eq!(
            (log.log_end_offset(), log.last_stable_offset()),
            (log_end, stable)
        );
        assert_eq!(log.aborted_transactions(0, log_end).unwrap(), aborted);
        // A reader of any range gets every aborted batch in it.
        for (from, to) in [(log_end / 3, log_end / 2), (log_end / 2, log_end)] {
            let reported = log.aborted_transactions(from, to).unwrap();
            for transaction in &aborted {
                let met = transaction.last_offset >= from && transaction.first_offset < to;
                assert!(
                    !met || reported.contains(transaction),
                    "{transaction:?} from {from} to {to}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    // Broken if it failed: in some order of events a reader of committed records would see open or aborted
    // ones, or stop for ever.
    #[test]
    fn transactions_are_what_was_appended(steps in prop::collection::vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), keeps_producers(), false, 0).unwrap();
        let mut run = Run { dir, log: Some(log), batches: Vec::new() };
        for step in &steps {
            run.apply(step);
            run.check();
        }
    }
}
