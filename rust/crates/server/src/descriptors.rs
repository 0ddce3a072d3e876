//! Who may take the last file descriptors of the process.
//!
//! Every segment and every connection has one. When none is left, a log can neither roll nor be flushed, so the last ones
//! are kept: connections leave an eighth of the limit (`ulimit -n`) to the logs, and new partitions leave as much again
//! to connections. The system gives out the lowest free number, so a number tells that all below it are taken; nothing is
//! counted here, and a limit that is changed while the process runs (`prlimit`) holds at once.
//!
//! The indexes of a segment are mapped into memory, and the system gives a process so many mappings (`vm.max_map_count`), by
//! default fewer than the descriptors that a broker is given. Of those, too, new partitions leave some: for the segments to come,
//! and for what else has mappings.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use logcore_storage::{StorageError, mappings};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// The most that is kept for the logs, however high the limit.
const RESERVE_MAX: u64 = 1024;

/// The process's limit, and what is kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// `ulimit -n`
    pub(crate) limit: u64,
    reserve: u64,
}

impl Descriptors {
    /// By the limit as it is now.
    pub(crate) fn now() -> Self {
        Self::with_limit(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    fn with_limit(limit: u64) -> Self {
        Self {
            limit,
            reserve: (limit / 8).min(RESERVE_MAX),
        }
    }

    /// Whether a connection may keep the descriptor it was given.
    pub(crate) fn leave_room_for_logs(self, descriptor: RawFd) -> bool {
        number(descriptor) < self.limit - self.reserve
    }

    /// How many more logs may be created. `any` is some open descriptor.
    pub(crate) fn room_for_logs(self, any: impl AsFd) -> u64 {
        let end = self.limit - 2 * self.reserve;
        rustix::io::dup(any).map_or(0, |next| end.saturating_sub(number(next.as_raw_fd())))
    }
}

/// How many mappings the process may have; without end where the system does not say.
pub(crate) fn mapping_limit() -> u64 {
    let said = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    said.ok()
        .and_then(|said| said.trim().parse().ok())
        .unwrap_or(u64::MAX)
}

/// How many more logs may be created by the mappings that there are: each takes two.
pub(crate) fn mapping_room_for_logs() -> u64 {
    let limit = mapping_limit();
    (limit - limit / 8).saturating_sub(mappings()) / 2
}

fn number(descriptor: RawFd) -> u64 {
    u64::from(descriptor.unsigned_abs())
}

/// What to do when there is no descriptor or mapping left for a log, to follow the error; empty for another error.
pub(crate) fn advice_for(error: &StorageError) -> &'static str {
    match error {
        StorageError::Io { source, .. } if error.is_out_of_files() => match advice(source) {
            "" => "; raise the limit of mappings (vm.max_map_count)",
            advice => advice,
        },
        _ => "",
    }
}

/// What to do when there is no descriptor left, to follow the error; empty for another error.
pub(crate) fn advice(error: &std::io::Error) -> &'static str {
    let none_left = [Errno::MFILE, Errno::NFILE]
        .map(Errno::raw_os_error)
        .map(Some)
        .contains(&error.raw_os_error());
    if none_left {
        "; raise the limit of open files (ulimit -n)"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, connections could take the descriptors that logs need, or logs those that connections need.
    #[test]
    fn the_last_descriptors_are_kept() {
        let some = Descriptors::with_limit(800);
        assert!(some.leave_room_for_logs(699));
        assert!(!some.leave_room_for_logs(700));
        let null = std::fs::File::open("/dev/null").unwrap();
        let next = u64::from(null.as_raw_fd().unsigned_abs()) + 1;
        assert_eq!(Descriptors::with_limit(0).room_for_logs(&null), 0);
        let room = Descriptors::with_limit(80_000).room_for_logs(&null);
        // Other tests of this process open and close files at the same time.
        assert!(
            (70_000..=80_000 - 2 * RESERVE_MAX).contains(&room),
            "{room} {next}"
        );
        assert!(Descriptors::with_limit(u64::MAX).room_for_logs(&null) > 0);
    }
}
