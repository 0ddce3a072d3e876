//! A record on its way in: borrowed from the caller, or copied while its topic's partitions are not known.

use std::sync::Arc;
use std::time::Instant;

use logcore_records::BatchBuilder;

use super::report::{Report, Tracked};
use crate::error::ClientError;

/// A record's headers, borrowed.
pub type HeaderSlice<'a> = &'a [(&'a [u8], Option<&'a [u8]>)];

/// A record to produce, borrowed from the caller.
#[derive(Debug, Clone, Copy)]
pub struct NewRecord<'a> {
    /// `None`: the partitioner chooses.
    pub partition: Option<i32>,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: HeaderSlice<'a>,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
}

impl NewRecord<'_> {
    /// The most bytes that the record takes in a batch, for the queue's limit and the batch's.
    pub(super) fn size(&self) -> usize {
        BatchBuilder::record_size_bound(self.key, self.value, self.headers)
    }
}

/// A copied record that waits for its topic's partitions.
#[derive(Debug)]
pub(super) struct PendingRecord<T> {
    partition: Option<i32>,
    key: Option<Box<[u8]>>,
    value: Option<Box<[u8]>>,
    headers: Box<[OwnedHeader]>,
    timestamp: i64,
    pub(super) context: Option<T>,
    pub(super) since: Instant,
}

type OwnedHeader = (Box<[u8]>, Option<Box<[u8]>>);

impl<T> PendingRecord<T> {
    pub(super) fn copy(record: &NewRecord<'_>, context: Option<T>, since: Instant) -> Self {
        let headers = record.headers.iter();
        Self {
            partition: record.partition,
            key: record.key.map(Box::from),
            value: record.value.map(Box::from),
            headers: headers
                .map(|(key, value)| (Box::from(*key), value.map(Box::from)))
                .collect(),
            timestamp: record.timestamp,
            context,
            since,
        }
    }

    /// Calls `then` with the record, borrowed.
    pub(super) fn with_record<R>(&self, then: impl FnOnce(&NewRecord<'_>) -> R) -> R {
        let headers: Vec<(&[u8], Option<&[u8]>)> = self
            .headers
            .iter()
            .map(|(key, value)| (&**key, value.as_deref()))
            .collect();
        then(&NewRecord {
            partition: self.partition,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: &headers,
            timestamp: self.timestamp,
        })
    }

    pub(super) fn size(&self) -> usize {
        self.with_record(|record| record.size())
    }

    /// The report of a record that cannot be sent; `None` without a context.
    pub(super) fn refused(self, topic: &Arc<str>, error: ClientError) -> Option<Report<T>> {
        let context = self.context?;
        Some(Report {
            topic: Arc::clone(topic),
            partition: self.partition.unwrap_or(-1),
            base_offset: -1,
            append_time: -1,
            error: Some(error),
            begun: self.since,
            records: vec![Tracked {
                index: 0,
                timestamp: self.timestamp,
                context,
            }]
            .into_iter(),
        })
    }
}
