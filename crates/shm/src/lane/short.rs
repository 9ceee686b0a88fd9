//! A short message beside the producer's word.
//!
//! What a publish of a few bytes puts into the ring stands in the line of the producer's word, too, which goes over to the
//! reader's core anyway. Who reads it there needs no other line of the sender's, nor the sender one of the reader's. Only a
//! copy: it is valid or it is not, and then the ring's bytes are read.
//!
//! | word | offset | writer | reader | a hostile value can |
//! |---|---|---|---|---|
//! | tag | 0x020 | S | R | give R other bytes than are in the ring: S's bytes anyway |
//! | bytes | 0x028 | S | R | the same |
//!
//! The tag is the sequence of a lock for readers only (seqlock): S takes it away before it changes the bytes, and names their place
//! after. R looks before and after.

use super::Words;
use crate::primitive::{Ordering, SharedU64, fence};

/// Most bytes of a short message: with them the line is full.
pub const MOST: usize = WORDS * size_of::<u64>();
const WORDS: usize = 3;

/// A short message's bytes; what is behind its end means nothing.
pub type Bytes = [u64; WORDS];

/// See the module. Its tag is offset (56 bits) | length (8 bits) of the message; 0: none.
#[repr(C)]
pub(crate) struct Short {
    tag: SharedU64,
    bytes: [SharedU64; WORDS],
}

impl Short {
    /// Where the bytes are, for the document.
    #[cfg(all(test, not(loom)))]
    pub(crate) const BYTES_AT: usize = core::mem::offset_of!(Self, bytes);

    pub(crate) fn new() -> Self {
        Self { tag: SharedU64::new(0), bytes: core::array::from_fn(|_| SharedU64::new(0)) }
    }
}

const fn tag(offset: u64, n: usize) -> u64 {
    offset << 8 | n as u64
}

impl Words {
    /// Sender, under its lock: there is none. Before it begins a lane, and where one died that may have had something at a place
    /// that it never published.
    pub fn forget_short(&self) {
        self.prod.4.tag.store(0, Ordering::Relaxed);
    }

    /// Sender, under its lock, before it publishes them: the first `n` of `bytes`, at most [`MOST`], are the ring's at `offset`.
    #[inline]
    pub fn accompany(&self, offset: u64, n: usize, bytes: Bytes) {
        let short = &self.prod.4;
        short.tag.store(0, Ordering::Relaxed);
        // Pairs with the fence of `accompanied`: who reads one of these bytes finds no older tag after.
        fence(Ordering::Release);
        for (to, word) in short.bytes.iter().zip(bytes) {
            to.store(word, Ordering::Relaxed);
        }
        // Release pairs with the Acquire of `accompanied`.
        short.tag.store(tag(offset, n), Ordering::Release);
    }

    /// Reader, with `n` bytes unread at `offset`: the same bytes, if they came as one short message and none has come since.
    #[inline]
    pub fn accompanied(&self, offset: u64, n: usize) -> Option<Bytes> {
        let (short, wanted) = (&self.prod.4, tag(offset, n));
        // Acquire pairs with the Release of `accompany`.
        if short.tag.load(Ordering::Acquire) != wanted {
            return None;
        }
        let bytes = core::array::from_fn(|at| short.bytes[at].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (short.tag.load(Ordering::Relaxed) == wanted).then_some(bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_of_the_last_short_message_is_told() {
        let words = Words::new();
        assert_eq!(words.accompanied(0, 1), None);
        words.accompany(0, 5, [1, 2, 3]);
        assert_eq!(words.accompanied(0, 5), Some([1, 2, 3]));
        assert_eq!([(0, 4), (0, 6), (5, 5), (1, 4)].map(|(at, n)| words.accompanied(at, n)), [None; 4]);
        words.accompany(5, 24, [4, 5, 6]);
        assert_eq!((words.accompanied(0, 5), words.accompanied(5, 24)), (None, Some([4, 5, 6])));
        words.grant(1);
        assert!(words.begin(1, 0, 16384));
        assert_eq!(words.accompanied(5, 24), None, "of an earlier lane");
        words.accompany(0, 5, [7, 8, 9]);
        words.forget_short();
        assert_eq!(words.accompanied(0, 5), None, "of a sender that died before it published");
    }
}
