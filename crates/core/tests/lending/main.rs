//! The pair of `tests/pair`, and MSG_ZEROCOPY: buffers that are lent, and notices. In a process of its own, as others give lending up for
//! good: they execute programs.

#[allow(dead_code, reason = "what the pair's own tests call besides")]
#[path = "../pair/broker.rs"]
mod broker;
#[allow(dead_code, reason = "as above")]
#[path = "../pair/end.rs"]
mod end;
#[allow(dead_code, reason = "as above")]
#[path = "../pair/fork.rs"]
mod fork;
#[allow(dead_code, reason = "as above")]
#[path = "../pair/place.rs"]
mod place;

use end::{End, Res, answer, libcs};
use fork::{Child, Ended};
use libc::{MSG_DONTWAIT, MSG_ZEROCOPY, SO_ZEROCOPY, SOL_SOCKET};
use place::{NOTHING, Pair, as_tcp, bytes};
use shunpike_core::conn;
use shunpike_core::zerocopy::{self, lending, mappings};
use shunpike_wire::Reason;

/// As `--eager` is not given.
const EAGER: bool = false;
const SIZE: usize = 256 << 10;

/// Memory of a program's own, as it gets it from mmap(2).
struct Mapped {
    at: *mut u8,
}

impl Mapped {
    fn new() -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, anywhere.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), SIZE, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        mappings::mapped(at.addr(), SIZE);
        let mapped = Self { at: at.cast() };
        // SAFETY: as large, and nobody else's.
        unsafe { core::ptr::copy_nonoverlapping(bytes(SIZE).as_ptr(), mapped.at, SIZE) };
        mapped
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: it is mapped as long as this lives.
        unsafe { core::slice::from_raw_parts(self.at, SIZE) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        lending::recall_from(self.at.addr(), SIZE);
        mappings::unmapped(self.at.addr(), SIZE);
        // SAFETY: it is ours.
        unsafe { libc::munmap(self.at.cast(), SIZE) };
    }
}

/// recvmsg(2) with MSG_ERRQUEUE: the first and the last call that the next notice tells of.
fn notice(end: &End) -> Res<(u32, u32)> {
    /// SO_EE_ORIGIN_ZEROCOPY (linux/errqueue.h).
    const ORIGIN: u8 = 5;
    let mut control = [0u64; 16];
    // SAFETY: an all-zero msghdr is valid.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let (flags, at) = (libc::MSG_ERRQUEUE | MSG_DONTWAIT, &raw mut header);
    // SAFETY: the message is ours.
    let real = || unsafe { libc::recvmsg(end.fd, at, flags) };
    match end.known() {
        None => libcs(real()),
        // SAFETY: as above.
        Some(conn) => answer(unsafe { zerocopy::read(conn, end.fd, (at, header), flags, real) }),
    }?;
    // SAFETY: the first message, which was just read.
    let told: libc::sock_extended_err = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        assert!(!first.is_null());
        libc::CMSG_DATA(first).cast::<libc::sock_extended_err>().read_unaligned()
    };
    assert_eq!((told.ee_errno, told.ee_origin), (0, ORIGIN));
    Ok((told.ee_info, told.ee_data))
}

fn ask(end: &End) {
    end.set(SOL_SOCKET, SO_ZEROCOPY, 1).expect("the kernel has it");
}

/// Sends all of it, in as many calls as it takes, while the other end reads; how many those were.
fn carry(from: &End, to: &End, memory: &Mapped) -> u32 {
    let (mut sent, mut read, mut calls) = (0, Vec::new(), 0);
    while sent < SIZE {
        match from.send_with(&memory.bytes()[sent..], MSG_ZEROCOPY | MSG_DONTWAIT) {
            Ok(n) => (sent, calls) = (sent + n, calls + 1),
            Err(errno) => assert_eq!(errno, NOTHING),
        }
        read.extend(to.recv_all().0);
    }
    while read.len() < SIZE {
        assert_ne!(to.poll(libc::POLLIN, Some(1_000_000_000)), 0, "{}", read.len());
        read.extend(to.recv_all().0);
    }
    assert!(read == memory.bytes());
    calls
}

/// Notices up to that of call number `last`, without a gap.
fn noticed_up_to(end: &End, last: u32) {
    let mut next = 0;
    while next <= last {
        assert_ne!(end.poll(0, Some(1_000_000_000)) & libc::POLLERR, 0, "{next} of {last}");
        let (first, up_to) = notice(end).expect("a notice");
        assert_eq!(first, next);
        next = up_to + 1;
    }
    assert_eq!(notice(end), Err(NOTHING), "no more");
}

#[test]
fn each_call_has_its_notice() {
    as_tcp(|pair| {
        ask(&pair.client);
        let memory = Mapped::new();
        let calls = (0..8).map(|_| carry(&pair.client, &pair.server, &memory)).sum::<u32>();
        noticed_up_to(&pair.client, calls - 1);
    });
}

#[test]
fn small_ones_are_copied_and_noticed_as_well() {
    as_tcp(|pair| {
        ask(&pair.client);
        for at in 0..5 {
            pair.client.send_with(b"small", MSG_ZEROCOPY | MSG_DONTWAIT).expect("room");
            assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"small"[..]), "{at}");
        }
        noticed_up_to(&pair.client, 4);
    });
}

#[test]
fn what_is_unmapped_unread_is_read_all_the_same() {
    let pair = Pair::open();
    ask(&pair.client);
    for _ in 0..3 {
        // The receiver says that it may read our memory, before it is lent.
        carry(&pair.client, &pair.server, &Mapped::new());
        let memory = Mapped::new();
        let sent = pair.client.send_with(memory.bytes(), MSG_ZEROCOPY | MSG_DONTWAIT).expect("room");
        drop(memory);
        let mut read = Vec::new();
        while read.len() < sent {
            read.extend(pair.server.recv_all().0);
            pair.client.shows();
        }
        assert!(read == bytes(SIZE)[..sent]);
    }
}

#[test]
fn what_is_lent_is_peeked_at_and_read_in_parts() {
    let pair = Pair::open();
    ask(&pair.client);
    carry(&pair.client, &pair.server, &Mapped::new());
    let memory = Mapped::new();
    let sent = pair.client.send_with(memory.bytes(), MSG_ZEROCOPY | MSG_DONTWAIT).expect("room");
    let peeked = pair.server.recv_with(5000, libc::MSG_PEEK | MSG_DONTWAIT).expect("bytes");
    assert!(peeked == bytes(5000));
    let mut read = Vec::new();
    while read.len() < sent {
        read.extend(pair.server.recv(7001).expect("bytes"));
    }
    assert!(read == bytes(SIZE)[..sent]);
}

#[test]
fn a_lent_buffer_is_taken_back_with_the_lane() {
    let pair = Pair::open();
    ask(&pair.client);
    carry(&pair.client, &pair.server, &Mapped::new());
    let memory = Mapped::new();
    let sent = pair.client.send_with(memory.bytes(), MSG_ZEROCOPY | MSG_DONTWAIT).expect("room");
    conn::revoke(pair.server.conn(), pair.server.fd, Reason::Revoked);
    let mut read = Vec::new();
    for _ in 0..1000 {
        pair.client.shows();
        read.extend(pair.server.recv_all().0);
        if read.len() == sent {
            break;
        }
    }
    assert!(read == bytes(SIZE)[..sent], "{} of {sent}", read.len());
}

/// The other end's process may read ours no more, or the memory is gone: the bytes come by TCP then, from who sent them.
#[test]
fn a_buffer_that_cannot_be_read_any_more_is_asked_for() {
    let pair = Pair::open();
    ask(&pair.client);
    carry(&pair.client, &pair.server, &Mapped::new());
    let memory = Mapped::new();
    let sent = pair.client.send_with(memory.bytes(), MSG_ZEROCOPY | MSG_DONTWAIT).expect("room");
    // SAFETY: only what is tested looks at it meanwhile, by system calls.
    let protect = |how| unsafe { libc::mprotect(memory.at.cast(), SIZE, how) };
    // Past the hooks.
    assert_eq!(protect(libc::PROT_NONE), 0);
    let _ = pair.server.recv(100_000);
    assert_eq!(protect(libc::PROT_READ), 0);
    let (mut read, mut error) = (0, None);
    for _ in 0..1000 {
        pair.client.shows();
        let (bytes, end) = pair.server.recv_all();
        read += bytes.len();
        error = end.filter(|&errno| errno != NOTHING);
        if read == sent || error.is_some() {
            break;
        }
    }
    assert!(read == sent || error.is_some(), "{read} of {sent}");
}

#[test]
fn lending_ends_with_the_process_s_other_user() {
    let pair = Pair::open();
    ask(&pair.client);
    let child = Child::fork(|| {
        lending::close();
        let memory = Mapped::new();
        let calls = carry(&pair.client, &pair.server, &memory);
        noticed_up_to(&pair.client, calls - 1);
    });
    assert_eq!(child.ended(), Ended::Exited(0));
}
