//! What a process's libc knows of robust mutexes: where in one the word is, its calls for threads whose list is not known, and how it
//! shows a thread's list to the kernel.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::once::Once;

/// libc's functions for such a mutex, by their names without `pthread_mutex_`.
#[derive(Copy, Clone)]
pub struct Calls {
    /// pthread_mutex_destroy(3)
    pub destroy: unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> i32,
    /// pthread_mutex_lock(3)
    pub lock: unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> i32,
    /// pthread_mutex_timedlock(3)
    pub timedlock: unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::timespec) -> i32,
    /// pthread_mutex_trylock(3)
    pub trylock: unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> i32,
    /// pthread_mutex_unlock(3)
    pub unlock: unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> i32,
    /// pthread_mutex_consistent(3)
    pub consistent: unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> i32,
}

/// What the entry says of the process's libc.
pub struct Libc {
    /// Whether it is musl: its mutex has the word at another place.
    pub is_musl: fn() -> bool,
    /// Its calls. `None` in a process that has not loaded them, or whose libc knows another mutex than glibc's.
    pub calls: fn() -> Option<Calls>,
    /// Has musl, which does so late, show the calling thread's list to the kernel.
    pub show_list: fn(),
}

/// A process without libc: threads' lists are the kernel's to tell, or our own.
pub static NO_LIBC: Libc = Libc { is_musl: || cfg!(target_env = "musl"), calls: || None, show_list: || {} };

static LIBC: Once<Libc> = Once::with(&NO_LIBC);

pub(super) const IN_GLIBC: usize = 0;
pub(super) const IN_MUSL: usize = 1;

/// Which of its words a lock is. It is read by each call and written at start-up alone, so it has a line of its own.
#[repr(align(64))]
struct Place(AtomicUsize);

static PLACE: Place = Place(AtomicUsize::new(IN_GLIBC));

/// At start-up, before the first lock is made.
pub fn start(libc: &'static Libc) {
    LIBC.set(libc);
    PLACE.0.store(if (libc.is_musl)() { IN_MUSL } else { IN_GLIBC }, Ordering::Relaxed);
}

#[inline(always)]
pub(super) fn place() -> usize {
    // Other values are not stored; said for the check of bounds, which goes.
    PLACE.0.load(Ordering::Relaxed) & 1
}

/// Its calls.
#[cfg(not(miri))]
pub(super) fn calls() -> Option<Calls> {
    (LIBC.get().calls)()
}

/// miri knows no assembly: all locks are glibc's there.
#[cfg(miri)]
pub(super) fn calls() -> Option<Calls> {
    Some(Calls {
        destroy: libc::pthread_mutex_destroy,
        lock: libc::pthread_mutex_lock,
        timedlock: libc::pthread_mutex_timedlock,
        trylock: libc::pthread_mutex_trylock,
        unlock: libc::pthread_mutex_unlock,
        consistent: libc::pthread_mutex_consistent,
    })
}

/// Has it show the calling thread's list to the kernel.
pub(super) fn show_list() {
    (LIBC.get().show_list)();
}
