//! A member's snapshots: files with what the log's front came to.
//!
//! ```text
//! <index>-<term>.snapshot
//!   magic LCQSNAP1 | u64 term | u64 index | log id? of the membership | u32 length | membership
//!   | the last commands that counted | the coordinator's own bytes | u32 CRC-32 of everything before
//! ```
//!
//! A file has its name once it is whole and on disk; what is being written or received ends in `.part` and is removed at the
//! next start. The newest [`KEPT`] stay, so that a damaged one is no end: at a start the newest whole one counts.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BufMut, Bytes};
use openraft::AsyncRuntime;
use parking_lot::Mutex;

use crate::delivery::Delivery;
use crate::entry;
use crate::machine::{Snapshot, Snapshots};
use crate::types::{LogId, SnapshotMeta, StoredMembership, Types};
use crate::wire;

const MAGIC: &[u8; 8] = b"LCQSNAP1";
const SUFFIX: &str = ".snapshot";
const PART_SUFFIX: &str = ".part";
/// How many files stay.
const KEPT: usize = 3;
/// What stands before the coordinator's own bytes has at most so many.
const FRONT_BYTES: u32 = 1 << 20;
const CHUNK: usize = 256 << 10;

/// One snapshot's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotFile {
    path: Arc<PathBuf>,
    /// Bytes of the whole file.
    length: u64,
    /// Where the coordinator's own bytes begin.
    content_at: u64,
    delivery: Arc<Delivery>,
}

impl SnapshotFile {
    /// The whole file, to be sent to another member, and how many bytes it has.
    pub fn open_whole(&self) -> io::Result<(File, u64)> {
        Ok((File::open(&*self.path)?, self.length))
    }

    /// Of the commands up to there, the last of each member that counted.
    pub fn delivery(&self) -> Delivery {
        (*self.delivery).clone()
    }

    /// The coordinator's own bytes, which were checked when the file came to be.
    pub fn open_content(&self) -> io::Result<impl Read + use<>> {
        use std::io::Seek;
        let mut file = File::open(&*self.path)?;
        file.seek(io::SeekFrom::Start(self.content_at))?;
        Ok(file.take(self.length - self.content_at - 4))
    }
}

/// The snapshots of one member.
pub struct SnapshotDir<C> {
    dir: PathBuf,
    newest: Mutex<Option<Snapshot<SnapshotFile>>>,
    next_part: AtomicU64,
    _runtime: std::marker::PhantomData<fn() -> C>,
}

impl<C: Types> SnapshotDir<C> {
    /// Opens a directory, which is made when it is missing. Damaged files are passed over; they are named in `damaged`.
    pub fn open(dir: &Path, mut damaged: impl FnMut(&Path, &io::Error)) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let mut names = Vec::new();
        for file in fs::read_dir(dir)? {
            let name = file?.file_name().to_string_lossy().into_owned();
            if name.ends_with(PART_SUFFIX) {
                fs::remove_file(dir.join(&name))?;
            } else if name.ends_with(SUFFIX) {
                names.push(name);
            }
        }
        // The names sort as their indexes do.
        names.sort_unstable();
        let mut newest = None;
        for name in names.iter().rev() {
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
            _runtime: std::marker::PhantomData,
        })
    }

    fn part(&self) -> PathBuf {
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!("{number}{PART_SUFFIX}"))
    }

    /// Begins a snapshot of what was applied up to `meta`'s last entry.
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

    /// Makes a snapshot that was written the newest. Blocks until it is on disk.
    pub fn finish(&self, writer: SnapshotWriter) -> io::Result<()> {
        let snapshot = writer.finish()?;
        self.put_in_place(&snapshot)
    }

    /// Where to put the bytes of one that another member sends.
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
            // Another was quicker.
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
        let mut names = Vec::new();
        for file in fs::read_dir(&self.dir)? {
            let name = file?.file_name().to_string_lossy().into_owned();
            if name.ends_with(SUFFIX) {
                names.push(name);
            }
        }
        names.sort_unstable();
        let old = names.len().saturating_sub(KEPT);
        for name in &names[..old] {
            fs::remove_file(self.dir.join(name))?;
        }
        Ok(())
    }
}

impl<C: Types> Snapshots for Arc<SnapshotDir<C>> {
    type Data = SnapshotFile;

    fn newest(&self) -> Option<Snapshot<SnapshotFile>> {
        self.newest.lock().clone()
    }

    fn delivery(&self, data: &SnapshotFile) -> Delivery {
        data.delivery()
    }

    async fn keep(&self, snapshot: &Snapshot<SnapshotFile>) -> io::Result<()> {
        let (dir, snapshot) = (self.clone(), snapshot.clone());
        let keep = move || dir.put_in_place(&snapshot);
        <C::AsyncRuntime as AsyncRuntime>::spawn_blocking(keep).await?
    }
}

fn of_nothing() -> io::Error {
    io::Error::other("a snapshot of nothing was to be made")
}

fn front(meta: &SnapshotMeta, last: LogId, delivery: &Delivery) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.put_u64(last.leader_id.term);
    out.put_u64(last.index);
    wire::put_log_id(*meta.last_membership.log_id(), &mut out);
    let mut membership = Vec::new();
    entry::encode_membership(meta.last_membership.membership(), &mut membership);
    out.put_u32(membership.len() as u32);
    out.put_slice(&membership);
    delivery.encode(&mut out);
    out
}

/// A snapshot that is being written. One that is dropped leaves nothing.
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
    /// Appends some of the coordinator's own bytes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.update(bytes);
        self.written += bytes.len() as u64;
        match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => Err(io::Error::other("the snapshot is finished")),
        }
    }

    /// Brings it to disk, under a name that the next start does not look at. Blocks.
    pub(crate) fn finish(mut self) -> io::Result<Snapshot<SnapshotFile>> {
        let checksum = self.checksum.clone().finalize();
        let Some(mut file) = self.file.take() else {
            return Err(io::Error::other("the snapshot is finished"));
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
                length: self.written + 4,
                content_at: self.content_at,
                delivery: self.delivery.clone(),
            },
        })
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        remove_unless_finished(&self.file, &self.path);
    }
}

/// A snapshot that another member is sending. One that is dropped leaves nothing.
pub struct Received {
    file: Option<File>,
    path: PathBuf,
}

impl Received {
    /// Appends some of the file's bytes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => Err(io::Error::other("the snapshot is finished")),
        }
    }

    /// Brings it to disk and looks whether it is whole. Blocks.
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
        // The next start removes what is left.
        let _ = fs::remove_file(path);
    }
}

/// Reads a whole file and says what it is.
///
/// Errors: `InvalidData` for one that is not whole; the disk's.
fn check(path: &Path) -> io::Result<Snapshot<SnapshotFile>> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut front = vec![0; (length.min(u64::from(FRONT_BYTES))) as usize];
    file.read_exact(&mut front)?;
    let (meta, delivery, content_at) = parse(Bytes::from(front.clone())).map_err(invalid)?;
    if length < content_at + 4 {
        return Err(invalid("the file is cut off".to_owned()));
    }
    let checked = (length - 4) as usize;
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&front[..front.len().min(checked)]);
    // What is left of the file is its content's rest and the checksum, or a part of that.
    let mut seen = front.len();
    let mut stored: Vec<u8> = front[seen.min(checked)..].to_vec();
    let mut chunk = vec![0; CHUNK];
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
        return Err(invalid("the checksum does not match".to_owned()));
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

fn parse(mut bytes: Bytes) -> Result<(SnapshotMeta, Delivery, u64), String> {
    let total = bytes.len();
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        return Err("it is no snapshot of an ensemble's member".to_owned());
    };
    bytes = bytes.slice_ref(rest);
    let cut_off = |error: bytes::TryGetError| error.to_string();
    let term = bytes.try_get_u64().map_err(cut_off)?;
    let index = bytes.try_get_u64().map_err(cut_off)?;
    let of = wire::get_log_id(&mut bytes).map_err(|error| error.to_string())?;
    let length = bytes.try_get_u32().map_err(cut_off)?;
    if length as usize > bytes.len() {
        return Err(format!("its membership has {length} bytes, and it does not"));
    }
    let mut membership = bytes.split_to(length as usize);
    let membership = entry::decode_membership(&mut membership).map_err(|e| e.to_string())?;
    let meta = SnapshotMeta {
        last_log_id: Some(crate::directory::log_id(term, index)),
        last_membership: StoredMembership::new(of, membership),
    };
    let delivery = Delivery::decode(&mut bytes).map_err(cut_off)?;
    Ok((meta, delivery, (total - bytes.len()) as u64))
}
