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

mod half;
#[cfg(feature = "readers")]
mod view;

pub use half::{
    Direction, Guarded, Half, Held, LendingChoice, Paces, RxGuard, RxHalf, RxHeld, RxOwn, StoresTrial,
    TxGuard, TxHalf, TxHeld, TxOwn,
};
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
    /// Connections at some time on a lane, as client and as server.
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
    /// The program may have set TCP_INQ.
    pub tells_unread: AtomicU8,
    /// An errno that recvmmsg met behind messages, for the next call; 0 none.
    pub kept: AtomicU16,
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
    pub rx: RxHalf,
    /// Sending direction.
    pub tx: TxHalf,

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

    /// Makes the arena of process `pid`, of at most `most` bytes.
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
        let first = self.uses.fetch_add(1, Ordering::Relaxed) == 0;
        self.name.fetch_add(1, Ordering::Relaxed);
        self.rx.reset(first);
        self.tx.reset(first);
        for byte in [
            &self.role,
            &self.family,
            &self.nonblock,
            &self.side,
            &self.dups,
            &self.corked,
            &self.tells_unread,
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
        self.kept.store(0, Ordering::Relaxed);
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

    /// What both directions have: the receiving one, the sending one.
    pub fn halves(&self) -> [&Half; 2] {
        [&self.rx, &self.tx]
    }

    /// Bytes moved on lanes so far, in both directions.
    pub fn lane_bytes(&self) -> u64 {
        self.rx.bytes.load(Ordering::Relaxed) + self.tx.bytes.load(Ordering::Relaxed)
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
