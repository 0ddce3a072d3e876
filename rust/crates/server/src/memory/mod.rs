//! The memory that requests and responses may use: their budgets, one row each.
//!
//! A budget bounds one kind of memory of all requests together, so that no number of clients, hostile ones
//! included, fills the memory of the broker. Small needs are not counted. Other limits are elsewhere: fetch
//! sessions in `partitions/fetch_session.rs`, group members and repeated names in Python.

pub(crate) mod budget;
pub(crate) mod decoded;
pub(crate) mod decompression;
pub(crate) mod frames;
pub(crate) mod long_responses;

use std::collections::HashMap;
use std::num::NonZero;

use logcore_storage::DECOMPRESSED_MAX;

use self::AtBound::{Refuse, Wait};
use self::budget::{AtBound, Budget};
use crate::apis::{Api, Response, apis};

/// The bytes that each connection may use without a permit: small requests are served whatever the large ones
/// do. A response of this length is not counted either.
pub(crate) const UNCOUNTED: usize = 16 << 10;
/// A Fetch of more partitions needs a permit, and its work is offloaded.
pub(crate) const MANY_PARTITIONS: usize = 500;
/// The bytes of memory of each partition that waits in an old Fetch for its conversion.
pub(crate) const WAITING_CONVERSION: usize = 320;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// There is always so much for decoded requests, so that a server with small frames decodes whatever fits in
/// one.
const DECODED_MIN: usize = 16 * MIB;
/// The part of its budget that a request of an API answered in Rust is decoded to without a permit: by
/// default 4 MiB, or 3,500 partitions of a Fetch. The decoded request is gone before its handler waits, so
/// each thread has one at most.
const DECODED_UNCOUNTED: usize = 16;

pub(crate) struct Budgets {
    pub(crate) frames: Budget,
    pub(crate) long_frames: Budget,
    pub(crate) frame_reserve: Budget,
    pub(crate) overflow: Budget,
    pub(crate) decoded_rust: Budget,
    pub(crate) decoded_python: Budget,
    pub(crate) fetch_work: Budget,
    pub(crate) fetch_purgatory: Budget,
    pub(crate) fetch_conversions: Budget,
    pub(crate) fetch_messages: Budget,
    pub(crate) fetch_converter: Budget,
    pub(crate) fetch_responses: Budget,
    pub(crate) produce: Budget,
    pub(crate) list_offsets: Budget,
    pub(crate) decompressions: Budget,
    pub(crate) large_decompression: Budget,
    /// By the keys of the APIs whose responses may be long.
    pub(crate) long_responses: HashMap<i16, LongResponseBudgets>,
}

/// The budgets of one API whose responses may be long.
pub(crate) struct LongResponseBudgets {
    pub(crate) requests: Budget,
    pub(crate) bytes: Budget,
}

const CLOSE: AtBound =
    Refuse("its connection is closed; let clients read faster, or raise queued.max.request.bytes");
const ANSWER_NOW: AtBound =
    Refuse("it is answered without waiting for records; let consumers fetch fewer partitions each");
const NO_MESSAGES: AtBound = Refuse(
    "it gets no messages yet; let old clients fetch fewer partitions each and read faster, or use newer ones",
);
const NOT_APPENDED: AtBound =
    Refuse("nothing is appended (REQUEST_TIMED_OUT); let producers send to fewer partitions at a time");
const NOT_SEARCHED: AtBound = Refuse("it is refused (REQUEST_TIMED_OUT)");

impl Budgets {
    /// `request_memory` is `queued.max.request.bytes`, of which one frame can use `frame_max`; `None` is no
    /// limit.
    #[rustfmt::skip]
    pub(crate) fn new(request_memory: Option<usize>, frame_max: usize) -> Self {
        let frames = request_memory.map_or(usize::MAX, |bytes| bytes - frame_max);
        let decoded = request_memory.map_or(usize::MAX, |bytes| bytes.max(DECODED_MIN));
        let (in_rust, in_python) = (decoded / 4, decoded - decoded / 4);
        let free = in_rust / DECODED_UNCOUNTED;
        let many = MANY_PARTITIONS;
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let waiting = WAITING_CONVERSION;
        let is_long = |api: &&Api| api.response == Response::Long;
        let budget = Budget::new;
        // What it bounds, how much of it there is, what is not counted, bytes of memory each, what happens at
        // the bound.
        Self {
            frames:            budget("bytes of frames and of responses", frames, 0, 1, Wait),
            long_frames:       budget("bytes of frames above 2 MiB", frames / 2, 0, 1, Wait),
            frame_reserve:     budget("frame that is read although no memory is left", 1, 0, 0, Wait),
            overflow:          budget("bytes of responses without frame memory", 16 * MIB, 0, 1, CLOSE),
            decoded_rust:      budget("bytes of requests decoded for Rust", in_rust, free, 1, Wait),
            decoded_python:    budget("bytes of requests decoded for Python", in_python, UNCOUNTED, 1, Wait),
            fetch_work:        budget("partitions that Fetches look up", 32 * KIB, many, 2 * KIB, Wait),
            fetch_purgatory:   budget("partitions of waiting Fetches", 512 * KIB, 32, 128, ANSWER_NOW),
            fetch_conversions: budget("partitions of old Fetches", 192 * KIB, 32, waiting, NO_MESSAGES),
            fetch_messages:    budget("bytes converted for old Fetches", 64 * MIB, 0, 1, Wait),
            fetch_converter:   budget("old Fetch that is being converted", 1, 0, 0, Wait),
            fetch_responses:   budget("bytes of large Fetch responses", 64 * MIB, UNCOUNTED, 1, CLOSE),
            produce:           budget("bytes of waiting Produces", 64 * MIB, UNCOUNTED, 1, NOT_APPENDED),
            list_offsets:      budget("bytes of searching ListOffsets", 32 * MIB, 64 * KIB, 1, NOT_SEARCHED),
            decompressions:    budget("batches decompressed at a time", cores.min(16), 0, 16 * MIB, Wait),
            large_decompression: budget("large batch decompressed at a time", 1, 0, DECOMPRESSED_MAX, Wait),
            long_responses:    apis().iter().filter(is_long).map(|api| (api.key, LongResponseBudgets {
                requests:      budget("request of an API that Python answers", 1, 0, 0, Wait),
                bytes:         budget("bytes of long responses of an API", 32 * MIB, UNCOUNTED, 1, Wait),
            })).collect(),
        }
    }

    /// Whether the memory in use has fallen far below a peak, so that memory should be returned to the
    /// operating system.
    pub(crate) fn have_fallen(&self) -> bool {
        let counted = [
            &self.frames,
            &self.decoded_rust,
            &self.decoded_python,
            &self.fetch_work,
            &self.fetch_purgatory,
            &self.fetch_conversions,
            &self.fetch_messages,
            &self.fetch_responses,
            &self.produce,
            &self.list_offsets,
            &self.decompressions,
            &self.large_decompression,
        ];
        let long = self.long_responses.values().map(|budgets| &budgets.bytes);
        // All are asked: each then forgets its peak.
        counted
            .into_iter()
            .chain(long)
            .filter(|budget| budget.has_fallen())
            .count()
            > 0
    }
}
