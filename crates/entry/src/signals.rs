//! Signals. The program's handlers run behind a trampoline, and never within code of ours: a signal that comes there is put back, masked
//! and queued again, and delivered before the entry waits or ends, on the program's stack. In a call that is made for the program
//! (gate.rs) the handler finds the registers as they are at the program's own instruction; where it changes where that goes on (a libc's
//! cancellation does), the entry is over.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{siginfo_t, ucontext_t};
use shunpike_arch as arch;
use shunpike_core::{process, sys, tls, user};

use crate::calls::DONE;
use crate::gate::{self, At};
use crate::start::{blob, is_ours};
use crate::state::{self, Frame};
use crate::vforked::foreign_process;
use crate::zones::{self, Zone};

const SIGNALS: usize = 65;

/// What the program installed.
struct Installed {
    handler: AtomicUsize,
    flags: AtomicUsize,
}

static INSTALLED: [Installed; SIGNALS] =
    [const { Installed { handler: AtomicUsize::new(0), flags: AtomicUsize::new(0) } }; SIGNALS];

/// Whether copies of ours need the trampoline on SIGSEGV and SIGBUS.
static GUARDED: AtomicBool = AtomicBool::new(false);

const FAULTS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
const SA_RESTORER: usize = 0x0400_0000;
/// Bytes of a mask.
const MASK: usize = 8;

/// The kernel's struct sigaction.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct Action {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

const DEFAULT: Action = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

extern "C" fn trampoline(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let context: *mut ucontext_t = context.cast();
    // SAFETY: the kernel's own arguments.
    if FAULTS.contains(&signal) && unsafe { user::answered(info, context) } {
        return;
    }
    let Some(installed) = INSTALLED.get(signal as usize) else { return };
    let flags = installed.flags.load(Ordering::Relaxed) as c_int;
    let thread = tls::thread();
    // SAFETY: the kernel's own context.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let [address, stack] =
        [libc::REG_RIP, libc::REG_RSP].map(|register| registers[register as usize] as usize);
    let (place, zone) = (gate::at(address), zones::at(address));
    // SAFETY: the kernel's own siginfo. What was sent is no fault, whatever its number.
    let is_fault = unsafe { (*info).si_code } > 0
        && matches!(
            signal,
            libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
        );
    let is_inside = match zone {
        Zone::Inside | Zone::Look(_) => true,
        _ => {
            let is_on_ours = state::is_on_own_stack(stack) && !blob().contains(&address);
            place != At::Call && (is_ours(address) || is_on_ours)
        }
    };
    // A program with a filter of its own expects no calls of ours, and has no lanes.
    if is_inside && !is_fault && !process::confined() && state::frame().is_some() {
        if flags & libc::SA_RESETHAND != 0 {
            put_back(signal);
        }
        // SAFETY: the kernel's own arguments.
        unsafe { keep(thread, signal, info, context) };
        let ((At::Look(again), _) | (_, Zone::Look(again))) = (place, zone) else { return };
        registers[libc::REG_RIP as usize] = again as i64;
        return;
    }
    if let Zone::Look(_) = zone {
        state::set_presents_next(usize::from(registers[libc::REG_RAX as usize] as u32 == DONE));
    }
    // It was let through after all, by a mask that was restored.
    thread.kept.fetch_and(!(1 << (signal - 1)), Ordering::Relaxed);
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
        installed.handler.store(libc::SIG_DFL, Ordering::Release);
    }
    // SAFETY: the handler that the program installed: the kernel gives it these three, whatever its flags.
    let call = || unsafe {
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut ucontext_t) = core::mem::transmute(handler);
        handler(signal, info, context);
    };
    // SAFETY: a frame of this thread's.
    let is_whole = |frame: &*mut Frame| unsafe { (**frame).is_whole() };
    match state::frame().filter(is_whole).filter(|_| place == At::Call || is_inside && !is_fault) {
        // SAFETY: the kernel's context of this delivery, and the entry that makes the call, or is at work.
        Some(frame) => unsafe { as_programs(frame, context, call) },
        // SAFETY: the kernel's context, and what is at its address.
        None => unsafe { zones::as_programs(zone, context, call) },
    }
    thread.numbers.fetch_or(numbers, Ordering::Relaxed);
}

/// A one-time handler is gone from the kernel when it is called, but its mask and its flags are there still (kernel/signal.c,
/// get_signal): it is put back, to be called later.
fn put_back(signal: c_int) {
    let (mut action, mut was) = (DEFAULT, DEFAULT);
    if kernels(signal, core::ptr::null(), &raw mut action) != 0 || action.handler != libc::SIG_DFL {
        return;
    }
    action.handler = trampoline as *const () as usize;
    kernels(signal, &raw const action, &raw mut was);
    if was.handler != libc::SIG_DFL {
        // Another thread has installed one just now.
        kernels(signal, &raw const was, core::ptr::null_mut());
    }
}

/// Runs a handler that came in a call that is made for the program, and shows it the program's registers.
///
/// # Safety
/// The kernel's context, and the newest frame of the calling thread.
unsafe fn as_programs(frame: *mut Frame, context: *mut ucontext_t, handler: impl FnOnce()) {
    const ARGUMENTS: [c_int; 6] =
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
    const KEPT: [c_int; 6] =
        [libc::REG_RBX, libc::REG_RBP, libc::REG_R12, libc::REG_R13, libc::REG_R14, libc::REG_R15];
    // SAFETY: the caller's word.
    unsafe {
        let registers = &raw mut (*context).uc_mcontext.gregs;
        let ours = *registers;
        let (address, result) = gate::presented(frame);
        let presents_next = state::presents_next();
        for (register, value) in
            ARGUMENTS.iter().zip((*frame).arguments).chain(KEPT.iter().zip((*frame).kept))
        {
            (*registers)[*register as usize] = value as i64;
        }
        let shown = [(libc::REG_RIP, address), (libc::REG_RSP, (*frame).stack), (libc::REG_RAX, result)];
        for (register, value) in shown {
            (*registers)[register as usize] = value as i64;
        }
        state::set_presents_next(0);
        let errno = state::errno();
        handler();
        state::set_errno(errno);
        let is_same =
            shown[..2].iter().all(|(register, value)| (*registers)[*register as usize] == *value as i64);
        if is_same {
            state::set_presents_next(presents_next);
            *registers = ours;
        } else {
            state::set_top((*frame).up);
            (*frame).stack = usize::MAX;
        }
    }
}

/// Masks `signal`, now and in the interrupted context, and queues it again for this thread.
///
/// # Safety
/// `info` and `context` are the kernel's own of this delivery.
unsafe fn keep(thread: &tls::Thread, signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let bit = 1u64 << (signal - 1);
    sys::mask_signals(libc::SIG_BLOCK, bit);
    // SAFETY: the frame that the kernel restores when the trampoline returns; its mask has 64 bits.
    unsafe { *(&raw mut (*context).uc_sigmask).cast::<u64>() |= bit };
    sys::requeue_signal(signal, info.cast());
    thread.kept.fetch_or(bit, Ordering::Relaxed);
    state::set_kept_back(1);
}

/// The calling thread is about to end: what was kept back for it goes to the process, where another thread takes it; what comes from here on
/// does so by itself.
pub fn pass_on() {
    sys::mask_signals(libc::SIG_BLOCK, !0);
    let kept = tls::thread().kept.swap(0, Ordering::Relaxed);
    for signal in (1..=64usize).filter(|signal| kept >> (signal - 1) & 1 != 0) {
        let (bit, now) = (1u64 << (signal - 1), [0u64; 2]);
        // SAFETY: all-zero is valid.
        let mut info: siginfo_t = unsafe { core::mem::zeroed() };
        let [bit, info, now] = [&raw const bit as usize, &raw mut info as usize, &raw const now as usize];
        // SAFETY: memory of this function. The thread's own come before the process's (kernel/signal.c, dequeue_signal).
        let came = unsafe { arch::syscall(libc::SYS_rt_sigtimedwait, bit, info, now, MASK, 0, 0) };
        if came > 0 {
            // SAFETY: as above.
            unsafe { arch::syscall(libc::SYS_rt_sigqueueinfo, sys::pid() as usize, signal, info, 0, 0, 0) };
        }
    }
}

/// The default action for a signal of `FAULTS`: a fault happens again, and what was sent is sent again.
///
/// # Safety
/// `info` is the kernel's own of this delivery.
unsafe fn end_by(signal: c_int, info: *mut siginfo_t) {
    kernels(signal, &DEFAULT, core::ptr::null_mut());
    // SAFETY: the caller's word for it.
    if unsafe { (*info).si_code } <= 0 {
        sys::requeue_signal(signal, info.cast());
    }
}

/// rt_sigaction(2).
fn kernels(signal: c_int, new: *const Action, old: *mut Action) -> isize {
    // SAFETY: null, or actions of ours.
    unsafe { arch::syscall(libc::SYS_rt_sigaction, signal as usize, new as usize, old as usize, MASK, 0, 0) }
}

/// Where the trampoline returns to in front of a default action.
#[unsafe(naked)]
extern "C" fn restorer() {
    naked_asm!("mov eax, 15", "syscall")
}

/// Puts the trampoline in front of what the program has for the signals of `FAULTS`, where that is the default.
pub fn guard() {
    GUARDED.store(true, Ordering::SeqCst);
    for signal in FAULTS {
        let mut action = DEFAULT;
        if kernels(signal, core::ptr::null(), &raw mut action) != 0 || action.handler != libc::SIG_DFL {
            continue;
        }
        stand_in_front(&mut action);
        let mut was = DEFAULT;
        kernels(signal, &raw const action, &raw mut was);
        if was.handler != libc::SIG_DFL {
            // Another thread has installed one just now.
            kernels(signal, &raw const was, core::ptr::null_mut());
        }
    }
}

fn stand_in_front(action: &mut Action) {
    action.handler = trampoline as *const () as usize;
    action.flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART) as usize | SA_RESTORER;
    action.restorer = restorer as *const () as usize;
}

/// The program's rt_sigaction(2); what the kernel returns.
///
/// # Safety
/// As the call itself.
pub unsafe fn install(signal: c_int, new: *const Action, old: *mut Action, size: usize) -> isize {
    let Some(installed) = INSTALLED.get(signal as usize).filter(|_| signal > 0 && size == MASK) else {
        return -(libc::EINVAL as isize);
    };
    let known = (installed.handler.load(Ordering::Acquire), installed.flags.load(Ordering::Relaxed));
    // A vfork child has signal actions of its own, but shares our memory.
    let foreign = is_foreign();
    let mut ours = None;
    if !new.is_null() {
        // SAFETY: the program's, which need not be there.
        let Some(action) = (unsafe { user::fetch(new) }) else { return -(libc::EFAULT as isize) };
        ours = Some(action);
    }
    if let Some(action) = ours.as_mut().filter(|_| !foreign) {
        let handled = !matches!(action.handler, libc::SIG_DFL | libc::SIG_IGN);
        let fault = FAULTS.contains(&signal);
        if handled || fault {
            installed.handler.store(action.handler, Ordering::Release);
            installed.flags.store(action.flags, Ordering::Relaxed);
        }
        if handled {
            action.handler = trampoline as *const () as usize;
            // Else the kernel tells nothing of the signal, which is to be queued again.
            action.flags |= libc::SA_SIGINFO as usize;
            if fault {
                action.flags &= !(libc::SA_RESETHAND as usize);
            }
        } else if fault && action.handler == libc::SIG_DFL && GUARDED.load(Ordering::SeqCst) {
            stand_in_front(action);
        }
    }
    let mut was = DEFAULT;
    let rc = kernels(signal, ours.as_ref().map_or(core::ptr::null(), core::ptr::from_ref), &raw mut was);
    if rc != 0 {
        installed.handler.store(known.0, Ordering::Release);
        installed.flags.store(known.1, Ordering::Relaxed);
        return rc;
    }
    if was.handler == trampoline as *const () as usize {
        if known.0 == libc::SIG_DFL {
            was = DEFAULT;
        }
        (was.handler, was.flags) = known;
    }
    // SAFETY: the program's, which need not be there.
    if !old.is_null() && !unsafe { user::store(old, was) } { -(libc::EFAULT as isize) } else { 0 }
}

/// Whether this is a vfork child, also in a process that has no lanes and does not note them.
pub fn is_foreign() -> bool {
    foreign_process() || !process::enabled() && state::vforks() != 0
}

/// Takes the trampoline away: the program takes the GS base for itself, by which a thread's words are found.
pub fn withdraw() {
    for (signal, installed) in INSTALLED.iter().enumerate().skip(1) {
        let mut action = DEFAULT;
        if kernels(signal as c_int, core::ptr::null(), &raw mut action) == 0
            && action.handler == trampoline as *const () as usize
        {
            (action.handler, action.flags) =
                (installed.handler.load(Ordering::Relaxed), installed.flags.load(Ordering::Relaxed));
            kernels(signal as c_int, &raw const action, core::ptr::null_mut());
        }
    }
}
