//! The device as a client sees it: memory of DMBs and send buffers, moving bytes, and letting go.
//!
//! loopback-ism's DMBs are mapped, so move_data is a copy; a device that cannot map does its transfer here.

use std::sync::atomic::Ordering;

use shunpike_shm::Region;
use shunpike_shm::grace::Grace;
use shunpike_shm::lane::{Dmb, HEADER};
use shunpike_wire::DmbToken;
use shunpike_wire::session::ToBroker;

use crate::mutex::Mutex;
use crate::session::Session;
use crate::{readers, tls};

/// Whose memory it is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A DMB that we registered.
    Ours,
    /// A DMB that we attached.
    Peer,
    /// A send buffer of the copy mode.
    Local,
}

/// How far something let go of is.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Stage {
    /// Its address was taken away; threads may have read it before.
    Fresh,
    /// A grace period runs that began after.
    Waiting,
    /// Unmapped.
    Unmapped,
}

#[derive(Copy, Clone)]
struct Retired {
    region: Region,
    token: DmbToken,
    owner: Owner,
    told: bool,
    stage: Stage,
}

impl Retired {
    fn message(&self) -> ToBroker {
        match self.owner {
            Owner::Ours => ToBroker::Unregister { token: self.token.0 },
            _ => ToBroker::Detach { token: self.token.0 },
        }
    }
}

const MOST: usize = 4096;

static RETIRED: Mutex<Quarantine> =
    Mutex::new(Quarantine { items: [None; MOST], count: 0, grace: Grace::new() });

/// What was let go of and may still be looked at by threads without a lock.
struct Quarantine {
    /// The first `count` are there.
    items: [Option<Retired>; MOST],
    count: usize,
    grace: Grace<{ readers::MOST }>,
}

/// Lets memory go: told to the broker at the next sweep, unmapped after a grace period. Its address has been taken
/// away from where threads without a lock find it. Takes no other lock.
pub fn retire(region: Region, token: DmbToken, owner: Owner) {
    let told = token.0 == 0 || owner == Owner::Local;
    RETIRED.lock().put(Retired { region, token, owner, told, stage: Stage::Fresh });
}

/// Tells the broker what was retired, and unmaps what nobody can look at any more.
pub fn sweep(session: &mut Session) {
    // Inside the session's lock and no other section: this thread has no address of a lane in hand.
    let empty_handed = tls::thread().critical.load(Ordering::Relaxed) == 1;
    if RETIRED.try_lock().is_none_or(|quarantine| quarantine.count == 0) {
        return;
    }
    // A broker that turns out to be gone ends handshakes, which take other locks and retire: none held here.
    let mut from = 0;
    while let Some((at, message)) = untold(from) {
        from = at + 1;
        if session.send(&message) || session.device.is_none() {
            mark_told(at, &message);
        }
    }
    RETIRED.lock().turn(|place| readers::is_dead(place) || empty_handed && readers::is_own(place));
}

impl Quarantine {
    fn present(&mut self) -> impl Iterator<Item = &mut Retired> {
        self.items.iter_mut().take(self.count).flatten()
    }

    /// A full quarantine leaks address space rather than unmap under a reader.
    fn put(&mut self, item: Retired) {
        if let Some(slot) = self.items.get_mut(self.count) {
            *slot = Some(item);
            self.count += 1;
        }
    }

    /// Ends the grace period that runs, if it can end, and the next one. `is_gone`: see [`Grace::is_over`].
    fn turn(&mut self, mut is_gone: impl FnMut(usize) -> bool) {
        for _ in 0..2 {
            if !self.grace.is_over(readers::all(), &mut is_gone) {
                return;
            }
            self.unmap_waiting();
            if !self.present().any(|item| item.stage == Stage::Fresh) || !readers::fence_all() {
                return;
            }
            self.present()
                .filter(|item| item.stage == Stage::Fresh)
                .for_each(|item| item.stage = Stage::Waiting);
            self.grace.begin(readers::all());
        }
    }

    fn unmap_waiting(&mut self) {
        for item in self.present().filter(|item| item.stage == Stage::Waiting) {
            // SAFETY: the address was taken away before `retire`. Who had read it before was within a critical
            // section; each thread has left the one that it was in since, as the grace period says.
            unsafe { item.region.unmap() };
            item.stage = Stage::Unmapped;
        }
        let mut at = 0;
        while at < self.count {
            if self.items[at].is_some_and(|item| item.told && item.stage == Stage::Unmapped) {
                self.count -= 1;
                self.items.swap(at, self.count);
            } else {
                at += 1;
            }
        }
    }
}

/// The first item at or behind `from` that the broker has not been told of, and what to tell it. Only a sweep moves
/// items, under the session's lock.
fn untold(from: usize) -> Option<(usize, ToBroker)> {
    let quarantine = RETIRED.lock();
    let rest = quarantine.items.iter().take(quarantine.count).enumerate().skip(from);
    rest.filter_map(|(at, slot)| slot.as_ref().map(|item| (at, item)))
        .find(|(_, item)| !item.told)
        .map(|(at, item)| (at, item.message()))
}

fn mark_told(at: usize, message: &ToBroker) {
    if let Some(Some(item)) = RETIRED.lock().items.get_mut(at)
        && item.message() == *message
    {
        item.told = true;
    }
}

/// Before fork(): after all other locks.
pub fn hold_across_fork() {
    RETIRED.hold();
}

/// After it, in the parent and in the child.
pub fn let_go_after_fork() {
    RETIRED.let_go();
}

/// In a forked child: its parent tells the broker.
pub fn after_fork_in_child() {
    RETIRED.lock().present().for_each(|item| item.told = true);
}

/// A send buffer with a DMB's layout, for the copy mode; its address, 0 when memory is refused.
pub fn sndbuf(ring: u32) -> usize {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let len = HEADER + ring as usize;
    // SAFETY: a fresh anonymous mapping touches no memory of ours. Shared: a forked child sends from it too.
    unsafe {
        mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }
    .map_or(0, |at| at as usize)
}

/// move_data (smcd_ops): `n` bytes at `offset` of the send buffer into the peer's DMB.
pub fn move_data(dmb: &Dmb, sndbuf: &Dmb, offset: u64, n: usize) {
    let (from, room) = sndbuf.span(offset);
    let first = n.min(room);
    // SAFETY: the stretch of the send buffer was just filled, under the send lock that also makes the
    // stretch of the DMB ours; both rings have one size.
    unsafe {
        dmb.fill(offset, from, first);
        if n > first {
            dmb.fill(offset + first as u64, sndbuf.span(0).0, n - first);
        }
    }
}

#[cfg(test)]
mod tests;
