//! What a thread carries, and critical sections.
//!
//! The storage is declared in assembly so that it uses the initial-exec model: no allocation on first use
//! in a thread, a single load to reach it, safe in signal handlers and after a siglongjmp.

pub mod readers;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};

use shunpike_shm::grace::Reader;
use shunpike_shm::lock::Section;

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
    /// Ticks that the wait under way has spun.
    pub spun: AtomicU64,
    /// The thread has woken somebody since its last wait.
    pub woke: AtomicBool,
    /// Who last woke the thread did so on the CPU on which it runs now.
    pub in_place: AtomicBool,
    /// Its last wait lasted longer than a nap.
    pub sleeps_long: AtomicBool,
    /// Second in which it last looked, before a sleep, whether the broker is there still (`session::look_in`; wrapping).
    pub looked_in: AtomicU32,
    /// Yields that came back in time since the last one that did not.
    pub in_time: AtomicU32,
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
    /// ... when it last looked at a set with lanes.
    pub tcp_known: AtomicU32,
    /// Tenant numbers that await the child that this thread forks, plus one, a byte for each arena.
    pub reserved: AtomicU64,
}

const SIZE: usize = 128;
const _: () = assert!(size_of::<Thread>() <= SIZE);

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 64",
    ".globl shunpike_thread",
    ".hidden shunpike_thread",
    ".type shunpike_thread, @object",
    "shunpike_thread: .zero 128",
    ".size shunpike_thread, 128",
    ".popsection",
);

/// The calling thread's state.
#[inline(always)]
pub fn thread() -> &'static Thread {
    let at: *const Thread;
    // SAFETY: the initial-exec sequence of the x86-64 psABI (ELF Handling For Thread-Local Storage, 4.4.6);
    // the storage lives as long as its thread, and the reference does not leave it.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + shunpike_thread@GOTTPOFF]",
            out(reg) at,
            options(pure, readonly, nostack)
        );
        &*at
    }
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

/// Delivers what was delayed; set once by the preload library.
static DELIVER: std::sync::OnceLock<fn()> = std::sync::OnceLock::new();

/// Names the function that re-raises delayed signals. Called once, at start-up.
pub fn on_deferred(deliver: fn()) {
    let _ = DELIVER.set(deliver);
}

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
        readers::fence_unaided();
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
    // SAFETY: null, or one of the words in `readers`, which are never freed.
    match unsafe { thread.reader.load(Ordering::Relaxed).as_ref() } {
        Some(reader) => reader,
        None => first_reader(thread),
    }
}

#[cold]
fn first_reader(thread: &'static Thread) -> &'static Reader {
    let reader = readers::take_place();
    thread.reader.store(core::ptr::from_ref(reader).cast_mut(), Ordering::Relaxed);
    reader
}

impl Drop for Critical {
    #[inline(always)]
    fn drop(&mut self) {
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
    if let Some(deliver) = DELIVER.get() {
        deliver();
    }
}
