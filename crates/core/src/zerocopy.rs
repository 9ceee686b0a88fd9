//! MSG_ZEROCOPY: calls that ask for a notice, by whichever way their bytes go.
//!
//! On a lane large buffers are lent to a receiver that may read our memory (`lending`, `borrowing`). All else is copied, and
//! its notice says so (SO_EE_CODE_ZEROCOPY_COPIED). The kernel does that for every peer on this host (skb_orphan_frags_rx,
//! net/core/dev.c), and only such a peer has a lane: so it is no loss that calls are still ours for a while after a lane
//! has gone (see shm's `notices` for who numbers them, and when).
//!
//! Here: a call, its notice, and who is woken by it. `choice`: whether lending is the quicker way. `errqueue`: how the program reads
//! the notices.

pub mod borrowing;
pub(crate) mod choice;
mod errqueue;
mod huge;
pub mod lending;
pub mod mappings;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use shunpike_shm::arena::{Block, TxHeld, mode};
use shunpike_shm::lane::Dmb;
use shunpike_shm::notices::Fact;
use shunpike_wire::Reason;

use crate::call::Outcome;
use crate::source::Source;
use crate::table::Conn;
use crate::tls::critical;
use crate::{above, clock, doorbell, link, process, send_lock, sets, state, sys};

pub use errqueue::{read, read_bare};

/// A send call, as far as MSG_ZEROCOPY is concerned.
pub struct Call {
    flags: i32,
    /// Whether it asks for a notice; known once it has been looked at.
    asks: Option<bool>,
    /// Where it is entered as ours.
    entered: Option<Conn>,
    /// What it has lent, and whether anything of it was copied.
    lent: Option<lending::Lent>,
    copied: bool,
    /// It has its number.
    counted: bool,
    /// It copies, and gets its notice in this hold of the send lock, if that sees its end.
    brief: Option<Conn>,
    /// It copies, and has its notice.
    told: Option<Conn>,
}

/// Whose a call on TCP is.
enum Teller {
    Nobody,
    Kernel,
    Ours,
}

impl Call {
    /// A call with these flags.
    #[inline]
    pub fn new(flags: i32) -> Self {
        Self {
            flags,
            asks: None,
            entered: None,
            lent: None,
            copied: false,
            counted: false,
            brief: None,
            told: None,
        }
    }

    /// The flags for a call of the kernel that is made in its course.
    pub fn plain_flags(&self) -> i32 {
        self.flags & !libc::MSG_ZEROCOPY
    }

    /// Whether it asks for a notice: the flag is ignored without the option, and without bytes.
    fn asks(&mut self, block: &Block, fd: i32, size: usize) -> bool {
        *self.asks.get_or_insert_with(|| {
            let option = || sys::option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY) == Ok(1i32);
            self.flags & libc::MSG_ZEROCOPY != 0 && size > 0 && block.notices.is(Fact::ZeroCopy, option)
        })
    }

    /// Its bytes are about to go by the lane. Under the send lock. Errors: ENOBUFS.
    #[inline]
    pub fn by_lane(&mut self, conn: Conn, fd: i32, size: usize) -> Result<(), Errno> {
        if self.flags & libc::MSG_ZEROCOPY == 0 || self.entered.is_some() || !self.asks(conn.block, fd, size)
        {
            return Ok(());
        }
        admit(conn.block, size)?;
        self.brief = conn.block.notices.is_free().then_some(conn);
        if self.brief.is_none() {
            self.enter(conn);
        }
        Ok(())
    }

    /// On a lane it is our turn, and stays so as long as the call lasts.
    fn enter(&mut self, conn: Conn) {
        self.entered = conn.block.notices.enter().then_some(conn);
    }

    /// Some of its bytes were copied and published; `all`: the last ones. For a call that has not entered. Under the send lock, the same
    /// hold of it.
    #[inline]
    pub fn note_brief(&mut self, all: bool) {
        let Some(conn) = self.brief.take() else { return };
        if all {
            conn.block.notices.copied_one();
            self.told = Some(conn);
        } else {
            self.enter(conn);
            self.copied = true;
        }
    }

    /// Whether it is one of ours that gets a notice.
    #[inline]
    pub fn is_noticed(&self) -> bool {
        self.entered.is_some() || self.brief.is_some()
    }

    /// Whether it is one of ours that gets a notice, and has been, or will be, more than one hold of the send lock under way.
    #[inline]
    pub fn is_entered(&self) -> bool {
        self.entered.is_some()
    }

    /// How many of its next bytes to put on the lane, and where they are lent from: null where they are copied, `wish` at
    /// most.
    #[cold]
    pub fn next(&mut self, half: TxHeld<'_>, dmb: &Dmb, source: &Source<'_>, wish: u64) -> (u64, *const u8) {
        let next = match (self.entered.or(self.brief), source) {
            (Some(conn), Source::Memory(bufs)) => lending::next(conn.block, half, dmb, bufs),
            _ => None,
        };
        match next {
            None => (wish, core::ptr::null()),
            Some(lending::Next::Copy(most)) => (wish.min(most as u64), core::ptr::null()),
            Some(lending::Next::Lend(from, len)) => {
                if let Some(conn) = self.brief.take() {
                    self.enter(conn);
                }
                (len as u64, from)
            }
        }
    }

    /// `n` bytes of it were published at `offset`, lent from `from` or copied; `all`: the last ones.
    #[cold]
    pub fn note(&mut self, half: TxHeld<'_>, dmb: &Dmb, from: *const u8, n: usize, offset: u64, all: bool) {
        match self.entered.filter(|_| !from.is_null()) {
            None => self.copied = true,
            Some(conn) => {
                let lent = lending::publish(conn.block, half, dmb, from, n, offset);
                self.copied |= self.lent.zip(lent).is_some_and(|(before, now)| before.was_recalled(&now));
                self.lent = lent;
            }
        }
        if all {
            self.count(half, true);
        }
    }

    /// Whether it has lent anything: who waits for room then waits long.
    pub fn lends(&self) -> bool {
        self.lent.is_some()
    }

    /// The call as a whole goes by TCP. `real` is libc's, with the flags that it is given.
    pub fn by_tcp(&mut self, conn: Conn, fd: i32, size: usize, real: impl FnOnce(i32) -> isize) -> Outcome {
        if self.flags & libc::MSG_ZEROCOPY == 0 {
            return Outcome::Libc(real(self.flags));
        }
        let notices = &conn.block.notices;
        let teller = match self.asks(conn.block, fd, size) {
            false => Teller::Nobody,
            // The lane took nothing of it.
            true if self.entered.is_some() => Teller::Ours,
            true if notices.enter() => {
                self.entered = Some(conn);
                Teller::Ours
            }
            true => Teller::Kernel,
        };
        match teller {
            Teller::Nobody => Outcome::Libc(real(self.flags)),
            Teller::Kernel => {
                notices.kernel_call();
                let n = real(self.flags);
                if n <= 0 {
                    notices.kernel_call_failed();
                }
                Outcome::Libc(n)
            }
            Teller::Ours => match admit(conn.block, size) {
                Ok(()) => Outcome::Libc(real(self.plain_flags())),
                Err(errno) => Outcome::Ours(Err(errno)),
            },
        }
    }

    /// What it came to. With no lock held.
    #[inline]
    pub fn end(self, fd: i32, outcome: &Outcome) {
        if self.entered.is_some() {
            self.leave(fd, outcome);
        } else if let Some(conn) = self.told {
            tell(conn);
        }
    }

    /// What it came to gets its number.
    fn count(&mut self, half: TxHeld<'_>, moved: bool) {
        if let Some(conn) = self.entered.filter(|_| !self.counted) {
            self.counted = true;
            let notices = &conn.block.notices;
            let at_once = moved && self.lent.is_none() && notices.is_free();
            if at_once {
                notices.copied_one();
            }
            notices.leave(moved && !at_once);
            if moved && !at_once {
                lending::ended(conn.block, half, self.lent, self.copied);
            }
        }
    }

    #[cold]
    fn leave(mut self, fd: i32, outcome: &Outcome) {
        if let Some(conn) = self.entered {
            let moved = matches!(outcome, Outcome::Libc(1..) | Outcome::Ours(Ok(1..)));
            if !self.counted {
                let guard = send_lock::lock(conn.block, critical());
                self.count(guard.held(), moved);
            }
            if moved {
                tell(conn);
            }
            end_turn(conn, fd);
        }
    }
}

/// Whether a call of `size` bytes may be made, by the rule that the kernel has for the pages that it would pin
/// (mm_account_pinned_pages, net/core/skbuff.c). Nothing is outstanding here from earlier calls. Errors: ENOBUFS.
fn admit(block: &Block, size: usize) -> Result<(), Errno> {
    let refused = (size as u64 >> 12) + 2 > lockable(size);
    if block.notices.are_full() || refused && !sys::may_lock_memory() { Err(Errno::NOBUFS) } else { Ok(()) }
}

/// The limit is asked for once in a while: that would take as long as a copy of few bytes, for which no common limit is too low, or a
/// good part of what lending more costs. Microseconds.
const ASK_AGAIN_US: u64 = 1000;
/// A call of fewer bytes is small.
const SMALL: usize = 32 * 1024;
/// The limit is asked for again so long after it, by small calls, microseconds.
const ASK_SMALL_US: u64 = 10_000;
/// One of so many small calls asks, as the clock costs a part of what such a copy does.
const ASK_SMALL_CALLS: u32 = 16;
/// RLIMIT_MEMLOCK in pages as last asked for, and ticks of when; 0 never.
static LOCKABLE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Small calls since somebody looked at the clock, about: threads may count over each other.
static SMALL_CALLS: AtomicU32 = AtomicU32::new(ASK_SMALL_CALLS);

fn lockable(size: usize) -> u64 {
    use rustix::process::{Resource, getrlimit};
    let [pages, asked] = &LOCKABLE;
    let pause = if size < SMALL {
        let calls = SMALL_CALLS.load(Ordering::Relaxed).wrapping_add(1);
        SMALL_CALLS.store(if calls < ASK_SMALL_CALLS { calls } else { 0 }, Ordering::Relaxed);
        if calls < ASK_SMALL_CALLS {
            return pages.load(Ordering::Relaxed);
        }
        ASK_SMALL_US
    } else {
        ASK_AGAIN_US
    };
    let now = clock::ticks();
    if now.wrapping_sub(asked.load(Ordering::Relaxed)) > clock::from_us(pause) {
        let limit = getrlimit(Resource::Memlock).current;
        pages.store(limit.map_or(u64::MAX, |bytes| bytes >> 12), Ordering::Relaxed);
        asked.store(now, Ordering::Relaxed);
    }
    pages.load(Ordering::Relaxed)
}

/// Notices that nobody was told of may have become readable while a lane ended. With no lock held.
pub fn told(conn: Conn) {
    if conn.block.notices.readable() {
        tell(conn);
    }
}

/// There is a new notice: whoever sleeps for it looks. With no lock held.
fn tell(conn: Conn) {
    let queues = conn.block.notices.wake();
    for bell in (0..process::cqs()).filter(|cq| queues >> cq & 1 != 0).filter_map(process::doorbell) {
        doorbell::ring(bell);
    }
    if in_sets(conn) {
        sets::touch(conn);
    }
}

/// Whether epoll sets are answered from here for the connection.
fn in_sets(conn: Conn) -> bool {
    link::registrations(conn.block).is_some_and(|first| first.load(Ordering::Relaxed) != 0)
}

/// The calls of the connection are the kernel's to number from now on, if they can be. Says whether they are. With neither
/// half's lock held.
fn hand_back(conn: Conn) -> bool {
    if !conn.block.notices.are_ours() {
        return true;
    }
    let guard = conn.block.tx.lock(critical());
    guard.held().mode.load(Ordering::Relaxed) == mode::PLAIN && conn.block.notices.end()
}

/// Whether the epoll sets of a connection that is back on TCP must still be answered from here: notices of ours are unread,
/// or about to come, which the kernel knows nothing of. (poll and select ask us as long as it is our turn.) Not where it would
/// cost more than a notice.
pub fn keeps(conn: Conn, fd: i32) -> bool {
    let nested = || sets::watches(fd) && sets::bars(fd) == Some(Reason::NestedSets);
    !(hand_back(conn) || !in_sets(conn) || process::confined() || nested())
}

/// Something that kept our turn from ending is gone.
fn end_turn(conn: Conn, fd: i32) {
    let block = conn.block;
    if block.notices.are_ours() && state::modes(block) == (mode::PLAIN, mode::PLAIN) && hand_back(conn) {
        block.life.unsettle();
        above::settle(conn, fd);
    }
}

/// setsockopt(2) has set or cleared an option that notices depend on.
pub fn option_changed(conn: Conn) {
    conn.block.notices.option_changed();
}
