//! Cancellation of a thread in a call that a lane answers.

use core::ffi::c_void;
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
