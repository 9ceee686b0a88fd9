//! Signals: handlers of the program run behind a trampoline that keeps them out of critical sections and
//! notes what a sleep must know (SA_RESTART).
//!
//! A signal that comes within a critical section is put back: it is masked in the interrupted context and
//! queued again with the same siginfo; the end of the section unmasks it, and the kernel delivers it then.
//! Faults of the thread itself are never kept back.
//!
//! A copy of ours that faults on the program's memory is answered here, too (core's `user`): from the first one on the
//! trampoline stands in front of SIGSEGV and SIGBUS also while the program has no handler for them. What is not ours then
//! ends the program as it would have, with the same siginfo.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::{sigaction as Action, sighandler_t, siginfo_t, ucontext_t};
use shunpike_core::{process, sys, tls, user};

use crate::this_libc::is_musl;
use crate::vforked::foreign_process;

const SIGNALS: usize = 65;

/// What the program installed. Its mask is the kernel's business alone.
struct Installed {
    handler: AtomicUsize,
    flags: AtomicUsize,
}

static INSTALLED: [Installed; SIGNALS] =
    [const { Installed { handler: AtomicUsize::new(0), flags: AtomicUsize::new(0) } }; SIGNALS];

/// Whether copies of ours need the trampoline on SIGSEGV and SIGBUS.
static GUARDED: AtomicBool = AtomicBool::new(false);

/// Signals of a copy that faults: no mapping, or nothing behind it (the end of a mapped file).
const FAULTS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Numbers whose handlers signal(3) installs without SA_RESTART: glibc's `_sigintr`, which nobody but siginterrupt(3) writes.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

extern "C-unwind" fn trampoline(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's own arguments.
    if FAULTS.contains(&signal) && unsafe { user::answered(info, context.cast()) } {
        return;
    }
    let Some(installed) = INSTALLED.get(signal as usize) else { return };
    let flags = installed.flags.load(Ordering::Relaxed) as c_int;
    let thread = tls::thread();
    let fault = matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    );
    if thread.critical.load(Ordering::Relaxed) != 0 && !fault {
        if flags & libc::SA_RESETHAND != 0 {
            put_back(signal);
        }
        // SAFETY: the kernel's own arguments.
        unsafe { keep(thread, signal, info, context.cast()) };
        return;
    }
    let numbers = thread.count_signal(signal);
    if flags & libc::SA_RESTART == 0 {
        thread.interrupts.fetch_add(1, Ordering::Relaxed);
    }
    let handler = installed.handler.load(Ordering::Acquire);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        if FAULTS.contains(&signal) {
            // SAFETY: the kernel's own siginfo.
            unsafe { end_by(signal, info) };
        }
        return;
    }
    if FAULTS.contains(&signal) && flags & libc::SA_RESETHAND != 0 {
        // The kernel was not told: an answered fault must not use the handler up.
        installed.handler.store(libc::SIG_DFL, Ordering::Release);
    }
    // SAFETY: the handler that the program installed with these flags.
    unsafe {
        if flags & libc::SA_SIGINFO != 0 {
            let call: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
                core::mem::transmute(handler);
            call(signal, info, context);
        } else {
            let call: extern "C-unwind" fn(c_int) = core::mem::transmute(handler);
            call(signal);
        }
    }
    thread.numbers.fetch_or(numbers, Ordering::Relaxed);
}

/// The default action for a signal of `FAULTS`, which dumps core where it happened: a fault happens again, and what was
/// sent is sent again.
///
/// # Safety
/// `info` is the kernel's own of this delivery.
unsafe fn end_by(signal: c_int, info: *mut siginfo_t) {
    // SAFETY: all-zero is the default action.
    unsafe {
        let default: Action = core::mem::zeroed();
        covered::sigaction(signal, &default, core::ptr::null_mut());
    }
    // SAFETY: the caller's word for it.
    if unsafe { (*info).si_code } <= 0 {
        sys::requeue_signal(signal, info.cast());
    }
}

/// Puts the trampoline in front of what the program has for the signals of `FAULTS`, unless it ignores them or has gone
/// round our sigaction.
pub fn guard() {
    GUARDED.store(true, Ordering::SeqCst);
    for signal in FAULTS {
        // SAFETY: our own actions.
        unsafe {
            let mut action: Action = core::mem::zeroed();
            if covered::sigaction(signal, core::ptr::null(), &mut action) != 0
                || action.sa_sigaction != libc::SIG_DFL
            {
                continue;
            }
            stand_in_front(&mut action);
            let mut was: Action = core::mem::zeroed();
            covered::sigaction(signal, &action, &mut was);
            if was.sa_sigaction != libc::SIG_DFL {
                // Another thread has installed one just now.
                covered::sigaction(signal, &was, core::ptr::null_mut());
            }
        }
    }
}

/// Makes the trampoline of a default action.
fn stand_in_front(action: &mut Action) {
    action.sa_sigaction = trampoline as *const () as usize;
    // On the alternate stack, if there is one: a stack that overflows has no room for a handler.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
}

/// Masks `signal`, now and in the interrupted context, and queues it again for this thread.
///
/// # Safety
/// `info` and `context` are the kernel's own of this delivery.
unsafe fn keep(thread: &tls::Thread, signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let bit = 1u64 << (signal - 1);
    sys::mask_signals(libc::SIG_BLOCK, bit);
    // SAFETY: the frame that the kernel restores when the trampoline returns.
    unsafe { libc::sigaddset(&raw mut (*context).uc_sigmask, signal) };
    sys::requeue_signal(signal, info.cast());
    thread.kept.fetch_or(bit, Ordering::Relaxed);
}

/// A one-time handler is gone from the kernel when it is called, but its mask and its flags are there still (kernel/signal.c,
/// get_signal): it is put back, to be called later.
fn put_back(signal: c_int) {
    // SAFETY: our own actions.
    unsafe {
        let mut action: Action = core::mem::zeroed();
        if covered::sigaction(signal, core::ptr::null(), &mut action) != 0
            || action.sa_sigaction != libc::SIG_DFL
        {
            return;
        }
        action.sa_sigaction = trampoline as *const () as usize;
        let mut was: Action = core::mem::zeroed();
        covered::sigaction(signal, &action, &mut was);
        if was.sa_sigaction != libc::SIG_DFL {
            // Another thread has installed one just now.
            covered::sigaction(signal, &was, core::ptr::null_mut());
        }
    }
}

/// At the end of a critical section: lets through what was kept back.
pub fn deliver() {
    let kept = tls::thread().kept.swap(0, Ordering::Relaxed);
    sys::mask_signals(libc::SIG_UNBLOCK, kept);
}

/// Whether the program has installed a handler without SA_RESTART past our hooks. What libc keeps for itself it does not tell of.
pub fn may_be_interrupted() -> bool {
    (1..SIGNALS as c_int).any(|signal| {
        // SAFETY: our own action; all-zero is one.
        let (known, action) = unsafe {
            let mut action: Action = core::mem::zeroed();
            (covered::sigaction(signal, core::ptr::null(), &mut action) == 0, action)
        };
        let ours = trampoline as *const () as usize;
        known
            && ![libc::SIG_DFL, libc::SIG_IGN, ours].contains(&action.sa_sigaction)
            && action.sa_flags & libc::SA_RESTART == 0
    })
}

/// sigaction for all of the family.
///
/// # Safety
/// As sigaction(2).
unsafe fn install(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let Some(installed) = INSTALLED.get(signal as usize).filter(|_| process::enabled() && signal > 0) else {
        // SAFETY: handed on.
        return unsafe { covered::sigaction(signal, new, old) };
    };
    let known = (installed.handler.load(Ordering::Acquire), installed.flags.load(Ordering::Relaxed));
    // A vfork child has signal actions of its own, but shares our memory.
    let foreign = foreign_process();
    // SAFETY: null, or the program's.
    let wish = unsafe { new.as_ref() };
    let mut ours = wish.copied();
    if let Some(action) = ours.as_mut().filter(|_| !foreign) {
        if action.sa_sigaction == trampoline as *const () as usize {
            // A function of libc's own has shown it to the program, in place of the handler behind it.
            action.sa_sigaction = known.0;
            action.sa_flags = action.sa_flags & !libc::SA_SIGINFO | known.1 as c_int & libc::SA_SIGINFO;
        }
        let handled = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        let fault = FAULTS.contains(&signal);
        if handled || fault {
            installed.handler.store(action.sa_sigaction, Ordering::Release);
            installed.flags.store(action.sa_flags as usize, Ordering::Relaxed);
        }
        if handled {
            action.sa_sigaction = trampoline as *const () as usize;
            action.sa_flags |= libc::SA_SIGINFO;
            if fault {
                action.sa_flags &= !libc::SA_RESETHAND;
            }
        } else if fault && action.sa_sigaction == libc::SIG_DFL && GUARDED.load(Ordering::SeqCst) {
            stand_in_front(action);
        }
    }
    let new = ours.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: our copy of the program's action, and its own place for the old one.
    let rc = unsafe { covered::sigaction(signal, new, old) };
    if rc != 0 {
        installed.handler.store(known.0, Ordering::Release);
        installed.flags.store(known.1, Ordering::Relaxed);
        return rc;
    }
    // SAFETY: null, or filled by the kernel just now.
    if let Some(old) = unsafe { old.as_mut() }
        && old.sa_sigaction == trampoline as *const () as usize
    {
        old.sa_sigaction = known.0;
        old.sa_flags = known.1 as c_int;
    }
    rc
}

/// What BSD's signal(3) has of SA_RESTART. musl's does not look at what siginterrupt(3) was told.
fn restart(signal: c_int) -> c_int {
    let interrupts = (1..SIGNALS as c_int).contains(&signal)
        && !is_musl()
        && INTERRUPTS.load(Ordering::Relaxed) & 1 << (signal - 1) != 0;
    if interrupts { 0 } else { libc::SA_RESTART }
}

/// signal(3) with the flags of one of its dialects.
///
/// # Safety
/// As signal(3).
unsafe fn simple(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: all-zero actions are valid.
    let (mut new, mut old): (Action, Action) = unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if flags & libc::SA_NODEFER == 0 {
        // SAFETY: our own set; a bad number is refused below.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, signal) };
    }
    // SAFETY: our own actions.
    if unsafe { install(signal, &new, &mut old) } != 0 { libc::SIG_ERR } else { old.sa_sigaction }
}

/// sigset(3): with a handler the signal is let in, and SIG_HOLD keeps it back. Returns the disposition before, SIG_HOLD where it was kept
/// back.
///
/// # Safety
/// As sigset(3).
unsafe fn set(signal: c_int, handler: sighandler_t) -> sighandler_t {
    const SIG_HOLD: sighandler_t = 2;
    // SAFETY: all-zero actions are valid.
    let (mut new, mut old): (Action, Action) = unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    new.sa_sigaction = handler;
    let wish = if handler == SIG_HOLD { core::ptr::null() } else { &raw const new };
    // SAFETY: our own actions.
    if unsafe { install(signal, wish, &mut old) } != 0 {
        return libc::SIG_ERR;
    }
    let how = if handler == SIG_HOLD { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    let was_held = sys::mask_signals(how, 1 << (signal - 1)) & 1 << (signal - 1) != 0;
    if was_held { SIG_HOLD } else { old.sa_sigaction }
}

hooks! {
    /// sigaction(2)
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        install(signal, new, old)
    }
    /// sigaction(2), glibc's internal name
    fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        install(signal, new, old)
    }
    /// signal(3): BSD's, as glibc has it
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        simple(signal, handler, restart(signal))
    }
    /// signal(3) of System V
    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        simple(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
    }
    /// signal(3) of System V, the name that -D_XOPEN_SOURCE makes of it
    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        simple(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
    }
    /// signal(3), its name of 4.3BSD
    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        simple(signal, handler, restart(signal))
    }
    /// ssignal(3)
    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        simple(signal, handler, restart(signal))
    }
    /// sigset(3)
    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t { set(signal, handler) }
    /// sigignore(3)
    fn sigignore(signal: c_int) -> c_int {
        if simple(signal, libc::SIG_IGN, 0) == libc::SIG_ERR { -1 } else { 0 }
    }
    /// siginterrupt(3)
    fn siginterrupt(signal: c_int, interrupt: c_int) -> c_int {
        let mut action: Action = core::mem::zeroed();
        if install(signal, core::ptr::null(), &mut action) != 0 { return -1; }
        let bit = 1 << (signal - 1);
        if interrupt != 0 {
            INTERRUPTS.fetch_or(bit, Ordering::Relaxed);
            action.sa_flags &= !libc::SA_RESTART;
        } else {
            INTERRUPTS.fetch_and(!bit, Ordering::Relaxed);
            action.sa_flags |= libc::SA_RESTART;
        }
        install(signal, &action, core::ptr::null_mut())
    }
}
