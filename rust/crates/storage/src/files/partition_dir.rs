//! Names of the directories in a log directory (`LocalLog`).
//!
//! ```text
//! user_activity-0                          the log
//! user_activity-0.<32 hex digits>-delete   deleted; removed at the next opening at the latest
//! user_activity-0.<32 hex digits>-future   a copy that will replace the log in another directory
//! user_activity-0.<32 hex digits>-stray    a log that the cluster no longer knows; for the operator
//! ```

use std::path::Path;

use super::MOVED_FILE;
use super::uuid;
use crate::error::{Result, StorageError};

/// A partition: its topic and number.
pub(crate) type Key = (String, i32);

/// The longest name of a file.
pub(crate) const NAME_MAX: usize = 255;

/// The kind of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Current,
    Deleted,
    Future,
    Stray,
}

impl Kind {
    /// `DeleteDirSuffix`, `FutureDirSuffix`, `StrayDirSuffix`.
    fn suffix(self) -> &'static str {
        match self {
            Self::Current => "",
            Self::Deleted => "-delete",
            Self::Future => "-future",
            Self::Stray => "-stray",
        }
    }
}

/// Partition and kind of a directory's name; `None` when it is no partition's.
pub(crate) fn parse(name: &str) -> Option<(Key, Kind)> {
    if let Some(key) = parse_partition_dir(name) {
        return Some((key, Kind::Current));
    }
    [Kind::Deleted, Kind::Future, Kind::Stray]
        .into_iter()
        .find_map(|kind| {
            let (partition, id) = name.strip_suffix(kind.suffix())?.rsplit_once('.')?;
            let is_id = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
            let key = parse_partition_dir(partition).filter(|_| is_id)?;
            Some((key, kind))
        })
}

/// Topic and partition of a directory's name, `user_activity-0`; `None` for other names, also for `-delete`,
/// `-future` and `-stray`.
pub fn parse_partition_dir(name: &str) -> Option<(String, i32)> {
    let (topic, number) = name.rsplit_once('-')?;
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    if topic.is_empty() || !digits {
        return None;
    }
    Some((topic.to_owned(), number.parse().ok()?))
}

/// A new name of a kind. The topic is cut to fit a file name (`LocalLog.logDirNameWithSuffixCappedLength`).
pub(crate) fn with_suffix(topic: &str, partition: i32, kind: Kind) -> Result<String> {
    let id: String = uuid::random()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let suffix = format!("-{partition}.{id}{}", kind.suffix());
    let mut end = topic.len().min(NAME_MAX - suffix.len());
    while !topic.is_char_boundary(end) {
        end -= 1;
    }
    Ok(format!("{}{suffix}", &topic[..end]))
}

/// Bytes of the name of a future log's directory. A longer name than a file may have cannot be moved: the
/// topic is not cut, because the name identifies the log (`LocalLog.logFutureDirName`).
pub fn future_dir_name_len(topic: &str, partition: i32) -> usize {
    const ID_LEN: usize = 32;
    format!("{topic}-{partition}.").len() + ID_LEN + Kind::Future.suffix().len()
}

/// Errors: [`StorageError::WrongDirectory`] for a log whose new directory is missing.
pub(crate) fn check_not_moved(dir: &Path) -> Result<()> {
    if !dir.join(MOVED_FILE).exists() {
        return Ok(());
    }
    Err(StorageError::WrongDirectory {
        path: dir.to_path_buf(),
        reason: format!(
            "was moved to another log directory that is missing; bring that one back, or remove the file \
             {MOVED_FILE} to use the log here, which may be old"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: a move or a deletion that Kafka began would not be recognised, or a foreign
    // directory would be.
    #[test]
    fn kinds() {
        let id = "0123456789abcdef0123456789abcdef";
        let of = |name: &str| parse(name).map(|((topic, partition), kind)| (topic, partition, kind));
        let is = |partition, kind| Some(("a.b-c".to_owned(), partition, kind));
        assert_eq!(of("a.b-c-7"), is(7, Kind::Current));
        assert_eq!(of(&format!("a.b-c-7.{id}-delete")), is(7, Kind::Deleted));
        assert_eq!(of(&format!("a.b-c-7.{id}-future")), is(7, Kind::Future));
        assert_eq!(of(&format!("a.b-c-7.{id}-stray")), is(7, Kind::Stray));
        for foreign in [
            "notes-delete",
            "a.b-delete",
            "a-x.0-delete",
            "a-0.-delete",
            "a-0.b c-delete",
            "lost+found",
            "a-0-future",
        ] {
            assert_eq!(of(foreign), None, "{foreign}");
        }
        for kind in [Kind::Deleted, Kind::Future, Kind::Stray] {
            let long = "t".repeat(249);
            let name = with_suffix(&long, 12, kind).unwrap();
            assert!(name.len() <= NAME_MAX);
            assert_eq!(parse(&name).map(|((_, n), kind)| (n, kind)), Some((12, kind)));
        }
    }
}
