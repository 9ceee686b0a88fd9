//! Nobody is left asleep: both levels of arming, as core's `wait` drives them (models/wake.pml).

use std::sync::atomic::{AtomicU32, Ordering};

use loom::sync::{Arc, Mutex};
use shunpike_shm::lane::{Cursor, Side, Words};
use shunpike_shm::pages::CqNews;

use crate::bell::{Bell, Crew, Futex, together};
use crate::explore;

/// A rule that is not kept.
#[derive(Copy, Clone, PartialEq)]
enum Broken {
    Nothing,
    NoSecondLook,
    SecondLookBeforeDeclaring,
    ClearBeforeRing,
    OneEpochForAll,
    OverwritesTheQueues,
    RingsOneSleeper,
    NoHelp,
    ArmsTheLaneFirst,
    WakesBeforeClearing,
    NapsOnAnyWord,
    ForgetsWhoNaps,
}

/// What a sleeper does.
#[derive(Copy, Clone, PartialEq)]
enum By {
    Doorbell,
    Nap,
}

/// Steps of a notification for one queue; a publisher killed after some of them never does the rest.
const STEPS: u32 = 4;
/// A publisher that is not killed.
const ALIVE: u32 = u32::MAX;

/// A lane of one-byte messages; sleepers on it, each with the queue that it uses.
struct Lane {
    words: Words,
    room: u64,
    /// Receive and send locks, with the cursors that they guard.
    rx: Mutex<Cursor>,
    tx: Mutex<Cursor>,
    epoch: AtomicU32,
    news: [CqNews; 2],
    sleepers: Vec<(usize, Bell)>,
    by: Vec<By>,
    /// The wait words' upper halves, of readers and of writers.
    futexes: [Futex; 2],
    crew: Crew,
    broken: Broken,
}

impl Lane {
    fn new(threads: usize, room: u64, queues: &[usize], broken: Broken) -> Arc<Self> {
        Self::with(threads, room, queues, vec![By::Doorbell; queues.len()], broken)
    }

    fn with(threads: usize, room: u64, queues: &[usize], by: Vec<By>, broken: Broken) -> Arc<Self> {
        let words = Words::new();
        words.grant(1);
        assert!(words.begin(1, 0, 1 << 14));
        Arc::new(Self {
            words,
            room,
            rx: Mutex::new(Cursor::new(1, 0)),
            tx: Mutex::new(Cursor::new(1, 0)),
            epoch: AtomicU32::new(0),
            news: [CqNews::new(), CqNews::new()],
            sleepers: queues.iter().map(|&cq| (cq, Bell::new())).collect(),
            by,
            futexes: [Futex::new(), Futex::new()],
            crew: Crew::new(threads),
            broken,
        })
    }

    /// `wait::notify` and `Link::post`, up to `steps` steps.
    fn notify(&self, side: Side, steps: u32) {
        let mut left = steps;
        let mut alive = || {
            let alive = left > 0;
            left = left.saturating_sub(1);
            alive
        };
        let wait = self.words.waiting(side);
        if !wait.declared() {
            return;
        }
        if self.broken == Broken::ClearBeforeRing {
            self.words.answered(side, wait);
        }
        if self.broken == Broken::WakesBeforeClearing && wait.naps() {
            self.futex(side).wake(&self.crew);
        }
        for cq in (0..2).filter(|cq| wait.cqs() >> cq & 1 != 0) {
            if !alive() {
                return;
            }
            if let Some(sleep) = self.news[cq].post(0) {
                if !alive() {
                    return;
                }
                self.ring(cq);
                if !alive() {
                    return;
                }
                self.news[cq].answered(sleep);
            }
        }
        if alive() && self.broken != Broken::ClearBeforeRing {
            self.words.answered(side, wait);
        }
        if wait.naps() && self.broken != Broken::WakesBeforeClearing && alive() {
            self.futex(side).wake(&self.crew);
        }
    }

    fn futex(&self, side: Side) -> &Futex {
        &self.futexes[usize::from(side == Side::Writers)]
    }

    /// One write to an eventfd: an edge in each sleeper's own epoll instance.
    fn ring(&self, cq: usize) {
        let of_queue = self.sleepers.iter().filter(|sleeper| sleeper.0 == cq);
        let some = if self.broken == Broken::RingsOneSleeper { 1 } else { usize::MAX };
        of_queue.take(some).for_each(|sleeper| sleeper.1.ring(&self.crew));
    }

    /// Sleeper `me` declares itself, looks once more and sleeps.
    fn sleep(&self, me: usize, side: Side, ready: impl Fn() -> bool, before: impl Fn()) {
        if self.broken == Broken::SecondLookBeforeDeclaring && ready() {
            return;
        }
        let (cq, bell) = &self.sleepers[me];
        let epoch = match self.broken {
            Broken::OneEpochForAll => 1,
            _ => self.epoch.fetch_add(1, Ordering::Relaxed) + 1,
        };
        if self.by[me] == By::Nap {
            return self.nap(side, epoch, ready, before);
        }
        if matches!(self.broken, Broken::OverwritesTheQueues | Broken::ForgetsWhoNaps) {
            self.words.answered(side, self.words.waiting(side));
        }
        if self.broken == Broken::ArmsTheLaneFirst {
            self.words.declare(side, epoch, 1 << cq);
            self.news[*cq].declare(u64::from(epoch));
        } else {
            self.news[*cq].declare(u64::from(epoch));
            self.words.declare(side, epoch, 1 << cq);
        }
        let looks = !matches!(self.broken, Broken::NoSecondLook | Broken::SecondLookBeforeDeclaring);
        if looks && ready() {
            return;
        }
        before();
        bell.wait(&self.crew);
    }

    /// `wait::Nap`, which nobody's time ends here.
    fn nap(&self, side: Side, epoch: u32, ready: impl Fn() -> bool, before: impl Fn()) {
        let declared = self.words.declare_nap(side, epoch);
        if self.broken != Broken::NoSecondLook && ready() {
            return;
        }
        before();
        let stands =
            || self.broken == Broken::NapsOnAnyWord || self.words.waiting(side).epoch() == declared.epoch();
        self.futex(side).wait(&self.crew, stands);
    }

    fn send(&self, me: Option<usize>, steps: u32) {
        loop {
            let mut at = self.tx.lock().unwrap();
            if at.offset() - self.words.cons().offset() < self.room {
                *at = self.words.publish(*at, 1).expect("open");
                drop(at);
                return self.notify(Side::Readers, steps);
            }
            drop(at);
            let ready = || self.words.prod().offset() - self.words.cons().offset() < self.room;
            let help = || {
                if self.broken != Broken::NoHelp {
                    self.notify(Side::Readers, ALIVE);
                }
            };
            self.sleep(me.expect("room for all"), Side::Writers, ready, help);
        }
    }

    fn receive(&self, me: usize) {
        loop {
            let mut at = self.rx.lock().unwrap();
            if self.words.prod().offset() > at.offset() {
                *at = self.words.consume(*at, 1).expect("open");
                drop(at);
                return self.notify(Side::Writers, ALIVE);
            }
            let seen = at.offset();
            drop(at);
            self.sleep(me, Side::Readers, || self.words.prod().offset() > seen, || {});
        }
    }
}

/// Threads that share `lane`; the first is the model's own.
macro_rules! threads {
    ($lane:expr, $($run:expr),+ $(,)?) => {
        together(&$lane, |lane| &lane.crew, vec![$(Box::new($run)),+])
    };
}

/// One reader, two messages.
fn reader(broken: Broken) {
    explore("reader", move || {
        let lane = Lane::new(2, 2, &[0], broken);
        threads!(lane, |lane: &Lane| (0..2).for_each(|_| lane.receive(0)), |lane: &Lane| (0..2)
            .for_each(|_| lane.send(None, ALIVE)),);
    });
}

#[test]
fn a_reader_is_woken() {
    reader(Broken::Nothing);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_reader_looks_no_second_time() {
    reader(Broken::NoSecondLook);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_reader_looks_before_it_declares() {
    reader(Broken::SecondLookBeforeDeclaring);
}

/// A writer at a ring for one message.
fn writer(broken: Broken) {
    explore("writer", move || {
        let lane = Lane::new(2, 1, &[0, 1], broken);
        threads!(lane, |lane: &Lane| (0..2).for_each(|_| lane.receive(0)), |lane: &Lane| (0..2)
            .for_each(|_| lane.send(Some(1), ALIVE)),);
    });
}

#[test]
fn a_writer_is_woken() {
    writer(Broken::Nothing);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_writer_looks_no_second_time() {
    writer(Broken::NoSecondLook);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_lane_armed_before_its_queue_sleeps() {
    writer(Broken::ArmsTheLaneFirst);
}

/// A publisher is killed at each step of its notification; the next one, of the same end, is heard.
fn killed(room: u64, broken: Broken) {
    for steps in 0..=STEPS {
        explore("killed", move || {
            let lane = Lane::new(2, room, &[0, 1], broken);
            threads!(lane, |lane: &Lane| (0..2).for_each(|_| lane.receive(0)), move |lane: &Lane| {
                lane.send(None, steps);
                lane.send(Some(1), ALIVE);
            },);
        });
    }
}

#[test]
fn a_killed_publisher_leaves_no_sleeper_behind() {
    killed(2, Broken::Nothing);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_cleared_before_ringing() {
    killed(2, Broken::ClearBeforeRing);
}

#[test]
fn a_writer_rings_for_the_killed_one_that_filled_the_ring() {
    killed(1, Broken::Nothing);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_writer_does_not_help() {
    killed(1, Broken::NoHelp);
}

/// Two threads read one connection, a message each, and go off.
fn readers(queues: [usize; 2], broken: Broken) {
    explore("readers", move || {
        let lane = Lane::new(3, 2, &queues, broken);
        threads!(
            lane,
            |lane: &Lane| (0..2).for_each(|_| lane.send(None, ALIVE)),
            |lane: &Lane| lane.receive(0),
            |lane: &Lane| lane.receive(1),
        );
    });
}

#[test]
fn two_readers_with_two_queues_are_woken() {
    readers([0, 1], Broken::Nothing);
}

#[test]
fn two_readers_with_one_queue_are_woken() {
    readers([0, 0], Broken::Nothing);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_declaration_forgets_other_queues() {
    readers([0, 1], Broken::OverwritesTheQueues);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_sleepers_share_an_epoch() {
    readers([0, 0], Broken::OneEpochForAll);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_doorbell_wakes_one_of_two() {
    readers([0, 0], Broken::RingsOneSleeper);
}

/// A reader that naps, two messages.
fn napper(broken: Broken) {
    explore("napper", move || {
        let lane = Lane::with(2, 2, &[0], vec![By::Nap], broken);
        threads!(lane, |lane: &Lane| (0..2).for_each(|_| lane.receive(0)), |lane: &Lane| (0..2)
            .for_each(|_| lane.send(None, ALIVE)),);
    });
}

#[test]
fn a_napper_is_woken() {
    napper(Broken::Nothing);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_napper_looks_no_second_time() {
    napper(Broken::NoSecondLook);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_woken_before_it_is_cleared() {
    napper(Broken::WakesBeforeClearing);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_napper_does_not_compare() {
    napper(Broken::NapsOnAnyWord);
}

/// A reader and a writer at a ring for one message, both of whom nap.
#[test]
fn a_writer_that_naps_is_woken() {
    explore("writer that naps", || {
        let lane = Lane::with(2, 1, &[0, 1], vec![By::Nap, By::Nap], Broken::Nothing);
        threads!(lane, |lane: &Lane| (0..2).for_each(|_| lane.receive(0)), |lane: &Lane| (0..2)
            .for_each(|_| lane.send(Some(1), ALIVE)),);
    });
}

/// Two threads read one connection, a message each; one naps.
fn napper_and_sleeper(by: [By; 2], broken: Broken) {
    explore("napper and sleeper", move || {
        let lane = Lane::with(3, 2, &[0, 1], by.to_vec(), broken);
        threads!(
            lane,
            |lane: &Lane| (0..2).for_each(|_| lane.send(None, ALIVE)),
            |lane: &Lane| lane.receive(0),
            |lane: &Lane| lane.receive(1),
        );
    });
}

#[test]
fn a_napper_and_a_sleeper_are_woken() {
    napper_and_sleeper([By::Nap, By::Doorbell], Broken::Nothing);
}

#[test]
fn two_nappers_are_woken() {
    napper_and_sleeper([By::Nap, By::Nap], Broken::Nothing);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_declaration_forgets_who_naps() {
    napper_and_sleeper([By::Nap, By::Doorbell], Broken::ForgetsWhoNaps);
}
