//! The memory of long responses that Python makes.
//!
//! The length of a response is known only when it is made: a request of a few bytes can ask for everything.
//! So Python answers one request at a time of each API whose responses may be long, and the next one crosses
//! to Python when the response has a permit for its bytes. Beyond its budget, an API has one response at
//! most. A waiting request has its decoded form only, and the event loop serves other requests between two
//! long responses. No API waits for another.
//!
//! Responses of other APIs use the memory of their requests ([`crate::memory::frames`]). Called from
//! connection tasks; a crash leaves nothing.

use logcore_protocol::Value;

use crate::apis::{Api, METADATA, OFFSET_FETCH, Response};
use crate::memory::budget::Permit;
use crate::memory::{Budgets, LongResponseBudgets};

/// A request for no more partitions than this does not wait for others.
const FEW_PARTITIONS: usize = 4096;

/// A request's exclusive access to the Python handler of its API, until its response has a permit.
pub(crate) struct Exclusive<'a> {
    budgets: &'a LongResponseBudgets,
    request: Permit,
}

impl Budgets {
    /// Waits for exclusive access to the handler, if the response may be long.
    pub(crate) async fn exclusive(&self, api: &Api, request: &Value) -> Option<Exclusive<'_>> {
        if api.response == Response::Short || !asks_for_much(api.key, request) {
            return None;
        }
        let budgets = self.long_responses.get(&api.key)?;
        let request = budgets.requests.acquire(1).await;
        Some(Exclusive { budgets, request })
    }
}

impl Exclusive<'_> {
    /// Waits for a permit for the response; then the next request has access.
    pub(crate) async fn for_response(self, bytes: usize) -> Permit {
        self.budgets.bytes.acquire(bytes).await
    }

    /// The permit of the access, to be dropped once the response is made although its connection has ended.
    pub(crate) fn into_permit(self) -> Permit {
        self.request
    }
}

/// Whether the request asks for all there is, or for a lot by name.
fn asks_for_much(key: i16, request: &Value) -> bool {
    let topics = request.get("topics").and_then(Value::as_array);
    match key {
        // Named topics may have to be created first, which takes time, and others must not wait for it.
        METADATA => topics.is_none_or(<[_]>::is_empty),
        // Many members that ask for their own partitions need not wait for each other.
        OFFSET_FETCH => {
            let groups = request.get("groups").and_then(Value::as_array);
            // Before version 8 the request itself has the fields of one group.
            let all = groups.into_iter().flatten().chain([request]);
            let named: Option<usize> = all.map(named_partitions).sum();
            named.is_none_or(|named| named > FEW_PARTITIONS)
        }
        _ => true,
    }
}

/// How many partitions of a group the request names; `None` stands for all.
fn named_partitions(group: &Value) -> Option<usize> {
    let topics = group.get("topics")?.as_array()?;
    let of = |topic: &Value| {
        let numbers = topic.get("partition_indexes").and_then(Value::as_array);
        numbers.map_or(0, <[_]>::len)
    };
    Some(topics.iter().map(of).sum())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use logcore_protocol::{Direction, schema};

    use super::*;
    use crate::memory::UNCOUNTED;
    use crate::net::busy_poll::poll_once;

    const DESCRIBE_CONFIGS: i16 = 32;
    const HEARTBEAT: i16 = 12;

    fn budgets() -> Budgets {
        Budgets::new(None, 1)
    }

    fn request(key: i16) -> Value {
        schema(key, Direction::Request).unwrap().message().into()
    }

    fn metadata_of(topics: usize) -> Value {
        let mut message = schema(METADATA, Direction::Request).unwrap().message();
        message.set("topics", vec![message.element("topics"); topics]);
        message.into()
    }

    async fn exclusive<'a>(budgets: &'a Budgets, key: i16, request: &Value) -> Option<Exclusive<'a>> {
        budgets.exclusive(Api::of(key).unwrap(), request).await
    }

    // If this failed, the broker would answer many requests for everything at once, and all others after
    // them. Or a client that reads nothing would use all of the memory and more.
    #[tokio::test]
    async fn long_responses_are_made_one_after_the_other_and_wait_for_memory() {
        let budgets = budgets();
        let whole = budgets.long_responses[&METADATA].bytes.size();
        let configs = request(DESCRIBE_CONFIGS);
        let first = exclusive(&budgets, DESCRIBE_CONFIGS, &configs).await.unwrap();
        {
            let mut second = pin!(exclusive(&budgets, DESCRIBE_CONFIGS, &configs));
            assert!(poll_once(second.as_mut()).await.is_none());
        }
        let permit = first.for_response(usize::MAX).await;
        assert_eq!(permit.count(), whole);

        let short = exclusive(&budgets, DESCRIBE_CONFIGS, &configs).await.unwrap();
        assert!(!short.for_response(UNCOUNTED).await.is_some());
        let second = exclusive(&budgets, DESCRIBE_CONFIGS, &configs).await.unwrap();
        let mut waits = pin!(second.for_response(UNCOUNTED + 1));
        assert!(poll_once(waits.as_mut()).await.is_none());
        // It still has exclusive access. Another API has its own, and its own memory.
        assert!(
            poll_once(pin!(exclusive(&budgets, DESCRIBE_CONFIGS, &configs)))
                .await
                .is_none()
        );
        let metadata = exclusive(&budgets, METADATA, &metadata_of(0)).await.unwrap();
        assert!(metadata.for_response(whole).await.is_some());
        drop(permit);
        assert!(waits.await.is_some());
        assert!(exclusive(&budgets, DESCRIBE_CONFIGS, &configs).await.is_some());
        assert!(
            budgets
                .long_responses
                .values()
                .all(|api| api.bytes.left() == whole)
        );
    }

    // If this failed, clients would wait for the creation of each other's topics, or group members for
    // administrators.
    #[tokio::test]
    async fn short_responses_wait_for_nothing() {
        let budgets = budgets();
        let everything = exclusive(&budgets, METADATA, &request(METADATA)).await;
        assert!(everything.is_some());
        assert!(exclusive(&budgets, METADATA, &metadata_of(1)).await.is_none());
        let heartbeat = request(HEARTBEAT);
        assert!(exclusive(&budgets, HEARTBEAT, &heartbeat).await.is_none());
        let all = metadata_of(0);
        let mut second = pin!(exclusive(&budgets, METADATA, &all));
        assert!(poll_once(second.as_mut()).await.is_none());
    }

    // If this failed, members that ask for their own offsets would wait for each other, or requests for all
    // offsets would not.
    #[test]
    fn offset_fetches_of_few_partitions_ask_for_little() {
        let mut request = schema(OFFSET_FETCH, Direction::Request).unwrap().message();
        let mut group = request.element("groups");
        let mut topic = group.element("topics");
        let mut of_group = |topics: Value| {
            group.set("topics", topics);
            let groups = vec![Value::from(group.clone())];
            asks_for_much(OFFSET_FETCH, &request.clone().with("groups", groups).into())
        };
        assert!(of_group(Value::Null));
        let mut partitions = |count| {
            topic.set("partition_indexes", vec![Value::I32(0); count]);
            Value::from(vec![Value::from(topic.clone())])
        };
        assert!(!of_group(partitions(FEW_PARTITIONS)));
        assert!(of_group(partitions(FEW_PARTITIONS + 1)));
        // Before version 8.
        for (topics, is_much) in [
            (partitions(FEW_PARTITIONS), false),
            (partitions(FEW_PARTITIONS + 1), true),
            (Value::Null, true),
        ] {
            request.set("topics", topics);
            assert_eq!(asks_for_much(OFFSET_FETCH, &request.clone().into()), is_much);
        }
    }
}
