//! Looking into the logs for a Fetch, and waiting until there is enough.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use logcore_storage::{AbortedTxn, LogSlice, StorageError};

use crate::codes::ErrorCode;
use crate::fetch_session::Wanted;
use crate::lines::Level;
use crate::metrics::Stages;
use crate::purgatory::{Stay, Waiter};
use crate::registry::{Leadership, Partition};
use crate::shared::Shared;

/// The replica id of a consumer, and that of a tool which may read above the high watermark.
pub(super) const CONSUMER: i32 = -1;
const DEBUGGING_CONSUMER: i32 = -2;

/// On what terms a request reads.
pub(super) struct Terms {
    pub(super) replica_id: i32,
    /// How long it may wait for `bytes_min`.
    pub(super) wait: Duration,
    pub(super) bytes_min: u64,
    /// For all partitions together; the first batch is sent whole even if it is larger (KIP-74).
    pub(super) bytes_max: u64,
    /// Only records below the last stable offset.
    pub(super) committed: bool,
}

/// What a look at one partition found.
pub(super) struct Found {
    pub(super) place: Arc<Partition>,
    pub(super) high_watermark: i64,
    pub(super) last_stable_offset: i64,
    pub(super) log_start_offset: i64,
    /// Never empty.
    pub(super) slice: Option<LogSlice>,
    /// Where the client's log and this one parted: the largest epoch both may have, and its end here (KIP-595).
    pub(super) diverging: Option<(i32, i64)>,
    /// The aborted transactions whose records may be in the slice, for a reader of committed ones; no transactions is not
    /// the same as not telling.
    pub(super) aborted: Option<Vec<AbortedTxn>>,
}

/// Why a partition is not read.
pub(super) struct Refused {
    pub(super) code: ErrorCode,
    /// Who leads, when that is the reason.
    pub(super) leader: Option<Leadership>,
    /// The partition, if there is one.
    pub(super) place: Option<Arc<Partition>>,
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self {
            code,
            leader: None,
            place: None,
        }
    }
}

pub(super) type Look = Result<Found, Refused>;

impl Terms {
    /// Looks at every partition; when that is too little and nothing is wrong, waits for appends and looks again.
    pub(super) async fn look_or_wait(
        &self,
        shared: &Shared,
        wanted: &[Wanted],
        stages: &mut Stages,
    ) -> Vec<Look> {
        let looks = self.look(shared, wanted);
        if self.wait.is_zero() || wanted.is_empty() || self.missing(&looks).is_none() {
            return looks;
        }
        let began = Instant::now();
        let looks = self.look_until(shared, wanted, began + self.wait).await;
        stages.remote = began.elapsed();
        looks
    }

    async fn look_until(&self, shared: &Shared, wanted: &[Wanted], deadline: Instant) -> Vec<Look> {
        let _delayed = shared.metrics.delayed_fetches.enter();
        let mut stopping = shared.stopping.subscribe();
        let waiter = Waiter::new();
        let places = wanted
            .iter()
            .filter_map(|wanted| shared.registry.resolve(&wanted.topic, wanted.index).ok());
        let _stay = Stay::enter(&waiter, places.collect());
        loop {
            waiter.expect(self.bytes_min);
            // What was appended before the stay began is seen by this look, what comes after it by the waiter.
            let looks = self.look(shared, wanted);
            let Some(missing) = self.missing(&looks) else {
                return looks;
            };
            if *stopping.borrow_and_update() || Instant::now() >= deadline {
                return looks;
            }
            waiter.relax(self.bytes_min - missing);
            tokio::select! {
                () = waiter.woken() => {}
                _ = stopping.changed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// How many bytes are missing; `None` when the response can go out.
    fn missing(&self, looks: &[Look]) -> Option<u64> {
        let mut bytes = 0;
        for look in looks {
            match look {
                Ok(Found {
                    diverging: None,
                    slice,
                    ..
                }) => bytes += slice.as_ref().map_or(0, |slice| slice.len),
                _ => return None,
            }
        }
        self.bytes_min
            .checked_sub(bytes)
            .filter(|missing| *missing > 0)
    }

    fn look(&self, shared: &Shared, wanted: &[Wanted]) -> Vec<Look> {
        let mut left = self.bytes_max;
        let mut nothing_yet = true;
        let look = |wanted: &Wanted| {
            let look = self.look_at(shared, wanted, left, nothing_yet);
            if let Ok(Found {
                slice: Some(slice), ..
            }) = &look
            {
                left = left.saturating_sub(slice.len);
                nothing_yet = false;
            }
            look
        };
        wanted.iter().map(look).collect()
    }

    fn look_at(&self, shared: &Shared, wanted: &Wanted, left: u64, min_one: bool) -> Look {
        let place = shared.registry.resolve(&wanted.topic, wanted.index)?;
        let look = self.look_into(shared, &place, wanted, left, min_one);
        look.map_err(|refused| Refused {
            place: Some(place),
            ..refused
        })
    }

    fn look_into(
        &self,
        shared: &Shared,
        place: &Arc<Partition>,
        wanted: &Wanted,
        left: u64,
        min_one: bool,
    ) -> Look {
        let refused = |code: ErrorCode| Refused {
            leader: Some(place.leadership()),
            ..code.into()
        };
        place
            .lead(shared.node_id, wanted.current_leader_epoch)
            .map_err(refused)?;
        if self.replica_id >= 0 {
            // This server's partitions have no followers, so whoever says it is one has old news of the leader.
            return Err(refused(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        }
        let log = &place.log;
        let diverging = diverging(place, wanted)?;
        let (high_watermark, last_stable_offset) = (log.high_watermark(), log.last_stable_offset());
        let upper_bound = match (self.replica_id, self.committed) {
            (DEBUGGING_CONSUMER, _) => log.log_end_offset(),
            (_, true) => last_stable_offset,
            (_, false) => high_watermark,
        };
        let bytes_max = wanted.bytes_max.min(left);
        let slice = if diverging.is_some() {
            None
        } else {
            let slice = log.read(wanted.offset, bytes_max, upper_bound, min_one);
            Some(slice.map_err(|error| failed(shared, place, &error))?)
        };
        // A part of one batch is of no use to anybody.
        let slice = slice.filter(|slice| !slice.is_empty() && slice.len >= slice.first_batch_len);
        let aborted = match &slice {
            Some(slice) if self.committed => {
                let aborted = log.aborted_in(wanted.offset, slice);
                Some(aborted.map_err(|error| failed(shared, place, &error))?)
            }
            _ => self.committed.then(Vec::new),
        };
        Ok(Found {
            place: Arc::clone(place),
            high_watermark,
            last_stable_offset,
            log_start_offset: log.log_start_offset(),
            slice,
            diverging,
            aborted,
        })
    }
}

/// Whether the client's last record is one this log never had.
fn diverging(place: &Arc<Partition>, wanted: &Wanted) -> Result<Option<(i32, i64)>, Refused> {
    if wanted.last_fetched_epoch < 0 {
        return Ok(None);
    }
    let end = place.log.epoch_end_offset(wanted.last_fetched_epoch);
    let (epoch, end) = end.ok_or(ErrorCode::OFFSET_OUT_OF_RANGE)?;
    if wanted.offset < place.log.log_start_offset() {
        return Err(ErrorCode::OFFSET_OUT_OF_RANGE.into());
    }
    Ok((epoch < wanted.last_fetched_epoch || end < wanted.offset).then_some((epoch, end)))
}

fn failed(shared: &Shared, place: &Partition, error: &StorageError) -> Refused {
    if error.is_storage_failure() {
        let partition = format!("{}-{}", place.topic, place.index);
        shared.lines.seldom(
            Level::Error,
            &format!("fetch {partition} {:?}", std::mem::discriminant(error)),
            format!("Fetch of {partition} failed: {error}"),
        );
    }
    ErrorCode(error.kafka_code()).into()
}
