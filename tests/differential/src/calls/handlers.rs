//! Signals: one whose handler makes a call on a connection, and SIGURG, SIGIO and SIGPIPE, which are counted.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicUsize, Ordering};

use libc::c_int;

use super::Said;
use crate::op::Handler;

/// Most bytes of a handler's call.
const MOST: usize = 64;

/// What the handler is to do, and what came of it. It is the thread's own, which the signal interrupts: nothing is ordered.
struct Task {
    fd: AtomicI32,
    what: AtomicUsize,
    n: AtomicUsize,
    bytes: [AtomicU8; MOST],
    ret: AtomicI64,
    errno: AtomicI32,
    ran: AtomicBool,
}

static TASK: Task = Task {
    fd: AtomicI32::new(-1),
    what: AtomicUsize::new(0),
    n: AtomicUsize::new(0),
    bytes: [const { AtomicU8::new(0) }; MOST],
    ret: AtomicI64::new(0),
    errno: AtomicI32::new(0),
    ran: AtomicBool::new(false),
};

const RELAXED: Ordering = Ordering::Relaxed;
static URGENTS: AtomicI64 = AtomicI64::new(0);
static ARRIVALS: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// SIGPIPE of this thread.
    static BROKEN: Cell<i64> = const { Cell::new(0) };
}

/// F_SETSIG's signal.
pub(super) fn own_signal() -> c_int {
    libc::SIGRTMIN() + 3
}

extern "C" fn count(signal: c_int) {
    match signal {
        libc::SIGURG => drop(URGENTS.fetch_add(1, RELAXED)),
        libc::SIGPIPE => BROKEN.set(BROKEN.get() + 1),
        _ => drop(ARRIVALS.fetch_add(1, RELAXED)),
    }
}

extern "C" fn make(_: c_int) {
    const FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let (fd, n) = (TASK.fd.load(RELAXED), TASK.n.load(RELAXED));
    let mut bytes = [0u8; MOST];
    for (byte, kept) in bytes.iter_mut().zip(&TASK.bytes) {
        *byte = kept.load(RELAXED);
    }
    let at = bytes.as_mut_ptr().cast();
    // SAFETY: memory of this function; libc's calls that a handler may make (signal-safety(7)). errno is the interrupted code's.
    unsafe {
        let kept = *libc::__errno_location();
        let ret = match TASK.what.load(RELAXED) {
            0 => 0,
            1 => libc::send(fd, at, n, FLAGS) as i64,
            2 => libc::recv(fd, at, n, FLAGS) as i64,
            _ => {
                let mut unread = -1i32;
                let rc = libc::ioctl(fd, libc::FIONREAD, &raw mut unread);
                if rc < 0 { rc.into() } else { unread.into() }
            }
        };
        TASK.errno.store(if ret < 0 { *libc::__errno_location() } else { 0 }, RELAXED);
        TASK.ret.store(ret, RELAXED);
        *libc::__errno_location() = kept;
    }
    for (byte, kept) in bytes.iter().zip(&TASK.bytes) {
        kept.store(*byte, RELAXED);
    }
    TASK.ran.store(true, RELAXED);
}

/// Installs the handlers, with which calls go on that they interrupt.
pub fn heed() {
    let counted = [libc::SIGURG, libc::SIGPIPE, libc::SIGIO, own_signal()];
    let counted = counted.map(|signal| (signal, count as *const ()));
    for (signal, handler) in [(libc::SIGUSR1, make as *const ())].into_iter().chain(counted) {
        // SAFETY: an action of ours; the handlers make such calls only as handlers may.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, null_mut());
        }
    }
}

/// How many SIGURG came since the last call with `begin`.
pub fn urgents() -> i64 {
    URGENTS.load(RELAXED)
}

/// Whether SIGIO, or what stands for it, came since the last call, or since `begin`.
pub fn arrived() -> i64 {
    i64::from(ARRIVALS.swap(0, RELAXED) > 0)
}

/// How many SIGPIPE this thread has had.
pub(super) fn broken() -> i64 {
    BROKEN.get()
}

/// From now on signals are counted anew.
pub fn begin() {
    URGENTS.store(0, RELAXED);
    ARRIVALS.store(0, RELAXED);
}

/// Says what the handler of the next signal does; `bytes` are those that it sends.
pub fn arm(fd: RawFd, what: Handler, bytes: &[u8]) {
    let (kind, n) = match what {
        Handler::Nothing => (0, 0),
        Handler::Sends(n) => (1, n),
        Handler::Receives(n) => (2, n),
        Handler::Fionread => (3, 0),
    };
    for (kept, byte) in TASK.bytes.iter().zip(bytes) {
        kept.store(*byte, RELAXED);
    }
    TASK.fd.store(fd, RELAXED);
    TASK.what.store(kind, RELAXED);
    TASK.n.store(n.min(MOST), RELAXED);
    TASK.ran.store(false, RELAXED);
}

/// What came of the handler's call, and what it received. Where the signal has not come, it comes now.
pub fn ran() -> (Said, Vec<u8>) {
    if !TASK.ran.load(RELAXED) {
        // SAFETY: no memory is passed.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
    let (ret, what) = (TASK.ret.load(RELAXED), TASK.what.load(RELAXED));
    let got = if what == 2 { ret.max(0) as usize } else { 0 };
    let bytes = TASK.bytes[..got].iter().map(|byte| byte.load(RELAXED)).collect();
    (Said { ret, errno: TASK.errno.load(RELAXED), more: Vec::new() }, bytes)
}
