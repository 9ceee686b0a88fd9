//! A send or a receive by io_uring.

use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void};

/// include/uapi/linux/io_uring.h
const SEND: u8 = 26;
const RECV: u8 = 27;
const GETEVENTS: u32 = 1;
const SINGLE_MMAP: u32 = 1;
const SQES: i64 = 0x1000_0000;
const ENTRIES: u32 = 2;
/// Of an entry and of a completion.
const ENTRY: usize = 64;
const COMPLETION: usize = 16;

/// Where things stand in the ring's mapping: io_sqring_offsets or io_cqring_offsets.
type Offsets = [u32; 10];
const ARRAY: usize = 6;
const CQES: usize = 5;

#[repr(C)]
#[derive(Default)]
struct Parameters {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread: [u32; 2],
    features: u32,
    rest: [u32; 4],
    sq: Offsets,
    cq: Offsets,
}

pub fn send(fd: RawFd, bytes: &[u8], flags: c_int) -> i64 {
    once(SEND, fd, bytes.as_ptr().cast_mut().cast(), bytes.len(), flags)
}

pub fn receive(fd: RawFd, to: &mut [u8], flags: c_int) -> i64 {
    once(RECV, fd, to.as_mut_ptr().cast(), to.len(), flags)
}

/// A ring, mapped.
struct Ring {
    fd: RawFd,
    base: usize,
    entries: usize,
    parameters: Parameters,
}

/// The process's one, for good: the end of a ring interrupts a wait that comes some time after it.
static RING: Mutex<Option<Ring>> = Mutex::new(None);

impl Ring {
    fn new() -> Option<Self> {
        let mut parameters = Parameters::default();
        // SAFETY: parameters of ours, of the kernel's layout.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut parameters) } as RawFd;
        if fd < 0 || parameters.features & SINGLE_MMAP == 0 {
            return None;
        }
        let map = |size, offset| {
            let (protection, shared) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            // SAFETY: a new mapping of the ring.
            let at = unsafe { libc::mmap(null_mut(), size, protection, shared, fd, offset) };
            assert_ne!(at, libc::MAP_FAILED, "the ring's mapping");
            at as usize
        };
        let sq_size = parameters.sq[ARRAY] as usize + parameters.sq_entries as usize * 4;
        let cq_size = parameters.cq[CQES] as usize + parameters.cq_entries as usize * COMPLETION;
        let (base, entries) =
            (map(sq_size.max(cq_size), 0), map(parameters.sq_entries as usize * ENTRY, SQES));
        Some(Self { fd, base, entries, parameters })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        let at = (self.base + offset as usize) as *mut u32;
        // SAFETY: the kernel's offsets lie within its mapping, which stays.
        unsafe { AtomicU32::from_ptr(at) }
    }
}

/// One request: its result, as that of a call.
fn once(what: u8, fd: RawFd, at: *mut c_void, n: usize, flags: c_int) -> i64 {
    let mut ring = RING.lock().expect("whoever holds it does not panic");
    if ring.is_none() {
        *ring = Ring::new();
    }
    let Some(ring) = &*ring else { return -1 };
    let [_, sq_tail, sq_mask, ..] = ring.parameters.sq;
    let [cq_head, _, cq_mask, ..] = ring.parameters.cq;
    let tail = ring.word(sq_tail).load(Ordering::Relaxed);
    let index = tail & ring.word(sq_mask).load(Ordering::Relaxed);
    let entry = (ring.entries + index as usize * ENTRY) as *mut u8;
    // SAFETY: an entry of the ring; `at` and `n` are the caller's, and the request has ended when this returns.
    let made = unsafe {
        entry.write_bytes(0, ENTRY);
        entry.write(what);
        entry.add(4).cast::<i32>().write(fd);
        entry.add(16).cast::<u64>().write(at as u64);
        entry.add(24).cast::<u32>().write(n as u32);
        entry.add(28).cast::<i32>().write(flags);
        ring.word(ring.parameters.sq[ARRAY] + 4 * index).store(index, Ordering::Relaxed);
        ring.word(sq_tail).store(tail.wrapping_add(1), Ordering::Release);
        let none: *const c_void = null_mut();
        libc::syscall(libc::SYS_io_uring_enter, ring.fd, 1, 1, GETEVENTS, none, 0usize)
    };
    assert_eq!(made, 1, "one request");
    let head = ring.word(cq_head).load(Ordering::Relaxed);
    let slot = head & ring.word(cq_mask).load(Ordering::Relaxed);
    let result =
        ring.word(ring.parameters.cq[CQES] + slot * COMPLETION as u32 + 8).load(Ordering::Acquire) as i32;
    ring.word(cq_head).store(head.wrapping_add(1), Ordering::Release);
    if result >= 0 {
        return result.into();
    }
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = -result };
    -1
}
