//! A send or a receive by io_uring, with a ring of its own.

use std::os::fd::RawFd;
use std::ptr::null_mut;
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

/// One request: its result, as that of a call.
fn once(what: u8, fd: RawFd, at: *mut c_void, n: usize, flags: c_int) -> i64 {
    let mut parameters = Parameters::default();
    // SAFETY: parameters of ours, of the kernel's layout.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut parameters) } as RawFd;
    if ring < 0 || parameters.features & SINGLE_MMAP == 0 {
        return -1;
    }
    let [_, sq_tail, sq_mask, _, _, _, array, ..] = parameters.sq;
    let [cq_head, _, cq_mask, _, _, cqes, ..] = parameters.cq;
    let sq_size = array as usize + parameters.sq_entries as usize * 4;
    let size = sq_size.max(cqes as usize + parameters.cq_entries as usize * COMPLETION);
    let entries_size = parameters.sq_entries as usize * ENTRY;
    let map = |size, offset| {
        let (protection, shared) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping of the ring.
        let at = unsafe { libc::mmap(null_mut(), size, protection, shared, ring, offset) };
        assert_ne!(at, libc::MAP_FAILED, "the ring's mapping");
        at.cast::<u8>()
    };
    let (base, entries) = (map(size, 0), map(entries_size, SQES));
    // SAFETY: the kernel's offsets lie within its mappings; `at` and `n` are the caller's, and the request has ended when this returns.
    let result = unsafe {
        let word = |offset: u32| AtomicU32::from_ptr(base.add(offset as usize).cast());
        let tail = word(sq_tail).load(Ordering::Relaxed);
        let index = tail & word(sq_mask).load(Ordering::Relaxed);
        let entry = entries.add(index as usize * ENTRY);
        entry.write(what);
        entry.add(4).cast::<i32>().write(fd);
        entry.add(16).cast::<u64>().write(at as u64);
        entry.add(24).cast::<u32>().write(n as u32);
        entry.add(28).cast::<i32>().write(flags);
        word(array + 4 * index).store(index, Ordering::Relaxed);
        word(sq_tail).store(tail.wrapping_add(1), Ordering::Release);
        let none: *const c_void = null_mut();
        let made = libc::syscall(libc::SYS_io_uring_enter, ring, 1, 1, GETEVENTS, none, 0usize);
        assert_eq!(made, 1, "one request");
        let head = word(cq_head).load(Ordering::Acquire) & word(cq_mask).load(Ordering::Relaxed);
        let result = base.add(cqes as usize + head as usize * COMPLETION + 8).cast::<i32>().read_volatile();
        libc::munmap(base.cast(), size);
        libc::munmap(entries.cast(), entries_size);
        libc::close(ring);
        if result < 0 {
            *libc::__errno_location() = -result;
        }
        result
    };
    if result < 0 { -1 } else { result.into() }
}
