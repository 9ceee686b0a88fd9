//! Ticks: a clock that costs a few nanoseconds and no system call.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::host::host;

static TICKS_PER_US: AtomicU64 = AtomicU64::new(0);

#[cfg(not(feature = "made-up-clock"))]
pub use shunpike_arch::ticks;

#[cfg(feature = "made-up-clock")]
pub use made_up::{pass, ticks};

/// For tests: the process's clock with what was said to have passed.
#[cfg(feature = "made-up-clock")]
mod made_up {
    use core::sync::atomic::{AtomicU64, Ordering};

    static PASSED_US: AtomicU64 = AtomicU64::new(0);

    /// The counter.
    pub fn ticks() -> u64 {
        shunpike_arch::ticks() + super::from_us(PASSED_US.load(Ordering::Relaxed))
    }

    /// So many microseconds pass at once, for this process and those that it forks later.
    pub fn pass(us: u64) {
        PASSED_US.fetch_add(us, Ordering::Relaxed);
    }

    /// Nanoseconds that were said to pass.
    pub(super) fn passed() -> u64 {
        PASSED_US.load(Ordering::Relaxed) * 1000
    }
}

/// Now, with the CPU of the calling thread in place of the lowest bits.
pub fn stamp() -> u64 {
    ticks() & !CPU_MASK | cpu()
}

/// Whether a stamp was made on the CPU that the calling thread runs on.
pub fn is_from_here(stamp: u64) -> bool {
    stamp & CPU_MASK == cpu()
}

/// CPUs whose numbers differ by its multiples are taken for one.
const CPU_MASK: u64 = 0xff;

fn cpu() -> u64 {
    u64::from((host().cpu)()) & CPU_MASK
}

/// Ticks in `us` microseconds.
#[inline]
pub fn from_us(us: u64) -> u64 {
    us * TICKS_PER_US.load(Ordering::Relaxed).max(1)
}

/// Whole microseconds in `ticks`.
pub fn to_us(ticks: u64) -> u64 {
    ticks / TICKS_PER_US.load(Ordering::Relaxed).max(1)
}

/// Nanoseconds in `ticks`, rounded up to a microsecond.
pub fn to_ns(ticks: u64) -> u64 {
    ticks.div_ceil(TICKS_PER_US.load(Ordering::Relaxed).max(1)).saturating_mul(1000)
}

/// Measures the counter against CLOCK_MONOTONIC for some tens of microseconds. Once, at start-up.
pub fn calibrate() {
    let now = || {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    };
    let (t0, c0) = (now(), ticks());
    let mut t1 = t0;
    while t1 < t0 + 30_000 {
        t1 = now();
    }
    let per_us = (ticks() - c0) * 1000 / (t1 - t0);
    TICKS_PER_US.store(per_us.max(1), Ordering::Relaxed);
}

/// CLOCK_MONOTONIC, nanoseconds.
pub fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64;
    #[cfg(feature = "made-up-clock")]
    let now = now + made_up::passed();
    now
}
