//! One Fetch to a leader, and what its response means for each partition.
//!
//! Owned by a fetcher's thread. Appends and truncations run on that thread, between two requests.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use logcore_client::api::Api;
use logcore_client::connection::{Body, Connection};
use logcore_client::{ClientConfig, ClientError, Reporter};
use logcore_protocol::{ErrorCode, Value};

use super::address::BrokerAddress;
use super::following::{Applied, Context, Following};
use super::messages::{self, EARLIEST, FETCH, Fetched, LATEST, LIST_OFFSETS, Replica, WITHOUT_IDS};
use super::session::{Asked, Key, Session, Turn};
use crate::config::ServerConfig;
use crate::partitions::registry::TopicRef;

/// The longest time to connect (`socket.connection.setup.timeout.ms`).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that a leader may hold a request which opens a session.
const OPENING_WAIT: Duration = Duration::from_millis(10);
/// About the bytes of one partition in a request.
const PARTITION_BYTES: usize = 64;
/// The bytes of a response that are not records.
const ENVELOPE_MAX: usize = 16 << 20;

/// The connection to a leader, and the fetch session there.
pub(super) struct Link {
    context: Arc<Context>,
    client: ClientConfig,
    reporter: Arc<Reporter>,
    connection: Option<Connection>,
    session: Session,
}

/// Partitions whose offset the leader does not have.
type OutOfRange = Vec<(Arc<Following>, Asked)>;

impl Link {
    pub(super) fn new(context: Arc<Context>, number: usize) -> Self {
        let shared = &context.shared;
        let client = ClientConfig {
            // Kafka's form.
            client_id: format!("broker-{}-fetcher-{number}", shared.node_id),
            request_timeout: shared.config.replica.socket_timeout,
            connect_timeout: shared.config.replica.socket_timeout.min(CONNECT_TIMEOUT),
            receive_bytes_max: response_max(&shared.config),
            bootstrap: Vec::new(),
            ..ClientConfig::default()
        };
        Self {
            context,
            client,
            reporter: Arc::new(Reporter::new(|| {})),
            connection: None,
            session: Session::default(),
        }
    }

    /// Ends the connection. The leader forgets the session when it needs the memory.
    pub(super) fn close(&mut self) {
        self.connection = None;
        self.session.restart();
    }

    /// After a failure, of which it is not known what the leader did.
    pub(super) fn restart(&mut self) {
        self.close();
        // The fetcher logs its failures itself.
        while self.reporter.next().is_some() {}
    }

    /// Asks for partitions and applies the answers. A leader without new records answers after `wait`. At the
    /// end of `patience` a Fetch that it may still hold is given up.
    ///
    /// # Errors
    /// Why the whole request failed. The link must be restarted.
    pub(super) async fn exchange(
        &mut self,
        address: &BrokerAddress,
        due: Vec<(Arc<Following>, Asked)>,
        wait: Duration,
        patience: impl Future<Output = ()>,
    ) -> Result<(), String> {
        let connection = match self.connection.take().filter(Connection::is_open) {
            Some(open) => open,
            None => {
                let reporter = Arc::clone(&self.reporter);
                let opened = Connection::open(&address.host, address.port, &self.client, reporter);
                self.session.restart();
                opened.await.map_err(text)?
            }
        };
        let wanted: Vec<_> = due.iter().map(|(one, asked)| (one.key(), *asked)).collect();
        let due: HashMap<Key, (Arc<Following>, Asked)> = due
            .into_iter()
            .map(|(one, asked)| (one.key(), (one, asked)))
            .collect();
        let has_ids = due.keys().all(|(topic, _)| matches!(topic, TopicRef::Id(_)));
        let version = connection.version(FETCH).map_err(text)?;
        let version = if has_ids { version } else { WITHOUT_IDS };
        let turn = self.session.next(wanted, version > WITHOUT_IDS);
        // A request that is given up leaves the session behind that it opens.
        let is_held = !turn.opens_session;
        let wait = if is_held { wait } else { wait.min(OPENING_WAIT) };
        let message = messages::fetch(
            version,
            self.replica(),
            &self.context.shared.config.replica,
            &turn,
            wait,
        );
        let hint = PARTITION_BYTES * (1 + turn.wanted.len());
        let answer = self.ask(&connection, FETCH, version, &message, hint);
        let body = tokio::select! {
            body = answer => body?,
            () = patience, if is_held => {
                self.restart();
                return Ok(());
            }
        };
        drop(message);
        let fetched = messages::fetched(version, &body).map_err(text)?;
        drop(body);
        if self.take_session(&turn, &fetched)? {
            let out_of_range = self.apply(&due, fetched);
            if !out_of_range.is_empty() {
                self.ask_for_bounds(&connection, out_of_range).await?;
            }
        }
        self.connection = Some(connection);
        Ok(())
    }

    fn replica(&self) -> Replica {
        Replica {
            id: self.context.shared.node_id,
            broker_epoch: self.context.shared.broker_epoch(),
        }
    }

    async fn ask(
        &self,
        connection: &Connection,
        api: Api,
        version: i16,
        message: &Value,
        hint: usize,
    ) -> Result<Bytes, String> {
        let sent = connection.send(api.key, version, &Body::Message(message, hint));
        let pending = sent.map_err(text)?;
        let answered = pending.answer(self.client.request_timeout).await;
        answered.map_err(|error| match error {
            ClientError::ResponseTooLarge { size, limit, .. } => format!(
                "a response of {size} bytes is above the limit of {limit}: raise socket.request.max.bytes to \
                 that of the broker that took the batch"
            ),
            error => error.to_string(),
        })
    }

    /// Takes the response's part about the session. Returns whether its partitions count.
    fn take_session(&mut self, turn: &Turn, fetched: &Fetched) -> Result<bool, String> {
        match fetched.code {
            ErrorCode::NONE => {}
            ErrorCode::FETCH_SESSION_ID_NOT_FOUND if !turn.is_full() => {
                self.session.forget();
                return Ok(false);
            }
            ErrorCode::INVALID_FETCH_SESSION_EPOCH | ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR
                if !turn.is_full() =>
            {
                self.session.restart();
                return Ok(false);
            }
            code => return Err(format!("it answers a Fetch with {}", code.name())),
        }
        let unknown = fetched.partitions.iter().find(|(key, _)| !self.session.has(key));
        if unknown.is_some() || (turn.is_full() && fetched.partitions.len() != self.session.len()) {
            return Err("its response names other partitions than the request".to_owned());
        }
        self.session.answered(turn, fetched.session_id);
        Ok(true)
    }

    fn apply(&self, due: &HashMap<Key, (Arc<Following>, Asked)>, fetched: Fetched) -> OutOfRange {
        let mut out_of_range = Vec::new();
        for (key, answer) in fetched.partitions {
            let Some((following, asked)) = due.get(&key) else {
                continue;
            };
            match self.guarded(following, || following.apply(&self.context, asked, &answer)) {
                Some(Applied::OutOfRange) => out_of_range.push((Arc::clone(following), *asked)),
                Some(Applied::Done) | None => {}
            }
        }
        out_of_range
    }

    /// A panic ends one partition's fetching and no other's.
    fn guarded<T>(&self, following: &Following, work: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(work));
        if done.is_err() {
            following.panicked(&self.context);
        }
        done.ok()
    }

    /// Learns where the leader's logs end and begin, and cuts the partitions or begins them anew
    /// (`fetchOffsetAndTruncate`).
    async fn ask_for_bounds(&self, connection: &Connection, all: OutOfRange) -> Result<(), String> {
        let ends = self.list_offsets(connection, LATEST, &all).await?;
        let behind = all.into_iter().zip(ends).filter(|((following, asked), end)| {
            let take = || following.take_leader_end(&self.context, asked, *end);
            self.guarded(following, take) == Some(true)
        });
        let behind: OutOfRange = behind.map(|(one, _)| one).collect();
        if behind.is_empty() {
            return Ok(());
        }
        let starts = self.list_offsets(connection, EARLIEST, &behind).await?;
        for ((following, asked), start) in behind.into_iter().zip(starts) {
            let take = || following.take_leader_start(&self.context, &asked, start);
            self.guarded(&following, take);
        }
        Ok(())
    }

    /// The answers in the order of the partitions.
    async fn list_offsets(
        &self,
        connection: &Connection,
        timestamp: i64,
        all: &OutOfRange,
    ) -> Result<Vec<Result<i64, ErrorCode>>, String> {
        let version = connection.version(LIST_OFFSETS).map_err(text)?;
        let wanted = all.iter().map(|(following, _)| following.question());
        let message = messages::list_offsets(self.replica(), timestamp, wanted);
        let hint = PARTITION_BYTES * (1 + all.len());
        let body = self
            .ask(connection, LIST_OFFSETS, version, &message, hint)
            .await?;
        let mut listed = messages::listed(version, &body).map_err(text)?;
        let answers = all.iter().map(|(following, _)| {
            let (topic, index, _) = following.question();
            let answer = listed.remove(&(topic.to_owned(), index));
            answer.unwrap_or(Err(ErrorCode::UNKNOWN_SERVER_ERROR))
        });
        Ok(answers.collect())
    }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

/// The longest response: its records, or one batch, which came in one request to its leader.
fn response_max(config: &ServerConfig) -> usize {
    let records = config.replica.response_bytes_max as usize;
    records.max(config.request_bytes_max) + ENVELOPE_MAX
}
