//! Which process this is, without asking the kernel at each append.
//!
//! The answer is kept in a page of its own that the kernel wipes in the child of a fork (`MADV_WIPEONFORK`, Linux 4.14), so
//! that a child never takes itself for its parent, however it was forked. Where there is no such page the kernel is
//! asked each time. Any thread may ask.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::MmapMut;
use rustix::mm::{Advice, madvise};

/// The page, zero until somebody asks.
static PAGE: OnceLock<Option<MmapMut>> = OnceLock::new();

/// The id of this process.
pub fn id() -> u32 {
    let Some(page) = PAGE.get_or_init(wiped_page) else {
        return std::process::id();
    };
    // SAFETY: the mapping is private to this process, is never unmapped because it is in a static, begins on a page, and
    // has four bytes at least; any bits are an AtomicU32, and nobody looks at them but through this reference. The
    // kernel writes them only in a child that is being forked, before it runs.
    let known = unsafe { &*page.as_ptr().cast::<AtomicU32>() };
    match known.load(Ordering::Relaxed) {
        // No process of ours has this id: not asked yet, or in a child since the fork.
        0 => {
            let id = std::process::id();
            known.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

fn wiped_page() -> Option<MmapMut> {
    let page = MmapMut::map_anon(size_of::<AtomicU32>()).ok()?;
    let start = page.as_ptr().cast_mut().cast();
    // SAFETY: the range is a mapping of our own, anonymous and private as this advice asks for, and holds nothing yet.
    unsafe { madvise(start, page.len(), Advice::LinuxWipeOnFork) }.ok()?;
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: every append would be refused as another process's. That a child of a fork is told apart is
    // for the Python tests to show, which can fork.
    #[test]
    fn it_is_what_the_kernel_says() {
        for _ in 0..3 {
            assert_eq!(id(), std::process::id());
        }
    }
}
