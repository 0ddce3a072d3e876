//! The responses that a stream of bytes must get, computed from the bytes alone.

use bytes::Bytes;
use logcore_protocol::{
    Decoded, RequestHeader, Value, decode_request_within, decode_response, decode_response_header,
};
use logcore_server::{AnsweredBy, Api, apis};

use crate::FRAME_MAX;

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const API_VERSIONS: i16 = 18;
/// The budget of requests decoded for Rust, at this test's setting of `queued.max.request.bytes`.
const NATIVE_BYTES: usize = 4 << 20;
/// The budget of requests decoded for Python, with their frames.
const CONTROL_BYTES: usize = 12 << 20;

/// Whether a request that crosses to Python is dropped there, which closes its connection.
pub(crate) fn is_dropped(correlation_id: i32) -> bool {
    correlation_id.rem_euclid(16) == 0
}

pub(crate) fn is_native(key: i16) -> bool {
    row(key).is_some_and(|api| api.answered_by == AnsweredBy::Rust)
}

/// The row of an API in the server's table.
fn row(key: i16) -> Option<&'static Api> {
    apis().iter().find(|api| api.key == key)
}

fn is_served(key: i16, version: i16) -> bool {
    row(key).is_some_and(|api| (api.first..=api.last).contains(&version))
}

/// A response that must come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Answer {
    key: i16,
    version: i16,
    correlation_id: i32,
}

impl Answer {
    /// Panics unless `frame` is this answer.
    pub(crate) fn check(self, mut frame: Bytes) {
        let Self { key, version, .. } = self;
        let id = decode_response_header(key, version, &mut frame)
            .unwrap_or_else(|error| panic!("{self:?}: {error}"));
        assert_eq!(id, self.correlation_id, "{self:?}");
        decode_response(key, version, &frame).unwrap_or_else(|error| panic!("{self:?}: {error}"));
    }
}

/// The outcome of a stream.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// The responses in their order.
    pub(crate) answers: Vec<Answer>,
    /// The server closes the connection after those responses.
    pub(crate) is_refused: bool,
    /// A request may wait for longer than the test, or may close the connection, so some responses may not
    /// come.
    pub(crate) is_uncertain: bool,
    /// The offset after the first request that may wait for longer than the test. While it waits, the server
    /// reads no further than its buffer, so it may not see the end of the stream.
    pub(crate) waits_at: Option<usize>,
}

enum Verdict {
    Answered(Answer),
    Refused,
    /// Produce with acks=0 has no response, and closes the connection when it fails.
    Silent,
    /// A long poll.
    Waits(Answer),
}

impl Expected {
    pub(crate) fn of(whole: &[u8]) -> Self {
        let mut expected = Self::default();
        let mut stream = whole;
        while let Some((size, rest)) = stream.split_first_chunk() {
            let size = i32::from_be_bytes(*size);
            if !(0..=FRAME_MAX as i32).contains(&size) {
                expected.is_refused = true;
                break;
            }
            let Some((frame, rest)) = rest.split_at_checked(size as usize) else {
                break;
            };
            let verdict = verdict(frame);
            if matches!(verdict, Verdict::Waits(_)) {
                expected.waits_at.get_or_insert(whole.len() - rest.len());
            }
            expected.add(verdict);
            if expected.is_refused {
                break;
            }
            stream = rest;
        }
        expected
    }

    fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Answered(answer) => self.answers.push(answer),
            Verdict::Refused => self.is_refused = true,
            Verdict::Silent => self.is_uncertain = true,
            Verdict::Waits(answer) => {
                self.answers.push(answer);
                self.is_uncertain = true;
            }
        }
    }
}

fn verdict(frame: &[u8]) -> Verdict {
    let mut body = Bytes::copy_from_slice(frame);
    let Ok(header) = RequestHeader::decode(&mut body) else {
        return Verdict::Refused;
    };
    let mut answer = Answer {
        key: header.api_key,
        version: header.api_version,
        correlation_id: header.correlation_id,
    };
    if !is_served(answer.key, answer.version) {
        if answer.key != API_VERSIONS {
            return Verdict::Refused;
        }
        answer.version = 0;
        return Verdict::Answered(answer);
    }
    let most = match is_native(answer.key) {
        true => NATIVE_BYTES,
        false => CONTROL_BYTES - body.len(),
    };
    let decoded = decode_request_within(answer.key, answer.version, &body, usize::MAX, most);
    let Ok(Decoded {
        message: Some(message),
        ..
    }) = decoded
    else {
        return Verdict::Refused;
    };
    let number = |name| message.get(name);
    match answer.key {
        PRODUCE if number("acks") == Some(&Value::I16(0)) => Verdict::Silent,
        FETCH if may_wait(&message) => Verdict::Waits(answer),
        key if !is_native(key) && is_dropped(answer.correlation_id) => Verdict::Refused,
        _ => Verdict::Answered(answer),
    }
}

fn may_wait(fetch: &Value) -> bool {
    let number = |name| fetch.get(name).and_then(Value::as_i32).unwrap_or_default();
    number("max_wait_ms") > 0 && number("min_bytes") > 0
}
