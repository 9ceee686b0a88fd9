//! A process-local futex lock for what is not the data path.
//!
//! std's would do, but for two things: its futex call goes through a libc symbol that the preload library
//! replaces, and it must be possible to hold it across fork().

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::tls::{self, Critical, critical};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// See the module.
pub struct Mutex<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives out one `&mut T` at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// Unlocks on drop. Holds a critical section, so that no handler of the program waits for its own thread.
pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
    _critical: Critical,
}

impl<T> Mutex<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        let critical = critical();
        // Acquire pairs with the Release in `drop`.
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
                let _ = rustix::thread::futex::wait(
                    &self.word,
                    rustix::thread::futex::Flags::PRIVATE,
                    CONTENDED,
                    None,
                );
            }
        }
        Guard { mutex: self, _critical: critical }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let critical = critical();
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            // Only then: a guard that is made opens the lock when it goes.
            .then(|| Guard { mutex: self, _critical: critical })
    }

    /// Takes the lock and keeps it beyond this call: across fork(), so that the child finds whole what it protects.
    pub fn hold(&self) {
        core::mem::forget(self.lock());
    }

    /// Lets go of what `hold` took. Only by the thread that did, which in a forked child is the one there is.
    pub fn let_go(&self) {
        drop(Guard { mutex: self, _critical: tls::left_open() });
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the lock's.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the lock's, and borrowed exclusively.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `lock`.
        if self.mutex.word.swap(FREE, Ordering::Release) == CONTENDED {
            let _ = rustix::thread::futex::wake(&self.mutex.word, rustix::thread::futex::Flags::PRIVATE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_tried_in_vain_stays_its_holder_s() {
        let mutex = Mutex::new(0);
        let guard = mutex.lock();
        assert!(mutex.try_lock().is_none() && mutex.try_lock().is_none());
        drop(guard);
        assert!(mutex.try_lock().is_some_and(|value| *value == 0) && mutex.try_lock().is_some());
    }
}
