//! The reserve of file descriptors and of memory mappings.
//!
//! Each segment and each connection uses a descriptor. Without any left, a log can neither roll nor be
//! flushed. So connections leave an eighth of the limit (`ulimit -n`) to the logs, and new partitions leave a
//! quarter. Nothing is counted here: the system assigns the lowest free number, so the number of a new
//! descriptor shows how many are used. A limit that is changed at run time (`prlimit`) holds at once.
//!
//! The indexes of a segment are memory-mapped, and the system limits the mappings of a process
//! (`vm.max_map_count`), by default to fewer than a broker's descriptors. New partitions leave an eighth of
//! them, for later segments and for everything else.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use logcore_storage::{StorageError, mappings};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

const RESERVE_MAX: u64 = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// `ulimit -n`
    pub(crate) limit: u64,
    reserve: u64,
}

impl Descriptors {
    pub(crate) fn now() -> Self {
        Self::with_limit(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    fn with_limit(limit: u64) -> Self {
        Self {
            limit,
            reserve: (limit / 8).min(RESERVE_MAX),
        }
    }

    pub(crate) fn allow_connection(self, descriptor: RawFd) -> bool {
        number(descriptor) < self.limit - self.reserve
    }

    /// How many more logs may be created. `any` is any open descriptor.
    pub(crate) fn logs_left(self, any: impl AsFd) -> u64 {
        let end = self.limit - 2 * self.reserve;
        rustix::io::dup(any).map_or(0, |next| end.saturating_sub(number(next.as_raw_fd())))
    }
}

/// The limit of mappings. There is none if the system does not tell.
pub(crate) fn mapping_limit() -> u64 {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    limit
        .ok()
        .and_then(|limit| limit.trim().parse().ok())
        .unwrap_or(u64::MAX)
}

/// How many more logs the limit of mappings allows: each needs two.
pub(crate) fn logs_left_by_mappings() -> u64 {
    let limit = mapping_limit();
    (limit - limit / 8).saturating_sub(mappings()) / 2
}

fn number(descriptor: RawFd) -> u64 {
    u64::from(descriptor.unsigned_abs())
}

/// The advice after an error of a log without a descriptor or mapping. Empty for another error.
pub(crate) fn advice_for(error: &StorageError) -> &'static str {
    match error {
        StorageError::Io { source, .. } if error.is_out_of_files() => match advice(source) {
            "" => "; raise the limit of mappings (vm.max_map_count)",
            advice => advice,
        },
        _ => "",
    }
}

/// The advice after an error for lack of descriptors. Empty for another error.
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

    // If this failed, connections could use the descriptors that logs need, or logs those that connections
    // need.
    #[test]
    fn the_last_descriptors_are_reserved() {
        let some = Descriptors::with_limit(800);
        assert!(some.allow_connection(699));
        assert!(!some.allow_connection(700));
        let null = std::fs::File::open("/dev/null").unwrap();
        let next = u64::from(null.as_raw_fd().unsigned_abs()) + 1;
        assert_eq!(Descriptors::with_limit(0).logs_left(&null), 0);
        let left = Descriptors::with_limit(80_000).logs_left(&null);
        // Other tests of this process open and close files at the same time.
        assert!(
            (70_000..=80_000 - 2 * RESERVE_MAX).contains(&left),
            "{left} {next}"
        );
        assert!(Descriptors::with_limit(u64::MAX).logs_left(&null) > 0);
    }
}
