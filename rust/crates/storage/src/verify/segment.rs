//! The check of one `.log` file, batch by batch, and of its three indexes.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use logcore_records::EndTxnMarker;
use logcore_records::{Batch, RecordError, legacy};

use crate::error::{Result, StorageError};
use crate::files::{INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, segment_file};
use crate::index::transactions::{self, AbortedTxn};
use crate::segment::scan::{Next, Scanner, StoredBatch};

use super::indexes::{Ending, Fault, OffsetIndexCheck, TimeIndexCheck};
use super::partition::{GONE, OpenTxn, REBUILT, SegmentCheck, Walk, index_path};
use super::resync::{self, next_intact};
use super::{Finding, Kind};

/// Bytes between two calls of the progress callback.
const STEP: u64 = 4 << 20;

/// Types in the key of a control record (`ControlRecordType`): version i16, type i16.
const ABORT: i16 = 0;
const COMMIT: i16 = 1;

/// What is collected while a segment is read.
struct InSegment {
    number: usize,
    base_offset: i64,
    next_base: Option<i64>,
    offset_index: Option<OffsetIndexCheck>,
    time_index: Option<TimeIndexCheck>,
    /// Offset and producer id of each abort marker.
    markers: Vec<(i64, i64)>,
    /// Aborted transactions. False: compaction removed the records, so the index may lack the entry.
    aborted: Vec<(AbortedTxn, bool)>,
}

/// A marker that ends a transaction.
struct Marker {
    aborted: bool,
    coordinator_epoch: Option<i32>,
}

/// The content of a batch.
struct Content {
    records: u64,
    first_offset: i64,
    marker: Option<Marker>,
}

/// Whether an index file starts with an entry, not zeros. An unreadable file is reported elsewhere.
fn has_entries(index: &Path) -> bool {
    let mut first = [0; 8];
    let read = File::open(index).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && first != [0; 8]
}

impl Walk<'_> {
    pub(super) fn segment(&mut self, number: usize) {
        let base_offset = self.bases[number];
        let path = segment_file(self.dir, base_offset, LOG_SUFFIX);
        let mut check = SegmentCheck {
            base_offset,
            size: 0,
            offset_index_wrong: false,
            time_index_wrong: false,
            aborted: Vec::new(),
            txn_index_wrong: false,
        };
        if let Err(error) = self.read_segment(number, &mut check) {
            self.unread = true;
            let gone =
                matches!(&error, StorageError::Io { source, .. } if source.kind() == ErrorKind::NotFound);
            if !(gone && self.live()) {
                self.findings.error(Kind::Unreadable, &path, &error, "");
            }
        }
        self.segments.push(check);
    }

    fn read_segment(&mut self, number: usize, check: &mut SegmentCheck) -> Result<()> {
        let base_offset = check.base_offset;
        let path = segment_file(self.dir, base_offset, LOG_SUFFIX);
        let file = File::open(&path).map_err(StorageError::io("open", &path))?;
        check.size = file.metadata().map_err(StorageError::io("read", &path))?.len();
        let index = index_path(self.dir, base_offset);
        let time_index = segment_file(self.dir, base_offset, TIME_INDEX_SUFFIX);
        let mut segment = InSegment {
            number,
            base_offset,
            next_base: self.bases.get(number + 1).copied(),
            offset_index: self.or_finding(OffsetIndexCheck::open(&index, base_offset)),
            time_index: self.or_finding(TimeIndexCheck::open(&time_index, base_offset)),
            markers: Vec::new(),
            aborted: Vec::new(),
        };
        self.read_batches(&file, check.size, &mut segment)?;
        if !self.stopped {
            self.finish_indexes(segment, check);
            let partition = self.context.partition;
            // A later segment may not have been on disk.
            let settled = partition.clean || base_offset < partition.recovery_point;
            if check.size == 0 && settled {
                self.report_emptied(&path, base_offset);
            }
        }
        Ok(())
    }

    /// Reports an empty segment that has index entries. One that compaction emptied, or that was never
    /// filled, has none.
    pub(super) fn report_emptied(&mut self, log: &Path, base_offset: i64) {
        let names = [INDEX_SUFFIX, TIME_INDEX_SUFFIX];
        let mut indexes = names
            .map(|suffix| segment_file(self.dir, base_offset, suffix))
            .into_iter();
        if let Some(index) = indexes.find(|index| has_entries(index)) {
            self.findings.push(Finding {
                kind: Kind::MissingOffsets,
                path: log.to_path_buf(),
                position: None,
                offset: Some(base_offset),
                what: format!(
                    "its records are lost: {} has entries for them",
                    index.file_name().unwrap_or_default().display()
                ),
                remedy: GONE.to_owned(),
            });
        }
    }

    /// Reports an index that cannot be opened, and skips it.
    fn or_finding<T>(&mut self, opened: Result<T>) -> Option<T> {
        match opened {
            Ok(opened) => Some(opened),
            Err(error) => {
                self.findings.error(Kind::Unreadable, self.dir, &error, REBUILT);
                None
            }
        }
    }

    fn read_batches(&mut self, file: &File, size: u64, segment: &mut InSegment) -> Result<()> {
        let path = segment_file(self.dir, segment.base_offset, LOG_SUFFIX);
        let failed = |error| StorageError::io("read", &path)(error);
        let mut scan = Scanner::whole(file, 0, size);
        let mut budget = resync::budget(size);
        let mut reported = 0;
        loop {
            let position = scan.position();
            if position - reported >= STEP {
                self.stopped = !(self.context.advance)(position - reported);
                reported = position;
            }
            if self.stopped {
                return Ok(());
            }
            let (reason, after) = match scan.next().map_err(failed)? {
                Next::End => break,
                Next::Torn(reason) => (reason, None),
                Next::Batch(batch) => {
                    let bytes = scan.bytes(&batch).map_err(failed)?;
                    if (bytes.len() as u64) < batch.size && self.live() {
                        // The file was cut meanwhile.
                        self.unread = true;
                        break;
                    }
                    match batch.verify_exact(bytes) {
                        Ok(()) => {
                            self.batch(segment, &batch, bytes)?;
                            continue;
                        }
                        Err(reason) => (reason, Some(batch.end())),
                    }
                }
            };
            self.damage(Kind::CorruptBatch, segment.number, position, reason);
            let most = segment.base_offset.saturating_add(i64::from(i32::MAX));
            let offsets = (self.next_offset, most);
            match next_after(file, (position, size), after, offsets, &mut budget).map_err(failed)? {
                Some(next) => scan = Scanner::whole(file, next, size),
                None => break,
            }
        }
        self.bytes += size;
        self.stopped = !(self.context.advance)(size - reported);
        Ok(())
    }

    /// A batch whose checksum is right.
    fn batch(&mut self, segment: &mut InSegment, batch: &StoredBatch, bytes: &[u8]) -> Result<()> {
        let (number, position) = (segment.number, batch.position);
        self.batches += 1;
        let content = match read_records(
            batch,
            bytes,
            self.context.options.decompressed_max,
            &mut self.scratch,
        ) {
            Ok(content) => content,
            Err(RecordError::DecompressedTooLarge { codec, limit }) => {
                self.not_checked(
                    segment,
                    batch,
                    format!("the {codec} batch decompresses to more than {limit} bytes and was not checked"),
                );
                Content {
                    records: batch.header.as_ref().map_or(1, |h| h.record_count.max(0) as u64),
                    first_offset: batch.base_offset,
                    marker: None,
                }
            }
            Err(error) => {
                self.damage(Kind::BadRecords, number, position, error.to_string());
                return Ok(());
            }
        };
        self.records += content.records;
        if let Some(what) = self.misplaced(segment, batch, content.first_offset) {
            self.damage(Kind::OffsetOrder, number, position, what);
            return Ok(());
        }
        if !self.intact() {
            self.behind_damage(content.records);
            self.next_offset = batch.last_offset + 1;
            return Ok(());
        }
        let follows = content.first_offset == self.next_offset;
        self.dense &= follows;
        self.check_snapshots(batch.base_offset);
        let span = batch.last_offset - content.first_offset + 1;
        let is_full = span == content.records as i64;
        self.dense &= is_full;
        self.sparse |= !follows || !is_full;
        if let Some(index) = &mut segment.offset_index {
            index.batch(batch, self.next_offset - 1)?;
        }
        if let Some(index) = &mut segment.time_index {
            index.batch(batch)?;
        }
        self.epoch(number, batch);
        self.producer(segment, batch, &content);
        self.next_offset = batch.last_offset + 1;
        Ok(())
    }

    fn not_checked(&mut self, segment: &InSegment, batch: &StoredBatch, what: String) {
        self.findings.push(Finding {
            kind: Kind::NotChecked,
            path: segment_file(self.dir, segment.base_offset, LOG_SUFFIX),
            position: Some(batch.position),
            offset: Some(batch.base_offset),
            what,
            remedy: "verify with a larger limit".to_owned(),
        });
    }

    /// Why a batch's offsets are wrong at their position.
    fn misplaced(&self, segment: &InSegment, batch: &StoredBatch, first: i64) -> Option<String> {
        let last = batch.last_offset;
        if first < segment.base_offset {
            return Some(format!("offset {first} is below the segment's base offset"));
        }
        if first < self.next_offset {
            return Some(format!("offset {first} follows offset {}", self.next_offset - 1));
        }
        if last - segment.base_offset > i64::from(i32::MAX) {
            return Some(format!("offset {last} is too far from the segment's base offset"));
        }
        segment
            .next_base
            .filter(|next| last >= *next)
            .map(|_| format!("offset {last} is in the next segment too"))
    }

    /// Updates the state of the batch's producer and transaction.
    fn producer(&mut self, segment: &mut InSegment, batch: &StoredBatch, content: &Content) {
        let Some(header) = batch.header.as_ref().filter(|h| h.has_producer_id()) else {
            return;
        };
        let producer_id = header.producer_id;
        if let Some(marker) = &content.marker {
            let open = self.transactions.remove(&producer_id);
            if marker.aborted {
                segment.markers.push((batch.last_offset, producer_id));
                if let Some(open) = open {
                    let others = self.transactions.values().map(|txn| txn.first_offset).min();
                    let entry = AbortedTxn {
                        producer_id,
                        first_offset: open.first_offset,
                        last_offset: batch.last_offset,
                        last_stable_offset: others.unwrap_or(batch.last_offset + 1),
                    };
                    segment.aborted.push((entry, open.has_records));
                }
            }
        } else if header.is_transactional() && !header.is_control() {
            let open = self.transactions.entry(producer_id).or_insert(OpenTxn {
                first_offset: batch.base_offset,
                has_records: false,
            });
            open.has_records |= content.records > 0;
        }
        let marker = content.marker.as_ref().and_then(|marker| {
            Some(EndTxnMarker {
                committed: !marker.aborted,
                coordinator_epoch: marker.coordinator_epoch?,
            })
        });
        self.producers.replay(header, marker);
    }

    // ---- the segment's end ----

    fn finish_indexes(&mut self, segment: InSegment, check: &mut SegmentCheck) {
        let sealed = segment.next_base.is_some();
        let partition = self.context.partition;
        let ending = Ending {
            missing_allowed: partition.live,
            zeros_allowed: !sealed && (partition.live || !partition.clean),
            // A segment that grows has entries for batches that were not read.
            log_whole: self.intact() && (sealed || !partition.live),
            sealed,
        };
        let live = self.live();
        // When another process removed the segment, its indexes went too.
        let gone = live && !segment_file(self.dir, segment.base_offset, LOG_SUFFIX).exists();
        if let Some(index) = segment.offset_index
            && let Some(fault) = index.finish(ending, self.next_offset - 1)
            && !gone
        {
            check.offset_index_wrong = true;
            let path = index_path(self.dir, segment.base_offset);
            self.index_finding(Kind::OffsetIndex, path, fault);
        }
        if let Some(index) = segment.time_index
            && let Some(fault) = index.finish(ending)
            && !gone
        {
            check.time_index_wrong = true;
            let path = segment_file(self.dir, segment.base_offset, TIME_INDEX_SUFFIX);
            self.index_finding(Kind::TimeIndex, path, fault);
        }
        self.check_txn_index(segment.base_offset, &segment.markers, &segment.aborted, check);
    }

    fn index_finding(&mut self, kind: Kind, path: std::path::PathBuf, fault: Fault) {
        let remedy = if kind == Kind::TxnIndex {
            "`logcore repair --apply` rebuilds it from the markers"
        } else {
            REBUILT
        };
        self.findings.push(Finding {
            kind,
            path,
            position: Some(fault.position),
            offset: None,
            what: fault.what,
            remedy: remedy.to_owned(),
        });
    }

    /// Compares a segment's transaction index with its abort markers.
    ///
    /// The cleaner may have removed a transaction's first batches, and a transaction may have begun before
    /// the log's start. So an entry may begin earlier than the batches that are left, but never later. An
    /// entry may be missing when all of the transaction's records are gone.
    fn check_txn_index(
        &mut self,
        base_offset: i64,
        markers: &[(i64, i64)],
        aborted: &[(AbortedTxn, bool)],
        check: &mut SegmentCheck,
    ) {
        let path = segment_file(self.dir, base_offset, TXN_INDEX_SUFFIX);
        let entries = match transactions::read(&path) {
            Ok(entries) => entries,
            Err(error @ StorageError::Corrupt { .. }) => {
                check.txn_index_wrong = true;
                let remedy = "`logcore repair --apply` rebuilds it from the markers";
                self.findings.error(Kind::TxnIndex, &path, &error, remedy);
                check.aborted = aborted.iter().map(|(entry, _)| *entry).collect();
                return;
            }
            Err(error) => {
                self.findings.error(Kind::TxnIndex, &path, &error, "");
                return;
            }
        };
        let (kept, fault) = compare_aborted(&entries, markers, aborted, self.next_offset);
        check.aborted = kept;
        // Markers after damage were not read.
        if let Some(fault) = fault.filter(|_| self.intact()) {
            check.txn_index_wrong = true;
            self.index_finding(Kind::TxnIndex, path, fault);
        }
    }
}

/// The right entries of a transaction index, and its first fault. Entries from `end` on are new and not
/// compared.
fn compare_aborted(
    entries: &[AbortedTxn],
    markers: &[(i64, i64)],
    aborted: &[(AbortedTxn, bool)],
    end: i64,
) -> (Vec<AbortedTxn>, Option<Fault>) {
    let mut fault: Option<Fault> = None;
    let mut blame = |number: usize, what: String| {
        let position = (number * transactions::ENTRY_SIZE) as u64;
        fault.get_or_insert(Fault { position, what });
    };
    let mut kept = Vec::with_capacity(entries.len().max(aborted.len()));
    for (number, entry) in entries.iter().enumerate().filter(|(_, e)| e.last_offset < end) {
        let (producer_id, last) = (entry.producer_id, entry.last_offset);
        if markers.binary_search(&(last, producer_id)).is_err() {
            blame(
                number,
                format!("producer {producer_id} has no abort marker at offset {last}"),
            );
            continue;
        }
        let seen = aborted.iter().find(|(seen, _)| seen.last_offset == last);
        if let Some((seen, _)) = seen.filter(|(seen, _)| seen.first_offset < entry.first_offset) {
            blame(
                number,
                format!(
                    "the index has producer {producer_id}'s transaction begin at offset {}, but it began at \
                        {}",
                    entry.first_offset, seen.first_offset
                ),
            );
            continue;
        }
        if entry.last_stable_offset > last + 1 {
            let offset = entry.last_stable_offset;
            blame(
                number,
                format!("the last stable offset {offset} is after the marker at offset {last}"),
            );
            continue;
        }
        kept.push(*entry);
    }
    for (seen, has_records) in aborted {
        if kept
            .binary_search_by_key(&seen.last_offset, |entry| entry.last_offset)
            .is_ok()
        {
            continue;
        }
        if *has_records {
            blame(
                entries.len(),
                format!(
                    "the transaction of producer {} that was aborted at offset {} is missing",
                    seen.producer_id, seen.last_offset
                ),
            );
        }
        let index = kept.partition_point(|entry| entry.last_offset < seen.last_offset);
        kept.insert(index, *seen);
    }
    (kept, fault)
}

/// Position of the next intact batch after the damaged one at `position`. `after` is the end of that one by
/// its header. It is tried first, because bytes inside a record may look like a batch.
fn next_after(
    file: &File,
    (position, size): (u64, u64),
    after: Option<u64>,
    offsets: (i64, i64),
    budget: &mut u64,
) -> std::io::Result<Option<u64>> {
    if let Some(after) = after {
        if after == size {
            return Ok(None);
        }
        if let Next::Batch(_) = Scanner::checked(file, after, size).next()? {
            return Ok(Some(after));
        }
    }
    next_intact(file, (position + 1, size), offsets, budget)
}

fn read_records(
    batch: &StoredBatch,
    bytes: &[u8],
    limit: usize,
    scratch: &mut Vec<u8>,
) -> Result<Content, RecordError> {
    if batch.header.is_none() {
        return read_legacy(batch, bytes, limit);
    }
    let parsed = Batch::parse(bytes)?;
    let mut content = Content {
        records: 0,
        first_offset: batch.base_offset,
        marker: None,
    };
    if parsed.header.record_count == 0 && parsed.payload().is_empty() {
        // The cleaner keeps a batch without records for its producer's sequence. It is not compressed.
        return Ok(content);
    }
    let wrong = |index: u64, reason| RecordError::InvalidRecord {
        index: index as usize,
        reason,
    };
    let mut last = batch.base_offset - 1;
    for record in parsed.records_in(scratch, limit)? {
        let record = record?;
        if record.offset <= last {
            return Err(wrong(content.records, "its offset does not increase"));
        }
        if record.offset > batch.last_offset {
            return Err(wrong(
                content.records,
                "its offset is after the batch's last offset",
            ));
        }
        last = record.offset;
        if parsed.header.is_control() && content.records == 0 {
            content.marker = marker(record.key, record.value);
        }
        content.records += 1;
    }
    Ok(content)
}

fn marker(key: Option<&[u8]>, value: Option<&[u8]>) -> Option<Marker> {
    let kind = key?.get(2..4)?;
    let kind = i16::from_be_bytes([kind[0], kind[1]]);
    if kind != ABORT && kind != COMMIT {
        return None;
    }
    let epoch = value.and_then(|value| value.get(2..6));
    Some(Marker {
        aborted: kind == ABORT,
        coordinator_epoch: epoch.map(|e| i32::from_be_bytes([e[0], e[1], e[2], e[3]])),
    })
}

fn read_legacy(batch: &StoredBatch, bytes: &[u8], limit: usize) -> Result<Content, RecordError> {
    let mut records = 0;
    let mut first = None;
    let mut last = -1;
    legacy::for_each(bytes, limit, |message| {
        if message.offset <= last {
            return Err(RecordError::InvalidLegacy("an offset does not increase"));
        }
        last = message.offset;
        first.get_or_insert(message.offset);
        records += 1;
        Ok(())
    })?;
    if last != batch.last_offset {
        return Err(RecordError::InvalidLegacy(
            "the last offset inside differs from the wrapper's",
        ));
    }
    Ok(Content {
        records,
        first_offset: first.unwrap_or(batch.base_offset),
        marker: None,
    })
}
