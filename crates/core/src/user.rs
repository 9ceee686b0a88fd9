//! The program's memory, at addresses that may be wrong.
//!
//! The kernel answers a bad pointer with EFAULT; a copy of our own would die of it. So each such copy notes its
//! stack pointer for the thread, and the handler of SIGSEGV and SIGBUS that the preload library puts in front of the
//! program's sends a fault back to there. Nothing is asked beforehand: a good pointer costs a few instructions.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use shunpike_arch as arch;

use crate::host::host;
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
    if unsafe { arch::copy_noted(to, from, n, &raw const thread.recover) } {
        Ok(())
    } else {
        Err(fault(thread))
    }
}

/// How a copy is written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Stores {
    /// Through the caches.
    Cached,
    /// Past them, to memory, where it is long enough. Ordered before all that is written later, as other stores are.
    Past,
}

/// `copy` by these stores.
///
/// # Safety
/// As for `copy`.
#[inline]
pub unsafe fn copy_by(stores: Stores, to: *mut u8, from: *const u8, n: usize) -> Result<(), Fault> {
    if stores == Stores::Cached || n < arch::PAST_LEAST {
        // SAFETY: the caller's word for it.
        return unsafe { copy(to, from, n) };
    }
    let thread = tls::thread();
    // SAFETY: as in `copy`; it is long enough.
    if unsafe { arch::copy_past_noted(to, from, n, &raw const thread.recover) } {
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
    let arch::Loaded { events, data } = unsafe { arch::load_noted(from, &raw const thread.recover) };
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
    n == 0 || touches(at as usize, n).all(|at| unsafe { arch::read_noted(at as *const u8, recover) })
}

/// Whether `n` bytes can be written.
///
/// # Safety
/// The program gave us the stretch to write to: nobody else uses it now.
pub unsafe fn writable(at: *mut u8, n: usize) -> bool {
    arm();
    let recover = &raw const tls::thread().recover;
    // SAFETY: each byte stays as it is; the caller's word for it, and who faults in it goes on behind it.
    n == 0 || touches(at as usize, n).all(|at| unsafe { arch::rewrite_noted(at as *mut u8, recover) })
}

/// An address on each of the pages of `n` bytes at `at`.
#[inline]
fn touches(at: usize, n: usize) -> impl Iterator<Item = usize> {
    let pages = (at % PAGE + n).div_ceil(PAGE);
    (0..pages).map(move |page| if page == 0 { at } else { (at & !(PAGE - 1)).wrapping_add(page * PAGE) })
}

/// Whether the kernel would look at the stretch at all (access_ok): where it refuses, it does so before it moves a byte.
pub fn plausible(at: *const u8, n: usize) -> bool {
    (at as usize).checked_add(n).is_some_and(|end| end <= arch::USER_END)
}

/// The host's handlers may be put in place.
static ON: AtomicBool = AtomicBool::new(false);
static ARMED: AtomicBool = AtomicBool::new(false);

/// From here on the first copy has the host's handlers put in place. At start-up, in a program that may get lanes: in any other hooks look
/// at the program's memory, too, and its signals stay as they are.
pub fn start() {
    ON.store(true, Ordering::Relaxed);
}

/// Before the first copy.
#[inline]
pub fn arm() {
    if !ARMED.load(Ordering::Relaxed) {
        arm_slowly();
    }
}

#[cold]
fn arm_slowly() {
    if ON.load(Ordering::Relaxed) && !ARMED.swap(true, Ordering::Relaxed) {
        (host().answer_faults)();
    }
}

/// Asked first by the handler of SIGSEGV and SIGBUS: if the fault is that of a `copy` of this thread, the context is
/// changed so that the copy fails.
///
/// # Safety
/// The kernel's own arguments of this delivery.
pub unsafe fn answered(info: *const libc::siginfo_t, context: *mut libc::ucontext_t) -> bool {
    let thread = tls::thread();
    // SAFETY: the caller's word for it.
    let info = unsafe { &*info };
    // Sent by kill(2) and its kin: not a fault.
    // SAFETY: as above.
    if info.si_code <= 0 || !unsafe { arch::recover(context, &thread.recover) } {
        return false;
    }
    // SAFETY: a fault's siginfo has an address.
    thread.fault.store(unsafe { info.si_addr() } as u64, Ordering::Relaxed);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use arch::{LONG, PAST_LEAST};

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
