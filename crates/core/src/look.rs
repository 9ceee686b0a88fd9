//! When the session is looked at without the broker's asking: for what waits to be done, at once or ever more seldom.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// There are connections to be nominated later, or DMBs to be let go of.
pub(crate) static LATER: AtomicBool = AtomicBool::new(false);
/// When a socket that may have nothing for us is looked at again, ticks, and how long after that, microseconds.
pub(crate) static LOOK_AT: AtomicU64 = AtomicU64::new(0);
pub(crate) static LOOK_PAUSE_US: AtomicU32 = AtomicU32::new(0);

/// This process has closed connections that other processes of the tree go on with, and that may be over.
pub(crate) static LEFT: AtomicBool = AtomicBool::new(false);

/// There is something that the next call of any kind should attend to.
pub(crate) fn look_soon() {
    LATER.store(true, Ordering::Relaxed);
    LOOK_PAUSE_US.store(0, Ordering::Relaxed);
    LOOK_AT.store(0, Ordering::Relaxed);
}

/// The next call is to attend to something that other threads keep from being done: with longer and longer pauses.
pub(crate) fn look_later() {
    LATER.store(true, Ordering::Relaxed);
}

/// Whether connections wait to be nominated.
pub(crate) fn has_later() -> bool {
    LATER.load(Ordering::Relaxed)
}
