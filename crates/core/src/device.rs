//! The device as a client sees it: memory of DMBs and send buffers, moving bytes, and letting go.
//!
//! loopback-ism's DMBs are mapped, so move_data is a copy; a device that cannot map does its transfer here.

use shunpike_shm::Region;
use shunpike_shm::lane::{Dmb, HEADER};
use shunpike_wire::DmbToken;
use shunpike_wire::session::ToBroker;

use crate::clock;
use crate::mutex::Mutex;
use crate::session::Session;

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

#[derive(Copy, Clone)]
struct Retired {
    region: Region,
    token: DmbToken,
    owner: Owner,
    told: bool,
    at: u64,
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
/// Threads look at a lane without a lock for microseconds at most; a mapping goes after this long.
const QUARANTINE_US: u64 = 5_000_000;

static RETIRED: Mutex<Quarantine> = Mutex::new(Quarantine { items: [None; MOST], count: 0, next_sweep: 0 });

struct Quarantine {
    items: [Option<Retired>; MOST],
    count: usize,
    next_sweep: u64,
}

/// Lets memory go: told to the broker at the next sweep, unmapped after a quarantine. Takes no other lock.
pub fn retire(region: Region, token: DmbToken, owner: Owner) {
    let mut quarantine = RETIRED.lock();
    let at = clock::ticks();
    let item = Retired { region, token, owner, told: token.0 == 0 || owner == Owner::Local, at };
    // A full quarantine leaks address space rather than unmap under a reader.
    if let Some(slot) = quarantine.items.iter_mut().find(|slot| slot.is_none()) {
        *slot = Some(item);
        quarantine.count += 1;
        quarantine.next_sweep = 0;
    }
}

/// Tells the broker what was retired, and unmaps what has been for long enough.
pub fn sweep(session: &mut Session) {
    let now = clock::ticks();
    match RETIRED.try_lock() {
        Some(mut quarantine) if quarantine.count > 0 && now >= quarantine.next_sweep => {
            quarantine.next_sweep = now + clock::from_us(QUARANTINE_US / 8);
        }
        _ => return,
    }
    // A broker that turns out to be gone ends handshakes, which take other locks and retire: none held here.
    let mut from = 0;
    while let Some((at, message)) = untold(from) {
        from = at + 1;
        if session.send(&message) || session.device.is_none() {
            mark_told(at, &message);
        }
    }
    let mut quarantine = RETIRED.lock();
    let mut gone = 0;
    for slot in quarantine.items.iter_mut() {
        let Some(item) = slot else { continue };
        if item.told && now.saturating_sub(item.at) > clock::from_us(QUARANTINE_US) {
            // SAFETY: retired under the lock of the half that used it, which cleared the address; whoever
            // read the address before did so within a critical section that ended seconds ago.
            unsafe { item.region.unmap() };
            *slot = None;
            gone += 1;
        }
    }
    quarantine.count -= gone;
}

/// The first item at or behind `from` that the broker has not been told of, and what to tell it.
fn untold(from: usize) -> Option<(usize, ToBroker)> {
    let quarantine = RETIRED.lock();
    let rest = quarantine.items.iter().enumerate().skip(from);
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
    RETIRED.lock().items.iter_mut().flatten().for_each(|item| item.told = true);
}

/// A send buffer with a DMB's layout, for the copy mode; its address, 0 when memory is refused.
pub fn sndbuf(ring: u64) -> usize {
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
