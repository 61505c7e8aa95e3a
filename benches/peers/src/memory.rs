//! What is allocated, counted by the global allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// The system's allocator, which counts while it is told to.
pub struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicUsize = AtomicUsize::new(0);

fn count(bytes: usize, sign: fn(&AtomicUsize, usize)) {
    // Off while times are measured, so that nobody pays for it there.
    if COUNTS.load(Ordering::Relaxed) {
        sign(&LIVE, bytes);
    }
}

fn add(live: &AtomicUsize, bytes: usize) {
    live.fetch_add(bytes, Ordering::Relaxed);
}

fn take(live: &AtomicUsize, bytes: usize) {
    live.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came, and what that returns is returned.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), add);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), add);
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), take);
        count(size, add);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(layout.size(), take);
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(block, layout) }
    }
}

/// What `work` has allocated and its result still holds, in bytes as asked for.
///
/// Nothing else may free meanwhile what was allocated before.
pub fn held_by<T>(work: impl FnOnce() -> T) -> (usize, T) {
    LIVE.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
    let result = work();
    COUNTS.store(false, Ordering::Relaxed);
    (LIVE.load(Ordering::Relaxed), result)
}
