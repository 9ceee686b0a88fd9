//! A tap's ring: what a process writes of its lanes for one who may see it, and how that one reads it.
//!
//! The reader makes it, one for each process that it taps; many threads write. A record is a header of 80 bytes and the
//! bytes that were sent, at a multiple of 16; both go on at the ring's beginning where they meet its end.
//!
//! | word | offset | writer | reader | a hostile value can |
//! |---|---|---|---|---|
//! | head | 0x000 | the process reserves | reader | end this process's part of the tap: beyond the ring, or no multiple of 16 |
//! | tail | 0x080 | reader | the process | lose records, which is counted; nothing is written outside of the ring |
//! | lost | 0x100 | the process | reader | be a wrong count of what this process lost |
//! | state | 0x110 | the process | reader | be a wrong word in what the reader tells its user |
//! | ring | 0x1000 | the process; the reader zeroes what it has read | reader | be nonsense: refused; or a lie under the process's name |
//!
//! Nobody waits: a writer that finds no room counts what it loses. A record's first word, its *seal*, says whether it can be
//! read; all memory behind the head is zero, so that nothing old passes for a seal.

#[cfg(feature = "readers")]
mod reader;
#[cfg(feature = "readers")]
pub use reader::{Next, Nonsense, Reader};

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes before the ring.
pub const HEADER: usize = 4096;
/// Largest size class.
pub const MAX_CLASS: u8 = 7;
/// Most bytes that a record has beside its header.
pub const MOST: usize = 60 * 1024;
/// Bytes of a record's header.
pub const RECORD: usize = 80;
const UNIT: u64 = 16;

/// Bytes of the ring of class `class`: 256 KiB to 32 MiB.
pub const fn ring_size(class: u8) -> usize {
    (256 * 1024) << class
}

/// Whole size of the memory of a ring of class `class`, bytes.
pub const fn len(class: u8) -> usize {
    HEADER + ring_size(class)
}

/// Bits of [`Segment::flags`].
pub mod flag {
    /// The sender called connect().
    pub const OPENER: u16 = 1;
    /// A lane begins here.
    pub const BEGIN: u16 = 2;
    /// The sender sends no more.
    pub const FIN: u16 = 4;
}

/// What a process says of being tapped.
pub mod state {
    /// Nothing yet: it has made no call since it was asked.
    pub const ASKED: u32 = 0;
    /// It writes.
    pub const WRITES: u32 = 1;
    /// It does not want to be looked into by its user (PR_SET_DUMPABLE).
    pub const GUARDED: u32 = 2;
    /// It could not map the ring.
    pub const NO_MEMORY: u32 = 3;
}

/// Bytes that one end of a connection sent, as it describes them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// CLOCK_MONOTONIC, nanoseconds, just before they were published.
    pub time: u64,
    /// Number of the first byte in this direction of the connection, whether by TCP or by lane; from 0.
    pub seq: u64,
    /// Bytes that the sender has received on the connection.
    pub ack: u64,
    /// How many bytes.
    pub len: u32,
    /// Of [`flag`].
    pub flags: u16,
    /// The sender's end.
    pub local: SocketAddr,
    /// The other one.
    pub remote: SocketAddr,
}

impl Segment {
    /// The header as it lies in the ring; the seal, at its beginning, is 0.
    pub fn encode(&self) -> [u8; RECORD] {
        let mut out = [0; RECORD];
        let mut at = 8;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        for word in [self.time, self.seq, self.ack] {
            put(&word.to_le_bytes());
        }
        put(&self.len.to_le_bytes());
        for word in [self.flags, self.local.port(), self.remote.port(), 0, 0, 0] {
            put(&word.to_le_bytes());
        }
        for end in [self.local, self.remote] {
            let ip = match end.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            put(&ip.octets());
        }
        out
    }
}

#[repr(C, align(128))]
struct Line(AtomicU64);

#[repr(C)]
struct Words {
    head: Line,
    tail: Line,
    lost_records: AtomicU64,
    lost_bytes: AtomicU64,
    state: AtomicU32,
}

/// Each word, for the document.
#[cfg(all(test, not(loom)))]
pub(crate) fn layout() -> Vec<(&'static str, Vec<usize>)> {
    use core::mem::offset_of;
    vec![
        ("head", vec![offset_of!(Words, head)]),
        ("tail", vec![offset_of!(Words, tail)]),
        ("lost records, bytes", vec![offset_of!(Words, lost_records), offset_of!(Words, lost_bytes)]),
        ("state", vec![offset_of!(Words, state)]),
        ("ring", vec![HEADER]),
    ]
}

/// A mapped ring.
#[derive(Copy, Clone)]
pub struct Ring {
    words: &'static Words,
    bytes: *mut u8,
    size: u64,
}

/// What a writer has reserved.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Place(u64);

const DONE: u64 = 1;
const VOID: u64 = 2;

/// A seal names its place: one that is copied elsewhere is none.
const fn seal(at: u64, how: u64) -> u64 {
    at << 2 | how
}

fn room_for(payload: usize) -> u64 {
    ((RECORD + payload) as u64).next_multiple_of(UNIT)
}

impl Ring {
    /// The ring of class `class` mapped at `base`.
    ///
    /// # Safety
    /// There is a mapping of `len(class)` bytes, readable and writable, of memory that cannot shrink, and it stays while the
    /// value is used.
    pub unsafe fn at(base: usize, class: u8) -> Self {
        Self {
            // SAFETY: the caller's word for it: page-aligned, atomics only.
            words: unsafe { &*(base as *const Words) },
            bytes: (base + HEADER) as *mut u8,
            size: ring_size(class) as u64,
        }
    }

    /// Writer: takes room for a record with `payload` bytes, at most [`MOST`]. `None`: there is none, which is counted.
    pub fn reserve(&self, payload: usize) -> Option<Place> {
        let need = room_for(payload);
        let words = self.words;
        loop {
            // The tail first: it is never before the head then. Acquire pairs with the Release in `Reader::let_go`: what
            // was read is zero.
            let tail = words.tail.0.load(Ordering::Acquire);
            let head = words.head.0.load(Ordering::Relaxed);
            if head.wrapping_sub(tail).checked_add(need).is_none_or(|used| used > self.size) {
                words.lost_records.fetch_add(1, Ordering::Relaxed);
                words.lost_bytes.fetch_add(payload as u64, Ordering::Relaxed);
                return None;
            }
            // Release pairs with the Acquire of the reader's look at the head, so that no record is seen without those
            // that had reserved before it.
            let next = head.wrapping_add(need);
            if words.head.0.compare_exchange(head, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Some(Place(head));
            }
        }
    }

    /// The `n` bytes at `from` behind the beginning of a record, as two stretches of memory; at most the ring.
    pub fn stretches(&self, place: Place, from: usize, n: usize) -> [(*mut u8, usize); 2] {
        let at = (place.0.wrapping_add(from as u64) & (self.size - 1)) as usize;
        let first = n.min(self.size as usize - at);
        // SAFETY: masked, so inside the ring.
        [(unsafe { self.bytes.add(at) }, first), (self.bytes, n - first)]
    }

    /// Writer: the record at `place` is whole, or, where the bytes were not sent after all, is none.
    pub fn seal(&self, place: Place, sent: bool) {
        // Release pairs with the Acquire in `Reader::next`: header and bytes are there.
        self.seal_at(place.0).store(seal(place.0, if sent { DONE } else { VOID }), Ordering::Release);
    }

    fn seal_at(&self, at: u64) -> &AtomicU64 {
        let [(to, _), _] = self.stretches(Place(at), 0, 8);
        // SAFETY: in the ring, and aligned, as places are multiples of 16.
        unsafe { &*to.cast::<AtomicU64>() }
    }

    /// Writer: says how it stands, one of [`state`].
    pub fn say(&self, state: u32) {
        self.words.state.store(state, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(seq: u64, len: usize) -> Segment {
        Segment {
            time: 7,
            seq,
            ack: 3,
            len: len as u32,
            flags: flag::OPENER | flag::FIN,
            local: "127.0.0.1:40000".parse().expect("address"),
            remote: "[fe80::1]:65535".parse().expect("address"),
        }
    }

    /// As core does it, without its guard against faults.
    fn put(ring: &Ring, segment: &Segment, bytes: &[u8], sent: bool) -> bool {
        let Some(place) = ring.reserve(bytes.len()) else { return false };
        let header = segment.encode();
        for (from, source) in [(8, &header[8..]), (RECORD, bytes)] {
            let mut source = source;
            for (to, n) in ring.stretches(place, from, source.len()) {
                let (now, rest) = source.split_at(n);
                // SAFETY: reserved for us.
                unsafe { to.copy_from_nonoverlapping(now.as_ptr(), n) };
                source = rest;
            }
        }
        ring.seal(place, sent);
        true
    }

    fn pair() -> (Ring, Reader) {
        let (_fd, reader) = Reader::create(0).expect("memfd");
        (reader.ring, reader)
    }

    #[test]
    fn records_come_out_as_they_went_in_round_and_round() {
        let (ring, mut reader) = pair();
        let mut bytes = Vec::new();
        for round in 0..300usize {
            let text = vec![round as u8; round * 97 % (MOST + 1)];
            assert!(put(&ring, &segment(round as u64, text.len()), &text, true));
            assert!(put(&ring, &segment(0, 9), b"not sent!", false));
            let next = reader.next(&mut bytes);
            assert_eq!(next, Ok(Next::Segment(segment(round as u64, text.len()))));
            assert_eq!(bytes, text);
            assert_eq!(reader.next(&mut bytes), Ok(Next::Void));
            assert_eq!(reader.next(&mut bytes), Ok(Next::Empty));
        }
        assert_eq!(reader.lost(), (0, 0));
    }

    /// A writer that marks records as not sent as fast as they are read must not keep the reader within one call.
    #[test]
    fn a_call_takes_one_record_whatever_it_is_marked_as() {
        let (ring, mut reader) = pair();
        let unsent = (0..1000).filter(|seq| put(&ring, &segment(*seq, 0), b"", false)).count();
        let head = reader.head();
        let mut bytes = Vec::new();
        for _ in 0..unsent {
            assert!(reader.is_before(head));
            assert_eq!(reader.next(&mut bytes), Ok(Next::Void));
        }
        assert!(reader.is_at(head) && !reader.is_before(head));
    }

    #[test]
    fn a_full_ring_counts_what_it_loses_and_goes_on() {
        let (ring, mut reader) = pair();
        let text = [1; 1000];
        let written = (0u64..1000).filter(|seq| put(&ring, &segment(*seq, 1000), &text, true)).count() as u64;
        assert_eq!(written, ring_size(0) as u64 / room_for(1000));
        assert_eq!(reader.lost(), (1000 - written, (1000 - written) * 1000));
        let mut bytes = Vec::new();
        for seq in 0..written {
            assert_eq!(reader.next(&mut bytes), Ok(Next::Segment(segment(seq, 1000))));
        }
        assert!(put(&ring, &segment(5, 1000), &text, true));
        assert_eq!(reader.next(&mut bytes), Ok(Next::Segment(segment(5, 1000))));
    }

    #[test]
    fn an_unfinished_record_is_waited_for_and_hides_what_follows() {
        let (ring, mut reader) = pair();
        let place = ring.reserve(5).expect("room");
        assert!(put(&ring, &segment(1, 1), b"x", true));
        let mut bytes = Vec::new();
        assert_eq!(reader.next(&mut bytes), Ok(Next::Unfinished));
        ring.seal(place, false);
        // Its header was never written: a void record of no bytes, and then no seal where the next one would be.
        assert_eq!(reader.next(&mut bytes), Ok(Next::Void));
        assert_eq!(reader.next(&mut bytes), Ok(Next::Unfinished));
    }

    #[test]
    fn threads_write_at_once_and_nothing_is_mixed_up() {
        let (ring, mut reader) = pair();
        let address = ring.words as *const Words as usize;
        let writers: Vec<_> = (0..4u8)
            .map(|number| {
                std::thread::spawn(move || {
                    // SAFETY: the reader outlives the threads, which are joined below.
                    let ring = unsafe { Ring::at(address, 0) };
                    let text = vec![number; 100 + usize::from(number)];
                    let put = |seq: &u64| put(&ring, &segment(*seq, text.len()), &text, true);
                    (0..20_000u64).filter(put).count() as u64
                })
            })
            .collect();
        let (mut bytes, mut found, mut last) = (Vec::new(), 0u64, [None; 4]);
        loop {
            let over = writers.iter().all(|writer| writer.is_finished());
            match reader.next(&mut bytes).expect("sense") {
                Next::Segment(segment) => {
                    let number = usize::from(bytes[0]);
                    assert!(bytes.len() == 100 + number && bytes.iter().all(|byte| *byte == bytes[0]));
                    assert!(last[number] < Some(segment.seq), "in order");
                    last[number] = Some(segment.seq);
                    found += 1;
                }
                _ if over => break,
                _ => std::thread::yield_now(),
            }
        }
        let written: u64 = writers.into_iter().map(|writer| writer.join().expect("no panic")).sum();
        assert_eq!(found, written);
        assert_eq!(written + reader.lost().0, 80_000);
    }

    /// Pages are charged to who touches them first.
    #[test]
    fn a_rings_memory_is_its_readers_from_the_beginning() {
        let (memory, _reader) = Reader::create(1).expect("memory");
        let stat = rustix::fs::fstat(&memory).expect("fstat");
        assert_eq!(stat.st_blocks as usize * 512, len(1));
    }

    /// The tapped process writes whatever it likes, wherever it likes.
    #[test]
    fn nonsense_is_refused_and_touches_nothing_else() {
        let mut random = 88_172_645_463_325_252u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let (mut refused, mut read) = (0, 0);
        for round in 0..400u64 {
            let (ring, mut reader) = pair();
            let mut bytes = Vec::new();
            for _ in 0..next() % 8 {
                put(&ring, &segment(next(), 40), &[7; 40], true);
            }
            for _ in 0..next() % 24 {
                let value = match next() % 4 {
                    0 => next(),
                    1 => next() % (2 * ring.size),
                    2 => seal(next() % 64 * UNIT, DONE),
                    _ => next() % 128,
                };
                if next().is_multiple_of(8) {
                    ring.words.head.0.store(value, Ordering::Relaxed);
                } else {
                    // SAFETY: inside the ring, aligned.
                    unsafe { ring.bytes.add((next() % 128) as usize * 8).cast::<u64>().write(value) };
                }
            }
            for _ in 0..64 {
                match reader.next(&mut bytes) {
                    Ok(Next::Segment(segment)) => {
                        assert!(bytes.len() == segment.len as usize && bytes.len() <= MOST, "round {round}");
                        read += 1;
                    }
                    Ok(Next::Void) => {}
                    Ok(_) => break,
                    Err(Nonsense) => {
                        refused += 1;
                        break;
                    }
                }
            }
            ring.words.lost_records.store(5, Ordering::Relaxed);
            assert!(reader.lost().0 >= 5);
            ring.words.lost_records.store(0, Ordering::Relaxed);
            assert!(reader.lost().0 >= 5, "a count does not go back");
        }
        assert!(refused > 50 && read > 50, "{refused} refused, {read} read");
    }

    #[test]
    fn a_hostile_reader_loses_records_and_nothing_else() {
        let (ring, _reader) = pair();
        for tail in [u64::MAX, 1 << 63, 16, 1 << 20] {
            ring.words.tail.0.store(tail, Ordering::Relaxed);
            let place = ring.reserve(MOST);
            for (at, n) in place.iter().flat_map(|place| ring.stretches(*place, 0, RECORD + MOST)) {
                assert!(at >= ring.bytes && at as usize + n <= ring.bytes as usize + ring_size(0));
            }
        }
    }
}
