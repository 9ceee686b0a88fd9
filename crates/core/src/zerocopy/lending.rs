//! Lending: a sender's calls whose bytes stay in the program's memory until the receiver has read them (shm's `loans`).
//!
//! Only the process that made a connection lends, and only while it alone holds it. What it has lent it keeps in a
//! *ledger*, as the words that the peer sees are the peer's to write. Before anything after which the memory might not be
//! there, or the lane not, the loans are *recalled*: their bytes are copied to their places in the ring. So is what has
//! been lent for longer than the grace, when the program waits for notices: it may wait for nothing else, and the receiver
//! for something that comes after.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;
use shunpike_shm::arena::{Block, TxHalf, TxHeld};
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::lane::Dmb;
use shunpike_shm::lane::loans::{Loan, SLOTS, Witness};
use shunpike_wire::Reason;

use crate::bufs::Bufs;
use crate::table::{self, Conn, Entry};
use crate::tls::critical;
use crate::user::Stores;
use crate::zerocopy::{choice, huge, mappings};
use crate::{above, clock, holders, process, reset, send_lock, state, user};

/// A buffer of a call is lent from this size on, bytes, where lending is the quicker way (`choice`); below, the receiver's system call costs
/// more than the copy.
const LEAST: usize = 16 * 1024;
/// A part of one, where there is no room for more, from this size on.
pub const LEAST_PART: usize = 4096;
/// Connections of a process that lend at a time; others copy.
const LEDGERS: usize = 256;
/// Calls of a connection whose notices are to come; with more, the last ones are told of together.
const CALLS: u32 = 128;

static LEDGER: [Ledger; LEDGERS] = [const { Ledger::new() }; LEDGERS];
/// Some connection has, or had, a ledger: until then there is nothing to look for at a fork, 256 pages that nobody touched.
static LENDS: AtomicBool = AtomicBool::new(false);
/// The process ends, or has become another user or one that may not be looked at: nobody may read its memory any more.
static CLOSED: AtomicBool = AtomicBool::new(false);
/// A page of this process alone, whose first 16 bytes are random. 0: none yet.
static WITNESS: AtomicUsize = AtomicUsize::new(0);

/// What one connection has lent. Its fields are read and written under the connection's send lock.
struct Ledger {
    used: AtomicBool,
    /// Counts of loans, of which `SLOTS` are kept: the first that is not consumed, and the next.
    first: AtomicU32,
    next: AtomicU32,
    loans: [Kept; SLOTS as usize],
    /// Counts of calls, of which `CALLS` are kept.
    first_call: AtomicU32,
    next_call: AtomicU32,
    calls: [Pending; CALLS as usize],
    /// How often all loans were recalled.
    recalls: AtomicU32,
    /// Consumer's offset as last seen, and ticks since which it has stood there.
    consumed: AtomicU64,
    since: AtomicU64,
}

/// A loan.
struct Kept {
    /// Its number on the lane.
    number: AtomicU32,
    at: AtomicU64,
    len: AtomicU64,
    /// Address; 0 once it was recalled.
    from: AtomicUsize,
}

/// Calls that are complete together.
struct Pending {
    calls: AtomicU32,
    copied: AtomicBool,
    /// Offset up to which the receiver must have consumed; 0 none.
    end: AtomicU64,
}

/// What a call has lent.
#[derive(Copy, Clone)]
pub struct Lent {
    recalls: u32,
    /// Offset behind it.
    end: u64,
}

impl Lent {
    /// Whether this was recalled before `later` was lent.
    pub fn was_recalled(&self, later: &Self) -> bool {
        self.recalls != later.recalls
    }
}

/// What to do with the next bytes of a call.
pub enum Next {
    /// Copy, at most so many.
    Copy(usize),
    /// Lend so many at this address.
    Lend(*const u8, usize),
}

impl Ledger {
    const fn new() -> Self {
        Self {
            used: AtomicBool::new(false),
            first: AtomicU32::new(0),
            next: AtomicU32::new(0),
            loans: [const {
                Kept {
                    number: AtomicU32::new(0),
                    at: AtomicU64::new(0),
                    len: AtomicU64::new(0),
                    from: AtomicUsize::new(0),
                }
            }; SLOTS as usize],
            first_call: AtomicU32::new(0),
            next_call: AtomicU32::new(0),
            calls: [const {
                Pending { calls: AtomicU32::new(0), copied: AtomicBool::new(false), end: AtomicU64::new(0) }
            }; CALLS as usize],
            recalls: AtomicU32::new(0),
            consumed: AtomicU64::new(0),
            since: AtomicU64::new(0),
        }
    }

    fn outstanding(&self) -> impl Iterator<Item = &Kept> {
        let [first, next] = [&self.first, &self.next].map(|word| word.load(Ordering::Relaxed));
        (0..next.wrapping_sub(first)).map(move |n| &self.loans[(first.wrapping_add(n) % SLOTS) as usize])
    }

    fn call(&self, number: u32) -> &Pending {
        &self.calls[(number % CALLS) as usize]
    }

    fn pending(&self) -> u32 {
        self.next_call.load(Ordering::Relaxed).wrapping_sub(self.first_call.load(Ordering::Relaxed))
    }

    /// The receiver has consumed up to `cons`: slots are free again.
    fn consumed(&self, cons: u64) {
        if self.consumed.swap(cons, Ordering::Relaxed) != cons {
            self.since.store(clock::ticks(), Ordering::Relaxed);
        }
        let over = self.outstanding().take_while(|kept| kept.end() <= cons).count() as u32;
        self.first.store(self.first.load(Ordering::Relaxed).wrapping_add(over), Ordering::Relaxed);
    }

    /// One call more is over.
    fn note_call(&self, end: u64, copied: bool) {
        let next = self.next_call.load(Ordering::Relaxed);
        if let Some(last) = (self.pending() > 0).then(|| self.call(next.wrapping_sub(1))) {
            let alike = end == 0 && last.end.load(Ordering::Relaxed) == 0;
            if alike || self.pending() == CALLS {
                last.calls.fetch_add(1, Ordering::Relaxed);
                last.copied.fetch_or(copied, Ordering::Relaxed);
                last.end.fetch_max(end, Ordering::Relaxed);
                return;
            }
        } else {
            self.since.store(clock::ticks(), Ordering::Relaxed);
        }
        let call = self.call(next);
        call.calls.store(1, Ordering::Relaxed);
        call.copied.store(copied, Ordering::Relaxed);
        call.end.store(end, Ordering::Relaxed);
        self.next_call.store(next.wrapping_add(1), Ordering::Relaxed);
    }

    /// Tells of the calls that are complete now; `anyhow`: also where the code of what is unread is another.
    fn tell(&self, block: &Block, half: TxHeld<'_>, cons: u64, anyhow: bool) {
        let mut due = 0;
        while self.pending() > 0 {
            let first = self.first_call.load(Ordering::Relaxed);
            let call = self.call(first);
            let copied = call.copied.load(Ordering::Relaxed);
            let end = call.end.load(Ordering::Relaxed);
            if end > cons {
                due = end;
                break;
            }
            if !anyhow && !block.notices.fits(copied) {
                // When the program has read what is unread.
                due = u64::MAX;
                break;
            }
            block.notices.complete(call.calls.load(Ordering::Relaxed), copied);
            self.first_call.store(first.wrapping_add(1), Ordering::Relaxed);
        }
        half.due.store(half, due, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.first.store(self.next.load(Ordering::Relaxed), Ordering::Relaxed);
        self.first_call.store(self.next_call.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Kept {
    fn end(&self) -> u64 {
        self.at.load(Ordering::Relaxed) + self.len.load(Ordering::Relaxed)
    }
}

/// The ledger of a connection of ours.
fn ledger(block: &Block) -> Option<&'static Ledger> {
    let index = (block.tx.ledger.load(Ordering::Relaxed) as usize).checked_sub(1)?;
    LEDGER.get(index).filter(|_| block.pid.load(Ordering::Relaxed) == process::pid())
}

/// The ledger of a connection of ours, taken if it has none yet.
fn ledger_for(block: &Block, half: TxHeld<'_>) -> Option<&'static Ledger> {
    ledger(block).or_else(|| {
        let free = |one: &Ledger| {
            one.used.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = LEDGER.iter().position(free)?;
        LENDS.store(true, Ordering::Relaxed);
        LEDGER[index].clear();
        half.ledger.store(index as u32 + 1, Ordering::Relaxed);
        Some(&LEDGER[index])
    })
}

/// Buffers of fewer bytes are copied.
pub fn least() -> usize {
    match process::knobs().lend_bytes.load(Ordering::Relaxed) {
        0 => LEAST,
        forced => forced as usize,
    }
}

/// Whether buffers are lent whatever it costs.
fn is_forced() -> bool {
    process::knobs().lend_bytes.load(Ordering::Relaxed) != 0
}

/// What to do with the next bytes of a call that asks for a notice. `None`: they are copied as ever.
pub fn next(block: &Block, half: TxHeld<'_>, dmb: &Dmb, bufs: &Bufs<'_>) -> Option<Next> {
    let (before, from, len) = bufs.first_of(least(), LEAST_PART)?;
    if !mappings::holds(from.addr(), len) {
        return None;
    }
    let may = Own::CAPABILITIES.lends
        && block.pid.load(Ordering::Relaxed) == process::pid()
        && holders::are_one(block.holders.load(Ordering::Relaxed))
        && half.own().stage.load(Ordering::Relaxed) == 0
        && !CLOSED.load(Ordering::Relaxed);
    if !may {
        return None;
    }
    let words = dmb.words();
    if !words.may_lend() {
        if !words.lent().is_announced()
            && let Some(witness) = witness()
        {
            words.announce(witness);
        }
        return None;
    }
    let offset = half.cursor.load(Ordering::Relaxed);
    if !is_forced() && !choice::favours(half, dmb, offset) {
        return None;
    }
    let ledger = ledger_for(block, half)?;
    let kept = |ledger: &Ledger| {
        ledger.next.load(Ordering::Relaxed).wrapping_sub(ledger.first.load(Ordering::Relaxed))
    };
    if kept(ledger) == SLOTS {
        ledger.consumed(consumed(&half, dmb));
        if kept(ledger) == SLOTS {
            return None;
        }
    }
    // Where memory for them is refused, bytes are copied; a plain write would be the program's death (SIGBUS).
    if !user::readable(dmb.slots(), 1) {
        return None;
    }
    Some(if before > 0 { Next::Copy(before) } else { Next::Lend(from, len) })
}

/// Lends `len` bytes at `from`, which are to be published at `offset` next. Errors: EFAULT, they cannot be read.
#[cold]
pub fn lend(half: TxHeld<'_>, dmb: &Dmb, from: *const u8, len: usize, offset: u64) -> Result<usize, Errno> {
    if !user::readable(from, len) {
        return Err(Errno::FAULT);
    }
    if is_forced() || choice::may_favour(half, dmb) {
        huge::note(from, len);
    }
    let words = dmb.words();
    words.lend(words.lent().count(), Loan { at: offset, len: len as u64, from: from as u64 });
    Ok(len)
}

/// The loan made just now is published, under the same hold of the lock.
pub fn publish(
    block: &Block,
    _half: TxHeld<'_>,
    dmb: &Dmb,
    from: *const u8,
    len: usize,
    offset: u64,
) -> Option<Lent> {
    let ledger = ledger(block)?;
    let next = ledger.next.load(Ordering::Relaxed);
    let kept = &ledger.loans[(next % SLOTS) as usize];
    kept.number.store(dmb.words().lent().count().wrapping_sub(1), Ordering::Relaxed);
    kept.at.store(offset, Ordering::Relaxed);
    kept.len.store(len as u64, Ordering::Relaxed);
    kept.from.store(from as usize, Ordering::Relaxed);
    ledger.next.store(next.wrapping_add(1), Ordering::Relaxed);
    Some(Lent { recalls: ledger.recalls.load(Ordering::Relaxed), end: offset + len as u64 })
}

/// A call with a number is over; `copied`: some of its bytes.
pub fn ended(block: &Block, half: TxHeld<'_>, lent: Option<Lent>, copied: bool) {
    let Some(ledger) = ledger(block) else { return block.notices.complete(1, true) };
    match lent.filter(|lent| lent.recalls == ledger.recalls.load(Ordering::Relaxed)) {
        Some(lent) => ledger.note_call(lent.end, copied),
        None => ledger.note_call(0, true),
    }
    look(block, half, ledger);
}

/// Tells of what the receiver has consumed since.
fn look(block: &Block, half: TxHeld<'_>, ledger: &Ledger) {
    let cons = state::tx_dmb(&half).map_or(u64::MAX, |dmb| consumed(&half, &dmb));
    ledger.consumed(cons);
    ledger.tell(block, half, cons, false);
}

/// What the receiver says to have consumed; what it cannot have counts for nothing.
fn consumed(half: &TxHalf, dmb: &Dmb) -> u64 {
    let cons = dmb.words().cons();
    let ours = cons.generation() == half.generation.load(Ordering::Relaxed)
        && cons.offset() <= half.cursor.load(Ordering::Relaxed);
    if ours { cons.offset() } else { 0 }
}

/// Whether a look would find calls that are complete. Without the lock, inside a critical section.
#[inline]
pub fn is_due(block: &Block) -> bool {
    let due = block.tx.due.load(Ordering::Relaxed);
    due != 0 && state::tx_dmb(&block.tx).is_none_or(|dmb| dmb.words().cons().offset() >= due)
}

/// Before somebody looks for notices, or waits for them: tells of what is complete, and recalls what the receiver has left for
/// longer than the grace. With neither of the connection's locks held but perhaps the receive lock.
pub fn refresh(conn: Conn, fd: i32) {
    let block = conn.block;
    let Some(ledger) = ledger(block).filter(|_| block.notices.pending() != 0) else { return };
    let guard = send_lock::lock(block, critical());
    look(block, guard.held(), ledger);
    let grace = u64::from(process::knobs().grace_ms.load(Ordering::Relaxed)) * 1000;
    let lent_for = clock::ticks().wrapping_sub(ledger.since.load(Ordering::Relaxed));
    if ledger.pending() > 0 && lent_for > clock::from_us(grace) {
        recall(conn, fd, guard.held());
    }
}

/// All that is lent is copied to its place in the ring: the program's memory is its own again. False: it
/// cannot be read any more, and the connection was reset.
pub fn recall(conn: Conn, fd: i32, half: TxHeld<'_>) -> bool {
    let block = conn.block;
    let Some(ledger) = ledger(block) else { return true };
    let Some(dmb) = state::tx_dmb(&half) else {
        over(block, half);
        return true;
    };
    let cons = consumed(&half, &dmb);
    ledger.consumed(cons);
    ledger.tell(block, half, cons, false);
    let lent = |kept: &&Kept| kept.from.load(Ordering::Relaxed) != 0;
    let mut whole = true;
    for kept in ledger.outstanding().filter(lent) {
        let (at, end) = (kept.at.load(Ordering::Relaxed), kept.end());
        let from = kept.from.swap(0, Ordering::Relaxed);
        // What was consumed before has no place in the ring any more.
        let begin = at.max(cons);
        let memory = core::ptr::with_exposed_provenance::<u8>(from + (begin - at) as usize);
        let iov = [libc::iovec { iov_base: memory.cast_mut().cast(), iov_len: (end - begin) as usize }];
        // SAFETY: unread bytes of ours: their places in the ring are the sender's, which we are by its lock.
        if unsafe { Bufs::new(&iov).fill(&dmb, begin, (end - begin) as usize, Stores::Cached) }.is_ok() {
            dmb.words().recalled(kept.number.load(Ordering::Relaxed));
        } else {
            whole = false;
        }
    }
    ledger.recalls.store(ledger.recalls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    for number in 0..ledger.pending() {
        let call = ledger.call(ledger.first_call.load(Ordering::Relaxed).wrapping_add(number));
        if call.end.swap(0, Ordering::Relaxed) > cons {
            call.copied.store(true, Ordering::Relaxed);
        }
    }
    ledger.tell(block, half, cons, false);
    // Whoever waits for a notice is told by who settles the connection.
    block.life.unsettle();
    if !whole {
        reset::reset(conn, fd, half, Reason::LentUnreadable);
    }
    whole
}

/// The lane is closed, its loans recalled before: no notice waits any more.
pub fn over(block: &Block, half: TxHeld<'_>) {
    if let Some(ledger) = ledger(block) {
        let first = ledger.first_call.load(Ordering::Relaxed);
        for number in 0..ledger.pending() {
            let call = ledger.call(first.wrapping_add(number));
            if call.end.swap(0, Ordering::Relaxed) != 0 {
                call.copied.store(true, Ordering::Relaxed);
            }
        }
        ledger.tell(block, half, 0, true);
        ledger.clear();
    }
}

/// This process lets go of the connection.
pub fn forget(block: &Block) {
    if let Some(ledger) = ledger(block) {
        block.tx.ledger.store(0, Ordering::Relaxed);
        // Release pairs with the Acquire in `ledger_for`.
        ledger.used.store(false, Ordering::Release);
    }
}

/// Nothing is lent any more.
fn recall_all() {
    for_each(|conn, fd, half, _| {
        recall(conn, fd, half);
    });
}

/// Before the process forks: no memory of it is lent any more, and every call is told of, as a child has no account of those that are
/// still to be.
pub fn before_fork() {
    for_each(|conn, fd, half, ledger| {
        if recall(conn, fd, half) {
            ledger.tell(conn.block, half, u64::MAX, true);
        }
    });
}

/// Before `len` bytes at `start` are not the program's any more, or not these bytes: what of them is lent is recalled.
pub fn recall_from(start: usize, len: usize) {
    if !LENDS.load(Ordering::Relaxed) {
        return;
    }
    let end = start.saturating_add(len);
    let is_hit = |kept: &Kept| {
        let from = kept.from.load(Ordering::Relaxed);
        from != 0 && from < end && start < from.saturating_add(kept.len.load(Ordering::Relaxed) as usize)
    };
    // Without a lock: the calling thread knows of all that was sent from this memory.
    if !LEDGER.iter().any(|one| one.used.load(Ordering::Acquire) && one.outstanding().any(is_hit)) {
        return;
    }
    for_each(|conn, fd, half, ledger| {
        if ledger.outstanding().any(is_hit) {
            recall(conn, fd, half);
        }
    });
    for (fd, entry) in table::all() {
        // Who sleeps until there is a notice is told.
        if let Entry::Conn(conn) = entry
            && conn.block.tx.ledger.load(Ordering::Relaxed) != 0
        {
            above::settle(conn, fd);
        }
    }
}

/// Each connection of the process that lends, under its send lock.
fn for_each(act: impl Fn(Conn, i32, TxHeld<'_>, &Ledger)) {
    if !LENDS.load(Ordering::Relaxed) {
        return;
    }
    for (fd, entry) in table::all() {
        if let Entry::Conn(conn) = entry
            && conn.block.tx.ledger.load(Ordering::Relaxed) != 0
        {
            let guard = send_lock::lock(conn.block, critical());
            if conn.current()
                && let Some(ledger) = ledger(conn.block)
            {
                act(conn, fd, guard.held(), ledger);
            }
        }
    }
}

/// The process ends, or becomes one that others may not look at: it lends no more, whichever of its threads still sends.
pub fn close() {
    CLOSED.store(true, Ordering::Relaxed);
    recall_all();
}

/// In a forked child: nothing that its parent has lent is its own.
pub fn after_fork_in_child() {
    if LENDS.swap(false, Ordering::Relaxed) {
        LEDGER.iter().for_each(|ledger| ledger.used.store(false, Ordering::Relaxed));
    }
    let page = WITNESS.swap(0, Ordering::Relaxed);
    if page != 0 {
        // SAFETY: our own page, which nothing but the word just cleared names; no other thread exists.
        let _ = unsafe { rustix::mm::munmap(core::ptr::with_exposed_provenance_mut(page), PAGE) };
    }
}

const PAGE: usize = 4096;

/// What shows a reader that it reads this process, not one that was forked or has its number. `None`: no memory or no random
/// bytes for it.
fn witness() -> Option<Witness> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    let mut page = WITNESS.load(Ordering::Acquire);
    if page == 0 {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of our own, of which nobody else knows before the word is set.
        page = unsafe {
            let made = mmap_anonymous(core::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE).ok()?;
            let bytes = &mut *made.cast::<[u8; 16]>();
            let random = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::NONBLOCK);
            let wiped = madvise(made, PAGE, Advice::LinuxWipeOnFork).is_ok();
            if random != Ok(16) || !wiped || *bytes == [0; 16] {
                let _ = munmap(made, PAGE);
                return None;
            }
            made.expose_provenance()
        };
        // Release pairs with the Acquire above.
        if let Err(other) = WITNESS.compare_exchange(0, page, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: made just now, and nobody was told.
            let _ = unsafe { munmap(core::ptr::with_exposed_provenance_mut(page), PAGE) };
            page = other;
        }
    }
    // SAFETY: the page is written no more, and unmapped only in a child with no other thread.
    let value = unsafe { *core::ptr::with_exposed_provenance::<[u64; 2]>(page) };
    Some(Witness { at: page as u64, value })
}
