//! A lock in memory shared by a process tree that survives the death of its holder.
//!
//! Its memory is libc's robust process-shared mutex: a word with the holder's thread number, and an entry for the list of
//! held locks that each thread shows to the kernel, which hands on what a dying thread holds
//! (Documentation/locking/robust-futexes.rst). The list is there for threads that hold many. The kernel looks at one entry
//! besides, that of the lock which is being taken or released (`list_op_pending`), and it does not mind how long that takes. So
//! who holds one lock only names it there: two stores and two atomic instructions, where glibc's calls are 127 instructions.
//! A second lock puts the first one on the list. models/lock.pml has it with a holder that is killed anywhere.
//!
//! Where a thread's list begins is seen in a mutex of its own that it takes by glibc's call before its first lock; where that looks
//! unlike what is known of glibc, or somebody else's list, all its locks are taken so.
//!
//! Before glibc 2.34 those calls are in a library that a program without threads does not load. The kernel is asked for the list then,
//! and given one of our own where there is none.
//!
//! musl shows the kernel a thread's list when it takes its first such mutex. We have it take one, and ask the kernel for the list then. It leads
//! from an entry to a word 28 bytes before it, glibc's 32 bytes: so the word has another place in a process with musl. A lock is shared only by
//! processes that fork made of one another, which have the same libc.
//!
//! A lock is held for a memory copy or a non-blocking system call, never while waiting. Signal handlers do not enter while one is
//! held: whoever takes it shows the [`Section`] that keeps them away, and the guard keeps that.

mod list;
mod mutex;

use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};

use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};

use list::{Head, Thread, number, thread};
pub use mutex::{Calls, Libc, NO_LIBC, start};
use mutex::{IN_GLIBC, place};

/// See the module.
#[repr(C)]
pub struct RobustLock {
    mutex: UnsafeCell<Mutex>,
    /// A holder has died inside, and nobody has repaired since what it left: 1. Under the lock.
    inherited: AtomicU32,
}

/// What is known of pthread_mutex_t: glibc's (sysdeps/nptl/bits/struct_mutex.h), which processes with different versions share, and
/// musl's (src/internal/pthread_impl.h).
#[repr(C)]
union Mutex {
    whole: libc::pthread_mutex_t,
    parts: core::mem::ManuallyDrop<Parts>,
}

#[repr(C)]
struct Parts {
    /// Two of them are ours, [`mutex::IN_GLIBC`] or [`mutex::IN_MUSL`], and KIND: 0, or the holder's thread number, with WAITERS where somebody sleeps;
    /// DIED once the kernel has taken it from a dead one.
    words: [AtomicU32; 6],
    entry: Entry,
}

/// An entry of a thread's list; its neighbours, and the kernel, name it by the address of `next`.
#[repr(C)]
struct Entry {
    prev: AtomicUsize,
    /// 0 while it is on no list.
    next: AtomicUsize,
}

/// Where its kind stands among glibc's words, and what PTHREAD_MUTEX_ROBUST and PTHREAD_PROCESS_SHARED make of it.
#[cfg(not(miri))]
const KIND: usize = 4;
#[cfg(not(miri))]
const ROBUST_AND_SHARED: u32 = 16 | 128;

const WAITERS: u32 = libc::FUTEX_WAITERS;
const DIED: u32 = libc::FUTEX_OWNER_DIED;
const HOLDER: u32 = libc::FUTEX_TID_MASK;

/// A sleep's longest: the kernel wakes nobody for one who died between release and wake, or woken and not yet awake, where
/// another has taken the lock in between, who does not know that somebody sleeps.
const SLEEP_NS: i64 = 100_000_000;

#[cfg(any(test, miri))]
fn init_by_libc(mutex: *mut libc::pthread_mutex_t) {
    // SAFETY: plain pthread initialisation of memory that we own; attr lives until destroyed.
    unsafe {
        let mut attr = core::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        libc::pthread_mutexattr_init(attr.as_mut_ptr());
        libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(attr.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init(mutex, attr.as_ptr());
        libc::pthread_mutexattr_destroy(attr.as_mut_ptr());
    }
}

/// In a forked child, before its first lock: its only thread has another number.
pub fn after_fork_in_child() {
    thread().head.store(core::ptr::null_mut(), Ordering::Relaxed);
    thread().held.store(0, Ordering::Relaxed);
}

// SAFETY: the mutex is process-shared and made to be used from any thread.
unsafe impl Send for RobustLock {}
// SAFETY: as above.
unsafe impl Sync for RobustLock {}

/// What keeps the program's signal handlers away from the calling thread, as long as it lives: one that came under a lock and touched
/// the same connection would wait for its own thread.
///
/// ```
/// use shunpike_shm::lock::{Guard, RobustLock, Section};
///
/// fn take<S: Section>(lock: &RobustLock, section: S) {
///     let _guard = Guard::lock(lock, section);
/// }
/// ```
///
/// There is no guard without one:
///
/// ```compile_fail,E0277
/// use shunpike_shm::lock::{Guard, RobustLock};
///
/// fn take(lock: &RobustLock) {
///     let _guard = Guard::lock(lock, ());
/// }
/// ```
///
/// # Safety
/// While a value lives, no handler that could take a [`RobustLock`] runs on the thread that made it; nor does it go to another thread.
pub unsafe trait Section {}

// SAFETY: what is borrowed lives at least as long.
unsafe impl<S: Section> Section for &S {}

/// What has a lock.
///
/// # Safety
/// It is the same lock each time.
pub unsafe trait Locked {
    /// That lock.
    fn its_lock(&self) -> &RobustLock;
}

// SAFETY: itself.
unsafe impl Locked for RobustLock {
    #[inline(always)]
    fn its_lock(&self) -> &RobustLock {
        self
    }
}

/// Unlocks on drop, and ends its section only then, if it owns it.
pub struct Guard<'a, S: Section, T: Locked = RobustLock> {
    of: &'a T,
    by: By,
    _section: S,
}

/// How a lock was taken.
#[derive(Copy, Clone)]
enum By {
    Glibc,
    /// By nothing but its word: should the holder die, nobody is told.
    Word,
    /// With what `pending` was before.
    Pending(usize),
}

impl RobustLock {
    /// Makes the mutex at this address. Not while anybody uses it.
    pub fn init(&self) {
        self.init_mutex();
        self.inherited.store(0, Ordering::Relaxed);
    }

    /// As pthread_mutex_init does for a robust mutex that processes share; a test compares them.
    #[cfg(not(miri))]
    fn init_mutex(&self) {
        // SAFETY: memory that we own; all-zero bytes are valid.
        let mutex = unsafe {
            self.mutex.get().write_bytes(0, 1);
            &mut (*self.mutex.get()).parts
        };
        if place() == IN_GLIBC {
            *mutex.words[KIND].get_mut() = ROBUST_AND_SHARED;
        }
    }

    #[cfg(miri)]
    fn init_mutex(&self) {
        init_by_libc(self.mutex.get().cast());
    }

    /// Waits for the lock. A dead holder's lock is taken over and marked consistent.
    #[inline(always)]
    pub fn lock<S: Section>(&self, section: S) -> Guard<'_, S> {
        Guard::lock(self, section)
    }

    /// Takes the lock if nobody holds it.
    pub fn try_lock<S: Section>(&self, section: S) -> Option<Guard<'_, S>> {
        Guard::try_lock(self, section)
    }

    fn try_take(&self) -> Option<By> {
        let thread = thread();
        let Some(head) = thread.head() else { return self.try_unlisted() };
        let before = self.announce(thread, head);
        let number = thread.number.load(Ordering::Relaxed);
        if self.take_if_free(number) {
            return Some(By::Pending(before));
        }
        head.conclude(thread, before);
        None
    }

    fn take_if_free(&self, number: u32) -> bool {
        let mut seen = self.word().load(Ordering::Relaxed);
        while seen & HOLDER == 0 {
            match self.take(seen, number, 0) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Names this lock to the kernel as the one that its thread takes: what the name was before.
    #[inline(always)]
    fn announce(&self, thread: &Thread, head: &Head) -> usize {
        let mut before = head.pending.load(Ordering::Relaxed);
        if before != 0 && before == thread.held.load(Ordering::Relaxed) {
            head.link(before);
            before = 0;
        }
        head.pending.store(self.name(), Ordering::Relaxed);
        thread.held.store(self.name(), Ordering::Relaxed);
        // The kernel looks when this thread is dead: it sees all that it did, in the order of its instructions.
        compiler_fence(Ordering::SeqCst);
        before
    }

    /// Waits for a lock that is not free.
    #[cold]
    fn contend(&self, number: u32) {
        let (mut seen, mut mark) = (self.word().load(Ordering::Relaxed), 0);
        loop {
            if seen & HOLDER == 0 {
                match self.take(seen, number, mark) {
                    Ok(()) => return,
                    Err(now) => seen = now,
                }
                continue;
            }
            if seen & WAITERS == 0
                && let Err(now) =
                    self.word().compare_exchange(seen, seen | WAITERS, Ordering::Relaxed, Ordering::Relaxed)
            {
                seen = now;
                continue;
            }
            // Whatever ends it, the word is looked at again.
            let most = futex::Timespec { tv_sec: 0, tv_nsec: SLEEP_NS };
            let _ = futex::wait(self.word(), futex::Flags::empty(), seen | WAITERS, Some(&most));
            // Others may sleep still: who is woken does not know.
            mark = WAITERS;
            seen = self.word().load(Ordering::Relaxed);
        }
    }

    /// Takes a lock that is free, or was a dead one's. Errors: what is there now.
    fn take(&self, seen: u32, number: u32, mark: u32) -> Result<(), u32> {
        let own = number | seen & WAITERS | mark;
        // Acquire as in `lock`.
        self.word().compare_exchange(seen, own, Ordering::Acquire, Ordering::Relaxed)?;
        if seen & DIED != 0 {
            self.inherited.store(1, Ordering::Relaxed);
            // It may have been on the dead one's list.
            self.entry().next.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// In a thread whose list is not known.
    fn wait_unlisted(&self) -> By {
        let Some(calls) = mutex::calls() else {
            self.contend(number());
            return By::Word;
        };
        loop {
            let now = clock_gettime(ClockId::Realtime);
            let nanoseconds = now.tv_nsec + SLEEP_NS;
            let until = libc::timespec {
                tv_sec: now.tv_sec + nanoseconds / 1_000_000_000,
                tv_nsec: nanoseconds % 1_000_000_000,
            };
            // SAFETY: initialised by `init` before the block was handed out.
            let rc = unsafe { (calls.timedlock)(self.mutex.get().cast(), &until) };
            if rc != libc::ETIMEDOUT {
                return self.taken_by_glibc(&calls, rc);
            }
        }
    }

    #[cold]
    fn try_unlisted(&self) -> Option<By> {
        let Some(calls) = mutex::calls() else {
            return self.take_if_free(number()).then_some(By::Word);
        };
        // SAFETY: as in `wait_unlisted`.
        let rc = unsafe { (calls.trylock)(self.mutex.get().cast()) };
        (rc == 0 || rc == libc::EOWNERDEAD).then(|| self.taken_by_glibc(&calls, rc))
    }

    fn taken_by_glibc(&self, calls: &Calls, rc: i32) -> By {
        if rc == libc::EOWNERDEAD {
            self.inherited.store(1, Ordering::Relaxed);
            // SAFETY: we hold it, as EOWNERDEAD says.
            unsafe { (calls.consistent)(self.mutex.get().cast()) };
        }
        By::Glibc
    }

    #[inline(always)]
    fn open(&self) {
        // Release pairs with the Acquire in `lock` and `take`.
        if self.word().swap(0, Ordering::Release) & WAITERS != 0 {
            wake(self.word());
        }
    }

    #[inline]
    fn parts(&self) -> &Parts {
        // SAFETY: any bytes are valid Parts, which only atomics read; the rest is libc's.
        unsafe { &(*self.mutex.get()).parts }
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        &self.parts().words[place()]
    }

    #[inline]
    fn entry(&self) -> &Entry {
        &self.parts().entry
    }

    #[inline]
    fn name(&self) -> usize {
        core::ptr::from_ref(&self.entry().next).expose_provenance()
    }
}

impl<'a, S: Section, T: Locked> Guard<'a, S, T> {
    /// Takes the lock of `of`; see [`RobustLock::lock`].
    #[inline(always)]
    pub fn lock(of: &'a T, section: S) -> Self {
        let (lock, thread) = (of.its_lock(), thread());
        let Some(head) = thread.head() else { return Self::lock_unlisted(of, section) };
        let before = lock.announce(thread, head);
        let number = thread.number.load(Ordering::Relaxed);
        // Acquire pairs with the Release in `drop`, and with the kernel's own exchange for a dead holder.
        let free = lock.word().compare_exchange(0, number, Ordering::Acquire, Ordering::Relaxed);
        if free.is_err() {
            lock.contend(number);
        }
        Self { of, by: By::Pending(before), _section: section }
    }

    /// In a thread whose list is not known.
    #[cold]
    fn lock_unlisted(of: &'a T, section: S) -> Self {
        Self { of, by: of.its_lock().wait_unlisted(), _section: section }
    }

    /// Takes the lock of `of` if nobody holds it.
    pub fn try_lock(of: &'a T, section: S) -> Option<Self> {
        of.its_lock().try_take().map(|by| Self { of, by, _section: section })
    }

    /// What the lock is of.
    #[inline(always)]
    pub(crate) fn of(&self) -> &'a T {
        self.of
    }

    /// Whether a holder died inside since anybody said that all is [`repaired`](Self::repaired): what the lock protects must be derived
    /// anew from the shared words.
    #[inline(always)]
    pub fn inherited(&self) -> bool {
        self.of.its_lock().inherited.load(Ordering::Relaxed) != 0
    }

    /// It was.
    pub fn repaired(&self) {
        self.of.its_lock().inherited.store(0, Ordering::Relaxed);
    }
}

impl<S: Section, T: Locked> Drop for Guard<'_, S, T> {
    #[inline]
    fn drop(&mut self) {
        self.let_go();
    }
}

impl<S: Section, T: Locked> Guard<'_, S, T> {
    /// As its drop, inlined: for the paths of nearly all calls.
    #[inline(always)]
    pub fn release(self) {
        let guard = ManuallyDrop::new(self);
        guard.let_go();
        // SAFETY: nobody uses it any more.
        drop(unsafe { core::ptr::read(&raw const guard._section) });
    }

    #[inline(always)]
    fn let_go(&self) {
        let By::Pending(before) = self.by else { return self.drop_unlisted() };
        let thread = thread();
        // A child that was forked meanwhile has forgotten: it let go of nothing.
        let Some(head) = thread.known() else { return };
        let lock = self.of.its_lock();
        if lock.entry().next.load(Ordering::Relaxed) != 0 {
            head.unlink(thread, lock);
        }
        lock.open();
        head.conclude(thread, before);
    }
}

impl<S: Section, T: Locked> Guard<'_, S, T> {
    #[cold]
    fn drop_unlisted(&self) {
        let lock = self.of.its_lock();
        match (self.by, mutex::calls()) {
            // SAFETY: a Guard exists only while its thread holds the mutex.
            (By::Glibc, Some(calls)) => drop(unsafe { (calls.unlock)(lock.mutex.get().cast()) }),
            _ => lock.open(),
        }
    }
}

#[cold]
fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use shunpike_arch as arch;

    /// These tests have no handlers.
    struct NoHandlers;

    // SAFETY: there are none.
    unsafe impl Section for NoHandlers {}

    #[test]
    fn it_begins_as_glibc_begins_it() {
        // SAFETY: all-zero bytes are valid, and any may be read.
        let bytes = |init: &dyn Fn(&RobustLock)| unsafe {
            let lock: RobustLock = core::mem::zeroed();
            init(&lock);
            *lock.mutex.get().cast::<[u8; size_of::<libc::pthread_mutex_t>()]>()
        };
        assert_eq!(bytes(&RobustLock::init), bytes(&|lock| init_by_libc(lock.mutex.get().cast())));
    }

    /// Nobody's, for good.
    fn two_locks() -> [&'static RobustLock; 2] {
        [(); 2].map(|()| {
            // SAFETY: all-zero bytes are an open mutex.
            let lock: &'static RobustLock = Box::leak(Box::new(unsafe { core::mem::zeroed() }));
            lock.init();
            lock
        })
    }

    #[test]
    fn where_libc_has_no_such_calls_the_kernel_names_the_list() {
        let [one, two] = two_locks();
        std::thread::scope(|scope| {
            let ending = scope.spawn(move || {
                let thread = thread();
                let own = core::ptr::from_ref(&thread.own.head).addr();
                assert_ne!(thread.head_by_kernel().expect("glibc has registered one"), own);
                let size = size_of::<Head>();
                // SAFETY: as in a process whose libc has registered none.
                let taken = unsafe { arch::syscall(libc::SYS_set_robust_list, 0, size, 0, 0, 0, 0) };
                assert_eq!(taken, 0);
                assert_eq!(thread.head_by_kernel(), Some(own));
                thread.learn(Some(own), number());
                let (first, second) = (one.lock(NoHandlers), two.lock(NoHandlers));
                assert_eq!(thread.own.head.first.load(Ordering::Relaxed), one.name());
                drop(first);
                drop(second);
                assert_eq!(thread.own.head.first.load(Ordering::Relaxed), own);
                // It ends under both.
                core::mem::forget(one.lock(NoHandlers));
                core::mem::forget(two.lock(NoHandlers));
            });
            // The scope's own end comes before the thread's, at which the kernel looks at its list.
            ending.join().expect("it ends");
        });
        for lock in [one, two] {
            assert!(lock.try_lock(NoHandlers).expect("the kernel has taken it away").inherited());
        }
    }

    #[test]
    fn after_its_first_lock_a_thread_knows_its_list() {
        let [one, two] = two_locks();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(thread().known().is_none());
                drop(one.lock(NoHandlers));
                let head = thread().known().expect("as glibc's has been for many years");
                let first = one.lock(NoHandlers);
                assert_eq!(head.pending.load(Ordering::Relaxed), one.name());
                let second = two.lock(NoHandlers);
                assert_eq!(head.pending.load(Ordering::Relaxed), two.name());
                assert_eq!(head.first.load(Ordering::Relaxed), one.name());
                drop(first);
                assert_eq!(head.first.load(Ordering::Relaxed), two.name());
                drop(second);
                assert_eq!(head.pending.load(Ordering::Relaxed), 0);
                assert_eq!(head.first.load(Ordering::Relaxed), core::ptr::from_ref(head) as usize);
            });
        });
    }
}
