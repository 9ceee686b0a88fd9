//! Rings of io_uring whose submissions are seen: made, mapped and entered by calls that come through an entry, or by liburing's functions. What
//! is put into one is looked at before the kernel takes it: a change of an epoll set is made here, a connection that is named goes
//! back to TCP first. All that libuv's own ring has are such changes. Any other ring sends all connections to TCP.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use shunpike_wire::Reason;

use super::hand_over;
use super::handover::ring_set_up;
use crate::rings::{MOST, follow, followed};
use crate::table::{self, Entry};
use crate::{process, sets, user};

/// struct io_uring_params (include/uapi/linux/io_uring.h), so far as it matters here.
#[repr(C)]
#[derive(Copy, Clone)]
struct Parameters {
    before: [u32; 2],
    flags: u32,
    between: [u32; 7],
    head: u32,
    tail: u32,
    mask: u32,
    more: [u32; 3],
    array: u32,
}

/// IORING_SETUP_: CQSIZE, CLAMP, ATTACH_WQ, SUBMIT_ALL, COOP_TASKRUN, TASKRUN_FLAG, SINGLE_ISSUER, DEFER_TASKRUN, NO_SQARRAY. With others the kernel
/// takes what nobody has submitted, or it lies elsewhere.
const FLAGS: u32 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 12 | 1 << 13 | NO_ARRAY;
/// IORING_SETUP_NO_SQARRAY
const NO_ARRAY: u32 = 1 << 16;
/// IORING_OFF_SQ_RING, IORING_OFF_SQES: where in the ring's file.
const WORDS: usize = 0;
const ENTRIES: usize = 0x1000_0000;
/// IORING_ENTER_REGISTERED_RING
const BY_INDEX: usize = 1 << 4;
/// IORING_REGISTER_: FILES, FILES_UPDATE, FILES2, FILES_UPDATE2, RING_FDS, FILE_ALLOC_RANGE. Then a number means another file, or another ring.
const RENAMES: [usize; 6] = [2, 6, 13, 14, 20, 25];

/// One that is followed.
struct Ring {
    /// Where in its words they stand: head, tail, mask, array (0: none).
    offsets: [AtomicUsize; 4],
    /// Where the program has mapped its words and its entries; 0: not yet.
    words: AtomicUsize,
    entries: AtomicUsize,
}

/// By its place.
static RINGS: [Ring; MOST] = [const {
    Ring {
        offsets: [const { AtomicUsize::new(0) }; 4],
        words: AtomicUsize::new(0),
        entries: AtomicUsize::new(0),
    }
}; MOST];

fn of(fd: i32) -> Option<&'static Ring> {
    followed(fd).map(|place| &RINGS[place])
}

/// The program has made a ring, and does not know of it yet. With no lock held.
///
/// # Safety
/// `parameters`: as the kernel has written them.
pub unsafe fn ring_made(fd: i32, parameters: usize) {
    // SAFETY: a C struct of integers.
    let made = unsafe { user::fetch(core::ptr::with_exposed_provenance::<Parameters>(parameters)) };
    let Some(made) = made.filter(|made| made.flags & !FLAGS == 0) else { return ring_set_up() };
    let Some(place) = follow(fd) else { return ring_set_up() };
    let ring = &RINGS[place];
    ring.words.store(0, Relaxed);
    ring.entries.store(0, Relaxed);
    let array = if made.flags & NO_ARRAY == 0 { made.array } else { 0 };
    for (to, offset) in ring.offsets.iter().zip([made.head, made.tail, made.mask, array]) {
        to.store(offset as usize, Relaxed);
    }
}

/// liburing's struct io_uring (include/liburing.h, of its version 2), so far as it matters here: addresses, and numbers.
#[repr(C)]
#[derive(Copy, Clone)]
struct Liburings {
    before: [usize; 2],
    mask: usize,
    between: [usize; 4],
    entries: usize,
    head: u32,
    tail: u32,
    more: [u64; 15],
    flags: u32,
    fd: i32,
}

/// liburing has made a ring. With no lock held.
///
/// # Safety
/// `ring`: as liburing has filled it.
pub unsafe fn liburing_made(ring: usize) {
    // SAFETY: a C struct of integers and addresses.
    let made = unsafe { user::fetch(core::ptr::with_exposed_provenance::<Liburings>(ring)) };
    let Some(made) = made.filter(|made| made.flags & !FLAGS == 0) else { return ring_set_up() };
    let Some(place) = follow(made.fd) else { return ring_set_up() };
    // Whoever enters it by other calls is not followed.
    RINGS[place].words.store(0, Relaxed);
}

/// Before a function of liburing's that may submit what the program has prepared.
///
/// # Safety
/// The program's ring.
pub unsafe fn before_liburing_submits(ring: usize) {
    if !process::enabled() || !table::any() {
        return;
    }
    // SAFETY: the caller's word; it need not be there.
    let look = || unsafe {
        let ring = user::fetch(core::ptr::with_exposed_provenance::<Liburings>(ring))?;
        followed(ring.fd)?;
        let mask = user::fetch(core::ptr::with_exposed_provenance::<u32>(ring.mask))?;
        for at in 0..ring.tail.wrapping_sub(ring.head).min(mask.wrapping_add(1)) {
            let index = (ring.head.wrapping_add(at) & mask) as usize;
            consider(core::ptr::with_exposed_provenance_mut(ring.entries + index * size_of::<Submission>()))?;
        }
        Some(())
    };
    if look().is_none() {
        ring_set_up();
    }
}

/// The program has mapped a file, which may be a ring.
pub fn ring_mapped(fd: i32, offset: usize, at: usize) {
    let Some(ring) = of(fd) else { return };
    match offset {
        WORDS => ring.words.store(at, Relaxed),
        ENTRIES => ring.entries.store(at, Relaxed),
        _ => {}
    }
}

/// Before io_uring_enter(2).
///
/// # Safety
/// The program's arguments.
pub unsafe fn before_ring_enters([fd, count, _, flags, ..]: [usize; 6]) {
    if count == 0 || !process::enabled() || !table::any() {
        return;
    }
    let ring = of(fd as i32).filter(|_| flags & BY_INDEX == 0);
    // SAFETY: the caller's word.
    if ring.and_then(|ring| unsafe { ring.look(count as u32) }).is_none() {
        ring_set_up();
    }
}

/// Before io_uring_register(2).
pub fn before_ring_registers(what: usize) {
    if RENAMES.contains(&(what & 0x7fff_ffff)) {
        ring_set_up();
    }
}

/// struct io_uring_sqe.
#[repr(C)]
#[derive(Copy, Clone)]
struct Submission {
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

/// IOSQE_FIXED_FILE: the descriptor is an index.
const FIXED: u8 = 1;

/// IORING_OP_, those that are told apart.
mod code {
    pub const NOP: u8 = 0;
    pub const TIMEOUT: u8 = 11;
    pub const TIMEOUT_REMOVE: u8 = 12;
    pub const ASYNC_CANCEL: u8 = 14;
    pub const LINK_TIMEOUT: u8 = 15;
    pub const OPENAT: u8 = 18;
    pub const FILES_UPDATE: u8 = 20;
    pub const EPOLL_CTL: u8 = 29;
    pub const SPLICE: u8 = 30;
    pub const PROVIDE_BUFFERS: u8 = 31;
    pub const REMOVE_BUFFERS: u8 = 32;
    pub const TEE: u8 = 33;
    pub const MSG_RING: u8 = 40;
    pub const SOCKET: u8 = 45;
}

impl Ring {
    /// Looks at what is about to be submitted. `None`: it cannot be seen, or not be said what it is.
    unsafe fn look(&self, count: u32) -> Option<()> {
        let (words, entries) = (self.words.load(Relaxed), self.entries.load(Relaxed));
        if words == 0 || entries == 0 {
            return None;
        }
        let [head, tail, mask, array] = self.offsets.each_ref().map(|one| one.load(Relaxed));
        // SAFETY: the program's own mapping, which need not be there any more.
        let word = |at: usize| unsafe { user::fetch(core::ptr::with_exposed_provenance::<u32>(words + at)) };
        let (head, tail, mask) = (word(head)?, word(tail)?, word(mask)?);
        for at in 0..count.min(tail.wrapping_sub(head)).min(mask.wrapping_add(1)) {
            let slot = head.wrapping_add(at) & mask;
            let index = if array == 0 { slot } else { word(array + slot as usize * size_of::<u32>())? };
            // The kernel drops others.
            if index <= mask {
                let at = entries + index as usize * size_of::<Submission>();
                // SAFETY: as above; the program has submitted it, and leaves it alone until the kernel has it.
                unsafe { consider(core::ptr::with_exposed_provenance_mut(at))? };
            }
        }
        Some(())
    }
}

unsafe fn consider(at: *mut Submission) -> Option<()> {
    // SAFETY: a C struct of integers; the caller's word.
    let one = unsafe { user::fetch(at.cast_const())? };
    match one.code {
        code::NOP
        | code::TIMEOUT
        | code::TIMEOUT_REMOVE
        | code::ASYNC_CANCEL
        | code::LINK_TIMEOUT
        | code::PROVIDE_BUFFERS
        | code::REMOVE_BUFFERS
        | code::SOCKET => {}
        code::FILES_UPDATE | code::MSG_RING => return None,
        // SAFETY: the caller's word.
        code::EPOLL_CTL => unsafe { change(at, &one) },
        _ if one.flags & FIXED != 0 => return None,
        _ => {
            named(one.fd);
            if matches!(one.code, code::SPLICE | code::TEE) {
                named(one.other);
            }
        }
    }
    Some(())
}

/// The kernel is about to read, write or poll it.
fn named(fd: i32) {
    match table::look(fd) {
        Entry::Conn(conn) => hand_over(conn, fd, Reason::IoUring),
        Entry::Set(set) => sets::watch(set),
        _ => {}
    }
}

/// A change of an epoll set: one that is made here is none for the kernel any more, which answers it with 0. What fails here fails there, too; but
/// for a registration that the program has deleted, and the kernel still has: it is asked for a file without a name instead.
unsafe fn change(at: *mut Submission, one: &Submission) {
    let event = core::ptr::with_exposed_provenance::<libc::epoll_event>(one.address as usize);
    // SAFETY: the program gave it to the kernel to read.
    let wish = if event.is_null() { None } else { unsafe { user::fetch_event(event) } };
    let (set, op, fd) = (one.fd, one.length as i32, one.offset as i32);
    if wish.is_none() && op != libc::EPOLL_CTL_DEL {
        return;
    }
    let (code, address) = match sets::ctl(set, op, fd, wish) {
        Some(Ok(())) => (code::NOP, 0),
        Some(Err(Errno::NOENT)) => (code::OPENAT, c"".as_ptr().expose_provenance() as u64),
        _ => return,
    };
    let other = Submission {
        code,
        priority: 0,
        fd: libc::AT_FDCWD,
        offset: 0,
        address,
        length: 0,
        details: 0,
        names: [0; 2],
        other: 0,
        rest: [0; 2],
        ..*one
    };
    // SAFETY: the program's entry, in memory that it shares with the kernel.
    unsafe { user::store(at, other) };
}
