//! Atomics that loom can replace, so that its models run the real code.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// After a read-modify-write, before a load that must not pass it.
///
/// On x86-64 every locked instruction is a full fence, so only the compiler must be told; loom and other
/// machines get the real one.
#[inline(always)]
pub(crate) fn full_fence_after_rmw() {
    if cfg!(all(target_arch = "x86_64", not(loom))) {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The cheap half of a pair of fences, whose other half is membarrier(2): that one has every running thread pass a
/// full fence at some point of its own, so here only the compiler must keep the order. loom knows no membarrier; a
/// fence on both sides promises the same.
#[inline(always)]
pub(crate) fn light_fence() {
    if cfg!(loom) {
        fence(Ordering::SeqCst);
    } else {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }
}
