//! Every thread's epoch: whether it may be looking at shared memory without a lock, and since when (shm's `grace`).
//!
//! The words are not in the threads' own storage, which goes with them: a thread takes a place here at its first
//! critical section, and leaves it to the next one by dying.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use shunpike_shm::grace::Reader;

use crate::{sys, tls};

/// Threads at a time whose sections can be told; while there are more, nothing is unmapped.
pub const MOST: usize = 1 << 14;
/// Places searched for a free one before dead threads' are looked for; doubled where that is not enough.
const FEW: usize = 64;

struct Place {
    /// Whose it is; 0 nobody's.
    tid: AtomicU32,
    reader: Reader,
}

static PLACES: [Place; MOST] = [const { Place { tid: AtomicU32::new(0), reader: Reader::new() } }; MOST];
static SEARCHED: AtomicUsize = AtomicUsize::new(FEW);
/// For threads without a place.
static NOWHERE: Reader = Reader::new();
static CROWDED: AtomicBool = AtomicBool::new(false);
/// The kernel has no membarrier(2) for us: readers fence for themselves.
static UNAIDED: AtomicBool = AtomicBool::new(false);

/// Once, at start-up.
pub fn start() {
    UNAIDED.store(sys::membarrier_register().is_err(), Ordering::Relaxed);
}

/// What a reader does behind `Reader::enter` where nobody else can do it for it.
#[inline(always)]
pub fn fence_unaided() {
    if UNAIDED.load(Ordering::Relaxed) {
        fence(Ordering::SeqCst);
    }
}

/// A word for the calling thread. May be entered by a signal handler in the midst of itself.
#[cold]
pub fn take_place() -> &'static Reader {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    loop {
        let searched = SEARCHED.load(Ordering::Relaxed);
        let places = PLACES.get(..searched).unwrap_or(&PLACES);
        // One that a dead thread of our number has left, first: it would seem alive with us.
        let own = places.iter().find(|place| place.tid.load(Ordering::Relaxed) == tid);
        // AcqRel: one order with `fence_all`, whose caller either finds us here or has taken away what we will
        // look for.
        let free =
            |place: &&Place| place.tid.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if let Some(place) = own.or_else(|| places.iter().find(free)) {
            place.reader.pass_on();
            fence(Ordering::SeqCst);
            return &place.reader;
        }
        let dead = places.iter().filter(|place| {
            let tid = place.tid.load(Ordering::Relaxed);
            !sys::has_thread(tid)
                && place.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let freed = dead.count();
        if freed < searched / 4 && searched < MOST {
            SEARCHED.fetch_max(searched * 2, Ordering::Relaxed);
        } else if freed == 0 {
            CROWDED.store(true, Ordering::SeqCst);
            return &NOWHERE;
        }
    }
}

/// All words that can be in use.
pub fn all() -> impl Iterator<Item = &'static Reader> {
    PLACES.iter().take(SEARCHED.load(Ordering::Acquire)).map(|place| &place.reader)
}

/// Whether the thread of the word at `place` of [`all`] is dead.
pub fn is_dead(place: usize) -> bool {
    PLACES.get(place).is_none_or(|place| !sys::has_thread(place.tid.load(Ordering::Acquire)))
}

/// Whether the word at `place` is the calling thread's.
pub fn is_own(place: usize) -> bool {
    let own = tls::thread().reader.load(Ordering::Relaxed);
    PLACES.get(place).is_some_and(|place| core::ptr::eq(&place.reader, own))
}

/// Number of the calling thread's place; 0 where it has none.
pub fn own_place() -> usize {
    let own = tls::thread().reader.load(Ordering::Relaxed) as usize;
    let from_first = own.wrapping_sub(PLACES.as_ptr() as usize) / size_of::<Place>();
    if from_first < MOST { from_first } else { 0 }
}

/// Has every thread pass a full fence. False when there is one that cannot be made to, or told of: nothing may
/// be unmapped now.
pub fn fence_all() -> bool {
    fence(Ordering::SeqCst);
    let others = || {
        let places = PLACES.iter().take(SEARCHED.load(Ordering::Acquire)).enumerate();
        places.filter(|(_, place)| place.tid.load(Ordering::Acquire) != 0).any(|(at, _)| !is_own(at))
    };
    if CROWDED.load(Ordering::SeqCst) {
        return false;
    }
    UNAIDED.load(Ordering::Relaxed)
        || !others()
        || sys::membarrier().is_ok()
        // A forked child's address space may have to be registered anew.
        || sys::membarrier_register().and_then(|_| sys::membarrier()).is_ok()
}

/// In a forked child: only this thread exists.
pub fn after_fork_in_child() {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    for (at, place) in PLACES.iter().take(SEARCHED.load(Ordering::Relaxed)).enumerate() {
        if is_own(at) {
            place.tid.store(tid, Ordering::Relaxed);
        } else if place.tid.load(Ordering::Relaxed) != 0 {
            place.reader.pass_on();
            place.tid.store(0, Ordering::Relaxed);
        }
    }
    // Some kernels' forks may not inherit it; with threads it would have to be waited for.
    start();
    CROWDED.store(core::ptr::eq(&NOWHERE, tls::thread().reader.load(Ordering::Relaxed)), Ordering::SeqCst);
}
