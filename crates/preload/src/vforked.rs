//! A child that vfork made, which runs in its parent's memory.

use core::sync::atomic::Ordering;

use shunpike_core::{process, sys, tls};

/// The thread is about to call vfork.
pub fn begins() {
    tls::thread().vforked.store(1, Ordering::Relaxed);
}

/// Whether this is a vfork child, which shares our memory but has descriptors of its own: what it closes or
/// duplicates is not ours. (A forked child has been through `in_child`.) Costs a load on a thread that has not
/// called vfork since it last asked.
pub fn foreign_process() -> bool {
    let vforked = &tls::thread().vforked;
    if vforked.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let foreign = process::enabled() && process::pid() != sys::pid();
    if !foreign {
        // The parent again.
        vforked.store(0, Ordering::Relaxed);
    }
    foreign
}
