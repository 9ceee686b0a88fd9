//! A lock in memory shared by a process tree that survives the death of its holder.
//!
//! Its memory is glibc's robust process-shared mutex: a word with the holder's thread number, and an entry for the list of
//! held locks that each thread shows to the kernel, which hands on what a dying thread holds
//! (Documentation/locking/robust-futexes.rst). The list is there for threads that hold many. The kernel looks at one entry
//! besides, that of the lock which is being taken or released (`list_op_pending`), and it does not mind how long that takes. So
//! who holds one lock only names it there: two stores and two atomic instructions, where glibc's calls are 127 instructions.
//! A second lock puts the first one on the list. models/lock.pml has it with a holder that is killed anywhere.
//!
//! Where a thread's list begins is seen in a mutex of its own that it takes by glibc's call before its first lock; where that looks
//! unlike what is known of glibc, or somebody else's list, all its locks are taken so.
//!
//! A lock is held for a memory copy or a non-blocking system call, never while waiting. Signal handlers do not enter while one is
//! held: whoever takes it shows the [`Section`] that keeps them away, and the guard keeps that.

use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence};

use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};

/// See the module.
#[repr(C)]
pub struct RobustLock {
    mutex: UnsafeCell<Mutex>,
    /// A holder has died inside, and nobody has repaired since what it left: 1. Under the lock.
    inherited: AtomicU32,
}

/// What is known of glibc's pthread_mutex_t (sysdeps/nptl/bits/struct_mutex.h), which processes with different versions share.
#[repr(C)]
union Mutex {
    whole: libc::pthread_mutex_t,
    parts: core::mem::ManuallyDrop<Parts>,
}

#[repr(C)]
struct Parts {
    /// 0, or the holder's thread number, with WAITERS where somebody sleeps; DIED once the kernel has taken it from a dead one.
    word: AtomicU32,
    of_glibc: [u32; 5],
    entry: Entry,
}

/// An entry of a thread's list; its neighbours, and the kernel, name it by the address of `next`.
#[repr(C)]
struct Entry {
    prev: AtomicUsize,
    /// 0 while it is on no list.
    next: AtomicUsize,
}

const WAITERS: u32 = libc::FUTEX_WAITERS;
const DIED: u32 = libc::FUTEX_OWNER_DIED;
const HOLDER: u32 = libc::FUTEX_TID_MASK;

/// A sleep's longest: the kernel wakes nobody for one who died between release and wake, or woken and not yet awake, where
/// another has taken the lock in between, who does not know that somebody sleeps.
const SLEEP_NS: i64 = 100_000_000;

/// From an entry's name to its lock's word.
const TO_WORD: isize =
    offset_of!(Parts, word) as isize - (offset_of!(Parts, entry) + offset_of!(Entry, next)) as isize;

/// struct robust_list_head (include/uapi/linux/futex.h), in glibc's description of its thread, which nobody else writes.
#[repr(C)]
struct Head {
    first: AtomicUsize,
    to_word: isize,
    pending: AtomicUsize,
}

/// What a thread knows of itself; all zero in a new one.
#[repr(C)]
struct Thread {
    /// Null: not known yet.
    head: AtomicPtr<Head>,
    /// Name of the entry of the lock that `pending` names for us; 0 none.
    held: AtomicUsize,
    /// As the lock's words have it.
    number: AtomicU32,
    /// Its list is not what we know of: 1.
    strange: AtomicU32,
}

// As core's own (tls.rs): a single load to reach it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
core::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 8",
    ".globl shunpike_holder",
    ".hidden shunpike_holder",
    ".type shunpike_holder, @object",
    "shunpike_holder: .zero 24",
    ".size shunpike_holder, 24",
    ".popsection",
);

#[cfg(not(miri))]
#[inline(always)]
fn thread() -> &'static Thread {
    const _: () = assert!(size_of::<Thread>() == 24);
    let at: *const Thread;
    // SAFETY: the initial-exec sequence of the x86-64 psABI (ELF Handling For Thread-Local Storage, 4.4.6); the storage
    // lives as long as its thread, and the reference does not leave it.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + shunpike_holder@GOTTPOFF]",
            out(reg) at,
            options(pure, readonly, nostack)
        );
        &*at
    }
}

/// miri knows no assembly: all locks are glibc's there.
#[cfg(miri)]
fn thread() -> &'static Thread {
    static STRANGER: Thread = Thread {
        head: AtomicPtr::new(core::ptr::null_mut()),
        held: AtomicUsize::new(0),
        number: AtomicU32::new(0),
        strange: AtomicU32::new(1),
    };
    &STRANGER
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
/// # Safety
/// While a value lives, no handler that could take a [`RobustLock`] runs on the thread that made it; nor does it go to another thread.
pub unsafe trait Section {}

// SAFETY: what is borrowed lives at least as long.
unsafe impl<S: Section> Section for &S {}

/// Unlocks on drop, and ends its section only then, if it owns it.
pub struct Guard<'a, S: Section> {
    lock: &'a RobustLock,
    by: By,
    _section: S,
}

/// How a lock was taken.
#[derive(Copy, Clone)]
enum By {
    Glibc,
    /// With what `pending` was before.
    Pending(usize),
}

impl RobustLock {
    /// Makes the mutex at this address. Not while anybody uses it.
    pub fn init(&self) {
        // SAFETY: plain pthread initialisation of memory that we own; attr lives until destroyed.
        unsafe {
            let mut attr = core::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
            libc::pthread_mutexattr_init(attr.as_mut_ptr());
            libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(attr.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.mutex.get().cast(), attr.as_ptr());
            libc::pthread_mutexattr_destroy(attr.as_mut_ptr());
        }
        self.inherited.store(0, Ordering::Relaxed);
    }

    /// Waits for the lock. A dead holder's lock is taken over and marked consistent.
    #[inline(always)]
    pub fn lock<S: Section>(&self, section: S) -> Guard<'_, S> {
        let thread = thread();
        let Some(head) = thread.head() else { return self.lock_by_glibc(section) };
        let before = self.announce(thread, head);
        let number = thread.number.load(Ordering::Relaxed);
        // Acquire pairs with the Release in `drop`, and with the kernel's own exchange for a dead holder.
        let free = self.word().compare_exchange(0, number, Ordering::Acquire, Ordering::Relaxed);
        if free.is_err() {
            self.contend(number);
        }
        Guard { lock: self, by: By::Pending(before), _section: section }
    }

    /// Takes the lock if nobody holds it.
    pub fn try_lock<S: Section>(&self, section: S) -> Option<Guard<'_, S>> {
        let thread = thread();
        let Some(head) = thread.head() else { return self.try_lock_by_glibc(section) };
        let before = self.announce(thread, head);
        let number = thread.number.load(Ordering::Relaxed);
        let mut seen = self.word().load(Ordering::Relaxed);
        while seen & HOLDER == 0 {
            match self.take(seen, number, 0) {
                Ok(()) => return Some(Guard { lock: self, by: By::Pending(before), _section: section }),
                Err(now) => seen = now,
            }
        }
        head.conclude(thread, before);
        None
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

    #[cold]
    fn lock_by_glibc<S: Section>(&self, section: S) -> Guard<'_, S> {
        loop {
            let now = clock_gettime(ClockId::Realtime);
            let nanoseconds = now.tv_nsec + SLEEP_NS;
            let until = libc::timespec {
                tv_sec: now.tv_sec + nanoseconds / 1_000_000_000,
                tv_nsec: nanoseconds % 1_000_000_000,
            };
            // SAFETY: initialised by `init` before the block was handed out.
            let rc = unsafe { libc::pthread_mutex_timedlock(self.mutex.get().cast(), &until) };
            if rc != libc::ETIMEDOUT {
                return self.guard_of_glibc(rc, section);
            }
        }
    }

    #[cold]
    fn try_lock_by_glibc<S: Section>(&self, section: S) -> Option<Guard<'_, S>> {
        // SAFETY: as in `lock_by_glibc`.
        let rc = unsafe { libc::pthread_mutex_trylock(self.mutex.get().cast()) };
        (rc == 0 || rc == libc::EOWNERDEAD).then(|| self.guard_of_glibc(rc, section))
    }

    fn guard_of_glibc<S: Section>(&self, rc: i32, section: S) -> Guard<'_, S> {
        if rc == libc::EOWNERDEAD {
            self.inherited.store(1, Ordering::Relaxed);
            // SAFETY: we hold it, as EOWNERDEAD says.
            unsafe { libc::pthread_mutex_consistent(self.mutex.get().cast()) };
        }
        Guard { lock: self, by: By::Glibc, _section: section }
    }

    #[inline]
    fn parts(&self) -> &Parts {
        // SAFETY: any bytes are valid Parts, which only atomics read; the rest is glibc's.
        unsafe { &(*self.mutex.get()).parts }
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        &self.parts().word
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

impl<S: Section> Guard<'_, S> {
    /// Whether a holder died inside since anybody said that all is [`repaired`](Self::repaired): what the lock protects must be derived
    /// anew from the shared words.
    #[inline(always)]
    pub fn inherited(&self) -> bool {
        self.lock.inherited.load(Ordering::Relaxed) != 0
    }

    /// It was.
    pub fn repaired(&self) {
        self.lock.inherited.store(0, Ordering::Relaxed);
    }
}

impl<S: Section> Drop for Guard<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        let By::Pending(before) = self.by else {
            // SAFETY: a Guard exists only while its thread holds the mutex.
            unsafe { libc::pthread_mutex_unlock(self.lock.mutex.get().cast()) };
            return;
        };
        let thread = thread();
        // A child that was forked meanwhile has forgotten: it let go of nothing.
        let Some(head) = thread.known() else { return };
        if self.lock.entry().next.load(Ordering::Relaxed) != 0 {
            head.unlink(thread, self.lock);
        }
        // Release pairs with the Acquire in `lock` and `take`.
        if self.lock.word().swap(0, Ordering::Release) & WAITERS != 0 {
            wake(self.lock.word());
        }
        head.conclude(thread, before);
    }
}

#[cold]
fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

impl Thread {
    /// Where its list begins; `None` where that is not to be known.
    #[inline]
    fn head(&self) -> Option<&'static Head> {
        self.known().or_else(|| self.find())
    }

    #[inline]
    fn known(&self) -> Option<&'static Head> {
        // SAFETY: null, or this thread's, which lives as long as it.
        unsafe { self.head.load(Ordering::Relaxed).as_ref() }
    }

    #[cold]
    fn find(&self) -> Option<&'static Head> {
        if self.strange.load(Ordering::Relaxed) == 0 {
            // SAFETY: all-zero bytes are valid; it is initialised before it is used.
            let own: RobustLock = unsafe { core::mem::zeroed() };
            own.init();
            // SAFETY: just initialised, and nobody else's.
            unsafe {
                libc::pthread_mutex_lock(own.mutex.get().cast());
                self.learn(&own);
                libc::pthread_mutex_unlock(own.mutex.get().cast());
                libc::pthread_mutex_destroy(own.mutex.get().cast());
            }
        }
        self.known()
    }

    /// Sees in a lock just taken by glibc's call where the thread's list begins, and what its number is.
    fn learn(&self, lock: &RobustLock) {
        let at = lock.entry().prev.load(Ordering::Relaxed);
        // glibc's description of a thread begins where fs points; it is some 2,300 bytes long.
        let own = at.wrapping_sub(thread_pointer());
        let known = own < 4096 - size_of::<Head>() && at.is_multiple_of(align_of::<Head>()) && {
            // SAFETY: an address within the description of this thread.
            let head = unsafe { &*core::ptr::with_exposed_provenance::<Head>(at) };
            head.first.load(Ordering::Relaxed) == lock.name()
                && head.to_word == TO_WORD
                && head.pending.load(Ordering::Relaxed) == 0
        };
        let number = lock.word().load(Ordering::Relaxed) & HOLDER;
        if known && number != 0 {
            self.number.store(number, Ordering::Relaxed);
            self.head.store(core::ptr::with_exposed_provenance_mut(at), Ordering::Relaxed);
        } else {
            self.strange.store(1, Ordering::Relaxed);
        }
    }
}

#[cfg(not(miri))]
fn thread_pointer() -> usize {
    let at: usize;
    // SAFETY: the x86-64 psABI's: the word at fs points to itself.
    unsafe { core::arch::asm!("mov {0}, qword ptr fs:[0]", out(reg) at, options(pure, readonly, nostack)) };
    at
}

#[cfg(miri)]
fn thread_pointer() -> usize {
    0
}

impl Head {
    /// The lock that `pending` named is held or released; `before` is named again.
    #[inline(always)]
    fn conclude(&self, thread: &Thread, before: usize) {
        compiler_fence(Ordering::SeqCst);
        self.pending.store(before, Ordering::Relaxed);
        thread.held.store(0, Ordering::Relaxed);
    }

    /// Puts a lock that its thread holds first on the list.
    #[cold]
    fn link(&self, name: usize) {
        let first = self.first.load(Ordering::Relaxed);
        link_of(name).store(first, Ordering::Relaxed);
        prev_of(name).store(core::ptr::from_ref(self).expose_provenance(), Ordering::Relaxed);
        prev_of(first).store(name, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.first.store(name, Ordering::Relaxed);
        // Only then may `pending` name another.
        compiler_fence(Ordering::SeqCst);
    }

    /// Takes it away again, to be released, and named as such meanwhile.
    #[cold]
    fn unlink(&self, thread: &Thread, lock: &RobustLock) {
        // A lock that was taken later and is kept longer.
        let later = thread.held.load(Ordering::Relaxed);
        if later != 0 {
            self.link(later);
        }
        self.pending.store(lock.name(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let [prev, next] = [&lock.entry().prev, &lock.entry().next].map(|link| link.load(Ordering::Relaxed));
        link_of(prev).store(next, Ordering::Relaxed);
        prev_of(next).store(prev, Ordering::Relaxed);
        // The kernel gives up at a 0.
        compiler_fence(Ordering::SeqCst);
        lock.entry().next.store(0, Ordering::Relaxed);
    }
}

/// The word that a name is the address of. Its lowest bit, of a mutex with priority inheritance, is no part of the address.
fn link_of(name: usize) -> &'static AtomicUsize {
    // SAFETY: names on a thread's own list: of locks that it holds, or of its head.
    unsafe { &*core::ptr::with_exposed_provenance::<AtomicUsize>(name & !1) }
}

/// The way back, which glibc keeps before each such word, the head's too.
fn prev_of(name: usize) -> &'static AtomicUsize {
    link_of((name & !1) - size_of::<usize>())
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    /// These tests have no handlers.
    struct NoHandlers;

    // SAFETY: there are none.
    unsafe impl Section for NoHandlers {}

    #[test]
    fn after_its_first_lock_a_thread_knows_its_list() {
        let [one, two] = [(); 2].map(|()| {
            // SAFETY: all-zero bytes are an open mutex.
            let lock: RobustLock = unsafe { core::mem::zeroed() };
            Box::leak(Box::new(lock))
        });
        one.init();
        two.init();
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
