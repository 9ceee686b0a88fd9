//! The end of a thread: what it has of core is given back then.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use shunpike_arch::weak_function;
use shunpike_core::{sets, wait};

const NO_KEY: u32 = u32::MAX;

static KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// At start-up: the program has not taken all keys yet.
pub fn start() {
    key();
}

/// The key whose destructor gives back what a thread has. Before glibc 2.34 a process that has no such function has no threads.
fn key() -> Option<u32> {
    type Create = unsafe extern "C" fn(*mut u32, Option<extern "C" fn(*mut c_void)>) -> c_int;
    type Delete = unsafe extern "C" fn(u32) -> c_int;
    let known = KEY.load(Ordering::Acquire);
    if known != NO_KEY {
        return Some(known);
    }
    let create = weak_function!("pthread_key_create": Create)?;
    let delete = weak_function!("pthread_key_delete": Delete)?;
    let mut made = NO_KEY;
    // SAFETY: a destructor that lives as long as the process.
    if unsafe { create(&raw mut made, Some(thread_ends)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(NO_KEY, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(made),
        Err(earlier) => {
            // SAFETY: our own, which nobody uses.
            unsafe { delete(made) };
            Some(earlier)
        }
    }
}

/// A thread has something to give back: have its destructor run.
pub fn mark() {
    type Set = unsafe extern "C" fn(u32, *const c_void) -> c_int;
    if let (Some(key), Some(set)) = (key(), weak_function!("pthread_setspecific": Set)) {
        // SAFETY: our key; any value that is not null makes the destructor run.
        unsafe { set(key, core::ptr::without_provenance(1)) };
    }
}

extern "C" fn thread_ends(_: *mut c_void) {
    sets::recall();
    wait::thread_ends();
}
