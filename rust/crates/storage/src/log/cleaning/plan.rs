//! Which part of a log to clean, whether it is worth it, and which segments become one (`LogCleanerManager`,
//! `LogToClean`, `groupSegmentsBySize`).
//!
//! ```text
//! first segment        first dirty               first uncleanable        log end
//! |-- cleaned before --|-- dirty and cleanable --|-- not yet --|-- active --|
//! ```
//!
//! Changes nothing. The log may change before a plan is used; the swap checks that the segments are still the
//! log's.

use std::sync::Arc;

use crate::config::LogConfig;
use crate::error::Result;
use crate::segment::Segment;

/// A log's segments and offsets at one moment.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) segments: Arc<Vec<Arc<Segment>>>,
    pub(crate) log_start: i64,
    pub(crate) log_end: i64,
    pub(crate) last_stable: i64,
}

impl View {
    /// The segments with offsets in `[from, to)`, starting with the one that contains `from`.
    fn between(&self, from: i64, to: i64) -> &[Arc<Segment>] {
        let end = self.segments.partition_point(|s| s.base_offset < to);
        let start = self.segments.partition_point(|s| s.base_offset <= from);
        let start = start.saturating_sub(1).min(end);
        &self.segments[start..end]
    }

    fn active_base(&self) -> i64 {
        self.segments.last().map_or(0, |active| active.base_offset)
    }

    /// Segments other than the active one, starting with the one that contains `offset`.
    fn rolled_from(&self, offset: i64) -> &[Arc<Segment>] {
        let active = self.active_base();
        if offset > active {
            return &[];
        }
        self.between(offset, active)
    }
}

/// A plan to clean a log.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) view: View,
    /// The first offset that was not cleaned yet.
    pub(crate) first_dirty: i64,
    /// The base offset of the first segment that cannot be cleaned now.
    pub(crate) first_uncleanable: i64,
    /// Bytes before and after the first dirty offset.
    pub(crate) clean_bytes: u64,
    pub(crate) cleanable_bytes: u64,
    /// A part is older than `max.compaction.lag.ms`.
    pub(crate) overdue: bool,
    /// The known first dirty offset does not fit the log.
    pub(crate) reset: bool,
}

impl Plan {
    pub(crate) fn new(
        view: View,
        config: &LogConfig,
        known_first_dirty: Option<i64>,
        now_ms: i64,
    ) -> Result<Self> {
        let known = known_first_dirty.unwrap_or(view.log_start);
        let reset = !(view.log_start..=view.log_end).contains(&known);
        let first_dirty = if reset { view.log_start } else { known };
        let uncleanable = first_uncleanable(&view, config, first_dirty, now_ms)?.max(first_dirty);
        let first_uncleanable = view
            .rolled_from(uncleanable)
            .first()
            .map_or(view.active_base(), |segment| segment.base_offset);
        let size = |segments: &[Arc<Segment>]| segments.iter().map(|s| s.size()).sum();
        let clean_bytes =
            size(&view.segments[..view.segments.partition_point(|s| s.base_offset < first_dirty)]);
        let dirty = view.between(first_dirty.min(first_uncleanable), first_uncleanable);
        let cleanable_bytes = size(dirty);
        let overdue = is_overdue(&view, config, first_dirty, now_ms)?;
        Ok(Self {
            view,
            first_dirty,
            first_uncleanable,
            clean_bytes,
            cleanable_bytes,
            overdue,
            reset,
        })
    }

    /// The dirty part of what can be cleaned, 0 to 1.
    pub(crate) fn ratio(&self) -> f64 {
        let total = self.clean_bytes + self.cleanable_bytes;
        if total == 0 {
            return 0.0;
        }
        self.cleanable_bytes as f64 / total as f64
    }

    /// True when there is something to clean, and it is worth it or overdue.
    pub(crate) fn is_due(&self, config: &LogConfig) -> bool {
        self.cleanable_bytes > 0 && (self.overdue || self.ratio() > config.min_cleanable_dirty_ratio)
    }

    /// The segments whose keys are mapped.
    pub(crate) fn dirty(&self) -> &[Arc<Segment>] {
        if self.first_dirty >= self.first_uncleanable {
            return &[];
        }
        self.view.between(self.first_dirty, self.first_uncleanable)
    }

    /// The segments that begin before `end`, in groups. Each group becomes one segment no larger than a
    /// segment may be.
    pub(crate) fn groups(&self, end: i64, config: &LogConfig) -> Result<Vec<Vec<Arc<Segment>>>> {
        let count = self.view.segments.partition_point(|s| s.base_offset < end);
        let segments = &self.view.segments[..count];
        let mut groups: Vec<Vec<Arc<Segment>>> = Vec::new();
        let mut sizes = [0; 3];
        for (number, segment) in segments.iter().enumerate() {
            let (offset_index, time_index) = segment.index_sizes()?;
            let added = [segment.size(), offset_index, time_index];
            let next_base = segments
                .get(number + 1)
                .map_or(self.first_uncleanable, |next| next.base_offset);
            let joins = groups
                .last()
                .and_then(|group| group.first())
                .is_some_and(|first| {
                    let limits = [
                        config.segment_bytes,
                        u64::from(config.segment_index_bytes),
                        u64::from(config.segment_index_bytes),
                    ];
                    let fits = (0..3).all(|i| sizes[i] + added[i] <= limits[i]);
                    // An empty segment adds no offsets.
                    fits && (added[0] == 0 || next_base - 1 - first.base_offset <= i64::from(i32::MAX))
                });
            match groups.last_mut() {
                Some(group) if joins => {
                    group.push(Arc::clone(segment));
                    (0..3).for_each(|i| sizes[i] += added[i]);
                }
                _ => {
                    groups.push(vec![Arc::clone(segment)]);
                    sizes = added;
                }
            }
        }
        Ok(groups)
    }
}

/// Cleaning ends before the last stable offset, the active segment, and segments younger than
/// `min.compaction.lag.ms`.
fn first_uncleanable(view: &View, config: &LogConfig, first_dirty: i64, now_ms: i64) -> Result<i64> {
    let mut offset = view.last_stable.min(view.active_base());
    if config.min_compaction_lag_ms > 0 {
        let youngest = now_ms.saturating_sub(config.min_compaction_lag_ms);
        for segment in view.rolled_from(first_dirty) {
            if segment
                .largest()?
                .is_some_and(|largest| largest.timestamp > youngest)
            {
                offset = offset.min(segment.base_offset);
                break;
            }
        }
    }
    Ok(offset)
}

/// True when a dirty segment began longer ago than `max.compaction.lag.ms`.
fn is_overdue(view: &View, config: &LogConfig, first_dirty: i64, now_ms: i64) -> Result<bool> {
    let latest = now_ms.saturating_sub(config.max_compaction_lag_ms);
    if latest <= 0 {
        return Ok(false);
    }
    for segment in view.rolled_from(first_dirty) {
        if segment
            .first_timestamp()?
            .is_some_and(|first| first > 0 && first < latest)
        {
            return Ok(true);
        }
    }
    Ok(false)
}
