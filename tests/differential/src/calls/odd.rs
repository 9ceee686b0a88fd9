//! Calls that few programs make: messages by the three, flags of read and write, options beside the stream, and what fails on sockets.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{null, null_mut};

use libc::{c_int, c_void, epoll_event, mmsghdr, pollfd, socklen_t};

use super::{Said, close, control_of, errno, get, handlers, message, set, vector};
use crate::op::{LEVELS, LookBy, Opt, RecvBy, SendBy, Stamps};
use crate::surface;

const DONTWAIT: c_int = libc::MSG_DONTWAIT;
/// include/uapi/linux/fs.h
const RWF_NOWAIT: c_int = 8;
/// include/linux/socket.h
const MSG_BATCH: c_int = 0x4_0000;
/// Messages of one call.
const MESSAGES: usize = 3;

/// One call that sends, as [`super::send`] makes it.
pub(super) fn send(fd: RawFd, by: SendBy, bytes: &[u8]) -> i64 {
    let parts = vector(bytes);
    // SAFETY: the slice, and structs of ours, which outlive each call.
    unsafe {
        match by {
            SendBy::Many | SendBy::Batch => {
                let mut pieces: Vec<_> =
                    bytes.chunks(bytes.len().div_ceil(MESSAGES).max(1)).map(vector).collect();
                let mut all: Vec<_> = pieces
                    .iter_mut()
                    .map(|parts| mmsghdr { msg_hdr: message(parts, &mut []), msg_len: 0 })
                    .collect();
                let batch = if by == SendBy::Batch { MSG_BATCH } else { 0 };
                let flags = libc::MSG_NOSIGNAL | DONTWAIT | batch;
                let n = libc::sendmmsg(fd, all.as_mut_ptr(), all.len() as _, flags as _);
                if n < 0 {
                    n.into()
                } else {
                    all[..n as usize].iter().map(|one| i64::from(one.msg_len)).sum()
                }
            }
            SendBy::Pwritev2 => libc::pwritev2(fd, parts.as_ptr(), 2, -1, RWF_NOWAIT) as i64,
            SendBy::SendfileOn => {
                let file = libc::memfd_create(c"differential".as_ptr(), libc::MFD_CLOEXEC);
                libc::write(file, b"before".as_ptr().cast(), 6);
                libc::write(file, bytes.as_ptr().cast(), bytes.len());
                libc::lseek(file, 6, libc::SEEK_SET);
                // More than there is: it ends with the file.
                let n = libc::sendfile(fd, file, null_mut(), bytes.len() + 100) as i64;
                let kept = errno();
                let at = libc::lseek(file, 0, libc::SEEK_CUR);
                libc::close(file);
                *libc::__errno_location() = kept;
                // The file stands behind what was sent.
                if n >= 0 && at != 6 + n { -2 } else { n }
            }
            _ => {
                let flags = libc::MSG_DONTROUTE | libc::MSG_CONFIRM | libc::MSG_EOR;
                let flags = flags | libc::MSG_NOSIGNAL | DONTWAIT;
                libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, null(), 0) as i64
            }
        }
    }
}

/// One call that receives, with what it brought besides.
pub(super) fn receive(fd: RawFd, by: RecvBy, to: &mut [u8]) -> (i64, Vec<i64>) {
    let (at, n) = (to.as_mut_ptr().cast::<c_void>(), to.len());
    let mut parts = vector(to);
    let mut control = [0u64; 32];
    // SAFETY: the slice, and structs of ours, which outlive each call.
    unsafe {
        match by {
            RecvBy::Preadv2 => (libc::preadv2(fd, parts.as_ptr(), 2, -1, RWF_NOWAIT) as i64, Vec::new()),
            RecvBy::PeekTrunc => {
                (libc::recv(fd, at, n, DONTWAIT | libc::MSG_PEEK | libc::MSG_TRUNC) as i64, Vec::new())
            }
            RecvBy::PeekWhole => {
                (libc::recv(fd, at, n, libc::MSG_PEEK | libc::MSG_WAITALL) as i64, Vec::new())
            }
            RecvBy::Many | RecvBy::ForOne => (receive_many(fd, by, to), Vec::new()),
            _ => {
                let flags = match by {
                    RecvBy::PeekMsg => libc::MSG_PEEK,
                    RecvBy::TruncMsg => libc::MSG_TRUNC,
                    _ => libc::MSG_CMSG_CLOEXEC,
                };
                let mut header = message(&mut parts, &mut control);
                let n = libc::recvmsg(fd, &raw mut header, DONTWAIT | flags);
                (n as i64, if n >= 0 { control_of(&header) } else { Vec::new() })
            }
        }
    }
}

/// How bytes are cut into messages is nobody's business: they are moved to where one read would have them.
fn receive_many(fd: RawFd, by: RecvBy, to: &mut [u8]) -> i64 {
    let size = to.len().div_ceil(MESSAGES).max(1);
    let mut pieces: Vec<_> = to.chunks(size).map(vector).collect();
    let mut all: Vec<_> =
        pieces.iter_mut().map(|parts| mmsghdr { msg_hdr: message(parts, &mut []), msg_len: 0 }).collect();
    let flags = if by == RecvBy::ForOne { libc::MSG_WAITFORONE } else { DONTWAIT };
    let mut most = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    let most: *mut libc::timespec = if by == RecvBy::ForOne { &raw mut most } else { null_mut() };
    // SAFETY: messages of ours, whose memory is the slice's.
    let n = unsafe { libc::recvmmsg(fd, all.as_mut_ptr(), all.len() as _, flags as _, most) };
    if n < 0 {
        return n.into();
    }
    let mut have = 0;
    for (number, one) in all[..n as usize].iter().enumerate() {
        let len = one.msg_len as usize;
        to.copy_within(number * size..number * size + len, have);
        have += len;
    }
    have as i64
}

const ALL_EVENTS: c_int = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP;

pub(super) fn look(fd: RawFd, by: LookBy) -> Said {
    // SAFETY: memory of ours, which outlives each call.
    unsafe {
        match by {
            LookBy::Arrivals => Said::of(handlers::arrived()),
            LookBy::Flags => flags(fd),
            LookBy::Refused => refused(fd),
            LookBy::Errors => {
                let byte = [0u8; 8];
                let (mut parts, mut control) = (vector(&byte), [0u64; 32]);
                let mut header = message(&mut parts, &mut control);
                Said::from(libc::recvmsg(fd, &raw mut header, libc::MSG_ERRQUEUE | DONTWAIT) as i64)
            }
            LookBy::SendNothing => {
                let before = handlers::broken();
                let sent = Said::from(libc::send(fd, null(), 0, DONTWAIT) as i64);
                let written = Said::from(libc::write(fd, null(), 0) as i64);
                sent.with([written.ret, written.errno.into(), handlers::broken() - before])
            }
            LookBy::TcpState => {
                let mut state = 0xffu8;
                let mut len: socklen_t = 1;
                let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
                let rc = libc::getsockopt(fd, level, name, (&raw mut state).cast(), &raw mut len);
                // The acknowledgement of an end may come later: FIN_WAIT1 and FIN_WAIT2; LAST_ACK and CLOSING, which become CLOSE.
                let state = match state {
                    4 => 5,
                    9 | 11 => 7,
                    other => other,
                };
                Said::from(rc).with([state.into(), len.into()])
            }
            LookBy::PollEach => {
                let mut one = pollfd { fd, events: -1, revents: 0 };
                let n = libc::poll(&raw mut one, 1, 0);
                Said::from(n).with([one.revents.into()])
            }
            LookBy::CloseOnExec => close_on_exec(fd),
            LookBy::Empty => empty(fd),
            LookBy::Faults => faults(fd),
            LookBy::Unsent => unsent(fd),
            LookBy::Figures => figures(fd),
            LookBy::Mapped => mapped(fd),
            _ => kinds(fd),
        }
    }
}

/// Close-on-exec by each way to set it, and off again; a copy of the number that has it.
fn close_on_exec(fd: RawFd) -> Said {
    // SAFETY: no memory is passed.
    unsafe {
        let flags = || i64::from(libc::fcntl(fd, libc::F_GETFD));
        let rc = libc::close_range(fd as u32, fd as u32, libc::CLOSE_RANGE_CLOEXEC as c_int);
        let by_range = flags();
        let off = libc::ioctl(fd, libc::FIONCLEX);
        let by_none = flags();
        let on = libc::ioctl(fd, libc::FIOCLEX);
        let by_ioctl = flags();
        libc::fcntl(fd, libc::F_SETFD, 0);
        let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0);
        let of_copy = libc::fcntl(copy, libc::F_GETFD);
        close(copy);
        let by_call = [rc, off, on, of_copy].map(i64::from);
        Said::from(rc).with([by_range, by_none, by_ioctl]).with(by_call)
    }
}

/// TCP's acknowledgements come when they like: of what is not acknowledged only the call's result is told. All that may go is sent at once.
fn unsent(fd: RawFd) -> Said {
    let ask = |what| {
        let mut bytes = -1i32;
        // SAFETY: an int of ours.
        let rc = unsafe { libc::ioctl(fd, what, &raw mut bytes) };
        (rc, bytes)
    };
    let (unacknowledged, unsent) = (ask(libc::TIOCOUTQ), ask(SIOCOUTQNSD));
    Said::from(unsent.0).with([unsent.1.into(), unacknowledged.0.into(), i64::from(unacknowledged.1 >= 0)])
}

/// Results and lengths of what tells of TCP's own figures.
fn figures(fd: RawFd) -> Said {
    let asked = [
        (libc::SOL_SOCKET, libc::SO_MEMINFO),
        (libc::IPPROTO_TCP, libc::TCP_CC_INFO),
        (libc::IPPROTO_TCP, libc::TCP_INFO),
    ];
    Said::of(0).with(asked.into_iter().flat_map(|(level, name)| {
        let mut all = [0u64; 64];
        let mut len = size_of_val(&all) as socklen_t;
        // SAFETY: both are ours.
        let rc = unsafe { libc::getsockopt(fd, level, name, all.as_mut_ptr().cast(), &raw mut len) };
        [rc.into(), len.into()]
    }))
}

/// How much there is, where nothing can be mapped: less than a page.
fn mapped(fd: RawFd) -> Said {
    // struct tcp_zerocopy_receive: an address, a length, and how many bytes are to be read.
    let mut receive = [0u64, 0];
    let mut len = size_of_val(&receive) as socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE);
    // SAFETY: both are ours.
    let rc = unsafe { libc::getsockopt(fd, level, name, receive.as_mut_ptr().cast(), &raw mut len) };
    Said::from(rc).with([(receive[1] & 0xffff_ffff) as i64, (receive[1] >> 32) as i64])
}

/// What the descriptor and its socket are set to.
fn flags(fd: RawFd) -> Said {
    let commands = [libc::F_GETFL, libc::F_GETFD, F_GETSIG];
    // SAFETY: no memory is passed.
    let flags = commands.map(|command| i64::from(unsafe { libc::fcntl(fd, command) }));
    // SAFETY: as above. Which process it is has another number each time.
    let owner = i64::from(unsafe { libc::fcntl(fd, libc::F_GETOWN) } != 0);
    let socket = [
        libc::SO_OOBINLINE,
        libc::SO_PEEK_OFF,
        libc::SO_TIMESTAMP,
        libc::SO_TIMESTAMPNS,
        libc::SO_LINGER,
        libc::SO_SELECT_ERR_QUEUE,
        libc::SO_MAX_PACING_RATE,
        libc::SO_RCVLOWAT,
        libc::SO_SNDLOWAT,
        libc::SO_PRIORITY,
        libc::SO_ZEROCOPY,
    ]
    .map(|name| get(fd, libc::SOL_SOCKET, name));
    let tcp = [libc::TCP_KEEPCNT, libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_USER_TIMEOUT]
        .map(|name| get(fd, libc::IPPROTO_TCP, name));
    let ip = [libc::IP_TOS, libc::IP_TTL, libc::IP_MINTTL].map(|name| get(fd, libc::IPPROTO_IP, name));
    Said::of(owner).with(flags.into_iter().chain(socket).chain(tcp).chain(ip))
}

/// The errors of calls that are for files.
fn refused(fd: RawFd) -> Said {
    let mut byte = [0u8; 4];
    let parts = vector(&byte);
    let at: *mut c_void = byte.as_mut_ptr().cast();
    let mut offset = 0i64;
    // SAFETY: memory of ours; none of them does anything to a socket.
    let all = unsafe {
        let null_file = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        let mut pipe = [0; 2];
        libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC);
        let calls: [&dyn Fn() -> i64; 10] = [
            &|| libc::tee(fd, pipe[1], 4, libc::SPLICE_F_NONBLOCK) as i64,
            &|| libc::pread(fd, at, 4, 0) as i64,
            &|| libc::pwrite(fd, at, 4, 0) as i64,
            &|| libc::preadv(fd, parts.as_ptr(), 2, 0) as i64,
            &|| libc::lseek(fd, 0, libc::SEEK_CUR),
            &|| libc::vmsplice(fd, parts.as_ptr(), 2, 0) as i64,
            &|| libc::fsync(fd).into(),
            &|| libc::ftruncate(fd, 0).into(),
            &|| libc::sendfile(null_file, fd, null_mut(), 4) as i64,
            &|| libc::preadv2(fd, parts.as_ptr(), 2, 0, 0) as i64,
        ];
        let mut all: Vec<i64> = calls.iter().flat_map(|call| [call(), errno().into()]).collect();
        let copied = libc::copy_file_range(fd, &raw mut offset, null_file, null_mut(), 4, 0);
        all.extend([copied as i64, errno().into()]);
        for one in [null_file, pipe[0], pipe[1]] {
            close(one);
        }
        all
    };
    Said::of(0).with(all)
}

/// What calls say whose buffers are empty.
fn empty(fd: RawFd) -> Said {
    let none = vector(&[]);
    let mut header = message(&mut [], &mut []);
    let before = handlers::broken();
    // SAFETY: nothing is read or written.
    let all = unsafe {
        let calls: [&mut dyn FnMut() -> isize; 6] = [
            &mut || libc::readv(fd, none.as_ptr(), 2),
            &mut || libc::read(fd, null_mut(), 0),
            &mut || libc::recvmsg(fd, &raw mut header, DONTWAIT | libc::MSG_PEEK),
            &mut || libc::writev(fd, none.as_ptr(), 2),
            &mut || libc::writev(fd, none.as_ptr(), 0),
            &mut || libc::sendfile(fd, fd, null_mut(), 0),
        ];
        calls.map(|call| [call() as i64, errno().into()])
    };
    let errors = all.into_iter().flat_map(|[ret, error]| [ret, if ret < 0 { error } else { 0 }]);
    Said::of(handlers::broken() - before).with(errors)
}

/// What calls say that are given addresses at which there is nothing. They take no bytes, and send none.
fn faults(fd: RawFd) -> Said {
    let bad = 16 as *mut c_void;
    // SAFETY: the kernel, or who stands in for it, finds nothing there.
    let all = unsafe {
        let calls: [&dyn Fn() -> i64; 5] = [
            &|| libc::recv(fd, bad, 10, DONTWAIT) as i64,
            &|| libc::recv(fd, bad, 10, DONTWAIT | libc::MSG_PEEK) as i64,
            &|| libc::send(fd, bad, 10, DONTWAIT | libc::MSG_NOSIGNAL) as i64,
            &|| libc::ioctl(fd, libc::FIONREAD, bad).into(),
            &|| libc::recvmsg(fd, bad.cast(), DONTWAIT) as i64,
        ];
        calls.map(|call| [call(), errno().into()])
    };
    let errors = all.into_iter().flat_map(|[ret, error]| [ret, if ret < 0 { error } else { 0 }]);
    Said::of(0).with(errors)
}

/// In one set with descriptors of other kinds, each of which has something to tell.
fn kinds(fd: RawFd) -> Said {
    // SAFETY: memory of ours, and descriptors that are closed again.
    unsafe {
        let (mut mask, mut before): (libc::sigset_t, libc::sigset_t) =
            (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init());
        libc::sigaddset(&raw mut mask, libc::SIGUSR2);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, &raw mut before);
        let signals = libc::signalfd(-1, &raw const mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        libc::raise(libc::SIGUSR2);
        let event = libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        let timer = super::masks::timer(1);
        let mut one = pollfd { fd: timer, events: libc::POLLIN, revents: 0 };
        libc::poll(&raw mut one, 1, 1000);
        let all = [fd, signals, event, timer];
        let set = libc::epoll_create(1);
        for (number, &one) in all.iter().enumerate() {
            let mut event = epoll_event { events: ALL_EVENTS as u32, u64: number as u64 };
            libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, one, &raw mut event);
        }
        let told = super::look_at_set(set);
        let mut entries = all.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
        let polled = libc::poll(entries.as_mut_ptr(), entries.len() as _, 0);
        let mut info: libc::signalfd_siginfo = MaybeUninit::zeroed().assume_init();
        let read = libc::read(signals, (&raw mut info).cast(), size_of_val(&info));
        for one in [set, signals, event, timer] {
            close(one);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        told.with(entries.map(|entry| i64::from(entry.revents))).with([
            polled.into(),
            read as i64,
            info.ssi_signo.into(),
        ])
    }
}

/// Options, with a value each, that have nothing to do with the stream; some of them do not exist.
const PLAIN: [(c_int, c_int, i32); 21] = [
    (libc::IPPROTO_IP, libc::IP_TOS, 0x10),
    (libc::IPPROTO_IP, libc::IP_TTL, 60),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
    (libc::IPPROTO_IP, libc::IP_PKTINFO, 1),
    (libc::IPPROTO_IP, libc::IP_RECVERR, 1),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0x10),
    (libc::SOL_SOCKET, libc::SO_PRIORITY, 3),
    (libc::SOL_SOCKET, libc::SO_BROADCAST, 1),
    (libc::SOL_SOCKET, libc::SO_SNDLOWAT, 5),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT, 3),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2, 5),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, 1),
    // There are none of these.
    (libc::IPPROTO_TCP, 99, 1),
    (libc::SOL_SOCKET, 999, 1),
    // Which way segments take: loopback's.
    (libc::SOL_SOCKET, libc::SO_DONTROUTE, 1),
    (libc::SOL_SOCKET, libc::SO_MARK, 7),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE, i32::from_ne_bytes(*b"lo\0\0")),
    (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, 1),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1),
];
pub const PLAINS: u8 = PLAIN.len() as u8;

pub(super) fn set_option(fd: RawFd, opt: Opt) -> Said {
    const RATE: u32 = 2_000_000_000;
    let option = |level, name, value: i32| Said::from(set(fd, level, name, value));
    let socket = |name, on: bool| option(libc::SOL_SOCKET, name, on.into());
    // SAFETY: memory of ours, which outlives each call.
    unsafe {
        match opt {
            Opt::OwnerThread => {
                // struct f_owner_ex: F_OWNER_TID, and who.
                let owner = [0, libc::gettid()];
                Said::from(libc::fcntl(fd, F_SETOWN_EX, owner.as_ptr()))
            }
            Opt::Async(on) => {
                let flags = libc::fcntl(fd, libc::F_GETFL);
                let flags = if on { flags | libc::O_ASYNC } else { flags & !libc::O_ASYNC };
                Said::from(libc::fcntl(fd, libc::F_SETFL, flags))
            }
            Opt::AsyncIoctl(on) => Said::from(libc::ioctl(fd, libc::FIOASYNC, &i32::from(on))),
            Opt::NonblockIoctl(on) => Said::from(libc::ioctl(fd, libc::FIONBIO, &i32::from(on))),
            Opt::OwnSignal(on) => {
                Said::from(libc::fcntl(fd, F_SETSIG, if on { handlers::own_signal() } else { 0 }))
            }
            Opt::LingerFor(seconds) => {
                let value = libc::linger { l_onoff: 1, l_linger: seconds };
                Said::from(set(fd, libc::SOL_SOCKET, libc::SO_LINGER, value))
            }
            Opt::TimestampNs(on) => socket(libc::SO_TIMESTAMPNS, on),
            Opt::Timestamping(on) => {
                let what = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
                option(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, if on { what as i32 } else { 0 })
            }
            Opt::ErrorsBySelect(on) => socket(libc::SO_SELECT_ERR_QUEUE, on),
            Opt::Pacing => Said::from(set(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, RATE)),
            Opt::MinTtl(on) => option(libc::IPPROTO_IP, libc::IP_MINTTL, on.into()),
            Opt::Filter(true) => {
                let mut all = libc::sock_filter {
                    code: (libc::BPF_RET | libc::BPF_K) as u16,
                    jt: 0,
                    jf: 0,
                    k: u32::MAX,
                };
                let program = libc::sock_fprog { len: 1, filter: &raw mut all };
                Said::from(set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program))
            }
            Opt::Filter(false) => option(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0),
            Opt::KeepIdle(seconds) => option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds),
            Opt::KeepInterval(seconds) => option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds),
            Opt::KeepCount(times) => option(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, times),
            Opt::AddressForm => option(libc::IPPROTO_IPV6, IPV6_ADDRFORM, libc::AF_INET),
            Opt::Plain(which) => {
                let (level, name, value) = PLAIN[usize::from(which) % PLAIN.len()];
                option(level, name, value).with([get(fd, level, name)])
            }
            opt => set_rare_option(fd, opt),
        }
    }
}

/// Those that few programs set.
fn set_rare_option(fd: RawFd, opt: Opt) -> Said {
    let option = |level, name, value: i32| Said::from(set(fd, level, name, value));
    // Both have the same structure here. Programs with a `time_t` of 32 bits have the new ones where they want 64.
    let limit = |ms: u16, names: [c_int; 2]| {
        let limit = libc::timeval { tv_sec: (ms / 1000).into(), tv_usec: i64::from(ms % 1000) * 1000 };
        Said::from(set(fd, libc::SOL_SOCKET, names[usize::from(ms % 2)], limit))
    };
    match opt {
        Opt::ReceiveTimeout(ms) => limit(ms, [libc::SO_RCVTIMEO, SO_RCVTIMEO_NEW]),
        Opt::SendTimeout(ms) => limit(ms, [libc::SO_SNDTIMEO, SO_SNDTIMEO_NEW]),
        Opt::RcvBufForce(bytes) => option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes),
        Opt::SndBufForce(bytes) => option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes),
        Opt::Bpf => attach_bpf(fd),
        Opt::MinHops(on) => option(libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT, on.into()),
        Opt::UnsentLowat(bytes) => option(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes),
        Opt::WindowClamp(bytes) => option(libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes),
        Opt::SegmentDelay(us) => option(libc::IPPROTO_TCP, TCP_TX_DELAY, us.into()),
        Opt::NewStamps(stamps) => {
            let each = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
            let (name, value) = match stamps {
                Stamps::Micro => (SO_TIMESTAMP_NEW, 1),
                Stamps::Nano => (SO_TIMESTAMPNS_NEW, 1),
                Stamps::Each => (SO_TIMESTAMPING_NEW, each as i32),
            };
            option(libc::SOL_SOCKET, name, value)
        }
        Opt::Unfelt(level, name) => {
            let (level, name) = (LEVELS[usize::from(level) % LEVELS.len()], c_int::from(name));
            let said = option(level, name, 1);
            if surface::varies(level, name) { said } else { said.with([get(fd, level, name)]) }
        }
        _ => Said::of(-1),
    }
}

/// A program of BPF that keeps all of each segment: `w0 = -1; exit`.
fn attach_bpf(fd: RawFd) -> Said {
    const LOAD: c_int = 5;
    const SOCKET_FILTER: u64 = 1;
    let program = [0xffff_ffff_0000_00b4u64, 0x95];
    // union bpf_attr: type and number of instructions, where they are, and the licence.
    let licence = c"MIT";
    let count = program.len() as u64;
    let attributes =
        [count << 32 | SOCKET_FILTER, program.as_ptr() as u64, licence.as_ptr() as u64, 0, 0, 0u64];
    // SAFETY: memory of ours.
    let filter =
        unsafe { libc::syscall(libc::SYS_bpf, LOAD, attributes.as_ptr(), size_of_val(&attributes)) } as c_int;
    if filter < 0 {
        return Said::failed();
    }
    let said = Said::from(set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, filter));
    close(filter);
    said
}

/// include/uapi/asm-generic/fcntl.h
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_SETOWN_EX: c_int = 15;
/// include/uapi/linux/in6.h
const IPV6_ADDRFORM: c_int = 1;
/// include/uapi/linux/tcp.h
const TCP_TX_DELAY: c_int = 37;
/// include/uapi/linux/sockios.h
const SIOCOUTQNSD: libc::c_ulong = 0x894b;
/// include/uapi/asm-generic/socket.h
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
