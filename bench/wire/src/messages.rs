//! The requests and responses of Produce version 9 (flexible, as today's clients send it) and Fetch version
//! 11 (the last version with plain arrays).
//!
//! Encoded and decoded by hand, so that the load generator needs little CPU time. Each request has one topic
//! and one partition. The fields are those of Kafka's `ProduceRequest.json`, `FetchRequest.json` and their
//! responses.

use std::ops::Range;

use crate::cursor::Cursor;
use crate::error::BenchError;

const PRODUCE: i16 = 0;
const PRODUCE_VERSION: i16 = 9;
const FETCH: i16 = 1;
const FETCH_VERSION: i16 = 11;
const CLIENT_ID: &str = "logcore-bench";
/// The bytes of the correlation id in a request with its length prefix.
const CORRELATION_AT: Range<usize> = 8..12;
const REQUEST_TIMEOUT_MS: i32 = 30_000;
const FETCH_WAIT_MS: i32 = 500;

pub(crate) fn put_unsigned(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a compact string or compact bytes. Lengths come from flags and batches, and are far below 4 GiB.
pub(crate) fn put_compact(out: &mut Vec<u8>, bytes: &[u8]) {
    put_unsigned(out, bytes.len() as u32 + 1);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as i16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// An empty length prefix, which [`finish`] fills in, and the request header up to the client id.
pub(crate) fn begin(api_key: i16, version: i16) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend_from_slice(&api_key.to_be_bytes());
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&0i32.to_be_bytes());
    put_string(&mut out, CLIENT_ID);
    out
}

pub(crate) fn finish(mut out: Vec<u8>) -> Vec<u8> {
    set_frame_length(&mut out, 0);
    out
}

/// Sets the length prefix of `frame`, which is followed by `more` bytes.
pub(crate) fn set_frame_length(frame: &mut [u8], more: usize) {
    let length = (frame.len() - 4 + more) as i32;
    frame[..4].copy_from_slice(&length.to_be_bytes());
}

/// Sets the correlation id of an encoded request.
pub(crate) fn set_correlation_id(request: &mut [u8], id: i32) {
    request[CORRELATION_AT].copy_from_slice(&id.to_be_bytes());
}

/// A Produce request with `batch`, with its length prefix. Returns the range of the partition, too.
pub(crate) fn produce_request(
    topic: &str,
    partition: i32,
    acks: i16,
    batch: &[u8],
) -> (Vec<u8>, Range<usize>) {
    let mut out = begin(PRODUCE, PRODUCE_VERSION);
    out.push(0); // header tags
    out.push(0); // transactional id: null
    out.extend_from_slice(&acks.to_be_bytes());
    out.extend_from_slice(&REQUEST_TIMEOUT_MS.to_be_bytes());
    out.push(2); // one topic
    put_compact(&mut out, topic.as_bytes());
    out.push(2); // one partition
    let partition_at = out.len()..out.len() + 4;
    out.extend_from_slice(&partition.to_be_bytes());
    put_compact(&mut out, batch);
    out.extend_from_slice(&[0, 0, 0]); // tags of the partition, the topic, the body
    (finish(out), partition_at)
}

/// A Produce request. The ranges are positions in its frame.
pub(crate) struct ProduceRequest {
    pub(crate) correlation_id: i32,
    pub(crate) acks: i16,
    pub(crate) topic: Range<usize>,
    pub(crate) partition: i32,
    pub(crate) records: Range<usize>,
}

/// Reads the header of a request of this API and version, up to the client id.
fn request_header(cursor: &mut Cursor<'_>, api_key: i16, version: i16) -> Result<i32, BenchError> {
    let found = (cursor.i16()?, cursor.i16()?);
    if found != (api_key, version) {
        return Err(BenchError::Protocol(format!(
            "API key {} version {}, only {api_key} version {version} is served",
            found.0, found.1
        )));
    }
    let correlation_id = cursor.i32()?;
    cursor.string()?;
    Ok(correlation_id)
}

fn exactly_one(count: i64, what: &str) -> Result<(), BenchError> {
    if count == 1 {
        Ok(())
    } else {
        Err(BenchError::Protocol(format!("{count} {what} instead of one")))
    }
}

/// Decodes a request of [`produce_request`].
pub(crate) fn read_produce_request(frame: &[u8]) -> Result<ProduceRequest, BenchError> {
    let mut cursor = Cursor::new(frame);
    let correlation_id = request_header(&mut cursor, PRODUCE, PRODUCE_VERSION)?;
    cursor.tags()?;
    cursor.compact()?;
    let acks = cursor.i16()?;
    cursor.i32()?;
    exactly_one(i64::from(cursor.compact_array()?), "topics")?;
    let topic = cursor.compact()?;
    exactly_one(i64::from(cursor.compact_array()?), "partitions")?;
    let partition = cursor.i32()?;
    let records = cursor.compact()?;
    Ok(ProduceRequest {
        correlation_id,
        acks,
        topic,
        partition,
        records,
    })
}

/// Encodes a Produce response without an error, with its length prefix, into `out`.
pub(crate) fn produce_response(
    out: &mut Vec<u8>,
    correlation_id: i32,
    topic: &[u8],
    partition: i32,
    base_offset: i64,
) {
    out.clear();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&correlation_id.to_be_bytes());
    out.push(0); // header tags
    out.push(2); // one topic
    put_compact(out, topic);
    out.push(2); // one partition
    out.extend_from_slice(&partition.to_be_bytes());
    out.extend_from_slice(&0i16.to_be_bytes());
    out.extend_from_slice(&base_offset.to_be_bytes());
    out.extend_from_slice(&(-1i64).to_be_bytes()); // log append time: none
    out.extend_from_slice(&0i64.to_be_bytes()); // log start offset
    out.extend_from_slice(&[1, 0]); // no record errors, null error message
    out.extend_from_slice(&[0, 0]); // tags of the partition, the topic
    out.extend_from_slice(&0i32.to_be_bytes()); // throttle time
    out.push(0); // tags of the body
    set_frame_length(out, 0);
}

pub(crate) fn check_correlation(got: i32, expected: i32) -> Result<(), BenchError> {
    if got == expected {
        Ok(())
    } else {
        Err(BenchError::Protocol(format!(
            "a response with correlation id {got}, expected {expected}"
        )))
    }
}

/// Checks the correlation id and the error code of a response. Returns the base offset.
pub(crate) fn check_produce_response(frame: &[u8], correlation_id: i32) -> Result<i64, BenchError> {
    let mut cursor = Cursor::new(frame);
    check_correlation(cursor.i32()?, correlation_id)?;
    cursor.tags()?;
    exactly_one(i64::from(cursor.compact_array()?), "topics")?;
    cursor.compact()?;
    exactly_one(i64::from(cursor.compact_array()?), "partitions")?;
    let partition = cursor.i32()?;
    match cursor.i16()? {
        0 => cursor.i64(),
        code => Err(BenchError::Broker {
            api: "produce",
            partition,
            code,
        }),
    }
}

/// A Fetch request without a session, with its length prefix. Returns the range of the fetch offset, too.
pub(crate) fn fetch_request(topic: &str, partition: i32, max_bytes: i32) -> (Vec<u8>, Range<usize>) {
    let mut out = begin(FETCH, FETCH_VERSION);
    out.extend_from_slice(&(-1i32).to_be_bytes()); // replica id: a consumer
    out.extend_from_slice(&FETCH_WAIT_MS.to_be_bytes());
    out.extend_from_slice(&1i32.to_be_bytes()); // min bytes
    out.extend_from_slice(&max_bytes.to_be_bytes());
    out.push(0); // read uncommitted
    out.extend_from_slice(&0i32.to_be_bytes()); // session id
    out.extend_from_slice(&(-1i32).to_be_bytes()); // session epoch: no session
    out.extend_from_slice(&1i32.to_be_bytes()); // one topic
    put_string(&mut out, topic);
    out.extend_from_slice(&1i32.to_be_bytes()); // one partition
    out.extend_from_slice(&partition.to_be_bytes());
    out.extend_from_slice(&(-1i32).to_be_bytes()); // current leader epoch: unknown
    let offset_at = out.len()..out.len() + 8;
    out.extend_from_slice(&0i64.to_be_bytes());
    out.extend_from_slice(&(-1i64).to_be_bytes()); // log start offset: a consumer
    out.extend_from_slice(&max_bytes.to_be_bytes());
    out.extend_from_slice(&0i32.to_be_bytes()); // no forgotten topics
    put_string(&mut out, ""); // rack id
    (finish(out), offset_at)
}

/// A Fetch request. The range is a position in its frame.
pub(crate) struct FetchRequest {
    pub(crate) correlation_id: i32,
    pub(crate) topic: Range<usize>,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) max_bytes: usize,
}

/// Decodes a request of [`fetch_request`].
pub(crate) fn read_fetch_request(frame: &[u8]) -> Result<FetchRequest, BenchError> {
    let mut cursor = Cursor::new(frame);
    let correlation_id = request_header(&mut cursor, FETCH, FETCH_VERSION)?;
    cursor.skip(4 + 4 + 4 + 4 + 1 + 4 + 4)?;
    exactly_one(i64::from(cursor.i32()?), "topics")?;
    let topic = cursor.string()?;
    exactly_one(i64::from(cursor.i32()?), "partitions")?;
    let partition = cursor.i32()?;
    cursor.i32()?;
    let offset = cursor.i64()?;
    cursor.i64()?;
    let max_bytes = usize::try_from(cursor.i32()?).unwrap_or(0);
    Ok(FetchRequest {
        correlation_id,
        topic,
        partition,
        offset,
        max_bytes,
    })
}

/// Encodes a Fetch response into `out`, with its length prefix, up to its records. `size` bytes of records
/// must follow.
pub(crate) fn fetch_response_header(
    out: &mut Vec<u8>,
    request: &FetchRequest,
    topic: &[u8],
    high_watermark: i64,
    size: usize,
) {
    out.clear();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&request.correlation_id.to_be_bytes());
    out.extend_from_slice(&0i32.to_be_bytes()); // throttle time
    out.extend_from_slice(&0i16.to_be_bytes()); // error code
    out.extend_from_slice(&0i32.to_be_bytes()); // session id
    out.extend_from_slice(&1i32.to_be_bytes()); // one topic
    out.extend_from_slice(&(topic.len() as i16).to_be_bytes());
    out.extend_from_slice(topic);
    out.extend_from_slice(&1i32.to_be_bytes()); // one partition
    out.extend_from_slice(&request.partition.to_be_bytes());
    out.extend_from_slice(&0i16.to_be_bytes()); // error code
    out.extend_from_slice(&high_watermark.to_be_bytes());
    out.extend_from_slice(&high_watermark.to_be_bytes()); // last stable offset
    out.extend_from_slice(&0i64.to_be_bytes()); // log start offset
    out.extend_from_slice(&(-1i32).to_be_bytes()); // aborted transactions: null
    out.extend_from_slice(&(-1i32).to_be_bytes()); // preferred read replica: none
    out.extend_from_slice(&(size as i32).to_be_bytes());
    set_frame_length(out, size);
}

/// The content of a Fetch response without an error.
pub(crate) struct Fetched<'a> {
    pub(crate) high_watermark: i64,
    pub(crate) records: &'a [u8],
}

/// Decodes a response, and checks its correlation id and error codes.
pub(crate) fn read_fetch_response(frame: &[u8], correlation_id: i32) -> Result<Fetched<'_>, BenchError> {
    let mut cursor = Cursor::new(frame);
    check_correlation(cursor.i32()?, correlation_id)?;
    cursor.i32()?;
    let response_code = cursor.i16()?;
    cursor.i32()?;
    let failed = |partition, code| BenchError::Broker {
        api: "fetch",
        partition,
        code,
    };
    if response_code != 0 {
        return Err(failed(-1, response_code));
    }
    exactly_one(i64::from(cursor.i32()?), "topics")?;
    cursor.string()?;
    exactly_one(i64::from(cursor.i32()?), "partitions")?;
    let partition = cursor.i32()?;
    let code = cursor.i16()?;
    if code != 0 {
        return Err(failed(partition, code));
    }
    let high_watermark = cursor.i64()?;
    cursor.skip(8 + 8)?;
    let aborted = usize::try_from(cursor.i32()?).unwrap_or(0);
    cursor.skip(aborted.saturating_mul(16))?;
    cursor.i32()?;
    let size = usize::try_from(cursor.i32()?).unwrap_or(0);
    let records = cursor.skip(size)?;
    Ok(Fetched {
        high_watermark,
        records: &frame[records],
    })
}
