//! USDT probes (SystemTap's SDT notes) for bpftrace, perf and gdb, provider `shunpike`: docs/tracing.md has the arguments, which
//! stay as they are. Each is a nop until somebody puts a breakpoint there. None is on the path of a message between busy ends.
//!
//! Not inlined: each has one place then, and no note is left of code that the linker throws away.

use core::sync::atomic::Ordering;

use probe::probe;
use shunpike_shm::arena::Block;

/// How a thread sleeps: the first argument of `sleep` and `wake`.
#[derive(Copy, Clone)]
pub enum Sleep {
    /// In a call on one connection, for a short time, on the lane's own futex.
    Nap = 0,
    /// In a call on one connection.
    Call = 1,
    /// In epoll_wait.
    Set = 2,
    /// In poll or select.
    Poll = 3,
}

/// The connection at `fd` has come on a lane to send on, `ring` bytes large at most.
#[cold]
#[inline(never)]
pub fn upgrade(block: &Block, fd: i32, ring: u32) {
    let role = block.role.load(Ordering::Relaxed);
    let [local, remote] = [&block.local_port, &block.remote_port].map(|port| port.load(Ordering::Relaxed));
    probe!(shunpike, upgrade, fd, role, local, remote, ring);
}

/// This end has sent it back: both its directions are on TCP again.
#[cold]
#[inline(never)]
pub fn revoke(block: &Block, fd: i32) {
    let (role, reason) = (block.role.load(Ordering::Relaxed), block.reason.load(Ordering::Relaxed));
    let [received, sent] = block.halves().map(|half| half.bytes.load(Ordering::Relaxed));
    probe!(shunpike, revoke, fd, role, reason, sent, received);
}

/// It got no lane just now, or (`over`) ends without ever having had one.
#[inline(never)]
pub fn fallback(block: &Block, fd: i32, over: bool) {
    let role = block.role.load(Ordering::Relaxed);
    let [reason, peers] = [&block.reason, &block.peer_reason].map(|reason| reason.load(Ordering::Relaxed));
    probe!(shunpike, fallback, fd, role, reason, peers, over);
}

/// A thread goes to sleep over `fd`: the connection, the epoll set, or -1.
#[cold]
#[inline(never)]
pub fn sleep(how: Sleep, fd: i32) {
    probe!(shunpike, sleep, how, fd);
}

/// It runs again, `slept` nanoseconds later; so long after the peer's ring, if that was what woke it.
#[cold]
#[inline(never)]
pub fn wake(how: Sleep, fd: i32, slept: u64, late: Option<u64>) {
    let late = late.map_or(-1, |ns| ns as i64);
    probe!(shunpike, wake, how, fd, slept, late);
}
