//! A lock in memory shared by a process tree that survives the death of its holder.
//!
//! glibc's robust process-shared mutex: the kernel walks the dying thread's list and hands the lock on
//! (Documentation/locking/robust-futexes.rst). It is held for a memory copy or a non-blocking system call,
//! never while waiting. Signal handlers do not enter: the preload library delays them while one is held.

use core::cell::UnsafeCell;

/// See the module.
#[repr(C, align(64))]
pub struct RobustLock {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
}

// SAFETY: the mutex is process-shared and made to be used from any thread.
unsafe impl Send for RobustLock {}
// SAFETY: as above.
unsafe impl Sync for RobustLock {}

/// Unlocks on drop.
pub struct Guard<'a> {
    lock: &'a RobustLock,
    /// The holder before us died inside: what the lock protects must be derived anew from the shared words.
    pub inherited: bool,
}

impl RobustLock {
    /// Makes the mutex at this address. Not while anybody uses it.
    pub fn init(&self) {
        // SAFETY: plain pthread initialisation of memory that we own; attr lives until destroyed.
        unsafe {
            let mut attr = core::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
            libc::pthread_mutexattr_init(attr.as_mut_ptr());
            libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(attr.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.mutex.get(), attr.as_ptr());
            libc::pthread_mutexattr_destroy(attr.as_mut_ptr());
        }
    }

    /// Waits for the lock. A dead holder's lock is taken over and marked consistent.
    pub fn lock(&self) -> Guard<'_> {
        // SAFETY: initialised by `init` before the block was handed out.
        let rc = unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        self.guard(rc)
    }

    /// Takes the lock if nobody holds it.
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        // SAFETY: as in `lock`.
        let rc = unsafe { libc::pthread_mutex_trylock(self.mutex.get()) };
        (rc == 0 || rc == libc::EOWNERDEAD).then(|| self.guard(rc))
    }

    fn guard(&self, rc: i32) -> Guard<'_> {
        let inherited = rc == libc::EOWNERDEAD;
        if inherited {
            // SAFETY: we hold it, as EOWNERDEAD says.
            unsafe { libc::pthread_mutex_consistent(self.mutex.get()) };
        }
        Guard { lock: self, inherited }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: a Guard exists only while its thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.lock.mutex.get()) };
    }
}
