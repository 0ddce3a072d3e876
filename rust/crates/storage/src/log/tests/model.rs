//! Any sequence of operations, compared with a vector.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    /// Batches with so many records of so many bytes each.
    Append(Vec<(u8, u8)>),
    Roll,
    Flush,
    CloseAndOpen,
    /// Open again without closing.
    Crash,
    /// Open again without closing; so many bytes of the last segment are missing.
    TornTail(u16),
    /// Open again without closing; random bytes follow the last batch.
    RubbishTail(Vec<u8>),
    LoseIndexes,
    /// Truncate to this percentage of the records.
    Truncate(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::vec((1u8..5, 0u8..120), 1..4).prop_map(Step::Append),
        1 => Just(Step::Roll),
        1 => Just(Step::Flush),
        1 => Just(Step::CloseAndOpen),
        1 => Just(Step::Crash),
        1 => any::<u16>().prop_map(Step::TornTail),
        1 => prop::collection::vec(any::<u8>(), 1..100).prop_map(Step::RubbishTail),
        1 => Just(Step::LoseIndexes),
        1 => (0u8..100).prop_map(Step::Truncate),
    ]
}

/// The expected content: each record's value, and the ends of the batches.
#[derive(Default)]
struct Model {
    values: Vec<Vec<u8>>,
    /// The offset after the batch of each record.
    batch_ends: Vec<usize>,
}

fn tail_path(dir: &Path) -> PathBuf {
    let name = names(dir)
        .into_iter()
        .rfind(|name| name.ends_with(files::LOG_SUFFIX))
        .unwrap();
    dir.join(name)
}

struct Run {
    dir: tempfile::TempDir,
    log: Option<Log>,
    model: Model,
    counter: u64,
}

impl Run {
    fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    fn reopen(&mut self, clean: bool) {
        self.log = None;
        self.log = Some(Log::open(self.dir.path(), small(), clean, 0).unwrap());
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Append(batches) => self.append(batches),
            Step::Roll => self.log().roll(0).unwrap(),
            Step::Flush => self.log().flush().unwrap(),
            Step::CloseAndOpen => {
                self.log().close().unwrap();
                self.reopen(true);
            }
            Step::Crash => self.reopen(false),
            Step::TornTail(bytes) => {
                self.log = None;
                let path = tail_path(self.dir.path());
                let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
                let size = file.metadata().unwrap().len();
                file.set_len(size.saturating_sub(u64::from(*bytes))).unwrap();
                self.reopen(false);
                let end = self.log().log_end_offset() as usize;
                // Only whole batches are left, and not more than before.
                assert!(end == 0 || self.model.batch_ends[end - 1] == end);
                self.model.values.truncate(end);
                self.model.batch_ends.truncate(end);
            }
            Step::RubbishTail(bytes) => {
                self.log = None;
                let path = tail_path(self.dir.path());
                let mut content = std::fs::read(&path).unwrap();
                content.extend(bytes);
                std::fs::write(&path, content).unwrap();
                self.reopen(false);
            }
            Step::LoseIndexes => {
                self.log().close().unwrap();
                self.log = None;
                for name in names(self.dir.path()) {
                    if name.ends_with(".index") || name.ends_with(".timeindex") {
                        std::fs::remove_file(self.dir.path().join(name)).unwrap();
                    }
                }
                self.reopen(true);
            }
            Step::Truncate(percent) => {
                let target = self.model.values.len() * usize::from(*percent) / 100;
                let end = self.log().truncate_to(target as i64).unwrap() as usize;
                // Batches are removed whole, and only from the truncated one on.
                assert!(end == 0 || self.model.batch_ends[end - 1] == end);
                assert!(end == target || self.model.batch_ends[end] > target);
                self.model.values.truncate(end);
                self.model.batch_ends.truncate(end);
            }
        }
    }

    fn append(&mut self, shapes: &[(u8, u8)]) {
        let mut bytes = Vec::new();
        let first = self.model.values.len();
        for (count, size) in shapes {
            let mut builder = BatchBuilder::new(Compression::None, None);
            for _ in 0..*count {
                self.counter += 1;
                let mut value = self.counter.to_be_bytes().to_vec();
                value.resize(8 + usize::from(*size), 0x5a);
                builder
                    .append(self.counter as i64, None, Some(&value), &[])
                    .unwrap();
                self.model.values.push(value);
            }
            let end = self.model.values.len();
            self.model.batch_ends.resize(end, end);
            builder.build_into(&mut bytes).unwrap();
        }
        let appended = self.log().append_as_leader(&mut bytes, 0, 0).unwrap();
        assert_eq!(appended.first_offset, first as i64);
        assert_eq!(appended.last_offset + 1, self.model.values.len() as i64);
    }

    fn check(&self) {
        let end = self.model.values.len();
        assert_eq!(self.log().log_end_offset(), end as i64);
        for start in [0, end / 3, end.saturating_sub(2)] {
            let found = values_from(self.log(), start as i64);
            let values: Vec<_> = found.into_iter().map(|(_, value)| value).collect();
            assert!(
                values == self.model.values[start..],
                "records from {start} on differ"
            );
        }
        // Timestamps are the counter, so the first record at or after one is found by its value.
        for offset in [0, end / 2, end.saturating_sub(1)] {
            let Some(value) = self.model.values.get(offset) else {
                continue;
            };
            let counter = u64::from_be_bytes(value[..8].try_into().unwrap());
            let found = self.log().offset_for_timestamp(counter as i64).unwrap().unwrap();
            assert_eq!(found.offset, offset as i64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    // Broken if it failed: some order of appends, rolls, crashes and lost indexes would lose, change or
    // invent records.
    #[test]
    fn a_log_is_a_vector(steps in prop::collection::vec(step(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let mut run = Run { dir, log: Some(log), model: Model::default(), counter: 0 };
        for step in &steps {
            run.apply(step);
            run.check();
        }
    }
}
