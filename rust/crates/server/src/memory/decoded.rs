//! How much memory decoded requests may have (`queued.max.request.bytes`).
//!
//! A request of many tiny things has a hundred times its frame's memory when it is decoded, and what Python makes of it more
//! than that again: [`logcore_protocol::decode_request_within`] says how much. All requests share as much for it as their
//! frames do ([`crate::memory::frames`]), or [`LEAST`], if that is more, so that a server of small frames serves what fits in one. A
//! quarter is for what Rust answers: no fetch waits until Python is done with something large.
//!
//! One that needs more than there is closes its connection. One that needs more than is left waits before it is decoded;
//! it keeps its frame, and the lane, if it is there: what it waits for comes back from requests that wait for nobody. Those of a
//! group's members may wait for others to come; they have given it back by then.
//!
//! Requests of few values are not counted, and are decoded in one go. Called from connection tasks; a crash leaves nothing.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::block_in_place;

use logcore_protocol::{Problem, ProtocolError, RequestHeader, Value, decode_request_within};

use crate::apis::{Api, PRODUCE};
use crate::memory::frames::{FREE, Held, Tide, hold};

/// There is never less than this for decoded requests.
const LEAST: usize = 16 * 1024 * 1024;
/// A request on the data path has this part of its share without asking: by default 4 MiB, which are 3,500 partitions of a
/// fetch. It is gone before its handler waits for anything, so a thread has one of them.
const FREE_PART: usize = 16;
/// Bodies longer than this take milliseconds, unless most of them are records: the thread's other connections move first.
const LARGE: usize = 64 * 1024;

/// The memory of all decoded requests.
pub(crate) struct DecodedMemory {
    native: Share,
    control: Share,
    tide: Tide,
}

/// What some of them share.
struct Share {
    left: Arc<Semaphore>,
    whole: usize,
    /// What each may have without asking.
    free: usize,
}

impl DecodedMemory {
    /// `bytes` is what all frames may have; `None` is no limit.
    pub(crate) fn new(bytes: Option<usize>) -> Self {
        let whole = bytes.map_or(Semaphore::MAX_PERMITS, |bytes| bytes.max(LEAST));
        let whole = whole.min(Semaphore::MAX_PERMITS);
        let native = whole / 4;
        Self {
            native: Share::new(native, native / FREE_PART),
            control: Share::new(whole - native, FREE),
            tide: Tide::default(),
        }
    }

    /// Decodes a request as soon as it may have the memory.
    ///
    /// # Errors
    /// Why its connection is to be closed.
    pub(crate) async fn decode(
        &self,
        api: &Api,
        header: &RequestHeader,
        body: &Bytes,
    ) -> Result<(Value, Held), String> {
        // Where Python's strings are, the frame is too, and is not counted any more if it came in the lane.
        let (share, frame) = match api.is_native() {
            true => (&self.native, 0),
            false => (&self.control, body.len()),
        };
        let decoded = share.decode(header, body, frame).await;
        self.tide.risen(self.had());
        decoded.map_err(|error| match error {
            ProtocolError::Decode {
                problem: Problem::TooHeavy(_),
                ..
            } => format!("{error}: raise queued.max.request.bytes or send less at once"),
            error => format!("malformed request: {error}"),
        })
    }

    /// As [`Tide::has_ebbed`].
    pub(crate) fn has_ebbed(&self) -> bool {
        self.tide.has_ebbed(self.had())
    }

    fn had(&self) -> usize {
        self.native.had() + self.control.had()
    }
}

impl Share {
    fn new(whole: usize, free: usize) -> Self {
        Self {
            left: Arc::new(Semaphore::new(whole)),
            whole,
            free,
        }
    }

    fn had(&self) -> usize {
        self.whole - self.left.available_permits()
    }

    async fn decode(
        &self,
        header: &RequestHeader,
        body: &Bytes,
        frame: usize,
    ) -> Result<(Value, Held), ProtocolError> {
        let (key, version) = (header.api_key, header.api_version);
        let most = self.whole.saturating_sub(frame);
        let mut keep = self.free.saturating_sub(frame);
        let mut held = None;
        loop {
            let decode = || decode_request_within(key, version, body, keep, most);
            let decoded = if key != PRODUCE && body.len() > LARGE {
                block_in_place(decode)?
            } else {
                decode()?
            };
            if let Some(message) = decoded.message {
                return Ok((message, held));
            }
            keep = decoded.weight;
            // Never more than the whole.
            held = hold(&self.left, decoded.weight + frame).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::apis::{LIST_OFFSETS, METADATA};
    use crate::net::busy_poll::at_once;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_multi_thread().build();
        runtime.unwrap().block_on(future)
    }

    fn header(api_key: i16) -> RequestHeader {
        RequestHeader {
            api_key,
            api_version: 1,
            correlation_id: 0,
            client_id: None,
        }
    }

    async fn decode(
        memory: &DecodedMemory,
        header: &RequestHeader,
        body: &Bytes,
    ) -> Result<(Value, Held), String> {
        let api = Api::of(header.api_key).unwrap();
        memory.decode(api, header, body).await
    }

    /// Metadata of so many topics without a name, or ListOffsets of as many without partitions.
    fn body(key: i16, topics: u32) -> Bytes {
        let (head, topic) = if key == METADATA { (0, 2) } else { (4, 6) };
        let mut body = vec![0; head];
        body.extend_from_slice(&topics.to_be_bytes());
        body.resize(body.len() + topic * topics as usize, 0);
        Bytes::from(body)
    }

    // If this failed, more would be had than there is, or who waits would wait for ever, or a fetch for Python.
    #[test]
    fn one_waits_for_what_another_has() {
        let memory = DecodedMemory::new(Some(1));
        let (control, native) = (&memory.control.left, &memory.native.left);
        let (all, all_native) = (LEAST / 4 * 3, LEAST / 4);
        block_on(async {
            let few = body(METADATA, 10);
            let (_, held) = decode(&memory, &header(METADATA), &few).await.unwrap();
            assert!(held.is_none());
            let many = body(METADATA, 20_000);
            let (message, held) = decode(&memory, &header(METADATA), &many).await.unwrap();
            let topics = message.get("topics").unwrap().as_array().unwrap();
            assert_eq!(topics.len(), 20_000);
            let left = control.available_permits();
            assert!(left < all / 2, "{left}");

            let head = header(METADATA);
            let mut waits = pin!(decode(&memory, &head, &many));
            assert!(at_once(waits.as_mut()).await.is_none());
            let (_, few) = decode(&memory, &header(METADATA), &few).await.unwrap();
            assert!(few.is_none());
            let offsets = body(LIST_OFFSETS, 5000);
            let (_, other) = decode(&memory, &header(LIST_OFFSETS), &offsets).await.unwrap();
            assert!(other.is_some() && native.available_permits() < all_native);
            drop(held);
            let (_, held) = waits.await.unwrap();
            assert_eq!(control.available_permits(), left);
            drop((held, other));
        });
        assert_eq!(control.available_permits(), all);
        assert_eq!(native.available_permits(), all_native);
    }

    // If this failed, one that can never be served would wait for ever, with its frame.
    #[test]
    fn what_needs_more_than_there_is_is_refused() {
        let memory = DecodedMemory::new(Some(1));
        for (key, topics) in [(METADATA, 1_000_000), (LIST_OFFSETS, 100_000)] {
            let (head, bomb) = (header(key), body(key, topics));
            let Err(reason) = block_on(decode(&memory, &head, &bomb)) else {
                panic!("API {key} is decoded");
            };
            assert!(reason.contains("raise queued.max.request.bytes"), "{reason}");
        }
        let unlimited = DecodedMemory::new(None);
        let bomb = body(METADATA, 1_000_000);
        let decoded = block_on(decode(&unlimited, &header(METADATA), &bomb));
        assert!(decoded.is_ok());
    }
}
