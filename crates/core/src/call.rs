//! How long a call of the program's may wait: whether it blocks, until when, and what a signal does to it.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::Block;

use crate::clock::now;
use crate::host::host;
use crate::sys;
use crate::table::{self, Conn};
use crate::tls::thread;
use crate::user;
use rustix::io::Errno;

/// What a hooked call comes to.
pub enum Outcome {
    /// libc's own result, errno set.
    Libc(isize),
    /// Ours.
    Ours(Result<usize, Errno>),
}

/// Flags that change nothing where nothing has to be waited for and no error is answered.
const HARMLESS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Whether a call with these flags may take the fast path.
#[inline(always)]
pub(crate) fn is_ordinary(flags: i32) -> bool {
    flags & !HARMLESS == 0
}

/// After a wait: `fd` may have been closed meanwhile, and be another socket, whose bytes are not this call's. Errors: EBADF.
pub fn still_at(conn: Conn, fd: i32) -> Result<(), Errno> {
    if conn.current() && table::conn(fd) == Some(conn) { Ok(()) } else { Err(Errno::BADF) }
}

/// Learns that O_NONBLOCK was set or cleared.
pub fn set_nonblock(fd: i32, nonblock: bool) {
    if let Some(conn) = table::conn(fd) {
        conn.block.nonblock.store(u8::from(nonblock), Ordering::Relaxed);
    }
}

/// In a block's `nonblock`: the kernel said so. 1 where the program did.
const LEARNT: u8 = 2;

/// Whether the program has set O_NONBLOCK by a call that we saw.
pub fn is_told_nonblock(block: &Block) -> bool {
    !matches!(block.nonblock.load(Ordering::Relaxed), 0 | LEARNT)
}

/// A call is about to wait as far as we know; O_NONBLOCK is shared with every dup, so the kernel knows better.
/// Errors: EAGAIN.
pub fn must_block(block: &Block, fd: i32) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(sys::borrowed(fd))?;
    if flags.contains(rustix::fs::OFlags::NONBLOCK) {
        block.nonblock.store(LEARNT, Ordering::Relaxed);
        return Err(Errno::AGAIN);
    }
    Ok(())
}

/// SO_RCVTIMEO or SO_SNDTIMEO, nanoseconds.
pub fn timeout_option(fd: i32, name: i32) -> Option<u64> {
    let time: libc::timeval = sys::option(fd, libc::SOL_SOCKET, name).ok()?;
    let ns = (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_usec as u64 * 1000);
    (ns != 0).then_some(ns)
}

/// Now plus `timeout`.
pub fn deadline(timeout: Option<u64>) -> Option<u64> {
    timeout.map(|ns| now().saturating_add(ns))
}

/// What is left until `deadline`. Errors: EAGAIN when it has passed.
pub fn remaining(deadline: Option<u64>) -> Result<Option<u64>, Errno> {
    match deadline {
        None => Ok(None),
        Some(at) => at.checked_sub(now()).filter(|&left| left > 0).map(Some).ok_or(Errno::AGAIN),
    }
}

/// Counts of handled signals before a sleep, for `interrupted`.
pub fn restarts_before() -> (u32, u32) {
    (thread().handled.load(Ordering::Relaxed), thread().interrupts.load(Ordering::Relaxed))
}

/// Before a wait with a mask: only what is handled from now on can end it.
pub fn begin_masked() {
    thread().numbers.store(0, Ordering::Relaxed);
}

/// Whether a handler ran since so many signals were handled, which would have ended the kernel's own poll or epoll_wait, unless the call's mask
/// had kept its signal back.
pub fn ends_wait(handled: u32, mask: *const libc::sigset_t) -> bool {
    restarts_before().0 != handled && (mask.is_null() || is_let_in(mask))
}

/// Whether one of those that were handled since [`begin_masked`] is let in by `mask`. Real-time signals are not known, and taken as kept back.
#[cold]
fn is_let_in(mask: *const libc::sigset_t) -> bool {
    // SAFETY: the kernel's own set of signals is a word.
    let kept_back = unsafe { user::fetch(mask.cast::<u64>()) }.unwrap_or(u64::MAX);
    u64::from(thread().numbers.load(Ordering::Relaxed)) & !kept_back != 0
}

/// After a sleep that a signal ended: on with it if every handler that ran has SA_RESTART and the socket has
/// no timeout (signal(7)). One that nobody told us of is libc's own (setgid() in another thread), or was installed past us. Errors: EINTR.
pub fn interrupted((handled, interrupts): (u32, u32), timed: bool) -> Result<(), Errno> {
    let thread = thread();
    let is_known = thread.handled.load(Ordering::Relaxed) != handled;
    let restarts = thread.interrupts.load(Ordering::Relaxed) == interrupts
        && (is_known || !(host().may_be_interrupted)());
    if restarts && !timed { Ok(()) } else { Err(Errno::INTR) }
}
