//! Descriptors of every kind that may lie beside a message, whatever it asks for.

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, SealFlags, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::OnceLock;

/// How many kinds [`of`] knows.
pub const COUNT: u8 = 30;

/// A descriptor of kind `kind`; `broker` is the socket that the broker listens at. `None` where this kernel, or who may do what here,
/// does not let us have one.
pub fn of(kind: u8, broker: &Path) -> Option<OwnedFd> {
    let open = |path: &Path, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok();
    let socket = |family, kind| {
        rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None).ok()
    };
    let sealed = |seals| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("fuzzed-kind", flags).ok()?;
        rustix::fs::ftruncate(&memory, 4096).ok()?;
        rustix::fs::fcntl_add_seals(&memory, seals).ok()?;
        Some(memory)
    };
    match kind % COUNT {
        0 => rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok().map(|(read, _)| read),
        1 => rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok().map(|(_, write)| write),
        2 => epoll::create(epoll::CreateFlags::CLOEXEC).ok(),
        3 => watching(),
        4 => eventfd(0, EventfdFlags::CLOEXEC).ok(),
        5 => eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK).ok(),
        // SAFETY: makes a descriptor, or fails.
        6 => own(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) }),
        7 => rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).ok(),
        8 => {
            rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).ok()
        }
        9 => open(Path::new("/"), OFlags::PATH),
        10 => open(broker, OFlags::PATH),
        11 => open(Path::new("/"), OFlags::RDONLY | OFlags::DIRECTORY),
        12 => open(Path::new("/dev/null"), OFlags::RDWR),
        13 => open(Path::new("/dev/zero"), OFlags::RDWR),
        14 => open(Path::new("/dev/ptmx"), OFlags::RDWR | OFlags::NOCTTY),
        15 => open(Path::new("/proc/self/mem"), OFlags::RDWR),
        16 => open(Path::new("/proc/self/ns/net"), OFlags::RDONLY),
        17 => {
            rustix::fs::openat(CWD, "/tmp", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RWXU).ok()
        }
        18 => socket(AddressFamily::UNIX, SocketType::STREAM),
        19 => full(),
        20 => crate::session_socket::connect(broker),
        21 => socket(AddressFamily::INET, SocketType::DGRAM),
        22 => socket(AddressFamily::INET, SocketType::STREAM),
        23 => {
            let listener = socket(AddressFamily::INET, SocketType::STREAM)?;
            rustix::net::listen(&listener, 1).ok()?;
            Some(listener)
        }
        24 => socket(AddressFamily::INET6, SocketType::STREAM),
        25 => socket(AddressFamily::NETLINK, SocketType::RAW),
        26 => sealed(SealFlags::empty()),
        27 => sealed(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::WRITE),
        28 => {
            let mut parameters = [0u8; 120];
            // SAFETY: struct io_uring_params (linux/io_uring.h) is as large, and all zero asks for nothing special.
            own(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) } as i32)
        }
        // SAFETY: makes a descriptor, or fails.
        _ => own(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) } as i32),
    }
}

fn own(fd: i32) -> Option<OwnedFd> {
    // SAFETY: the callers' calls have made it just now, for nobody else.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An epoll instance with something in it.
fn watching() -> Option<OwnedFd> {
    static WATCHED: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let watched = WATCHED.get_or_init(|| eventfd(1, EventfdFlags::CLOEXEC).ok()).as_ref()?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
    epoll::add(&set, watched, epoll::EventData::new_u64(1), epoll::EventFlags::IN).ok()?;
    Some(set)
}

/// A UNIX socket in whose queue lie others: its last close is theirs, too.
fn full() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = || rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok();
    let ((one, other), (inner, _)) = (pair()?, pair()?);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let beside = [inner.as_fd(), one.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&beside));
    rustix::net::sendmsg(&one, &[IoSlice::new(b"full")], &mut control, SendFlags::NOSIGNAL).ok()?;
    Some(other)
}
