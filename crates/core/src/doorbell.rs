//! A doorbell: what wakes a process that sleeps on a completion queue.

use rustix::event::EventfdFlags;
use rustix::fd::BorrowedFd;

use rustix::io::Errno;

/// What a doorbell's count begins with: 290 years of a ring each nanosecond.
const RINGS: u64 = 1 << 63;

/// A new doorbell: an eventfd with a count that no number of rings uses up.
///
/// Peers have it too, with all its file's flags. A ring is a read that takes one from the count: it gives an edge as a
/// write does, and cannot be made to wait, as a write could by who fills the count and takes O_NONBLOCK away. The count
/// cannot be taken whole (EFD_SEMAPHORE), so it always shows EPOLLIN, and nobody takes another's edge away.
pub fn new() -> Result<rustix::fd::OwnedFd, Errno> {
    let bell =
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE)?;
    rustix::io::write(&bell, &RINGS.to_ne_bytes())?;
    Ok(bell)
}

/// Rings `bell`.
pub fn ring(bell: i32) {
    if bell < 0 {
        return;
    }
    // SAFETY: a descriptor of ours, or a number that is closed, which the kernel refuses; not -1.
    let bell = unsafe { BorrowedFd::borrow_raw(bell) };
    let mut taken = [0; 8];
    let one = &mut [rustix::io::IoSliceMut::new(&mut taken)];
    // Not at a position (-1), and without waiting whatever the owner, who made it, did to it.
    let rung = rustix::io::preadv2(bell, one, u64::MAX, rustix::io::ReadWriteFlags::NOWAIT);
    if !matches!(rung, Ok(_) | Err(Errno::AGAIN)) {
        // Refused by a filter, or by a Linux before 5.8, whose eventfds know no RWF_NOWAIT.
        let _ = rustix::io::read(bell, &mut taken);
    }
}
