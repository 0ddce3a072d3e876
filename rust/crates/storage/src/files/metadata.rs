//! The small files that identify a directory: `meta.properties`, `partition.metadata`,
//! `.kafka_cleanshutdown`.
//!
//! `meta.properties` (`MetaProperties`, version 0 as in ZooKeeper mode) is a Java properties file:
//!
//! ```text
//! #
//! #Sat Nov 21 05:00:00 UTC 2026
//! broker.id=0
//! cluster.id=PGe0vV0nQfOgQnwyn2aVtg
//! version=0
//! ```
//!
//! `partition.metadata` (`PartitionMetadataFile`): `version: 0\ntopic_id: <base64>`, without a newline at the
//! end. `.kafka_cleanshutdown` (`CleanShutdownFileHandler`): `{"version":0,"brokerEpoch":-1}`; only its
//! existence counts here. Only the holder of the directory's lock writes them. They are read at the start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use super::names::MOVED_FILE;
pub use super::names::{CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE, PARTITION_METADATA_FILE};
use crate::error::{Result, StorageError};
use crate::files;
use crate::files::disk;
use crate::files::uuid::{self, TopicId};

const SIZE_MAX: u64 = 64 << 10;

/// The content of `meta.properties`. Unknown keys are kept when the file is written again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetaProperties {
    /// Keys and unescaped values.
    pub properties: BTreeMap<String, String>,
}

impl MetaProperties {
    /// The content for a new directory of a broker.
    pub fn new(broker_id: i32, cluster_id: &str) -> Self {
        let properties = BTreeMap::from([
            ("broker.id".to_owned(), broker_id.to_string()),
            ("cluster.id".to_owned(), cluster_id.to_owned()),
            ("version".to_owned(), "0".to_owned()),
        ]);
        Self { properties }
    }

    /// Reads the file in `dir`; `None` when there is none.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(META_PROPERTIES_FILE);
        let Some(bytes) = files::read_small(&path, SIZE_MAX)? else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&bytes);
        let mut properties = BTreeMap::new();
        for line in text.lines().map(str::trim_start) {
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            let (key, value) = line.split_once(['=', ':']).unwrap_or((line, ""));
            properties.insert(unescape(key.trim()), unescape(value.trim()));
        }
        let meta = Self { properties };
        match meta.get("version").unwrap_or("0") {
            "0" | "1" => Ok(Some(meta)),
            version => Err(StorageError::Corrupt {
                reason: format!("version {version:?} is not known, 0 and 1 are"),
                path,
                position: 0,
            }),
        }
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.properties.get(key).map(String::as_str)
    }

    /// `cluster.id`.
    pub fn cluster_id(&self) -> Option<&str> {
        self.get("cluster.id")
    }

    /// `broker.id`, or `node.id` in a file of version 1.
    pub fn broker_id(&self) -> Option<&str> {
        self.get("broker.id").or_else(|| self.get("node.id"))
    }

    /// Replaces the file in `dir`.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let mut text = format!("#\n#{}\n", java_date(SystemTime::now()));
        for (key, value) in &self.properties {
            text.push_str(&format!("{}={}\n", escape(key), escape(value)));
        }
        files::replace_file(&dir.join(META_PROPERTIES_FILE), text.as_bytes())
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '\\' | '=' | ':' | '#' | '!' | ' ') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => out.extend(characters.next()),
            plain => out.push(plain),
        }
    }
    out
}

/// A time in UTC, by the Gregorian calendar.
struct Calendar {
    year: u64,
    /// From 0.
    month: u64,
    day: u64,
    /// Days since 1970-01-01.
    days: u64,
    /// Of the day.
    second: u64,
}

impl Calendar {
    fn of(time: SystemTime) -> Self {
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        // Days from 1970-01-01 in the Gregorian calendar, in eras of 400 years that begin on 1 March.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = (month_from_march + 2) % 12;
        Self {
            year: era * 400 + year_of_era + u64::from(month < 2),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            days,
            second,
        }
    }
}

/// A time for a directory's name: `20261121T093800Z`.
pub(crate) fn time_for_name(time: SystemTime) -> String {
    let at = Calendar::of(time);
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        at.year,
        at.month + 1,
        at.day,
        at.second / 3600,
        at.second / 60 % 60,
        at.second % 60,
    )
}

/// A time as `java.util.Date` prints it in UTC: the comment at the top of Java's properties files.
fn java_date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let at = Calendar::of(time);
    format!(
        "{} {} {:02} {:02}:{:02}:{:02} UTC {}",
        DAYS[(at.days % 7) as usize],
        MONTHS[at.month as usize],
        at.day,
        at.second / 3600,
        at.second / 60 % 60,
        at.second % 60,
        at.year,
    )
}

/// The topic id of a partition's directory. `None` when the file is missing, or was cut short by a power
/// loss; the broker then writes it again from the cluster's metadata.
pub fn read_topic_id(dir: &Path) -> Result<Option<TopicId>> {
    let path = dir.join(PARTITION_METADATA_FILE);
    let Some(bytes) = files::read_small(&path, SIZE_MAX)? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes);
    let mut version = None;
    let mut id = None;
    for line in text.lines() {
        match line.split_once(':').map(|(k, v)| (k, v.trim())) {
            Some(("version", value)) => version = Some(value),
            Some(("topic_id", value)) => id = uuid::decode(value),
            _ => {}
        }
    }
    match version {
        Some("0") => Ok(id),
        None | Some("") => Ok(None),
        Some(other) => Err(StorageError::Corrupt {
            reason: format!("version {other:?} is not known, 0 is"),
            path,
            position: 0,
        }),
    }
}

/// Writes a partition's topic id, without an fsync: the cluster's metadata has the id too, and a thousand new
/// partitions should not cost a thousand fsyncs.
pub fn write_topic_id(dir: &Path, id: &TopicId) -> Result<()> {
    let path = dir.join(PARTITION_METADATA_FILE);
    let temporary = dir.join(format!("{PARTITION_METADATA_FILE}.tmp"));
    let text = format!("version: 0\ntopic_id: {}", uuid::encode(id));
    disk::create(&temporary)
        .and_then(|file| disk::write_all_at(&file, &temporary, text.as_bytes(), 0))
        .map_err(StorageError::io("write", &temporary))?;
    disk::rename(&temporary, &path).map_err(StorageError::io("replace", &path))
}

fn clean_shutdown_path(dir: &Path) -> PathBuf {
    dir.join(CLEAN_SHUTDOWN_FILE)
}

/// Marks that everything in the directory is on disk. It is the last write before the lock is freed.
pub fn write_clean_shutdown(dir: &Path) -> Result<()> {
    files::replace_file(&clean_shutdown_path(dir), br#"{"version":0,"brokerEpoch":-1}"#)
}

/// Removes the marker before the first write; true when it existed.
pub fn take_clean_shutdown(dir: &Path) -> Result<bool> {
    let was_clean = files::remove_if_exists(&clean_shutdown_path(dir))?;
    if was_clean {
        // A marker that reappears after a power loss would hide a torn tail.
        files::sync_dir(dir)?;
    }
    Ok(was_clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    // Broken if it failed: Kafka would refuse our directory, or we would refuse Kafka's.
    #[test]
    fn meta_properties() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(MetaProperties::read(dir.path()).unwrap(), None);
        let meta = MetaProperties::new(7, "PGe0vV0nQfOgQnwyn2aVtg");
        meta.write(dir.path()).unwrap();
        let path = dir.path().join(META_PROPERTIES_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "#");
        assert!(lines[1].starts_with('#') && lines[1].contains(" UTC 20"));
        assert_eq!(
            lines[2..],
            ["broker.id=7", "cluster.id=PGe0vV0nQfOgQnwyn2aVtg", "version=0"]
        );
        assert_eq!(MetaProperties::read(dir.path()).unwrap(), Some(meta));

        std::fs::write(
            &path,
            "#\n#Fri\nversion=1\ncluster.id=a\\:b\nnode.id=3\ndirectory.id : x\n",
        )
        .unwrap();
        let kraft = MetaProperties::read(dir.path()).unwrap().unwrap();
        assert_eq!(kraft.cluster_id(), Some("a:b"));
        assert_eq!(kraft.broker_id(), Some("3"));
        assert_eq!(kraft.get("directory.id"), Some("x"));
        std::fs::write(&path, "version=2\n").unwrap();
        assert!(MetaProperties::read(dir.path()).is_err());
    }

    #[test]
    fn dates() {
        let at = |seconds| java_date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "Thu Jan 01 00:00:00 UTC 1970");
        assert_eq!(at(951_827_696), "Tue Feb 29 12:34:56 UTC 2000");
        assert_eq!(at(1_704_067_199), "Sun Dec 31 23:59:59 UTC 2023");
        let name = time_for_name(UNIX_EPOCH + Duration::from_secs(951_827_696));
        assert_eq!(name, "20000229T123456Z");
    }

    // Broken if it failed: Kafka and we would not agree on a topic's id.
    #[test]
    fn topic_ids() {
        let dir = tempfile::tempdir().unwrap();
        let id: TopicId = std::array::from_fn(|i| i as u8);
        assert_eq!(read_topic_id(dir.path()).unwrap(), None);
        write_topic_id(dir.path(), &id).unwrap();
        let path = dir.path().join(PARTITION_METADATA_FILE);
        assert_eq!(
            std::fs::read(&path).unwrap(),
            b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
        );
        assert_eq!(read_topic_id(dir.path()).unwrap(), Some(id));
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read_topic_id(dir.path()).unwrap(), None, "{cut}");
        }
        std::fs::write(&path, b"version: 9\ntopic_id: AAECAwQFBgcICQoLDA0ODw").unwrap();
        assert!(read_topic_id(dir.path()).is_err());
    }

    #[test]
    fn clean_shutdown_marker() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!take_clean_shutdown(dir.path()).unwrap());
        write_clean_shutdown(dir.path()).unwrap();
        assert_eq!(
            std::fs::read(dir.path().join(".kafka_cleanshutdown")).unwrap(),
            br#"{"version":0,"brokerEpoch":-1}"#
        );
        assert!(take_clean_shutdown(dir.path()).unwrap());
        assert!(!take_clean_shutdown(dir.path()).unwrap());
    }
}
