//! Being tapped: what this process sends on lanes, copied for whoever may see it.
//!
//! The broker says who (`start`, `stop`). Only senders copy, so that each byte is seen once, and under the send lock, so
//! that it is seen in order. A record is reserved before its bytes are published and sealed after: whatever follows
//! from them, in whatever process, is reserved later.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::fd::{AsFd, OwnedFd};
use shunpike_shm::arena::Block;
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::lane::{Cursor, Dmb};
use shunpike_shm::tap::{self, Place, RECORD, Ring, Segment, flag, state};
use shunpike_shm::{Region, region};
use shunpike_wire::DmbToken;
use shunpike_wire::session::MAX_TAPS;

use crate::tls::critical;
use crate::{clock, device, user};

/// One who looks. Written under the session's lock.
struct Tap {
    /// Its number; 0: the slot is free, as sessions are counted from 2.
    id: AtomicU64,
    /// Address of its ring, whose low bits, free as it is a page's, are the size class; 0 none.
    ring: AtomicUsize,
}

static ON: AtomicBool = AtomicBool::new(false);
static TAPS: [Tap; MAX_TAPS] = [const { Tap { id: AtomicU64::new(0), ring: AtomicUsize::new(0) } }; MAX_TAPS];
const CLASS: usize = 0xfff;

impl Tap {
    /// Inside a critical section: what is found stays mapped until its end.
    fn ring(&self) -> Option<Ring> {
        // Acquire pairs with the Release in `start`.
        let word = self.ring.load(Ordering::Acquire);
        // SAFETY: `start` stored the address of a verified mapping of this class, which is unmapped when every thread has
        // left the critical section in which it may have read it.
        (word != 0).then(|| unsafe { Ring::at(word & !CLASS, (word & CLASS) as u8) })
    }

    fn clear(&self) {
        self.id.store(0, Ordering::Relaxed);
        let word = self.ring.swap(0, Ordering::AcqRel);
        if word != 0 {
            let region = Region::of(word & !CLASS, tap::len((word & CLASS) as u8));
            device::retire(region, DmbToken(0), device::Owner::Local);
        }
    }
}

/// Whether anybody looks.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The broker lets somebody look, by the ring in `fd`. Under the session's lock.
pub fn start(id: u64, class: u8, root: bool, fd: Option<OwnedFd>) {
    let Some(fd) = fd.filter(|_| class <= tap::MAX_CLASS && id != 0) else { return };
    let len = tap::len(class);
    let Ok(region) = region::verify(fd.as_fd(), len).and_then(|()| Region::map(fd.as_fd(), len)) else {
        return;
    };
    // SAFETY: just mapped, of this class, and unmapped below, or in `clear` with a grace period.
    let ring = unsafe { Ring::at(region.base() as usize, class) };
    let slot = TAPS.iter().find(|tap| tap.id.load(Ordering::Relaxed) == 0);
    let Some(slot) = slot.filter(|_| root || is_dumpable()) else {
        ring.say(if slot.is_some() { state::GUARDED } else { state::NO_MEMORY });
        // SAFETY: nobody else knows of it.
        return unsafe { region.unmap() };
    };
    slot.id.store(id, Ordering::Relaxed);
    // Release pairs with the Acquire in `Tap::ring`.
    slot.ring.store(region.base() as usize | usize::from(class), Ordering::Release);
    ON.store(true, Ordering::Relaxed);
    ring.say(state::WRITES);
}

/// A program that does not want to be looked into by its own user (prctl(2), PR_SET_DUMPABLE), or gave up another one's
/// rights, is nobody's but root's to look into.
fn is_dumpable() -> bool {
    use rustix::process::{DumpableBehavior, dumpable_behavior};
    dumpable_behavior().is_ok_and(|dumpable| dumpable == DumpableBehavior::Dumpable)
}

/// One who looked is gone. Under the session's lock.
pub fn stop(id: u64) {
    TAPS.iter().filter(|tap| tap.id.load(Ordering::Relaxed) == id).for_each(Tap::clear);
    ON.store(TAPS.iter().any(|tap| tap.id.load(Ordering::Relaxed) != 0), Ordering::Relaxed);
}

/// Nobody looks any more: the session is over.
pub fn stop_all() {
    ON.store(false, Ordering::Relaxed);
    TAPS.iter().for_each(Tap::clear);
}

/// `Words::publish` for `n` bytes at `at` of the ring, shown to those who look. Under the send lock.
#[cold]
#[inline(never)]
pub fn publish(block: &Block, dmb: &Dmb, at: Cursor, n: usize) -> Result<Cursor, Cursor> {
    let (base, room) = dmb.span(at.offset());
    let first = n.min(room);
    let bytes =
        [(base.cast_const(), first), (dmb.span(at.offset() + first as u64).0.cast_const(), n - first)];
    let mut taken = reserve(n);
    write(block, 0, &mut taken, bytes);
    let published = Own::publish(dmb.words(), at, n as u64);
    for (ring, place) in taken.iter().flatten() {
        ring.seal(*place, published.is_ok());
    }
    published
}

/// A lane begins. Under the send lock.
pub fn begun(block: &Block) {
    if is_on() {
        mark(block, flag::BEGIN);
    }
}

/// Nothing more is sent on a connection that has been on a lane.
pub fn over(block: &Block) {
    if is_on() && block.life.has_been_open() {
        mark(block, flag::FIN);
    }
}

#[cold]
fn mark(block: &Block, flags: u16) {
    let _critical = critical();
    let mut taken = reserve(0);
    write(block, flags, &mut taken, [(core::ptr::null(), 0); 2]);
    for (ring, place) in taken.iter().flatten() {
        ring.seal(*place, true);
    }
}

type Taken = [Option<(Ring, Place)>; MAX_TAPS];

fn reserve(n: usize) -> Taken {
    let mut taken = [None; MAX_TAPS];
    for (tap, to) in TAPS.iter().zip(&mut taken) {
        *to = tap.ring().and_then(|ring| Some((ring, ring.reserve(n)?)));
    }
    taken
}

/// Writes all but the seal. What cannot be written, as the system has no memory for it, is never sealed.
fn write(block: &Block, flags: u16, taken: &mut Taken, bytes: [(*const u8, usize); 2]) {
    let (local, remote) = block.addresses();
    let opener = if crate::state::opener(block) { flag::OPENER } else { 0 };
    let segment = Segment {
        time: clock::now(),
        seq: block.tx.position(),
        ack: block.rx.position(),
        len: (bytes[0].1 + bytes[1].1) as u32,
        flags: flags | opener,
        local,
        remote,
    };
    let header = segment.encode();
    for slot in taken {
        let Some((ring, place)) = *slot else { continue };
        let mut at = 8;
        for (from, n) in [(header[8..].as_ptr(), RECORD - 8), bytes[0], bytes[1]] {
            let mut done = 0;
            for (to, n) in ring.stretches(place, at, n) {
                // SAFETY: reserved for this record, which has room for all; the source is ours, or stands in the lane's
                // ring, where the send lock keeps it.
                if n > 0 && unsafe { user::copy(to, from.wrapping_add(done), n) }.is_err() {
                    *slot = None;
                    break;
                }
                done += n;
            }
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunpike_shm::arena::{Arena, Held, mode};
    use shunpike_shm::tap::{Next, Reader};

    /// Taps are the process's, and these tests threads of one.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn lane() -> Dmb {
        let fd = region::create("dmb", Dmb::len(0)).expect("memfd");
        let dmb = Dmb::new(Region::map(fd.as_fd(), Dmb::len(0)).expect("maps"), 0).expect("a DMB");
        dmb.words().grant(1);
        assert!(dmb.words().begin(1, 0, dmb.window()));
        dmb
    }

    fn next(reader: &mut Reader, bytes: &mut Vec<u8>) -> Segment {
        loop {
            match reader.next(bytes) {
                Ok(Next::Segment(segment)) => return segment,
                Ok(Next::Void) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn those_who_look_see_what_is_published_and_only_that() {
        let _alone = ALONE.lock();
        let arena = Arena::create(1).expect("memfd");
        let block = arena.allocate().expect("a block");
        block.set_addresses("[::1]:7".parse().expect("address"), "[::1]:9".parse().expect("address"));
        block.tx.tcp_bytes.store(100, Ordering::Relaxed);
        let (receiving, sending) = (block.rx.lock(critical()), block.tx.lock(critical()));
        let (receives, sends) = (receiving.held(), sending.held());
        receives.bytes.store(receives, 30, Ordering::Relaxed);
        sends.mode.store(sends, mode::LANE, Ordering::Relaxed);
        let dmb = lane();
        let (fd, mut reader) = Reader::create(0).expect("memfd");
        let (other_fd, mut other) = Reader::create(1).expect("memfd");
        assert!(!is_on());
        start(5, 0, true, Some(fd));
        start(6, 1, true, Some(other_fd));
        assert!(is_on() && reader.state() == state::WRITES);

        let at = Cursor::new(1, 0);
        // SAFETY: nobody else has the lane.
        unsafe { dmb.fill(0, b"hello".as_ptr(), 5) };
        assert!(publish(block, &dmb, at, 5).is_ok());
        sends.bytes.store(sends, 5, Ordering::Relaxed);
        assert!(dmb.words().flag(1, Cursor::STOP, 0).is_ok());
        assert!(publish(block, &dmb, at.plus(5), 5).is_err(), "stopped: not sent");
        block.life.on(shunpike_shm::lifecycle::Event::Open);
        over(block);

        let mut bytes = Vec::new();
        for reader in [&mut reader, &mut other] {
            let seen = next(reader, &mut bytes);
            assert_eq!((seen.seq, seen.ack, seen.flags, &bytes[..]), (100, 30, flag::OPENER, &b"hello"[..]));
            assert_eq!((seen.local.port(), seen.remote.port()), (7, 9));
            let end = next(reader, &mut bytes);
            assert_eq!((end.seq, end.flags, bytes.len()), (105, flag::OPENER | flag::FIN, 0));
            assert_eq!(reader.next(&mut bytes), Ok(Next::Empty));
        }
        stop(5);
        assert!(is_on(), "the other one still looks");
        over(block);
        assert_eq!(reader.next(&mut bytes), Ok(Next::Empty));
        assert_eq!(next(&mut other, &mut bytes).flags & flag::FIN, flag::FIN);
        stop_all();
        assert!(!is_on());
    }

    #[test]
    fn what_the_receiver_gives_back_is_counted_once() {
        let arena = Arena::create(1).expect("memfd");
        let guard = arena.allocate().expect("a block").tx.lock(critical());
        let half = guard.held();
        half.tcp_bytes.store(10, Ordering::Relaxed);
        half.bytes.store(half, 90, Ordering::Relaxed);
        half.recount(40);
        assert_eq!(half.position(), 60);
        half.tcp_bytes.store(50, Ordering::Relaxed);
        assert_eq!(half.position(), 100);
    }

    #[test]
    fn memory_that_could_harm_us_is_not_mapped() {
        let _alone = ALONE.lock();
        let make = |name: &str, len: usize| region::create(name, len).expect("memfd");
        for (class, fd) in [(0, make("short", 4096)), (tap::MAX_CLASS + 1, make("class", 8192))] {
            start(9, class, true, Some(fd));
        }
        let unsealed = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&unsealed, tap::len(0) as u64).expect("size");
        start(9, 0, true, Some(unsealed));
        start(9, 0, true, None);
        assert!(!is_on());
    }

    #[test]
    fn one_too_many_is_told_so() {
        let _alone = ALONE.lock();
        let made: Vec<Reader> = (1..=MAX_TAPS as u64 + 1)
            .map(|id| {
                let (fd, reader) = Reader::create(0).expect("memfd");
                start(id, 0, true, Some(fd));
                reader
            })
            .collect();
        let states: Vec<u32> = made.iter().map(Reader::state).collect();
        assert_eq!(states[MAX_TAPS], state::NO_MEMORY);
        assert!(states[..MAX_TAPS].iter().all(|seen| *seen == state::WRITES));
        stop_all();
    }
}
