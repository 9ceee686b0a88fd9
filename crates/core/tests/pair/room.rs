//! What a sender is told of room, where a lane opens behind much that TCP has: on TCP alone there is room again when that is read.

use crate::{NOTHING, Pair, bytes};
use shunpike_core::state;
use shunpike_shm::arena::mode;
use shunpike_wire::Reason;
use std::time::Duration;

/// Longer than a reader may stop there, and much shorter than the grace of these tests.
const PAUSE: Duration = Duration::from_millis(20);
/// What a reader takes at once.
const PIECE: usize = 1 << 16;

/// A flood that has filled the ring of a lane which opened behind so many bytes, or behind all that TCP takes.
struct Flood {
    pair: Pair,
    sent: usize,
    read: usize,
}

impl Flood {
    fn behind(most: usize) -> Self {
        // The broker may find that bytes have moved since they were counted, and ask again: then it does not open here.
        let flood =
            (0..10).map(|_| Self::tried(most)).find(Self::is_by_lane).expect("a lane that opens in time");
        assert!(!flood.shows_room());
        flood
    }

    fn tried(most: usize) -> Self {
        let pair = Pair::watched();
        // Evidence and messages enough for a lane, of which the broker hears later.
        (0..40).for_each(|_| pair.talk_alone());
        let mut flood = Self { pair, sent: 0, read: 0 };
        while flood.sent < most && flood.send() {}
        assert!(flood.pair.is_on_tcp());
        flood.pair.pump();
        while flood.send() {}
        flood
    }

    fn is_by_lane(&self) -> bool {
        state::modes(self.pair.client.conn().block).1 == mode::LANE
    }

    fn send(&mut self) -> bool {
        let sent = self.pair.client.send(&bytes(251 * 201)[self.sent % 251..]);
        self.sent += sent.unwrap_or(0);
        sent.is_ok()
    }

    fn read(&mut self, most: usize) {
        let some = self.pair.server.recv(most).expect("bytes");
        assert!(some == bytes(251 + some.len())[self.read % 251..][..some.len()], "at {}", self.read);
        self.read += some.len();
    }

    /// Once: what it finds then may be told by the next look.
    fn shows_room(&self) -> bool {
        self.pair.client.shows() & libc::POLLOUT != 0
    }

    /// All that was sent comes, and no more.
    fn end(mut self) {
        while self.read < self.sent {
            self.read(PIECE);
            // It pays what it may owe.
            self.shows_room();
        }
        assert_eq!(self.pair.server.recv(1), Err(NOTHING));
    }
}

#[test]
fn who_stops_in_front_of_a_full_ring_leaves_room_as_on_tcp() {
    // The reader stops in the midst of the ring, in front of it, and where TCP had all that it takes.
    for most in [1_300_000, 2_500_000, usize::MAX] {
        let mut flood = Flood::behind(most);
        let enough = flood.sent - flood.sent / 8;
        while flood.read < enough {
            flood.read(PIECE.min(enough - flood.read));
        }
        assert!(!flood.shows_room(), "the reader may go on");
        flood.pair.pass(PAUSE);
        assert!((0..2).any(|_| flood.shows_room()), "{most}");
        assert_eq!(flood.pair.client.reason(), Some(Reason::GraceExceeded));
        assert!(flood.send());
        flood.end();
    }
}

#[test]
fn who_goes_on_keeps_its_lane_however_long_it_takes() {
    let mut flood = Flood::behind(2_500_000);
    while flood.is_by_lane() && !flood.shows_room() {
        flood.read(PIECE);
        // The grace is 10 s.
        flood.pair.pass(Duration::from_secs(6));
    }
    assert!(flood.is_by_lane());
    flood.end();
}

#[test]
fn who_has_read_nothing_since_is_borne_for_the_grace() {
    let flood = Flood::behind(2_500_000);
    for _ in 0..8 {
        flood.pair.pass(PAUSE);
        assert!(!flood.shows_room());
    }
    assert!(flood.is_by_lane());
    flood.end();
}
