//! The send lock of a connection.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{Block, TxGuard, TxHeld, mode};
use shunpike_shm::lane::Dmb;
use shunpike_shm::lock::Section;

use crate::state::tx_dmb;
use crate::{cork, window};

/// The send lock: what a holder that died had not written down is derived anew.
#[inline(always)]
pub fn lock<S: Section>(block: &Block, section: S) -> TxGuard<'_, S> {
    let guard = block.tx.lock(section);
    if guard.inherited()
        && block.tx.mode.load(Ordering::Relaxed) == mode::LANE
        && let Some(dmb) = tx_dmb(&block.tx)
    {
        derive(guard.held(), dmb);
        guard.repaired();
    }
    guard
}

/// The holder of the send lock died: what it published counts, what it only copied does not.
#[cold]
#[inline(never)]
fn derive(half: TxHeld<'_>, dmb: Dmb) {
    half.cursor.store(half, dmb.words().prod().offset(), Ordering::Relaxed);
    dmb.words().forget_short();
    cork::forget(half, dmb.words());
    let dmb = dmb.as_left(half.cursor.load(Ordering::Relaxed)).unwrap_or(dmb);
    window::note(half, &dmb);
}
