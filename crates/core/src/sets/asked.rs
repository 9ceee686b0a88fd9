//! Which set the calling thread asks the kernel of. A handler may jump out of that, and the thread be cancelled there: what the kernel had
//! told of by then it tells nobody again.

use core::sync::atomic::Ordering;

use super::list::push;
use super::regs::{CONTROL, reg};
use super::{open_sets, ring};
use crate::host::host;
use crate::set::{List, Set};
use crate::tls::thread;

/// In the thread's word, beside the set's address: it is one of the set's sleepers.
const SLEEPS: usize = 1;

fn word_of(set: &Set) -> usize {
    core::ptr::from_ref(set).addr()
}

/// Makes `call`, which asks the kernel and looks at what it tells.
pub(crate) fn asking<T>(set: &Set, call: impl FnOnce() -> T) -> T {
    let asked = &thread().asked;
    // A sleep has said so already.
    let is_first = asked.load(Ordering::Relaxed) == 0;
    if is_first {
        asked.store(word_of(set), Ordering::Relaxed);
    }
    let result = call();
    if is_first {
        asked.store(0, Ordering::Relaxed);
    }
    result
}

/// The end of a thread that sleeps is to be told of. With no lock held.
pub(crate) fn mark() {
    let is_marked = &thread().is_marked;
    if !is_marked.load(Ordering::Relaxed) {
        is_marked.store(true, Ordering::Relaxed);
        (host().owes)();
    }
}

/// The thread is one of the set's sleepers from now on.
pub(crate) fn sleeps(set: &Set, list: &mut List) {
    list.sleepers += 1;
    thread().asked.store(word_of(set) | SLEEPS, Ordering::Relaxed);
}

/// It is none any more, unless a handler's own wait has taken it for one that was jumped out of.
pub(crate) fn wakes(set: &Set, list: &mut List) {
    let asked = &thread().asked;
    if asked.load(Ordering::Relaxed) == word_of(set) | SLEEPS {
        asked.store(0, Ordering::Relaxed);
        list.sleepers -= 1;
    }
}

/// Before the thread asks again, and at its end: where its last question never came to an end, all of that set are looked at.
pub fn recall() {
    if thread().asked.load(Ordering::Relaxed) != 0 {
        look_at_all();
    }
}

#[cold]
fn look_at_all() {
    let control = CONTROL.lock();
    // Within that: a handler finds it taken or not.
    let word = thread().asked.swap(0, Ordering::Relaxed);
    let Some(set) = open_sets().find(|set| word_of(set) == word & !SLEEPS) else { return };
    let mut list = set.list.lock();
    if word & SLEEPS != 0 {
        list.sleepers = list.sleepers.saturating_sub(1);
    }
    for index in 1..=control.used {
        if let Some(reg) = reg(index)
            && reg.managed.get()
            && reg.is_in(set)
        {
            reg.dirty.set(true);
            push(&mut list, index);
        }
    }
    drop(list);
    drop(control);
    // Who sleeps on it, too, would have heard what that wait took.
    ring(set);
}
