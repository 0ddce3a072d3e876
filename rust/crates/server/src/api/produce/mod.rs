//! Produce (key 0): record batches into logs.
//!
//! The request stays in the buffer it was read into. Its envelope is decoded, then the buffer is taken back for writing:
//! the log sets offsets, epochs and timestamps in place and writes each partition's bytes once. Message sets of the
//! versions 0-2 are converted to batches first. What a batch must look like is checked here as far as the request's
//! version decides it (`ProduceRequest.validateRecords`), everything else by the log. What the log has to decompress waits for
//! its turn ([`crate::memory::unpacking`]). With acks=all the answer waits in the purgatory until the replicas in sync have the records
//! (`DelayedProduce`); the connection's next request waits with it, as with Kafka. What the answer says is in [`answer`].

mod answer;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use logcore_protocol::{RequestHeader, Struct, Value};
use logcore_records::{BatchHeader, Compression, MAGIC_V2, RecordError, batches, legacy};
use logcore_storage::{Appended, DECOMPRESSED_MAX, Log, LogConfig, RecordFaults, StorageError};

use super::{Fields, Outcome, numbered};
use crate::apis;
use crate::codes::ErrorCode;
use crate::log_lines::Level;
use crate::memory::frames::FramePermit;
use crate::metrics::Stages;
use crate::partitions::purgatory::{HasWaitingRoom, Looked, NO_BYTES, Wait};
use crate::partitions::registry::{Leadership, Partition, TOPIC_NAME_MAX};
use crate::shared::{Shared, now_ms};

pub(crate) const KEY: i16 = apis::PRODUCE;

/// Topics that only the coordinators write (`Topic.isInternal`), and a client that calls itself so (`AdminUtils.ADMIN_CLIENT_ID`).
const INTERNAL_TOPICS: [&str; 2] = ["__consumer_offsets", "__transaction_state"];
const ADMIN_CLIENT_ID: &str = "__admin_client";

/// Where the length is in every format; what it counts begins after it.
const LENGTH_POSITION: usize = 8;
const FRAME: usize = 12;

/// Where the magic byte is in every format.
const MAGIC_POSITION: usize = 16;

/// One partition of a request.
struct Part {
    /// Index into the request's topics.
    topic: usize,
    index: i32,
    place: Option<Arc<Partition>>,
    /// Where its records are in the frame.
    records: Range<usize>,
}

struct Request {
    acks: i16,
    timeout: Duration,
    transactional_id: Option<String>,
    may_write_internal: bool,
    topics: Vec<String>,
    parts: Vec<Part>,
}

impl Request {
    /// What is kept of it until it is answered, in bytes.
    fn kept_bytes(&self) -> usize {
        let names: usize = self.topics.iter().map(String::len).sum();
        let topics = self.topics.capacity() * size_of::<String>() + names;
        let parts = self.parts.capacity() * size_of::<Part>();
        let results = self.parts.len() * size_of::<Result<Done>>();
        topics + parts + results
    }

    /// Of a partition that is named more than once only the last counts, and is answered, as with Kafka (`handleProduceRequest`
    /// puts them into a map).
    fn keep_the_last(&mut self) {
        let number_of = numbered(self.topics.iter().map(String::as_str));
        let mut seen = HashSet::with_capacity(self.parts.len());
        let mut last = vec![false; self.parts.len()];
        for (part, last) in self.parts.iter().zip(&mut last).rev() {
            *last = seen.insert((number_of[part.topic], part.index));
        }
        let mut last = last.into_iter();
        self.parts.retain(|_| last.next().unwrap_or(true));
    }
}

/// The least that the length field of any format can say (`LegacyRecord.RECORD_OVERHEAD_V0`).
const LENGTH_MIN: i64 = 14;

/// `acks` of a producer that wants all replicas in sync to have its records.
const ALL: i16 = -1;

/// How many bad records, or partitions, a message names.
const SHOWN: usize = 3;

/// What became of one partition.
struct Done {
    base_offset: i64,
    last_offset: i64,
    log_append_time: i64,
    log_start_offset: i64,
    /// With acks=all: `None` while replicas are missing, then how that ended.
    acknowledged: Option<std::result::Result<(), ErrorCode>>,
    /// Who leads, when that has changed meanwhile.
    leader: Option<Leadership>,
}

impl Done {
    /// Nothing was to be appended, which versions before 3 may ask for.
    fn of_nothing(log_start_offset: i64) -> Self {
        Self {
            base_offset: -1,
            last_offset: -2,
            log_append_time: -1,
            log_start_offset,
            acknowledged: None,
            leader: None,
        }
    }

    fn records(&self) -> u64 {
        (self.last_offset - self.base_offset + 1).unsigned_abs()
    }
}

struct Refused {
    code: ErrorCode,
    /// Which records are why.
    faults: Option<RecordFaults>,
    /// For the client to read, where Kafka has one.
    message: Option<String>,
    /// -1 where Kafka does not tell it.
    log_start_offset: i64,
    /// Who leads, when it is not this server.
    leader: Option<Leadership>,
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self {
            code,
            faults: None,
            message: None,
            log_start_offset: -1,
            leader: None,
        }
    }
}

type Result<T> = std::result::Result<T, Refused>;

/// Appends, waits for the replicas if that is wanted, and answers; gives the frame's memory back to be read into again, with its
/// `permit`, unless it had to wait: then others have both meanwhile.
pub(crate) async fn handle(
    shared: &Shared,
    header: &RequestHeader,
    message: Value,
    frame: Bytes,
    permit: FramePermit,
    stages: &mut Stages,
) -> (Outcome, Option<(BytesMut, FramePermit)>) {
    let request = parse(shared, header, &message, &frame);
    drop(message);
    // Nobody shares the frame any more, so this copies nothing; were it shared, the copy would still be right.
    let mut memory = frame
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let kept_bytes = shared.budgets.produce.acquire_or_refuse(request.kept_bytes());
    let mut results = match &kept_bytes {
        Ok(_) => append_all(shared, header.api_version, &request, &mut memory).await,
        Err(reason) => {
            let key = "produces that cannot wait";
            shared.lines.seldom(Level::Warning, key, reason.clone());
            refuse_all(&request, ErrorCode::REQUEST_TIMED_OUT)
        }
    };
    let mut kept = Some((memory, permit));
    if request.acks == ALL && !settle(shared, &request, &mut results) {
        kept = None;
        let began = Instant::now();
        // Rare and large: it is not a part of every connection's memory.
        Box::pin(wait_for_replicas(shared, &request, &mut results)).await;
        stages.remote = began.elapsed();
    }
    let outcome = if request.acks == 0 {
        without_answer(&request, &results)
    } else {
        answer::answer(header, &request, &results)
    };
    (outcome, kept)
}

async fn append_all(
    shared: &Shared,
    version: i16,
    request: &Request,
    memory: &mut [u8],
) -> Vec<Result<Done>> {
    if let Some(code) = refuse_whole(request, memory) {
        return refuse_all(request, code);
    }
    let mut results = Vec::with_capacity(request.parts.len());
    for part in &request.parts {
        let records = &mut memory[part.records.clone()];
        results.push(append_part(shared, version, request, part, records).await);
    }
    results
}

fn refuse_all(request: &Request, code: ErrorCode) -> Vec<Result<Done>> {
    request.parts.iter().map(|_| Err(code.into())).collect()
}

/// What went wrong with one partition, if anything did.
fn code_of(result: &Result<Done>) -> Option<ErrorCode> {
    match result {
        Ok(done) => done.acknowledged.and_then(std::result::Result::err),
        Err(refused) => Some(refused.code),
    }
}

/// Looks which partitions' records all replicas in sync have by now. True when that holds for every one.
fn settle(shared: &Shared, request: &Request, results: &mut [Result<Done>]) -> bool {
    let mut all = true;
    for (part, result) in request.parts.iter().zip(results) {
        if let (Some(place), Ok(done)) = (&part.place, result)
            && done.acknowledged.is_none()
        {
            done.acknowledged = acknowledgement(shared, place, done);
            all &= done.acknowledged.is_some();
        }
    }
    all
}

/// `Partition.checkEnoughReplicasReachOffset`; `None` when replicas are missing still.
fn acknowledgement(
    shared: &Shared,
    place: &Partition,
    done: &mut Done,
) -> Option<std::result::Result<(), ErrorCode>> {
    if let Err(code) = place.lead(shared.node_id, -1) {
        done.leader = leader_told(place, code);
        return Some(Err(code));
    }
    if place.log.high_watermark() <= done.last_offset {
        // Its log may have gone to another directory meanwhile.
        let moved = shared.registry.moved(place)?;
        return acknowledgement(shared, &moved, done);
    }
    Some(if place.replicas.has_min_in_sync(&place.log) {
        Ok(())
    } else {
        Err(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    })
}

async fn wait_for_replicas(shared: &Shared, request: &Request, results: &mut [Result<Done>]) {
    let missing = |(part, result): (&Part, &Result<Done>)| match result {
        Ok(done) if done.acknowledged.is_none() => part.place.clone(),
        _ => None,
    };
    let places = request.parts.iter().zip(&*results).filter_map(missing);
    let places: Vec<_> = places.collect();
    let wait = Wait {
        kind: &shared.purgatory.produce,
        patience: request.timeout,
        bytes: NO_BYTES,
        stopping: shared.stopping.subscribe(),
    };
    let look = || Looked {
        found: (),
        missing: (!settle(shared, request, results)).then_some(NO_BYTES),
    };
    wait.until(places, look).await;
    for done in results.iter_mut().flatten() {
        done.acknowledged.get_or_insert(Err(ErrorCode::REQUEST_TIMED_OUT));
    }
}

fn parse(shared: &Shared, header: &RequestHeader, message: &Value, frame: &Bytes) -> Request {
    let Some(message) = message.as_struct() else {
        unreachable!("a decoded request is a struct");
    };
    let mut request = Request {
        acks: message.int16("acks"),
        timeout: Duration::from_millis(u64::try_from(message.int32("timeout_ms")).unwrap_or(0)),
        transactional_id: message
            .get("transactional_id")
            .and_then(Value::as_str)
            .map(str::to_owned),
        may_write_internal: header.client_id.as_deref() == Some(ADMIN_CLIENT_ID),
        topics: Vec::new(),
        parts: Vec::new(),
    };
    for topic in message.each("topic_data") {
        let name = topic.text("name");
        for partition in topic.each("partition_data") {
            let index = partition.int32("index");
            request.parts.push(Part {
                topic: request.topics.len(),
                index,
                place: shared.registry.find(name, index),
                records: range_in(frame, partition),
            });
        }
        request.topics.push(name.to_owned());
    }
    if request.parts.len() > 1 {
        request.keep_the_last();
    }
    request
}

/// Where in the frame the partition's records are; null records are an empty range.
fn range_in(frame: &Bytes, partition: &Struct) -> Range<usize> {
    match partition.get("records").and_then(Value::as_bytes) {
        // Records are slices of the frame, so the difference of their addresses is a position in it.
        Some(records) if !records.is_empty() => {
            let start = records.as_ptr() as usize - frame.as_ptr() as usize;
            start..start + records.len()
        }
        _ => 0..0,
    }
}

/// What is wrong with the request as a whole.
fn refuse_whole(request: &Request, frame: &[u8]) -> Option<ErrorCode> {
    let has_transactional = |part: &Part| is_transactional(&frame[part.records.clone()]);
    (request.transactional_id.is_none() && request.parts.iter().any(has_transactional))
        .then_some(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
}

fn is_transactional(records: &[u8]) -> bool {
    BatchHeader::parse(records).is_ok_and(|batch| batch.is_transactional())
}

async fn append_part(
    shared: &Shared,
    version: i16,
    request: &Request,
    part: &Part,
    records: &mut [u8],
) -> Result<Done> {
    let place = part.place.as_ref().ok_or_else(|| {
        let topic = &request.topics[part.topic];
        shared.registry.absence(topic, part.index)
    })?;
    let is_legacy = version < 3 && records.get(MAGIC_POSITION) != Some(&(MAGIC_V2 as u8));
    let size = if is_legacy {
        whole_messages(records)?
    } else {
        check_shape(version, records)?
    };
    if !(ALL..=1).contains(&request.acks) {
        return Err(ErrorCode::INVALID_REQUIRED_ACKS.into());
    }
    let bytes = records.len() as u64;
    let records = &mut records[..size];
    let done = append_well_formed(shared, place, request, is_legacy, records).await;
    match &done {
        Ok(done) => place.counts.produced(done.records(), bytes),
        Err(refused) => place.counts.produce_refused(refused.code, bytes),
    }
    done
}

async fn append_well_formed(
    shared: &Shared,
    place: &Partition,
    request: &Request,
    is_legacy: bool,
    records: &mut [u8],
) -> Result<Done> {
    if is_transactional(records) {
        // No producer is given a transaction here, so its batch belongs to none.
        return Err(ErrorCode::INVALID_TXN_STATE.into());
    }
    if !request.may_write_internal && INTERNAL_TOPICS.contains(&&*place.topic) {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION.into());
    }
    let leadership = place.lead(shared.node_id, -1).map_err(|code| Refused {
        leader: leader_told(place, code),
        ..code.into()
    })?;
    let done = append_led(shared, place, leadership, request.acks, is_legacy, records).await;
    done.map_err(|refused| with_log_start(place, refused))
}

/// Who leads, for those who asked the wrong one (KIP-951).
fn leader_told(place: &Partition, code: ErrorCode) -> Option<Leadership> {
    (code == ErrorCode::NOT_LEADER_OR_FOLLOWER).then(|| place.leadership())
}

async fn append_led(
    shared: &Shared,
    place: &Partition,
    leadership: Leadership,
    acks: i16,
    is_legacy: bool,
    records: &mut [u8],
) -> Result<Done> {
    if acks == ALL && !place.replicas.has_min_in_sync(&place.log) {
        return Err(ErrorCode::NOT_ENOUGH_REPLICAS.into());
    }
    if records.is_empty() {
        return Ok(Done::of_nothing(place.log.log_start_offset()));
    }
    if !is_legacy {
        check_base_offsets(records)?;
    }
    let mut append = Append {
        shared,
        place,
        leadership,
        is_legacy,
        records,
    };
    let appended = append.run().await.map_err(|failed| match failed {
        Failed::Unreadable(error) => refuse_records(&error),
        Failed::Refused(error) => refuse_append(shared, place, error),
    })?;
    let done = Done {
        base_offset: appended.first_offset,
        last_offset: appended.last_offset,
        log_append_time: appended.log_append_time,
        log_start_offset: appended.log_start_offset,
        acknowledged: None,
        leader: None,
    };
    if is_legacy {
        let count = &place.counts.produce_message_conversions;
        count.add(done.records());
    }
    Ok(done)
}

/// Kafka tells where the log begins, unless what went wrong is one of these (`ReplicaManager.appendToLocalLog`).
fn with_log_start(place: &Partition, refused: Refused) -> Refused {
    let log_start_offset = match refused.code {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        | ErrorCode::NOT_LEADER_OR_FOLLOWER
        | ErrorCode::MESSAGE_TOO_LARGE
        | ErrorCode::RECORD_LIST_TOO_LARGE
        | ErrorCode::CORRUPT_MESSAGE
        | ErrorCode::KAFKA_STORAGE_ERROR => -1,
        _ => place.log.log_start_offset(),
    };
    Refused {
        log_start_offset,
        ..refused
    }
}

/// The size of the batch, or before version 3 the batches, that the request has for a partition. Bytes of an incomplete
/// further batch are not counted: they are dropped, as Kafka does.
fn check_shape(version: i16, records: &[u8]) -> Result<usize> {
    let mut iterator = batches(records);
    let mut count = 0;
    // Of the first batch alone Kafka tells in words what is wrong with its bytes.
    let told = |refused: Refused, count| Refused {
        message: refused.message.filter(|_| count == 0),
        ..refused
    };
    while is_whole(iterator.remaining()).map_err(|refused| told(refused, count))? {
        if version >= 3 && count > 0 && iterator.remaining().get(MAGIC_POSITION) == Some(&(MAGIC_V2 as u8)) {
            // Whatever it holds: one batch is what a request may have.
            return Err(ErrorCode::INVALID_RECORD.into());
        }
        let Some(batch) = iterator.next() else { break };
        let batch = batch.map_err(|error| told(refuse_records(&error), count))?;
        count += 1;
        if version < 7 && matches!(batch.header.compression(), Ok(Compression::Zstd)) {
            return Err(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE.into());
        }
    }
    if count == 0 && version >= 3 {
        return Err(ErrorCode::INVALID_RECORD.into());
    }
    Ok(iterator.valid_bytes())
}

/// The size of the whole messages at the front of a set. Bytes of an incomplete further one are dropped, too.
fn whole_messages(records: &[u8]) -> Result<usize> {
    let mut size = 0;
    while let Some(next) = framed_size(&records[size..])? {
        match records.get(size + MAGIC_POSITION) {
            Some(0..=2) if size + next <= records.len() => size += next,
            Some(magic) if *magic > 2 => {
                return Err(refuse_records(&RecordError::UnsupportedMagic(*magic as i8)));
            }
            _ => break,
        }
    }
    Ok(size)
}

/// The bytes of the batch or message at the front, seen from what all formats have in common; `None` when not even its length
/// is there.
fn framed_size(records: &[u8]) -> Result<Option<usize>> {
    let Some(&[a, b, c, d]) = records.get(LENGTH_POSITION..FRAME) else {
        return Ok(None);
    };
    let length = i64::from(i32::from_be_bytes([a, b, c, d]));
    if length < LENGTH_MIN {
        return Err(refuse_records(&RecordError::InvalidLength {
            what: "batch",
            length,
            minimum: LENGTH_MIN,
        }));
    }
    Ok(Some(FRAME + length as usize))
}

/// Whether a batch is all there: the length is judged before the magic byte (`ByteBufferLogInputStream`), and a message of the
/// old formats is none of the batches that are wanted.
fn is_whole(records: &[u8]) -> Result<bool> {
    let Some(size) = framed_size(records)? else {
        return Ok(false);
    };
    let is_whole = size <= records.len();
    match records.get(MAGIC_POSITION) {
        None => Ok(false),
        Some(0 | 1) if is_whole => Err(ErrorCode::INVALID_RECORD.into()),
        Some(0..=2) => Ok(is_whole),
        // It is refused, whole or not.
        Some(_) => Ok(true),
    }
}

/// The first offset of a batch is the broker's to give.
fn check_base_offsets(records: &[u8]) -> Result<()> {
    let is_placed = |batch: std::result::Result<logcore_records::Batch<'_>, RecordError>| {
        batch.is_ok_and(|batch| batch.header.base_offset != 0)
    };
    if batches(records).any(is_placed) {
        return Err(ErrorCode::INVALID_RECORD.into());
    }
    Ok(())
}

fn refuse_records(error: &RecordError) -> Refused {
    let code = match error {
        RecordError::UnknownCompression(_) => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
        RecordError::DecompressedTooLarge { .. } | RecordError::TooLarge { .. } => {
            ErrorCode::MESSAGE_TOO_LARGE
        }
        RecordError::ClaimedAppendTime => ErrorCode::INVALID_TIMESTAMP,
        RecordError::NegativeTimestamp(_) => ErrorCode::UNKNOWN_SERVER_ERROR,
        error if error.is_corruption() => ErrorCode::CORRUPT_MESSAGE,
        _ => ErrorCode::INVALID_RECORD,
    };
    // What Kafka finds before it takes the request apart it tells in words (`ByteBufferLogInputStream`).
    let message = match error {
        RecordError::InvalidLength { length, .. } if *length < LENGTH_MIN => Some(format!(
            "Record size {length} is less than the minimum record overhead ({LENGTH_MIN})"
        )),
        RecordError::UnsupportedMagic(magic) => Some(format!("Invalid magic found in record: {magic}")),
        _ => None,
    };
    Refused {
        message,
        ..code.into()
    }
}

/// One partition's records on their way into its log.
struct Append<'a> {
    shared: &'a Shared,
    place: &'a Partition,
    leadership: Leadership,
    is_legacy: bool,
    records: &'a mut [u8],
}

/// Why they did not get there.
enum Failed {
    /// A message set that cannot be converted.
    Unreadable(RecordError),
    /// The log does not take it.
    Refused(StorageError),
}

impl Failed {
    /// More room might do.
    fn is_too_large(&self) -> bool {
        matches!(
            self,
            Self::Unreadable(RecordError::DecompressedTooLarge { .. })
                | Self::Refused(StorageError::DecompressedTooLarge { .. })
        )
    }
}

impl Append<'_> {
    async fn run(&mut self) -> std::result::Result<Appended, Failed> {
        let config = self.place.log.config();
        // A write goes to the page cache; one that is synced at once waits for the disk, as does an epoch's first, and one to a log
        // that is about to be in another directory: others must not wait with it.
        let waits = config.flush_messages != i64::MAX
            || self.place.log.is_about_to_move()
            || !self.place.log.has_saved_epoch(self.leadership.epoch);
        let appended = if self.unpacks(&config) {
            // Rare, so it is not a part of every connection's memory.
            Box::pin(self.unpack()).await
        } else if waits {
            tokio::task::block_in_place(|| self.once(DECOMPRESSED_MAX))
        } else {
            self.once(DECOMPRESSED_MAX)
        }?;
        if !appended.duplicate {
            self.place.waiting_room().appended(appended.bytes);
        }
        Ok(appended)
    }

    /// Whether any of it is decompressed or compressed on its way.
    fn unpacks(&self, config: &LogConfig) -> bool {
        if self.is_legacy {
            let codec = legacy::codec(self.records);
            return config.compression.is_some() || codec.is_ok_and(|codec| codec != Compression::None);
        }
        batches(self.records)
            .flatten()
            .any(|batch| config.unpacks(&batch.header))
    }

    /// Appends what has to be unpacked, when it is its turn.
    async fn unpack(&mut self) -> std::result::Result<Appended, Failed> {
        let unpacking = &self.shared.unpacking;
        let mut turn = unpacking.turn(self.records.len()).await;
        loop {
            let done = tokio::task::block_in_place(|| self.once(turn.decompressed_max));
            let is_too_large = done.as_ref().is_err_and(Failed::is_too_large);
            if !is_too_large {
                return done;
            }
            turn = match unpacking.larger(turn).await {
                Some(larger) => larger,
                None => return done,
            };
        }
    }

    fn once(&mut self, decompressed_max: usize) -> std::result::Result<Appended, Failed> {
        let (epoch, registry) = (self.leadership.epoch, &self.shared.registry);
        let mut converted;
        let records: &mut [u8] = if self.is_legacy {
            // What message sets decompress to may be as large as the largest request.
            let most = decompressed_max.min(self.shared.config.request_bytes_max);
            legacy::validate(self.records).map_err(Failed::Unreadable)?;
            let timestamp_type = self.place.log.config().timestamp_type;
            converted = legacy::to_v2(self.records, timestamp_type, most).map_err(Failed::Unreadable)?;
            &mut converted
        } else {
            self.records
        };
        let wait = |work: &mut dyn FnMut()| tokio::task::block_in_place(work);
        let append = |log: &Log| log.append_within(records, epoch, now_ms(), decompressed_max, wait);
        registry.append(self.place, append).map_err(Failed::Refused)
    }
}

/// The producer is told what Kafka tells it, which is little more than a code; the operator is told why.
fn refuse_append(shared: &Shared, place: &Partition, error: StorageError) -> Refused {
    let what = format_args!("Produce to {place} refused");
    let code = shared.storage_error(what, Some(place), &error);
    if error.is_storage_failure() {
        return code.into();
    }
    // The text tells positions and numbers, so it is not the key.
    let key = format!("refused {place} {}", code.0);
    let text = format!("{what}: {error}");
    shared
        .lines
        .seldom_with(Level::Warning, &key, text, || place.fields());
    let faults = match error {
        StorageError::InvalidRecords(faults) => Some(faults),
        _ => None,
    };
    Refused {
        faults,
        ..code.into()
    }
}

/// With acks=0 the client hears nothing, so an error can only be told by closing the connection. The line about it names the
/// first few partitions: a request may have many, of topics whose names it makes up.
fn without_answer(request: &Request, results: &[Result<Done>]) -> Outcome {
    let failed = request.parts.iter().zip(results);
    let mut failed = failed.filter_map(|(part, result)| Some((part, code_of(result)?)));
    let named = failed.by_ref().take(SHOWN).map(|(part, code)| {
        let topic = &request.topics[part.topic];
        let topic = &topic[..topic.floor_char_boundary(TOPIC_NAME_MAX)];
        format!("{topic}-{}: {}", part.index, code.name())
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        return Outcome::Silent;
    }
    let more = match failed.count() {
        0 => String::new(),
        more => format!(" and {more} partitions more"),
    };
    Outcome::Close(format!(
        "a Produce request with acks=0 failed: {}{more}",
        named.join(", ")
    ))
}
