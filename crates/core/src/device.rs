//! What this process has of its device ([`Own`]): memory of DMBs and send buffers, and letting go of it.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use shunpike_shm::Region;
use shunpike_shm::arena::{Block, Held};
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::grace::Grace;
use shunpike_shm::lane::{Dmb, HEADER};
use shunpike_wire::DmbToken;

use crate::mutex::Mutex;
use crate::table::{self, Conn, Entry};
use crate::tls::{self, epochs};
use crate::{holders, limits, look};

mod shared;

use shared::{Memory, Shares};
pub(crate) use shared::{Seat, Shared};

/// A lane's ring is written where it is (`tx`), and a receiver stops its sender by a word that both change (`closing`). For a device that
/// cannot do both, these two are to be written again.
const _: () = assert!(Own::CAPABILITIES.mapped && Own::CAPABILITIES.shared_cas);

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
pub(crate) enum Stage {
    /// Its address was taken away; threads may have read it before.
    Fresh,
    /// A grace period runs that began after.
    Waiting,
    /// Nobody has its address, and it is to stay mapped for another connection.
    Spare,
    /// Unmapped.
    Unmapped,
}

#[derive(Copy, Clone)]
pub(crate) struct Retired {
    pub(crate) region: Region,
    pub(crate) token: DmbToken,
    pub(crate) owner: Owner,
    pub(crate) told: bool,
    pub(crate) stage: Stage,
    /// What it was a lane's memory of.
    pub(crate) lane: Option<Lane>,
    /// Sweeps that found threads that may look at it.
    pub(crate) age: u8,
}

/// Of which lane some memory was. Only such memory can be used again: by us where we own it, or by its owner when we say that it
/// is gone here.
#[derive(Copy, Clone)]
pub struct Lane {
    /// Link group.
    pub group: u32,
    /// Forks of this process before it was mapped.
    pub forks: u32,
    /// Capacity of its ring, bytes.
    pub ring: u32,
}

const MOST: usize = 4096;
/// Sweeps after which the broker is told of a lane's memory that a thread may look at still: it is not used again then.
const PATIENCE: u8 = 16;

static RETIRED: Mutex<Quarantine> =
    Mutex::new(Quarantine { items: [None; MOST], count: 0, grace: Grace::new(), shared: Shares::new() });
/// Forks of this process so far; changed with RETIRED held. What is mapped at a fork is mapped in the child, too.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// What was let go of and may still be looked at by threads without a lock.
struct Quarantine {
    /// The first `count` are there.
    items: [Option<Retired>; MOST],
    count: usize,
    grace: Grace<{ epochs::MOST }>,
    /// What is not let go of yet, and other processes have, too.
    shared: Shares,
}

/// Lets memory go: unmapped after a grace period, and told to the broker at the next sweep. Its address has been taken
/// away from where threads without a lock find it. Takes no other lock.
pub fn retire(region: Region, token: DmbToken, owner: Owner) {
    retire_lane(region, token, owner, None);
}

/// A direction has no DMB any more. Its memory may be used again: the broker is told after the grace period.
pub fn retire_half(block: &Block, held: impl Held, owner: Owner, group: u32) {
    let half = held.half();
    let mut quarantine = RETIRED.lock();
    let (address, token, shared) = quarantine.take_away(block, held);
    // Where others have it, too, it may be mapped elsewhere there, and it is theirs to tell the broker.
    let (address, told) = shared.unwrap_or((address, false));
    if address != 0 {
        let told = told || token.0 == 0;
        let (forks, ring) = (half.forks.load(Ordering::Relaxed), half.ring.load(Ordering::Relaxed));
        let lane = Some(Lane { group, forks, ring }).filter(|_| !told);
        quarantine.put(Retired::of(address, token, owner, told, lane));
    }
}

/// A direction that others have had alone has no DMB any more: what they have mapped is nothing of ours. Says whether it is as it was when we had
/// it, too.
pub(crate) fn retire_abandoned(block: &Block, held: impl Held, owner: Owner) -> bool {
    let mut quarantine = RETIRED.lock();
    let (address, token, shared) = quarantine.take_away(block, held);
    let Some((own, told)) = shared else { return false };
    quarantine.put(Retired::of(own, token, owner, told, None));
    own == address
}

/// Before fork(), when the child is among the holders: what it shares with us.
pub fn note_shared() {
    for (_, entry) in table::all() {
        if let Entry::Conn(conn) = entry {
            let own = holders::bit(conn.block).unwrap_or(u64::MAX);
            RETIRED.lock().shared.note(conn, own);
        }
    }
}

/// Whether something is shared.
pub(crate) fn has_shared() -> bool {
    !RETIRED.lock().shared.is_empty()
}

/// What is shared of the connection at or behind `at`, which is behind it then.
pub(crate) fn next_shared(at: &mut usize) -> Option<Shared> {
    RETIRED.lock().shared.next(at)
}

/// Lets go of what the connection has no more, as other processes have ended it; of all, where it is over. Its seat is the caller's to leave.
pub(crate) fn give_up_shared(conn: Conn, is_over: bool) -> Option<Seat> {
    let mut quarantine = RETIRED.lock();
    let Quarantine { shared, items, count, .. } = &mut *quarantine;
    shared.give_up(conn, is_over, |which, Memory { address, token }, told| {
        let owner = [Owner::Ours, Owner::Peer][which];
        put(items, count, Retired::of(address, DmbToken(token), owner, told, None));
    })
}

/// The connection leaves this seat of a link group.
pub(crate) fn parts(block: &Block, seat: (u32, u16)) {
    RETIRED.lock().shared.parted(block, seat);
}

fn retire_lane(region: Region, token: DmbToken, owner: Owner, lane: Option<Lane>) {
    let told = token.0 == 0 || owner == Owner::Local;
    let lane = lane.filter(|_| !told);
    RETIRED.lock().put(Retired { region, token, owner, told, stage: Stage::Fresh, lane, age: 0 });
}

/// Forks of this process so far. Under the session's lock, which a fork holds.
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

impl Retired {
    /// The mapping of the DMB at `address`.
    fn of(address: usize, token: DmbToken, owner: Owner, told: bool, lane: Option<Lane>) -> Self {
        let region = Region::of(Dmb::start_of(address), Dmb::len_at(address));
        Self { region, token, owner, told, stage: Stage::Fresh, lane, age: 0 }
    }
}

fn put(items: &mut [Option<Retired>], count: &mut usize, item: Retired) {
    if let Some(slot) = items.get_mut(*count) {
        *slot = Some(item);
        *count += 1;
    }
}

impl Quarantine {
    fn present(&mut self) -> impl Iterator<Item = &mut Retired> {
        self.items.iter_mut().take(self.count).flatten()
    }

    /// Takes a direction's DMB away: its address and token in the block, and what is shared of it.
    fn take_away(&mut self, block: &Block, held: impl Held) -> (usize, DmbToken, Option<(usize, bool)>) {
        let half = held.half();
        let address = half.dmb.swap(held, 0, Ordering::AcqRel);
        let token = half.token.swap(held, 0, Ordering::Relaxed);
        (address, DmbToken(token), self.shared.take(block, token))
    }

    /// A full quarantine leaks address space rather than unmap under a reader.
    fn put(&mut self, item: Retired) {
        put(&mut self.items, &mut self.count, item);
    }

    /// Ends the grace period that runs, if it can end, and the next one. `is_gone`: see [`Grace::is_over`].
    fn turn(&mut self, mut is_gone: impl FnMut(usize) -> bool) {
        for _ in 0..2 {
            if !self.grace.is_over(epochs::all(), &mut is_gone) {
                return;
            }
            self.end_waiting();
            if !self.present().any(|item| item.stage == Stage::Fresh) || !epochs::fence_all() {
                return;
            }
            self.present()
                .filter(|item| item.stage == Stage::Fresh)
                .for_each(|item| item.stage = Stage::Waiting);
            self.grace.begin(epochs::all());
        }
    }

    /// The address of each was taken away before `retire`. Who had read it before was within a critical section; each
    /// thread has left the one that it was in since, as the grace period says.
    fn end_waiting(&mut self) {
        let forks = FORKS.load(Ordering::Relaxed);
        for item in self.present().filter(|item| item.stage == Stage::Waiting) {
            item.lane = item.lane.filter(|lane| lane.forks == forks);
            if item.owner == Owner::Ours && item.lane.is_some_and(|lane| lane.group != 0) {
                item.stage = Stage::Spare;
            } else {
                // SAFETY: nobody has the address, see above.
                unsafe { item.region.unmap() };
                item.stage = Stage::Unmapped;
            }
        }
    }

    /// The next one, at or behind `from`, that the broker is to be told of now. Those that are unmapped go.
    fn due(&mut self, from: &mut usize) -> Option<Retired> {
        while let Some(item) = self.items.get_mut(*from).filter(|_| *from < self.count)?.as_mut() {
            let told = item.told;
            if matches!(item.stage, Stage::Spare | Stage::Unmapped) {
                let item = *item;
                self.count -= 1;
                self.items.swap(*from, self.count);
                if !told {
                    return Some(item);
                }
                continue;
            }
            *from += 1;
            item.age = item.age.saturating_add(1);
            if !told && (item.lane.is_none() || item.age > PATIENCE) {
                item.told = true;
                item.lane = None;
                return Some(*item);
            }
        }
        None
    }
}

/// Only a sweep moves items, under the session's lock.
/// Moves on what nobody can look at any more. Says whether there is anything at all. Inside the session's lock and no other section.
pub(crate) fn turn() -> bool {
    // Then this thread has no address of a lane in hand.
    let empty_handed = tls::thread().critical.load(Ordering::Relaxed) == 1;
    if RETIRED.try_lock().is_none_or(|quarantine| quarantine.count == 0) {
        return false;
    }
    RETIRED.lock().turn(|place| epochs::is_dead(place) || empty_handed && epochs::is_own(place));
    true
}

/// Whether the broker has yet to hear of some.
pub(crate) fn is_untold() -> bool {
    RETIRED.lock().present().any(|item| !item.told)
}

pub(crate) fn due(from: &mut usize) -> Option<Retired> {
    RETIRED.lock().due(from)
}

/// Before fork(): after all other locks.
pub fn hold_across_fork() {
    RETIRED.hold();
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// After it, in the parent and in the child.
pub fn let_go_after_fork() {
    RETIRED.let_go();
}

/// In a forked child: its parent tells the broker.
pub fn after_fork_in_child() {
    let mut quarantine = RETIRED.lock();
    quarantine.present().for_each(|item| (item.told, item.lane) = (true, None));
    quarantine.shared.are_parents();
}

/// More of a lane's memory is mapped, `ring` bytes of its ring, and what was before is let go. False where that is not to be had, or the
/// connection is shared with another process, which would not have it. `stage`: the copy mode's send buffer, of the same size.
pub fn extend(block: &Block, held: impl Held, stage: Option<&AtomicUsize>, ring: u32) -> bool {
    let (old, len) = (held.half().dmb.load(Ordering::Relaxed), HEADER + ring as usize);
    if holders::shared(block) || !limits::may_map(len) {
        return false;
    }
    let mut quarantine = RETIRED.lock();
    // A fork counts its child among the holders, then it waits for this lock: what is mapped here before is mapped there, too.
    let is_shared = !holders::are_one(block.holders.load(Ordering::Acquire));
    if is_shared || quarantine.count + 2 > MOST {
        return false;
    }
    let stage = stage.filter(|stage| stage.load(Ordering::Relaxed) != 0);
    let copy = stage.map_or(0, |_| sndbuf(ring));
    let before = Region::of(Dmb::start_of(old), Dmb::len_at(old));
    // SAFETY: mapped, as the lane is open; the caller asks for no more than the DMB's capacity.
    let region = if stage.is_some() && copy == 0 { None } else { unsafe { before.again(len) }.ok() };
    let over = |region| Retired {
        region,
        token: DmbToken(0),
        owner: Owner::Local,
        told: true,
        stage: Stage::Fresh,
        lane: None,
        age: 0,
    };
    let Some(region) = region else {
        if copy != 0 {
            quarantine.put(over(Region::of(Dmb::start_of(copy), Dmb::len_at(copy))));
        }
        return false;
    };
    // Release: who finds the address without the lock finds the mapping.
    let moved = Dmb::moved(old, region.base() as usize, ring);
    held.half().dmb.store(held, moved, Ordering::Release);
    quarantine.shared.moved(block, held.half().token.load(Ordering::Relaxed), moved);
    quarantine.put(over(before));
    if let Some(stage) = stage {
        let buffer = stage.swap(copy, Ordering::Relaxed);
        quarantine.put(over(Region::of(Dmb::start_of(buffer), Dmb::len_at(buffer))));
    }
    look::look_later();
    true
}

/// A send buffer with a DMB's layout, for the copy mode; its address, 0 when memory is refused.
pub fn sndbuf(ring: u32) -> usize {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let len = HEADER + ring as usize;
    // SAFETY: a fresh anonymous mapping touches no memory of ours. Shared: a forked child sends from it too.
    unsafe {
        mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }
    .map_or(0, |at| Dmb::address_of(at as usize, ring))
}

#[cfg(test)]
pub(crate) mod tests;
