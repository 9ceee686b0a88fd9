//! DMBs of ours whose connection is over, kept mapped for the next one of the same link group and size: what the kernel's SMC
//! does in `smc_buf_get_slot` (net/smc/smc_core.c).
//!
//! A DMB gets here when no thread of ours can look at it any more (see [`device`](crate::device)), and is used again when the broker has said
//! that the peer's process has let go of it, too. The next connection is one of that same process: it may have kept what it
//! had mapped, and nobody else's bytes may come there.

use shunpike_shm::Region;
use shunpike_shm::lane::{Dmb, MIN_WINDOW};
use shunpike_wire::DmbToken;

use crate::window;

/// Spares of a process, and of one size in a link group. Each costs its header and the smallest window, for as long as the
/// broker keeps it.
const MOST: usize = 64;
const MOST_ALIKE: usize = 8;

/// One of them.
#[derive(Copy, Clone)]
pub struct Spare {
    /// Where it is mapped.
    pub region: Region,
    /// Its name.
    pub token: DmbToken,
    /// Link group of the connection that it served.
    pub group: u32,
    /// Forks of this process before it was mapped.
    pub forks: u32,
    /// Capacity of its ring, bytes.
    pub ring: u32,
}

impl Spare {
    pub(crate) fn is_like(&self, group: u32, ring: u32) -> bool {
        self.group == group && self.ring == ring
    }

    pub(crate) fn let_go(self) {
        // SAFETY: its grace period was over before it became a spare, and nobody was given its address since.
        unsafe { self.region.unmap() };
    }
}

/// The spares of a process, and whether the broker has said that they can be used; the first `count` are there, the latest
/// behind.
pub struct Spares {
    slots: [Option<(Spare, bool)>; MOST],
    count: usize,
}

impl Spares {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { slots: [None; MOST], count: 0 }
    }

    pub(crate) fn places(
        &self,
        is_it: impl Fn(&Spare, bool) -> bool,
    ) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.count).filter(move |at| self.slots[*at].is_some_and(|(spare, ready)| is_it(&spare, ready)))
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<Spare> {
        let (spare, _) = self.slots.get_mut(at)?.take()?;
        self.slots.get_mut(at..self.count)?.rotate_left(1);
        self.count -= 1;
        Some(spare)
    }

    /// Enters one. Where there are too many, the oldest has to go.
    pub(crate) fn put(&mut self, spare: Spare) -> Option<Spare> {
        let alike = || self.places(|other, _| other.is_like(spare.group, spare.ring));
        let oldest = if alike().count() < MOST_ALIKE { 0 } else { alike().next().unwrap_or(0) };
        let is_full = self.count == MOST || alike().count() >= MOST_ALIKE;
        let evicted = if is_full { self.remove(oldest) } else { None };
        if let Some(slot) = self.slots.get_mut(self.count) {
            *slot = Some((spare, false));
            self.count += 1;
        }
        evicted
    }

    /// The broker says that it can be used. Not before does its memory go: the peer may have had to take back from there what we
    /// left unread.
    pub fn ready(&mut self, token: DmbToken) {
        let known = self.slots.iter_mut().take(self.count).flatten().find(|(spare, _)| spare.token == token);
        let Some((spare, ready)) = known else { return };
        *ready = true;
        if let Some(dmb) = Dmb::part(spare.region, token.0, spare.ring)
            // Not to be relied upon, nor need it: the whole of it counts for the limits.
            && dmb.words().window() > u64::from(MIN_WINDOW)
        {
            dmb.release_behind(u64::from(MIN_WINDOW));
        }
        let first = window::first_mapped(spare.ring);
        if spare.region.len() > first {
            // SAFETY: nobody was given its address since its grace period was over.
            spare.region = unsafe { spare.region.cut(first) };
        }
    }

    /// The broker has let go of it.
    pub fn dropped(&mut self, token: DmbToken) {
        let at = self.places(|spare, _| spare.token == token).next();
        if let Some(spare) = at.and_then(|at| self.remove(at)) {
            spare.let_go();
        }
    }

    /// The broker has let go of all, or they are another process's.
    pub fn clear(&mut self) {
        while let Some(spare) = self.count.checked_sub(1).and_then(|at| self.remove(at)) {
            spare.let_go();
        }
    }
}

#[cfg(test)]
mod tests;
