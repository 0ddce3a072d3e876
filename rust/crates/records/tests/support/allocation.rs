//! Counts the allocations of each thread and of all threads, so that a test can limit a call's memory.
//!
//! Allocations by C code, such as zstd's contexts, are not counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

static ALL_NOW: AtomicIsize = AtomicIsize::new(0);
static ALL_MOST: AtomicIsize = AtomicIsize::new(0);

fn count(change: isize) {
    let all = ALL_NOW.fetch_add(change, Ordering::Relaxed) + change;
    ALL_MOST.fetch_max(all, Ordering::Relaxed);
    // A thread that is ending has no counters any more, and measures nothing.
    let _ended = NOW.try_with(|now| {
        now.set(now.get() + change);
        let _ended = MOST.try_with(|most| most.set(most.get().max(now.get())));
    });
}

// SAFETY: every call is passed to the system's allocator unchanged, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The peak of this thread's allocated bytes during a call, above those before it.
pub(crate) fn most_during<T>(call: impl FnOnce() -> T) -> (usize, T) {
    let before = NOW.with(Cell::get);
    MOST.with(|most| most.set(before));
    let result = call();
    let most = MOST.with(Cell::get) - before;
    (most as usize, result)
}

/// The same for all threads together.
pub(crate) fn most_of_all_threads_during<T>(call: impl FnOnce() -> T) -> (usize, T) {
    let before = ALL_NOW.load(Ordering::Relaxed);
    ALL_MOST.store(before, Ordering::Relaxed);
    let result = call();
    let most = ALL_MOST.load(Ordering::Relaxed) - before;
    (most as usize, result)
}

// Broken if it failed: the other tests' memory limits would check nothing.
#[test]
fn allocations_are_counted() {
    let (most, kept) = most_during(|| {
        drop(vec![1u8; 100_000]);
        let mut kept = vec![1u8; 1000];
        kept.reserve_exact(50_000);
        kept
    });
    assert!((100_000..110_000).contains(&most), "{most}");
    let (most, ()) = most_during(|| drop(kept));
    assert_eq!(most, 0);
}
