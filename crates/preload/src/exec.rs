//! exec and fork. The exec family only needs a look before it, and vfork returns twice: each name is a stub that
//! calls its look and jumps on with all arguments, however many, as they are.

use core::ffi::{c_int, c_void};

use shunpike_core::{conn, process, tls};

use crate::real::Real;
use crate::start;

/// Hands over what survives the exec; returns the real function number `which`.
extern "C" fn before_exec(which: usize) -> *mut c_void {
    if process::enabled() {
        conn::before_exec();
    }
    REALS.get(which).map_or(core::ptr::null_mut(), Real::address)
}

/// Before vfork(): the child runs on our memory, thread state included, until it execs.
extern "C" fn before_vfork(which: usize) -> *mut c_void {
    tls::thread().vforked.store(1, core::sync::atomic::Ordering::Relaxed);
    REALS.get(which).map_or(core::ptr::null_mut(), Real::address)
}

macro_rules! stubs {
    ($($which:literal $name:ident $look:ident,)*) => {
        static REALS: [Real; [$($which),*].len()] = [$(
            Real::new(match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without NUL"),
            })
        ),*];
        $(
            #[doc = concat!(stringify!($name), "(3), after a look.")]
            ///
            /// # Safety
            /// As libc's function of that name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                // Argument registers (and rax, which counts vector registers of a variadic call) survive the
                // look; seven pushes after the return address keep the stack aligned.
                core::arch::naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "mov edi, {which}", "call {look}", "mov r11, rax",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "jmp r11",
                    which = const $which, look = sym $look,
                )
            }
        )*
    };
}

stubs! {
    0 execve before_exec,
    1 execv before_exec,
    2 execvp before_exec,
    3 execvpe before_exec,
    4 execl before_exec,
    5 execlp before_exec,
    6 execle before_exec,
    7 fexecve before_exec,
    8 execveat before_exec,
    9 vfork before_vfork,
}

hooks! {
    /// _Fork(3): fork without the handlers that fork() runs
    fn _Fork() -> c_int {
        process::before_fork();
        let pid = covered::_Fork();
        if pid == 0 { process::after_fork_in_child(); }
        pid
    }
    /// _exit(2): connections shared with other processes are theirs alone now
    fn _exit(status: c_int) -> ! {
        start::at_exit();
        covered::_exit(status)
    }
}
