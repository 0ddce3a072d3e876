//! The transactions in the part of a log that is cleaned (`CleanedTransactionMetadata`).
//!
//! All of them are decided, because cleaning ends below the last stable offset. Batches of an aborted
//! transaction are removed. A marker is removed when its transaction has no batch left, because an earlier
//! cleaning removed them, and its delete horizon is over. An abort marker that stays keeps its entry in the
//! transaction index.

use std::collections::{HashMap, HashSet};

use logcore_records::{Batch, RecordError};

use crate::index::transactions::AbortedTxn;

const ABORT: i16 = 0;
const COMMIT: i16 = 1;

#[derive(Debug)]
struct Aborting {
    transaction: AbortedTxn,
    /// One of its batches is still there.
    observed: bool,
}

/// A control batch, as the cleaner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marker {
    /// No batch of the transaction is left.
    pub(crate) discardable: bool,
    /// The transaction index entry that stays with the marker.
    pub(crate) index_entry: Option<AbortedTxn>,
}

#[derive(Debug)]
pub(crate) struct Transactions {
    /// Transactions that the walk has not reached, sorted by first offset in falling order.
    ahead: Vec<AbortedTxn>,
    /// By producer.
    aborting: HashMap<i64, Aborting>,
    /// Producers with a batch that belongs to no aborted transaction.
    committing: HashSet<i64>,
}

impl Transactions {
    /// `aborted` are all transactions whose abort marker is in or after the range that is cleaned.
    pub(crate) fn new(mut aborted: Vec<AbortedTxn>) -> Self {
        aborted.sort_unstable_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
        Self {
            ahead: aborted,
            aborting: HashMap::new(),
            committing: HashSet::new(),
        }
    }

    /// Moves transactions that began at or before `offset` from `ahead`.
    fn advance(&mut self, offset: i64) {
        while self.ahead.last().is_some_and(|next| next.first_offset <= offset) {
            if let Some(transaction) = self.ahead.pop() {
                self.aborting.entry(transaction.producer_id).or_insert(Aborting {
                    transaction,
                    observed: false,
                });
            }
        }
    }

    /// Adds a batch of records; true when it belongs to an aborted transaction.
    pub(crate) fn on_batch(&mut self, batch: &Batch<'_>) -> bool {
        let header = &batch.header;
        if !header.is_transactional() {
            return false;
        }
        self.advance(header.last_offset());
        match self.aborting.get_mut(&header.producer_id) {
            Some(aborting) => {
                aborting.observed = true;
                true
            }
            None => {
                self.committing.insert(header.producer_id);
                false
            }
        }
    }

    /// Adds a control batch.
    pub(crate) fn on_control(&mut self, batch: &Batch<'_>) -> Result<Marker, RecordError> {
        let header = &batch.header;
        self.advance(header.last_offset());
        let Some(kind) = marker_kind(batch)? else {
            // It was cleaned before, and only its header is left.
            return Ok(Marker {
                discardable: true,
                index_entry: None,
            });
        };
        let (discardable, index_entry) = match kind {
            ABORT => match self.aborting.remove(&header.producer_id) {
                Some(aborting) if aborting.observed => (false, Some(aborting.transaction)),
                Some(_) | None => (true, None),
            },
            COMMIT => (!self.committing.remove(&header.producer_id), None),
            _ => (false, None),
        };
        Ok(Marker {
            discardable,
            index_entry,
        })
    }
}

/// The type in a marker's key, which is `version i16, type i16` (`ControlRecordType`); `None` without
/// records.
fn marker_kind(batch: &Batch<'_>) -> Result<Option<i16>, RecordError> {
    let records = batch.records(batch.bytes.len())?;
    let Some(record) = records.iter().next().transpose()? else {
        return Ok(None);
    };
    match record.key.and_then(|key| key.get(2..4)) {
        Some(kind) => Ok(Some(i16::from_be_bytes([kind[0], kind[1]]))),
        None => Err(RecordError::InvalidRecord {
            index: 0,
            reason: "the key of a control record is shorter than a version and a type",
        }),
    }
}
