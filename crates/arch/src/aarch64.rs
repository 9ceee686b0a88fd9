//! AArch64, little-endian. It compiles; nobody has run it yet.

use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::ThreadBlock;

/// A system call of up to six arguments; what the kernel returns, an errno below 0.
///
/// # Safety
/// As the call itself: pointers among the arguments must be what the kernel is told that they are.
#[inline(always)]
pub unsafe fn syscall(n: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let result: isize;
    // SAFETY: the AArch64 Linux calling convention; the kernel changes x0 alone.
    unsafe {
        asm!("svc 0", in("x8") n, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e,
             in("x5") f, options(nostack));
    }
    result
}

/// Has a child that shares the memory run `run(argument)` on a stack of its own, and ends it with what that returns. With CLONE_VFORK the
/// caller sleeps until it has ended or executed a program. Returns the child's number, or an errno below 0.
///
/// # Safety
/// `flags` are clone's, CLONE_VM among them; `stack` is the upper end of a stack, a multiple of 16, which nobody else uses until the child
/// has ended or executed a program. The child must not touch what is a thread's own.
pub unsafe fn run_in_child(
    flags: usize,
    stack: *mut u8,
    run: extern "C" fn(usize) -> i32,
    argument: usize,
) -> isize {
    let result: isize;
    // SAFETY: the caller's word. The child has the parent's registers but for x0 and sp, and never leaves this block.
    unsafe {
        asm!(
            "svc 0", "cbnz x0, 2f",
            "mov x29, xzr", "mov x0, x21", "blr x20",
            "mov x8, 94", "svc 0", "brk 0",
            "2:",
            in("x8") libc::SYS_clone, inlateout("x0") flags as isize => result, in("x1") stack, in("x2") 0usize,
            in("x3") 0usize, in("x4") 0usize, in("x20") run, in("x21") argument,
        );
    }
    result
}

/// A read-modify-write is no full fence: a later load may be done before its store is seen (Arm ARM, B2.3).
pub const RMW_IS_FENCE: bool = false;

/// A huge page, bytes, where the kernel's pages are of 4 KiB.
pub const HUGE_PAGE: usize = 2 << 20;

/// Where the kernel looks at no program's memory any more: the largest space that there is (access_ok, include/asm-generic/access_ok.h).
pub const USER_END: usize = 1 << 52;

/// A counter that runs on at one speed on all CPUs, a few nanoseconds away: the virtual counter of the generic timer.
#[inline(always)]
pub fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads a register that the kernel lets programs read.
    unsafe { asm!("mrs {0}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// The cache line at `at` will be read.
#[inline(always)]
pub fn prefetch_read(at: usize) {
    // SAFETY: a prefetch changes nothing that a program can see, whatever the address.
    unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// The cache line at `at` will be written: no other cache need keep it.
#[inline(always)]
pub fn prefetch_write(at: usize) {
    // SAFETY: as above.
    unsafe { asm!("prfm pstl1keep, [{0}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

core::arch::global_asm!(
    ".pushsection .tbss,\"awT\",%nobits",
    ".balign 64",
    ".globl shunpike_thread",
    ".hidden shunpike_thread",
    ".type shunpike_thread, %object",
    "shunpike_thread: .zero {size}",
    ".size shunpike_thread, {size}",
    ".popsection",
    size = const size_of::<ThreadBlock>(),
);

/// The calling thread's block. It lives as long as its thread: the reference is not to leave it.
#[inline(always)]
pub fn thread_block() -> &'static ThreadBlock {
    let at: *const ThreadBlock;
    // SAFETY: the initial-exec sequence of AArch64's ELF ABI (Thread Local Storage); atomics alone, which are valid as zeroes.
    unsafe {
        asm!(
            "mrs {0}, tpidr_el0",
            "adrp {1}, :gottprel:shunpike_thread",
            "ldr {1}, [{1}, :gottprel_lo12:shunpike_thread]",
            "add {0}, {0}, {1}",
            out(reg) at,
            out(reg) _,
            options(pure, readonly, nostack, preserves_flags)
        );
        &*at
    }
}

/// Where libc's description of the calling thread is told from.
pub fn thread_pointer() -> usize {
    let at: usize;
    // SAFETY: reads the thread's own register.
    unsafe { asm!("mrs {0}, tpidr_el0", out(reg) at, options(pure, nomem, nostack, preserves_flags)) };
    at
}

/// The function of this name and type, if the process has it: `Option<TYPE>`. The library that is loaded into programs must not need a
/// name that a libc may be without.
#[cfg(not(miri))]
#[macro_export]
macro_rules! weak_function {
    ($name:literal: $type:ty) => {{
        let at: *const ();
        // SAFETY: loads what the loader has put into the table of addresses: a function of this type, or null.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, :got_lo12:", $name, "]"),
                out(reg) at,
                options(pure, nomem, nostack, preserves_flags)
            );
            core::mem::transmute::<*const (), Option<$type>>(at)
        }
    }};
}

/// The body of a naked function that has `$look` look at its six integer arguments, and then jumps to where that says, with every argument,
/// however many and of whatever kind, as it is: `extern "C" fn(usize, usize, usize, usize, usize, usize) -> *mut c_void`.
#[macro_export]
macro_rules! look_and_jump {
    ($look:path) => {
        // Argument registers survive the look, x8 among them, which says where a large result goes.
        core::arch::naked_asm!(
            "stp x29, x30, [sp, -224]!",
            "stp x0, x1, [sp, 16]", "stp x2, x3, [sp, 32]", "stp x4, x5, [sp, 48]", "stp x6, x7, [sp, 64]",
            "str x8, [sp, 80]",
            "stp q0, q1, [sp, 96]", "stp q2, q3, [sp, 128]", "stp q4, q5, [sp, 160]", "stp q6, q7, [sp, 192]",
            "bl {look}", "mov x16, x0",
            "ldp q0, q1, [sp, 96]", "ldp q2, q3, [sp, 128]", "ldp q4, q5, [sp, 160]", "ldp q6, q7, [sp, 192]",
            "ldr x8, [sp, 80]",
            "ldp x0, x1, [sp, 16]", "ldp x2, x3, [sp, 32]", "ldp x4, x5, [sp, 48]", "ldp x6, x7, [sp, 64]",
            "ldp x29, x30, [sp], 224",
            "br x16",
            look = sym $look,
        )
    };
}

/// Bytes from which on libc may copy in another way. Here nothing hangs on it.
pub const LONG: usize = 2048;

/// Fewest bytes that are copied past the caches.
pub const PAST_LEAST: usize = 1024;

/// Stack that memcpy uses at most, bytes. A handler that interrupted the copy and faults itself is deeper by a
/// signal frame, which is larger, or on another stack.
const FRAME: u64 = 512;

/// A fault in one of the functions below, of the thread that `note` is of: the context is changed so that it goes on behind the function,
/// which fails. False: it was in none.
///
/// # Safety
/// The kernel's own context of this delivery.
pub unsafe fn recover(context: *mut libc::ucontext_t, note: &AtomicU64) -> bool {
    let noted = note.load(Ordering::Relaxed);
    // SAFETY: the caller's word for it.
    let registers = unsafe { &mut (*context).uc_mcontext };
    if noted == 0 || registers.sp > noted || noted - registers.sp > FRAME {
        return false;
    }
    // SAFETY: each of them saves two words where its stack pointer is, and notes that.
    let [before, resume] = unsafe { *core::ptr::with_exposed_provenance::<[u64; 2]>(noted as usize) };
    note.store(before, Ordering::Relaxed);
    registers.sp = noted;
    registers.pc = resume;
    true
}

/// memcpy that notes its stack pointer in `note` while it runs, for [`recover`]. Returns true. libc's function is free to change what it must
/// preserve, so that is saved before.
///
/// # Safety
/// Where `to` is mapped, the caller may write there; `from` is not written meanwhile by Rust code. `note` is the calling thread's own.
#[unsafe(naked)]
pub unsafe extern "C" fn copy_noted(to: *mut u8, from: *const u8, n: usize, note: *const AtomicU64) -> bool {
    naked_asm!(
        // What `recover` finds at the noted stack pointer: what was noted before, and where to go on.
        "sub sp, sp, 192",
        "stp x29, x30, [sp, 16]",
        "stp x19, x20, [sp, 32]",
        "stp x21, x22, [sp, 48]",
        "stp x23, x24, [sp, 64]",
        "stp x25, x26, [sp, 80]",
        "stp x27, x28, [sp, 96]",
        "stp d8, d9, [sp, 112]",
        "stp d10, d11, [sp, 128]",
        "stp d12, d13, [sp, 144]",
        "stp d14, d15, [sp, 160]",
        "str x3, [sp, 176]",
        "adr x9, 28f",
        "ldr x10, [x3]",
        "stp x10, x9, [sp]",
        "mov x11, sp",
        "str x11, [x3]",
        "bl memcpy",
        "ldr x3, [sp, 176]",
        "ldr x10, [sp]",
        "str x10, [x3]",
        "mov w0, 1",
        "27:",
        "ldp x29, x30, [sp, 16]",
        "ldp x19, x20, [sp, 32]",
        "ldp x21, x22, [sp, 48]",
        "ldp x23, x24, [sp, 64]",
        "ldp x25, x26, [sp, 80]",
        "ldp x27, x28, [sp, 96]",
        "ldp d8, d9, [sp, 112]",
        "ldp d10, d11, [sp, 128]",
        "ldp d12, d13, [sp, 144]",
        "ldp d14, d15, [sp, 160]",
        "add sp, sp, 192",
        "ret",
        "28:",
        "mov w0, 0",
        "b 27b",
    )
}

/// `copy_noted` by stores that go past the caches, for at least [`PAST_LEAST`] bytes: whole lines of `to`, what is before and behind them
/// as ever. Such stores are ordered with later ones before it returns.
///
/// # Safety
/// As for `copy_noted`.
#[unsafe(naked)]
pub unsafe extern "C" fn copy_past_noted(
    to: *mut u8,
    from: *const u8,
    n: usize,
    note: *const AtomicU64,
) -> bool {
    naked_asm!(
        "sub sp, sp, 16",
        "adr x9, 28f",
        "ldr x10, [x3]",
        "stp x10, x9, [sp]",
        "mov x11, sp",
        "str x11, [x3]",
        // Up to a line of `to`, by the first 64 bytes.
        "ldp q0, q1, [x1]",
        "ldp q2, q3, [x1, 32]",
        "stp q0, q1, [x0]",
        "stp q2, q3, [x0, 32]",
        "neg x9, x0",
        "and x9, x9, 63",
        "add x0, x0, x9",
        "add x1, x1, x9",
        "sub x2, x2, x9",
        "22:",
        "ldp q0, q1, [x1]",
        "ldp q2, q3, [x1, 32]",
        "stnp q0, q1, [x0]",
        "stnp q2, q3, [x0, 32]",
        "add x0, x0, 64",
        "add x1, x1, 64",
        "sub x2, x2, 64",
        "cmp x2, 64",
        "b.hs 22b",
        "cbz x2, 26f",
        // The rest, by the last 64 bytes.
        "add x9, x1, x2",
        "ldp q0, q1, [x9, -64]",
        "ldp q2, q3, [x9, -32]",
        "add x9, x0, x2",
        "stp q0, q1, [x9, -64]",
        "stp q2, q3, [x9, -32]",
        "26:",
        "dmb ishst",
        "ldr x10, [sp]",
        "str x10, [x3]",
        "add sp, sp, 16",
        "mov w0, 1",
        "ret",
        "28:",
        "dmb ishst",
        "add sp, sp, 16",
        "mov w0, 0",
        "ret",
    )
}

/// What `load_noted` returns in registers.
#[repr(C)]
pub struct Loaded {
    /// The events, and 1 above them; 0 where they cannot be read.
    pub events: u64,
    /// Its data.
    pub data: u64,
}

/// Functions as `copy_noted`, of the few instructions that stand in them, on the address in x0. Where one of these faults, 0 is
/// returned in x0.
macro_rules! noted {
    ($($(#[$doc:meta])* fn $name:ident($from:ty) -> $result:ty { $($instruction:literal)* })*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Where it is mapped, the caller may do so there. `note` is the calling thread's own.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(at: $from, note: *const AtomicU64) -> $result {
            naked_asm!(
                "sub sp, sp, 16",
                "mov x3, x1",
                "adr x9, 19f",
                "ldr x10, [x3]",
                "stp x10, x9, [sp]",
                "mov x11, sp",
                "str x11, [x3]",
                $($instruction,)*
                "ldr x10, [sp]",
                "str x10, [x3]",
                "add sp, sp, 16",
                "ret",
                "19:",
                "add sp, sp, 16",
                "mov x0, 0",
                "ret",
            )
        }
    )*};
}

noted! {
    /// Reads an event, by its words.
    fn load_noted(*const libc::epoll_event) -> Loaded {
        "ldr w9, [x0]"
        "ldr x1, [x0, 8]"
        "orr x0, x9, 0x100000000"
    }
    /// Reads a byte.
    fn read_noted(*const u8) -> bool {
        "ldrb w9, [x0]"
        "mov w0, 1"
    }
    /// Writes a byte as it stands.
    fn rewrite_noted(*mut u8) -> bool {
        "ldrb w9, [x0]"
        "strb w9, [x0]"
        "mov w0, 1"
    }
}
