//! The cluster of one client: which broker a request goes to, the metadata cache, and how it is refreshed.
//!
//! All futures here run on the client's background thread. A broker that cannot be reached is reported once,
//! and again only after it has come back.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use logcore_protocol::{ErrorCode, Struct, Value};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use crate::api::{self, Api};
use crate::config::ClientConfig;
use crate::connection::{Body, Connection};
use crate::connections::{Connections, Purpose};
use crate::error::{ClientError, Result, milliseconds};
use crate::metadata::{Metadata, Topic};
use crate::reporter::{Lasting, Reporter};

/// Which broker a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// The broker with this id.
    Broker(i32),
    /// The cluster's controller.
    Controller,
    /// Any broker; the bootstrap addresses when none is known.
    Any,
}

/// Metadata of a topic that stays missing is asked for ever more rarely: after 16 rounds, every 16 retry
/// backoffs.
const UNSETTLED_ROUNDS_MAX: u32 = 16;

/// See the module. Shared by a client's tasks.
pub struct Cluster {
    config: ClientConfig,
    connections: Connections,
    reporter: Arc<Reporter>,
    metadata: RwLock<Arc<Metadata>>,
    /// Counts the changes of `metadata`.
    version: watch::Sender<u64>,
    /// Topics that the background refresh asks about.
    tracked: Mutex<BTreeSet<Arc<str>>>,
    refresh_wanted: Notify,
    /// The addresses whose last connection attempt failed.
    down: Mutex<HashSet<String>>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Cluster")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// A cluster that nothing is known of yet.
    #[must_use]
    pub fn new(config: ClientConfig, reporter: Arc<Reporter>) -> Self {
        Self {
            config,
            connections: Connections::default(),
            reporter,
            metadata: RwLock::new(Arc::default()),
            version: watch::Sender::new(0),
            tracked: Mutex::new(BTreeSet::new()),
            refresh_wanted: Notify::new(),
            down: Mutex::new(HashSet::new()),
        }
    }

    /// The client's settings.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Where failures that are tried again are reported.
    pub fn reporter(&self) -> &Arc<Reporter> {
        &self.reporter
    }

    /// The metadata known now.
    pub fn metadata(&self) -> Arc<Metadata> {
        Arc::clone(&self.metadata.read())
    }

    /// Changes with each refresh.
    pub fn watch_metadata(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Adds a topic to those refreshed in the background. A new one asks for a refresh; `true` then.
    pub fn track(&self, topic: &Arc<str>) -> bool {
        let new = self.tracked.lock().insert(Arc::clone(topic));
        if new {
            self.refresh_soon();
        }
        new
    }

    /// Replaces the topics refreshed in the background.
    pub fn track_only(&self, topics: impl IntoIterator<Item = Arc<str>>) {
        let topics: BTreeSet<_> = topics.into_iter().collect();
        let mut tracked = self.tracked.lock();
        let new = topics.difference(&tracked).next().is_some();
        *tracked = topics;
        drop(tracked);
        if new {
            self.refresh_soon();
        }
    }

    /// Asks the background task for a refresh; many calls make one.
    pub fn refresh_soon(&self) {
        self.refresh_wanted.notify_one();
    }

    /// The background task: refreshes tracked topics when asked and every `metadata_refresh`. Never returns.
    pub async fn keep_fresh(self: Arc<Self>) {
        let mut unsettled_rounds = 0;
        let mut lasting = Lasting::default();
        loop {
            let asked = tokio::time::timeout(self.config.metadata_refresh, self.refresh_wanted.notified());
            let periodic = asked.await.is_err();
            let topics: Vec<Arc<str>> = self.tracked.lock().iter().cloned().collect();
            if topics.is_empty() && periodic {
                // Without topics only the brokers' addresses could be new, and no request needs them.
                continue;
            }
            let again = match self.refresh(Some(&topics)).await {
                Ok(fresh) => {
                    lasting.passed();
                    topics.iter().any(|name| is_unsettled(fresh.topics.get(name)))
                }
                Err(error) => {
                    // The connections report their own failures. An answer may also be one that does not
                    // decode.
                    if !error.is_retriable() && lasting.failed(&error, Instant::now()) {
                        self.reporter.report(error);
                    }
                    true
                }
            };
            unsettled_rounds = if again {
                (unsettled_rounds + 1).min(UNSETTLED_ROUNDS_MAX)
            } else {
                0
            };
            // Also limits how often the broker is asked, however often a refresh is asked for.
            tokio::time::sleep(self.config.retry_backoff * 2_u32.pow(unsettled_rounds / 4)).await;
            if again {
                self.refresh_soon();
            }
        }
    }

    /// Asks any broker about `topics` (`None`: all). Merges its answer into the cache, and returns it.
    ///
    /// # Errors
    /// No broker answers, or the answer does not decode.
    pub async fn refresh(&self, topics: Option<&[Arc<str>]>) -> Result<Arc<Metadata>> {
        self.refresh_with(topics, self.config.allow_auto_create).await
    }

    /// [`Cluster::refresh`]; `create`: the broker may create a missing topic.
    ///
    /// # Errors
    /// As [`Cluster::refresh`].
    pub async fn refresh_with(&self, topics: Option<&[Arc<str>]>, create: bool) -> Result<Arc<Metadata>> {
        let connection = self.connection(Target::Any, Purpose::General).await?;
        let version = connection.version(api::METADATA)?;
        let mut message = api::request(api::METADATA);
        match topics {
            None => {
                message.set("topics", Value::Null);
            }
            Some(topics) => {
                for name in topics {
                    let topic = message.element("topics").with("name", &**name);
                    message.push("topics", topic);
                }
            }
        }
        if version >= 4 {
            message.set("allow_auto_topic_creation", create);
        }
        let response = self
            .call(&connection, api::METADATA, version, message, Duration::ZERO)
            .await?;
        let fresh = Arc::new(Metadata::from_response(&response));
        {
            let mut cache = self.metadata.write();
            let mut merged = Metadata::clone(&cache);
            merged.merge(Metadata::clone(&fresh));
            *cache = Arc::new(merged);
        }
        self.version.send_modify(|version| *version += 1);
        Ok(fresh)
    }

    /// [`Cluster::refresh_with`], tried again until `timeout` has passed.
    ///
    /// # Errors
    /// The last attempt's.
    pub async fn refresh_within(
        &self,
        topics: Option<&[Arc<str>]>,
        create: bool,
        timeout: Duration,
    ) -> Result<Arc<Metadata>> {
        let deadline = Instant::now() + timeout;
        let mut last = None;
        loop {
            match tokio::time::timeout_at(deadline.into(), self.refresh_with(topics, create)).await {
                Ok(Ok(metadata)) => return Ok(metadata),
                Ok(Err(error)) if !error.is_retriable() => return Err(error),
                Ok(Err(error)) => last = Some(error),
                Err(_) => {
                    return Err(last.unwrap_or(ClientError::TimedOut {
                        what: "asking for the cluster's metadata".into(),
                        timeout_ms: milliseconds(timeout),
                    }));
                }
            }
            tokio::time::sleep(self.config.retry_backoff).await;
        }
    }

    /// Sends one request on a connection and decodes its response. `extra`, the time that the request asks
    /// the broker to wait, is added to the request timeout.
    ///
    /// # Errors
    /// The connection's end, no answer in time, or bytes that do not decode.
    pub(crate) async fn call(
        &self,
        connection: &Connection,
        api: Api,
        version: i16,
        message: Struct,
        extra: Duration,
    ) -> Result<Value> {
        let message = Value::Struct(message);
        let pending = connection.send(api.key, version, &Body::Message(&message, 256))?;
        let answer = pending.answer(self.config.request_timeout + extra).await?;
        api::decode(api, version, &answer)
    }

    /// Sends an encoded body of any API and returns the response's body.
    ///
    /// # Errors
    /// The broker cannot be reached, the connection's end, or no answer within `timeout`.
    pub async fn raw_request(
        &self,
        target: Target,
        purpose: Purpose,
        api_key: i16,
        version: i16,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Bytes> {
        let started = Instant::now();
        let connection = self.connection_within(target, purpose, timeout).await?;
        let left = timeout
            .saturating_sub(started.elapsed())
            .max(Duration::from_millis(1));
        connection
            .send(api_key, version, &Body::Encoded(body))?
            .answer(left)
            .await
    }

    /// The versions of an API that a broker serves.
    ///
    /// # Errors
    /// The broker cannot be reached within `timeout`.
    pub async fn served(
        &self,
        target: Target,
        purpose: Purpose,
        api_key: i16,
        timeout: Duration,
    ) -> Result<Option<(i16, i16)>> {
        let connection = self.connection_within(target, purpose, timeout).await?;
        Ok(connection.served(api_key))
    }

    async fn connection_within(
        &self,
        target: Target,
        purpose: Purpose,
        timeout: Duration,
    ) -> Result<Arc<Connection>> {
        match tokio::time::timeout(timeout, self.connection(target, purpose)).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::TimedOut {
                what: "connecting to a broker".into(),
                timeout_ms: milliseconds(timeout),
            }),
        }
    }

    /// An open connection to the target; makes one attempt if there is none.
    ///
    /// # Errors
    /// The attempt failed, or the target is not known.
    pub async fn connection(&self, target: Target, purpose: Purpose) -> Result<Arc<Connection>> {
        let id = match target {
            Target::Any => return self.any_connection(purpose).await,
            Target::Controller => match self.metadata().controller {
                id if id >= 0 && !self.metadata().brokers.is_empty() => id,
                // Boxed because the future is recursive: a refresh needs a connection.
                _ => Box::pin(self.refresh(Some(&[]))).await?.controller,
            },
            Target::Broker(id) => id,
        };
        let mut known = self.metadata().broker(id).cloned();
        if known.is_none() {
            Box::pin(self.refresh(Some(&[]))).await?;
            known = self.metadata().broker(id).cloned();
        }
        let name = format!("broker {id}");
        match known {
            Some(broker) => {
                self.reporter.request_answered(&name, "connecting");
                self.connect(&broker.host, broker.port, purpose).await
            }
            None => {
                let error = ClientError::Transport {
                    broker: name.clone(),
                    what: "the cluster's metadata does not have this broker; it may be down".to_owned(),
                };
                self.reporter.request_failed(&name, "connecting", &error);
                Err(error)
            }
        }
    }

    async fn any_connection(&self, purpose: Purpose) -> Result<Arc<Connection>> {
        let candidates = self.candidates();
        for (host, port) in &candidates {
            if let Some(connection) = self.connections.open(host, *port, purpose) {
                return Ok(connection);
            }
        }
        let mut last = ClientError::Config("bootstrap.servers is empty".into());
        let mut candidates = candidates;
        // An address that failed waits for its backoff; the others are tried before it.
        candidates.sort_by_key(|(host, port)| self.down.lock().contains(&format!("{host}:{port}")));
        for (host, port) in &candidates {
            match self.connect(host, *port, purpose).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        let tried: Vec<String> = candidates
            .iter()
            .map(|(host, port)| format!("{host}:{port}"))
            .collect();
        Err(ClientError::AllBrokersDown {
            tried: tried.join(", "),
            last: last.to_string(),
        })
    }

    /// Known brokers, then the bootstrap addresses that are not among them.
    fn candidates(&self) -> Vec<(String, u16)> {
        let metadata = self.metadata();
        let mut all: Vec<(String, u16)> = metadata
            .brokers
            .iter()
            .map(|broker| (broker.host.clone(), broker.port))
            .collect();
        for address in &self.config.bootstrap {
            if !all.contains(address) {
                all.push(address.clone());
            }
        }
        all
    }

    async fn connect(&self, host: &str, port: u16, purpose: Purpose) -> Result<Arc<Connection>> {
        let attempt = self
            .connections
            .connect(host, port, purpose, &self.config, &self.reporter);
        match attempt.await {
            Ok(connection) => {
                self.down.lock().remove(connection.peer());
                Ok(connection)
            }
            Err(error) => {
                self.went_down(&format!("{host}:{port}"), &error);
                Err(error)
            }
        }
    }

    fn went_down(&self, peer: &str, error: &ClientError) {
        // The broker may have moved, and its partitions may have other leaders.
        self.refresh_soon();
        let candidates = self.candidates();
        let mut down = self.down.lock();
        if !down.insert(peer.to_owned()) {
            return;
        }
        let all_down = candidates
            .iter()
            .all(|(host, port)| down.contains(&format!("{host}:{port}")));
        drop(down);
        self.reporter.report(error.clone());
        if all_down {
            let tried: Vec<String> = candidates
                .iter()
                .map(|(host, port)| format!("{host}:{port}"))
                .collect();
            self.reporter.report(ClientError::AllBrokersDown {
                tried: tried.join(", "),
                last: error.to_string(),
            });
        }
    }
}

/// Whether a topic is missing, in creation or has a partition without leader, so that it is asked about again
/// soon.
fn is_unsettled(topic: Option<&Arc<Topic>>) -> bool {
    topic.is_none_or(|topic| {
        ErrorCode(topic.error).is_retriable() || topic.partitions.iter().any(|partition| partition.leader < 0)
    })
}
