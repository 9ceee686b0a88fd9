//! The program's own calls and waits, made from here: on its stack, where its handlers run as in a call of its own.

use core::arch::naked_asm;

use shunpike_arch as arch;
use shunpike_core::{process, tls};

use crate::state::{self, Frame};

/// What [`gate`] returns where a signal has been kept back, and the call was not made.
const KEPT: isize = isize::MIN;

/// Makes a system call on the program's stack, unless a signal has been kept back. The window between that look and the call is known to
/// the trampoline, which has the look made again.
#[unsafe(naked)]
unsafe extern "C" fn gate(number: i64, arguments: *const [usize; 6]) -> isize {
    naked_asm!(
        "push rbx",
        "mov rax, rdi",
        "mov r11, rsi",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov r10, [r11 + 24]",
        "mov r8, [r11 + 32]",
        "mov r9, [r11 + 40]",
        "mov rbx, rsp",
        ".globl shunpike_gate_look",
        ".hidden shunpike_gate_look",
        "shunpike_gate_look:",
        "cmp qword ptr gs:[80], 0",
        "jne 2f",
        "mov rcx, gs:[8]",
        "mov rcx, [rcx + {apart}]",
        "test rcx, rcx",
        "cmovz rcx, rsp",
        "mov rsp, rcx",
        ".globl shunpike_gate_call",
        ".hidden shunpike_gate_call",
        "shunpike_gate_call:",
        "syscall",
        ".globl shunpike_gate_behind",
        ".hidden shunpike_gate_behind",
        "shunpike_gate_behind:",
        "mov rsp, rbx",
        "pop rbx",
        "ret",
        "2:",
        "mov rax, {kept}",
        "pop rbx",
        "ret",
        apart = const 392,
        kept = const KEPT,
    )
}

// SAFETY: labels of `gate`.
unsafe extern "C" {
    static shunpike_gate_look: u8;
    static shunpike_gate_call: u8;
    static shunpike_gate_behind: u8;
}

/// Where a thread is in `gate`.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum At {
    /// Before the call: to go on at this address.
    Look(usize),
    /// In the call, or just behind it.
    Call,
    /// Elsewhere.
    No,
}

/// Where that is.
pub fn at(address: usize) -> At {
    let [look, call, behind] =
        [&raw const shunpike_gate_look, &raw const shunpike_gate_call, &raw const shunpike_gate_behind]
            .map(|at| at.addr());
    if address == call || address == behind {
        At::Call
    } else if (look..call).contains(&address) {
        At::Look(look)
    } else {
        At::No
    }
}

/// A call that may wait. `None`: signals that came before it were delivered, and it was not made.
///
/// # Safety
/// As the call itself.
pub unsafe fn wait(number: i64, arguments: [usize; 6]) -> Option<isize> {
    if state::frame().is_none() || tls::is_critical() || process::confined() {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the caller's word.
        return Some(unsafe { arch::syscall(number, a, b, c, d, e, f) });
    }
    // SAFETY: the caller's word; there is a frame.
    match unsafe { gate(number, &arguments) } {
        KEPT => {
            deliver();
            None
        }
        result => Some(result),
    }
}

/// A call of the program's own; what the kernel returns.
///
/// # Safety
/// As the call itself.
pub unsafe fn call(number: i64, arguments: [usize; 6]) -> isize {
    loop {
        // SAFETY: the caller's word.
        if let Some(result) = unsafe { wait(number, arguments) } {
            return result;
        }
    }
}

/// Delivers what was kept back. Outside of critical sections, within an entry.
pub fn deliver() {
    use core::sync::atomic::Ordering;
    let thread = tls::thread();
    loop {
        state::set_kept_back(0);
        let signals = thread.kept.swap(0, Ordering::Relaxed);
        if signals == 0 {
            return;
        }
        let at = &raw const signals as usize;
        // SAFETY: the set lives through the call.
        let done = unsafe { gate(libc::SYS_rt_sigprocmask, &[libc::SIG_UNBLOCK as usize, at, 0, 8, 0, 0]) };
        if done == KEPT {
            thread.kept.fetch_or(signals, Ordering::Relaxed);
        }
    }
}

/// What the blob calls where signals were kept back, behind the handler that has answered so.
pub extern "C" fn deliver_behind(answer: u32) {
    // The program has made its call, or is about to.
    state::set_presents_next(usize::from(answer == crate::calls::DONE));
    deliver();
    state::set_presents_next(0);
}

/// Where the entry's program stands, as its handlers are to see it: the instruction's address, and rax.
///
/// # Safety
/// A frame of the calling thread's.
pub unsafe fn presented(frame: *const Frame) -> (usize, usize) {
    // SAFETY: the caller's word; a stub's description is there for good.
    unsafe {
        let description = &*(*frame).description;
        let is_made = state::presents_next() != 0;
        (if is_made { description.behind() } else { description.own }, (*frame).number)
    }
}
