//! Descriptor numbers to what we know of them: process-local, lock-free, a load on every hooked call.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use shunpike_shm::arena::Block;

use crate::set::Set;

/// What a descriptor number stands for.
#[derive(Copy, Clone)]
pub enum Entry {
    /// Nothing of ours: libc's business.
    None,
    /// A TCP socket that is not connected (or listens).
    Socket,
    /// A watched connection.
    Conn(Conn),
    /// An epoll instance of the program.
    Set(&'static Set),
    /// One of our own descriptors; the program must not touch it.
    Internal,
}

/// A connection end as named by a descriptor: the block, and which use of it.
#[derive(Copy, Clone)]
pub struct Conn {
    /// Its state.
    pub block: &'static Block,
    /// Low 16 bits of the block's use count when the entry was made.
    uses: u16,
}

impl Conn {
    /// The current use of `block`.
    pub fn new(block: &'static Block) -> Self {
        Self { block, uses: block.uses.load(Ordering::Relaxed) as u16 }
    }

    /// Whether the block still is the connection that it was: false once closed and given to another.
    #[inline]
    pub fn current(&self) -> bool {
        self.block.uses.load(Ordering::Relaxed) as u16 == self.uses
    }
}

impl PartialEq for Conn {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.block, other.block) && self.uses == other.uses
    }
}

// Entry words: uses (16 bits) | address (48 bits, low bits free by alignment) | kind (3 bits).
const KIND: u64 = 7;
const SOCKET: u64 = 1;
const CONN: u64 = 2;
const SET: u64 = 3;
const INTERNAL: u64 = 4;
const ADDRESS: u64 = ((1 << 48) - 1) & !KIND;
// Of a SOCKET.
const DUPLICATED: u64 = 8;
const GIVEN: u64 = 16;

static ENTRIES: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
static REGS: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(0);
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// Descriptor numbers beyond this stay with libc.
const MOST: usize = 1 << 20;

/// Reserves the table (address space only; pages appear as numbers are used). Once, at start-up.
/// False when the kernel refuses: then every lookup answers `None` and all stays on TCP.
pub fn init() -> bool {
    let Some(entries) = reserve(MOST * size_of::<AtomicU64>()) else { return false };
    let Some(regs) = reserve(MOST * size_of::<AtomicU32>()) else { return false };
    ENTRIES.store(entries.cast(), Ordering::Relaxed);
    REGS.store(regs.cast(), Ordering::Relaxed);
    // Release pairs with the Acquire in `slot`: who sees a length sees the table.
    LEN.store(MOST, Ordering::Release);
    true
}

fn reserve(len: usize) -> Option<*mut u8> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh anonymous mapping touches no memory of ours.
    unsafe { mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
        .ok()
        .map(|at| at.cast())
}

#[inline(always)]
fn slot(fd: i32) -> Option<&'static AtomicU64> {
    let index = fd as u32 as usize;
    if index >= LEN.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: below LEN, so inside the reserved mapping, which is never unmapped; zero is a valid entry.
    Some(unsafe { &*ENTRIES.load(Ordering::Relaxed).add(index) })
}

/// Head of the list of epoll registrations of `fd` (an index of `sets::regs::Reg`, plus one; 0 none).
pub fn regs(fd: i32) -> Option<&'static AtomicU32> {
    let index = fd as u32 as usize;
    if index >= LEN.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: as in `slot`.
    Some(unsafe { &*REGS.load(Ordering::Relaxed).add(index) })
}

/// What the table says of `fd`; 0: nothing.
#[inline(always)]
fn word(fd: i32, ordering: Ordering) -> u64 {
    let index = fd as u32 as usize;
    if index >= LEN.load(Ordering::Acquire) {
        return 0;
    }
    // SAFETY: as in `slot`.
    unsafe { (*ENTRIES.load(Ordering::Relaxed).add(index)).load(ordering) }
}

/// Whether `fd` is nothing of ours: the one load and branch of an unaccelerated call.
#[inline(always)]
pub fn is_none(fd: i32) -> bool {
    word(fd, Ordering::Relaxed) == 0
}

/// Whether there ever was an entry.
#[inline]
pub fn any() -> bool {
    HIGH.load(Ordering::Relaxed) != 0
}

/// Behind the highest number that ever had an entry.
pub fn end() -> i32 {
    HIGH.load(Ordering::Relaxed) as i32
}

/// What `fd` stands for.
#[inline]
pub fn look(fd: i32) -> Entry {
    // Acquire pairs with the Release in `set`: the block or set behind the entry is initialised.
    unpack(word(fd, Ordering::Acquire))
}

/// The watched connection behind `fd`.
#[inline]
pub fn conn(fd: i32) -> Option<Conn> {
    match look(fd) {
        Entry::Conn(conn) => Some(conn),
        _ => None,
    }
}

/// Puts `entry` at `fd` and returns what was there. Numbers beyond the table are ignored.
pub fn set(fd: i32, entry: Entry) -> Entry {
    let Some(slot) = slot(fd) else { return Entry::None };
    if HIGH.load(Ordering::Relaxed) <= fd as usize {
        HIGH.fetch_max(fd as usize + 1, Ordering::Relaxed);
    }
    unpack(slot.swap(pack(entry), Ordering::AcqRel))
}

/// Marks a socket that is not connected: it has another name in this process, or (`given`) in another one.
pub fn name_socket(fd: i32, given: bool) {
    if let Some(slot) = slot(fd) {
        let marked = |word| (word & KIND == SOCKET).then_some(word | if given { GIVEN } else { DUPLICATED });
        let _ = slot.fetch_update(Ordering::AcqRel, Ordering::Relaxed, marked);
    }
}

/// Whether `fd` is a socket that is not connected, without marks.
#[inline(always)]
pub fn is_unmarked_socket(fd: i32) -> bool {
    word(fd, Ordering::Relaxed) == SOCKET
}

/// Those marks: whether it was duplicated, and whether it was given away.
pub fn socket_names(fd: i32) -> (bool, bool) {
    let word = word(fd, Ordering::Relaxed);
    let is = |mark| word & KIND == SOCKET && word & mark != 0;
    (is(DUPLICATED), is(GIVEN))
}

/// Takes away the entry of `fd`, if there is one.
pub fn take(fd: i32) -> Entry {
    if is_none(fd) { Entry::None } else { set(fd, Entry::None) }
}

/// Every descriptor with an entry.
pub fn all() -> impl Iterator<Item = (i32, Entry)> {
    (0..HIGH.load(Ordering::Relaxed) as i32).filter(|&fd| !is_none(fd)).map(|fd| (fd, look(fd)))
}

/// Every descriptor of the connection.
pub fn names_of(conn: Conn) -> impl Iterator<Item = i32> {
    all().filter(move |(_, entry)| matches!(entry, Entry::Conn(other) if *other == conn)).map(|(fd, _)| fd)
}

fn pack(entry: Entry) -> u64 {
    match entry {
        Entry::None => 0,
        Entry::Socket => SOCKET,
        Entry::Conn(conn) => {
            CONN | core::ptr::from_ref(conn.block) as u64 & ADDRESS | u64::from(conn.uses) << 48
        }
        Entry::Set(set) => SET | core::ptr::from_ref(set) as u64 & ADDRESS,
        Entry::Internal => INTERNAL,
    }
}

fn unpack(word: u64) -> Entry {
    let address = word & ADDRESS;
    match word & KIND {
        SOCKET => Entry::Socket,
        CONN => {
            // SAFETY: packed from a `&'static Block` above; arenas are never unmapped.
            let block = unsafe { &*(address as *const Block) };
            Entry::Conn(Conn { block, uses: (word >> 48) as u16 })
        }
        // SAFETY: packed from a `&'static Set` above; sets are never freed, only used again.
        SET => Entry::Set(unsafe { &*(address as *const Set) }),
        INTERNAL => Entry::Internal,
        _ => Entry::None,
    }
}
