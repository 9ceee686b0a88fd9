//! The registrations of a process: one pool, chained by descriptor, by connection, and in the sets' active lists.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};

use super::list::pop;
use super::{ONESHOT, Waited, refusal};
use crate::mutex::Mutex;
use crate::set::Set;
use crate::table::{self, Conn};
use crate::{clock, link, state, sys, told};

/// Registrations of a process (sets times connections); more are left to the kernel, on TCP.
const REGS: usize = 1 << 18;
/// Tag of the doorbell, in place of a registration's index.
pub(crate) const BELL: u32 = u32::MAX;
const INDEX_BITS: u32 = 20;
const TURNS: u32 = 1 << (32 - INDEX_BITS);
const _: () = assert!(REGS < 1 << INDEX_BITS);

/// One registration of a TCP socket in a set. Indices are plus one; 0 is none.
///
/// Who writes a field holds CONTROL or the lock of its set's list; the groups say which. Only managed registrations are
/// listed, so a holder of the list's lock alone meets no other. On lines of its own, as neighbours are other threads'.
#[repr(align(64))]
pub(crate) struct Reg {
    // Under CONTROL. What a holder of the list's lock reads too changes only while the registration is unlisted.
    pub(crate) set: Place,
    pub(crate) fd: Cell<i32>,
    pub(crate) conn: Cell<Option<Conn>>,
    /// Next registration of the same descriptor; also read without the lock.
    pub(crate) next: Word,
    /// The list of its connection's managed registrations: where it begins, and what follows.
    pub(crate) kin: Cell<Option<&'static AtomicU32>>,
    pub(crate) next_kin: Word,
    /// A one-shot that carries our tag in the kernel, or did at its last change.
    pub(crate) tagged: Cell<bool>,
    /// `Set::waits` when it was made.
    pub(crate) since: Cell<u32>,
    /// Changes of what the kernel has: an event of an earlier turn is void, its like was queued anew.
    pub(crate) turn: Cell<u32>,
    /// The kernel has our silent entry for a connection that is on TCP again: what it tells of next, it tells the program (`entries::restore`).
    pub(crate) lingers: Cell<bool>,
    /// An entry that the kernel has refused (`refusal`): an exclusive one it has no more, another is as it was.
    pub(crate) lost: Cell<bool>,
    /// Not changed since a fork, whose other process may have changed it. Changes as `parked` does.
    pub(crate) forked: Cell<bool>,
    /// What our entry asks for in a set that has no lanes (`standing`); else 0.
    pub(crate) stands: Cell<u32>,
    /// Changed under CONTROL and the list's lock: who holds the latter and finds it set has a registration that stays managed,
    /// and of which the kernel tells only us.
    pub(crate) managed: Flag,

    // Of a managed registration under the list's lock, else under CONTROL.
    /// The program has deleted it. The kernel keeps it while the connection is on a lane: programs that delete
    /// and add with every message need no system call.
    pub(crate) parked: Flag,
    /// Also read without the lock, for EXCLUSIVE, which does not change.
    pub(crate) events: Word,
    pub(crate) data: Cell<u64>,
    /// A one-shot that has fired.
    pub(crate) disarmed: Cell<bool>,
    /// When it was asked for so.
    pub(crate) asked_at: Cell<u64>,
    pub(crate) listed: Cell<bool>,
    pub(crate) prev_active: Cell<u32>,
    pub(crate) next_active: Cell<u32>,
    /// Looks without news.
    pub(crate) quiet: Cell<u8>,
    /// The kernel had news of the TCP socket.
    pub(crate) dirty: Cell<bool>,
    /// Something happened since the last report of an edge-triggered registration.
    pub(crate) edge: Cell<bool>,
    /// When it was last reported, by its set's clock.
    pub(crate) reported: Cell<u64>,
    /// When the kernel had it from us; it may have told of it for itself before, and nobody knows when it has.
    pub(crate) ours_since: Cell<u64>,
    /// What TCP had shown when the kernel got our silent entry, where the program had been told of all: of what stands it tells at once,
    /// and that is no edge. Or what was there at the last report, with the stream's end among it.
    pub(crate) known: Cell<Option<sys::Shown>>,
    /// What was there at the last report.
    pub(crate) seen: Cell<told::Seen>,
}

/// A field as a [`Cell`] is, that others may look at without its lock.
pub(crate) struct Word(AtomicU32);

impl Word {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A flag as a [`Cell`] is, that others may look at without its lock.
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: bool) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The set that a registration is in, which others may look at without its lock.
pub(crate) struct Place(AtomicPtr<Set>);

impl Place {
    pub(crate) fn get(&self) -> Option<&'static Set> {
        // SAFETY: null, or one of the sets, which are static.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }
    }

    pub(crate) fn set(&self, set: Option<&'static Set>) {
        let at = set.map_or(core::ptr::null_mut(), |set| core::ptr::from_ref(set).cast_mut());
        self.0.store(at, Ordering::Relaxed);
    }
}

// SAFETY: each field is guarded by a lock, as its group says, or atomic. A registration becomes managed, and so comes on
// its set's list, under CONTROL, which leaves the fields of the second group alone from then on; it leaves both in one hold
// of the list's lock, before CONTROL changes the rest.
unsafe impl Sync for Reg {}

impl Reg {
    pub(crate) fn is_in(&self, set: &Set) -> bool {
        self.set.get().is_some_and(|other| core::ptr::eq(other, set))
    }

    /// A new use: `event` of `fd` in `set`, on TCP. Under CONTROL.
    pub(crate) fn begin(&self, set: &'static Set, fd: i32, conn: Option<Conn>, event: libc::epoll_event) {
        self.set.set(Some(set));
        self.fd.set(fd);
        self.conn.set(conn);
        self.next.set(0);
        self.kin.set(None);
        self.next_kin.set(0);
        self.tagged.set(false);
        self.since.set(set.waits());
        self.parked.set(false);
        self.next_turn();
        self.lingers.set(false);
        self.lost.set(false);
        self.stands.set(0);
        self.known.set(None);
        self.managed.set(false);
        self.wish(event.events, event.u64, false);
        self.listed.set(false);
        self.prev_active.set(0);
        self.next_active.set(0);
        self.quiet.set(0);
        self.dirty.set(false);
        self.edge.set(false);
        self.reported.set(0);
        self.ours_since.set(0);
        self.seen.set(told::Seen::NOTHING);
    }

    /// What the program wants to hear, and with which word. Under the locks of these fields.
    pub(crate) fn wish(&self, events: u32, data: u64, disarmed: bool) {
        self.events.set(events);
        self.data.set(data);
        self.disarmed.set(disarmed);
        self.forked.set(false);
        self.asked_at.set(clock::ticks());
    }

    /// Those count that come from now on. Under CONTROL.
    pub(crate) fn forget_waits(&self) {
        self.since.set(self.set.get().map_or(0, Set::waits));
    }

    /// What is known of the waits for its set. Under CONTROL.
    pub(crate) fn waited(&self) -> Waited {
        let waits = self.set.get().map_or(0, Set::waits);
        let is_read = |conn: Conn| conn.block.rx.tcp_bytes.load(Ordering::Relaxed) != 0;
        match waits {
            0 => Waited::Never,
            // Nobody knows whether it has fired: not before it is armed again.
            _ if self.events.get() & ONESHOT != 0 && !self.tagged.get() && !self.managed.get() => {
                Waited::Never
            }
            // It says nothing of how the connection is read.
            _ if self.events.get() & told::IN == 0 && self.conn.get().is_some_and(is_read) => Waited::Nowhere,
            waits if waits != self.since.get() => Waited::Since,
            _ => Waited::Ever,
        }
    }

    /// Voids what the kernel has queued. Under CONTROL.
    pub(crate) fn next_turn(&self) {
        self.turn.set((self.turn.get() + 1) % TURNS);
    }
}

/// Owns the registrations: taken for epoll_ctl, for changes of mode, and to hand out news.
pub(crate) struct Control {
    free: u32,
    pub(crate) used: u32,
}

pub(crate) static CONTROL: Mutex<Control> = Mutex::new(Control { free: 0, used: 0 });
static POOL: AtomicPtr<Reg> = AtomicPtr::new(core::ptr::null_mut());
/// See [`cookie`]; 0 before the first tag.
static COOKIE: AtomicU32 = AtomicU32::new(0);

/// A registration by index.
pub(crate) fn reg(index: u32) -> Option<&'static Reg> {
    // Acquire pairs with the Release in `allocate`: the pool is mapped.
    let pool = POOL.load(Ordering::Acquire);
    if pool.is_null() || index == 0 || index as usize > REGS {
        return None;
    }
    // SAFETY: inside the pool, which stays mapped for good and is valid from the first (zeros). Nobody has a
    // `&mut Reg`.
    Some(unsafe { &*pool.add(index as usize - 1) })
}

/// Our word in the kernel for a registration: cookie (32 bits) | turn (12) | index (20).
pub(crate) fn tag(index: u32, turn: u32) -> u64 {
    u64::from(cookie()) << 32 | u64::from(turn << INDEX_BITS | index)
}

pub(crate) fn bell_tag() -> u64 {
    u64::from(cookie()) << 32 | u64::from(BELL)
}

/// Whether the kernel ever had a word of ours.
pub(crate) fn has_tags() -> bool {
    COOKIE.load(Ordering::Relaxed) != 0
}

/// Index and turn, or the doorbell's word, of a tag of ours.
pub(crate) fn untag(data: u64) -> Option<u32> {
    let cookie = COOKIE.load(Ordering::Relaxed);
    (cookie != 0 && (data >> 32) as u32 == cookie).then_some(data as u32)
}

/// Index and turn of a word that [`untag`] returned, other than the doorbell's.
pub(crate) fn index_and_turn(word: u32) -> (u32, u32) {
    (word & ((1 << INDEX_BITS) - 1), word >> INDEX_BITS)
}

/// From here on all forked processes have the same.
pub(super) fn draw_cookie() {
    cookie();
}

/// Upper half of our tags: no pointer's and no small number's, positive or negative.
fn cookie() -> u32 {
    let cookie = COOKIE.load(Ordering::Relaxed);
    if cookie != 0 {
        return cookie;
    }
    let mut bytes = [0u8; 4];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    let fresh = (u32::from_ne_bytes(bytes) ^ clock::ticks() as u32) & 0xbfff_ffff | 0x8000_0000;
    match COOKIE.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        Err(other) => other,
    }
}

pub(crate) fn allocate(control: &mut Control) -> Option<u32> {
    if POOL.load(Ordering::Relaxed).is_null() {
        POOL.store(reserve()?, Ordering::Release);
    }
    if control.free != 0 {
        let index = control.free;
        control.free = reg(index)?.next.get();
        return Some(index);
    }
    if control.used as usize >= REGS {
        return None;
    }
    control.used += 1;
    Some(control.used)
}

fn reserve() -> Option<*mut Reg> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let len = REGS * size_of::<Reg>();
    // SAFETY: a fresh anonymous mapping touches no memory of ours. Zero is a valid Reg (no set, no conn).
    unsafe { mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
        .ok()
        .map(|at| at.cast())
}

/// The registration of `fd` in `set`. Under CONTROL.
pub(crate) fn find(set: &'static Set, fd: i32) -> Option<(u32, &'static Reg)> {
    among(set, indices(fd))
}

/// The registration of `fd` in `set`, without CONTROL: it may be missed, or be another one by now, which the lock of the set's list tells.
pub(crate) fn glimpse(set: &'static Set, fd: i32) -> Option<(u32, &'static Reg)> {
    // A list that changes under the look may lead anywhere.
    among(set, indices(fd).take(KIN))
}

fn among(set: &'static Set, mut indices: impl Iterator<Item = u32>) -> Option<(u32, &'static Reg)> {
    indices.find_map(|index| reg(index).filter(|reg| reg.is_in(set)).map(|reg| (index, reg)))
}

/// Registrations of `fd`. Under CONTROL, but for `glimpse`.
pub(crate) fn indices(fd: i32) -> impl Iterator<Item = u32> {
    let mut next = table::regs(fd).map_or(0, |head| head.load(Ordering::Relaxed));
    core::iter::from_fn(move || {
        let index = next;
        next = reg(index)?.next.get();
        Some(index)
    })
}

/// Changes of the lists of kin: odd while one is under way.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// A change of the lists of kin.
pub(crate) struct Changing;

impl Changing {
    /// Under CONTROL.
    pub(crate) fn begin(_control: &Control) -> Self {
        CHANGES.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        // Release pairs with the Acquire of the first look in `managed_of`.
        CHANGES.fetch_add(1, Ordering::Release);
    }
}

/// Registrations of a connection or descriptor that are found without a lock.
const KIN: usize = 8;

/// Calls `each` with the managed registrations of the connection whose list begins at `first`; they may have changed since,
/// which the lock of their set's list tells. Without CONTROL, which all threads share, unless lists are just changing.
pub(crate) fn managed_of(first: &AtomicU32, each: impl FnMut(u32)) {
    // Acquire pairs with the Release of who changed them last.
    let before = CHANGES.load(Ordering::Acquire);
    let (mut found, mut n) = ([0; KIN], 0);
    for (index, to) in kin(first).zip(&mut found) {
        *to = index;
        n += 1;
    }
    // The looks above come before this one: who began a change before any of them is seen.
    fence(Ordering::Acquire);
    if before.is_multiple_of(2) && n < KIN && CHANGES.load(Ordering::Relaxed) == before {
        return found.into_iter().take(n).for_each(each);
    }
    let _control = CONTROL.lock();
    kin(first).for_each(each);
}

/// The managed registrations of a connection, under whichever descriptor. Under CONTROL.
pub(crate) fn kin(first: &AtomicU32) -> impl Iterator<Item = u32> {
    let mut next = first.load(Ordering::Relaxed);
    core::iter::from_fn(move || {
        let index = next;
        next = reg(index)?.next_kin.get();
        Some(index)
    })
}

pub(crate) fn kin_of(conn: Conn) -> impl Iterator<Item = u32> {
    link::registrations(conn.block).into_iter().flat_map(kin)
}

pub(crate) fn remove(control: &mut Control, index: u32, fd: i32) {
    if let Some(head) = table::regs(fd) {
        let after = reg(index).map_or(0, |reg| reg.next.get());
        if head.load(Ordering::Relaxed) == index {
            head.store(after, Ordering::Relaxed);
        } else {
            let before = indices(fd).find(|&other| reg(other).is_some_and(|reg| reg.next.get() == index));
            if let Some(before) = before.and_then(reg) {
                before.next.set(after);
            }
        }
    }
    let Some(reg) = reg(index) else { return };
    if let Some(conn) = reg.conn.get().filter(|conn| conn.current() && reg.waited() == Waited::Since) {
        state::note_seen(conn.block, state::seen_bit::SET);
    }
    unmanage(control, reg, index);
    refusal::found(reg);
    reg.set.set(None);
    reg.conn.set(None);
    reg.next.set(control.free);
    control.free = index;
}

/// Answered by the kernel from now on, or not at all. Under CONTROL.
pub(crate) fn unmanage(control: &Control, reg: &Reg, index: u32) {
    let Some(set) = reg.set.get().filter(|_| reg.managed.get()) else { return };
    {
        let mut list = set.list.lock();
        reg.managed.set(false);
        set.managed.fetch_sub(1, Ordering::SeqCst);
        pop(&mut list, index);
    }
    let Some(first) = reg.kin.take() else { return };
    let _changing = Changing::begin(control);
    if first.load(Ordering::Relaxed) == index {
        first.store(reg.next_kin.get(), Ordering::Relaxed);
    } else if let Some(before) =
        kin(first).find_map(|other| self::reg(other).filter(|other| other.next_kin.get() == index))
    {
        before.next_kin.set(reg.next_kin.get());
    }
}

pub(crate) fn managed_after(
    set: &'static Set,
    after: u32,
    is_meant: impl Fn(&Reg) -> bool,
) -> Option<(u32, Conn, i32)> {
    let control = CONTROL.lock();
    (after + 1..=control.used).find_map(|index| {
        let reg = reg(index)?;
        let ours = reg.managed.get() && reg.is_in(set) && is_meant(reg);
        reg.conn.get().filter(|_| ours).map(|conn| (index, conn, reg.fd.get()))
    })
}
