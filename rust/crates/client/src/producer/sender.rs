//! Sends the accumulator's batches. One task decides, one task per broker sends in order, and one per request
//! waits for its answer, all on the client's background thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use logcore_protocol::{ErrorCode, Value};
use tokio::sync::mpsc;

use super::Shared;
use super::batch::ProducerId;
use super::dispatch::{Outcome, Outgoing};
use crate::api::{self, Fields};
use crate::cluster::Target;
use crate::connection::{Body, Connection, Pending};
use crate::connections::Purpose;
use crate::error::{ClientError, Result};

type Requests<T> = mpsc::UnboundedSender<Vec<Outgoing<T>>>;

/// The longest time without a look at the accumulator. Each change also wakes the sender.
const IDLE: Duration = Duration::from_secs(60);

/// The deciding task. Ends when the client's thread stops.
pub(super) async fn run<T: Send + 'static>(shared: Arc<Shared<T>>) {
    let mut brokers: HashMap<i32, Requests<T>> = HashMap::new();
    let mut metadata_changed = shared.cluster.watch_metadata();
    let mut asking_for_id = false;
    let (id_sender, mut id_answers) = mpsc::unbounded_channel::<()>();
    loop {
        let now = Instant::now();
        let metadata = shared.cluster.metadata();
        let drained = {
            let mut accumulator = shared.accumulator.lock();
            let mut reports = Vec::new();
            if metadata_changed.has_changed().unwrap_or(false) {
                metadata_changed.mark_unchanged();
                reports = accumulator.on_metadata(&metadata, now);
            }
            let mut drained = accumulator.drain(&metadata, now);
            drained.reports.splice(0..0, reports);
            drained
        };
        shared.deliver(drained.reports);
        for failure in drained.lasting {
            shared.cluster.reporter().report(failure);
        }
        if drained.needs_metadata {
            shared.cluster.refresh_soon();
        }
        if drained.adds_partitions {
            shared.partitions_to_add.notify_all();
        }
        // The producer id of transactions comes from their coordinator, by way of `Transactions`.
        let asks = drained.needs_producer_id && shared.config.transactional_id.is_none();
        if asks && !asking_for_id {
            asking_for_id = true;
            tokio::spawn(obtain_producer_id(Arc::clone(&shared), id_sender.clone()));
        }
        let sent = !drained.requests.is_empty();
        for (leader, batches) in drained.requests {
            let queue = brokers.entry(leader).or_insert_with(|| {
                let (sender, receiver) = mpsc::unbounded_channel();
                tokio::spawn(send_to_broker(Arc::clone(&shared), leader, receiver));
                sender
            });
            // The receiver lives as long as the runtime.
            let _ = queue.send(batches);
        }
        if sent {
            // The same partitions may have another batch ready; the broker tasks begin meanwhile.
            tokio::task::yield_now().await;
            continue;
        }
        let until = drained.next.unwrap_or(now + IDLE).min(now + IDLE);
        tokio::select! {
            () = shared.wake.notified() => {}
            _ = metadata_changed.changed() => metadata_changed.mark_changed(),
            Some(()) = id_answers.recv() => asking_for_id = false,
            () = tokio::time::sleep_until(until.into()) => {}
        }
    }
}

/// Asks for a producer id once, and wakes the deciding task.
async fn obtain_producer_id<T: Send + 'static>(shared: Arc<Shared<T>>, done: mpsc::UnboundedSender<()>) {
    match ask_producer_id(&shared).await {
        Ok(producer) => shared.accumulator.lock().set_producer_id(producer),
        Err(error) => {
            if error.is_retriable() {
                let mut accumulator = shared.accumulator.lock();
                accumulator.producer_id_failed(error, Instant::now());
            } else {
                // The records need an id, and waiting would not bring one.
                let reports = shared.accumulator.lock().give_up(&error);
                shared.deliver(reports);
                shared.cluster.reporter().report(error);
                shared.batches_settled();
            }
            tokio::time::sleep(shared.cluster.config().retry_backoff).await;
        }
    }
    let _ = done.send(());
}

async fn ask_producer_id<T>(shared: &Shared<T>) -> Result<ProducerId> {
    let connection = shared.cluster.connection(Target::Any, Purpose::General).await?;
    let version = connection.version(api::INIT_PRODUCER_ID)?;
    let message = api::request(api::INIT_PRODUCER_ID)
        .with("transactional_id", Value::Null)
        .with("transaction_timeout_ms", i32::MAX);
    let cluster = &shared.cluster;
    let response = cluster
        .call(
            &connection,
            api::INIT_PRODUCER_ID,
            version,
            message,
            Duration::ZERO,
        )
        .await?;
    match response.i16("error_code") {
        0 => Ok(ProducerId {
            id: response.i64("producer_id"),
            epoch: response.i16("producer_epoch"),
        }),
        code => Err(ClientError::Broker {
            code,
            what: "InitProducerId".into(),
        }),
    }
}

/// Sends one broker's requests in their order.
async fn send_to_broker<T: Send + 'static>(
    shared: Arc<Shared<T>>,
    leader: i32,
    mut requests: mpsc::UnboundedReceiver<Vec<Outgoing<T>>>,
) {
    while let Some(mut batches) = requests.recv().await {
        match send_request(&shared, leader, &mut batches).await {
            Ok(Some((pending, version))) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let timeout = shared.cluster.config().request_timeout + shared.config.ack_timeout;
                    let answer = pending.answer(timeout).await;
                    let answer = answer.and_then(|body| {
                        api::decode(api::PRODUCE, version, &body).map_err(|error| {
                            let what = format!("its Produce response does not decode: {error}");
                            ClientError::BadResponse {
                                broker: format!("broker {leader}"),
                                what,
                            }
                        })
                    });
                    finish(
                        &shared,
                        leader,
                        batches,
                        answer.as_ref().map_err(ClientError::clone),
                    );
                });
            }
            Ok(None) => finish_unanswered(&shared, leader, batches),
            Err(error) => finish(&shared, leader, batches, Err(error)),
        }
    }
}

/// Encodes the batches and gives the request to the connection. `None`: no answer comes (acks=0).
async fn send_request<T>(
    shared: &Shared<T>,
    leader: i32,
    batches: &mut [Outgoing<T>],
) -> Result<Option<(Pending, i16)>> {
    let connection = shared
        .cluster
        .connection(Target::Broker(leader), Purpose::General)
        .await?;
    let version = connection.version(api::PRODUCE)?;
    let mut encoded: Vec<(Arc<str>, i32, Bytes)> = Vec::with_capacity(batches.len());
    for outgoing in batches.iter_mut() {
        encoded.push((
            Arc::clone(&outgoing.topic),
            outgoing.partition,
            outgoing.batch.encode()?,
        ));
    }
    send(shared, &connection, version, encoded)
}

fn send<T>(
    shared: &Shared<T>,
    connection: &Connection,
    version: i16,
    mut encoded: Vec<(Arc<str>, i32, Bytes)>,
) -> Result<Option<(Pending, i16)>> {
    encoded.sort_by(|one, other| one.0.cmp(&other.0));
    let size: usize = encoded
        .iter()
        .map(|(topic, _, batch)| batch.len() + topic.len() + 32)
        .sum();
    let timeout = i32::try_from(shared.config.ack_timeout.as_millis()).unwrap_or(i32::MAX);
    let transactional_id = match &shared.config.transactional_id {
        Some(id) => Value::from(id.as_str()),
        None => Value::Null,
    };
    let mut message = api::request(api::PRODUCE)
        .with("transactional_id", transactional_id)
        .with("acks", shared.config.acks)
        .with("timeout_ms", timeout);
    let mut batches = encoded.into_iter().peekable();
    while let Some((topic, partition, batch)) = batches.next() {
        let mut data = message.element("topic_data").with("name", &*topic);
        let mut next = Some((partition, batch));
        while let Some((partition, batch)) = next {
            let element = data
                .element("partition_data")
                .with("index", partition)
                .with("records", batch);
            data.push("partition_data", element);
            next = batches
                .next_if(|(name, _, _)| *name == topic)
                .map(|(_, partition, batch)| (partition, batch));
        }
        message.push("topic_data", data);
    }
    let message = Value::Struct(message);
    let body = Body::Message(&message, size);
    if shared.config.acks == 0 {
        connection.send_unanswered(api::PRODUCE.key, version, &body)?;
        return Ok(None);
    }
    Ok(Some((
        connection.send(api::PRODUCE.key, version, &body)?,
        version,
    )))
}

/// Settles every batch of a request by its answer.
fn finish<T>(
    shared: &Shared<T>,
    leader: i32,
    batches: Vec<Outgoing<T>>,
    answer: std::result::Result<&Value, ClientError>,
) {
    let mut outcomes: HashMap<(String, i32), Outcome> = HashMap::new();
    if let Ok(response) = &answer {
        for topic in response.field("responses").structs() {
            for partition in topic.field("partition_responses").structs() {
                let key = (topic.text("name").to_owned(), partition.i32("index"));
                let outcome = outcome(&key, partition);
                outcomes.insert(key, outcome);
            }
        }
    }
    let now = Instant::now();
    let mut reports = Vec::new();
    let mut stale = answer.is_err();
    {
        let mut accumulator = shared.accumulator.lock();
        accumulator.request_done(leader);
        for outgoing in batches {
            let outcome = match &answer {
                Ok(_) => outcomes
                    .remove(&(outgoing.topic.to_string(), outgoing.partition))
                    .unwrap_or_else(|| Outcome::Failed(unanswered(&outgoing))),
                Err(error) => Outcome::Failed(error.clone()),
            };
            stale |= matches!(&outcome, Outcome::Failed(ClientError::Broker { code, .. })
                if ErrorCode(*code).needs_metadata());
            reports.extend(accumulator.batch_done(outgoing, outcome, now));
        }
    }
    if stale {
        shared.cluster.refresh_soon();
    }
    shared.deliver(reports);
    shared.batches_settled();
}

fn outcome(key: &(String, i32), partition: &logcore_protocol::Struct) -> Outcome {
    match partition.i16("error_code") {
        0 => Outcome::Written(partition.i64("base_offset"), partition.i64("log_append_time_ms")),
        code => {
            let detail = partition.text("error_message");
            let separator = if detail.is_empty() { "" } else { ": " };
            let what = format!("{}-{}{separator}{detail}", key.0, key.1);
            Outcome::Failed(ClientError::Broker { code, what })
        }
    }
}

/// The response does not name the batch, so it is sent again.
fn unanswered<T>(outgoing: &Outgoing<T>) -> ClientError {
    ClientError::BadResponse {
        broker: format!("leader of {}-{}", outgoing.topic, outgoing.partition),
        what: "its Produce response does not name the partition".into(),
    }
}

fn finish_unanswered<T>(shared: &Shared<T>, leader: i32, batches: Vec<Outgoing<T>>) {
    let now = Instant::now();
    let mut accumulator = shared.accumulator.lock();
    accumulator.request_done(leader);
    let reports: Vec<_> = batches
        .into_iter()
        .filter_map(|outgoing| accumulator.batch_done(outgoing, Outcome::Written(-1, -1), now))
        .collect();
    drop(accumulator);
    shared.deliver(reports);
    shared.batches_settled();
}
