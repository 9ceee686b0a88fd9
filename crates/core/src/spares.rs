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
mod tests {
    use rustix::fd::AsFd;
    use shunpike_shm::lane::HEADER;
    use shunpike_shm::region;

    use super::*;
    use crate::device;
    use crate::reuse::take;
    use crate::session::{self, Session};

    fn spare(token: u64, group: u32, class: u8) -> Spare {
        let memory = region::create("shunpike-test-spare", Dmb::len(class)).expect("a memfd");
        let region = Region::map(memory.as_fd(), Dmb::len(class)).expect("a mapping");
        let ring = (region.len() - HEADER) as u32;
        Spare { region, token: DmbToken(token), group, forks: device::forks(), ring }
    }

    fn tokens(session: &Session) -> Vec<u64> {
        session.spares.slots.iter().flatten().map(|(spare, _)| spare.token.0).collect()
    }

    /// A peer that has not detached may yet read what it sent there, to send it again by TCP.
    #[test]
    fn memory_is_given_back_when_the_peer_has_let_go_of_it() {
        let mut spares = Spares::new();
        let spare = spare(8, 1, 1);
        let dmb = Dmb::new(spare.region, 8).expect("a DMB");
        dmb.words().set_window(2 * u64::from(MIN_WINDOW));
        // SAFETY: within the ring, which only this thread uses.
        let byte = |at: u64| unsafe { &mut *dmb.span(at).0 };
        (*byte(5), *byte(20_000)) = (7, 7);
        assert!(spares.put(spare).is_none());
        assert_eq!((*byte(5), *byte(20_000)), (7, 7));
        spares.ready(spare.token);
        assert_eq!((*byte(5), *byte(20_000)), (7, 0));
        spares.clear();
    }

    /// The session is one for all tests of the process.
    #[test]
    fn the_latest_of_its_group_and_size_that_the_broker_agrees_to() {
        let _alone = device::tests::alone();
        let mut session = session::lock();
        for (token, group, class) in [(1, 1, 0), (2, 1, 1), (3, 2, 0), (4, 1, 0), (5, 1, 0)] {
            assert!(session.spares.put(spare(token, group, class)).is_none());
        }
        assert!(take(&mut session, 1, 16384).is_none(), "nobody has agreed");
        [1, 2, 3, 4, 99].into_iter().for_each(|token| session.spares.ready(DmbToken(token)));
        let mut taken = |group, class| {
            let taken = take(&mut session, group, 16384u32 << class)?;
            taken.let_go();
            Some(taken.token.0)
        };
        assert_eq!(
            [(1, 0), (1, 1), (1, 1), (3, 0), (1, 0), (1, 0)].map(|(g, c)| taken(g, c)),
            [Some(4), Some(2), None, None, Some(1), None]
        );
        assert_eq!(tokens(&session), [3, 5]);
        session.spares.dropped(DmbToken(5));
        session.spares.dropped(DmbToken(5));
        // A fork's child may have what is mapped.
        device::hold_across_fork();
        device::let_go_after_fork();
        assert!(take(&mut session, 2, 16384).is_none());
        assert_eq!(tokens(&session), []);

        // Few of a kind, and not too many of all kinds: the oldest go.
        let mut evicted = |token, group| {
            session.spares.put(spare(token, group, 0)).map(|old| {
                old.let_go();
                old.token.0
            })
        };
        let alike = MOST_ALIKE as u64;
        assert_eq!(evicted(100, 9), None);
        assert!((1..=alike).all(|token| evicted(token, 1).is_none()));
        assert_eq!(evicted(alike + 1, 1), Some(1));
        assert!((0..MOST as u64 - alike - 1).all(|token| evicted(200 + token, 10 + token as u32).is_none()));
        assert_eq!((evicted(300, 9), evicted(301, 9)), (Some(100), Some(2)));
        session.spares.clear();
        assert_eq!(tokens(&session), []);
    }
}
