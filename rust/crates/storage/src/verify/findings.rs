//! The list of findings: bounded, and sorted at the end.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{Finding, Kind};
use crate::error::StorageError;

/// Findings of one kind in one file that are listed; the rest are counted.
const PER_FILE_MAX: usize = 100;

#[derive(Debug, Default)]
pub(crate) struct Findings {
    list: Vec<Finding>,
    counts: HashMap<(PathBuf, Kind), usize>,
}

impl Findings {
    pub(crate) fn push(&mut self, finding: Finding) {
        let count = self
            .counts
            .entry((finding.path.clone(), finding.kind))
            .or_default();
        *count += 1;
        if *count <= PER_FILE_MAX {
            self.list.push(finding);
        }
    }

    /// A finding about a whole file.
    pub(crate) fn file(&mut self, kind: Kind, path: &Path, what: impl Into<String>, remedy: &str) {
        self.push(Finding {
            kind,
            path: path.to_path_buf(),
            position: None,
            offset: None,
            what: what.into(),
            remedy: remedy.to_owned(),
        });
    }

    /// A finding for an error from reading a file. Wrong content is of `kind`; an error of the operating
    /// system is [`Kind::Unreadable`].
    pub(crate) fn error(&mut self, kind: Kind, path: &Path, error: &StorageError, remedy: &str) {
        match error {
            StorageError::Corrupt {
                path,
                position,
                reason,
            } => self.push(Finding {
                kind,
                path: path.clone(),
                position: Some(*position),
                offset: None,
                what: reason.clone(),
                remedy: remedy.to_owned(),
            }),
            other => self.file(
                Kind::Unreadable,
                path,
                other.to_string(),
                "check the disk and the file's permissions",
            ),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Keeps only the findings that `other` has too.
    pub(crate) fn keep_common(&mut self, other: &Self) {
        self.list.retain(|finding| other.list.contains(finding));
        self.counts.retain(|key, _| other.counts.contains_key(key));
    }

    /// Adds the findings of another list. No file has findings in both.
    pub(crate) fn append(&mut self, other: Self) {
        self.list.extend(other.list);
        self.counts.extend(other.counts);
    }

    pub(crate) fn into_sorted(mut self) -> Vec<Finding> {
        for ((path, kind), count) in self.counts {
            if count > PER_FILE_MAX {
                self.list.push(Finding {
                    kind,
                    path,
                    position: Some(u64::MAX >> 1),
                    offset: None,
                    what: format!("{} more like the {PER_FILE_MAX} before", count - PER_FILE_MAX),
                    remedy: "see those before".to_owned(),
                });
            }
        }
        self.list.sort_by(|one, other| {
            (&one.path, one.position, one.kind).cmp(&(&other.path, other.position, other.kind))
        });
        for finding in &mut self.list {
            // The large position only sorted it after the others.
            finding.position = finding.position.filter(|p| *p != u64::MAX >> 1);
        }
        self.list
    }
}
