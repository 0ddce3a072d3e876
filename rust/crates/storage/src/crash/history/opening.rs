//! Opening a log as a process does, in a broker's directory or without a broker.

use std::sync::Arc;

use super::leader::{Leader, Watermark};
use super::{History, PARTITION_DIR};
use crate::crash::model::Model;
use crate::error::{Result, StorageError};
use crate::log::Log;
use crate::log_dir::{LogDir, Opening, Partition};
use crate::standalone::StandaloneLog;

/// An open log, in a broker's directory or without a broker.
pub(super) enum Opened {
    Broker(Box<LogDir>, Arc<Partition>),
    Alone(Box<StandaloneLog>),
}

impl Opened {
    pub(super) fn log(&self) -> &Log {
        match self {
            Self::Broker(_, partition) => &partition.log,
            Self::Alone(log) => log,
        }
    }

    pub(super) fn close(&self) -> Result<()> {
        match self {
            Self::Broker(logs, _) => logs.close(),
            Self::Alone(log) => log.close(),
        }
    }
}

impl History {
    pub(super) fn open(&mut self) -> Result<Opened> {
        let root = self.disk.root().to_path_buf();
        if !self.broker {
            return Ok(Opened::Alone(Box::new(StandaloneLog::open(
                &root.join(PARTITION_DIR),
                true,
                self.config.clone(),
            )?)));
        }
        let config = self.config.clone();
        let config_for = move |_: &str| config.clone();
        let opening = Opening {
            replicated: self.leader.is_some(),
            ..Opening::new(&config_for)
        };
        let logs = LogDir::open_with(&root, 1, Some("cluster"), &opening)?;
        if let Some((_, error)) = logs.failures().first() {
            return Err(copy(error));
        }
        let partition = match logs.get("t", 0) {
            Some(partition) => partition,
            None => {
                if std::mem::take(&mut self.deleting) {
                    self.forget_everything();
                }
                logs.create("t", 0, [7; 16], self.config.clone())?
            }
        };
        self.deleting = false;
        Ok(Opened::Broker(Box::new(logs), partition))
    }

    pub(super) fn forget_everything(&mut self) {
        self.model = Model::default();
        self.watermark = Watermark::default();
        if let Some(leader) = &mut self.leader {
            *leader = Leader::first();
        }
        self.certain = 0;
        self.tally.deletions += 1;
    }

    /// Checks that an operation failed because of a fault.
    pub(super) fn check_refused(&mut self, operation: &str, error: &StorageError) {
        let expected = self.disk.is_dead()
            || self.disk.has_failed()
            || self.cut_short
            || (error.is_disk_full() && self.disk.is_full());
        assert!(expected, "{operation}: {error}");
        assert_eq!(error.kafka_code(), 56, "{operation}: {error}");
    }

    pub(super) fn log(&self) -> &Log {
        self.opened.as_ref().unwrap().log()
    }
}

/// A copy of an error, as far as the histories compare it.
fn copy(error: &StorageError) -> StorageError {
    match error {
        StorageError::Io { action, path, source } => {
            let source = match source.raw_os_error() {
                Some(code) => std::io::Error::from_raw_os_error(code),
                None => std::io::Error::other(source.to_string()),
            };
            StorageError::io(action, path)(source)
        }
        StorageError::Corrupt {
            path,
            position,
            reason,
        } => StorageError::Corrupt {
            path: path.clone(),
            position: *position,
            reason: reason.clone(),
        },
        other => panic!("unexpected: {other}"),
    }
}
