//! The single records of a batch that are not allowed, so that a producer can drop them (KIP-467).
//!
//! Pure values. The server encodes them for the wire.

use std::fmt;

/// Records of which the reason is kept. A batch may have millions of records, and these are enough for a
/// producer.
const FAULTS_KEPT: usize = 1000;
/// Further records of which only the number is kept.
const NUMBERS_KEPT: usize = 16_384;

/// Why a record is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A compacted topic needs a key.
    Keyless,
    /// The timestamp is outside the limits of the topic; all in milliseconds since the epoch.
    Time {
        timestamp: i64,
        /// The offset as it was sent.
        offset: i64,
        earliest: i64,
        latest: i64,
    },
    /// The batch claims append time, which only a broker may set.
    AppendTime {
        timestamp: i64,
        offset: i64,
        key_bytes: Option<usize>,
        value_bytes: Option<usize>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordFault {
    /// The record's number in the batch.
    pub index: i32,
    pub fault: Fault,
}

/// The records of a batch that are not allowed; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFaults {
    first: Vec<RecordFault>,
    /// The numbers of the others.
    rest: Vec<i32>,
    count: usize,
    about_time: bool,
    /// The batch is compressed.
    pub compressed: bool,
}

impl RecordFaults {
    pub(crate) fn new(compressed: bool) -> Self {
        Self {
            first: Vec::new(),
            rest: Vec::new(),
            count: 0,
            about_time: false,
            compressed,
        }
    }

    /// The first of them, in order, with reasons.
    pub fn first(&self) -> &[RecordFault] {
        &self.first
    }

    /// The numbers of the records after the first ones, up to a limit.
    pub fn rest(&self) -> &[i32] {
        &self.rest
    }

    /// How many records are not allowed.
    pub fn count(&self) -> usize {
        self.count
    }

    /// True when a timestamp is a reason.
    pub fn is_about_time(&self) -> bool {
        self.about_time
    }

    pub(crate) fn note(&mut self, index: usize, fault: Fault) {
        self.count += 1;
        self.about_time |= fault != Fault::Keyless;
        let index = i32::try_from(index).unwrap_or(i32::MAX);
        if self.first.len() < FAULTS_KEPT {
            self.first.push(RecordFault { index, fault });
        } else if self.rest.len() < NUMBERS_KEPT {
            self.rest.push(index);
        }
    }
}

impl fmt::Display for RecordFaults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(RecordFault { index, fault }) = self.first.first() else {
            return formatter.write_str("no record is refused");
        };
        write!(
            formatter,
            "{} records of the batch are refused; record {index} ",
            self.count
        )?;
        match fault {
            Fault::Keyless => formatter.write_str("has no key, which a compacted topic needs"),
            Fault::Time {
                timestamp,
                earliest,
                latest,
                ..
            } => write!(
                formatter,
                "has the timestamp {timestamp}, which is not within {earliest} and {latest} \
                 (message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
            ),
            Fault::AppendTime { .. } => {
                formatter.write_str("has the log append time flag, which only the broker may set")
            }
        }
    }
}
