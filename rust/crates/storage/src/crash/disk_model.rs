//! A model of a disk that loses power: what is certainly on it, what may be, and the directory after a
//! restart.
//!
//! Follows POSIX and nothing more. A file's bytes and length are certain after a [`Change::Sync`] of the
//! file, a directory's entries after a [`Change::SyncDir`] of the directory. Of later changes a power loss
//! keeps any part: none, all, a prefix whose last write is torn at any byte, or sectors in any order with
//! zeros in the holes. The same holds for entries. Stores through a mapping are not seen: index files come
//! back with their bytes, without some or all, or with random bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::files::disk::Change;
use crate::files::{INDEX_SUFFIX, TIME_INDEX_SUFFIX};
use crate::support::random::Random;

/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

#[derive(Debug, Clone)]
enum Pending {
    Write { at: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Debug, Default)]
struct Inode {
    durable: Vec<u8>,
    pending: Vec<Pending>,
    /// An index file that got its final length and was synced: the stores through its mapping are certain.
    sealed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    File(usize),
    Dir(usize),
}

#[derive(Debug, Clone)]
enum EntryChange {
    Set(String, Node),
    Remove(String),
    Rename(String, String, Node),
}

type Entries = BTreeMap<String, Node>;

#[derive(Debug, Default)]
struct Directory {
    durable: Entries,
    current: Entries,
    pending: Vec<EntryChange>,
}

/// How much of the uncertain changes a power loss keeps.
#[derive(Debug, Clone, Copy)]
enum Left {
    Nothing,
    Everything,
    Beginning,
    Scattered,
}

/// Everything below one directory.
#[derive(Debug)]
pub(super) struct DiskModel {
    root: PathBuf,
    inodes: Vec<Inode>,
    /// The first is `root` itself, which always exists.
    directories: Vec<Directory>,
}

impl DiskModel {
    /// A model of the content of `root`, all of it certain.
    pub(super) fn of(root: &Path) -> Self {
        let mut model = Self {
            root: root.to_path_buf(),
            inodes: Vec::new(),
            directories: Vec::new(),
        };
        model.adopt(root);
        model
    }

    fn adopt(&mut self, path: &Path) -> usize {
        let id = self.directories.len();
        self.directories.push(Directory::default());
        let mut entries = Entries::new();
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let node = if entry.file_type().unwrap().is_dir() {
                Node::Dir(self.adopt(&entry.path()))
            } else {
                self.inodes.push(Inode {
                    durable: fs::read(entry.path()).unwrap(),
                    ..Inode::default()
                });
                Node::File(self.inodes.len() - 1)
            };
            entries.insert(name, node);
        }
        self.directories[id].durable = entries.clone();
        self.directories[id].current = entries;
        id
    }

    /// The directory of a path, and the name in it.
    fn entry_of(&self, path: &Path) -> Option<(usize, String)> {
        let relative = path.strip_prefix(&self.root).ok()?;
        let mut names: Vec<&str> = relative.iter().map(|n| n.to_str().unwrap()).collect();
        let name = names.pop()?;
        let mut id = 0;
        for name in names {
            match self.directories[id].current.get(name) {
                Some(Node::Dir(inner)) => id = *inner,
                _ => return None,
            }
        }
        Some((id, name.to_owned()))
    }

    fn node(&self, path: &Path) -> Option<Node> {
        let (dir, name) = self.entry_of(path)?;
        self.directories[dir].current.get(&name).copied()
    }

    fn inode(&mut self, path: &Path) -> Option<&mut Inode> {
        match self.node(path)? {
            Node::File(id) => Some(&mut self.inodes[id]),
            Node::Dir(_) => None,
        }
    }

    /// Applies a change, as far as it can succeed; of a write only the first `part` bytes.
    pub(super) fn apply(&mut self, change: &Change<'_>, part: usize) {
        match *change {
            Change::Create { path } => match self.inode(path) {
                Some(inode) => inode.pending.push(Pending::SetLen(0)),
                None => self.create_file(path),
            },
            Change::Open { path } => {
                if self.node(path).is_none() {
                    self.create_file(path);
                }
            }
            Change::Write {
                path,
                position,
                bytes,
            } => {
                let write = Pending::Write {
                    at: position as usize,
                    bytes: bytes[..part].to_vec(),
                };
                if let Some(inode) = self.inode(path) {
                    inode.pending.push(write);
                }
            }
            Change::SetLen { path, len } => {
                if let Some(inode) = self.inode(path) {
                    inode.pending.push(Pending::SetLen(len as usize));
                    inode.sealed = false;
                }
            }
            Change::Allocate { path, .. } => {
                if let Some(inode) = self.inode(path) {
                    inode.sealed = false;
                }
            }
            Change::Sync { path } => {
                if let Some(inode) = self.inode(path) {
                    let is_cut = matches!(inode.pending.last(), Some(Pending::SetLen(_)));
                    for pending in std::mem::take(&mut inode.pending) {
                        pending.apply(&mut inode.durable);
                    }
                    if is_cut && is_mapped(path.as_os_str().as_encoded_bytes()) {
                        inode.durable = fs::read(path).unwrap_or_default();
                        inode.sealed = true;
                    }
                }
            }
            Change::SyncDir { path } => {
                let id = if path == self.root {
                    Some(0)
                } else {
                    self.node(path).and_then(|node| match node {
                        Node::Dir(id) => Some(id),
                        Node::File(_) => None,
                    })
                };
                if let Some(id) = id {
                    let directory = &mut self.directories[id];
                    directory.pending.clear();
                    directory.durable = directory.current.clone();
                }
            }
            Change::Rename { from, to } => self.rename(from, to),
            Change::Remove { path } => self.remove(path),
            Change::CreateDir { path } => self.create_dir(path),
            Change::RemoveDir { path } => {
                if let Some(Node::Dir(id)) = self.node(path) {
                    for name in self.directories[id].current.clone().into_keys() {
                        self.remove(&path.join(name));
                    }
                    self.remove(path);
                }
            }
        }
    }

    fn create_file(&mut self, path: &Path) {
        if let Some((dir, name)) = self.entry_of(path) {
            self.inodes.push(Inode::default());
            let node = Node::File(self.inodes.len() - 1);
            self.directories[dir].change(EntryChange::Set(name, node));
        }
    }

    fn create_dir(&mut self, path: &Path) {
        if let Some((dir, name)) = self.entry_of(path)
            && !self.directories[dir].current.contains_key(&name)
        {
            self.directories.push(Directory::default());
            let node = Node::Dir(self.directories.len() - 1);
            self.directories[dir].change(EntryChange::Set(name, node));
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        let (Some((dir, from)), Some((same, to))) = (self.entry_of(from), self.entry_of(to)) else {
            return;
        };
        assert_eq!(dir, same, "a rename across directories is not modelled");
        if let Some(node) = self.directories[dir].current.get(&from).copied() {
            self.directories[dir].change(EntryChange::Rename(from, to, node));
        }
    }

    fn remove(&mut self, path: &Path) {
        if let Some((dir, name)) = self.entry_of(path)
            && self.directories[dir].current.contains_key(&name)
        {
            self.directories[dir].change(EntryChange::Remove(name));
        }
    }

    /// Writes to the empty directory `target` what a restart after a power loss at this moment finds.
    pub(super) fn power_loss(&self, random: &mut Random, target: &Path) {
        let one_for_all = random.one_in(2).then(|| left(random));
        self.restore(0, &self.root, target, one_for_all, random);
    }

    /// True when all changes to a file are certain.
    pub(super) fn is_certain(&self, path: &Path) -> bool {
        match self.node(path) {
            Some(Node::File(id)) => self.inodes[id].pending.is_empty(),
            _ => false,
        }
    }

    /// Writes to `target` only what is certain.
    pub(super) fn certain_only(&self, target: &Path) {
        let unused = &mut Random::new(0);
        self.restore(0, &self.root, target, Some(Left::Nothing), unused);
    }

    fn restore(&self, id: usize, live: &Path, target: &Path, one_for_all: Option<Left>, random: &mut Random) {
        let directory = &self.directories[id];
        let how = one_for_all.unwrap_or_else(|| left(random));
        for (name, node) in directory.after(how, random) {
            let (live, target) = (live.join(&name), target.join(&name));
            match node {
                Node::Dir(inner) => {
                    fs::create_dir(&target).unwrap();
                    self.restore(inner, &live, &target, one_for_all, random);
                }
                Node::File(inner) => {
                    let how = one_for_all.unwrap_or_else(|| left(random));
                    let mut bytes = self.inodes[inner].after(how, random);
                    let is_sealed = self.inodes[inner].sealed;
                    if is_mapped(name.as_bytes()) && !is_sealed {
                        let same = self.node(&live) == Some(node);
                        let mapped = same.then(|| fs::read(&live).unwrap_or_default());
                        mapped_bytes(&mut bytes, &mapped.unwrap_or_default(), random);
                    }
                    fs::write(&target, bytes).unwrap();
                }
            }
        }
    }
}

/// Whether a file of this name is written through a mapping.
fn is_mapped(name: &[u8]) -> bool {
    let suffixes = [INDEX_SUFFIX, TIME_INDEX_SUFFIX];
    suffixes.iter().any(|suffix| name.ends_with(suffix.as_bytes()))
}

fn left(random: &mut Random) -> Left {
    *random.pick(&[Left::Nothing, Left::Everything, Left::Beginning, Left::Scattered])
}

/// Fills an index file, of which only the length is known, with what may be left of the stores through its
/// mapping.
fn mapped_bytes(bytes: &mut Vec<u8>, mapped: &[u8], random: &mut Random) {
    let length = bytes.len();
    bytes.clear();
    match random.below(6) {
        0 => {}
        1 => *bytes = random.bytes(length),
        2 => {
            bytes.extend(mapped);
            for piece in bytes.chunks_mut(8) {
                if random.one_in(2) {
                    piece.fill(0);
                }
            }
        }
        3 => bytes.extend(&mapped[..random.between(0, mapped.len())]),
        _ => bytes.extend(mapped),
    }
    bytes.resize(length, 0);
}

impl Pending {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::SetLen(len) => bytes.resize(*len, 0),
            Self::Write { at, bytes: written } => put(bytes, *at, written),
        }
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, written: &[u8]) {
    let end = at + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at..end].copy_from_slice(written);
}

impl Inode {
    fn after(&self, how: Left, random: &mut Random) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        match how {
            Left::Nothing => {}
            Left::Everything => self.pending.iter().for_each(|p| p.apply(&mut bytes)),
            Left::Beginning => {
                let kept = random.between(0, self.pending.len());
                self.pending[..kept].iter().for_each(|p| p.apply(&mut bytes));
                if let Some(Pending::Write { at, bytes: torn }) = self.pending.get(kept) {
                    let part = random.between(0, torn.len());
                    put(&mut bytes, *at, &torn[..part]);
                }
            }
            Left::Scattered => {
                for pending in &self.pending {
                    pending.apply_scattered(&mut bytes, random);
                }
            }
        }
        bytes
    }
}

impl Pending {
    /// Any sectors of a write; of a change of length all or nothing.
    fn apply_scattered(&self, bytes: &mut Vec<u8>, random: &mut Random) {
        let (at, written) = match self {
            Self::SetLen(_) if random.one_in(2) => return,
            Self::SetLen(len) => return bytes.resize(*len, 0),
            Self::Write { at, bytes } => (*at, bytes),
        };
        let end = at + written.len();
        let mut from = at;
        while from < end {
            let to = ((from / SECTOR + 1) * SECTOR).min(end);
            if random.one_in(2) {
                put(bytes, from, &written[from - at..to - at]);
            }
            from = to;
        }
        if random.one_in(2) && bytes.len() < end {
            // The new length reached the disk, and some of the bytes did not.
            bytes.resize(end, 0);
        }
    }
}

impl Directory {
    fn change(&mut self, change: EntryChange) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    fn after(&self, how: Left, random: &mut Random) -> Entries {
        let mut entries = self.durable.clone();
        let kept = match how {
            Left::Nothing => 0,
            Left::Everything | Left::Scattered => self.pending.len(),
            Left::Beginning => random.between(0, self.pending.len()),
        };
        for change in &self.pending[..kept] {
            if !matches!(how, Left::Scattered) || random.one_in(2) {
                change.apply(&mut entries);
            }
        }
        entries
    }
}

impl EntryChange {
    fn apply(&self, entries: &mut Entries) {
        match self {
            Self::Set(name, node) => {
                entries.insert(name.clone(), *node);
            }
            Self::Remove(name) => {
                entries.remove(name);
            }
            Self::Rename(from, to, node) => {
                entries.remove(from);
                entries.insert(to.clone(), *node);
            }
        }
    }
}

// Broken if it failed: the histories would run on a disk that loses nothing, and prove nothing.
#[test]
fn only_what_was_synced_is_certain() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let (kept, lost) = (root.join("kept"), root.join("lost"));
    let mut model = DiskModel::of(root);
    let write = |path, bytes| Change::Write {
        path,
        position: 0,
        bytes,
    };
    model.apply(&Change::Create { path: &kept }, 0);
    model.apply(&write(&kept, b"certain"), 7);
    model.apply(&Change::Sync { path: &kept }, 0);
    model.apply(&Change::SyncDir { path: root }, 0);
    model.apply(&write(&kept, b"perhaps"), 7);
    model.apply(&Change::Create { path: &lost }, 0);
    model.apply(&write(&lost, b"perhaps"), 7);
    let mut random = Random::new(7);
    let mut seen = [0; 4];
    for _ in 0..200 {
        let target = tempfile::tempdir().unwrap();
        model.power_loss(&mut random, target.path());
        match fs::read(target.path().join("kept")).unwrap().as_slice() {
            b"certain" => seen[0] += 1,
            b"perhaps" => seen[1] += 1,
            torn => assert_eq!(torn.len(), 7),
        }
        match fs::read(target.path().join("lost")) {
            Err(_) => seen[2] += 1,
            Ok(bytes) if bytes.len() < 7 => seen[3] += 1,
            Ok(_) => {}
        }
    }
    assert!(seen.iter().all(|count| *count > 5), "{seen:?}");
}
