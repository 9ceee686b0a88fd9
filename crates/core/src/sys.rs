//! The few system calls of the data path, made directly: libc's names are what the preload library replaces,
//! and iovecs, msghdrs and epoll_events come from the program as raw memory.

#[cfg(test)]
pub(crate) mod refusing;
mod tcp;

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use shunpike_arch as arch;

use crate::text::Text;

pub use tcp::{
    Counts, SIOCINQ, SIOCOUTQ, Shown, counts, is_held_back, left_out_by_siocinq, peer_may_send, queue,
    reset_at_close, tcp_shows, tcp_takes, unread,
};

/// Result of a call that counts bytes or descriptors.
pub type Res = Result<usize, Errno>;

/// A system call of up to six arguments.
///
/// # Safety
/// As the call itself: pointers among the arguments must be what the kernel is told that they are. (Where
/// they are the program's, a bad one is EFAULT, not undefined behaviour.)
#[inline(always)]
pub unsafe fn call(n: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> Res {
    // SAFETY: the caller's word.
    let ret = unsafe { arch::syscall(n, a, b, c, d, e, f) };
    if ret < 0 { Err(Errno::from_raw_os_error(-ret as i32)) } else { Ok(ret as usize) }
}

/// recvmsg(2) into the program's buffers.
pub fn recv(fd: i32, iov: &mut [libc::iovec], flags: i32) -> Res {
    // SAFETY: an all-zero msghdr is valid.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = iov.len();
    // SAFETY: msg and iov live through the call; buffers are the program's.
    unsafe { call(libc::SYS_recvmsg, fd as usize, &raw mut msg as usize, flags as usize, 0, 0, 0) }
}

/// recvmsg(2) as it stands.
///
/// # Safety
/// What `message` names is the caller's or the program's to be written to.
pub unsafe fn recv_message(fd: i32, message: &mut libc::msghdr, flags: i32) -> Res {
    let at = core::ptr::from_mut(message) as usize;
    // SAFETY: the message lives through the call; the rest is the caller's word.
    unsafe { call(libc::SYS_recvmsg, fd as usize, at, flags as usize, 0, 0, 0) }
}

/// process_vm_readv(2).
pub fn read_process(pid: u32, to: &[libc::iovec], from: &[libc::iovec]) -> Res {
    let (local, remote) = (to.as_ptr() as usize, from.as_ptr() as usize);
    // SAFETY: both vectors live through the call; the buffers are ours or the program's to be written to.
    unsafe { call(libc::SYS_process_vm_readv, pid as usize, local, to.len(), remote, from.len(), 0) }
}

/// sendmsg(2) from the program's buffers; never raises SIGPIPE (the hook does, if the program wants it).
pub fn send(fd: i32, iov: &[libc::iovec], flags: i32) -> Res {
    // SAFETY: an all-zero msghdr is valid.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = iov.as_ptr().cast_mut();
    msg.msg_iovlen = iov.len();
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: msg and iov live through the call; sendmsg does not write to them.
    unsafe { call(libc::SYS_sendmsg, fd as usize, &raw const msg as usize, flags as usize, 0, 0, 0) }
}

/// pread(2)/read(2) of a file into memory that we own: sendfile's source.
pub fn read_file(fd: i32, to: *mut u8, len: usize, offset: i64) -> Res {
    // SAFETY: the caller owns `len` bytes at `to`.
    unsafe { call(libc::SYS_pread64, fd as usize, to as usize, len, offset as usize, 0, 0) }
}

/// Where a file stands.
pub fn position(fd: i32) -> Result<i64, Errno> {
    seek(fd, 0, libc::SEEK_CUR)
}

/// Puts it elsewhere.
pub fn set_position(fd: i32, at: i64) {
    // A file that has a position takes any other one.
    let _ = seek(fd, at, libc::SEEK_SET);
}

fn seek(fd: i32, at: i64, whence: i32) -> Result<i64, Errno> {
    // SAFETY: no memory is passed.
    unsafe { call(libc::SYS_lseek, fd as usize, at as usize, whence as usize, 0, 0, 0) }.map(|at| at as i64)
}

/// getsockopt(2) of a plain value.
pub fn option<T: Copy>(fd: i32, level: i32, name: i32) -> Result<T, Errno> {
    // SAFETY: callers use integer structs, valid when zero.
    let mut value: T = unsafe { core::mem::zeroed() };
    get_option(fd, level, name, &raw mut value as usize, size_of::<T>())?;
    Ok(value)
}

/// getsockopt(2) of an option that is a number, of whatever size.
pub fn number_option(fd: i32, level: i32, name: i32) -> Result<i64, Errno> {
    let mut value = [0i32; 2];
    let len = get_option(fd, level, name, value.as_mut_ptr() as usize, size_of_val(&value))?;
    let [low, high] = value;
    let is_wide = len == size_of_val(&value);
    Ok(if is_wide { i64::from(high) << 32 | i64::from(low as u32) } else { i64::from(low) })
}

/// SO_GET_FILTER: how many instructions the socket's filter has.
pub fn filter_len(fd: i32) -> Res {
    get_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, 0, 0)
}

/// What kind of BPF map a descriptor is, where it is one.
pub fn map_kind(fd: i32) -> Option<u32> {
    const OBJ_GET_INFO_BY_FD: usize = 15;
    // `struct bpf_map_info` (linux/bpf.h) begins with the type.
    let mut info = [0u32; 2];
    let at = info.as_mut_ptr() as u64;
    let attributes = [fd as u64 | (size_of_val(&info) as u64) << 32, at];
    let size = size_of_val(&attributes);
    // SAFETY: both live through the call; the kernel writes no more than the size that stands beside the address.
    unsafe { call(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, attributes.as_ptr() as usize, size, 0, 0, 0) }.ok()?;
    Some(info[0])
}

/// getsockopt(2) into `len` bytes at `at`, which are the caller's; gives the length that the kernel says.
fn get_option(fd: i32, level: i32, name: i32, at: usize, len: usize) -> Res {
    let mut len = len as libc::socklen_t;
    let size = &raw mut len as usize;
    // SAFETY: len and what `at` names live through the call; the kernel writes no more than len bytes there.
    unsafe { call(libc::SYS_getsockopt, fd as usize, level as usize, name as usize, at, size, 0) }?;
    Ok(len as usize)
}

/// SO_COOKIE: the socket's own number, whatever its descriptors are; 0 when the kernel does not say.
pub fn cookie(fd: i32) -> u64 {
    option(fd, libc::SOL_SOCKET, libc::SO_COOKIE).unwrap_or(0)
}

/// SO_PEERCRED: the user of the process that listens at the other end of a UNIX socket, as it was when it began to.
pub fn peer_user(fd: i32) -> Option<u32> {
    // struct ucred: process, user, group.
    let credentials = option::<[u32; 3]>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED);
    credentials.ok().map(|[_, user, _]| user)
}

/// setsockopt(2) of a plain value.
pub fn set_option<T>(fd: i32, level: i32, name: i32, value: &T) -> Res {
    let at = core::ptr::from_ref(value) as usize;
    // SAFETY: value lives through the call and is only read.
    unsafe { call(libc::SYS_setsockopt, fd as usize, level as usize, name as usize, at, size_of::<T>(), 0) }
}

/// ppoll(2). `timeout` in nanoseconds, `None` for ever; `mask` is the program's own or null.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<u64>, mask: *const libc::sigset_t) -> Res {
    let mut ts = timespec(timeout);
    let ts = if timeout.is_some() { &raw mut ts as usize } else { 0 };
    // SAFETY: fds and ts live through the call; mask is null or the program's.
    unsafe { call(libc::SYS_ppoll, fds.as_mut_ptr() as usize, fds.len(), ts, mask as usize, 8, 0) }
}

const NS_A_MS: u64 = 1_000_000;

/// Events that `fd` shows now, among `events`, POLLERR, POLLHUP and POLLNVAL.
pub fn poll_now(fd: i32, events: i16) -> i16 {
    let mut one = [libc::pollfd { fd, events, revents: 0 }];
    match poll(&mut one, Some(0), core::ptr::null()) {
        Ok(_) => one[0].revents,
        Err(_) => 0,
    }
}

/// FUTEX_WAIT of futex(2) on memory shared between processes, until woken or for `timeout` nanoseconds, if `expected`
/// stands there. Errors: AGAIN when it does not, TIMEDOUT, INTR after a handler, FAULT when the memory is gone.
pub fn futex_wait(futex: *const u32, expected: u32, timeout: u64) -> Res {
    let ts = timespec(Some(timeout));
    let (at, ts) = (futex as usize, &raw const ts as usize);
    // SAFETY: the kernel checks the address, which it only reads; ts lives through the call.
    unsafe { call(libc::SYS_futex, at, libc::FUTEX_WAIT as usize, expected as usize, ts, 0, 0) }
}

/// FUTEX_WAKE of futex(2): all who wait there, in whatever process. A full fence comes before.
pub fn futex_wake(futex: *const u32) {
    // SAFETY: the kernel looks nothing up but the address.
    let _ = unsafe {
        call(libc::SYS_futex, futex as usize, libc::FUTEX_WAKE as usize, i32::MAX as usize, 0, 0, 0)
    };
}

/// epoll_pwait2(2), or epoll_pwait(2) where a kernel or a filter knows no call so young. `timeout` in nanoseconds, `None` for ever.
pub fn epoll_for(
    fd: i32,
    events: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Res {
    let exactly = |events: &mut [libc::epoll_event], ts: &libc::timespec| {
        let (at, ts) = (events.as_mut_ptr() as usize, &raw const *ts as usize);
        // SAFETY: events and ts live through the call; mask is null or the program's.
        unsafe { call(libc::SYS_epoll_pwait2, fd as usize, at, events.len(), ts, mask as usize, 8) }
    };
    as_exactly(events, timeout, exactly, |events, ms| epoll_wait(fd, events, ms, mask))
}

/// A wait for `timeout` by the call that knows milliseconds alone, or by the one that knows more where that is needed and to be had.
pub fn as_exactly(
    events: &mut [libc::epoll_event],
    timeout: Option<u64>,
    exactly: impl FnOnce(&mut [libc::epoll_event], &libc::timespec) -> Res,
    in_ms: impl FnOnce(&mut [libc::epoll_event], i32) -> Res,
) -> Res {
    if timeout.is_some_and(|ns| ns % NS_A_MS != 0) {
        match exactly(events, &timespec(timeout)) {
            // Neither the kernel nor libc may have the call; EPERM: a filter that knows none so young.
            Err(Errno::NOSYS | Errno::PERM) => {}
            waited => return waited,
        }
    }
    in_ms(events, whole_ms(timeout))
}

/// `timeout` in milliseconds, -1 for ever: not before the program's time is over, where the kernel knows milliseconds only.
fn whole_ms(timeout: Option<u64>) -> i32 {
    timeout.map_or(-1, |ns| i32::try_from(ns.div_ceil(NS_A_MS)).unwrap_or(i32::MAX))
}

/// epoll_pwait(2); `timeout` in milliseconds, -1 for ever.
pub fn epoll_wait(
    fd: i32,
    events: &mut [libc::epoll_event],
    timeout: i32,
    mask: *const libc::sigset_t,
) -> Res {
    let at = events.as_mut_ptr() as usize;
    // SAFETY: events lives through the call; mask is null or the program's.
    unsafe {
        call(
            libc::SYS_epoll_pwait,
            fd as usize,
            at,
            events.len(),
            timeout as isize as usize,
            mask as usize,
            8,
        )
    }
}

/// epoll_ctl(2).
pub fn epoll_ctl(epfd: i32, op: i32, fd: i32, event: Option<&mut libc::epoll_event>) -> Result<(), Errno> {
    let at = event.map_or(0, |event| core::ptr::from_mut(event) as usize);
    // SAFETY: event lives through the call.
    unsafe { call(libc::SYS_epoll_ctl, epfd as usize, op as usize, fd as usize, at, 0, 0) }.map(drop)
}

/// tgkill(2) to the calling thread.
pub fn raise(signal: i32) {
    let pid = rustix::process::getpid().as_raw_nonzero().get() as usize;
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as usize;
    // SAFETY: no pointers.
    let _ = unsafe { call(libc::SYS_tgkill, pid, tid, signal as usize, 0, 0, 0) };
}

/// Whether this process has a thread `tid`; yes, where that cannot be told: in a vfork child, or where a filter
/// forbids tgkill(2).
pub fn has_thread(tid: u32) -> bool {
    let pid = pid();
    if pid != known_pid() {
        return true;
    }
    // SAFETY: no pointers; signal 0 is not sent.
    let sent = unsafe { call(libc::SYS_tgkill, pid as usize, tid as usize, 0, 0, 0, 0) };
    sent != Err(Errno::SRCH)
}

/// Whether there is a process of this number, which may be another user's. A thread's number is none.
pub fn is_process(pid: u32) -> bool {
    // SAFETY: no pointers; signal 0 is not sent.
    let sent = unsafe { call(libc::SYS_tgkill, pid as usize, pid as usize, 0, 0, 0, 0) };
    sent != Err(Errno::SRCH)
}

/// rt_sigprocmask(2) of the calling thread; `how` is SIG_BLOCK or SIG_UNBLOCK. Returns what was blocked before.
pub fn mask_signals(how: i32, signals: u64) -> u64 {
    let mut before = 0u64;
    let (at, before_at) = (&raw const signals as usize, &raw mut before as usize);
    // SAFETY: the sets live through the call.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, how as usize, at, before_at, 8, 0, 0) };
    before
}

/// rt_tgsigqueueinfo(2) to the calling thread: the same signal once more, siginfo and all. Where the user has as many queued as may be
/// (RLIMIT_SIGPENDING), it comes without that: as one of kill(2), which the kernel marks as pending then, also a real-time one.
pub fn requeue_signal(signal: i32, info: *mut u8) {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as usize;
    // SAFETY: info is the kernel's own of a delivery just under way.
    let queue = || unsafe {
        call(libc::SYS_rt_tgsigqueueinfo, pid() as usize, tid, signal as usize, info as usize, 0, 0)
    };
    if queue() == Err(Errno::AGAIN) {
        // SAFETY: as above; it stands on our stack, and nobody but the kernel reads it from here on.
        unsafe { (&raw mut (*info.cast::<libc::siginfo_t>()).si_code).write(libc::SI_USER) };
        let _ = queue();
    }
}

static PID: AtomicU32 = AtomicU32::new(0);

/// At start-up and after a fork: this is the process now.
pub(crate) fn note_pid() {
    PID.store(pid(), Ordering::Relaxed);
}

/// Process id as of start-up or the last fork that we know of.
#[inline]
pub fn known_pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// The calling thread's name (PR_GET_NAME of prctl(2)); it ends with a NUL.
pub fn thread_name() -> [u8; 16] {
    let mut name = [0; 16];
    let at = name.as_mut_ptr() as usize;
    // SAFETY: the kernel writes no more than 16 bytes there.
    let _ = unsafe { call(libc::SYS_prctl, libc::PR_GET_NAME as usize, at, 0, 0, 0, 0) };
    name
}

/// getpid(2), from the kernel.
pub fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Whether RLIMIT_MEMLOCK does not bind this thread: CAP_IPC_LOCK (capget(2)).
pub fn may_lock_memory() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const IPC_LOCK: u32 = 14;
    let header = [VERSION_3, 0];
    // Effective, permitted, inheritable: the low 32 capabilities, then the high ones.
    let mut sets = [0u32; 6];
    let (asking, answer) = (header.as_ptr() as usize, sets.as_mut_ptr() as usize);
    // SAFETY: both live through the call, and have the sizes of version 3.
    let asked = unsafe { call(libc::SYS_capget, asking, answer, 0, 0, 0, 0) };
    asked.is_ok() && sets[0] >> IPC_LOCK & 1 != 0
}

/// mincore(2): in `there`, a byte for each of the pages of `len` bytes at `at`, bit 0 is set where it is resident. Errors: ENOMEM,
/// not all of it is mapped.
pub fn mincore(at: usize, len: usize, there: &mut [u8]) -> Result<(), Errno> {
    debug_assert!(there.len() >= len.div_ceil(4096));
    // SAFETY: `there` has a byte for each page, which is all that the kernel writes.
    unsafe { call(libc::SYS_mincore, at, len, there.as_mut_ptr() as usize, 0, 0, 0) }.map(drop)
}

/// madvise(2), MADV_COLLAPSE (Linux 6.1): the stretch becomes a huge page. What stands there does not change. Errors: EAGAIN, somebody
/// has pages of it pinned; others, it cannot be.
pub fn collapse(at: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: nobody's bytes or addresses change by it.
    unsafe { call(libc::SYS_madvise, at, len, libc::MADV_COLLAPSE as usize, 0, 0, 0) }.map(drop)
}

/// Whether this process has several threads; no, where /proc does not tell.
pub fn has_threads() -> bool {
    // Each is a directory, and so a link of theirs, beside two.
    rustix::fs::stat(c"/proc/self/task").is_ok_and(|stat| stat.st_nlink > 3)
}

/// getcpu(2): the CPU that the calling thread runs on.
pub fn cpu() -> u32 {
    let mut cpu = 0u32;
    // SAFETY: the kernel writes one word, which lives through the call.
    let _ = unsafe { call(libc::SYS_getcpu, &raw mut cpu as usize, 0, 0, 0, 0, 0) };
    cpu
}

/// Numbers that the table of descriptors has room for, by /proc/self/status. `None` without /proc.
pub fn descriptor_table() -> Option<u32> {
    use rustix::fs::{Mode, OFlags};
    let status =
        rustix::fs::open(c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; 1024];
    let read = rustix::io::read(&status, &mut bytes[..]).ok()?;
    let line = bytes[..read].split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"FDSize:"))?;
    core::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// A descriptor of the program's, borrowed for one call.
pub fn borrowed<'a>(fd: i32) -> BorrowedFd<'a> {
    // -1 is what the type cannot hold; another number that is never open stands for it.
    let fd = if fd == -1 { i32::MIN } else { fd };
    // SAFETY: only for handing to a system call, which refuses a number that is not open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Whether `fd` is an open descriptor.
pub fn is_open(fd: i32) -> bool {
    rustix::io::fcntl_getfd(borrowed(fd)).is_ok()
}

fn kind(fd: i32) -> Option<rustix::fs::FileType> {
    let stat = rustix::fs::fstat(borrowed(fd)).ok()?;
    Some(rustix::fs::FileType::from_raw_mode(stat.st_mode))
}

/// Whether `fd` is a file or a block device: what sendfile(2) reads from.
pub fn is_seekable(fd: i32) -> bool {
    matches!(kind(fd), Some(rustix::fs::FileType::RegularFile | rustix::fs::FileType::BlockDevice))
}

/// Whether `fd` is a pipe.
pub fn is_pipe(fd: i32) -> bool {
    kind(fd) == Some(rustix::fs::FileType::Fifo)
}

/// The highest open descriptor for which `counts` holds, by /proc/self/fd. `None` without /proc.
pub fn highest_open(counts: impl Fn(i32) -> bool) -> Option<i32> {
    use rustix::fs::{Mode, OFlags, RawDir};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()).ok()?;
    let mut room = [core::mem::MaybeUninit::<u8>::uninit(); 2048];
    let mut entries = RawDir::new(&directory, &mut room);
    let mut highest = 0;
    while let Some(entry) = entries.next() {
        let number = entry.ok()?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        highest = number.filter(|&fd| counts(fd)).map_or(highest, |fd: i32| highest.max(fd));
    }
    Some(highest)
}

/// Locks byte `at` of a memfd for this process, until it ends or executes another program. The lock is that of an open file of
/// its own (F_OFD_SETLK of fcntl(2)), which a mapping keeps, so that it does not matter what the program closes. Without /proc it is
/// one of the process's (F_SETLK), which goes with the first descriptor of the memfd that it closes. Says whether it could.
pub fn lock_byte(fd: i32, at: i64) -> bool {
    lock_for_life(fd, at).is_some() || record(fd, at, libc::F_SETLK).is_some()
}

fn lock_for_life(fd: i32, at: i64) -> Option<()> {
    use rustix::fd::{AsFd, AsRawFd};
    use rustix::fs::{Mode, OFlags};
    let path = Text::new(format_args!("/proc/self/fd/{fd}"));
    let file = rustix::fs::open(path.as_c_str(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
    record(file.as_raw_fd(), at, libc::F_OFD_SETLK)?;
    shunpike_shm::region::keep_open(file.as_fd()).ok()
}

/// Whether another process has locked byte `at`; `None` when the kernel does not say.
pub fn byte_locked(fd: i32, at: i64) -> Option<bool> {
    record(fd, at, libc::F_GETLK).map(|kind| i32::from(kind) != libc::F_UNLCK)
}

/// fcntl(2) on a record lock of one byte, for writing. What it says of the kind.
fn record(fd: i32, at: i64, command: i32) -> Option<i16> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: at,
        l_len: 1,
        l_pid: 0,
    };
    let place = &raw mut lock as usize;
    // SAFETY: the lock's description lives through the call.
    unsafe { call(libc::SYS_fcntl, fd as usize, command as usize, place, 0, 0, 0) }.ok()?;
    Some(lock.l_type)
}

/// Whether process `pid` has ended: there is none, or it is a child of ours that waits to be reaped.
pub fn has_ended(pid: u32) -> bool {
    use rustix::process::{Pid, WaitId, WaitIdOptions, test_kill_process, waitid};
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(pid), look), Ok(Some(_))) || test_kill_process(pid) == Err(Errno::SRCH)
}

/// membarrier(2) PRIVATE_EXPEDITED (registered by `membarrier_register`): every running thread of this
/// process passes a full fence. Errors: not supported or not registered.
pub fn membarrier() -> Res {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_membarrier, 1 << 3, 0, 0, 0, 0, 0) }
}

/// Registers for `membarrier`.
pub fn membarrier_register() -> Res {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_membarrier, 1 << 4, 0, 0, 0, 0, 0) }
}

/// `ns` as the kernel takes it; 0 for `None`.
pub fn timespec(ns: Option<u64>) -> libc::timespec {
    let ns = ns.unwrap_or(0);
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_finds_no_room_in_the_queue_still_comes() {
        let limit = |to: Option<&[u64; 2]>, was: Option<&mut [u64; 2]>| {
            let to = to.map_or(0, |to| to.as_ptr() as usize);
            let was = was.map_or(0, |was| was.as_mut_ptr() as usize);
            // SAFETY: null, or limits that live through the call.
            unsafe { call(libc::SYS_prlimit64, 0, libc::RLIMIT_SIGPENDING as usize, to, was, 0, 0) }
        };
        // A standard one, and a real-time one with a value.
        for signal in [libc::SIGUSR2, 40] {
            let bit = 1u64 << (signal - 1);
            mask_signals(libc::SIG_BLOCK, bit);
            // SAFETY: all-zero is a siginfo.
            let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
            (info.si_signo, info.si_code) = (signal, libc::SI_QUEUE);
            let mut was = [0; 2];
            limit(None, Some(&mut was)).expect("the limit");
            limit(Some(&[0, was[1]]), None).expect("none");
            requeue_signal(signal, (&raw mut info).cast());
            limit(Some(&was), None).expect("as it was");
            let (set, no_time) = (&raw const bit as usize, [0u64; 2]);
            // SAFETY: a set and a time that live through the call.
            let came = unsafe { call(libc::SYS_rt_sigtimedwait, set, 0, no_time.as_ptr() as usize, 8, 0, 0) };
            assert_eq!(came, Ok(signal as usize));
        }
    }
}
