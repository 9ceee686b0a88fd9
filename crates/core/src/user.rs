//! The program's memory, at addresses that may be wrong.
//!
//! The kernel answers a bad pointer with EFAULT; a copy of our own would die of it. So each such copy notes its
//! stack pointer for the thread, and the handler of SIGSEGV and SIGBUS that the preload library puts in front of the
//! program's sends a fault back to there. Nothing is asked beforehand: a good pointer costs a few instructions.

use core::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::tls;

/// The address at which a copy faulted; 0 when the kernel does not tell it (an address that no mapping can have).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fault(pub usize);

/// Most bytes that one call moves: MAX_RW_COUNT (include/linux/fs.h).
pub const MOST: usize = 0x7fff_f000;

const PAGE: usize = 4096;

/// Copies `n` bytes. Errors: one of the two stretches is not mapped as it must be; how much of `to` is written then
/// is not known.
///
/// # Safety
/// Where `to` is mapped, the caller may write there; `from` is not written meanwhile by Rust code.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, n: usize) -> Result<(), Fault> {
    let thread = tls::thread();
    // SAFETY: who faults in it goes on behind it, with false; the rest is the caller's word.
    if unsafe { copy_noted(to, from, n, &raw const thread.recover) } { Ok(()) } else { Err(fault(thread)) }
}

/// How a copy is written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Stores {
    /// Through the caches.
    Cached,
    /// Past them, to memory, where it is long enough. Ordered before all that is written later, as other stores are.
    Past,
}

/// Fewest bytes that are copied past the caches.
const PAST_LEAST: usize = 1024;

/// `copy` by these stores.
///
/// # Safety
/// As for `copy`.
#[inline]
pub unsafe fn copy_by(stores: Stores, to: *mut u8, from: *const u8, n: usize) -> Result<(), Fault> {
    if stores == Stores::Cached || n < PAST_LEAST {
        // SAFETY: the caller's word for it.
        return unsafe { copy(to, from, n) };
    }
    let thread = tls::thread();
    // SAFETY: as in `copy`; it is long enough.
    if unsafe { copy_past_noted(to, from, n, &raw const thread.recover) } {
        Ok(())
    } else {
        Err(fault(thread))
    }
}

#[cold]
fn fault(thread: &tls::Thread) -> Fault {
    Fault(thread.fault.load(Ordering::Relaxed) as usize)
}

/// Reads a value of the program's; `None` where it cannot be read.
///
/// # Safety
/// Any bytes are a valid `T` (a C struct of integers and pointers).
pub unsafe fn fetch<T: Copy>(from: *const T) -> Option<T> {
    arm();
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the value is ours.
    unsafe { copy(value.as_mut_ptr().cast(), from.cast(), size_of::<T>()) }.ok()?;
    // SAFETY: the caller's word for it.
    Some(unsafe { value.assume_init() })
}

/// Reads an event of the program's; `None` where it cannot be read. By the words in which programs write its parts: a load that
/// spans two recent stores waits for both of them to reach the cache.
///
/// # Safety
/// The program gave us the address.
#[inline]
pub unsafe fn fetch_event(from: *const libc::epoll_event) -> Option<libc::epoll_event> {
    arm();
    let thread = tls::thread();
    // SAFETY: who faults in it goes on behind it, with 0; the rest is the caller's word.
    let Loaded { events, data } = unsafe { load_noted(from, &raw const thread.recover) };
    (events >> 32 != 0).then_some(libc::epoll_event { events: events as u32, u64: data })
}

/// Writes a value of the program's; says whether it could.
///
/// # Safety
/// Where `to` is mapped, it is a place that the program gave us to write to.
pub unsafe fn store<T: Copy>(to: *mut T, value: T) -> bool {
    arm();
    // SAFETY: the caller's word for it.
    unsafe { copy(to.cast(), (&raw const value).cast(), size_of::<T>()) }.is_ok()
}

/// Whether `n` bytes can be read.
pub fn readable(at: *const u8, n: usize) -> bool {
    arm();
    let recover = &raw const tls::thread().recover;
    // SAFETY: reading changes nothing; who faults in it goes on behind it.
    n == 0 || touches(at as usize, n).all(|at| unsafe { read_noted(at as *const u8, recover) })
}

/// Whether `n` bytes can be written.
///
/// # Safety
/// The program gave us the stretch to write to: nobody else uses it now.
pub unsafe fn writable(at: *mut u8, n: usize) -> bool {
    arm();
    let recover = &raw const tls::thread().recover;
    // SAFETY: each byte stays as it is; the caller's word for it, and who faults in it goes on behind it.
    n == 0 || touches(at as usize, n).all(|at| unsafe { rewrite_noted(at as *mut u8, recover) })
}

/// An address on each of the pages of `n` bytes at `at`.
#[inline]
fn touches(at: usize, n: usize) -> impl Iterator<Item = usize> {
    let pages = (at % PAGE + n).div_ceil(PAGE);
    (0..pages).map(move |page| if page == 0 { at } else { (at & !(PAGE - 1)).wrapping_add(page * PAGE) })
}

/// Whether the kernel would look at the stretch at all (access_ok, arch/x86/include/asm/uaccess_64.h): where it
/// refuses, it does so before it moves a byte.
pub fn plausible(at: *const u8, n: usize) -> bool {
    (at as usize).checked_add(n).is_some_and(|end| isize::try_from(end).is_ok())
}

static ARM: OnceLock<fn()> = OnceLock::new();
static ARMED: AtomicBool = AtomicBool::new(false);

/// Names the function that puts the handlers in place; once, at start-up.
pub fn on_first_use(arm: fn()) {
    let _ = ARM.set(arm);
}

/// Before the first copy: a program without connections keeps its signals as they are.
#[inline]
pub fn arm() {
    if !ARMED.load(Ordering::Relaxed) {
        arm_slowly();
    }
}

#[cold]
fn arm_slowly() {
    if let Some(arm) = ARM.get()
        && !ARMED.swap(true, Ordering::Relaxed)
    {
        arm();
    }
}

/// Bytes from which on libc may copy by `rep movsb` (its `x86_rep_movsb_threshold`, for the narrowest vectors).
const LONG: usize = 2048;

/// Stack that memcpy uses at most, bytes. A handler that interrupted the copy and faults itself is deeper by a
/// signal frame, which is larger, or on another stack.
const FRAME: u64 = 512;

/// Asked first by the handler of SIGSEGV and SIGBUS: if the fault is that of a `copy` of this thread, the context is
/// changed so that the copy fails.
///
/// # Safety
/// The kernel's own arguments of this delivery.
pub unsafe fn answered(info: *const libc::siginfo_t, context: *mut libc::ucontext_t) -> bool {
    let thread = tls::thread();
    let noted = thread.recover.load(Ordering::Relaxed);
    // SAFETY: the caller's word for it.
    let (info, registers) = unsafe { (&*info, &mut (*context).uc_mcontext.gregs) };
    let stack = registers[libc::REG_RSP as usize] as u64;
    // Sent by kill(2) and its kin: not a fault.
    if noted == 0 || info.si_code <= 0 || stack > noted || noted - stack > FRAME {
        return false;
    }
    // SAFETY: a fault's siginfo has an address; `copy_noted` saved two words where the stack pointer was.
    let (address, [before, resume]) = unsafe { (info.si_addr(), *(noted as *const [u64; 2])) };
    thread.fault.store(address as u64, Ordering::Relaxed);
    thread.recover.store(before, Ordering::Relaxed);
    registers[libc::REG_RSP as usize] = (noted + 16) as i64;
    registers[libc::REG_RIP as usize] = resume as i64;
    true
}

/// memcpy that notes its stack pointer in `recover` while it runs, for `answered`. Returns true. Up to 32 bytes, which is most messages,
/// are two moves of its own: libc's function is free to change what it must preserve, so that has to be saved before.
///
/// From [`LONG`] bytes on libc's memcpy may be `rep movsb`, which moves byte by byte where `to` is up to 31 bytes further in its page
/// than `from`: 3 GB/s where it moves 80 otherwise (AMD Zen 3; glibc's bug 30994). A large buffer of malloc's begins 16 bytes behind a
/// page, and a ring with one, so that is what a reader of bulk has as a rule. A loop of our own moves these, from their end on:
/// each load would else wait for the store before it, which is at the same place in its page.
#[unsafe(naked)]
unsafe extern "C" fn copy_noted(
    to: *mut u8,
    from: *const u8,
    n: usize,
    recover: *const std::sync::atomic::AtomicU64,
) -> bool {
    core::arch::naked_asm!(
        // What `answered` finds at the noted stack pointer: what was noted before, and where to go on.
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
#[unsafe(naked)]
unsafe extern "C" fn copy_past_noted(
    to: *mut u8,
    from: *const u8,
    n: usize,
    recover: *const std::sync::atomic::AtomicU64,
) -> bool {
    core::arch::naked_asm!(
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
struct Loaded {
    /// The events, and 1 above them; 0 where they cannot be read.
    events: u64,
    data: u64,
}

/// Functions as `copy_noted`, of the few instructions that stand in them, on the address in rdi. Where one of these faults, 0 is
/// returned in rax.
macro_rules! noted {
    ($($(#[$doc:meta])* fn $name:ident($from:ty) -> $result:ty { $($instruction:literal)* })*) => {$(
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name(at: $from, recover: *const std::sync::atomic::AtomicU64) -> $result {
            core::arch::naked_asm!(
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

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn handler(_: i32, info: *mut libc::siginfo_t, context: *mut core::ffi::c_void) {
        // SAFETY: the kernel's own arguments.
        assert!(unsafe { answered(info, context.cast()) }, "a fault of the test itself");
    }

    fn handle_faults() {
        // SAFETY: all-zero actions are valid, and the handler lives as long as the process.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut()), 0);
        }
    }

    #[test]
    fn a_fault_is_an_answer_and_the_next_copy_works() {
        handle_faults();
        let mut here = [1u8, 2, 3];
        let nowhere = core::ptr::without_provenance_mut::<u8>(64);
        assert!(!readable(nowhere, 1) && readable(here.as_ptr(), 3));
        // SAFETY: nothing is mapped there, or it is ours.
        unsafe {
            assert_eq!(copy(nowhere, here.as_ptr(), 1), Err(Fault(64)));
            assert_eq!(copy(here.as_mut_ptr(), nowhere, 1), Err(Fault(64)));
            assert_eq!(fetch(core::ptr::without_provenance::<u64>(1 << 62)), None);
            assert!(!writable(nowhere, 1) && !store(nowhere, 1u8) && writable(here.as_mut_ptr(), 3));
            assert_eq!(fetch(here.as_ptr()), Some(here[0]));
            let event = libc::epoll_event { events: u32::MAX, u64: 0x0123_4567_89ab_cdef };
            let same = |read: libc::epoll_event| {
                ({ read.events }, { read.u64 }) == (u32::MAX, 0x0123_4567_89ab_cdef)
            };
            assert!(fetch_event(&raw const event).is_some_and(same));
            assert!(fetch_event(core::ptr::without_provenance(64)).is_none());
            assert_eq!(tls::thread().recover.load(Ordering::Relaxed), 0, "nothing is noted any more");
        }
    }

    #[test]
    fn a_stretch_that_ends_nowhere_is_not_readable() {
        handle_faults();
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of our own, whose second page nobody uses.
        let at = unsafe {
            let at =
                mmap_anonymous(core::ptr::null_mut(), 2 * PAGE, access, MapFlags::PRIVATE).expect("memory");
            mprotect(at.wrapping_byte_add(PAGE), PAGE, MprotectFlags::empty()).expect("mprotect");
            at.cast::<u8>()
        };
        assert!(readable(at, PAGE) && !readable(at, PAGE + 1));
        // SAFETY: our own mapping.
        assert!(!unsafe { writable(at.wrapping_add(PAGE - 1), 2) });
    }

    #[test]
    fn copies_are_whole_wherever_their_stretches_lie_in_a_page() {
        handle_faults();
        let from: Vec<u8> = (0..4 * PAGE).map(|at| (at * 31 % 251) as u8).collect();
        let mut to = vec![0u8; 6 * PAGE];
        let begin = to.as_ptr().align_offset(PAGE) + from.as_ptr() as usize % PAGE;
        for n in (0..=70).chain(PAST_LEAST - 1..PAST_LEAST + 130).chain([
            LONG - 1,
            LONG,
            LONG + 1,
            LONG + 63,
            LONG + 64,
            3 * PAGE + 17,
        ]) {
            for ahead in [0, 1, 8, 16, 31, 32, 63, 64, 65, PAGE - 16] {
                let at = begin + ahead;
                for (stores, skip) in [(Stores::Cached, 0), (Stores::Past, 0), (Stores::Past, 5)] {
                    to.fill(255);
                    // SAFETY: both are ours, and long enough.
                    unsafe { copy_by(stores, to[at..].as_mut_ptr(), from[skip..].as_ptr(), n) }
                        .expect("no fault");
                    let case = (n, ahead, stores, skip);
                    assert!(to[at..at + n] == from[skip..skip + n], "{case:?}");
                    assert!(to[..at].iter().chain(&to[at + n..]).all(|&byte| byte == 255), "{case:?}");
                }
            }
        }
        let nowhere = core::ptr::without_provenance_mut::<u8>(PAGE + from.as_ptr() as usize % PAGE + 16);
        for n in [1, 4, 8, 16, 32, 33, LONG] {
            // SAFETY: nothing is mapped there, or it is ours.
            let failed = unsafe { [copy(nowhere, from.as_ptr(), n), copy(to.as_mut_ptr(), nowhere, n)] };
            assert!(failed.iter().all(|one| one.is_err_and(|Fault(at)| at >= nowhere as usize)), "{n}");
            // SAFETY: as above.
            let failed = unsafe {
                let past = |to, from| copy_by(Stores::Past, to, from, n);
                [past(nowhere, from.as_ptr()), past(to.as_mut_ptr(), nowhere)]
            };
            assert!(failed.iter().all(|one| one.is_err_and(|Fault(at)| at >= nowhere as usize)), "{n}");
        }
    }

    /// A thirtieth of the speed, where libc's own is taken for it on an AMD Zen 3.
    #[test]
    fn a_long_copy_is_as_fast_wherever_it_goes_in_a_page() {
        let n = 16 * PAGE;
        let from = vec![1u8; n + PAGE];
        let mut to = vec![0u8; n + 2 * PAGE];
        let (first, aligned) = (from.as_ptr().align_offset(PAGE), to.as_ptr().align_offset(PAGE));
        let mut fastest = |ahead: usize| {
            let mut once = || {
                let begin = std::time::Instant::now();
                // SAFETY: both are ours, and long enough.
                unsafe { copy(to[aligned + ahead..].as_mut_ptr(), from[first..].as_ptr(), n) }.expect("ours");
                begin.elapsed()
            };
            (0..50).map(|_| once()).min().expect("fifty")
        };
        let (best, ahead) = (fastest(0), fastest(16));
        assert!(ahead < best * 5, "{ahead:?} where {best:?} are enough");
    }

    #[test]
    fn stretches_that_the_kernel_refuses_at_once() {
        let at = core::ptr::without_provenance::<u8>;
        assert!(plausible(at(0), 0) && plausible(at(4096), MOST));
        assert!(!plausible(at(usize::MAX - 1), 4) && !plausible(at(1 << 63), 0));
    }
}
