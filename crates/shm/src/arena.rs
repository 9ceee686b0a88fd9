//! A process's arena: counters and one block per watched connection, in a sealed memfd.
//!
//! Shared by the process tree (fork inherits the mapping at the same address) and read, not mapped, by the
//! broker, which reads it for `ss` and `stats` and believes none of it for matching. Blocks are allocated
//! only by the process that made the arena, with a compare-and-swap; any process of the tree may free one.

use crate::lock::RobustLock;
use crate::notices::Notices;
use crate::region::{self, Region, RegionError};
use core::mem::offset_of;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::lifecycle::Lifecycle;

#[cfg(feature = "readers")]
mod view;

#[cfg(feature = "readers")]
pub use view::{ArenaView, HeldBlocks, verify};

/// Blocks in an arena; a process with more connections leaves the rest on TCP.
pub const BLOCKS: usize = 32 * 1024;
/// Blocks that are looked at for a free one before a new one is touched.
const RESTING: u32 = 32;
/// Size of the header, bytes.
pub const HEADER: usize = 8192;
/// Fewest blocks of an arena that is worth having.
const FEWEST: usize = 64;
/// Bytes that are made accessible in one go, and that memory is asked for.
const OPENED: usize = 256 * 1024;
const BACKED: usize = 8192;
const _: () = assert!(HEADER.is_multiple_of(BACKED));
/// Largest size of an arena, bytes. Only touched pages are backed.
pub const SIZE: usize = HEADER + BLOCKS * size_of::<Block>();
/// Counters by fallback reason that the header has room for.
pub const REASONS: usize = 128;
/// Buckets of the size histograms: up to 8 KiB, 16, 32, 64, 128, 256, 512 KiB, and larger (smc-tools' own).
pub const BUCKETS: usize = 8;

/// Buckets of the latencies of wake-ups: up to 1 µs, 2, 4, ..., 16384 µs, and longer.
pub const WAKES: usize = 16;

/// Processes at a time that an arena can tell apart.
pub const TENANTS: usize = 62;

/// In `Block::holders`, after the tenants' bits: taken for a connection that is to be.
const PREPARED: u64 = 1 << TENANTS;

/// State of one of an arena's [`Header::tenants`].
pub mod tenant {
    /// The number is free.
    pub const NONE: u32 = 0;
    /// Reserved for a child that is being forked, and has not moved in. The other bits: its process id, once known.
    pub const EXPECTED: u32 = 1;
    /// A process that has locked its byte of the memfd, until it ends.
    pub const HERE: u32 = 2;
    /// The bits that tell which of these.
    pub const STATE: u32 = 3;
}

/// Sums over the connections that are gone; those that live are added by the reader.
#[repr(C, align(64))]
pub struct Totals {
    /// Bytes moved on lanes.
    pub bytes: AtomicU64,
    /// Calls that moved them.
    pub calls: AtomicU64,
    /// Calls by size.
    pub sizes: [AtomicU64; BUCKETS],
}

/// How threads waited.
#[repr(C, align(64))]
pub struct Waits {
    /// Sleeps, and spins that ended without one.
    pub sleeps: AtomicU64,
    /// Waits that a spin satisfied.
    pub spins: AtomicU64,
    /// Wake-ups, by the time from the ring until the sleeper ran.
    pub wakes: [AtomicU64; WAKES],
}

/// Lines of [`Waits`]: threads that sleep often should not have to share one.
pub const WAITS: usize = 16;

/// Start of an arena.
#[repr(C, align(64))]
pub struct Header {
    /// The process that made it.
    pub pid: AtomicU32,
    /// Blocks ever used: the reader need not look further.
    pub high: AtomicU32,
    /// Connections seen by the hooks, as client and as server.
    pub handled: [AtomicU64; 2],
    /// ... of them at some time on a lane.
    pub upgraded: [AtomicU64; 2],
    /// Connections that this process sent back to TCP, where they go on.
    pub revoked: AtomicU64,
    /// Handshakes that failed.
    pub handshake_errors: AtomicU64,
    /// Times that a sender held bytes back on a lane (TCP_CORK, MSG_MORE).
    pub corked: AtomicU64,
    /// Bytes of rings in use beyond what every lane may grow to.
    pub grown: AtomicU64,
    /// Connections that ended on TCP, by role and by index of their reason.
    pub fallback: [[AtomicU32; REASONS]; 2],
    /// How threads waited; each adds to one of these.
    pub waits: [Waits; WAITS],
    /// Sent on lanes by connections that are gone.
    pub tx: Totals,
    /// Received on lanes by connections that are gone.
    pub rx: Totals,
    /// Processes that share blocks: one of [`tenant`] each. Number 0 made the arena.
    pub tenants: [AtomicU32; TENANTS],
    /// Guards the numbers being given out and taken back, and the bits of those who are gone.
    pub tenants_lock: RobustLock,
    /// Bytes of rings in use beyond what every lane begins with.
    pub windows: AtomicU64,
    /// Blocks that there is room for; of no interest to the broker, which goes by the size of the memfd.
    blocks: AtomicU32,
}

const _: () = assert!(size_of::<Header>() <= HEADER && size_of::<Block>() == 1024);
// What a call looks at lies in few cache lines.
const _: () = assert!(offset_of!(Block, cookie) == 64 && offset_of!(Block, notices) == 128);
const _: () =
    assert!(offset_of!(Half, dmb) == 64 && offset_of!(Half, bytes) == 128 && offset_of!(Half, epoch) == 192);

/// Where a direction of a connection runs.
pub mod mode {
    /// Kernel TCP, hooks pass through.
    pub const PLAIN: u16 = 0;
    /// Receive only: a DMB is offered; TCP is read no further than the start word allows.
    pub const GRANTED: u16 = 1;
    /// On the lane.
    pub const LANE: u16 = 2;
    /// The sender took its bytes back: they go by TCP before all others.
    pub const DEBT: u16 = 3;
}

/// In a sender's own copy of its window: there may be unread bytes in the first ring and behind the header.
pub const MOVES: u32 = 1 << 31;

/// Which stores copies into a ring are made with, and the trial of others (core's `stores`).
#[repr(C)]
pub struct StoresTrial {
    /// 1: past the caches.
    pub past: AtomicU32,
    /// In a trial of this way, the pace of the other one before it, ticks per 64 KiB; else 0.
    pub other: AtomicU32,
    /// Samples until it is over.
    pub left: AtomicU32,
    /// Offset at which the next one begins.
    pub next: AtomicU64,
    /// Bytes from the last trial to that one.
    pub wait: AtomicU64,
}

/// One direction of a connection end. Written under its lock unless said otherwise.
#[repr(C, align(64))]
pub struct Half {
    // What a call on TCP needs, and the lock.
    /// Guards this half; taken before nothing else (order: receive half, then send half).
    pub lock: RobustLock,
    /// One of [`mode`]; also read without the lock.
    pub mode: AtomicU16,
    /// Calls that moved bytes there, about; it stays at the highest number.
    pub tcp_calls: AtomicU16,
    /// Threads inside a kernel call on this direction while it is PLAIN (any process of the tree).
    pub inflight: AtomicU32,
    /// Bytes of the TCP stream in this direction that went through the hooks.
    pub tcp_bytes: AtomicU64,

    // What a call on a lane needs, besides.
    /// Address of the mapped DMB (own for receive, the peer's for send); 0 none.
    pub dmb: AtomicUsize,
    /// Private copy of our own cursor: consumed for receive, produced for send (offset).
    pub cursor: AtomicU64,
    /// Furthest value seen of the other's cursor (offset), already checked: it may not go back behind it.
    pub other: AtomicU64,
    /// Address of a private buffer with the DMB's layout; 0 none. Send: the copy mode's send buffer. Receive: what
    /// was peeked at, for the one process that `peeker` names.
    pub sndbuf: AtomicUsize,
    /// Send: what is held back, our own copy of the lane's word.
    pub held: AtomicU64,
    /// Receive: the sender's count of loans as far as they were consumed. Send: offset at which the oldest call with a
    /// notice still to come is consumed; 0 none.
    pub loans: AtomicU64,
    /// Generation of the lane.
    pub generation: AtomicU32,
    /// Send: bytes of the ring in use, our own copy; with [`MOVES`] while `moved` counts.
    pub window: AtomicU32,
    /// Capacity of the DMB's ring, bytes.
    pub ring: AtomicU32,

    // What it counts, and notes.
    /// Bytes moved on lanes of this direction.
    pub bytes: AtomicU64,
    /// Calls that moved them.
    pub calls: AtomicU64,
    /// Calls by size.
    pub sizes: [AtomicU32; BUCKETS],
    /// Receive: bytes before this offset were peeked at; they are in the private copy at `sndbuf`.
    pub peeked: AtomicU64,
    /// Send: ticks at which the ring was first seen full with an unmoving reader; 0 not full. Receive: ticks at which the sender was last
    /// asked for what cannot be read where it is, or last paid of its debt.
    pub full_since: AtomicU64,

    // The rest.
    /// Last sleep epoch used (changed without the lock).
    pub epoch: AtomicU32,
    /// Forks of the process that mapped the DMB, before it did.
    pub forks: AtomicU32,
    /// Receive: the process that made `sndbuf`.
    pub peeker: AtomicU32,
    /// Send: where the process named by the block's `pid` keeps what it has lent, plus one; 0 nowhere. Receive: process of
    /// the sender, where its memory may be read; else 0.
    pub lender: AtomicU32,
    /// Receive: link group of the lane, as the broker numbers it; 0 none.
    pub group: AtomicU32,
    /// Send: writes since the window last grew for which a larger one would have been better.
    pub crowded: AtomicU32,
    /// Send: ticks of the last such write; in the first ring, when its end was last passed, and `crowded` how often in short order.
    pub crowded_at: AtomicU64,
    /// Send: offset up to which unread bytes are in the first ring.
    pub moved: AtomicU64,
    /// Ticks at which the TCP socket was last asked how it is.
    pub checked: AtomicU64,
    /// TCP byte at which the lane begins.
    pub start: AtomicU64,
    /// Token of the DMB.
    pub token: AtomicU64,
    /// Receive: bytes to read by TCP before the debt is paid, as TCP byte position.
    pub debt_end: AtomicU64,
    /// How long copies take, in ticks per 64 KiB: into or out of the ring, and (receive) from the sender's memory; 0 unknown.
    pub paces: [AtomicU32; 2],
    /// Send, from a lane's begin on: 1 where lending was chosen.
    pub lends: AtomicU32,
    /// Send: offset from which on that seems wrong; 0 it does not.
    pub doubted: AtomicU64,
    /// Receive: how much we had sent, by lane and TCP, when a reader of a bulk stream last looked.
    pub answered: AtomicU64,
    /// Receive: where in the lane it found that to be more than before.
    pub answered_at: AtomicU64,
    /// Receive, of a lane with loans: how far the sender had come when it was last found to have gone on, and the offset from which on
    /// it is told of what was consumed.
    pub tell: [AtomicU64; 2],
    /// Send: ticks at which bytes were first seen unread by a reader that had declared no wait; 0 none are,
    pub unheard_since: AtomicU64,
    /// ... and how far it had read then.
    pub unheard_at: AtomicU64,
    /// What `bytes` and `tcp_bytes` together lack of the stream's own count (wrapping), see [`Half::position`].
    pub skew: AtomicU64,
    /// Send, from a lane's begin on: how copies are made.
    pub stores: StoresTrial,
    /// Send: the program's own keepalive settings while lanes need others (core's `keepalive`); 0 they are in force.
    pub keepalive: AtomicU64,
}

/// One connection end.
#[repr(C, align(1024))]
pub struct Block {
    // What calls look at.
    /// 0 free, [`PREPARED`]; else a bit for each tenant of the arena that has a descriptor of the connection (or had, until
    /// somebody finds that it was killed).
    pub holders: AtomicU64,
    /// Use count of this block.
    pub uses: AtomicU32,
    /// 0 client (connect), 1 server (accept).
    pub role: AtomicU8,
    /// 4 or 6.
    pub family: AtomicU8,
    /// Program asked for O_NONBLOCK (tracked; checked again before a sleep).
    pub nonblock: AtomicU8,
    /// Where it stands with the broker.
    pub life: Lifecycle,
    /// Link group number; 0 none.
    pub link: AtomicU32,
    /// News slot in the link page.
    pub slot: AtomicU16,
    /// Side of the link page that is ours.
    pub side: AtomicU8,
    /// Some process has had more than one descriptor of it.
    pub dups: AtomicU8,
    /// The program has set TCP_CORK.
    pub corked: AtomicU8,
    /// Process that watches it.
    pub pid: AtomicU32,
    /// A descriptor number of it in that process.
    pub fd: AtomicU32,
    /// Name towards the broker: counts uses, and how often a connection has withdrawn (wrapping).
    pub name: AtomicU32,
    /// Ticks before which the connection is not nominated again.
    pub retry_at: AtomicU64,
    /// Nominations since a lane was last worth its handshake.
    pub attempts: AtomicU32,
    /// Fallback reason code of this end; 0 none.
    pub reason: AtomicU32,
    /// How far its nomination has come, and with `--eager` the waiting for it; see core.
    pub nomination: AtomicU8,
    /// What is known of how the program waits for it; see core's `seen`.
    pub seen: AtomicU8,
    /// Reads that are yet to be asked whether they wait.
    pub asks: AtomicU8,
    /// Nominations put off because nothing was known of that.
    pub unseen: AtomicU8,
    /// Calls to send that found no room (wrapping).
    pub starved: AtomicU32,

    // Who it is, and what is seldom asked.
    /// SO_COOKIE of the socket; 0 until known.
    pub cookie: AtomicU64,
    /// Local address (IPv6, or IPv4-mapped).
    pub local: [AtomicU32; 4],
    /// Remote address.
    pub remote: [AtomicU32; 4],
    /// Local port.
    pub local_port: AtomicU16,
    /// Remote port.
    pub remote_port: AtomicU16,
    /// Reason that the peer gave; 0 none.
    pub peer_reason: AtomicU32,
    /// [`Block::lane_bytes`] when the lanes were last opened.
    pub carried: AtomicU64,
    /// Ticks at which the kernel was last asked whether the other holders live.
    pub asked: AtomicU64,

    /// What MSG_ZEROCOPY has to tell of.
    pub notices: Notices,
    /// Receiving direction.
    pub rx: Half,
    /// Sending direction.
    pub tx: Half,

    /// Processes that got it by exec or posix_spawn, see core; 0 none.
    pub given: [AtomicU32; 4],
}

/// An arena mapped by the process that made it, or by its children.
pub struct Arena {
    region: Region,
    fd: OwnedFd,
    /// What tells the memfd from all other files.
    inode: (u64, u64),
    hand: AtomicU32,
    /// Bytes from the start that can be looked at, here and in a core dump: neither that nor mlockall(2) makes pages of the rest.
    open: AtomicUsize,
}

fn inode(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

impl Arena {
    /// Makes the arena of process `pid`.
    pub fn create(pid: u32) -> Result<Self, RegionError> {
        Self::create_within(pid, SIZE)
    }

    /// The same, of at most `most` bytes.
    pub fn create_within(pid: u32, most: usize) -> Result<Self, RegionError> {
        let blocks = (most.saturating_sub(HEADER) / size_of::<Block>()).min(BLOCKS);
        if blocks < FEWEST {
            return Err(RegionError::Size(Errno::NOMEM));
        }
        let size = HEADER + blocks * size_of::<Block>();
        let fd = region::create("shunpike-arena", size)?;
        let inode = inode(&fd).map_err(RegionError::Size)?;
        let region = Region::reserve(fd.as_fd(), size)?;
        let arena = Self { region, fd, inode, hand: AtomicU32::new(0), open: AtomicUsize::new(0) };
        if !arena.open(HEADER) || !arena.back(0, HEADER) {
            // SAFETY: nobody knows of it yet.
            unsafe { region.unmap() };
            return Err(RegionError::Map(Errno::NOMEM));
        }
        arena.header().pid.store(pid, Ordering::Relaxed);
        arena.header().blocks.store(blocks as u32, Ordering::Relaxed);
        arena.header().tenants[0].store(tenant::EXPECTED, Ordering::Relaxed);
        arena.header().tenants_lock.init();
        Ok(arena)
    }

    /// The same arena with its memfd under another number, as `place` chooses.
    pub fn with_fd<E>(self, place: impl FnOnce(OwnedFd) -> Result<OwnedFd, E>) -> Option<Self> {
        let Self { region, fd, inode, hand, open } = self;
        Some(Self { region, fd: place(fd).ok()?, inode, hand, open })
    }

    /// The memfd, for the broker.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The memfd; `None` where the program has closed it behind our back, and the number may be that of a file of its own.
    pub fn own_fd(&self) -> Option<&OwnedFd> {
        (inode(&self.fd) == Ok(self.inode)).then_some(&self.fd)
    }

    /// The counters.
    pub fn header(&self) -> &Header {
        // SAFETY: Header is atomics only, the region is page-aligned, larger than it, and never unmapped.
        unsafe { &*self.region.base().cast::<Header>() }
    }

    /// How many blocks there can be.
    fn blocks(&self) -> u32 {
        ((self.region.len() - HEADER) / size_of::<Block>()) as u32
    }

    /// Block number `index`, taken modulo their number.
    pub fn block(&self, index: u32) -> &'static Block {
        let index = (index % self.blocks()) as usize;
        let at = |index: usize| HEADER + index * size_of::<Block>();
        // The first one is looked at already, or can be: what would be in its place has never been a connection of this process.
        let index = if self.open(at(index + 1)) { index } else { 0 };
        // SAFETY: in bounds by the modulo, and open; Block is atomics (and locks made of them) valid for any bits;
        // arenas are never unmapped.
        unsafe { &*self.region.base().add(at(index)).cast::<Block>() }
    }

    /// Makes the first `end` bytes accessible. Says whether they are.
    fn open(&self, end: usize) -> bool {
        let open = self.open.load(Ordering::Relaxed);
        if end <= open {
            return true;
        }
        let wanted = end.next_multiple_of(OPENED).min(self.region.len());
        // Two threads may do so at the same time: what is open stays open.
        self.region.open(wanted) && {
            self.open.fetch_max(wanted, Ordering::Relaxed);
            true
        }
    }

    /// Asks for the memory from `start` to `end`, as a fault at the first look at it cannot be answered. Says whether it is there.
    fn back(&self, start: usize, end: usize) -> bool {
        let len = end.min(self.region.len()) - start;
        rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), start as u64, len as u64).is_ok()
    }

    /// Takes a free block, held by tenant 0. `None` when all are in use. One caller at a time.
    pub fn allocate(&self) -> Option<&'static Block> {
        self.prepare().inspect(|block| block.take())
    }

    /// Takes a free block for a connection that does not exist yet: nobody holds it before [`Block::take`]. Else as `allocate`.
    pub fn prepare(&self) -> Option<&'static Block> {
        let header = self.header();
        let (high, most) = (header.high.load(Ordering::Relaxed), self.blocks());
        let high = high.min(most);
        // Blocks that were used before are in memory already; untouched ones cost a page fault. The hand goes
        // round all the same, so that a block rests before it is another connection.
        let looks = if high == most { high } else { high.min(RESTING) };
        for _ in 0..looks {
            // Two threads at once may look at the same block: `claim` decides.
            let index = self.hand.load(Ordering::Relaxed);
            self.hand.store(if index + 1 < high { index + 1 } else { 0 }, Ordering::Relaxed);
            let block = self.block(index);
            if block.holders.load(Ordering::Relaxed) == 0 && block.claim() {
                return Some(block);
            }
        }
        if high == most {
            return None;
        }
        let (start, end) = [high, high + 1].map(|index| HEADER + index as usize * size_of::<Block>()).into();
        if !self.open(end) || start.is_multiple_of(BACKED) && !self.back(start, start + BACKED) {
            return None;
        }
        header.high.store(high + 1, Ordering::Relaxed);
        let block = self.block(high);
        block.claim().then_some(block)
    }

    /// Index of a block of this arena; `None` for another arena's.
    pub fn index(&self, block: &Block) -> Option<u32> {
        self.header().index(block)
    }
}

impl Header {
    /// Index of a block of the arena that begins with this; `None` for another arena's.
    #[inline]
    pub fn index(&self, block: &Block) -> Option<u32> {
        let offset = (core::ptr::from_ref(block) as usize)
            .wrapping_sub(core::ptr::from_ref(self) as usize)
            .wrapping_sub(HEADER);
        let index = offset / size_of::<Block>();
        (index < self.blocks.load(Ordering::Relaxed) as usize).then_some(index as u32)
    }
}

impl Half {
    /// Bytes of this direction of the stream so far, whichever way they went: for a tap.
    pub fn position(&self) -> u64 {
        [&self.tcp_bytes, &self.bytes, &self.skew]
            .into_iter()
            .fold(0u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)))
    }

    /// `n` bytes that were counted on the lane are counted on TCP as well, as they were taken back. Under the lock.
    pub fn recount(&self, n: u64) {
        self.skew.store(self.skew.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }

    /// Before a kernel call on this direction while it is PLAIN: no lane begins until [`Half::leave`]. False when
    /// one has begun, or is just being begun and must not find us here.
    #[inline]
    #[must_use]
    pub fn enter(&self) -> bool {
        // SeqCst, as in who sets the mode and looks at `inflight` then: one of the two sees the other.
        self.inflight.fetch_add(1, Ordering::SeqCst);
        let is_plain = self.mode.load(Ordering::SeqCst) == mode::PLAIN;
        if !is_plain {
            self.leave();
        }
        is_plain
    }

    /// Inside: one call has moved `n` bytes. Returns how many have moved any, about: threads that count at the same time may lose some.
    #[inline]
    pub fn count_tcp(&self, n: usize) -> u16 {
        self.tcp_bytes.fetch_add(n as u64, Ordering::Relaxed);
        let calls = self.tcp_calls.load(Ordering::Relaxed).saturating_add(1);
        self.tcp_calls.store(calls, Ordering::Relaxed);
        calls
    }

    /// After it, with its bytes counted.
    #[inline]
    pub fn leave(&self) {
        self.inflight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Block {
    /// Takes a free block, with nothing of its last use.
    #[inline(always)]
    fn claim(&self) -> bool {
        // Acquire pairs with the Release of `free` and `leave`: its last user's writes come before ours.
        let free = self.holders.compare_exchange(0, PREPARED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if free {
            self.reset();
        }
        free
    }

    /// Of a prepared block: tenant 0 holds it.
    pub fn take(&self) {
        // Release pairs with the Acquire in `is_held`: nothing of its last use is seen.
        self.holders.store(1, Ordering::Release);
    }

    /// Whether it is a connection's.
    pub fn is_held(&self) -> bool {
        self.holders.load(Ordering::Acquire) & !PREPARED != 0
    }

    fn reset(&self) {
        // A thread that was late may still stand at the lock of an earlier use: made once, never anew.
        let first = self.uses.fetch_add(1, Ordering::Relaxed) == 0;
        self.name.fetch_add(1, Ordering::Relaxed);
        for half in [&self.rx, &self.tx] {
            if first {
                half.lock.init();
            }
            for word in [
                &half.inflight,
                &half.ring,
                &half.generation,
                &half.epoch,
                &half.peeker,
                &half.lender,
                &half.paces[0],
                &half.paces[1],
            ] {
                word.store(0, Ordering::Relaxed);
            }
            for word in [
                &half.cursor,
                &half.other,
                &half.peeked,
                &half.tcp_bytes,
                &half.start,
                &half.token,
                &half.bytes,
                &half.calls,
                &half.full_since,
                &half.debt_end,
                &half.held,
                &half.loans,
                &half.answered,
                &half.answered_at,
                &half.tell[0],
                &half.tell[1],
                &half.skew,
            ] {
                word.store(0, Ordering::Relaxed);
            }
            for size in &half.sizes {
                size.store(0, Ordering::Relaxed);
            }
            half.mode.store(mode::PLAIN, Ordering::Relaxed);
            half.tcp_calls.store(0, Ordering::Relaxed);
            half.dmb.store(0, Ordering::Relaxed);
            half.sndbuf.store(0, Ordering::Relaxed);
        }
        for byte in [
            &self.role,
            &self.family,
            &self.nonblock,
            &self.side,
            &self.dups,
            &self.corked,
            &self.nomination,
            &self.seen,
            &self.asks,
            &self.unseen,
        ] {
            byte.store(0, Ordering::Relaxed);
        }
        self.life.begin();
        for word in [&self.reason, &self.peer_reason, &self.pid, &self.fd, &self.link, &self.starved] {
            word.store(0, Ordering::Relaxed);
        }
        self.given.iter().for_each(|pid| pid.store(0, Ordering::Relaxed));
        self.retry_at.store(0, Ordering::Relaxed);
        self.carried.store(0, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        self.attempts.store(0, Ordering::Relaxed);
        self.cookie.store(0, Ordering::Relaxed);
        self.slot.store(0, Ordering::Relaxed);
        self.notices.reset();
    }

    /// Notes the connection's addresses, for the tools.
    pub fn set_addresses(&self, local: SocketAddr, remote: SocketAddr) {
        for (words, port, addr) in
            [(&self.local, &self.local_port, local), (&self.remote, &self.remote_port, remote)]
        {
            let ip = match addr.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            for (word, bytes) in words.iter().zip(ip.octets().chunks_exact(4)) {
                word.store(bytes.iter().fold(0, |n, b| n << 8 | u32::from(*b)), Ordering::Relaxed);
            }
            port.store(addr.port(), Ordering::Relaxed);
        }
    }

    /// The addresses noted: local, remote. IPv4-mapped ones come as IPv4.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let address = |words: &[AtomicU32; 4], port: &AtomicU16| {
            let ip = words.iter().fold(0, |n, word| n << 32 | u128::from(word.load(Ordering::Relaxed)));
            SocketAddr::new(Ipv6Addr::from_bits(ip).to_canonical(), port.load(Ordering::Relaxed))
        };
        (address(&self.local, &self.local_port), address(&self.remote, &self.remote_port))
    }

    /// The tenant with this bit has no descriptor any more, unless it is the only holder: then true, the block stays its
    /// own, and it calls `free` when it has ended the connection.
    #[inline]
    #[must_use]
    pub fn leave(&self, bit: u64) -> bool {
        let mut seen = self.holders.load(Ordering::Acquire);
        while seen != bit {
            // Release pairs with the Acquire of `claim`; Acquire makes the others' last writes ours.
            match self.holders.compare_exchange(seen, seen & !bit, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return false,
                Err(other) => seen = other,
            }
        }
        true
    }

    /// The connection is over; the block may be another one's now. By its only holder.
    pub fn free(&self) {
        // Release pairs with the Acquire of `claim`.
        self.holders.store(0, Ordering::Release);
    }

    /// Bytes moved on lanes so far, in both directions.
    pub fn lane_bytes(&self) -> u64 {
        self.rx.bytes.load(Ordering::Relaxed) + self.tx.bytes.load(Ordering::Relaxed)
    }

    /// Counts a call that moved `n` bytes on the lane.
    #[inline]
    pub fn count(half: &Half, n: usize) {
        // Under the half's lock, so plain read-modify-write through relaxed atomics loses nothing.
        half.bytes.store(half.bytes.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
        half.calls.store(half.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let bucket = bucket(n);
        if let Some(size) = half.sizes.get(bucket) {
            size.store(size.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }
}

/// Bucket of a call of `n` bytes: 0 up to 8 KiB, ..., 7 above 512 KiB.
#[inline]
pub fn bucket(n: usize) -> usize {
    let eights = n.saturating_sub(1) >> 13;
    (usize::BITS - eights.leading_zeros()).min(BUCKETS as u32 - 1) as usize
}

/// Bucket of a wake-up that took `us` whole microseconds.
pub fn wake_bucket(us: u64) -> usize {
    (u64::BITS - us.leading_zeros()).min(WAKES as u32 - 1) as usize
}

#[cfg(test)]
mod tests;
