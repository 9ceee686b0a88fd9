//! The reader's end of a ring.

use alloc::vec::Vec;
use core::net::{Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{DONE, MOST, Place, RECORD, Ring, Segment, UNIT, VOID, len, room_for, seal};
use crate::region::{self, Region, RegionError};

/// The process wrote what no writer writes: nothing more of it can be read.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Nonsense;

/// What the reader finds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// A record; its bytes are in the buffer.
    Segment(Segment),
    /// One that was not sent after all.
    Void,
    /// Nothing.
    Empty,
    /// A record that is being written, or was by one who has died.
    Unfinished,
}

impl Segment {
    /// The header as `encode` has written it.
    fn decode(from: &[u8; RECORD]) -> Self {
        let u64_at = |at: usize| u64::from_le_bytes(from[at..at + 8].try_into().expect("eight bytes"));
        let u16_at = |at: usize| u16::from_le_bytes([from[at], from[at + 1]]);
        let end = |at: usize, port| {
            let octets: [u8; 16] = from[at..at + 16].try_into().expect("sixteen bytes");
            SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port)
        };
        Self {
            time: u64_at(8),
            seq: u64_at(16),
            ack: u64_at(24),
            len: u32::from_le_bytes(from[32..36].try_into().expect("four bytes")),
            flags: u16_at(36),
            local: end(48, u16_at(38)),
            remote: end(64, u16_at(40)),
        }
    }
}

/// The reader's end of a ring, which it makes and unmaps.
pub struct Reader {
    pub(super) ring: Ring,
    region: Region,
    at: u64,
    lost: (u64, u64),
}

impl Reader {
    /// Makes a ring of class `class`; its memory is the caller's from the beginning, and not first charged to who writes.
    pub fn create(class: u8) -> Result<(OwnedFd, Self), RegionError> {
        let fd = region::create("shunpike-tap", len(class))?;
        let reader = Self::map(fd.as_fd(), class)?;
        for page in (0..len(class)).step_by(4096) {
            // SAFETY: inside the mapping, of which nobody else knows yet; it is zero.
            unsafe { reader.region.base().add(page).write_volatile(0) };
        }
        Ok((fd, reader))
    }

    /// The reader of the ring in `fd`, of class `class`.
    fn map(fd: BorrowedFd<'_>, class: u8) -> Result<Self, RegionError> {
        let region = Region::map(fd, len(class))?;
        // SAFETY: just mapped, with this size, sealed against shrinking; unmapped on drop only.
        let ring = unsafe { Ring::at(region.base() as usize, class) };
        Ok(Self { ring, region, at: 0, lost: (0, 0) })
    }

    /// How far writers have come, for [`Reader::is_before`].
    pub fn head(&self) -> u64 {
        // Acquire pairs with the Release in `reserve`.
        self.ring.words.head.0.load(Ordering::Acquire)
    }

    /// Whether something before `head`, of which [`Reader::head`] has told, is unread.
    pub fn is_before(&self, head: u64) -> bool {
        let left = head.wrapping_sub(self.at);
        left != 0 && left <= self.ring.size
    }

    /// Whether all before `head` is read.
    pub fn is_at(&self, head: u64) -> bool {
        head == self.at
    }

    /// The next record; its bytes replace those in `bytes`. One at a time, whatever the writer adds meanwhile.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<Next, Nonsense> {
        let ready = self.head().wrapping_sub(self.at);
        if ready == 0 {
            return Ok(Next::Empty);
        }
        if ready > self.ring.size || !ready.is_multiple_of(UNIT) || ready < room_for(0) {
            return Err(Nonsense);
        }
        // Acquire pairs with the Release in `seal`.
        let found = self.ring.seal_at(self.at).load(Ordering::Acquire);
        if found == 0 {
            return Ok(Next::Unfinished);
        }
        let sent = found == seal(self.at, DONE);
        if !sent && found != seal(self.at, VOID) {
            return Err(Nonsense);
        }
        let mut header = [0; RECORD];
        self.copy(0, &mut header);
        let segment = Segment::decode(&header);
        let payload = segment.len as usize;
        if payload > MOST || room_for(payload) > ready {
            return Err(Nonsense);
        }
        bytes.resize(payload, 0);
        self.copy(RECORD, bytes);
        self.let_go(room_for(payload));
        Ok(if sent { Next::Segment(segment) } else { Next::Void })
    }

    fn copy(&self, from: usize, to: &mut [u8]) {
        let [(first, n), (second, rest)] = self.ring.stretches(Place(self.at), from, to.len());
        // SAFETY: both stretches are in the ring and `to` has room for both; should somebody write there meanwhile, the
        // bytes are his to choose: what follows looks at the copy only.
        unsafe {
            first.copy_to_nonoverlapping(to.as_mut_ptr(), n);
            second.copy_to_nonoverlapping(to.as_mut_ptr().add(n), rest);
        }
    }

    fn let_go(&mut self, n: u64) {
        for (at, n) in self.ring.stretches(Place(self.at), 0, n as usize) {
            // SAFETY: in the ring; no writer uses the stretch before the store below.
            unsafe { at.write_bytes(0, n) };
        }
        self.at = self.at.wrapping_add(n);
        // Release pairs with the Acquire in `reserve`.
        self.ring.words.tail.0.store(self.at, Ordering::Release);
    }

    /// Records and bytes that had no room, so far.
    pub fn lost(&mut self) -> (u64, u64) {
        let words = self.ring.words;
        let seen = (words.lost_records.load(Ordering::Relaxed), words.lost_bytes.load(Ordering::Relaxed));
        // A count that goes back is no count.
        self.lost = (self.lost.0.max(seen.0), self.lost.1.max(seen.1));
        self.lost
    }

    /// How the writer says it stands: one of [`state`](super::state), if it says the truth.
    pub fn state(&self) -> u32 {
        self.ring.words.state.load(Ordering::Relaxed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: the ring is used by `self` only.
        unsafe { self.region.unmap() };
    }
}
