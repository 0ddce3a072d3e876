//! A layer between a log and its disk that keeps the [`DiskModel`] and makes the fault that a history has
//! armed.
//!
//! A crash refuses the change that it strikes (a write may be torn first) and all later ones: for the disk
//! the process is dead, whatever its code still does. A full disk refuses changes that need space until space
//! is freed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::disk_model::DiskModel;
use crate::files::disk::Change;
use crate::files::disk::watch::{Watcher, Watching, watch};
use crate::support::random::Random;

/// The kinds of [`Change`], for counting and aiming.
pub(super) const KINDS: [&str; 11] = [
    "create",
    "open",
    "write",
    "set_len",
    "allocate",
    "sync",
    "sync_dir",
    "rename",
    "remove",
    "create_dir",
    "remove_dir",
];

fn kind_of(change: &Change<'_>) -> usize {
    match change {
        Change::Create { .. } => 0,
        Change::Open { .. } => 1,
        Change::Write { .. } => 2,
        Change::SetLen { .. } => 3,
        Change::Allocate { .. } => 4,
        Change::Sync { .. } => 5,
        Change::SyncDir { .. } => 6,
        Change::Rename { .. } => 7,
        Change::Remove { .. } => 8,
        Change::CreateDir { .. } => 9,
        Change::RemoveDir { .. } => 10,
    }
}

/// Prints a step when one history is run alone.
pub(super) fn trace(what: std::fmt::Arguments<'_>) {
    static ALONE: OnceLock<bool> = OnceLock::new();
    if *ALONE.get_or_init(|| std::env::var_os("LOGCORE_SEED").is_some()) {
        eprintln!("{what}");
    }
}

/// A change in short: its kind, the file's name, and the bytes.
fn described(change: &Change<'_>) -> String {
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let kind = KINDS[kind_of(change)];
    match change {
        Change::Write {
            path,
            position,
            bytes,
        } => format!("{kind} {} {position}+{}", name(path), bytes.len()),
        Change::SetLen { path, len } => format!("{kind} {} {len}", name(path)),
        Change::Rename { from, to } => format!("{kind} {} {}", name(from), name(to)),
        Change::Create { path }
        | Change::Open { path }
        | Change::Allocate { path, .. }
        | Change::Sync { path }
        | Change::SyncDir { path }
        | Change::Remove { path }
        | Change::CreateDir { path }
        | Change::RemoveDir { path } => format!("{kind} {}", name(path)),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process ends, or the power fails.
    Crash,
    /// The change fails with EIO, once.
    Error,
    /// There is no space from this change on.
    Full,
}

/// A fault that will strike after `skip` more changes, counting one kind if it is set.
#[derive(Debug, Clone, Copy)]
struct Armed {
    fault: Fault,
    kind: Option<usize>,
    skip: usize,
}

#[derive(Debug)]
struct State {
    model: DiskModel,
    random: Random,
    armed: Option<Armed>,
    dead: bool,
    full: bool,
    /// The change that failed with EIO.
    failed: Option<usize>,
    /// The end of each file's allocated blocks.
    allocated: BTreeMap<PathBuf, u64>,
    crashes: [usize; KINDS.len()],
    errors: [usize; KINDS.len()],
    refused: usize,
}

#[derive(Debug)]
struct Shared(Mutex<State>);

/// The disk below one directory.
pub(super) struct FaultyDisk {
    root: PathBuf,
    shared: Arc<Shared>,
    _watching: Watching,
}

impl FaultyDisk {
    /// Watches `root`. All of its content is certain.
    pub(super) fn new(root: &Path, seed: u64) -> Self {
        let shared = Arc::new(Shared(Mutex::new(State {
            model: DiskModel::of(root),
            random: Random::new(seed),
            armed: None,
            dead: false,
            full: false,
            failed: None,
            allocated: BTreeMap::new(),
            crashes: [0; KINDS.len()],
            errors: [0; KINDS.len()],
            refused: 0,
        })));
        Self {
            root: root.to_path_buf(),
            _watching: watch(root, shared.clone()),
            shared,
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Makes a fault strike one of the next changes.
    pub(super) fn arm(&self, fault: Fault) {
        let mut state = self.shared.0.lock();
        let aimed = state.random.one_in(2);
        let kind = aimed.then(|| state.random.below(KINDS.len()));
        let skip = if aimed {
            state.random.below(4)
        } else {
            state.random.below(40)
        };
        state.armed = Some(Armed { fault, kind, skip });
    }

    pub(super) fn disarm(&self) {
        let mut state = self.shared.0.lock();
        state.armed = None;
        state.failed = None;
    }

    pub(super) fn is_armed(&self) -> bool {
        let state = self.shared.0.lock();
        state.armed.is_some() || state.full
    }

    pub(super) fn is_dead(&self) -> bool {
        self.shared.0.lock().dead
    }

    pub(super) fn is_full(&self) -> bool {
        self.shared.0.lock().full
    }

    pub(super) fn has_failed(&self) -> bool {
        self.shared.0.lock().failed.is_some()
    }

    pub(super) fn fill_up(&self) {
        self.shared.0.lock().full = true;
    }

    /// True when a power loss leaves a file as it is.
    pub(super) fn is_certain(&self, path: &Path) -> bool {
        self.shared.0.lock().model.is_certain(path)
    }

    pub(super) fn free_space(&self) {
        self.shared.0.lock().full = false;
    }

    /// From here on nothing reaches the disk: the process ends between two changes.
    pub(super) fn kill(&self) {
        self.shared.0.lock().dead = true;
    }

    /// A new process on the same machine: everything that was written is there.
    pub(super) fn restart_process(&self) {
        let mut state = self.shared.0.lock();
        state.dead = false;
        state.full = false;
        state.armed = None;
        state.failed = None;
    }

    /// The machine loses its power: what is left is written to the empty directory `target`.
    pub(super) fn lose_power(&self, random: &mut Random, target: &Path) {
        self.shared.0.lock().model.power_loss(random, target);
    }

    /// As [`FaultyDisk::lose_power`], and only what is certain is left.
    pub(super) fn lose_all_but_the_certain(&self, target: &Path) {
        self.shared.0.lock().model.certain_only(target);
    }

    /// Crashes and errors by the kind of change that they struck, and changes that were refused because of a
    /// lack of space.
    pub(super) fn counts(&self) -> ([usize; KINDS.len()], [usize; KINDS.len()], usize) {
        let state = self.shared.0.lock();
        (state.crashes, state.errors, state.refused)
    }
}

impl State {
    fn takes_space(&self, change: &Change<'_>) -> bool {
        match change {
            Change::Write {
                path,
                position,
                bytes,
            } => {
                let allocated = self.allocated.get(*path).copied().unwrap_or(0);
                position + bytes.len() as u64 > allocated
            }
            Change::Create { .. }
            | Change::Open { .. }
            | Change::Allocate { .. }
            | Change::CreateDir { .. } => true,
            _ => false,
        }
    }

    /// Notes the blocks that files have and do not use.
    fn note_allocated(&mut self, change: &Change<'_>) {
        match change {
            Change::Allocate { path, end } => {
                self.allocated.insert(path.to_path_buf(), *end);
            }
            Change::Create { path }
            | Change::SetLen { path, .. }
            | Change::Remove { path }
            | Change::Rename { from: path, .. } => {
                self.allocated.remove(*path);
            }
            Change::RemoveDir { path } => {
                self.allocated.retain(|file, _| !file.starts_with(path));
            }
            _ => {}
        }
    }

    /// The fault that strikes this change.
    fn strikes(&mut self, change: &Change<'_>) -> Option<Fault> {
        let takes_space = self.takes_space(change);
        let armed = self.armed.as_mut()?;
        if armed.kind.is_some_and(|kind| kind != kind_of(change))
            || (armed.fault == Fault::Full && !takes_space)
        {
            return None;
        }
        if armed.skip > 0 {
            armed.skip -= 1;
            return None;
        }
        let fault = armed.fault;
        self.armed = None;
        Some(fault)
    }

    /// Lets a part of a write through, and nothing of another change.
    fn tear(&mut self, change: &Change<'_>, error: io::Error) -> io::Result<Option<(usize, io::Error)>> {
        let Change::Write { bytes, .. } = change else {
            return Err(error);
        };
        // The last byte stays out: a write that did everything and reports an error is a crash after it.
        let part = self.random.below(bytes.len().max(1));
        self.model.apply(change, part);
        Ok(Some((part, error)))
    }
}

impl Watcher for Shared {
    fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        let mut state = self.0.lock();
        if state.dead {
            return Err(io::Error::other("the process is dead"));
        }
        let kind = kind_of(&change);
        let strikes = state.strikes(&change);
        trace(format_args!("    {} {strikes:?}", described(&change)));
        match strikes {
            Some(Fault::Crash) => {
                state.dead = true;
                state.crashes[kind] += 1;
                return state.tear(&change, io::Error::other("the process dies"));
            }
            Some(Fault::Error) => {
                state.failed = Some(kind);
                state.errors[kind] += 1;
                return state.tear(&change, rustix::io::Errno::IO.into());
            }
            Some(Fault::Full) => state.full = true,
            None => {}
        }
        if state.full && state.takes_space(&change) {
            state.refused += 1;
            return state.tear(&change, rustix::io::Errno::NOSPC.into());
        }
        let all = match change {
            Change::Write { bytes, .. } => bytes.len(),
            _ => 0,
        };
        state.note_allocated(&change);
        state.model.apply(&change, all);
        Ok(None)
    }
}
