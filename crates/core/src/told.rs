//! What a program was told of a connection, so that it is told once.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{Block, RxHalf, mode};

use crate::{cork, state};

/// Bits of a readable connection.
pub const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// Bits of a writable one.
pub const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

/// What an edge-triggered report has told of: more than that is an edge.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// How far the receiving lane can be seen. Of bytes on TCP the kernel's own edges tell.
    pub(crate) produced: u64,
    /// Calls that have found no room.
    pub(crate) starved: u32,
    /// Number behind the last notice.
    pub(crate) noticed: u32,
}

impl Seen {
    /// Nothing was reported yet.
    pub const NOTHING: Self = Self { produced: 0, starved: 0, noticed: 0 };

    pub(crate) fn of(block: &Block) -> Self {
        let starved = block.starved.load(Ordering::Relaxed);
        Self { produced: produced(&block.rx), starved, noticed: block.notices.told() }
    }

    /// What was reported, when the connection comes on a lane: nothing of its ring was told of that is not there.
    pub fn of_lane(self, block: &Block) -> Self {
        Self { produced: self.produced.min(produced(&block.rx)), ..self }
    }

    /// What was reported, with nobody in want of room.
    pub fn with_room(self, block: &Block) -> Self {
        Self { starved: block.starved.load(Ordering::Relaxed), ..self }
    }
}

/// See [`Seen`]. It only grows while there is a lane: each new byte is an edge, and that the reader comes from TCP into the ring is none
/// (models/edges.pml).
fn produced(half: &RxHalf) -> u64 {
    let Some(dmb) = state::rx_dmb(half) else { return 0 };
    match half.mode.load(Ordering::Acquire) {
        mode::GRANTED | mode::LANE => cork::shown(half, dmb.words(), dmb.words().prod()),
        _ => 0,
    }
}
