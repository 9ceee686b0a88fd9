//! Memory goes only when no reader without a lock can still look at it, as core's `reuse::sweep` does it.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;
use shunpike_shm::grace::{Grace, Reader};

use crate::explore;

/// A rule that is not kept.
#[derive(Copy, Clone, PartialEq)]
enum Broken {
    Nothing,
    EntersAfterReadingTheAddress,
    LeavesBeforeTheLastUse,
    BeginsBeforeTakingTheAddress,
    NoFence,
    NoWait,
}

struct Shared {
    /// The address is there to be read.
    reachable: AtomicBool,
    /// What lies there; writing is unmapping. loom fails a run in which a read can meet it.
    memory: UnsafeCell<()>,
    readers: [Reader; 2],
    broken: Broken,
}

impl Shared {
    fn look(&self, me: usize) {
        let reader = &self.readers[me];
        let late = self.broken == Broken::EntersAfterReadingTheAddress;
        if !late {
            reader.enter();
        }
        let reachable = self.reachable.load(Ordering::Relaxed);
        if late {
            reader.enter();
        }
        if self.broken == Broken::LeavesBeforeTheLastUse {
            reader.leave();
        }
        if reachable {
            self.memory.with(|_| ());
        }
        if self.broken != Broken::LeavesBeforeTheLastUse {
            reader.leave();
        }
    }

    fn unmap(&self) {
        let mut grace = Grace::<2>::new();
        if self.broken == Broken::BeginsBeforeTakingTheAddress {
            fence(Ordering::SeqCst);
            grace.begin(self.readers.iter());
        }
        self.reachable.store(false, Ordering::Relaxed);
        if self.broken != Broken::BeginsBeforeTakingTheAddress {
            // membarrier(2).
            if self.broken != Broken::NoFence {
                fence(Ordering::SeqCst);
            }
            grace.begin(self.readers.iter());
        }
        while self.broken != Broken::NoWait && !grace.is_over(self.readers.iter(), |_| false) {
            thread::yield_now();
        }
        self.memory.with_mut(|_| ());
    }
}

/// Readers that look twice and once, and one who unmaps.
fn reclaim(broken: Broken) {
    explore("reclaim", move || {
        let shared = Arc::new(Shared {
            reachable: AtomicBool::new(true),
            memory: UnsafeCell::new(()),
            readers: [Reader::new(), Reader::new()],
            broken,
        });
        let readers: Vec<_> = [2, 1]
            .into_iter()
            .enumerate()
            .map(|(me, looks)| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || (0..looks).for_each(|_| shared.look(me)))
            })
            .collect();
        shared.unmap();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn memory_outlives_its_readers() {
    reclaim(Broken::Nothing);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_enters_after_reading_the_address() {
    reclaim(Broken::EntersAfterReadingTheAddress);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_leaves_before_the_last_use() {
    reclaim(Broken::LeavesBeforeTheLastUse);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_begins_before_taking_the_address() {
    reclaim(Broken::BeginsBeforeTakingTheAddress);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_no_fence() {
    reclaim(Broken::NoFence);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_no_wait() {
    reclaim(Broken::NoWait);
}
