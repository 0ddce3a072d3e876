//! The checks of what lies beside the partitions: the names in a log directory, and its checkpoints.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::error::StorageError;
use crate::files;
use crate::files::checkpoints::{
    CLEANER_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, Offsets, RECOVERY_POINT_FILE, read_offsets,
};
use crate::files::lock::LOCK_FILE;
use crate::files::metadata::{CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE, MetaProperties};

use super::findings::Findings;
use super::partition::PartitionCheck;
use super::target::{Target, partition_key};
use super::{Finding, Kind};

impl Target {
    /// Checks the names and files beside the partitions of a log directory, or the checkpoints of a
    /// standalone log. Checks nothing when one partition of a log directory is verified.
    pub(crate) fn check_beside(&self, checks: &[Option<PartitionCheck>], findings: &mut Findings) {
        if self.log_dir.as_deref() == Some(&self.path) {
            self.check_names(findings);
            let path = self.path.join(META_PROPERTIES_FILE);
            if let Err(error) = MetaProperties::read(&self.path) {
                let remedy = "write it again: broker.id, cluster.id and version=0";
                findings.error(Kind::MetaProperties, &path, &error, remedy);
            }
        } else if self.is_one_of_many() {
            return;
        }
        self.check_checkpoints(&self.ends(checks), findings);
    }

    fn check_checkpoints(&self, ends: &HashMap<(String, i32), i64>, findings: &mut Findings) {
        for (name, what) in [
            (RECOVERY_POINT_FILE, "everything before it was on disk"),
            (HIGH_WATERMARK_FILE, "everything before it was acknowledged"),
            (LOG_START_FILE, "the log begins there"),
            (CLEANER_FILE, "everything before it was cleaned"),
        ] {
            let path = self.checkpoint_dir().join(name);
            match read_offsets(&path) {
                Ok(_) if self.live => {}
                Ok(offsets) => compare_ends(&path, &offsets, ends, what, findings),
                Err(error) => {
                    let remedy = "`logcore repair --apply` moves it to the backup; every log is then \
                        recovered from its start";
                    findings.error(Kind::Checkpoint, &path, &error, remedy);
                }
            }
        }
    }

    /// The log end offset of each partition that is whole and not in use.
    fn ends(&self, checks: &[Option<PartitionCheck>]) -> HashMap<(String, i32), i64> {
        let whole = self.partitions.iter().zip(checks);
        whole
            .filter(|(partition, _)| !partition.live)
            .filter_map(|(partition, check)| {
                let check = check.as_ref().filter(|check| check.cut.is_none())?;
                Some((partition.key.clone()?, check.log_end))
            })
            .collect()
    }

    fn check_names(&self, findings: &mut Findings) {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) => {
                let error = StorageError::io("list", &self.path)(error);
                findings.error(Kind::Unreadable, &self.path, &error, "");
                return;
            }
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_dir = files::is_dir(&entry);
            if is_dir && partition_key(&name).is_some() || is_known(&name) {
                continue;
            }
            if name.ends_with(".tmp") || (is_dir && name.ends_with("-delete")) {
                if !self.live {
                    findings.file(
                        Kind::Unfinished,
                        &path,
                        "an interrupted step left it",
                        "the next start removes or replaces it",
                    );
                }
                continue;
            }
            // `LogManager.loadLogs` takes each directory as a partition, and ignores files.
            let (what, remedy) = if is_dir {
                (
                    "no partition directory has this name",
                    "move it out: Apache Kafka does not start with a directory that it does not know",
                )
            } else {
                (
                    "no file of a Kafka log directory has this name",
                    "Apache Kafka ignores it; move it out if nothing else needs it here",
                )
            };
            findings.file(Kind::StrayName, &path, what, remedy);
        }
    }
}

fn compare_ends(
    path: &Path,
    offsets: &Offsets,
    ends: &HashMap<(String, i32), i64>,
    what: &str,
    findings: &mut Findings,
) {
    const CORRECT: &str = "correct the offset with `logcore repair --apply`";
    let is_cleaner_file = path.ends_with(CLEANER_FILE);
    for (key, offset) in offsets {
        let (topic, partition) = key;
        let (what, remedy) = if *offset < 0 {
            let what = format!("offset {offset} of {topic}-{partition} is below 0");
            (what, CORRECT.to_owned())
        } else if let Some(end) = ends.get(key).filter(|end| *offset > **end) {
            let what = format!("{topic}-{partition} ends at offset {end}, but {what}: offset {offset}");
            let remedy = if is_cleaner_file {
                "the cleaner starts again at the log's start".to_owned()
            } else {
                format!(
                    "records at the log's end are lost: copy the partition from another replica, or {CORRECT}"
                )
            };
            (what, remedy)
        } else {
            continue;
        };
        findings.push(Finding {
            kind: if is_cleaner_file {
                Kind::CleanerCheckpoint
            } else {
                Kind::Checkpoint
            },
            path: path.to_path_buf(),
            position: None,
            offset: Some(*offset),
            what,
            remedy,
        });
    }
}

/// Whether a file or directory that is not a partition belongs into a log directory. Of the last four names,
/// the first is of KRaft mode, the second of remote storage, the third of our broker's session, the fourth of
/// the file system.
fn is_known(name: &str) -> bool {
    [
        META_PROPERTIES_FILE,
        RECOVERY_POINT_FILE,
        HIGH_WATERMARK_FILE,
        LOG_START_FILE,
        CLEANER_FILE,
        CLEAN_SHUTDOWN_FILE,
        LOCK_FILE,
        "bootstrap.checkpoint",
        "remote-log-index-cache",
        "coordinator-session",
        "lost+found",
    ]
    .contains(&name)
}
