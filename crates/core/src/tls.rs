//! What a thread carries, and critical sections.
//!
//! What it carries is the first part of the thread's [`ThreadBlock`].

pub mod epochs;

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
};

use shunpike_arch::{self as arch, ThreadBlock};
use shunpike_shm::grace::Reader;
use shunpike_shm::lock::Section;

use crate::host::host;

/// Per-thread state; all zero in a new thread.
#[repr(C)]
pub struct Thread {
    /// Depth of critical sections: while not 0 the preload library delays this thread's signals.
    pub critical: AtomicU32,
    /// Signals handled so far whose handler was installed without SA_RESTART.
    pub interrupts: AtomicU32,
    /// Signals handled so far, whatever their flags.
    pub handled: AtomicU32,
    /// Process that made the fields below; another one (fork) must make its own.
    pub owner: AtomicU32,
    /// vfork was called and this may be its child, which shares our memory: 1 until found otherwise.
    pub vforked: AtomicU32,
    /// Private epoll instance with the thread's doorbell, plus one; 0 none.
    pub sleeper: AtomicU32,
    /// CQ of this thread plus one; 0 none.
    pub cq: AtomicU32,
    /// Waits that a spin ended, not yet added to the process's count.
    pub spins: AtomicU32,
    /// Signals kept back, as a mask; let through at the end of the outermost critical section.
    pub kept: AtomicU64,
    /// What it remembers of its waits ([`policy::Memory`](crate::policy::Memory)).
    pub waits: AtomicU64,
    /// Borders of critical sections that the thread had crossed at the end of its last spin (wrapping).
    pub crossed: AtomicU32,
    /// The thread has woken somebody since its last wait.
    pub woke: AtomicBool,
    /// Who last woke the thread did so on the CPU on which it runs now.
    pub in_place: AtomicBool,
    /// Its end is told of.
    pub is_marked: AtomicBool,
    /// Second in which it last looked, before a sleep, whether the broker is there still (`session::look_in`; wrapping).
    pub looked_in: AtomicU32,
    /// Numbers of the signals handled since its last wait with a mask began, as a mask: those up to 32.
    pub numbers: AtomicU32,
    /// Until when its spins do not yield: see `spin::habits`.
    pub keep_until: AtomicU64,
    /// Ticks of spinning before the CPU is offered to others, adapted by whether anybody wanted it.
    pub patience: AtomicU64,
    /// Stack pointer of the copy of the program's memory that is under way, for `user::answered`; 0 none.
    pub recover: AtomicU64,
    /// Where the last such copy faulted.
    pub fault: AtomicU64,
    /// Where it is told that the thread is inside a critical section; null before the first.
    pub reader: AtomicPtr<Reader>,
    /// Calls that moved bytes by TCP, and connections made (wrapping).
    pub tcp_calls: AtomicU32,
    /// What `tcp_calls` was when it last looked at a set with lanes.
    pub tcp_known: AtomicU32,
    /// Set of which it asks the kernel (`sets::asked`); 0 none.
    pub asked: AtomicUsize,
    /// Tenant numbers that await the child that this thread forks, plus one, a byte for each arena.
    pub reserved: AtomicU64,
}

const _: () = assert!(
    core::mem::offset_of!(ThreadBlock, core) + size_of::<Thread>()
        <= core::mem::offset_of!(ThreadBlock, locks)
);

impl Thread {
    /// A handler for `signal` is about to run. Returns the numbers with it, for after the handler: a wait within it begins with none.
    pub fn count_signal(&self, signal: i32) -> u32 {
        let one = 1u32.checked_shl((signal - 1) as u32).unwrap_or(0);
        self.handled.fetch_add(1, Ordering::Relaxed);
        self.numbers.fetch_or(one, Ordering::Relaxed) | one
    }
}

/// The calling thread's state.
#[inline(always)]
pub fn thread() -> &'static Thread {
    let block: *const ThreadBlock = arch::thread_block();
    // SAFETY: it has room for it, as is checked above, and nobody else uses that part; the reference does not leave its thread.
    unsafe { &*(&raw const (*block).core).cast::<Thread>() }
}

/// A stretch of code that no handler of the program may interrupt on this thread, and in which no memory that
/// it finds mapped is unmapped.
///
/// Handlers may do I/O on the very connection whose lock is held here, or siglongjmp away; so the preload
/// library's trampoline keeps signals back while one of these exists and delivers them at its end.
pub struct Critical {
    thread: &'static Thread,
}

// SAFETY: the preload library's trampoline keeps signals back on the thread that made it until it is dropped; the reference to that thread's
// storage keeps it from going to another one.
unsafe impl Section for Critical {}

/// Begins a critical section.
#[inline(always)]
pub fn critical() -> Critical {
    let thread = thread();
    // Only this thread and its own handlers write: relaxed, ordered by compiler fences.
    let depth = thread.critical.load(Ordering::Relaxed);
    thread.critical.store(depth + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // Within the stretch that handlers do not interrupt: one of them would find the count odd.
    if depth == 0 {
        reader(thread).enter();
        epochs::fence_unaided();
    }
    Critical { thread }
}

/// Whether the calling thread is inside one: what it calls is called by us, not by the program.
pub fn is_critical() -> bool {
    thread().critical.load(Ordering::Relaxed) != 0
}

/// The critical section of a guard that was forgotten.
pub(crate) fn left_open() -> Critical {
    Critical { thread: thread() }
}

#[inline(always)]
fn reader(thread: &'static Thread) -> &'static Reader {
    // SAFETY: null, or one of the words in `epochs`, which are never freed.
    match unsafe { thread.reader.load(Ordering::Relaxed).as_ref() } {
        Some(reader) => reader,
        None => first_reader(thread),
    }
}

/// Borders of critical sections that the calling thread has crossed.
pub fn crossed() -> u64 {
    reader(thread()).crossed()
}

#[cold]
fn first_reader(thread: &'static Thread) -> &'static Reader {
    let reader = epochs::take_place();
    thread.reader.store(core::ptr::from_ref(reader).cast_mut(), Ordering::Relaxed);
    reader
}

impl Drop for Critical {
    #[inline]
    fn drop(&mut self) {
        self.end();
    }
}

impl Critical {
    /// As its drop, inlined: for the paths of nearly all calls.
    #[inline(always)]
    pub fn leave(self) {
        core::mem::ManuallyDrop::new(self).end();
    }

    #[inline(always)]
    fn end(&self) {
        compiler_fence(Ordering::SeqCst);
        let depth = self.thread.critical.load(Ordering::Relaxed) - 1;
        if depth == 0 {
            reader(self.thread).leave();
            compiler_fence(Ordering::SeqCst);
        }
        self.thread.critical.store(depth, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if depth == 0 && self.thread.kept.load(Ordering::Relaxed) != 0 {
            deliver_deferred();
        }
    }
}

#[cold]
fn deliver_deferred() {
    (host().deliver)();
}
