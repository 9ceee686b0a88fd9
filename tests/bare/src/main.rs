//! Core in a program that has no libc: it starts, copies, takes locks and looks at connections with the kernel alone.
//! It ends with 0, or with the number of the step that failed.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicUsize, Ordering};

use shunpike_arch as arch;
use shunpike_core::{conn, life, table, tls, user};
use shunpike_shm::lock::{RobustLock, Section};

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    end(100)
}

/// Named by the compiler's own library, which was built to be unwound through.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[path = "../../../crates/entry/src/compilers.rs"]
mod compilers;

core::arch::global_asm!(".globl _start", "_start:", "xor ebp, ebp", "and rsp, -16", "call {main}", "ud2", main = sym main);

fn end(code: usize) -> ! {
    // SAFETY: no pointers; it does not come back.
    unsafe { arch::syscall(libc::SYS_exit_group, code, 0, 0, 0, 0, 0) };
    loop {}
}

/// Where the thread's block is, and the word that points to itself: what a libc sets up before all else (psABI, TLS variant II).
#[repr(C, align(64))]
struct ThreadMemory {
    block: arch::ThreadBlock,
    pointer: AtomicUsize,
}

// SAFETY: words alone, all zero.
static THREAD: ThreadMemory = unsafe { core::mem::zeroed() };

/// No handlers here.
struct NoHandlers;

// SAFETY: there are none.
unsafe impl Section for NoHandlers {}

extern "C" fn main() -> ! {
    const ARCH_SET_FS: usize = 0x1002;
    let pointer = (&raw const THREAD.pointer).addr();
    THREAD.pointer.store(pointer, Ordering::Relaxed);
    // SAFETY: the thread pointer of this thread, whose block lies right before it.
    if unsafe { arch::syscall(libc::SYS_arch_prctl, ARCH_SET_FS, pointer, 0, 0, 0, 0) } != 0 {
        end(1);
    }
    life::start(life::Options::default());
    copies();
    locks();
    connections();
    end(0)
}

fn copies() {
    let from = [7u8; 300];
    let mut to = [0u8; 300];
    // SAFETY: both are ours.
    let copied = unsafe { user::copy(to.as_mut_ptr(), from.as_ptr(), from.len()) };
    if copied.is_err() || to != from {
        end(2);
    }
}

/// A dead thread's locks are the kernel's to hand on: it has been shown a list of ours.
fn locks() {
    // SAFETY: all-zero bytes are a lock that is made next.
    let lock: RobustLock = unsafe { core::mem::zeroed() };
    lock.init();
    let guard = lock.lock(NoHandlers);
    if lock.try_lock(NoHandlers).is_some() {
        end(3);
    }
    drop(guard);
    let (mut head, mut size) = (0usize, 0usize);
    let (at, room) = ((&raw mut head).addr(), (&raw mut size).addr());
    // SAFETY: the kernel writes both words.
    let asked = unsafe { arch::syscall(libc::SYS_get_robust_list, 0, at, room, 0, 0, 0) };
    let block = (&raw const THREAD).addr();
    if asked != 0 || !(block..block + size_of::<ThreadMemory>()).contains(&head) {
        end(4);
    }
}

/// A connection of this process with itself is watched.
fn connections() {
    // SAFETY: no pointers.
    let socket = || unsafe { arch::syscall(libc::SYS_socket, libc::AF_INET as usize, libc::SOCK_STREAM as usize, 0, 0, 0, 0) };
    let (listener, client) = (socket(), socket());
    let mut address = [0u32; 4];
    let mut len = 16u32;
    address[0] = libc::AF_INET as u32;
    address[1] = u32::from_ne_bytes([127, 0, 0, 1]);
    let (at, len_at) = ((&raw mut address).addr(), (&raw mut len).addr());
    // SAFETY: the address and its length live through the calls.
    let server = unsafe {
        let call = |n, fd: isize, b, c| arch::syscall(n, fd as usize, b, c, 0, 0, 0);
        if call(libc::SYS_bind, listener, at, 16) != 0
            || call(libc::SYS_listen, listener, 1, 0) != 0
            || call(libc::SYS_getsockname, listener, at, len_at) != 0
            || call(libc::SYS_connect, client, at, 16) != 0
        {
            end(5);
        }
        call(libc::SYS_accept, listener, 0, 0)
    };
    conn::watch(client as i32, false, false, false);
    conn::watch(server as i32, true, false, false);
    if !table::any() || table::conn(server as i32).is_none() {
        end(6);
    }
    if tls::is_critical() {
        end(7);
    }
}
