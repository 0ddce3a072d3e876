//! A member's snapshots: files with the state that the application had at an entry of the log.
//!
//! ```text
//! <index>-<term>.snapshot
//!   magic LCQSNAP1 | u64 term | u64 index | log id? of the membership | u32 length | membership
//!   | delivery | the application's bytes | u32 CRC-32 of everything before
//! ```
//!
//! A file has its name once it is whole and on disk. A file that is being written or received ends in
//! `.part`, and the next start removes it. The newest [`KEPT`] files stay: if the newest is damaged, the
//! start uses the one before.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BufMut, Bytes};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use crate::codec::{Malformed, invalid, take};
use crate::delivery::Delivery;
use crate::raft::entry::{get_log_id, get_membership, put_log_id, put_membership};
use crate::raft::state_machine::Snapshots;
use crate::raft::types::{LogId, Snapshot, SnapshotMeta, StoredMembership, log_id};

const MAGIC: &[u8; 8] = b"LCQSNAP1";
const SUFFIX: &str = ".snapshot";
const PART_SUFFIX: &str = ".part";
const KEPT: usize = 3;
/// The limit of everything before the application's bytes.
const FRONT_BYTES: u32 = 1 << 20;
const CHECKSUM_BYTES: u64 = 4;
const CHUNK_BYTES: usize = 256 << 10;

/// The file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotFile {
    path: Arc<PathBuf>,
    /// The length of the file.
    length: u64,
    /// The position of the application's bytes.
    content_at: u64,
    delivery: Arc<Delivery>,
}

impl SnapshotFile {
    /// The file and its length, to send it to another member.
    pub fn open_whole(&self) -> io::Result<(File, u64)> {
        Ok((File::open(&*self.path)?, self.length))
    }

    /// The delivery at the end of the snapshot.
    pub fn delivery(&self) -> Delivery {
        (*self.delivery).clone()
    }

    /// The application's bytes. The checksum was checked when the file was opened or received.
    pub fn open_content(&self) -> io::Result<impl Read + use<>> {
        let mut file = File::open(&*self.path)?;
        file.seek(SeekFrom::Start(self.content_at))?;
        Ok(file.take(self.length - self.content_at - CHECKSUM_BYTES))
    }
}

/// The application's bytes of a snapshot that it is to install.
pub struct SnapshotSource {
    /// The last entry that the snapshot contains.
    pub log_id: LogId,
    content: Mutex<Box<dyn Read + Send>>,
}

impl std::fmt::Debug for SnapshotSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SnapshotSource({})", self.log_id)
    }
}

impl SnapshotSource {
    /// `None` for a snapshot that contains no entry.
    pub(crate) fn open(snapshot: &Snapshot<SnapshotFile>) -> io::Result<Option<Self>> {
        let Some(log_id) = snapshot.meta.last_log_id else {
            return Ok(None);
        };
        let content = snapshot.snapshot.open_content()?;
        Ok(Some(Self {
            log_id,
            content: Mutex::new(Box::new(content)),
        }))
    }

    /// The next bytes, at most `max`; none at the end. Reads the disk.
    pub fn read(&self, max: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut content = self.content.lock();
        Read::take(&mut *content, max as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The snapshots of one member.
pub struct SnapshotDir {
    dir: PathBuf,
    newest: Mutex<Option<Snapshot<SnapshotFile>>>,
    next_part: AtomicU64,
}

impl SnapshotDir {
    /// Opens a directory, or makes it. `damaged` is called for each newer file that cannot be used.
    pub fn open(dir: &Path, mut damaged: impl FnMut(&Path, &io::Error)) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        for name in names(dir, PART_SUFFIX)? {
            fs::remove_file(dir.join(&name))?;
        }
        let mut newest = None;
        for name in names(dir, SUFFIX)?.iter().rev() {
            let path = dir.join(name);
            match check(&path) {
                Ok(snapshot) => {
                    newest = Some(snapshot);
                    break;
                }
                Err(error) => damaged(&path, &error),
            }
        }
        Ok(Self {
            dir: dir.to_path_buf(),
            newest: Mutex::new(newest),
            next_part: AtomicU64::new(0),
        })
    }

    fn part(&self) -> PathBuf {
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!("{number}{PART_SUFFIX}"))
    }

    /// Begins a snapshot of the state at `meta`'s last entry.
    pub fn begin(&self, meta: SnapshotMeta, delivery: Delivery) -> io::Result<SnapshotWriter> {
        let Some(last) = meta.last_log_id else {
            return Err(of_nothing());
        };
        let path = self.part();
        let mut writer = SnapshotWriter {
            file: Some(File::create_new(&path)?),
            path,
            checksum: crc32fast::Hasher::new(),
            written: 0,
            content_at: 0,
            meta,
            delivery: Arc::new(delivery),
        };
        let front = front(&writer.meta, last, &writer.delivery);
        writer.write(&front)?;
        writer.content_at = writer.written;
        Ok(writer)
    }

    /// Makes a written snapshot the newest. Blocks until it is on disk.
    pub fn finish(&self, writer: SnapshotWriter) -> io::Result<()> {
        let snapshot = writer.finish()?;
        self.put_in_place(&snapshot)
    }

    /// Begins a file for a snapshot that another member sends.
    pub fn receive(&self) -> io::Result<Received> {
        let path = self.part();
        Ok(Received {
            file: Some(File::create_new(&path)?),
            path,
        })
    }

    fn put_in_place(&self, snapshot: &Snapshot<SnapshotFile>) -> io::Result<()> {
        let Some(last) = snapshot.meta.last_log_id else {
            return Err(of_nothing());
        };
        let mut newest = self.newest.lock();
        if newest
            .as_ref()
            .is_some_and(|kept| kept.meta.last_log_id >= Some(last))
        {
            return fs::remove_file(&*snapshot.snapshot.path);
        }
        let name = format!("{:020}-{:010}{SUFFIX}", last.index, last.leader_id.term);
        let path = self.dir.join(name);
        fs::rename(&*snapshot.snapshot.path, &path)?;
        File::open(&self.dir)?.sync_all()?;
        *newest = Some(Snapshot {
            meta: snapshot.meta.clone(),
            snapshot: SnapshotFile {
                path: Arc::new(path),
                ..snapshot.snapshot.clone()
            },
        });
        drop(newest);
        self.remove_old()
    }

    fn remove_old(&self) -> io::Result<()> {
        let names = names(&self.dir, SUFFIX)?;
        let old = names.len().saturating_sub(KEPT);
        for name in &names[..old] {
            fs::remove_file(self.dir.join(name))?;
        }
        Ok(())
    }
}

/// The files with this suffix, ordered by their names and thus by their indexes.
fn names(dir: &Path, suffix: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for file in fs::read_dir(dir)? {
        let name = file?.file_name().to_string_lossy().into_owned();
        if name.ends_with(suffix) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

impl Snapshots for Arc<SnapshotDir> {
    type Data = SnapshotFile;

    fn newest(&self) -> Option<Snapshot<SnapshotFile>> {
        self.newest.lock().clone()
    }

    fn delivery(&self, data: &SnapshotFile) -> Delivery {
        data.delivery()
    }

    async fn keep(&self, snapshot: &Snapshot<SnapshotFile>) -> io::Result<()> {
        let (dir, snapshot) = (self.clone(), snapshot.clone());
        spawn_blocking(move || dir.put_in_place(&snapshot)).await?
    }
}

fn of_nothing() -> io::Error {
    io::Error::other("a snapshot must contain an entry")
}

fn front(meta: &SnapshotMeta, last: LogId, delivery: &Delivery) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.put_u64(last.leader_id.term);
    out.put_u64(last.index);
    put_log_id(*meta.last_membership.log_id(), &mut out);
    let mut membership = Vec::new();
    put_membership(meta.last_membership.membership(), &mut membership);
    out.put_u32(membership.len() as u32);
    out.put_slice(&membership);
    delivery.encode(&mut out);
    out
}

/// A snapshot that is being written. Its file is removed when it is dropped unfinished.
pub struct SnapshotWriter {
    file: Option<File>,
    path: PathBuf,
    checksum: crc32fast::Hasher,
    written: u64,
    content_at: u64,
    meta: SnapshotMeta,
    delivery: Arc<Delivery>,
}

impl SnapshotWriter {
    /// Appends bytes of the application.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.update(bytes);
        self.written += bytes.len() as u64;
        match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => Err(finished()),
        }
    }

    /// Brings the file to disk, still under its temporary name. Blocks.
    pub(crate) fn finish(mut self) -> io::Result<Snapshot<SnapshotFile>> {
        let checksum = self.checksum.clone().finalize();
        let Some(mut file) = self.file.take() else {
            return Err(finished());
        };
        let ended = file
            .write_all(&checksum.to_be_bytes())
            .and_then(|()| file.sync_all());
        if let Err(error) = ended {
            self.file = Some(file);
            return Err(error);
        }
        Ok(Snapshot {
            meta: self.meta.clone(),
            snapshot: SnapshotFile {
                path: Arc::new(self.path.clone()),
                length: self.written + CHECKSUM_BYTES,
                content_at: self.content_at,
                delivery: self.delivery.clone(),
            },
        })
    }
}

fn finished() -> io::Error {
    io::Error::other("the snapshot is finished")
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        remove_unless_finished(&self.file, &self.path);
    }
}

/// A snapshot that another member is sending. Its file is removed when it is dropped unfinished.
pub struct Received {
    file: Option<File>,
    path: PathBuf,
}

impl Received {
    /// Appends bytes of the file.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => Err(finished()),
        }
    }

    /// Brings the file to disk and checks it. Blocks.
    pub fn finish(mut self) -> io::Result<Snapshot<SnapshotFile>> {
        if let Some(file) = &self.file {
            file.sync_all()?;
        }
        let snapshot = check(&self.path)?;
        self.file = None;
        Ok(snapshot)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        remove_unless_finished(&self.file, &self.path);
    }
}

fn remove_unless_finished(file: &Option<File>, path: &Path) {
    if file.is_some() {
        // The next start removes a file that is left.
        let _ = fs::remove_file(path);
    }
}

/// Reads a whole file and checks it.
///
/// Errors: `InvalidData` for a damaged file; the disk's.
fn check(path: &Path) -> io::Result<Snapshot<SnapshotFile>> {
    let damaged = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut front = vec![0; (length.min(u64::from(FRONT_BYTES))) as usize];
    file.read_exact(&mut front)?;
    let parsed = parse(Bytes::from(front.clone()));
    let (meta, delivery, content_at) = parsed.map_err(|error| damaged(error.to_string()))?;
    if length < content_at + CHECKSUM_BYTES {
        return Err(damaged("the file is too short".to_owned()));
    }
    let checked = (length - CHECKSUM_BYTES) as usize;
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&front[..front.len().min(checked)]);
    // In a short file, the checksum or a part of it was already read into `front`.
    let mut seen = front.len();
    let mut stored: Vec<u8> = front[seen.min(checked)..].to_vec();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        let content = checked.saturating_sub(seen).min(read);
        checksum.update(&chunk[..content]);
        stored.extend_from_slice(&chunk[content..read]);
        seen += read;
    }
    if stored != checksum.finalize().to_be_bytes() {
        return Err(damaged("the checksum does not match".to_owned()));
    }
    Ok(Snapshot {
        meta,
        snapshot: SnapshotFile {
            path: Arc::new(path.to_path_buf()),
            length,
            content_at,
            delivery: Arc::new(delivery),
        },
    })
}

fn parse(mut bytes: Bytes) -> Result<(SnapshotMeta, Delivery, u64), Malformed> {
    let total = bytes.len();
    if !bytes.starts_with(MAGIC) {
        return invalid("it is not a snapshot of an ensemble's member");
    }
    bytes.advance(MAGIC.len());
    let (term, index) = (bytes.try_get_u64()?, bytes.try_get_u64()?);
    let of = get_log_id(&mut bytes)?;
    let length = bytes.try_get_u32()? as usize;
    let membership = get_membership(&mut take(&mut bytes, length)?)?;
    let meta = SnapshotMeta {
        last_log_id: Some(log_id(term, index)),
        last_membership: StoredMembership::new(of, membership),
    };
    let delivery = Delivery::decode(&mut bytes)?;
    Ok((meta, delivery, (total - bytes.len()) as u64))
}
