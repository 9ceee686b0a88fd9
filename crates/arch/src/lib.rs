//! What is a processor's: the one crate with assembly for core and shm, a file for each processor.
//!
//! A file for another one has the same items. It knows no connection and no libc: what it needs are the kernel's calling
//! convention, the thread pointer, and the order in which the processor's stores are seen.
//!
//! ```
//! // SAFETY: getpid(2) takes nothing, and does not fail.
//! let pid = unsafe { shunpike_arch::syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) };
//! assert_eq!(pid, std::process::id() as isize);
//! ```

#![no_std]

use core::sync::atomic::AtomicU64;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// What the library keeps of a thread, all zero in a new one. It is declared in assembly so that it uses the initial-exec model: no
/// allocation on first use in a thread, a single load to reach it, safe in signal handlers and after a siglongjmp.
#[repr(C, align(64))]
pub struct ThreadBlock {
    /// Core's part: critical sections, waits, copies under way.
    pub core: [AtomicU64; 16],
    /// The locks' part: the list of those that the thread holds.
    pub locks: [AtomicU64; 8],
}

/// A function that the process may be without, by its name and type: `Option<TYPE>`.
#[cfg(miri)]
#[macro_export]
macro_rules! weak_function {
    // The interpreter knows no assembly, nor these functions.
    ($name:literal: $type:ty) => {
        None::<$type>
    };
}
