//! Every byte exactly once and in order, whoever ends the lane (models/lane.pml).

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use shunpike_shm::lane::{Cursor, Window, Words};

use crate::explore;

/// Bytes in the models' ring.
const RING: usize = 2;

/// The TCP connection below: in order, and closed by the kernel whatever becomes of the sender.
#[derive(Default)]
struct Tcp {
    bytes: Vec<u8>,
    closed: bool,
}

/// One direction, granted and begun at byte 0.
struct Lane {
    words: Words,
    ring: [UnsafeCell<u8>; RING],
    tcp: Mutex<Tcp>,
}

impl Lane {
    fn begun() -> Arc<Self> {
        let lane = Self::granted();
        assert!(lane.words.begin(1, 0, RING as u64));
        lane
    }

    fn granted() -> Arc<Self> {
        let words = Words::new();
        words.grant(1);
        Arc::new(Self {
            words,
            ring: core::array::from_fn(|_| UnsafeCell::new(0)),
            tcp: Mutex::new(Tcp::default()),
        })
    }

    fn put(&self, offset: u64, byte: u8) {
        // SAFETY: loom checks that nobody else is at this byte.
        self.ring[offset as usize % RING].with_mut(|at| unsafe { *at = byte });
    }

    fn get(&self, offset: u64) -> u8 {
        // SAFETY: as above.
        self.ring[offset as usize % RING].with(|at| unsafe { *at })
    }

    fn by_tcp(&self, bytes: impl IntoIterator<Item = u8>) {
        self.tcp.lock().unwrap().bytes.extend(bytes);
    }

    /// Sender: one byte behind `at`, as `tx::step` does it.
    fn publish(&self, at: Cursor, byte: u8) -> Result<Cursor, Cursor> {
        self.put(at.offset(), byte);
        self.words.publish(at, 1)
    }

    /// Sender: what `tx::take_back` resends.
    fn take_back(&self) {
        if let Some((from, to)) = self.words.take_back(1) {
            self.by_tcp((from..to).map(|offset| self.get(offset)));
        }
    }

    /// Receiver: everything from `at` to `to`.
    fn drain(&self, at: Cursor, to: u64) -> Vec<u8> {
        let bytes = (at.offset()..to).map(|offset| self.get(offset)).collect();
        self.words.consume(at, to - at.offset()).expect("nobody takes back");
        bytes
    }

    fn all_of_tcp(&self) -> Vec<u8> {
        self.tcp.lock().unwrap().bytes.clone()
    }
}

const START: Cursor = Cursor::new(1, 0);

#[derive(Copy, Clone, PartialEq)]
enum Data {
    Kept,
    PublishBeforeCopy,
    ConsumeBeforeCopy,
    NoLookForRoom,
}

/// Three bytes through a ring of two.
fn data(rule: Data) {
    explore("data", move || {
        let lane = Lane::begun();
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                let mut at = START;
                for byte in 1..=3 {
                    while rule != Data::NoLookForRoom
                        && at.offset() - lane.words.cons().offset() >= RING as u64
                    {
                        thread::yield_now();
                    }
                    let next = if rule == Data::PublishBeforeCopy {
                        let next = lane.words.publish(at, 1);
                        lane.put(at.offset(), byte);
                        next
                    } else {
                        lane.publish(at, byte)
                    };
                    at = next.expect("nobody stops");
                }
            })
        };
        let mut at = START;
        for byte in 1..=3 {
            while lane.words.prod().offset() == at.offset() {
                thread::yield_now();
            }
            let next = if rule == Data::ConsumeBeforeCopy { lane.words.consume(at, 1) } else { Ok(at) };
            assert_eq!(lane.get(at.offset()), byte);
            let next = if rule == Data::ConsumeBeforeCopy { next } else { lane.words.consume(at, 1) };
            at = next.expect("nobody takes back");
        }
        sender.join().unwrap();
    });
}

#[test]
fn bytes_are_seen_as_written() {
    data(Data::Kept);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_publish_before_copy() {
    data(Data::PublishBeforeCopy);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_consume_before_copy() {
    data(Data::ConsumeBeforeCopy);
}

#[test]
#[should_panic]
fn broken_no_look_for_room() {
    data(Data::NoLookForRoom);
}

#[derive(Copy, Clone, PartialEq)]
enum Growth {
    Kept,
    BetweenPoints,
    WindowAfterPublish,
    WindowLookedAtFirst,
}

/// Through a ring that doubles once (core's `window`): three bytes, window one; or four, window two, where it grows
/// at a wrong point.
fn growth(rule: Growth) {
    let (small, bytes, point) = if rule == Growth::BetweenPoints { (2, 4, 3) } else { (1, 3, 1) };
    explore("growth", move || {
        let words = Words::new();
        words.grant(1);
        assert!(words.begin(1, 0, small));
        let ring: [UnsafeCell<u8>; 4] = core::array::from_fn(|_| UnsafeCell::new(0));
        let lane = Arc::new((words, ring));
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                let (words, ring) = &*lane;
                let (mut at, mut window) = (START, small);
                for byte in 1..=bytes {
                    if at.offset() == point {
                        window *= 2;
                        if rule != Growth::WindowAfterPublish {
                            words.set_window(window);
                        }
                    }
                    while at.offset() - words.cons().offset() >= window {
                        thread::yield_now();
                    }
                    // SAFETY: loom checks that nobody else is at this byte.
                    ring[(at.offset() % window) as usize].with_mut(|to| unsafe { *to = byte });
                    at = words.publish(at, 1).expect("nobody stops");
                    if rule == Growth::WindowAfterPublish {
                        words.set_window(window);
                    }
                }
            })
        };
        let (words, ring) = &*lane;
        let mut at = START;
        for byte in 1..=bytes {
            let mut window = words.window();
            while words.prod().offset() == at.offset() {
                thread::yield_now();
            }
            if rule != Growth::WindowLookedAtFirst {
                window = words.window();
            }
            // SAFETY: as above.
            assert_eq!(ring[(at.offset() % window) as usize].with(|from| unsafe { *from }), byte);
            at = words.consume(at, 1).expect("nobody takes back");
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_growing_ring_is_read_as_it_was_written() {
    growth(Growth::Kept);
}

#[test]
#[should_panic]
fn broken_grown_between_points() {
    growth(Growth::BetweenPoints);
}

#[test]
#[should_panic]
fn broken_window_said_after_its_bytes() {
    growth(Growth::WindowAfterPublish);
}

#[test]
#[should_panic]
fn broken_window_looked_at_before_the_cursor() {
    growth(Growth::WindowLookedAtFirst);
}

#[derive(Copy, Clone, PartialEq)]
enum Move {
    Kept,
    Unsaid,
    SaidAfterPublish,
    LookedAtFirst,
    SettledUnread,
}

/// From a first ring of one byte to a ring of two behind the header (models/move.pml): one byte in the one, three in the other.
fn moving(rule: Move) {
    explore("moving", move || {
        let words = Words::new();
        words.grant(1);
        assert!(words.begin(1, 0, 1));
        let places: [UnsafeCell<u8>; 3] = core::array::from_fn(|_| UnsafeCell::new(0));
        let lane = Arc::new((words, places));
        let place = |window: Window, at: u64| match window {
            _ if window.moves() && window.ahead(at) > 0 => 0,
            Window(1) => 0,
            _ => 1 + at as usize % 2,
        };
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                let (words, places) = &*lane;
                let (mut at, mut window) = (START, Window(1));
                for byte in 1..=4 {
                    let mut late = None;
                    if at.offset() == 1 {
                        let is_read = words.cons().offset() == 1 || rule == Move::Unsaid;
                        window = if is_read { Window(2) } else { Window::moving(2, 1) };
                        late = Some(window).filter(|_| rule == Move::SaidAfterPublish);
                        if late.is_none() {
                            words.set_window(window.0);
                        }
                    } else if window.moves() && (words.cons().offset() >= 1 || rule == Move::SettledUnread) {
                        window = Window(2);
                        words.set_window(window.0);
                    }
                    while at.offset() > 2 && at.offset() - words.cons().offset().max(1) >= 2 {
                        thread::yield_now();
                    }
                    // SAFETY: loom checks that nobody else is at this byte.
                    places[place(window, at.offset())].with_mut(|to| unsafe { *to = byte });
                    at = words.publish(at, 1).expect("nobody stops");
                    if let Some(window) = late {
                        words.set_window(window.0);
                    }
                }
            })
        };
        let (words, places) = &*lane;
        let mut at = START;
        for byte in 1..=4 {
            let mut window = words.window();
            while words.prod().offset() == at.offset() {
                thread::yield_now();
            }
            if rule != Move::LookedAtFirst {
                window = words.window();
            }
            // SAFETY: as above.
            assert_eq!(places[place(Window(window), at.offset())].with(|from| unsafe { *from }), byte);
            at = words.consume(at, 1).expect("nobody takes back");
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_sender_that_moves_is_read_from_where_it_wrote() {
    moving(Move::Kept);
}

#[test]
#[should_panic]
fn broken_moved_and_not_said() {
    moving(Move::Unsaid);
}

#[test]
#[should_panic]
fn broken_move_said_after_its_bytes() {
    moving(Move::SaidAfterPublish);
}

#[test]
#[should_panic]
fn broken_move_looked_at_before_the_cursor() {
    moving(Move::LookedAtFirst);
}

#[test]
#[should_panic]
fn broken_first_ring_said_to_be_read() {
    moving(Move::SettledUnread);
}

#[derive(Copy, Clone, PartialEq)]
enum Stop {
    Kept,
    DrainsToAnEarlierLook,
    RefusedCountsAsSent,
}

/// The receiver stops the lane, drains it and goes on with TCP; the sender meets the STOP at its next byte.
fn stop(rule: Stop) {
    explore("stop", move || {
        let lane = Lane::begun();
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                let mut at = START;
                for byte in 1..=2 {
                    match lane.publish(at, byte) {
                        Ok(next) => at = next,
                        Err(seen) => {
                            assert!(seen.has(Cursor::STOP));
                            let rest = if rule == Stop::RefusedCountsAsSent { byte + 1 } else { byte };
                            return lane.by_tcp(rest..=2);
                        }
                    }
                }
            })
        };
        let earlier = lane.words.prod();
        let stopped = lane.words.flag(1, Cursor::STOP, 0).expect("our generation");
        let to = if rule == Stop::DrainsToAnEarlierLook { earlier } else { stopped };
        let mut got = lane.drain(START, to.offset());
        sender.join().unwrap();
        got.extend(lane.all_of_tcp());
        assert_eq!(got, [1, 2]);
    });
}

#[test]
fn a_stop_loses_nothing() {
    stop(Stop::Kept);
}

#[test]
#[should_panic(expected = "left == right")]
fn broken_stop_drains_to_an_earlier_look() {
    stop(Stop::DrainsToAnEarlierLook);
}

#[test]
#[should_panic(expected = "left == right")]
fn broken_refused_publish_counts_as_sent() {
    stop(Stop::RefusedCountsAsSent);
}

#[derive(Copy, Clone, PartialEq)]
enum Take {
    Kept,
    CopyKeptThoughRefused,
    ResendsFromAnEarlierLook,
}

/// The sender takes back what is unread while the receiver reads: each byte comes one way.
fn take(rule: Take) {
    explore("take back", move || {
        let lane = Lane::begun();
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                let at = lane.publish(START, 1).expect("open");
                lane.publish(at, 2).expect("open");
                if rule == Take::ResendsFromAnEarlierLook {
                    let from = lane.words.cons().offset();
                    let _ = lane.words.take_back(1);
                    lane.by_tcp((from..2).map(|offset| lane.get(offset)));
                } else {
                    lane.take_back();
                }
            })
        };
        let mut got = Vec::new();
        let mut at = START;
        for _ in 0..2 {
            if lane.words.prod().offset() > at.offset() {
                let byte = lane.get(at.offset());
                match lane.words.consume(at, 1) {
                    Ok(next) => {
                        at = next;
                        got.push(byte);
                    }
                    Err(seen) => {
                        assert!(seen.has(Cursor::TAKEN));
                        if rule == Take::CopyKeptThoughRefused {
                            got.push(byte);
                        }
                        break;
                    }
                }
            }
        }
        sender.join().unwrap();
        got.extend(lane.all_of_tcp());
        assert_eq!(got, [1, 2]);
    });
}

#[test]
fn a_byte_is_consumed_or_taken_back() {
    take(Take::Kept);
}

#[test]
#[should_panic(expected = "left == right")]
fn broken_copy_kept_though_taken() {
    take(Take::CopyKeptThoughRefused);
}

#[test]
#[should_panic(expected = "left == right")]
fn broken_resend_from_an_earlier_look() {
    take(Take::ResendsFromAnEarlierLook);
}

#[derive(Copy, Clone, PartialEq)]
enum End {
    Kept,
    LooksTwice,
}

/// The sender ENDs its lane and goes on by TCP; the receiver drains first.
fn end(rule: End) {
    explore("end", move || {
        let lane = Lane::begun();
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                lane.publish(START, 1).expect("open");
                lane.words.flag(1, Cursor::END, 0).expect("our generation");
                lane.by_tcp([2]);
            })
        };
        let (mut got, mut at) = (Vec::new(), START);
        loop {
            let prod = lane.words.prod();
            if prod.offset() != at.offset() {
                got.push(lane.get(at.offset()));
                at = lane.words.consume(at, 1).expect("nobody takes back");
                continue;
            }
            // Bytes and END must come of one look.
            let prod = if rule == End::LooksTwice { lane.words.prod() } else { prod };
            if prod.has(Cursor::END) {
                break;
            }
            thread::yield_now();
        }
        sender.join().unwrap();
        got.extend(lane.all_of_tcp());
        assert_eq!(got, [1, 2]);
    });
}

#[test]
fn an_ended_lane_is_drained_first() {
    end(End::Kept);
}

#[test]
#[should_panic(expected = "left == right")]
fn broken_end_looked_at_after_the_bytes() {
    end(End::LooksTwice);
}

#[derive(Copy, Clone, PartialEq)]
enum Death {
    Kept,
    NoSecondLook,
}

/// The sender dies after a publish; the kernel closes TCP. EOF is believed only after a second look at prod.
fn death(rule: Death) {
    explore("death", move || {
        let lane = Lane::begun();
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                lane.publish(START, 1).expect("open");
                lane.tcp.lock().unwrap().closed = true;
            })
        };
        let mut got = Vec::new();
        loop {
            let prod = lane.words.prod();
            if prod.offset() != 0 {
                got = lane.drain(START, prod.offset());
                break;
            }
            if lane.tcp.lock().unwrap().closed {
                if rule == Death::Kept {
                    let last = lane.words.flag(1, Cursor::STOP, 0).expect("our generation");
                    got = lane.drain(START, last.offset());
                }
                break;
            }
            thread::yield_now();
        }
        sender.join().unwrap();
        assert_eq!(got, [1]);
    });
}

#[test]
fn what_a_dead_sender_published_is_delivered() {
    death(Death::Kept);
}

#[test]
#[should_panic(expected = "left == right")]
fn broken_eof_without_a_second_look() {
    death(Death::NoSecondLook);
}

#[derive(Copy, Clone, PartialEq)]
enum Leave {
    Kept,
    LeavesThoughEnded,
}

/// The receiver hands its socket to a foreign program: the sender takes back; or it ENDed first, and is drained.
fn leave(rule: Leave) {
    explore("leave", move || {
        let lane = Lane::begun();
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                if let Err(seen) = lane.publish(START, 1) {
                    assert!(seen.has(Cursor::LEAVE));
                    lane.take_back();
                    return lane.by_tcp([1, 2]);
                }
                let prod = lane.words.flag(1, Cursor::END, 0).expect("our generation");
                if prod.has(Cursor::LEAVE) {
                    lane.take_back();
                }
                lane.by_tcp([2]);
            })
        };
        let left = lane.words.flag(1, Cursor::STOP | Cursor::LEAVE, Cursor::STOP | Cursor::END);
        let mut got = match left {
            Err(ended) if rule == Leave::Kept => lane.drain(START, ended.offset()),
            _ => Vec::new(),
        };
        sender.join().unwrap();
        got.extend(lane.all_of_tcp());
        assert_eq!(got, [1, 2]);
    });
}

#[test]
fn a_receiver_that_leaves_finds_all_on_tcp() {
    leave(Leave::Kept);
}

#[test]
#[should_panic(expected = "left == right")]
fn broken_leave_after_end() {
    leave(Leave::LeavesThoughEnded);
}

#[derive(Copy, Clone, PartialEq)]
enum Ungrant {
    Kept,
    WithoutStop,
}

/// The receiver takes its offer back while the sender begins.
fn ungrant(rule: Ungrant) {
    explore("ungrant", move || {
        let lane = Lane::granted();
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                if !lane.words.begin(1, 0, RING as u64) || lane.publish(START, 1).is_err() {
                    lane.by_tcp([1]);
                }
            })
        };
        let mut got = Vec::new();
        if rule == Ungrant::Kept {
            let stopped = lane.words.flag(1, Cursor::STOP, 0).expect("our generation");
            if stopped.offset() != 0 {
                // Begun, so drained; else nothing comes by this lane ever.
                assert_eq!(lane.words.start(1), Some(0));
                got = lane.drain(START, stopped.offset());
            }
        }
        sender.join().unwrap();
        got.extend(lane.all_of_tcp());
        assert_eq!(got, [1]);
    });
}

#[test]
fn an_offer_taken_back_loses_nothing() {
    ungrant(Ungrant::Kept);
}

#[test]
#[should_panic(expected = "left == right")]
fn broken_offer_taken_back_without_stop() {
    ungrant(Ungrant::WithoutStop);
}

#[derive(Copy, Clone, PartialEq)]
enum Begin {
    Kept,
    Regardless,
}

/// A DMB is granted a second time: who begins the new generation sees its fresh cursors.
fn begin(rule: Begin) {
    explore("begin", move || {
        let lane = Lane::begun();
        lane.publish(START, 1).expect("open");
        lane.words.flag(1, Cursor::END, 0).expect("our generation");
        lane.drain(START, 1);
        let receiver = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || lane.words.grant(2))
        };
        // In the broken twin nothing of generation 2 may be there yet.
        let begun = lane.words.begin(2, 9, RING as u64) || rule == Begin::Regardless;
        let seen = (lane.words.cons(), lane.words.start(2));
        receiver.join().unwrap();
        if begun {
            assert_eq!(seen, (Cursor::new(2, 0), Some(9)));
        }
    });
}

#[test]
fn a_lane_begins_with_the_cursors_of_its_grant() {
    begin(Begin::Kept);
}

#[test]
#[should_panic(expected = "left == right")]
fn broken_begun_without_a_grant() {
    begin(Begin::Regardless);
}
