//! The client's half of an ISM device: what a program does with DMBs. Its broker's half says who holds them.
//!
//! Core uses the device that [`Own`] names. There is no table of functions: each call is inlined.

use rustix::fd::{BorrowedFd, OwnedFd};

use crate::lane::{Cursor, Dmb, MAX_CLASS, Side, Wait, Words};
use crate::pages::{CqNews, Sleep};
use crate::region::{self, Region, RegionError};

/// What a device can do. Both halves say the same.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// A peer's DMB is memory here, which can be the send buffer (`support_dmb_nocopy` of `struct smcd_ops`).
    pub mapped: bool,
    /// Both ends change the words of a DMB by compare-and-swap, and one of them sees the other's change at once.
    pub shared_cas: bool,
    /// A receiver can read memory of the sender's process, which lends it (MSG_ZEROCOPY).
    pub lends: bool,
}

/// The client's half of a device. A DMB of a device that cannot map is this end's copy of it.
pub trait ClientDevice {
    /// What it can do.
    const CAPABILITIES: Capabilities;

    /// The memory of a DMB of size class `class`, to be registered.
    fn make(class: u8) -> Result<OwnedFd, RegionError>;

    /// The first `len` bytes of a DMB that this process made.
    fn map(memory: BorrowedFd<'_>, len: usize) -> Result<Region, RegionError>;

    /// The first `len` bytes of the DMB that the broker has attached for us, of size class `class`. Its owner is believed in nothing.
    fn attach(memory: BorrowedFd<'_>, class: u8, len: usize) -> Result<Region, RegionError>;

    /// Moves `n` bytes at `offset` of the send buffer into the peer's DMB (`move_data` of `struct smcd_ops`).
    fn move_data(dmb: &Dmb, sndbuf: &Dmb, offset: u64, n: usize);

    /// Sender: see [`Words::publish`].
    fn publish(words: &Words, at: Cursor, n: u64) -> Result<Cursor, Cursor>;

    /// Receiver: see [`Words::consume`].
    fn consume(words: &Words, at: Cursor, n: u64) -> Result<Cursor, Cursor>;

    /// Who waits on `side`, for whoever has just published or consumed.
    fn awaited(words: &Words, side: Side) -> Wait;

    /// Tells a completion queue of the peer's that connection `slot` has news. Returns the sleep to ring for.
    fn notify(queue: &CqNews, slot: u16) -> Option<Sleep>;
}

/// The device of this host: its DMBs are memfds that both ends map.
pub struct Loopback;

/// The device that programs use.
pub type Own = Loopback;

impl ClientDevice for Loopback {
    const CAPABILITIES: Capabilities = Capabilities { mapped: true, shared_cas: true, lends: true };

    fn make(class: u8) -> Result<OwnedFd, RegionError> {
        region::create("shunpike-dmb", Dmb::len(class))
    }

    fn map(memory: BorrowedFd<'_>, len: usize) -> Result<Region, RegionError> {
        let region = Region::map(memory, len)?;
        region.keep_out_of_dumps();
        Ok(region)
    }

    fn attach(memory: BorrowedFd<'_>, class: u8, len: usize) -> Result<Region, RegionError> {
        if class > MAX_CLASS || len > Dmb::len(class) {
            return Err(RegionError::Unsealed);
        }
        region::verify(memory, Dmb::len(class))?;
        Self::map(memory, len)
    }

    fn move_data(dmb: &Dmb, sndbuf: &Dmb, offset: u64, n: usize) {
        dmb.copy_from(sndbuf, offset, n);
    }

    #[inline(always)]
    fn publish(words: &Words, at: Cursor, n: u64) -> Result<Cursor, Cursor> {
        words.publish(at, n)
    }

    #[inline(always)]
    fn consume(words: &Words, at: Cursor, n: u64) -> Result<Cursor, Cursor> {
        words.consume(at, n)
    }

    #[inline(always)]
    fn awaited(words: &Words, side: Side) -> Wait {
        words.waiting(side)
    }

    #[inline(always)]
    fn notify(queue: &CqNews, slot: u16) -> Option<Sleep> {
        queue.post(slot)
    }
}
