//! Unread bytes of the ring to the program, and MSG_PEEK: what it has peeked at, it reads, as on TCP, though the ring is the
//! peer's to write.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::Region;
use shunpike_shm::arena::RxHeld;
use shunpike_shm::lane::Dmb;
use shunpike_shm::lane::short;
use shunpike_wire::DmbToken;

use crate::bufs::Bufs;
use crate::{device, process};

/// Copies `n` unread bytes of the ring at `offset` to the program. What it has peeked at, it gets once more as it
/// was, whatever the peer has written there since. Under the receive lock; `n` is at most what is unread. Errors:
/// EFAULT, where the program's buffers are not there.
pub fn deliver(
    half: RxHeld<'_>,
    dmb: &Dmb,
    bufs: &Bufs<'_>,
    offset: u64,
    n: usize,
    flags: i32,
) -> Result<(), Errno> {
    if flags & libc::MSG_TRUNC != 0 || n == 0 {
        return Ok(());
    }
    let peeks = flags & libc::MSG_PEEK != 0;
    let peeked = half.own().peeked.load(Ordering::Relaxed);
    if !peeks
        && peeked <= offset
        && n <= short::MOST
        && let Some(bytes) = dmb.words().accompanied(offset, n)
    {
        // SAFETY: the program's buffers; `n` bytes of ours.
        return unsafe { bufs.give(bytes.as_ptr().cast(), n) };
    }
    let mut known = peeked.saturating_sub(offset).min(n as u64);
    let mut rest = *bufs;
    if (peeks || known > 0)
        && let Some(copy) = copy_of(half, dmb, peeks.then_some(offset))
    {
        if peeks {
            copy.copy_from(dmb, offset + known, n - known as usize);
            known = n as u64;
            half.own().peeked.store(peeked.max(offset + known), Ordering::Relaxed);
        }
        // SAFETY: the program's buffers; the copy has the ring's size, and `known` is at most what is unread.
        unsafe { bufs.drain(&copy, offset, known as usize)? };
        rest.advance(known as usize);
    }
    let done = bufs.left() - rest.left();
    // SAFETY: as above.
    unsafe { rest.drain(dmb, offset + done as u64, n - done) }
}

/// After `n` bytes came by TCP that the sender had taken back from `offset` of the ring: what was peeked at there, as
/// it was. Errors: as above.
pub fn repeat(
    half: RxHeld<'_>,
    dmb: &Dmb,
    bufs: &Bufs<'_>,
    offset: u64,
    n: usize,
    flags: i32,
) -> Result<(), Errno> {
    let known = half.own().peeked.load(Ordering::Relaxed).saturating_sub(offset).min(n as u64);
    match copy_of(half, dmb, None).filter(|_| known > 0 && flags & libc::MSG_TRUNC == 0) {
        // SAFETY: as above.
        Some(copy) => unsafe { bufs.drain(&copy, offset, known as usize) },
        None => Ok(()),
    }
}

/// Where this process keeps what it has peeked at, made for what is unread from offset `make` on. `None`: nowhere, or there is no memory for it;
/// then the program sees the ring itself.
pub fn copy_of(half: RxHeld<'_>, dmb: &Dmb, make: Option<u64>) -> Option<Dmb> {
    let pid = process::pid();
    // While the sender moves, more can be unread than its window has.
    let size = make.map(|from| dmb.most(from).max(dmb.mapped().into()).next_power_of_two() as u32);
    if let Some(size) = size
        && half.own().copy.load(Ordering::Relaxed) == 0
    {
        half.own().copier.store(pid, Ordering::Relaxed);
        half.own().copy.store(device::sndbuf(size), Ordering::Relaxed);
    }
    let base = half.own().copy.load(Ordering::Relaxed);
    if base == 0 || half.own().copier.load(Ordering::Relaxed) != pid {
        return None;
    }
    // SAFETY: a mapping with a DMB's layout that this process made; retired with the DMB's. All of it is in use, whatever part of the
    // ring is.
    let copy = unsafe { Dmb::at(base, Dmb::mapped_at(base)) };
    match size.filter(|&size| copy.mapped() < size) {
        Some(size) => larger(half, &copy, size),
        None => Some(copy),
    }
}

/// The ring has grown since the copy was made: another one, with what was peeked at.
#[cold]
fn larger(half: RxHeld<'_>, copy: &Dmb, ring: u32) -> Option<Dmb> {
    let made = device::sndbuf(ring);
    // SAFETY: as above.
    let larger = (made != 0).then(|| unsafe { Dmb::at(made, ring) })?;
    let (from, to) = (half.cursor.load(Ordering::Relaxed), half.own().peeked.load(Ordering::Relaxed));
    larger.copy_from(copy, from, to.saturating_sub(from) as usize);
    let old = half.own().copy.swap(made, Ordering::Relaxed);
    let region = Region::of(Dmb::start_of(old), Dmb::len_at(old));
    device::retire(region, DmbToken(0), device::Owner::Local);
    Some(larger)
}
