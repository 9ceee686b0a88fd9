//! Cancellation of a thread in a call that a lane answers.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use shunpike_arch::weak_function;

type TestCancel = unsafe extern "C-unwind" fn();

unsafe extern "C-unwind" fn not_to_be_cancelled() {}

/// pthread_testcancel(3), from start-up on. Before glibc 2.34 a process without threads is without it, too.
static TEST_CANCEL: AtomicPtr<c_void> = AtomicPtr::new(not_to_be_cancelled as *mut c_void);

/// libc's calls act upon a cancellation also where they need not wait. A call that a lane answers does it here, with
/// nothing held and nothing to be dropped: the frames of its hook are unwound.
#[inline]
pub fn cancellation_point() {
    // SAFETY: one of the two functions above, which have this type and no arguments.
    unsafe {
        let test: TestCancel = core::mem::transmute(TEST_CANCEL.load(Ordering::Relaxed));
        test();
    }
}

/// Finds what `cancellation_point` calls.
pub fn can_be_cancelled() {
    if let Some(test) = weak_function!("pthread_testcancel": TestCancel) {
        TEST_CANCEL.store(test as *mut c_void, Ordering::Relaxed);
    }
}

/// PTHREAD_CANCEL_DISABLE (pthread.h).
pub const DISABLE: c_int = 1;

/// pthread_setcancelstate(3): the state that it was.
pub fn set_state(state: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
    let mut before = 0;
    if let Some(set) = weak_function!("pthread_setcancelstate": Function) {
        // SAFETY: `before` lives through the call.
        unsafe { set(state, &raw mut before) };
    }
    before
}
