//! Tests of compaction on whole logs: against a model, across crashes, beside readers, by the threads.
//!
//! Logs are written segment by segment, so that a test decides what each contains, and opened as after a
//! crash.

mod crash;
mod golden;
mod model;
mod rules;
mod running;

use std::collections::BTreeMap;
use std::path::Path;

use logcore_records::{BatchBuilder, BatchHeader, Compression, batches, legacy, set_offsets_in_place};

use crate::config::LogConfig;
use crate::files::{LOG_SUFFIX, TXN_INDEX_SUFFIX, segment_file};
use crate::index::transactions::AbortedTxn;
use crate::log::Log;

pub(super) const NOW: i64 = 1_700_000_000_000;

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 1 << 20,
        index_interval_bytes: 100,
        segment_index_bytes: 1 << 16,
        retention_ms: -1,
        cleanup_delete: false,
        cleanup_compact: true,
        delete_retention_ms: 1000,
        // The timestamps of records are their offsets, long ago.
        producer_id_expiration_ms: i64::MAX,
        ..LogConfig::default()
    }
}

type Pair<'a> = (&'a [u8], Option<&'a [u8]>);

/// Writes a log's segments.
struct Writer<'a> {
    dir: &'a Path,
    base: i64,
    next: i64,
    bytes: Vec<u8>,
    aborted: Vec<AbortedTxn>,
    /// First offset and next sequence of each producer's transaction.
    open: BTreeMap<i64, i64>,
    sequences: BTreeMap<i64, i32>,
    codec: Compression,
}

impl<'a> Writer<'a> {
    fn new(dir: &'a Path) -> Self {
        Self {
            dir,
            base: 0,
            next: 0,
            bytes: Vec::new(),
            aborted: Vec::new(),
            open: BTreeMap::new(),
            sequences: BTreeMap::new(),
            codec: Compression::None,
        }
    }

    fn add(&mut self, mut batch: Vec<u8>) {
        set_offsets_in_place(&mut batch, self.next, 0);
        self.next = BatchHeader::parse(&batch).unwrap().next_offset();
        self.bytes.extend(batch);
    }

    fn builder(&mut self, producer: Option<i64>, transactional: bool, count: usize) -> BatchBuilder {
        let mut builder = BatchBuilder::new(self.codec, None);
        if let Some(producer) = producer {
            let sequence = self.sequences.entry(producer).or_default();
            builder.set_producer_state(producer, 0, *sequence);
            builder.set_transactional(transactional);
            *sequence += count as i32;
            if transactional {
                self.open.entry(producer).or_insert(self.next);
            }
        }
        builder
    }

    /// One batch; the timestamps are the offsets.
    fn batch(&mut self, producer: Option<i64>, transactional: bool, records: &[Pair<'_>]) {
        let mut builder = self.builder(producer, transactional, records.len());
        for (number, (key, value)) in records.iter().enumerate() {
            let timestamp = self.next + number as i64;
            builder.append(timestamp, Some(key), *value, &[]).unwrap();
        }
        self.add(builder.build().unwrap());
    }

    fn plain(&mut self, records: &[Pair<'_>]) {
        self.batch(None, false, records);
    }

    /// Ends a producer's transaction.
    fn marker(&mut self, producer: i64, commit: bool) {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.set_producer_state(producer, 0, -1);
        builder.set_transactional(true);
        builder.set_control(true);
        let key = [0, 0, 0, u8::from(commit)];
        builder.append(self.next, Some(&key), Some(&[0; 6]), &[]).unwrap();
        let offset = self.next;
        self.add(builder.build().unwrap());
        let first = self.open.remove(&producer);
        if let (false, Some(first_offset)) = (commit, first) {
            let stable = self.open.values().min().copied().unwrap_or(offset + 1);
            self.aborted.push(AbortedTxn {
                producer_id: producer,
                first_offset,
                last_offset: offset,
                last_stable_offset: stable,
            });
        }
    }

    /// Ends the segment and begins the next.
    fn roll(&mut self) {
        if self.next == self.base {
            return;
        }
        self.write();
        self.base = self.next;
    }

    fn write(&mut self) {
        let path = segment_file(self.dir, self.base, LOG_SUFFIX);
        std::fs::write(path, std::mem::take(&mut self.bytes)).unwrap();
        let entries: Vec<u8> = self.aborted.drain(..).flat_map(|entry| entry.encode()).collect();
        if !entries.is_empty() {
            let path = segment_file(self.dir, self.base, TXN_INDEX_SUFFIX);
            std::fs::write(path, entries).unwrap();
        }
    }

    /// Ends the log with an active segment of one record and opens it.
    fn open(&mut self, config: LogConfig) -> Log {
        self.roll();
        self.plain(&[(b"the active segment", Some(b"v"))]);
        self.write();
        reopen(self.dir, config)
    }
}

fn reopen(dir: &Path, config: LogConfig) -> Log {
    Log::open(dir, config, false, 0).unwrap()
}

/// A record as a reader gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    offset: i64,
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    producer: i64,
    control: bool,
}

/// All bytes of a log, as a reader gets them, fetch by fetch.
fn read_batches(log: &Log) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut offset = log.log_start_offset();
    while offset < log.log_end_offset() {
        let slice = log.read(offset, 700, log.log_end_offset(), true).unwrap();
        let bytes = slice.read_whole_batches().unwrap();
        assert!(!bytes.is_empty(), "nothing at {offset}");
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let size = 12 + i32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize;
            let (batch, after) = rest.split_at(size);
            found.push(batch.to_vec());
            offset = if legacy::is_legacy(batch) {
                i64::from_be_bytes(batch[..8].try_into().unwrap()) + 1
            } else {
                BatchHeader::parse(batch).unwrap().next_offset()
            };
            rest = after;
        }
    }
    found
}

fn read_all(log: &Log) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for bytes in read_batches(log) {
        if legacy::is_legacy(&bytes) {
            legacy::for_each(&bytes, 1 << 20, |message| {
                found.push(Found {
                    offset: message.offset,
                    timestamp: message.timestamp,
                    key: message.key.map(<[u8]>::to_vec),
                    value: message.value.map(<[u8]>::to_vec),
                    producer: -1,
                    control: false,
                });
                Ok(())
            })
            .unwrap();
            continue;
        }
        for batch in batches(&bytes) {
            let batch = batch.unwrap();
            batch.verify_crc().unwrap();
            for record in batch.records(1 << 20).unwrap().iter() {
                let record = record.unwrap();
                found.push(Found {
                    offset: record.offset,
                    timestamp: record.timestamp,
                    key: record.key.map(<[u8]>::to_vec),
                    value: record.value.map(<[u8]>::to_vec),
                    producer: batch.header.producer_id,
                    control: batch.header.is_control(),
                });
            }
        }
    }
    assert!(found.is_sorted_by(|one, other| one.offset < other.offset));
    found
}

fn values(log: &Log) -> Vec<(i64, String, Option<String>)> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    read_all(log)
        .into_iter()
        .filter(|record| !record.control)
        .map(|record| {
            (
                record.offset,
                text(record.key.unwrap_or_default()),
                record.value.map(text),
            )
        })
        .collect()
}

fn headers(log: &Log) -> Vec<BatchHeader> {
    read_batches(log)
        .iter()
        .filter_map(|bytes| BatchHeader::parse(bytes).ok())
        .collect()
}

/// A reader of committed records leaves out an aborted transaction's records up to its marker.
fn assert_aborted_have_markers(log: &Log) {
    let markers: Vec<i64> = read_all(log)
        .iter()
        .filter(|record| record.control)
        .map(|record| record.offset)
        .collect();
    for segment in log.plan_cleaning(NOW).unwrap().view.segments.iter() {
        for aborted in segment.aborted_transactions().unwrap() {
            assert!(markers.contains(&aborted.last_offset), "{aborted:?}");
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    crate::files::file_names(dir).unwrap()
}
