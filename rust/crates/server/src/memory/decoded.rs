//! The memory of decoded requests (`queued.max.request.bytes`).
//!
//! A request of many small values needs a hundred times its frame's memory when it is decoded, and Python's
//! objects more than that again: [`logcore_protocol::decode_request_within`] says how much. All decoded
//! requests share as much memory as all frames. A quarter is for the requests that Rust answers, so that no
//! Fetch waits until Python has finished with a large request.
//!
//! A request that needs more than the whole budget closes its connection. One that needs more than is left
//! waits before it is decoded. It keeps its frame meanwhile, and the reserve if it has that. No deadlock
//! follows: the memory that it waits for comes back from requests that wait for nothing. Requests that wait
//! for other members of a group have given theirs back by then.
//!
//! Small requests are not counted, and are decoded in one go. Called from connection tasks; a crash leaves
//! nothing.

use bytes::Bytes;
use tokio::task::block_in_place;

use logcore_protocol::{Problem, ProtocolError, RequestHeader, Value, decode_request_within};

use crate::apis::{Api, PRODUCE};
use crate::memory::Budgets;
use crate::memory::budget::{Budget, Permit};

/// Longer bodies take milliseconds to decode, unless most of them are records: the decoding is offloaded.
const LONG_BODY: usize = 64 * 1024;

impl Budgets {
    /// Decodes a request as soon as there is memory for it.
    ///
    /// # Errors
    /// Why its connection is to be closed.
    pub(crate) async fn decode(
        &self,
        api: &Api,
        header: &RequestHeader,
        body: &Bytes,
    ) -> Result<(Value, Permit), String> {
        // Python's objects share the frame, which has no permit of its own if it used the reserve.
        let (budget, frame) = match api.is_native() {
            true => (&self.decoded_rust, 0),
            false => (&self.decoded_python, body.len()),
        };
        decode(budget, header, body, frame)
            .await
            .map_err(|error| match error {
                ProtocolError::Decode {
                    problem: Problem::TooHeavy(_),
                    ..
                } => format!("{error}: raise queued.max.request.bytes or send less at once"),
                error => format!("malformed request: {error}"),
            })
    }
}

async fn decode(
    budget: &Budget,
    header: &RequestHeader,
    body: &Bytes,
    frame: usize,
) -> Result<(Value, Permit), ProtocolError> {
    let (key, version) = (header.api_key, header.api_version);
    let most = budget.size().saturating_sub(frame);
    let mut keep = budget.uncounted().saturating_sub(frame);
    let mut permit = Permit::default();
    loop {
        let decode = || decode_request_within(key, version, body, keep, most);
        let decoded = if key != PRODUCE && body.len() > LONG_BODY {
            block_in_place(decode)?
        } else {
            decode()?
        };
        if let Some(message) = decoded.message {
            return Ok((message, permit));
        }
        keep = decoded.weight;
        permit = budget.acquire(decoded.weight + frame).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::apis::{LIST_OFFSETS, METADATA};
    use crate::net::busy_poll::poll_once;

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
        budgets: &Budgets,
        header: &RequestHeader,
        body: &Bytes,
    ) -> Result<(Value, Permit), String> {
        let api = Api::of(header.api_key).unwrap();
        budgets.decode(api, header, body).await
    }

    /// A Metadata request for that many topics without a name, or a ListOffsets request for as many without
    /// partitions.
    fn body(key: i16, topics: u32) -> Bytes {
        let (head, topic) = if key == METADATA { (0, 2) } else { (4, 6) };
        let mut body = vec![0; head];
        body.extend_from_slice(&topics.to_be_bytes());
        body.resize(body.len() + topic * topics as usize, 0);
        Bytes::from(body)
    }

    // If this failed, more memory would be used than there is, a request would wait for ever, or a Fetch for
    // Python.
    #[test]
    fn a_request_waits_for_memory_of_its_own_budget() {
        let budgets = Budgets::new(Some(1), 1);
        let (python, rust) = (&budgets.decoded_python, &budgets.decoded_rust);
        block_on(async {
            let few = body(METADATA, 10);
            let (_, permit) = decode(&budgets, &header(METADATA), &few).await.unwrap();
            assert!(!permit.is_some());
            let many = body(METADATA, 20_000);
            let (message, first) = decode(&budgets, &header(METADATA), &many).await.unwrap();
            let topics = message.get("topics").unwrap().as_array().unwrap();
            assert_eq!(topics.len(), 20_000);
            let left = python.left();
            assert!(left < python.size() / 2, "{left}");

            let head = header(METADATA);
            let mut waits = pin!(decode(&budgets, &head, &many));
            assert!(poll_once(waits.as_mut()).await.is_none());
            let (_, permit) = decode(&budgets, &header(METADATA), &few).await.unwrap();
            assert!(!permit.is_some());
            let offsets = body(LIST_OFFSETS, 5000);
            let (_, other) = decode(&budgets, &header(LIST_OFFSETS), &offsets).await.unwrap();
            assert!(other.is_some() && rust.left() < rust.size());
            drop(first);
            let (_, second) = waits.await.unwrap();
            assert_eq!(python.left(), left);
            drop((second, other));
        });
        assert_eq!((python.left(), rust.left()), (python.size(), rust.size()));
    }

    // If this failed, a request that can never be served would wait for ever, with its frame.
    #[test]
    fn a_request_larger_than_the_budget_is_refused() {
        let budgets = Budgets::new(Some(1), 1);
        for (key, topics) in [(METADATA, 1_000_000), (LIST_OFFSETS, 100_000)] {
            let (head, bomb) = (header(key), body(key, topics));
            let Err(reason) = block_on(decode(&budgets, &head, &bomb)) else {
                panic!("API {key} is decoded");
            };
            assert!(reason.contains("raise queued.max.request.bytes"), "{reason}");
        }
        let unlimited = Budgets::new(None, 1);
        let bomb = body(METADATA, 1_000_000);
        let decoded = block_on(decode(&unlimited, &header(METADATA), &bomb));
        assert!(decoded.is_ok());
    }
}
