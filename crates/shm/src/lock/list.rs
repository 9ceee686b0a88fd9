//! The list of locks that a thread holds, as the kernel reads it when the thread dies.

use core::mem::offset_of;
use core::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence};

use shunpike_arch as arch;

use super::mutex::{IN_MUSL, calls, place, show_list};
use super::{Entry, HOLDER, Parts, RobustLock};

/// From an entry's name to its lock's word.
fn to_word() -> isize {
    let word = offset_of!(Parts, words) + place() * size_of::<AtomicU32>();
    word as isize - (offset_of!(Parts, entry) + offset_of!(Entry, next)) as isize
}

/// struct robust_list_head (include/uapi/linux/futex.h), in libc's description of its thread, which nobody else writes.
#[repr(C)]
pub(super) struct Head {
    pub(super) first: AtomicUsize,
    pub(super) to_word: AtomicIsize,
    pub(super) pending: AtomicUsize,
}

/// A list of our own, where libc has none for the thread: its head, behind the link back that each name has before it.
#[repr(C)]
pub(super) struct OwnList {
    prev: AtomicUsize,
    pub(super) head: Head,
}

/// What a thread knows of itself; all zero in a new one.
#[repr(C)]
pub(super) struct Thread {
    /// Null: not known yet.
    pub(super) head: AtomicPtr<Head>,
    /// Name of the entry of the lock that `pending` names for us; 0 none.
    pub(super) held: AtomicUsize,
    /// As the lock's words have it.
    pub(super) number: AtomicU32,
    /// Its list is not what we know of: 1.
    pub(super) strange: AtomicU32,
    /// Reached by the kernel, and by names, alone.
    pub(super) own: OwnList,
}

#[cfg(not(miri))]
#[inline(always)]
pub(super) fn thread() -> &'static Thread {
    const _: () =
        assert!(offset_of!(arch::ThreadBlock, locks) + size_of::<Thread>() <= size_of::<arch::ThreadBlock>());
    let block: *const arch::ThreadBlock = arch::thread_block();
    // SAFETY: it has room for it, as is checked above, and nobody else uses that part; the reference does not leave its thread.
    unsafe { &*(&raw const (*block).locks).cast::<Thread>() }
}

/// miri knows no assembly: all locks are glibc's there.
#[cfg(miri)]
pub(super) fn thread() -> &'static Thread {
    static STRANGER: Thread = Thread {
        head: AtomicPtr::new(core::ptr::null_mut()),
        held: AtomicUsize::new(0),
        number: AtomicU32::new(0),
        strange: AtomicU32::new(1),
        own: OwnList {
            prev: AtomicUsize::new(0),
            head: Head {
                first: AtomicUsize::new(0),
                to_word: AtomicIsize::new(0),
                pending: AtomicUsize::new(0),
            },
        },
    };
    &STRANGER
}

impl Thread {
    /// Where its list begins; `None` where that is not to be known.
    #[inline]
    pub(super) fn head(&self) -> Option<&'static Head> {
        self.known().or_else(|| self.find())
    }

    #[inline]
    pub(super) fn known(&self) -> Option<&'static Head> {
        // SAFETY: null, or this thread's, which lives as long as it.
        unsafe { self.head.load(Ordering::Relaxed).as_ref() }
    }

    #[cold]
    fn find(&self) -> Option<&'static Head> {
        if self.strange.load(Ordering::Relaxed) != 0 {
            return self.known();
        }
        let Some(calls) = calls() else {
            self.learn(self.head_by_kernel(), number());
            return self.known();
        };
        // SAFETY: all-zero bytes are valid; it is initialised before it is used.
        let own: RobustLock = unsafe { core::mem::zeroed() };
        own.init();
        // SAFETY: just initialised, and nobody else's.
        unsafe {
            (calls.lock)(own.mutex.get().cast());
            self.learn(self.head_by_lock(&own), own.word().load(Ordering::Relaxed) & HOLDER);
            (calls.unlock)(own.mutex.get().cast());
            (calls.destroy)(own.mutex.get().cast());
        }
        self.known()
    }

    pub(super) fn learn(&self, head: Option<usize>, number: u32) {
        match head.filter(|_| number != 0) {
            Some(at) => {
                self.number.store(number, Ordering::Relaxed);
                self.head.store(core::ptr::with_exposed_provenance_mut(at), Ordering::Relaxed);
            }
            None => self.strange.store(1, Ordering::Relaxed),
        }
    }

    /// Sees in a lock just taken by glibc's call where the thread's list begins.
    fn head_by_lock(&self, lock: &RobustLock) -> Option<usize> {
        let at = lock.entry().prev.load(Ordering::Relaxed);
        // glibc's description of a thread begins where fs points; it is some 2,300 bytes long.
        let own = at.wrapping_sub(arch::thread_pointer());
        let known = own < 4096 - size_of::<Head>() && at.is_multiple_of(align_of::<Head>()) && {
            // SAFETY: an address within the description of this thread.
            let head = unsafe { &*core::ptr::with_exposed_provenance::<Head>(at) };
            head.first.load(Ordering::Relaxed) == lock.name() && head.is_known()
        };
        known.then_some(at)
    }

    /// Asks the kernel, and gives it a list of ours where it has none. A library of threads that is loaded later takes its place: should
    /// the first thread die under a lock after that, nobody is told.
    #[cfg(not(miri))]
    pub(super) fn head_by_kernel(&self) -> Option<usize> {
        if place() == IN_MUSL {
            show_list();
        }
        let (mut at, mut size) = (0_usize, 0_usize);
        let (to_at, to_size) = ((&raw mut at).expose_provenance(), (&raw mut size).expose_provenance());
        // SAFETY: the kernel writes both words.
        let asked = unsafe { arch::syscall(libc::SYS_get_robust_list, 0, to_at, to_size, 0, 0, 0) };
        if asked != 0 {
            return None;
        }
        if at != 0 {
            // SAFETY: what the kernel keeps for this thread is there as long as it.
            let head = unsafe { &*core::ptr::with_exposed_provenance::<Head>(at) };
            return (size == size_of::<Head>() && head.is_known()).then_some(at);
        }
        let head = &self.own.head;
        let at = core::ptr::from_ref(head).expose_provenance();
        head.first.store(at, Ordering::Relaxed);
        head.to_word.store(to_word(), Ordering::Relaxed);
        head.pending.store(0, Ordering::Relaxed);
        // SAFETY: the list lives as long as its thread.
        let told = unsafe { arch::syscall(libc::SYS_set_robust_list, at, size_of::<Head>(), 0, 0, 0, 0) };
        (told == 0).then_some(at)
    }

    #[cfg(miri)]
    fn head_by_kernel(&self) -> Option<usize> {
        None
    }
}

/// The calling thread's number.
pub(super) fn number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

impl Head {
    /// Whether it leads to locks as the one of our libc does, and names none yet.
    fn is_known(&self) -> bool {
        self.to_word.load(Ordering::Relaxed) == to_word() && self.pending.load(Ordering::Relaxed) == 0
    }

    /// The lock that `pending` named is held or released; `before` is named again.
    #[inline(always)]
    pub(super) fn conclude(&self, thread: &Thread, before: usize) {
        compiler_fence(Ordering::SeqCst);
        self.pending.store(before, Ordering::Relaxed);
        thread.held.store(0, Ordering::Relaxed);
    }

    /// Puts a lock that its thread holds first on the list.
    #[cold]
    pub(super) fn link(&self, name: usize) {
        let first = self.first.load(Ordering::Relaxed);
        link_of(name).store(first, Ordering::Relaxed);
        prev_of(name).store(core::ptr::from_ref(self).expose_provenance(), Ordering::Relaxed);
        self.put_back_link(first, name);
        compiler_fence(Ordering::SeqCst);
        self.first.store(name, Ordering::Relaxed);
        // Only then may `pending` name another.
        compiler_fence(Ordering::SeqCst);
    }

    /// The way back from an entry. The head has none: before musl's stands something else.
    fn put_back_link(&self, from: usize, to: usize) {
        if from != core::ptr::from_ref(self).addr() {
            prev_of(from).store(to, Ordering::Relaxed);
        }
    }

    /// Takes it away again, to be released, and named as such meanwhile.
    #[cold]
    pub(super) fn unlink(&self, thread: &Thread, lock: &RobustLock) {
        // A lock that was taken later and is kept longer.
        let later = thread.held.load(Ordering::Relaxed);
        if later != 0 {
            self.link(later);
        }
        self.pending.store(lock.name(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let [prev, next] = [&lock.entry().prev, &lock.entry().next].map(|link| link.load(Ordering::Relaxed));
        link_of(prev).store(next, Ordering::Relaxed);
        self.put_back_link(next, prev);
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

/// The way back, which libc keeps before each such word but the head's.
fn prev_of(name: usize) -> &'static AtomicUsize {
    link_of((name & !1) - size_of::<usize>())
}
