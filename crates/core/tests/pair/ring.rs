//! Rings of io_uring, with core called as the entries call it: before what goes into one is submitted.

use crate::end::libcs;
use crate::epoll::Epoll;
use crate::fork::{Child, Ended};
use crate::{NOTHING, Pair, as_tcp};
use shunpike_core::conn;
use std::cell::Cell;
use std::ptr;

/// include/uapi/linux/io_uring.h
const ENTRIES: i64 = 0x1000_0000;
const GETEVENTS: usize = 1;
const NO_ARRAY: u32 = 1 << 16;
const FIXED: u8 = 1;
mod code {
    pub const NOP: u8 = 0;
    pub const POLL_ADD: u8 = 6;
    pub const READ: u8 = 22;
    pub const RECV: u8 = 27;
    pub const EPOLL_CTL: u8 = 29;
    pub const SPLICE: u8 = 30;
    pub const SOCKET: u8 = 45;
}

/// struct io_uring_params.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    entries: [u32; 2],
    flags: u32,
    between: [u32; 7],
    submissions: [u32; 10],
    completions: [u32; 10],
}

/// struct io_uring_sqe, struct io_uring_cqe.
#[repr(C)]
#[derive(Default, Clone)]
struct Job {
    code: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
    details: u32,
    data: u64,
    names: [u16; 2],
    other: i32,
    rest: [u64; 2],
}

#[repr(C)]
struct Done {
    data: u64,
    result: i32,
    flags: u32,
}

/// A ring of eight entries.
struct Ring {
    fd: i32,
    words: *mut u8,
    jobs: *mut Job,
    made: Parameters,
    submitted: Cell<u32>,
}

impl Ring {
    /// `None`: the kernel lets nobody have one here.
    fn new(flags: u32) -> Option<Self> {
        let mut made = Parameters { flags, ..Parameters::default() };
        // SAFETY: the parameters are ours.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, &raw mut made) } as i32;
        if fd < 0 {
            eprintln!("no ring here: {}", std::io::Error::last_os_error());
            return None;
        }
        // SAFETY: as the kernel has written them.
        unsafe { conn::ring_made(fd, (&raw const made).expose_provenance()) };
        let map = |offset| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping, where the kernel likes.
            let at = unsafe { libc::mmap(ptr::null_mut(), 4096, access, libc::MAP_SHARED, fd, offset) };
            assert_ne!(at, libc::MAP_FAILED);
            conn::ring_mapped(fd, offset as usize, at.expose_provenance());
            at.cast::<u8>()
        };
        let (words, jobs) = (map(0), map(ENTRIES).cast());
        Some(Self { fd, words, jobs, made, submitted: Cell::new(0) })
    }

    fn word(&self, at: u32) -> *mut u32 {
        self.words.wrapping_add(at as usize).cast()
    }

    fn enter(&self, submit: usize, complete: usize) -> isize {
        let arguments = [self.fd as usize, submit, complete, GETEVENTS, 0, 0];
        // SAFETY: what is submitted is there.
        unsafe {
            conn::before_ring_enters(arguments);
            let [a, b, c, d, e, f] = arguments;
            libc::syscall(libc::SYS_io_uring_enter, a, b, c, d, e, f) as isize
        }
    }

    fn submit(&self, job: Job) {
        let [_, tail, mask, _, _, _, array, ..] = self.made.submissions;
        // SAFETY: the ring's own memory, which the kernel leaves alone up to the tail.
        unsafe {
            let at = *self.word(tail);
            // Entries need not be in the order of the slots.
            let slot = at & *self.word(mask);
            let index = if self.made.flags & NO_ARRAY == 0 { 7 - slot } else { slot };
            self.jobs.wrapping_add(index as usize).write(job);
            if self.made.flags & NO_ARRAY == 0 {
                *self.word(array + 4 * slot) = index;
            }
            self.word(tail).write_volatile(at + 1);
        }
        assert_eq!(libcs(self.enter(1, 0)), Ok(1));
    }

    /// The result of the job that was submitted first.
    fn result(&self) -> i32 {
        let [head, _, mask, _, _, done, ..] = self.made.completions;
        let at = self.submitted.replace(self.submitted.get() + 1);
        assert!(self.enter(0, 1) >= 0);
        // SAFETY: as above.
        unsafe {
            let slot = at & *self.word(mask);
            let result = (*self.word(done).cast::<Done>().wrapping_add(slot as usize)).result;
            self.word(head).write_volatile(at + 1);
            result
        }
    }

    fn job(&self, job: Job) -> i32 {
        self.submit(job);
        self.result()
    }

    fn change(&self, set: &Epoll, op: i32, fd: i32) -> i32 {
        let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        let address =
            if op == libc::EPOLL_CTL_DEL { 0 } else { (&raw const event).expose_provenance() as u64 };
        let (length, offset) = (op as u32, fd as u64);
        self.job(Job { code: code::EPOLL_CTL, fd: set.fd, offset, address, length, ..Job::default() })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: they are ours.
        unsafe {
            libc::munmap(self.words.cast(), 4096);
            libc::munmap(self.jobs.cast(), 4096);
            libc::close(self.fd);
        }
    }
}

/// Whether it is as it was: on its lanes, where it has some.
fn is_left_alone(pair: &Pair) -> bool {
    pair.server.known().is_none() || pair.server.is_on_lanes()
}

#[test]
fn changes_of_a_set_are_as_by_epoll_ctl() {
    for flags in [0, NO_ARRAY] {
        as_tcp(|pair| {
            let Some(ring) = Ring::new(flags) else { return Vec::new() };
            let (set, fd) = (Epoll::new(), pair.server.fd);
            let mut seen = vec![ring.change(&set, libc::EPOLL_CTL_MOD, fd)];
            seen.push(ring.change(&set, libc::EPOLL_CTL_ADD, fd));
            seen.push(ring.change(&set, libc::EPOLL_CTL_ADD, fd));
            for _ in 0..10 {
                pair.client.send(b"bytes").expect("room");
                seen.extend([
                    set.wait(5_000_000_000).len() as i32,
                    ring.change(&set, libc::EPOLL_CTL_MOD, fd),
                ]);
                seen.push(pair.server.recv(100).map_or(-1, |bytes| bytes.len() as i32));
                seen.push(set.wait(0).len() as i32);
            }
            seen.push(ring.change(&set, libc::EPOLL_CTL_DEL, fd));
            seen.push(ring.change(&set, libc::EPOLL_CTL_DEL, fd));
            pair.client.send(b"bytes").expect("room");
            seen.push(set.wait(0).len() as i32);
            assert!(is_left_alone(pair));
            seen
        });
    }
}

#[test]
fn jobs_of_others_leave_lanes_alone() {
    let pair = Pair::open();
    let Some(ring) = Ring::new(0) else { return };
    let (reads, writes) = std::io::pipe().expect("a pipe");
    std::io::Write::write_all(&mut &writes, b"of a pipe").expect("room");
    let mut bytes = [0u8; 100];
    let (fd, address) =
        (std::os::fd::AsRawFd::as_raw_fd(&reads), (&raw mut bytes).expose_provenance() as u64);
    let read = Job { code: code::READ, fd, address, length: 100, offset: u64::MAX, ..Job::default() };
    assert_eq!(ring.job(read), 9);
    assert_eq!(ring.job(Job { code: code::NOP, ..Job::default() }), 0);
    // A protocol's family is no descriptor.
    let made = ring.job(Job { code: code::SOCKET, fd: libc::AF_UNIX, offset: 1, ..Job::default() });
    if made >= 0 {
        // SAFETY: it is ours.
        unsafe { libc::close(made) };
    }
    pair.talk();
    assert!(pair.is_on_lanes());
}

#[test]
fn a_connection_that_a_ring_reads_is_on_tcp_first() {
    as_tcp(|pair| {
        let Some(ring) = Ring::new(0) else { return Vec::new() };
        pair.client.send(b"unread").expect("room");
        let mut bytes = [0u8; 100];
        let (fd, address) = (pair.server.fd, (&raw mut bytes).expose_provenance() as u64);
        ring.submit(Job { code: code::RECV, fd, address, length: 100, ..Job::default() });
        // The client's next look at anything.
        pair.client.shows();
        let n = ring.result();
        assert!(pair.client.is_on_tcp() && pair.server.is_on_tcp());
        assert_eq!(pair.server.recv_all(), (Vec::new(), Some(NOTHING)));
        bytes[..n as usize].to_vec()
    });
}

#[test]
fn both_ends_of_a_splice_are_named() {
    let pair = Pair::open();
    let Some(ring) = Ring::new(0) else { return };
    let (reads, writes) = std::io::pipe().expect("a pipe");
    let [from, to] = [&reads as &dyn std::os::fd::AsRawFd, &writes].map(|one| one.as_raw_fd());
    let job = Job {
        code: code::SPLICE,
        fd: to,
        offset: u64::MAX,
        address: u64::MAX,
        other: pair.server.fd,
        length: 100,
        ..Job::default()
    };
    ring.submit(job);
    pair.client.shows();
    assert!(pair.server.is_on_tcp());
    pair.client.send(b"spliced").expect("room");
    assert_eq!(ring.result(), 7);
    drop((from, reads));
}

#[test]
fn a_set_that_a_ring_polls_has_no_lanes() {
    let pair = Pair::open();
    let Some(ring) = Ring::new(0) else { return };
    let set = Epoll::new();
    set.add(pair.server.fd, libc::EPOLLIN).expect("a set");
    ring.submit(Job { code: code::POLL_ADD, fd: set.fd, details: libc::POLLIN as u32, ..Job::default() });
    pair.client.send(b"bytes").expect("room");
    pair.client.shows();
    assert_eq!(ring.result(), i32::from(libc::POLLIN));
}

/// In a child, as it is for good: what nobody can follow sends all to TCP.
fn ends_all_lanes(what: impl Fn(&Pair)) {
    let pair = Pair::open();
    let child = Child::fork(|| {
        what(&pair);
        pair.client.shows();
        pair.talk_alone();
        assert!(pair.is_on_tcp());
    });
    assert_eq!(child.ended(), Ended::Exited(0));
}

#[test]
fn rings_that_nobody_can_follow_end_all_lanes() {
    ends_all_lanes(|_| conn::before_ring_registers(2));
    // SAFETY: nothing is there.
    ends_all_lanes(|_| unsafe { conn::before_ring_enters([900, 1, 0, 0, 0, 0]) });
    // A thread of the kernel's polls it.
    let polled = Parameters { flags: 2, ..Parameters::default() };
    // SAFETY: as the kernel writes them.
    ends_all_lanes(|_| unsafe { conn::ring_made(901, (&raw const polled).expose_provenance()) });
    // Made, and mapped by nobody.
    let plain = Parameters::default();
    // SAFETY: as above.
    ends_all_lanes(|_| unsafe {
        conn::ring_made(902, (&raw const plain).expose_provenance());
        conn::before_ring_enters([902, 1, 0, 0, 0, 0]);
    });
    ends_all_lanes(|pair| {
        let Some(ring) = Ring::new(0) else { return conn::ring_set_up() };
        let job = Job { code: code::RECV, flags: FIXED, fd: 0, length: 1, ..Job::default() };
        assert!(ring.job(job) < 0, "{:?}", pair.state());
    });
}
