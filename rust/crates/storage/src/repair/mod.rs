//! Mending a directory: cutting a log where it is not whole, making again what can be made again.
//!
//! Never invents or alters a record. What is cut off or removed is first copied aside, with a manifest that says where it
//! came from, and brought to disk; then the directory is changed; then it is verified again. [`repair`] by itself only
//! plans; [`RepairOptions::apply`] carries the plan out.
//!
//! | wrong | done |
//! |---|---|
//! | a torn tail | the `.log` file is cut at the last whole batch |
//! | damage before that | the same, and later segments go, if [`RepairOptions::cut_at_corruption`] allows it |
//! | an index, a transaction index | made again from the batches |
//! | leader epochs that cannot be read, or that several batches contradict | the same, unless batches contradict each other: one may have a flipped bit |
//! | a producer snapshot | removed; one of the log's end is made from the batches |
//! | `partition.metadata`, a checkpoint that cannot be read | removed: the broker makes it again |
//! | a checkpoint's offset behind a log's end, or below 0 | set to the end, or to 0 |
//! | segments that are gone | nothing: what is there can be read, and nobody but another replica has the rest |
//!
//! The locks on the directory are held from before the first byte is read to the end, so it cannot be mended under its
//! owner. A crash leaves the copies whole, and a directory that can be verified and mended again: segments go from the
//! last to the first, and the cut is the last step but the small files.

mod apply;
mod aside;
mod plan;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::error::{Result, StorageError};
use crate::files::lock::DirLock;
use crate::verify::{self, Finding, Progress, Target, VerifyOptions};

/// What may be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairOptions {
    /// Changes are made; without, they are only planned.
    pub apply: bool,
    /// A log may be cut in its middle, which loses intact records behind the cut.
    pub cut_at_corruption: bool,
    /// Where copies go; the default is beside the directory, `<name>.repair-<time>`.
    pub aside: Option<PathBuf>,
    /// How the directory is read.
    pub verify: VerifyOptions,
}

/// One step of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A `.log` file is cut at a position; the log then ends at `offset`.
    Cut {
        path: PathBuf,
        position: u64,
        offset: i64,
        /// Of `.log` files, behind the cut, in this segment and later ones.
        bytes: u64,
        /// Intact records among them.
        records: u64,
        why: String,
    },
    /// A file is removed.
    Remove { path: PathBuf, why: String },
    /// A file is made again from the batches.
    Rebuild { path: PathBuf, why: String },
}

impl Action {
    /// The file.
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

/// What a repair did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repair {
    pub actions: Vec<Action>,
    /// Cuts that were not made, because they lose intact records and that was not allowed.
    pub refused: Vec<Action>,
    /// The actions were carried out.
    pub applied: bool,
    /// Where the copies and the manifest are; `None` when nothing was changed.
    pub aside: Option<PathBuf>,
    /// What verifying finds: afterwards if the actions were carried out, before otherwise.
    pub findings: Vec<Finding>,
    /// The caller asked to stop: nothing was changed.
    pub stopped: bool,
}

/// Plans, and with [`RepairOptions::apply`] carries out, what makes a partition's directory, or a log directory, whole.
///
/// `progress` is called now and then while the directory is read; false stops, as long as nothing was changed.
///
/// Errors: [`StorageError::Locked`] while somebody uses the directory, [`StorageError::NotFound`], the disk's. When
/// copying fails, nothing was changed.
pub fn repair(
    path: &Path,
    options: &RepairOptions,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Repair> {
    let found = Target::find(path)?;
    let _locks = lock(&found, options.apply)?;
    // The locks are ours: what Target says of a live owner would be ourselves.
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
        let aside = match &options.aside {
            Some(aside) => aside.clone(),
            None => aside::beside(target.log_dir.as_deref().unwrap_or(&target.path))?,
        };
        aside::keep(&plan, &target, &aside)?;
        apply::apply(&plan, &checks)?;
        repair.aside = Some(aside);
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

/// The locks that keep every owner out: of the log directory, and of a directory that is used by itself. Who only asks what
/// would be done writes nothing, and takes none.
fn lock(target: &Target, apply: bool) -> Result<Option<DirLock>> {
    // A partition that a program has opened by itself is locked together with its log directory.
    let dir = target.log_dir.as_deref().unwrap_or(&target.path);
    let lock = apply.then(|| DirLock::acquire(dir)).transpose()?;
    if let Some(partition) = target.partitions.iter().find(|p| p.live) {
        return Err(StorageError::Locked {
            dir: partition.dir.clone(),
        });
    }
    Ok(lock)
}
