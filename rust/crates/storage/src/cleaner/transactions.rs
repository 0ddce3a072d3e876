//! What the cleaner knows of transactions as it walks through a log (`CleanedTransactionMetadata`).
//!
//! Everything walked over is decided: the cleaner stays below the last stable offset. Batches of an aborted transaction go
//! at once. A marker goes when no batch of its transaction was met, which is so when an earlier cleaning took them; it
//! then still stays until its delete horizon. An abort marker that stays keeps its entry in the transaction index.

use std::collections::{HashMap, HashSet};

use logcore_records::{Batch, RecordError};

use crate::index::transactions::AbortedTxn;

const ABORT: i16 = 0;
const COMMIT: i16 = 1;

#[derive(Debug)]
struct Aborting {
    transaction: AbortedTxn,
    /// A batch of it was met.
    observed: bool,
}

/// What a control batch means for the cleaner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marker {
    /// Nothing is left that it decides.
    pub(crate) discardable: bool,
    /// The transaction index entry that stays with it.
    pub(crate) index_entry: Option<AbortedTxn>,
}

#[derive(Debug)]
pub(crate) struct Transactions {
    /// Not reached yet; the one with the least first offset is last.
    ahead: Vec<AbortedTxn>,
    /// By producer.
    aborting: HashMap<i64, Aborting>,
    /// Producers of which a batch was met that is in no aborted transaction.
    committing: HashSet<i64>,
}

impl Transactions {
    /// `aborted` are all transactions whose abort marker is in or behind the range to be walked over.
    pub(crate) fn new(mut aborted: Vec<AbortedTxn>) -> Self {
        aborted.sort_unstable_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
        Self {
            ahead: aborted,
            aborting: HashMap::new(),
            committing: HashSet::new(),
        }
    }

    /// Transactions that began at or before `offset` are met from now on.
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

    /// Takes in a batch of records; true when it belongs to an aborted transaction.
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

    /// Takes in a control batch.
    pub(crate) fn on_control(&mut self, batch: &Batch<'_>) -> Result<Marker, RecordError> {
        let header = &batch.header;
        self.advance(header.last_offset());
        let Some(kind) = marker_kind(batch)? else {
            // Only its header is left: it has been cleaned before.
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

/// The type in a marker's key, which is `version i16, type i16` (`ControlRecordType`); `None` without records.
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
