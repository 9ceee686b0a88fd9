//! An epoll set with two connections on one completion queue: active list, arming, news (models/cq.pml).

use std::cell::Cell;

use loom::sync::Arc;
use shunpike_shm::lane::{Cursor, Side, Words};
use shunpike_shm::pages::CqNews;

use crate::bell::{Bell, Crew, together};
use crate::explore;

/// A rule that is not kept.
#[derive(Copy, Clone, PartialEq)]
enum Broken {
    Nothing,
    NoSecondLookAtTheConnection,
    NoSecondLookAtTheNews,
    NewsTakenAfterTheLook,
    OneEpochForAll,
}

/// Connections in the set; one message comes on each.
const CONNS: usize = 2;

struct Set {
    lanes: [Words; CONNS],
    news: CqNews,
    bell: Bell,
    crew: Crew,
    broken: Broken,
}

impl Set {
    /// `wait::notify` and `Link::post`.
    fn notify(&self, slot: usize) {
        let wait = self.lanes[slot].waiting(Side::Readers);
        if wait.declared() {
            if let Some(sleep) = self.news.post(slot as u16) {
                self.bell.ring(&self.crew);
                self.news.answered(sleep);
            }
            self.lanes[slot].answered(Side::Readers, wait);
        }
    }

    /// `epoll::wait` until each connection has brought its messages.
    fn consume(&self, messages: u64) {
        let active = [const { Cell::new(true) }; CONNS];
        let mut at = [Cursor::new(1, 0); CONNS];
        let mut epoch = 0;
        while at.iter().any(|at| at.offset() < messages) {
            let late = self.broken == Broken::NewsTakenAfterTheLook;
            if late && self.news.any() {
                active.iter().for_each(|active| active.set(true));
            }
            if !late {
                self.news.take(|slot| active[usize::from(slot)].set(true));
            }
            for (slot, lane) in self.lanes.iter().enumerate().filter(|(slot, _)| active[*slot].get()) {
                let unread = |at: Cursor| lane.prod().offset() > at.offset();
                while unread(at[slot]) {
                    at[slot] = lane.consume(at[slot], 1).expect("open");
                }
                // Off the list, then armed, then looked at again.
                active[slot].set(false);
                epoch = if self.broken == Broken::OneEpochForAll { 1 } else { epoch + 1 };
                lane.declare(Side::Readers, epoch, 1);
                if self.broken != Broken::NoSecondLookAtTheConnection && unread(at[slot]) {
                    active[slot].set(true);
                }
            }
            if late {
                self.news.take(|_| {});
            }
            let done = at.iter().all(|at| at.offset() == messages);
            if done || active.iter().any(Cell::get) {
                continue;
            }
            epoch = if self.broken == Broken::OneEpochForAll { 1 } else { epoch + 1 };
            self.news.declare(u64::from(epoch));
            if self.broken == Broken::NoSecondLookAtTheNews || !self.news.any() {
                self.bell.wait(&self.crew);
            }
        }
    }
}

/// `senders` threads, each with its own connections, and the set's thread.
fn set(messages: u64, senders: usize, broken: Broken) {
    explore("set", move || {
        let lanes = core::array::from_fn(|_| {
            let words = Words::new();
            words.grant(1);
            assert!(words.begin(1, 0, 1 << 14));
            words
        });
        let set = Set { lanes, news: CqNews::new(), bell: Bell::new(), crew: Crew::new(1 + senders), broken };
        let mut each: Vec<Box<dyn FnOnce(&Set)>> = vec![Box::new(move |set| set.consume(messages))];
        for first in 0..senders {
            each.push(Box::new(move |set| {
                let own = || (first..CONNS).step_by(senders);
                for (message, slot) in
                    (0..messages).flat_map(|message| own().map(move |slot| (message, slot)))
                {
                    set.lanes[slot].publish(Cursor::new(1, message), 1).expect("open");
                    set.notify(slot);
                }
            }));
        }
        together(&Arc::new(set), |set| &set.crew, each);
    });
}

#[test]
fn a_set_hears_of_each_connection() {
    set(1, CONNS, Broken::Nothing);
}

#[test]
fn a_set_hears_of_one_sender_again_and_again() {
    set(2, 1, Broken::Nothing);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_armed_without_a_second_look() {
    set(1, 1, Broken::NoSecondLookAtTheConnection);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_slept_without_a_second_look_at_the_news() {
    set(1, CONNS, Broken::NoSecondLookAtTheNews);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_news_taken_after_the_look() {
    set(1, CONNS, Broken::NewsTakenAfterTheLook);
}

#[test]
#[should_panic(expected = "left asleep")]
fn broken_every_arming_has_one_epoch() {
    set(2, 1, Broken::OneEpochForAll);
}
