//! The send lock of a connection.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{Block, Half, mode};
use shunpike_shm::lane::Dmb;
use shunpike_shm::lock::{Guard, Section};

use crate::state::tx_dmb;
use crate::{cork, window};

/// The send lock: what a holder that died had not written down is derived anew.
#[inline(always)]
pub fn lock<S: Section>(block: &Block, section: S) -> Guard<'_, S> {
    let guard = block.tx.lock.lock(section);
    if guard.inherited()
        && block.tx.mode.load(Ordering::Relaxed) == mode::LANE
        && let Some(dmb) = tx_dmb(&block.tx)
    {
        derive(&block.tx, dmb);
        guard.repaired();
    }
    guard
}

/// The holder of the send lock died: what it published counts, what it only copied does not.
fn derive(half: &Half, dmb: Dmb) {
    half.cursor.store(dmb.words().prod().offset(), Ordering::Relaxed);
    dmb.words().forget_short();
    cork::forget(half, dmb.words());
    let dmb = dmb.as_left(half.cursor.load(Ordering::Relaxed)).unwrap_or(dmb);
    window::note(half, &dmb);
}
