//! One direction of a connection over a link group: what is written next, and what has come. No I/O and no clock.
//!
//! The sender's ring keeps each byte until the peer's program has read it, so that whatever is lost with a link can be written again: SMC-D's
//! rule for a send buffer that is the peer's DMB, over a network. Both rings have the same size. Cursors are bytes since the connection began.
//!
//! *Failover* (RFC 7609, 4.6). Each write's immediate counts as one CDC message with a sequence number, modulo 2^16. When a link was given up
//! the receiver says how many have come, and up to which byte. The sender knows which byte belongs to that number: it compares, and goes on there.

use crate::words::{CURSOR, Seen, Slot};
use std::collections::VecDeque;

/// Immediates of bytes that were not read yet, at the most: half of what a sequence number can tell apart.
const MOST_TOLD: usize = 1 << 15;

/// The peer has told what cannot be.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Broken;

/// A piece of a ring to be written: it does not go over the ring's end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Byte of the ring at which it begins, in both.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// The cursor behind it.
    pub end: u64,
}

/// The end that sends.
#[derive(Debug)]
pub struct Sender {
    /// Bytes, a power of two.
    size: u64,
    /// The program has put bytes in up to there.
    produced: u64,
    /// They are written up to there.
    written: u64,
    /// The peer's program has read up to there.
    consumed: u64,
    /// Immediates so far.
    sequence: u16,
    /// The cursors told with the last immediates, the newest last: `sequence` belongs to the newest. Those of bytes that were read are left out,
    /// but the last of them.
    told: VecDeque<u64>,
}

impl Sender {
    /// For rings of `size` bytes, a power of two up to 2^23.
    ///
    /// # Panics
    /// It is none.
    pub fn new(size: u32) -> Self {
        assert!(size.is_power_of_two() && size <= 1 << 23);
        Self {
            size: size.into(),
            produced: 0,
            written: 0,
            consumed: 0,
            sequence: 0,
            told: VecDeque::from([0]),
        }
    }

    /// Room for the program, bytes.
    pub fn room(&self) -> u64 {
        self.size - (self.produced - self.consumed)
    }

    /// Up to where the program has put bytes in.
    pub fn produced(&self) -> u64 {
        self.produced
    }

    /// Whether all that was put in has been read at the other end.
    pub fn is_idle(&self) -> bool {
        self.consumed == self.produced
    }

    /// The program has put `n` more bytes in.
    ///
    /// # Panics
    /// There was no room for them.
    pub fn produce(&mut self, n: u64) {
        assert!(n <= self.room());
        self.produced += n;
    }

    /// What is to be written next, at most `most` bytes.
    pub fn next(&self, most: usize) -> Option<Chunk> {
        if self.told.len() > MOST_TOLD {
            return None;
        }
        let offset = self.written & (self.size - 1);
        let len = (self.produced - self.written).min(self.size - offset).min(most as u64);
        (len > 0).then_some(Chunk { offset: offset as usize, len: len as usize, end: self.written + len })
    }

    /// It was posted.
    pub fn posted(&mut self, chunk: Chunk) {
        self.written = chunk.end;
        self.sequence = self.sequence.wrapping_add(1);
        self.told.push_back(chunk.end);
    }

    /// The peer's program has read up to there. What says less than before is old. Errors: it cannot have.
    pub fn consumed(&mut self, cursor: u64) -> Result<(), Broken> {
        if cursor > self.written {
            return Err(Broken);
        }
        self.consumed = self.consumed.max(cursor);
        while self.told.len() > 1 && self.told[1] <= self.consumed {
            self.told.pop_front();
        }
        Ok(())
    }

    /// The link is gone, and this has come of what was written: goes on there. Errors: it cannot be.
    pub fn resume(&mut self, seen: Seen) -> Result<(), Broken> {
        let lost = usize::from(self.sequence.wrapping_sub(seen.sequence));
        let newest = self.told.len() - 1;
        let at = newest.checked_sub(lost).ok_or(Broken)?;
        if self.told[at] != seen.cursor {
            return Err(Broken);
        }
        self.told.truncate(at + 1);
        (self.sequence, self.written) = (seen.sequence, seen.cursor);
        Ok(())
    }
}

/// The end that receives.
#[derive(Debug)]
pub struct Receiver {
    size: u64,
    landed: u64,
    consumed: u64,
    sequence: u16,
}

impl Receiver {
    /// For rings of `size` bytes, a power of two up to 2^23.
    pub fn new(size: u32) -> Self {
        Self { size: size.into(), landed: 0, consumed: 0, sequence: 0 }
    }

    /// An immediate has come, with the cursor modulo 2^24. Errors: it cannot be.
    pub fn landed(&mut self, cursor: u32) -> Result<(), Broken> {
        let n = u64::from(cursor.wrapping_sub(self.landed as u32) & CURSOR);
        if n == 0 || n > self.size - (self.landed - self.consumed) {
            return Err(Broken);
        }
        self.landed += n;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }

    /// Bytes that have landed and that the program has not read: how many, and the first one's place in the ring.
    pub fn unread(&self) -> (u64, usize) {
        (self.landed - self.consumed, (self.consumed & (self.size - 1)) as usize)
    }

    /// The program has read `n` of them.
    ///
    /// # Panics
    /// They were not there.
    pub fn consume(&mut self, n: u64) {
        assert!(n <= self.landed - self.consumed);
        self.consumed += n;
    }

    /// Up to where the program has read.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// For DELETE LINK.
    pub fn seen(&self, slot: Slot) -> Seen {
        Seen { slot, sequence: self.sequence, cursor: self.landed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> Slot {
        Slot::new(1).unwrap()
    }

    #[test]
    fn a_chunk_does_not_go_over_the_end_of_the_ring() {
        let mut sender = Sender::new(16);
        sender.produce(10);
        assert_eq!(sender.next(4), Some(Chunk { offset: 0, len: 4, end: 4 }));
        let all = sender.next(100).unwrap();
        sender.posted(all);
        assert_eq!(sender.next(100), None);
        sender.consumed(10).unwrap();
        sender.produce(16);
        assert_eq!(sender.room(), 0);
        let first = sender.next(100).unwrap();
        assert_eq!(first, Chunk { offset: 10, len: 6, end: 16 });
        sender.posted(first);
        assert_eq!(sender.next(100), Some(Chunk { offset: 0, len: 10, end: 26 }));
        assert_eq!(sender.consumed(17), Err(Broken), "more than was written");
    }

    #[test]
    fn a_receiver_takes_only_what_fits_its_ring() {
        let mut receiver = Receiver::new(16);
        assert_eq!(receiver.landed(0), Err(Broken));
        assert_eq!(receiver.landed(17), Err(Broken));
        assert_eq!(receiver.landed(16), Ok(()));
        assert_eq!(receiver.landed(17), Err(Broken));
        receiver.consume(3);
        assert_eq!(receiver.landed(CURSOR), Err(Broken), "backwards");
        assert_eq!(receiver.landed(19), Ok(()));
        assert_eq!(receiver.unread(), (16, 3));
    }

    #[test]
    fn a_cursor_goes_on_beyond_24_bits() {
        let size = 1 << 23;
        let (mut sender, mut receiver) = (Sender::new(size), Receiver::new(size));
        for _ in 0..9 {
            sender.produce(size.into());
            while let Some(chunk) = sender.next(3_000_000) {
                sender.posted(chunk);
                receiver.landed(chunk.end as u32 & CURSOR).unwrap();
            }
            receiver.consume(size.into());
            sender.consumed(receiver.consumed()).unwrap();
        }
        assert_eq!((receiver.consumed(), receiver.sequence), (9 << 23, 27));
        assert!(sender.is_idle());
    }

    #[test]
    fn single_bytes_wait_before_their_numbers_are_ambiguous() {
        let mut sender = Sender::new(1 << 20);
        sender.produce(1 << 20);
        let mut posted = 0;
        while let Some(chunk) = sender.next(1) {
            sender.posted(chunk);
            posted += 1;
        }
        assert_eq!(posted, MOST_TOLD as u64);
        sender.consumed(1).unwrap();
        assert_eq!(sender.next(1).map(|chunk| chunk.end), Some(posted + 1));
        assert_eq!(sender.resume(Seen { slot: slot(), sequence: 7, cursor: 7 }), Ok(()));
    }

    #[test]
    fn failover_goes_on_from_what_has_come() {
        let (mut sender, mut receiver) = (Sender::new(64), Receiver::new(64));
        sender.produce(40);
        for _ in 0..4 {
            let chunk = sender.next(10).unwrap();
            sender.posted(chunk);
        }
        receiver.landed(10).unwrap();
        receiver.landed(20).unwrap();
        receiver.consume(15);
        sender.consumed(15).unwrap();
        assert_eq!(sender.resume(receiver.seen(slot())), Ok(()));
        assert_eq!(sender.next(100), Some(Chunk { offset: 20, len: 20, end: 40 }));
        assert_eq!(sender.sequence, 2);
        // The same again: nothing was written since.
        assert_eq!(sender.resume(receiver.seen(slot())), Ok(()));
    }

    #[test]
    fn a_peer_that_tells_of_what_was_not_written_is_found_out() {
        let mut sender = Sender::new(64);
        sender.produce(40);
        for _ in 0..4 {
            let chunk = sender.next(10).unwrap();
            sender.posted(chunk);
        }
        sender.consumed(20).unwrap();
        let told = |sequence, cursor| Seen { slot: slot(), sequence, cursor };
        for absurd in [told(5, 50), told(4, 30), told(3, 40), told(1, 10), told(0, 0), told(u16::MAX, 40)] {
            assert_eq!(sender.resume(absurd), Err(Broken), "{absurd:?}");
        }
        assert_eq!(sender.resume(told(3, 30)), Ok(()));
    }
}
