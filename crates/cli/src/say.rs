//! What is said on standard error. Nobody has to hear it: where it cannot be written, all goes on as if it had been.

use std::fmt::Display;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::ptr;

/// A line of ours.
pub fn say(text: impl Display) {
    line(format_args!("shunpike: {text}"));
}

/// A line that says itself whose it is.
pub fn line(text: impl Display) {
    // Whole: it is not to be mixed with what others write.
    let line = format!("{text}\n");
    without_sigpipe(|| {
        let _ = io::stderr().write_all(line.as_bytes());
    });
}

/// Writes, so that a pipe without a reader is an error and not the end of this process, which may have a program to become. What that
/// program inherits of SIGPIPE stays as it was.
fn without_sigpipe(write: impl FnOnce()) {
    let mut pipe = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset makes the set before the others read it; pthread_sigmask cannot fail for this argument, and fills in `before`.
    let pipe = unsafe {
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr());
        pipe.assume_init()
    };
    let is_others = is_pending();
    write();
    // One that was pending before is somebody else's to have.
    if !is_others && is_pending() {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: reads the set and the time, and is told to write no result.
        unsafe { libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const at_once) };
    }
    // SAFETY: reads the mask that was filled in above, and is told to write no result.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
}

/// Whether a SIGPIPE waits for this thread.
fn is_pending() -> bool {
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigpending fills in the set (it cannot fail for a valid address), which sigismember then reads.
    unsafe {
        libc::sigpending(pending.as_mut_ptr());
        libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
    }
}
