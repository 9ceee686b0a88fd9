//! Link groups: what a pair of processes shares. A page with news for each completion queue, and the peer's
//! doorbells.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use shunpike_shm::arena::Block;
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::pages::{CQS, CqNews, LinkPage, SLOTS};

use crate::tls::thread;
use crate::{clock, device, doorbell, process};

/// Link groups that a process can be part of at a time; connections beyond stay on TCP.
pub const LINKS: usize = 512;

/// One link group as this process sees it.
pub struct Link {
    used: AtomicBool,
    /// Broker session (count of them in this process) that `id` belongs to.
    session: AtomicU32,
    id: AtomicU32,
    side: AtomicU8,
    page: AtomicUsize,
    bells: [AtomicI32; CQS],
    /// First epoll registration of the connection in each news slot, under whichever of its descriptors.
    slots: [AtomicU32; SLOTS],
    conns: AtomicU32,
    /// It has ended at the broker, and connections are on it.
    over: AtomicBool,
    /// A parent's: its news are for the parent's sets, and who takes them takes all.
    is_inherited: AtomicBool,
}

static TABLE: [Link; LINKS] = [const { Link::new() }; LINKS];
static HIGH: AtomicU32 = AtomicU32::new(0);

impl Link {
    const fn new() -> Self {
        Self {
            used: AtomicBool::new(false),
            session: AtomicU32::new(0),
            id: AtomicU32::new(0),
            side: AtomicU8::new(0),
            page: AtomicUsize::new(0),
            bells: [const { AtomicI32::new(-1) }; CQS],
            slots: [const { AtomicU32::new(0) }; SLOTS],
            conns: AtomicU32::new(0),
            over: AtomicBool::new(false),
            is_inherited: AtomicBool::new(false),
        }
    }

    /// The broker's number of it.
    pub fn number(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    fn half(&self, to: usize, cq: u8) -> Option<&'static CqNews> {
        let page = self.page.load(Ordering::Relaxed) as *const LinkPage;
        // SAFETY: a verified mapping of a link page, which only ever gives its place to another one; atomics only.
        unsafe { page.as_ref() }?.halves.get(to)?.get(usize::from(cq))
    }

    /// Posts "look at `slot`" to each of the queues `cqs` (a bit each) of side `to`, and rings their doorbells where the
    /// consumers sleep. Posts come first: whom a ring wakes, which may be at once and in our place, finds all queues told.
    pub fn post(&self, to: usize, cqs: u8, slot: u16) {
        let each = || (0..CQS).filter(|cq| cqs >> cq & 1 != 0);
        let mut asleep = [None; CQS];
        for cq in each() {
            asleep[cq] = self.half(to, cq as u8).and_then(|half| Own::notify(half, slot));
        }
        for cq in each() {
            let (Some(sleep), Some(half)) = (asleep[cq], self.half(to, cq as u8)) else { continue };
            half.stamp(clock::stamp());
            thread().woke.store(true, Ordering::Relaxed);
            // Ring first, clear then.
            self.ring(cq as u8);
            half.answered(sleep);
        }
    }

    fn ring(&self, cq: u8) {
        // A hostile mask names queues that were never announced: their doorbell is -1.
        if let Some(bell) = self.bells.get(usize::from(cq)) {
            doorbell::ring(bell.load(Ordering::Relaxed));
        }
    }

    /// Declares that queue `cq` of our side `side` goes to sleep. News must be looked at once more after.
    pub fn sleep_on(&self, side: usize, cq: u8) {
        if let Some(half) = self.half(side, cq) {
            half.declare(fresh_epoch(cq));
        }
    }

    /// `sleep_on` for our own side.
    pub fn declare_sleep(&self, cq: u8) {
        self.sleep_on(usize::from(self.side.load(Ordering::Relaxed)), cq);
    }

    /// Whether queue `cq` has news for us.
    pub fn has_news(&self, cq: u8) -> bool {
        let side = usize::from(self.side.load(Ordering::Relaxed));
        self.half(side, cq).is_some_and(CqNews::any) && !self.is_inherited()
    }

    /// When queue `cq` of ours was last rung for from the other side of this link.
    pub fn rung(&self, cq: u8) -> u64 {
        let side = usize::from(self.side.load(Ordering::Relaxed));
        self.half(side, cq).map_or(0, CqNews::rung)
    }

    /// Whether it is a parent's.
    pub fn is_inherited(&self) -> bool {
        self.is_inherited.load(Ordering::Relaxed)
    }

    /// Takes the news of queue `cq` and calls `each` with where the registrations of every connection named begin.
    pub fn take_news(&self, cq: u8, mut each: impl FnMut(&AtomicU32)) {
        let side = usize::from(self.side.load(Ordering::Relaxed));
        let Some(half) = self.half(side, cq) else { return };
        half.take(|slot| {
            if let Some(first) = self.slots.get(usize::from(slot)) {
                each(first);
            }
        });
    }
}

/// Where the list of a connection's epoll registrations begins, while it is on a link.
pub fn registrations(block: &Block) -> Option<&'static AtomicU32> {
    of(block)?.slots.get(usize::from(block.slot.load(Ordering::Relaxed)))
}

/// Never 0; of a queue's own count, for all link pages, and another in each process that sleeps on one queue (a forked child
/// has its parent's queues).
fn fresh_epoch(cq: u8) -> u64 {
    #[repr(align(64))]
    struct Epochs(AtomicU32);
    static EPOCHS: [Epochs; CQS] = [const { Epochs(AtomicU32::new(0)) }; CQS];
    let count = EPOCHS[usize::from(cq) % CQS].0.fetch_add(1, Ordering::Relaxed);
    u64::from(process::pid()) << 32 | u64::from(count)
}

/// All link groups in use.
pub fn all() -> impl Iterator<Item = &'static Link> {
    let high = HIGH.load(Ordering::Acquire) as usize;
    TABLE.iter().take(high).filter(|link| link.used.load(Ordering::Acquire))
}

/// Of the link groups in use those in the next `n` places after the ones of the last call with this `cursor`, going round.
pub fn round(cursor: &AtomicU32, n: usize) -> impl Iterator<Item = &'static Link> {
    let high = HIGH.load(Ordering::Acquire) as usize;
    next(&TABLE[..high], cursor, n).filter(|link| link.used.load(Ordering::Acquire))
}

fn next<'a, T>(of: &'a [T], cursor: &AtomicU32, n: usize) -> impl Iterator<Item = &'a T> {
    let at = cursor.load(Ordering::Relaxed) as usize;
    let begin = if at < of.len() { at } else { 0 };
    let n = n.min(of.len());
    cursor.store((begin + n) as u32, Ordering::Relaxed);
    (begin..begin + n).filter_map(|at| of.get(if at < of.len() { at } else { at - of.len() }))
}

/// The link group of a connection.
#[inline]
pub fn of(block: &Block) -> Option<&'static Link> {
    TABLE.get((block.link.load(Ordering::Relaxed) as usize).wrapping_sub(1))
}

/// In a forked child: the link groups so far are its parent's.
pub(crate) fn after_fork_in_child() {
    all().for_each(|link| link.is_inherited.store(true, Ordering::Relaxed));
}

/// Whether the connection's lanes began before a fork that made this process. No set of ours is told of what comes by them.
pub fn is_inherited(block: &Block) -> bool {
    of(block).is_some_and(Link::is_inherited)
}

/// The peer looks at the connection, whichever call it sleeps in.
pub fn wake_peer(block: &Block) {
    if let Some(link) = of(block) {
        let to = 1 - usize::from(block.side.load(Ordering::Relaxed) & 1);
        link.post(to, u8::MAX, block.slot.load(Ordering::Relaxed));
    }
}

/// The link group `id` of broker session `session`, seen from `side`. Under the session's lock.
pub fn find(session: u32, id: u32, side: u8) -> Option<&'static Link> {
    all().find(|link| {
        link.session.load(Ordering::Relaxed) == session
            && link.id.load(Ordering::Relaxed) == id
            && link.side.load(Ordering::Relaxed) == side
    })
}

/// Enters a new link group. Under the session's lock. `None` when the table is full.
pub fn enter(session: u32, id: u32, side: u8, page: usize, bells: [i32; CQS]) -> Option<&'static Link> {
    let (index, link) = TABLE.iter().enumerate().find(|(_, link)| !link.used.load(Ordering::Relaxed))?;
    link.session.store(session, Ordering::Relaxed);
    link.id.store(id, Ordering::Relaxed);
    link.side.store(side, Ordering::Relaxed);
    link.page.store(in_place_of(link.page.load(Ordering::Relaxed), page), Ordering::Relaxed);
    for (to, bell) in link.bells.iter().zip(bells) {
        to.store(bell, Ordering::Relaxed);
    }
    link.conns.store(0, Ordering::Relaxed);
    link.over.store(false, Ordering::Relaxed);
    link.is_inherited.store(false, Ordering::Relaxed);
    // Release pairs with the Acquire in `all`.
    link.used.store(true, Ordering::Release);
    HIGH.fetch_max(index as u32 + 1, Ordering::AcqRel);
    Some(link)
}

/// Moves the mapping of a page to where the entry's last one is, which goes: who comes late with the old address
/// posts news to the wrong group, which looks in vain. Returns its address.
fn in_place_of(old: usize, page: usize) -> usize {
    use rustix::mm::{MremapFlags, mremap_fixed};
    if old == 0 || old == page {
        return page;
    }
    let len = size_of::<LinkPage>();
    // SAFETY: both are whole mappings of link pages; the old one's entry was free, the new one's address is ours alone yet.
    let moved = unsafe { mremap_fixed(page as *mut _, len, len, MremapFlags::MAYMOVE, old as *mut _) };
    moved.map_or(page, |at| at as usize)
}

/// The other side's view of a link group that joins a process to itself.
pub fn mirror(session: u32, id: u32, side: u8) -> Option<&'static Link> {
    let other = find(session, id, 1 - side)?;
    let bells = core::array::from_fn(|cq| other.bells[cq].load(Ordering::Relaxed));
    enter(session, id, side, other.page.load(Ordering::Relaxed), bells)
}

/// The link group has ended at the broker: its doorbells are closed once no connection is on it. The page
/// stays mapped until another one takes its place; a poster that is late finds a doorbell of -1. Under the session's lock.
pub fn gone(session: u32, id: u32) {
    for side in 0..2 {
        if let Some(link) = find(session, id, side) {
            link.over.store(true, Ordering::Relaxed);
            if link.conns.load(Ordering::Acquire) != 0 {
                continue;
            }
            let mirrored = find(session, id, 1 - side).is_some();
            for bell in &link.bells {
                let bell = bell.swap(-1, Ordering::AcqRel);
                if !mirrored {
                    crate::session::close_raw(bell);
                }
            }
            if mirrored {
                // The page is the other side's, too.
                link.page.store(0, Ordering::Relaxed);
            }
            link.used.store(false, Ordering::Release);
        }
    }
}

/// Puts a connection on the link, in news slot `slot`.
pub fn join(link: &'static Link, block: &Block, slot: u16) {
    let index = TABLE.iter().position(|other| core::ptr::eq(other, link)).unwrap_or(0);
    block.slot.store(slot, Ordering::Relaxed);
    block.side.store(link.side.load(Ordering::Relaxed), Ordering::Relaxed);
    if let Some(at) = link.slots.get(usize::from(slot)) {
        at.store(0, Ordering::Relaxed);
    }
    link.conns.fetch_add(1, Ordering::Relaxed);
    block.link.store(index as u32 + 1, Ordering::Release);
}

/// Takes a connection off its link. Under the session's lock.
pub fn part(block: &Block) {
    let number = block.link.swap(0, Ordering::Relaxed);
    if number != 0 {
        let slot = block.slot.load(Ordering::Relaxed);
        device::parts(block, (number, slot));
        leave(number, Some(slot));
    }
}

/// A connection has left the link with this number, which is not 0; news slot `slot` is nobody's any more.
pub(crate) fn leave(number: u32, slot: Option<u16>) {
    let Some(link) = TABLE.get((number as usize).wrapping_sub(1)) else { return };
    if let Some(at) = slot.and_then(|slot| link.slots.get(usize::from(slot))) {
        at.store(0, Ordering::Relaxed);
    }
    if link.conns.fetch_sub(1, Ordering::AcqRel) == 1 && link.over.load(Ordering::Relaxed) {
        gone(link.session.load(Ordering::Relaxed), link.number());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A link group's place, which nobody uses.
    pub fn idle() -> &'static Link {
        &TABLE[LINKS - 1]
    }

    #[test]
    fn every_place_has_its_turn() {
        for len in 0..40usize {
            let (of, cursor) = (Vec::from_iter(0..len), AtomicU32::new(7));
            let seen = Vec::from_iter((0..=len.div_ceil(8)).flat_map(|_| next(&of, &cursor, 8)));
            assert!(of.iter().all(|place| seen.contains(&place)), "{len}: {seen:?}");
        }
    }
}
