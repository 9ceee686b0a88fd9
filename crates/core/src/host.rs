//! What core needs of what it lives in: one table, which the entry fills in at start-up.
//!
//! Everything else that core asks for it asks the kernel for. A process without a table (a test, a program that links core itself) has
//! one of which each part is the kernel's own, or does nothing.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::sys::{self, Res};
use shunpike_shm::once::Once;

/// See the module. All are called in any thread at any time after start-up.
pub struct Host {
    /// ppoll(2) for sleeps: where the entry's program can cancel a thread in it, the callers' frames are unwound, so that they hold no lock
    /// and nothing that must be dropped. Nanoseconds, `None` for ever; the mask is the program's own or null.
    pub poll: fn(&mut [libc::pollfd], Option<u64>, *const libc::sigset_t) -> Res,
    /// epoll_pwait2(2) likewise.
    pub epoll: fn(i32, &mut [libc::epoll_event], Option<u64>, *const libc::sigset_t) -> Res,
    /// Delivers the signals that the calling thread's critical section has kept back ([`tls::Thread::kept`](crate::tls::Thread::kept)).
    pub deliver: fn(),
    /// Puts [`user::answered`](crate::user::answered) before the program's handlers of SIGSEGV and SIGBUS. Once, before the first copy
    /// that follows [`user::start`](crate::user::start).
    pub answer_faults: fn(),
    /// Whether there is a handler without SA_RESTART that the program has installed past the entry, which may have run.
    pub may_be_interrupted: fn() -> bool,
    /// The calling thread has something to give back: [`sets::recall`](crate::sets::recall) and [`wait::thread_ends`](crate::wait::thread_ends) are to be called at its end.
    pub owes: fn(),
    /// The CPU that the calling thread runs on; any number where that cannot be said.
    pub cpu: fn() -> u32,
    /// A value of the auxiliary vector (getauxval(3)); 0 where there is none.
    pub auxiliary: fn(u64) -> u64,
    /// A byte that is not 0 while the calling thread is the only one; `None` where that cannot be said.
    pub alone: fn() -> Option<&'static AtomicU8>,
    /// What libc knows of locks that processes share.
    pub locks: &'static shunpike_shm::lock::Libc,
}

/// The kernel alone.
static BARE: Host = Host {
    poll: sys::poll,
    epoll: sys::epoll_for,
    deliver: || {},
    answer_faults: || {},
    may_be_interrupted: || false,
    owes: || {},
    cpu: sys::cpu,
    auxiliary: |_| 0,
    alone: || None,
    locks: &shunpike_shm::lock::NO_LIBC,
};

static HOST: Once<Host> = Once::with(&BARE);
static NOT_KNOWN: AtomicU8 = AtomicU8::new(0);
static ALONE: Once<AtomicU8> = Once::with(&NOT_KNOWN);

/// Names the host. Once, at start-up: also before `enabled`, which leaves programs of more rights alone. A constructor that runs earlier
/// finds the kernel's.
pub fn start(host: &'static Host) {
    HOST.set(host);
    if let Some(alone) = (host.alone)() {
        ALONE.set(alone);
    }
    shunpike_shm::lock::start(host.locks);
}

/// The host.
#[inline]
pub(crate) fn host() -> &'static Host {
    HOST.get()
}

/// Whether the calling thread is the only one; no where that cannot be said. Two loads.
#[inline]
pub fn is_alone() -> bool {
    ALONE.get().load(Ordering::Relaxed) != 0
}
