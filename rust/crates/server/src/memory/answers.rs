//! How much memory the answers of Python's handlers may have until they were sent.
//!
//! How long one is, nobody knows before it is made: a request of a few bytes has everything described. So of each API that may
//! have much to say one request at a time is with Python, and its answer waits for the API's memory before the next one crosses:
//! beyond what there is, there is one answer of each API at most. Who waits for its turn has its request only; and between two
//! answers, each of which the event loop stands still for, others are served. No API waits for another.
//!
//! Answers that fit in [`FREE`] are not counted, nor are those of other APIs here: what they say is about as long as what they
//! are asked, and has that request's memory, or there is little of it that is beyond ([`crate::memory::frames`]). Called from connection tasks; a crash leaves nothing.
//!
//! A peer that does not read what it is told, or too slowly, keeps others waiting, but not for long: while there is little left
//! of a memory, whoever has had [`time_for`] what it has of it is closed. So it is with Fetch responses that are counted
//! ([`crate::memory::fetch::FetchRoom`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use logcore_protocol::Value;

use crate::apis::{Api, METADATA, OFFSET_FETCH, Response, apis};
use crate::memory::frames::{FREE, Held, hold};

/// So many partitions may be named without waiting for others.
const NAMED: usize = 4096;
/// What all answers of one API that are counted may have: those to four clients that ask for all settings of 2,000 topics, with
/// their documentation, or to fifty for their partitions.
const WHOLE: usize = 32 << 20;
/// The least time that a peer has for one that is counted, and how many bytes of a larger one it reads in a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
const LEAST_RATE: u64 = 1 << 20;
/// With so many bytes left of a memory, others may not find enough.
const SCARCE: usize = 16 << 20;

/// Those of each API whose responses may be long, by its key.
pub(crate) struct Answers(HashMap<i16, Line>);

impl Default for Answers {
    fn default() -> Self {
        let long = apis().iter().filter(|api| api.response == Response::Long);
        Self(long.map(|api| (api.key, Line::default())).collect())
    }
}

/// The memory of one API's answers, and whose turn it is.
struct Line {
    memory: Arc<Semaphore>,
    turn: Arc<Mutex<()>>,
}

/// The right to have a request answered by Python, until its answer has its memory.
pub(crate) struct Turn {
    memory: Arc<Semaphore>,
    _turn: OwnedMutexGuard<()>,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            memory: Arc::new(Semaphore::new(WHOLE)),
            turn: Arc::default(),
        }
    }
}

impl Answers {
    /// Waits for the request's turn, if its answer may be large.
    pub(crate) async fn turn(&self, api: &Api, request: &Value) -> Option<Turn> {
        if api.response == Response::Short || !asks_for_much(api.key, request) {
            return None;
        }
        let line = self.0.get(&api.key)?;
        Some(Turn {
            memory: line.memory.clone(),
            _turn: line.turn.clone().lock_owned().await,
        })
    }
}

/// How long a peer may take for a response of so many bytes while others need the memory.
pub(crate) fn time_for(bytes: u64) -> Duration {
    PATIENCE + Duration::from_secs(bytes / LEAST_RATE)
}

/// Whether others need what somebody has, or soon will.
pub(crate) fn is_scarce(held: &OwnedSemaphorePermit) -> bool {
    held.semaphore().available_permits() < SCARCE
}

/// Whether it is a request for all there is, or for very many of it, if its API has others.
fn asks_for_much(key: i16, request: &Value) -> bool {
    let topics = request.get("topics").and_then(Value::as_array);
    match key {
        // Of topics that are named, some may have to be made first, which takes its time.
        METADATA => topics.is_none_or(<[_]>::is_empty),
        // A crowd of members that ask for their partitions need not wait for each other.
        OFFSET_FETCH => {
            let groups = request.get("groups").and_then(Value::as_array);
            // Before version 8 the request is of one group itself.
            let all = groups.into_iter().flatten().chain([request]);
            let named: Option<usize> = all.map(named_partitions).sum();
            named.is_none_or(|named| named > NAMED)
        }
        _ => true,
    }
}

/// How many partitions of a group are asked for; `None` is all.
fn named_partitions(group: &Value) -> Option<usize> {
    let topics = group.get("topics")?.as_array()?;
    let of = |topic: &Value| {
        let numbers = topic.get("partition_indexes").and_then(Value::as_array);
        numbers.map_or(0, <[_]>::len)
    };
    Some(topics.iter().map(of).sum())
}

impl Turn {
    /// Waits until there is room for an answer of so many bytes; then it is the next one's turn.
    pub(crate) async fn room(self, bytes: usize) -> Held {
        if bytes <= FREE {
            return None;
        }
        // The longest has all there is.
        hold(&self.memory, bytes.min(WHOLE)).await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use logcore_protocol::{Direction, schema};

    use super::*;
    use crate::net::busy_poll::at_once;

    const DESCRIBE_CONFIGS: i16 = 32;
    const HEARTBEAT: i16 = 12;

    fn request(key: i16) -> Value {
        schema(key, Direction::Request).unwrap().message().into()
    }

    async fn turn(answers: &Answers, key: i16, request: &Value) -> Option<Turn> {
        answers.turn(Api::of(key).unwrap(), request).await
    }

    fn metadata_of(topics: usize) -> Value {
        let mut message = schema(METADATA, Direction::Request).unwrap().message();
        message.set("topics", vec![message.element("topics"); topics]);
        message.into()
    }

    // If this failed, a crowd that asks for everything would be answered at once, and everybody else after it, or who reads
    // nothing would keep all of the memory and more.
    #[tokio::test]
    async fn large_answers_are_made_in_turn_and_wait_for_those_before_them() {
        let answers = Answers::default();
        let configs = request(DESCRIBE_CONFIGS);
        let first = turn(&answers, DESCRIBE_CONFIGS, &configs).await.unwrap();
        {
            let mut second = pin!(turn(&answers, DESCRIBE_CONFIGS, &configs));
            assert!(at_once(second.as_mut()).await.is_none());
        }
        let whole = first.room(usize::MAX).await;
        assert!(whole.is_some());

        let small = turn(&answers, DESCRIBE_CONFIGS, &configs).await.unwrap();
        assert!(small.room(FREE).await.is_none());
        let second = turn(&answers, DESCRIBE_CONFIGS, &configs).await.unwrap();
        let mut room = pin!(second.room(FREE + 1));
        assert!(at_once(room.as_mut()).await.is_none());
        // It is still its turn; another API's have theirs, and their memory.
        assert!(
            at_once(pin!(turn(&answers, DESCRIBE_CONFIGS, &configs)))
                .await
                .is_none()
        );
        let metadata = turn(&answers, METADATA, &metadata_of(0)).await.unwrap();
        assert!(metadata.room(WHOLE).await.is_some());
        drop(whole);
        assert!(room.await.is_some());
        assert!(turn(&answers, DESCRIBE_CONFIGS, &configs).await.is_some());
        let mut lines = answers.0.values();
        assert!(lines.all(|line| line.memory.available_permits() == WHOLE));
    }

    // If this failed, clients would wait for each other's topics to be made, or members of groups for administrators.
    #[tokio::test]
    async fn small_answers_wait_for_nobody() {
        let answers = Answers::default();
        let everything = turn(&answers, METADATA, &request(METADATA)).await;
        assert!(everything.is_some());
        assert!(turn(&answers, METADATA, &metadata_of(1)).await.is_none());
        let mut offsets = schema(OFFSET_FETCH, Direction::Request).unwrap().message();
        let mut group = offsets.element("groups");
        group.set("topics", vec![group.element("topics")]);
        offsets.set("groups", vec![Value::from(group.clone())]);
        let named = turn(&answers, OFFSET_FETCH, &offsets.clone().into()).await;
        assert!(named.is_none());
        let mut topic = group.element("topics");
        topic.set("partition_indexes", vec![Value::I32(0); NAMED + 1]);
        group.set("topics", vec![Value::from(topic)]);
        offsets.set("groups", vec![Value::from(group.clone())]);
        let many = turn(&answers, OFFSET_FETCH, &offsets.clone().into()).await;
        assert!(many.is_some());
        drop(many);
        group.set("topics", Value::Null);
        offsets.set("groups", vec![Value::from(group.clone())]);
        let all = turn(&answers, OFFSET_FETCH, &offsets.clone().into()).await;
        assert!(all.is_some());
        drop(all);
        // Before version 8.
        let mut one = schema(OFFSET_FETCH, Direction::Request).unwrap().message();
        for (count, is_much) in [(NAMED, false), (NAMED + 1, true)] {
            let mut topic = group.element("topics");
            topic.set("partition_indexes", vec![Value::I32(0); count]);
            one.set("topics", vec![Value::from(topic)]);
            let turn = turn(&answers, OFFSET_FETCH, &one.clone().into()).await;
            assert_eq!(turn.is_some(), is_much);
        }
        one.set("topics", Value::Null);
        assert!(turn(&answers, OFFSET_FETCH, &one.into()).await.is_some());
        let heartbeat = request(HEARTBEAT);
        assert!(turn(&answers, HEARTBEAT, &heartbeat).await.is_none());
        let all = metadata_of(0);
        let mut second = pin!(turn(&answers, METADATA, &all));
        assert!(at_once(second.as_mut()).await.is_none());
    }
}
