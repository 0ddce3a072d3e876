//! Random batches to append, and random settings of a log.

use std::fs;
use std::path::Path;

use logcore_records::{BatchBuilder, Compression, EndTxnMarker, TimestampType, end_txn_marker, legacy};

use super::{History, PARTITION_DIR};
use crate::config::LogConfig;
use crate::crash::model::{Attempt, Model, Producer, Rec, Sent, What, Written};
use crate::support::random::Random;

/// Producers with this id or a larger one write transactions only.
const TRANSACTIONAL: i64 = 1 << 20;
/// Keys of a compacted log: few, so that most records are superseded.
const KEYS: usize = 6;

/// Batches to append, and their records for the model.
pub(super) struct Append {
    pub(super) bytes: Vec<u8>,
    pub(super) attempt: Attempt,
    /// The offset after the batches so far.
    pub(super) end: i64,
    pub(super) epoch: i32,
}

impl Append {
    pub(super) fn at(offset: i64, epoch: i32) -> Self {
        Self {
            bytes: Vec::new(),
            attempt: Attempt::default(),
            end: offset,
            epoch,
        }
    }

    fn add(&mut self, record: Rec) {
        self.attempt.records.insert(self.end, record);
        self.end += 1;
    }
}

impl History {
    pub(super) fn draw_append(&mut self, first_offset: i64) -> Append {
        let mut append = Append::at(first_offset, self.epoch);
        if self.random.one_in(12) {
            self.draw_legacy(&mut append);
            return append;
        }
        let mut drawn = self.model.producers.clone();
        for _ in 0..self.random.between(1, 3) {
            self.draw_batch(&mut append, &mut drawn);
        }
        append
    }

    /// Draws one batch: without a producer, of a producer, or in a transaction. `producers` are those that
    /// the log knows.
    pub(super) fn draw_batch(&mut self, append: &mut Append, producers: &mut Vec<Producer>) {
        let author = match self.random.below(4) {
            0..=1 => None,
            2 => Some(false),
            _ => self.transactional.then_some(true),
        };
        let author = author.map(|transactional| self.draw_author(producers, transactional));
        self.draw_records(append, author);
    }

    fn draw_author<'a>(&mut self, producers: &'a mut Vec<Producer>, transactional: bool) -> &'a mut Producer {
        let of_kind = |producer: &Producer| (producer.id >= TRANSACTIONAL) == transactional;
        let mut known: Vec<usize> = (0..producers.len())
            .filter(|number| of_kind(&producers[*number]))
            .collect();
        if known.len() < 3 {
            self.producers += 1;
            let first = if transactional { TRANSACTIONAL } else { 0 };
            known.push(producers.len());
            producers.push(Producer {
                id: first + self.producers,
                ..Producer::default()
            });
        }
        &mut producers[*self.random.pick(&known)]
    }

    fn draw_record(&mut self, value_max: usize, what: What) -> Rec {
        self.records += 1;
        let mut value = self.records.to_be_bytes().to_vec();
        let more = self.random.below(value_max);
        value.extend(self.random.bytes(more));
        let (key, tombstone) = if self.config.cleanup_compact {
            let key = vec![self.random.below(KEYS) as u8];
            (Some(key), self.random.one_in(6))
        } else {
            let key = self.random.one_in(2).then(|| self.random.bytes(5));
            (key, false)
        };
        Rec {
            timestamp: self.now_ms + self.random.below(40) as i64 - 20,
            key,
            value: (!tombstone).then_some(value),
            epoch: self.epoch,
            what,
        }
    }

    fn draw_records(&mut self, append: &mut Append, producer: Option<&mut Producer>) {
        let codec = if self.random.one_in(8) {
            *self.random.pick(&Compression::ALL)
        } else {
            Compression::None
        };
        let mut builder = BatchBuilder::new(codec, None);
        let mut what = What::Plain;
        if let Some(producer) = &producer {
            builder.set_producer_state(producer.id, 0, producer.next_sequence);
            if producer.id >= TRANSACTIONAL {
                builder.set_transactional(true);
                what = What::Transactional(producer.id);
            }
        }
        let first_offset = append.end;
        let count = self.random.between(1, 4);
        for _ in 0..count {
            let mut record = self.draw_record(80, what);
            record.epoch = append.epoch;
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            builder.append(record.timestamp, key, value, &[]).unwrap();
            if self.config.timestamp_type == TimestampType::LogAppendTime {
                record.timestamp = self.now_ms;
            }
            append.add(record);
        }
        let bytes = builder.build().unwrap();
        append.bytes.extend(&bytes);
        if let Some(producer) = producer {
            let sent = Sent {
                first_offset,
                last_offset: append.end - 1,
                first_sequence: producer.next_sequence,
                count: count as i32,
                bytes,
            };
            let written = Written {
                last: sent.last_offset,
                producer: producer.id,
                first_sequence: sent.first_sequence,
                what,
            };
            producer.next_sequence += sent.count;
            append.attempt.batches.insert(first_offset, written);
            append.attempt.sent.push((producer.id, sent));
        }
    }

    /// Draws the marker that ends a producer's transaction.
    pub(super) fn draw_marker(&mut self, append: &mut Append, producer: i64) {
        let marker = EndTxnMarker {
            committed: self.random.one_in(2),
            coordinator_epoch: 0,
        };
        let what = What::Marker {
            producer,
            committed: marker.committed,
        };
        append
            .bytes
            .extend(end_txn_marker(producer, 0, marker, self.now_ms).unwrap());
        let written = Written {
            last: append.end,
            producer,
            first_sequence: -1,
            what,
        };
        append.attempt.batches.insert(append.end, written);
        append.add(Rec {
            timestamp: self.now_ms,
            key: Some(vec![0, 0, 0, u8::from(marker.committed)]),
            value: Some(vec![0; 6]),
            epoch: append.epoch,
            what,
        });
    }

    /// Draws a message set v1, converted as a broker converts an old producer's.
    fn draw_legacy(&mut self, append: &mut Append) {
        let mut set = Vec::new();
        for number in 0..self.random.between(1, 3) {
            let mut record = self.draw_record(40, What::Plain);
            set.extend(legacy_message(number as i64, &record));
            if self.config.timestamp_type == TimestampType::LogAppendTime {
                record.timestamp = self.now_ms;
            }
            append.add(record);
        }
        append.bytes = legacy::to_v2(&set, TimestampType::CreateTime, 1 << 20).unwrap();
    }
}

/// `follows`: the log is a follower.
pub(super) fn config(random: &mut Random, follows: bool) -> LogConfig {
    let compact = random.one_in(3);
    LogConfig {
        segment_bytes: random.between(500, 3000) as u64,
        segment_ms: *random.pick(&[i64::MAX, i64::MAX, 100]),
        index_interval_bytes: random.between(0, 300) as u32,
        segment_index_bytes: *random.pick(&[24, 60, 400, 4096]),
        timestamp_type: if !follows && random.one_in(6) {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        },
        cleanup_compact: compact,
        cleanup_delete: !compact || random.one_in(3),
        delete_retention_ms: *random.pick(&[0, 0, 100]),
        retention_ms: *random.pick(&[-1, -1, 200, 1000]),
        retention_bytes: *random.pick(&[-1, -1, -1, 1500]),
        flush_messages: *random.pick(&[1, 3, i64::MAX, i64::MAX]),
        flush_ms: *random.pick(&[i64::MAX, 50]),
        file_delete_delay_ms: *random.pick(&[0, 100, 60_000]),
        producer_id_expiration_ms: i64::MAX,
        flush_on_roll: random.one_in(3),
        ..LogConfig::default()
    }
}

/// A message v1, from the layout.
fn legacy_message(offset: i64, record: &Rec) -> Vec<u8> {
    let mut body = vec![1, 0];
    body.extend(record.timestamp.to_be_bytes());
    for field in [record.key.as_deref(), record.value.as_deref()] {
        body.extend(field.map_or(-1, |f| f.len() as i32).to_be_bytes());
        body.extend(field.unwrap_or_default());
    }
    let mut out = offset.to_be_bytes().to_vec();
    out.extend((body.len() as i32 + 4).to_be_bytes());
    out.extend(crc32fast::hash(&body).to_be_bytes());
    out.extend(body);
    out
}

/// A segment as an old Kafka writes it.
pub(super) fn write_legacy_segment(root: &Path, random: &mut Random, model: &mut Model) {
    let dir = root.join(PARTITION_DIR);
    fs::create_dir(&dir).unwrap();
    let mut bytes = Vec::new();
    let mut attempt = Attempt::default();
    let count = random.between(1, 12) as i64;
    for offset in 0..count {
        let record = Rec {
            timestamp: 999_000 + offset,
            key: None,
            value: Some(format!("legacy {offset}").into_bytes()),
            epoch: -1,
            what: What::Plain,
        };
        bytes.extend(legacy_message(offset, &record));
        attempt.records.insert(offset, record);
    }
    fs::write(dir.join("00000000000000000000.log"), bytes).unwrap();
    model.acknowledge(attempt, count);
    model.flushed(model.end);
}
