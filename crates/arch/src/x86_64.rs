//! x86-64.

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
    // SAFETY: the x86-64 Linux calling convention; rcx and r11 are clobbered by `syscall`.
    unsafe {
        asm!("syscall", inlateout("rax") n as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
             in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
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
    // SAFETY: the caller's word. The child has the parent's registers but for rax and rsp, and never leaves this block.
    unsafe {
        asm!(
            "syscall", "test rax, rax", "jnz 2f",
            "xor ebp, ebp", "mov rdi, r13", "call r12",
            "mov edi, eax", "mov eax, 231", "syscall", "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result, in("rdi") flags, in("rsi") stack, in("rdx") 0usize,
            in("r10") 0usize, in("r8") 0usize, in("r9") 0usize, in("r12") run, in("r13") argument,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// A read-modify-write is a full fence: every locked instruction is one (Intel SDM, volume 3, 9.2.2).
pub const RMW_IS_FENCE: bool = true;

/// A huge page, bytes.
pub const HUGE_PAGE: usize = 2 << 20;

/// Where the kernel looks at no program's memory any more (access_ok, arch/x86/include/asm/uaccess_64.h).
pub const USER_END: usize = isize::MAX as usize;

/// A counter that runs on at one speed on all CPUs, a few nanoseconds away: the time stamp counter.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: rdtsc has no preconditions on x86-64.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The cache line at `at` will be read.
#[inline(always)]
pub fn prefetch_read(at: usize) {
    // SAFETY: a prefetch changes nothing that a program can see, whatever the address.
    unsafe { asm!("prefetcht0 [{0}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// The cache line at `at` will be written: no other cache need keep it.
#[inline(always)]
pub fn prefetch_write(at: usize) {
    // SAFETY: as above. A CPU that does not know the instruction does nothing (Intel SDM, PREFETCHW).
    unsafe { asm!("prefetchw [{0}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

#[cfg(not(feature = "gs"))]
core::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 64",
    ".globl shunpike_thread",
    ".hidden shunpike_thread",
    ".type shunpike_thread, @object",
    "shunpike_thread: .zero {size}",
    ".size shunpike_thread, {size}",
    ".popsection",
    size = const size_of::<ThreadBlock>(),
);

/// Where the block lies behind the words that the injector keeps of a thread (crates/inject/src/blob.s).
#[cfg(feature = "gs")]
pub const BEHIND: usize = 128;

/// The calling thread's block. It lives as long as its thread: the reference is not to leave it.
#[cfg(feature = "gs")]
#[inline(always)]
pub fn thread_block() -> &'static ThreadBlock {
    let at: usize;
    // SAFETY: the first of the injector's words points to itself; atomics alone, which are valid as zeroes.
    unsafe {
        asm!("mov {0}, qword ptr gs:[0]", out(reg) at, options(pure, readonly, nostack, preserves_flags));
        &*core::ptr::with_exposed_provenance(at + BEHIND)
    }
}

/// The calling thread's block. It lives as long as its thread: the reference is not to leave it.
#[cfg(not(feature = "gs"))]
#[inline(always)]
pub fn thread_block() -> &'static ThreadBlock {
    let at: *const ThreadBlock;
    // SAFETY: the initial-exec sequence of the x86-64 psABI (ELF Handling For Thread-Local Storage, 4.4.6); atomics
    // alone, which are valid as zeroes.
    unsafe {
        asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + shunpike_thread@GOTTPOFF]",
            out(reg) at,
            options(pure, readonly, nostack)
        );
        &*at
    }
}

/// Where libc's description of the calling thread begins.
pub fn thread_pointer() -> usize {
    let at: usize;
    // SAFETY: the x86-64 psABI's: the word at fs points to itself.
    unsafe { asm!("mov {0}, qword ptr fs:[0]", out(reg) at, options(pure, readonly, nostack)) };
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
                concat!("mov {0}, qword ptr [rip + ", $name, "@GOTPCREL]"),
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
        // Argument registers survive the look (rax counts the vector registers of a variadic call, whose values a look may
        // change: they are kept, too); the frame leaves the stack aligned.
        core::arch::naked_asm!(
            "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
            "sub rsp, 128",
            "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2",
            "movups [rsp + 48], xmm3", "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5",
            "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
            "call {look}", "mov r11, rax",
            "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]",
            "movups xmm3, [rsp + 48]", "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]",
            "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
            "add rsp, 128",
            "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "jmp r11",
            look = sym $look,
        )
    };
}

/// Bytes from which on libc may copy by `rep movsb` (its `x86_rep_movsb_threshold`, for the narrowest vectors).
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
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let stack = registers[libc::REG_RSP as usize] as u64;
    if noted == 0 || stack > noted || noted - stack > FRAME {
        return false;
    }
    // SAFETY: each of them saves two words where its stack pointer is, and notes that.
    let [before, resume] = unsafe { *core::ptr::with_exposed_provenance::<[u64; 2]>(noted as usize) };
    note.store(before, Ordering::Relaxed);
    registers[libc::REG_RSP as usize] = (noted + 16) as i64;
    registers[libc::REG_RIP as usize] = resume as i64;
    true
}

/// memcpy that notes its stack pointer in `recover` while it runs, for [`recover`]. Returns true. Up to 32 bytes, which is most messages,
/// are two moves of its own: libc's function is free to change what it must preserve, so that has to be saved before.
///
/// From [`LONG`] bytes on libc's memcpy may be `rep movsb`, which moves byte by byte where `to` is up to 31 bytes further in its page
/// than `from`: 3 GB/s where it moves 80 otherwise (AMD Zen 3; glibc's bug 30994). A large buffer of malloc's begins 16 bytes behind a
/// page, and a ring with one, so that is what a reader of bulk has as a rule. A loop of our own moves these, from their end on:
/// each load would else wait for the store before it, which is at the same place in its page.
///
/// # Safety
/// Where `to` is mapped, the caller may write there; `from` is not written meanwhile by Rust code. `note` is the calling thread's own.
#[unsafe(naked)]
pub unsafe extern "C" fn copy_noted(to: *mut u8, from: *const u8, n: usize, note: *const AtomicU64) -> bool {
    naked_asm!(
        // What `recover` finds at the noted stack pointer: what was noted before, and where to go on.
        "cmp rdx, 32",
        "ja 20f",
        "lea rax, [rip + 19f]",
        "push rax",
        "push qword ptr [rcx]",
        "mov [rcx], rsp",
        "cmp edx, 16",
        "jae 16f",
        "cmp edx, 8",
        "jae 14f",
        "cmp edx, 4",
        "jae 12f",
        "test edx, edx",
        "jz 18f",
        "movzx r8d, byte ptr [rsi]",
        "movzx r9d, byte ptr [rsi + rdx - 1]",
        "mov eax, edx",
        "shr eax",
        "movzx esi, byte ptr [rsi + rax]",
        "mov [rdi + rax], sil",
        "mov [rdi], r8b",
        "mov [rdi + rdx - 1], r9b",
        "jmp 18f",
        "12:",
        "mov eax, [rsi]",
        "mov r8d, [rsi + rdx - 4]",
        "mov [rdi], eax",
        "mov [rdi + rdx - 4], r8d",
        "jmp 18f",
        "14:",
        "mov rax, [rsi]",
        "mov r8, [rsi + rdx - 8]",
        "mov [rdi], rax",
        "mov [rdi + rdx - 8], r8",
        "jmp 18f",
        "16:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + rdx - 16], xmm1",
        "18:",
        "pop qword ptr [rcx]",
        "pop rax",
        "mov eax, 1",
        "ret",
        "19:",
        "xor eax, eax",
        "ret",
        "20:",
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov rbx, rcx",
        "lea rax, [rip + 28f]",
        "push rax",
        "push qword ptr [rbx]",
        "mov [rbx], rsp",
        "cmp rdx, {long}",
        "jae 22f",
        "21:",
        "call qword ptr [rip + memcpy@GOTPCREL]",
        "jmp 26f",
        // to - from within their pages: 1 to 63.
        "22:",
        "mov eax, edi",
        "sub eax, esi",
        "dec eax",
        "and eax, 4095",
        "cmp eax, 62",
        "ja 21b",
        // The first 64 bytes are loaded now and stored last.
        "movups xmm4, [rsi]",
        "movups xmm5, [rsi + 16]",
        "movups xmm6, [rsi + 32]",
        "movups xmm7, [rsi + 48]",
        "24:",
        "movups xmm0, [rsi + rdx - 16]",
        "movups xmm1, [rsi + rdx - 32]",
        "movups xmm2, [rsi + rdx - 48]",
        "movups xmm3, [rsi + rdx - 64]",
        "movups [rdi + rdx - 16], xmm0",
        "movups [rdi + rdx - 32], xmm1",
        "movups [rdi + rdx - 48], xmm2",
        "movups [rdi + rdx - 64], xmm3",
        "sub rdx, 64",
        "cmp rdx, 64",
        "ja 24b",
        "movups [rdi], xmm4",
        "movups [rdi + 16], xmm5",
        "movups [rdi + 32], xmm6",
        "movups [rdi + 48], xmm7",
        "26:",
        "pop qword ptr [rbx]",
        "pop rax",
        "mov eax, 1",
        "27:",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        "28:",
        "cld",
        "xor eax, eax",
        "jmp 27b",
        long = const LONG,
    )
}

/// `copy_noted` by stores that go past the caches, for at least [`PAST_LEAST`] bytes: whole lines of `to`, what is before and behind them
/// as ever. Such stores are ordered among each other and with others by `sfence` only, which comes before it returns.
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
        "lea rax, [rip + 28f]",
        "push rax",
        "push qword ptr [rcx]",
        "mov [rcx], rsp",
        // Up to a line of `to`, by the first 64 bytes.
        "mov rax, rdi",
        "neg rax",
        "and eax, 63",
        "jz 22f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rdi, rax",
        "add rsi, rax",
        "sub rdx, rax",
        "22:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movntps [rdi], xmm0",
        "movntps [rdi + 16], xmm1",
        "movntps [rdi + 32], xmm2",
        "movntps [rdi + 48], xmm3",
        "add rdi, 64",
        "add rsi, 64",
        "sub rdx, 64",
        "cmp rdx, 64",
        "jae 22b",
        "test edx, edx",
        "jz 26f",
        // The rest, by the last 64 bytes.
        "movups xmm0, [rsi + rdx - 64]",
        "movups xmm1, [rsi + rdx - 48]",
        "movups xmm2, [rsi + rdx - 32]",
        "movups xmm3, [rsi + rdx - 16]",
        "movups [rdi + rdx - 64], xmm0",
        "movups [rdi + rdx - 48], xmm1",
        "movups [rdi + rdx - 32], xmm2",
        "movups [rdi + rdx - 16], xmm3",
        "26:",
        "sfence",
        "pop qword ptr [rcx]",
        "pop rax",
        "mov eax, 1",
        "ret",
        "28:",
        "sfence",
        "xor eax, eax",
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

/// Functions as `copy_noted`, of the few instructions that stand in them, on the address in rdi. Where one of these faults, 0 is
/// returned in rax.
macro_rules! noted {
    ($($(#[$doc:meta])* fn $name:ident($from:ty) -> $result:ty { $($instruction:literal)* })*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Where it is mapped, the caller may do so there. `note` is the calling thread's own.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(at: $from, note: *const AtomicU64) -> $result {
            naked_asm!(
                "lea rax, [rip + 19f]",
                "push rax",
                "push qword ptr [rsi]",
                "mov [rsi], rsp",
                $($instruction,)*
                "pop qword ptr [rsi]",
                "pop r8",
                "ret",
                "19:",
                "xor eax, eax",
                "ret",
            )
        }
    )*};
}

noted! {
    /// Reads an event, by its words.
    fn load_noted(*const libc::epoll_event) -> Loaded {
        "mov eax, [rdi]"
        "mov edx, [rdi + 4]"
        "mov ecx, [rdi + 8]"
        "shl rcx, 32"
        "or rdx, rcx"
        "bts rax, 32"
    }
    /// Reads a byte.
    fn read_noted(*const u8) -> bool {
        "movzx eax, byte ptr [rdi]"
        "mov eax, 1"
    }
    /// Writes a byte as it stands.
    fn rewrite_noted(*mut u8) -> bool {
        "movzx eax, byte ptr [rdi]"
        "mov [rdi], al"
        "mov eax, 1"
    }
}
