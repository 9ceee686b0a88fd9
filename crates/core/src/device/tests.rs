//! Memory that was let go of stays while a thread may look at it, and goes when none can.

use core::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{MutexGuard, Once};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shunpike_shm::region;

use super::*;
use crate::{life, reuse, session};

/// One quarantine for all tests of the process: one at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static STARTED: Once = Once::new();
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    STARTED.call_once(|| life::start(life::Options::default()));
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Memory under a name of its own, let go of.
struct Let(String);

fn retired() -> Let {
    use rustix::fd::AsFd;
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("shunpike-test-{}-", COUNT.fetch_add(1, Ordering::Relaxed));
    let memory = region::create(&name, 4096).expect("a memfd");
    let region = Region::map(memory.as_fd(), 4096).expect("a mapping");
    retire(region, DmbToken(0), Owner::Local);
    Let(name)
}

fn swept() {
    reuse::sweep(&mut session::lock());
}

fn is_mapped(memory: &Let) -> bool {
    std::fs::read_to_string("/proc/self/maps").expect("our own maps").contains(&memory.0)
}

/// A thread that goes inside a critical section and does as it is told there.
struct Inside {
    told: Sender<bool>,
    thread: JoinHandle<()>,
}

impl Inside {
    fn new() -> Self {
        let (told, tell): (_, Receiver<bool>) = channel();
        let (is_in, inside) = channel();
        let thread = std::thread::spawn(move || {
            let section = tls::critical();
            is_in.send(()).expect("somebody waits");
            if tell.recv().expect("a word") {
                drop(section);
                tell.recv().expect("another word");
            } else {
                core::mem::forget(section);
            }
        });
        inside.recv().expect("inside");
        Self { told, thread }
    }

    fn leave(&self) {
        self.told.send(true).expect("it listens");
    }

    fn end(self) {
        self.told.send(false).expect("it listens");
        self.thread.join().expect("it ends in peace");
    }
}

fn goes_soon(region: &Let) {
    let start = Instant::now();
    while is_mapped(region) {
        assert!(start.elapsed() < Duration::from_secs(20), "still mapped");
        swept();
        std::thread::yield_now();
    }
}

#[test]
fn memory_that_nobody_looks_at_goes() {
    let _alone = alone();
    let region = retired();
    assert!(is_mapped(&region));
    goes_soon(&region);
}

#[test]
fn a_thread_inside_a_section_keeps_it_however_long() {
    let _alone = alone();
    let inside = Inside::new();
    let region = retired();
    (0..100).for_each(|_| swept());
    assert!(is_mapped(&region));
    let later = retired();
    swept();
    inside.leave();
    goes_soon(&region);
    goes_soon(&later);
    inside.end();
}

#[test]
fn one_that_goes_inside_later_does_not_keep_it() {
    let _alone = alone();
    let first = Inside::new();
    let region = retired();
    swept();
    let second = Inside::new();
    first.leave();
    goes_soon(&region);
    second.leave();
    first.end();
    second.end();
}

#[test]
fn a_thread_that_died_inside_keeps_nothing() {
    let _alone = alone();
    let inside = Inside::new();
    let region = retired();
    swept();
    assert!(is_mapped(&region));
    inside.end();
    goes_soon(&region);
}

#[test]
fn the_caller_s_own_section_keeps_it() {
    let _alone = alone();
    let section = tls::critical();
    let region = retired();
    swept();
    assert!(is_mapped(&region));
    drop(section);
    goes_soon(&region);
}

/// A lane's memory, let go of.
fn lane_of(owner: Owner) -> Region {
    use rustix::fd::AsFd;
    let memory = region::create("shunpike-test-lane", 4096).expect("a memfd");
    let region = Region::map(memory.as_fd(), 4096).expect("a mapping");
    retire_lane(region, DmbToken(7), owner, Some(Lane { group: 1, forks: forks(), ring: 16384 }));
    region
}

/// What the broker is to be told of now, as a sweep finds it.
fn told() -> Vec<(Stage, bool)> {
    let (mut quarantine, mut from) = (RETIRED.lock(), 0);
    quarantine.turn(|place| epochs::is_dead(place) || epochs::is_own(place));
    let told =
        core::iter::from_fn(|| quarantine.due(&mut from)).map(|item| (item.stage, item.lane.is_some()));
    told.collect()
}

/// What the broker is to be told of once nobody looks at anything.
fn told_at_last() -> Vec<(Stage, bool)> {
    let start = Instant::now();
    while RETIRED.lock().present().any(|item| !matches!(item.stage, Stage::Spare | Stage::Unmapped)) {
        assert!(start.elapsed() < Duration::from_secs(20), "still looked at");
        RETIRED.lock().turn(|place| epochs::is_dead(place) || epochs::is_own(place));
        std::thread::yield_now();
    }
    told()
}

fn fork() {
    hold_across_fork();
    let_go_after_fork();
}

impl core::fmt::Debug for Stage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Stage::Fresh => "fresh",
            Stage::Waiting => "waiting",
            Stage::Spare => "spare",
            Stage::Unmapped => "unmapped",
        })
    }
}

#[test]
fn a_lane_s_memory_is_told_of_when_nobody_looks_at_it() {
    let _alone = alone();
    let inside = Inside::new();
    let own = lane_of(Owner::Ours);
    lane_of(Owner::Peer);
    assert_eq!(told(), []);
    inside.leave();
    let mut told = told_at_last();
    told.sort_by_key(|(stage, _)| *stage as u8);
    assert_eq!(told, [(Stage::Spare, true), (Stage::Unmapped, true)]);
    // SAFETY: ours is still mapped, and nobody else was told of it.
    unsafe { own.unmap() };
    inside.end();
}

#[test]
fn what_a_thread_keeps_for_long_is_told_of_and_not_used_again() {
    let _alone = alone();
    let inside = Inside::new();
    lane_of(Owner::Ours);
    lane_of(Owner::Peer);
    let early: Vec<_> = (0..=PATIENCE).map(|_| told()).collect();
    assert!(early.iter().take(PATIENCE.into()).all(Vec::is_empty));
    assert!(
        early
            .last()
            .is_some_and(|told| matches!(told[..], [(Stage::Waiting, false), (Stage::Waiting, false)]))
    );
    inside.leave();
    assert_eq!(told_at_last(), [], "told of before");
    assert_eq!(RETIRED.lock().count, 0);
    inside.end();
}

#[test]
fn what_a_child_may_have_mapped_is_not_used_again() {
    let _alone = alone();
    for owner in [Owner::Ours, Owner::Peer] {
        lane_of(owner);
        fork();
        assert_eq!(told_at_last(), [(Stage::Unmapped, false)], "{owner:?}");
    }
}

#[test]
fn more_threads_than_places_that_are_searched() {
    let _alone = alone();
    // More than are searched at first, dead and alive; each must have a word of its own.
    (0..200).for_each(|_| std::thread::spawn(|| drop(tls::critical())).join().expect("it ends in peace"));
    let inside: Vec<_> = (0..150).map(|_| Inside::new()).collect();
    let region = retired();
    for one in inside {
        swept();
        assert!(is_mapped(&region));
        one.end();
    }
    goes_soon(&region);
}
