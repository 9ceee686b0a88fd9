//! Cache lines of a lane, asked for before they are needed: the other core has them, and its answer takes as long as a hundred
//! instructions. Hints only: they never fault, and an address that is out of date costs no more than its line.

use core::sync::atomic::Ordering;

use shunpike_arch::{prefetch_read as read, prefetch_write as write};
use shunpike_shm::arena::{Block, Half};
use shunpike_shm::lane::Dmb;
use shunpike_shm::lane::short;

/// A call is about to send `n` bytes on this half: the producer's word. Not for more than go beside it: a reader that spins takes
/// the line back before they are copied (docs/profiles.md).
#[inline]
pub fn of_send(half: &Half, n: usize) {
    if n <= short::MOST {
        write(half.dmb.load(Ordering::Relaxed));
    }
}

/// Somebody is about to look at this connection: both producers' words.
#[inline]
pub fn of_look(block: &Block) {
    read(block.rx.dmb.load(Ordering::Relaxed));
    read(block.tx.dmb.load(Ordering::Relaxed));
}

/// Somebody is about to look at it after the next one: where its words are.
#[inline]
pub fn of_words(block: &Block) {
    read(&raw const block.rx.dmb as usize);
    read(&raw const block.tx.dmb as usize);
}

/// Somebody is about to look at it later still: which connection it is.
#[inline]
pub fn of<T>(what: &T) {
    read(core::ptr::from_ref(what) as usize);
}

/// A program is told of `unread` bytes at `offset`, and will read them by another call.
#[inline]
pub fn of_later(dmb: &Dmb, offset: u64, unread: u64) {
    if unread > short::MOST as u64 {
        read(dmb.span(offset).0 as usize);
    }
}
