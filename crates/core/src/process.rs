//! What a process has: its arena and those of its ancestors, its completion queues and their doorbells, the broker's knobs.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use rustix::fd::{AsFd, AsRawFd, IntoRawFd};
use shunpike_shm::arena::{Arena, Block, Header, WAITS, Waits};
use shunpike_shm::pages::{CQS, KnobPage, profile};

use crate::mutex::Mutex;
use crate::policy::Profile;
pub use crate::sys::known_pid as pid;
use crate::table::{self, Entry};
use crate::tls::{self, epochs};
use crate::{descriptors, doorbell, limits, tenants};

/// Completion queues of a process with few CPUs; with more it has one for each, up to [`CQS`]. Each costs every peer a
/// descriptor.
const FEW_CQS: u32 = 4;

static ENABLED: AtomicBool = AtomicBool::new(false);
static EAGER: AtomicBool = AtomicBool::new(false);
static CONFINED: AtomicBool = AtomicBool::new(false);
static CPUS: AtomicU32 = AtomicU32::new(1);
static ARENA: Mutex<Option<Arena>> = Mutex::new(None);
/// A block that is prepared for the next connection.
static NEXT: AtomicPtr<Block> = AtomicPtr::new(core::ptr::null_mut());
static HOMES: Mutex<[Option<Home>; HOMES_MOST]> = Mutex::new([const { None }; HOMES_MOST]);
static DOORBELLS: [AtomicI32; CQS] = [const { AtomicI32::new(-1) }; CQS];
static HEADER: AtomicPtr<Header> = AtomicPtr::new(core::ptr::null_mut());
/// Epoll sets and threads on each queue.
static POLLERS: [AtomicU32; CQS] = [const { AtomicU32::new(0) }; CQS];
static KNOBS: AtomicPtr<KnobPage> = AtomicPtr::new(core::ptr::null_mut());

/// An arena of an ancestor, for the connections that came by fork.
struct Home {
    arena: Arena,
    /// Our number among its tenants.
    number: u8,
}

/// Ancestors with connections that live on. Those of a further one count as the crowd's.
const HOMES_MOST: usize = 7;

/// What holds until a broker says otherwise.
static DEFAULTS: KnobPage = KnobPage {
    active: AtomicU32::new(1),
    dmb_copy: AtomicU32::new(0),
    rmem_class: AtomicU32::new(4),
    nominate_calls: AtomicU32::new(8),
    nominate_bytes: AtomicU32::new(65536),
    spin_us: AtomicU32::new(30),
    grace_ms: AtomicU32::new(100),
    cpus: AtomicU32::new(1),
    wmem: AtomicU32::new(0),
    max_cqs: AtomicU32::new(0),
    lend_bytes: AtomicU32::new(0),
    profile: AtomicU32::new(profile::BALANCED),
};

/// How many CPUs this process may spin on.
pub(crate) fn count_cpus() {
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        CPUS.store(set.count().max(1), Ordering::Relaxed);
    }
}

/// What the environment asks for: as in [`life::Options`](crate::life::Options).
pub(crate) fn follow_options(eager: bool, profile: Option<u32>) {
    EAGER.store(eager, Ordering::Relaxed);
    OWN_PROFILE.store(profile.unwrap_or(BROKERS), Ordering::Relaxed);
}

/// From here on connections are watched, if there is a table for them.
pub(crate) fn enable(has_table: bool) {
    ENABLED.store(has_table, Ordering::Release);
}

/// Whether connections are watched at all.
#[inline]
pub fn enabled() -> bool {
    ENABLED.load(Ordering::Acquire)
}

/// Whether the program has confined itself: no call of ours that it does not make itself, from here on.
pub fn confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}

/// No call of ours that the program does not make itself, from here on. Says whether it was so before.
pub(crate) fn set_confined() -> bool {
    CONFINED.swap(true, Ordering::Relaxed)
}

/// Whether first data calls wait for their lane.
pub fn eager() -> bool {
    EAGER.load(Ordering::Relaxed)
}

/// Whether a spin can pay: the peer needs another CPU.
pub fn may_spin() -> bool {
    knobs().cpus.load(Ordering::Relaxed).max(CPUS.load(Ordering::Relaxed)) > 1
}

/// Of a program that has none of its own.
const BROKERS: u32 = u32::MAX;
static OWN_PROFILE: AtomicU32 = AtomicU32::new(BROKERS);

/// The profile of this name.
pub fn profile_named(name: &[u8]) -> Option<u32> {
    profile::NAMES.iter().position(|known| known.as_bytes() == name).map(|value| value as u32)
}

/// Which waits of this process spin; `None`: none does.
pub fn profile() -> Option<Profile> {
    let profile = match OWN_PROFILE.load(Ordering::Relaxed) {
        BROKERS => knobs().profile.load(Ordering::Relaxed),
        own => own,
    };
    match profile {
        profile::LATENCY => Some(Profile::Latency),
        profile::EFFICIENCY => None,
        _ => Some(Profile::Balanced),
    }
}

/// The broker's knobs, or the defaults.
#[inline]
pub fn knobs() -> &'static KnobPage {
    // SAFETY: null, or a verified mapping of a knob page that is never unmapped.
    unsafe { KNOBS.load(Ordering::Acquire).as_ref() }.unwrap_or(&DEFAULTS)
}

/// Follows the knobs of a broker.
pub(crate) fn follow(knobs: *mut KnobPage) {
    KNOBS.store(knobs, Ordering::Release);
}

/// Takes a block for a new connection; `None` when there is no memory or no block left.
pub fn allocate() -> Option<&'static Block> {
    // Acquire pairs with the Release in `prepare`.
    // SAFETY: null, or a block, whose arena is never unmapped.
    let prepared = unsafe { NEXT.swap(core::ptr::null_mut(), Ordering::Acquire).as_ref() };
    let block = prepared.or_else(prepared_block)?;
    block.take();
    Some(block)
}

/// Makes the next `allocate` quick.
pub fn prepare() {
    if !NEXT.load(Ordering::Relaxed).is_null() {
        return;
    }
    let Some(block) = prepared_block() else { return };
    let at = core::ptr::from_ref(block).cast_mut();
    // Release pairs with the Acquire in `allocate`.
    if NEXT.compare_exchange(core::ptr::null_mut(), at, Ordering::Release, Ordering::Relaxed).is_err() {
        block.free();
    }
}

fn prepared_block() -> Option<&'static Block> {
    let block = with_arena(|arena| {
        arena.prepare().or_else(|| {
            tenants::evict_all_dead(arena, 0);
            arena.prepare()
        })
    })??;
    block.pid.store(pid(), Ordering::Relaxed);
    Some(block)
}

/// Does something with the arena, which is made if need be; `None` when there is no memory for it.
pub fn with_arena<T>(f: impl FnOnce(&Arena) -> T) -> Option<T> {
    let mut arena = ARENA.lock();
    if arena.is_none() {
        // Too few for a session with one peer: nothing is taken at all.
        if !descriptors::are_left(2 + u32::from(cqs()) + FEW_CQS) {
            return None;
        }
        let made = Arena::create_within(pid(), limits::arena_size()).ok()?.with_fd(descriptors::internal)?;
        tenants::move_in(&made, 0);
        HEADER.store(core::ptr::from_ref(made.header()).cast_mut(), Ordering::Release);
        *arena = Some(made);
    }
    arena.as_ref().map(f)
}

/// Number of a block of this process's own arena.
#[inline]
pub fn index(block: &Block) -> Option<u32> {
    header()?.index(block)
}

/// The block number `index` of this process's own arena.
pub fn block(index: u32) -> Option<&'static Block> {
    ARENA.lock().as_ref().map(|arena| arena.block(index))
}

/// Calls `f` with the arena that a block is in, and this process's number among its tenants. `None` for a block of an
/// ancestor's arena that was let go.
pub fn with_home<T>(block: &Block, f: impl FnOnce(&Arena, u8) -> T) -> Option<T> {
    if let Some(arena) = ARENA.lock().as_ref().filter(|arena| arena.index(block).is_some()) {
        return Some(f(arena, 0));
    }
    let homes = HOMES.lock();
    let home = homes.iter().flatten().find(|home| home.arena.index(block).is_some())?;
    Some(f(&home.arena, home.number))
}

/// Takes those who are gone off the holders of all connections that we know of.
pub(crate) fn evict_dead() {
    let own = ARENA.lock();
    let homes = HOMES.lock();
    own.iter().for_each(|arena| tenants::evict_all_dead(arena, 0));
    homes.iter().flatten().for_each(|home| tenants::evict_all_dead(&home.arena, home.number));
}

/// Calls `f` with the arena's memfd.
pub fn with_arena_fd<T>(f: impl FnOnce(rustix::fd::BorrowedFd<'_>) -> T) -> Option<T> {
    with_arena(|arena| f(arena.fd().as_fd()))
}

/// The process's counters, once it has a connection.
#[inline]
pub fn header() -> Option<&'static Header> {
    // SAFETY: null, or the header of an arena; arenas are never unmapped.
    unsafe { HEADER.load(Ordering::Acquire).as_ref() }
}

/// Where the calling thread counts how it waits.
pub fn waits() -> Option<&'static Waits> {
    header()?.waits.get(epochs::own_place() % WAITS)
}

/// Counts a sleep.
pub fn count_sleep() {
    if let Some(waits) = waits() {
        waits.sleeps.fetch_add(1, Ordering::Relaxed);
    }
    count_spins(tls::thread());
}

/// Adds a thread's own count of waits that a spin ended to the process's.
pub fn count_spins(thread: &tls::Thread) {
    let spins = thread.spins.swap(0, Ordering::Relaxed);
    if let Some(waits) = waits().filter(|_| spins > 0) {
        waits.spins.fetch_add(u64::from(spins), Ordering::Relaxed);
    }
}

/// Doorbell of queue `cq`, made when first asked for.
pub fn doorbell(cq: u8) -> Option<i32> {
    let slot = DOORBELLS.get(usize::from(cq))?;
    let bell = slot.load(Ordering::Acquire);
    if bell >= 0 {
        return Some(bell);
    }
    let made = descriptors::internal(doorbell::new().ok()?).ok()?.into_raw_fd();
    match slot.compare_exchange(-1, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(made),
        Err(other) => {
            descriptors::close_number(made);
            Some(other)
        }
    }
}

/// Completion queues of this process, each with a doorbell that its peers have.
pub fn cqs() -> u8 {
    CPUS.load(Ordering::Relaxed).clamp(FEW_CQS, CQS as u32) as u8
}

/// The least-used queue, and how many pollers it has, among those that the setting allows.
fn least_used() -> (u8, u32) {
    let allowed = match knobs().max_cqs.load(Ordering::Relaxed) {
        0 => cqs(),
        most => cqs().min(u8::try_from(most).unwrap_or(u8::MAX)),
    };
    let pollers = |cq: u8| POLLERS[usize::from(cq)].load(Ordering::Relaxed);
    (0..allowed).map(|cq| (cq, pollers(cq))).min_by_key(|&(_, pollers)| pollers).unwrap_or((0, 0))
}

/// An epoll set or a thread takes the least-used queue.
pub fn take_cq() -> u8 {
    let (cq, _) = least_used();
    POLLERS[usize::from(cq)].fetch_add(1, Ordering::Relaxed);
    cq
}

/// It gives its queue back.
pub fn leave_cq(cq: u8) {
    if let Some(pollers) = POLLERS.get(usize::from(cq)) {
        // None left where the count is that of another process, before a fork.
        let _ = pollers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// Another queue that it should be on, which it takes by this: pollers have come or gone, or the setting allows its own no
/// more. It gives the old one back when it has left it.
pub fn better_cq(cq: u8) -> Option<u8> {
    let (least, pollers) = least_used();
    let here = POLLERS[usize::from(cq) % CQS].load(Ordering::Relaxed);
    let is_forbidden = knobs().max_cqs.load(Ordering::Relaxed).wrapping_sub(1) < u32::from(cq);
    if here <= pollers + 1 && !is_forbidden || least == cq {
        return None;
    }
    POLLERS[usize::from(least)].fetch_add(1, Ordering::Relaxed);
    Some(least)
}

/// Before fork(): nobody else is in the midst of a change of the arenas.
pub(crate) fn hold_across_fork() {
    ARENA.hold();
    HOMES.hold();
}

/// After fork(), on both sides.
pub(crate) fn let_go_after_fork() {
    HOMES.let_go();
    ARENA.let_go();
}

/// Counts a child that is about to be forked among the holders of every connection.
pub(crate) fn share_with_child() {
    let own = ARENA.lock();
    let homes = HOMES.lock();
    let arenas = || {
        own.iter().map(|arena| (arena, 0, 0)).chain(
            homes
                .iter()
                .enumerate()
                .filter_map(|(at, home)| home.as_ref().map(|home| (&home.arena, home.number, at + 1))),
        )
    };
    let mut reserved = [0u8; HOMES_MOST + 1];
    for (_, entry) in table::all() {
        let Entry::Conn(conn) = entry else { continue };
        let number = match arenas().find(|(arena, ..)| arena.index(conn.block).is_some()) {
            Some((arena, number, at)) => {
                if reserved[at] == 0 {
                    reserved[at] = tenants::reserve(arena, number) + 1;
                }
                reserved[at] - 1
            }
            None => tenants::CROWD,
        };
        conn.block.holders.fetch_or(1 << number, Ordering::AcqRel);
    }
    tls::thread().reserved.store(u64::from_le_bytes(reserved), Ordering::Relaxed);
}

/// After fork() in the parent: the child's id, or `None` where there is no child. Where nobody says (libc forks for itself), the
/// connections count as shared with it until it has moved in.
pub fn after_fork(child: Option<u32>) {
    let reserved = tls::thread().reserved.swap(0, Ordering::Relaxed).to_le_bytes();
    let own = ARENA.lock();
    let homes = HOMES.lock();
    let arenas = core::iter::once(own.as_ref()).chain(homes.iter().map(|home| Some(&home.as_ref()?.arena)));
    for (arena, number) in arenas.zip(reserved) {
        if let (Some(arena), Some(number)) = (arena, number.checked_sub(1)) {
            tenants::expect(arena, number, child);
        }
    }
}

/// In a forked child: nothing of this is the parent's any more.
pub(crate) fn after_fork_in_child() {
    NEXT.store(core::ptr::null_mut(), Ordering::Relaxed);
    POLLERS.iter().for_each(|pollers| pollers.store(0, Ordering::Relaxed));
    move_homes();
}

/// The parent's arenas stay mapped: inherited connections live in them. New ones get our own.
fn move_homes() {
    HEADER.store(core::ptr::null_mut(), Ordering::Release);
    let reserved = tls::thread().reserved.swap(0, Ordering::Relaxed).to_le_bytes();
    let parents = ARENA.lock().take();
    let mut homes = HOMES.lock();
    let inherited = core::mem::replace(&mut *homes, [const { None }; HOMES_MOST]);
    let arenas =
        core::iter::once(parents).chain(inherited.into_iter().map(|home| home.map(|home| home.arena)));
    for (arena, number) in arenas.zip(reserved) {
        let Some(arena) = arena else { continue };
        match homes.iter_mut().find(|home| home.is_none()) {
            Some(home) if number > 0 => {
                tenants::move_in(&arena, number - 1);
                *home = Some(Home { arena, number: number - 1 });
            }
            _ => {
                descriptors::forget(arena.fd().as_raw_fd());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pollers_are_spread_and_go_over_when_others_have_gone() {
        let all = cqs();
        assert!((FEW_CQS..=CQS as u32).contains(&all.into()));
        let taken: Vec<u8> = (0..2 * all).map(|_| take_cq()).collect();
        for cq in 0..all {
            assert_eq!(taken.iter().filter(|&&other| other == cq).count(), 2, "{taken:?}");
            assert_eq!(better_cq(cq), None);
        }
        leave_cq(1);
        assert_eq!(better_cq(0), None, "one fewer is no reason to go");
        leave_cq(1);
        assert_eq!(better_cq(0), Some(1));
        assert_eq!(better_cq(2), None, "the first has gone over");
        leave_cq(0);
        for _ in 0..9 {
            leave_cq(3);
        }
        assert_eq!(take_cq(), 3, "none left is none, however often they leave");
    }
}
