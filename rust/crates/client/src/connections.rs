//! A client's connections: one per broker and purpose, made on demand.
//!
//! One attempt at a time per broker and purpose, with a growing pause after failures. All futures run on the
//! client's background thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::error::Result;
use crate::reporter::Reporter;

/// What a connection is for. A broker answers a connection's requests in order, so requests that wait at the
/// broker (Fetch, JoinGroup) have connections of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Metadata, Produce, ListOffsets, administration.
    General,
    /// Fetch.
    Fetch,
    /// Fetch beside one that waits.
    SecondFetch,
    /// Group membership and offsets.
    Group,
}

/// One address and purpose.
#[derive(Debug, Default)]
struct Slot {
    connection: Option<Arc<Connection>>,
    failures: u32,
    not_before: Option<Instant>,
}

type SlotKey = (String, u16, Purpose);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    slots: Mutex<HashMap<SlotKey, Arc<tokio::sync::Mutex<Slot>>>>,
}

impl Connections {
    fn slot(&self, host: &str, port: u16, purpose: Purpose) -> Arc<tokio::sync::Mutex<Slot>> {
        let mut slots = self.slots.lock();
        Arc::clone(slots.entry((host.to_owned(), port, purpose)).or_default())
    }

    /// The connection, if it is open.
    pub(crate) fn open(&self, host: &str, port: u16, purpose: Purpose) -> Option<Arc<Connection>> {
        let slot = self.slot(host, port, purpose);
        let slot = slot.try_lock().ok()?;
        slot.connection.clone().filter(|connection| connection.is_open())
    }

    /// The open connection, or a new one: one attempt, after the backoff of earlier failures.
    pub(crate) async fn connect(
        &self,
        host: &str,
        port: u16,
        purpose: Purpose,
        config: &ClientConfig,
        reporter: &Arc<Reporter>,
    ) -> Result<Arc<Connection>> {
        let slot = self.slot(host, port, purpose);
        let mut slot = slot.lock().await;
        if let Some(connection) = slot.connection.as_ref().filter(|connection| connection.is_open()) {
            return Ok(Arc::clone(connection));
        }
        slot.connection = None;
        if let Some(not_before) = slot.not_before {
            tokio::time::sleep_until(not_before.into()).await;
        }
        match Connection::open(host, port, config, Arc::clone(reporter)).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *slot = Slot {
                    connection: Some(Arc::clone(&connection)),
                    ..Slot::default()
                };
                Ok(connection)
            }
            Err(error) => {
                slot.failures += 1;
                slot.not_before = Some(Instant::now() + backoff(config, slot.failures));
                Err(error)
            }
        }
    }
}

fn backoff(config: &ClientConfig, failures: u32) -> Duration {
    let doubled = config.reconnect_backoff * 2_u32.pow(failures.saturating_sub(1).min(10));
    doubled.min(config.reconnect_backoff_max)
}
