//! Cache lines of a lane, asked for before they are needed: the other core has them, and its answer takes as long as a hundred
//! instructions. Hints only: they never fault, and an address that is out of date costs no more than its line.

use std::sync::atomic::Ordering;

use shunpike_shm::arena::Half;
use shunpike_shm::lane::Dmb;

use crate::rx;

/// Bytes that mostly lie in one line. For more it does not pay: a reader that spins takes the producer's word back before all are
/// copied (docs/speed.md).
const SHORT: u64 = 32;

/// A call is about to send `n` bytes on this half: the producer's word, and the ring from the cursor on.
#[inline]
pub fn of_send(half: &Half, n: usize) {
    if n as u64 <= SHORT {
        let address = half.dmb.load(Ordering::Relaxed);
        write(address);
        write(Dmb::place(address, half.window.load(Ordering::Relaxed), half.cursor.load(Ordering::Relaxed)));
    }
}

/// Somebody is about to look whether this half has news: the producer's word.
#[inline]
pub fn of_look(half: &Half) {
    read(half.dmb.load(Ordering::Relaxed));
}

/// A reader has seen news, which it will read: if it is short, the line that it lies in. Within a critical section.
#[inline]
pub fn of_receive(half: &Half) {
    let cursor = half.cursor.load(Ordering::Relaxed);
    if let Some(dmb) = rx::dmb(half).and_then(|dmb| dmb.as_sent())
        && dmb.words().prod().offset().wrapping_sub(cursor) <= SHORT
    {
        read(dmb.span(cursor).0 as usize);
    }
}

/// A program was told of news at `offset` and will read it by another call.
#[inline]
pub fn of_later(dmb: &Dmb, offset: u64) {
    read(dmb.span(offset).0 as usize);
}

/// The line at `at` will be read.
#[inline(always)]
fn read(at: usize) {
    // SAFETY: a prefetch changes nothing that a program can see, whatever the address.
    unsafe { core::arch::asm!("prefetcht0 [{0}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// The line at `at` will be written: no other cache need keep it.
#[inline(always)]
fn write(at: usize) {
    // SAFETY: as above. A CPU that does not know the instruction does nothing (Intel SDM, PREFETCHW).
    unsafe { core::arch::asm!("prefetchw [{0}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}
