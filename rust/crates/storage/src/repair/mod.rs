//! Repair of a directory: cuts a log at its first damage, and rebuilds what can be rebuilt.
//!
//! A repair never makes up or alters a record. First it copies what it will cut off or remove to a backup
//! with a manifest, and flushes the backup. Then it changes the directory and verifies it again. Without
//! [`RepairOptions::apply`], [`repair`] only plans.
//!
//! | fault | repair |
//! |---|---|
//! | a torn tail | the `.log` file is cut after the last whole batch |
//! | damage before the tail | with [`RepairOptions::cut_at_corruption`], the same; later segments go |
//! | an index, a transaction index | rebuilt from the batches |
//! | a leader epoch file: unreadable, or contradicted by several batches | rebuilt, if the batches agree |
//! | a producer snapshot | removed; one at the log's end is written from the batches |
//! | `partition.metadata`, an unreadable checkpoint | removed: the broker writes it again |
//! | a checkpoint's offset after the log's end, or below 0 | set to the end, or to 0 |
//! | lost segments | none: only another replica has their records |
//!
//! With [`RepairOptions::apply`], the directory is locked before the first byte is read until the end, so no
//! process can use it meanwhile. A crash leaves the backup whole, and a directory that can be repaired again:
//! segments are removed from the last to the first, and only small files are written after the cut.

mod apply;
mod backup;
mod plan;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::error::{Result, StorageError};
use crate::files::lock::DirLock;
use crate::verify::{self, Finding, Progress, Target, VerifyOptions};

/// How to repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairOptions {
    /// Make the changes; otherwise only plan them.
    pub apply: bool,
    /// Also cut a log at damage in its middle. The log then loses the intact records after the cut.
    pub cut_at_corruption: bool,
    /// The directory of the backup; the default is `<name>.repair-<time>` next to the directory.
    pub backup_dir: Option<PathBuf>,
    /// How to read the directory.
    pub verify: VerifyOptions,
}

/// One step of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Cut a `.log` file at a position; `offset` is then the log end offset.
    Cut {
        path: PathBuf,
        position: u64,
        offset: i64,
        /// Bytes of `.log` files after the cut, in this segment and later ones.
        bytes: u64,
        /// Intact records in those bytes.
        records: u64,
        why: String,
    },
    /// Remove a file.
    Remove { path: PathBuf, why: String },
    /// Rebuild a file from the batches.
    Rebuild { path: PathBuf, why: String },
}

impl Action {
    /// The file's path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Cut { path, .. } | Self::Remove { path, .. } | Self::Rebuild { path, .. } => path,
        }
    }

    /// `cut`, `remove` or `rebuild`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cut { .. } => "cut",
            Self::Remove { .. } => "remove",
            Self::Rebuild { .. } => "rebuild",
        }
    }

    /// What is wrong with the file.
    pub fn why(&self) -> &str {
        match self {
            Self::Cut { why, .. } | Self::Remove { why, .. } | Self::Rebuild { why, .. } => why,
        }
    }
}

/// The result of a repair or of its plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repair {
    pub actions: Vec<Action>,
    /// Cuts that were refused: they lose intact records, and [`RepairOptions::cut_at_corruption`] is not set.
    pub refused: Vec<Action>,
    /// The actions were carried out.
    pub applied: bool,
    /// The directory of the backup; `None` when nothing was changed.
    pub backup_dir: Option<PathBuf>,
    /// Findings of a verification: after the actions when they were carried out, before them otherwise.
    pub findings: Vec<Finding>,
    /// The caller stopped it: nothing was changed.
    pub stopped: bool,
}

/// Plans what makes a partition's directory or a log directory whole. Carries it out with
/// [`RepairOptions::apply`].
///
/// Calls `progress` regularly while the directory is read. False stops it, unless a change was already made.
///
/// Errors: [`StorageError::Locked`] while the directory is in use, [`StorageError::NotFound`], and
/// [`StorageError::Io`]. An error while copying means that nothing was changed.
pub fn repair(
    path: &Path,
    options: &RepairOptions,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Repair> {
    let found = Target::find(path)?;
    let _locks = lock(&found, options.apply)?;
    // This call holds the locks, so `live` means nothing now.
    let target = found.owned();
    let (checks, stopped) = verify::check_partitions(&target.partitions, &options.verify, progress);
    if stopped {
        return Ok(Repair {
            stopped,
            ..Repair::default()
        });
    }
    let checks: Vec<_> = checks.into_iter().flatten().collect();
    let plan = plan::plan(&target, &checks, options.cut_at_corruption);
    let mut repair = Repair {
        actions: plan.actions(),
        refused: plan.refused.clone(),
        ..Repair::default()
    };
    if options.apply && !plan.is_empty() {
        let backup_dir = match &options.backup_dir {
            Some(backup_dir) => backup_dir.clone(),
            None => backup::beside(target.log_dir.as_deref().unwrap_or(&target.path))?,
        };
        backup::keep(&plan, &target, &backup_dir)?;
        apply::apply(&plan, &checks)?;
        repair.backup_dir = Some(backup_dir);
        repair.applied = true;
    }
    repair.findings = if repair.applied {
        verify::verify_target(&target, &options.verify, &mut |now| {
            progress(now);
            true
        })
        .findings
    } else {
        verify::report(&target, checks.into_iter().map(Some).collect(), false).findings
    };
    Ok(repair)
}

/// Locks the log directory, or the directory of a standalone log. A plan writes nothing, so it takes no lock.
fn lock(target: &Target, apply: bool) -> Result<Option<DirLock>> {
    // A program that opens one partition as a standalone log locks the log directory too.
    let dir = target.log_dir.as_deref().unwrap_or(&target.path);
    let lock = apply.then(|| DirLock::acquire(dir)).transpose()?;
    if let Some(partition) = target.partitions.iter().find(|p| p.live) {
        return Err(StorageError::Locked {
            dir: partition.dir.clone(),
        });
    }
    Ok(lock)
}
