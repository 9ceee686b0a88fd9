//! libshunpike-entry.so: system calls, mapped onto core.
//!
//! The injector (crates/inject) loads it into a program that no preloaded library reaches, in whose text each system call enters
//! [`calls`]' handler. What a call of a name means is written once, in preload's hooks: the same files are part of this library, where
//! `covered` is the system call itself (real.rs). No libc and no loader is there: it needs no other library, and a thread's block is found
//! by the GS base.
//!
//! ```text
//! a patched `syscall` -> the blob's gate -> calls::handler -> preload's hook -> core, or the system call itself
//! ```

#![no_std]

#[macro_use]
mod real;
#[path = "../../preload/src/answers.rs"]
#[allow(dead_code, reason = "preload's")]
mod answers;
mod calls;
mod cancel;
#[path = "../../preload/src/children.rs"]
#[allow(dead_code, reason = "libc's names search and spawn; calls do not")]
mod children;
mod compilers;
#[path = "../../preload/src/control.rs"]
#[allow(dead_code, reason = "preload's")]
mod control;
#[path = "../../preload/src/data.rs"]
mod data;
mod errno;
mod gate;
mod host;
#[path = "../../preload/src/indirect.rs"]
#[allow(dead_code, reason = "preload's")]
mod indirect;
#[path = "../../preload/src/kept.rs"]
mod kept;
#[path = "../../preload/src/lifecycle.rs"]
mod lifecycle;
#[path = "../../preload/src/memory.rs"]
#[allow(dead_code, reason = "preload's")]
mod memory;
#[path = "../../preload/src/readiness.rs"]
#[allow(dead_code, reason = "preload's")]
mod readiness;
mod signals;
mod start;
mod state;
mod streams;
#[path = "../../preload/src/syscall.rs"]
mod syscall;
mod this_libc;
#[path = "../../preload/src/vforked.rs"]
mod vforked;
mod zones;

/// What the injector reads (crates/inject/src/library.rs).
#[repr(C)]
pub struct Header {
    magic: [u8; 8],
    start: unsafe extern "C" fn(*const usize, usize, usize, usize, *const [u32; 2]),
    handler: unsafe extern "C" fn(*mut state::State, *mut state::Frame) -> u32,
    deliver: extern "C" fn(u32),
    shown: [u8; calls::NUMBERS],
}

/// The library's entry.
#[unsafe(no_mangle)]
pub static SHUNPIKE_ENTRY: Header = Header {
    magic: *b"SHNPKE02",
    start: start::start,
    handler: calls::handler,
    deliver: gate::deliver_behind,
    shown: calls::shown(),
};

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the program where it stands.
    unsafe { core::arch::asm!("ud2", options(noreturn)) }
}

/// Named by the compiler's own library, which was built to be unwound through.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
