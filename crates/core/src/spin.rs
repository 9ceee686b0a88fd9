//! The spin before a sleep, and what a thread remembers of its waits. [`policy`](crate::policy) says how.

use core::sync::atomic::Ordering;

use crate::policy::{Bounds, Event, Habits, Memory, Next, Profile, Spin};
use crate::tls::{Thread, crossed, thread};
use crate::{clock, process};

/// Spins that a thread counts by itself before it touches the counter that all threads share.
const SPINS_A_LINE: u32 = 1024;
/// Borders of critical sections that a thread crosses for one message: a dozen or more in an epoll_wait, a recv, another one that finds
/// nothing, and a send.
const BORDERS: u32 = 16;
/// What is left of a program's time counts up to an hour.
const LEFT_US: u64 = 3_600_000_000;

/// Spins until `ready`, as long as that pays and at most `left` nanoseconds; says whether it became ready.
pub fn spin(left: Option<u64>, mut ready: impl FnMut() -> bool) -> bool {
    let thread = thread();
    let woke = thread.woke.load(Ordering::Relaxed);
    thread.woke.store(false, Ordering::Relaxed);
    if ready() {
        count_spin(thread);
        return true;
    }
    let is_ready = asked(thread).is_some_and(|asked| run(thread, asked, woke, left, ready));
    // What its own looks have crossed is no message.
    thread.crossed.store(crossed() as u32, Ordering::Relaxed);
    is_ready
}

/// What the operator wants of this wait. `None`: this process does not spin.
fn asked(thread: &Thread) -> Option<(Profile, Bounds)> {
    let most = clock::from_us(u64::from(process::knobs().spin_us.load(Ordering::Relaxed)));
    let profile = process::profile().filter(|_| most > 0 && process::may_spin())?;
    let crossed = (crossed() as u32).wrapping_sub(thread.crossed.load(Ordering::Relaxed));
    Some((profile, Bounds::new(most, clock::from_us(1), crossed / BORDERS)))
}

fn run(
    thread: &Thread,
    asked: (Profile, Bounds),
    woke: bool,
    left: Option<u64>,
    mut ready: impl FnMut() -> bool,
) -> bool {
    let left = left.map_or(u64::MAX, |ns| clock::from_us((ns / 1000).min(LEFT_US)));
    let (mut spin, mut next) = Spin::begin(habits(thread), asked, woke, left, clock::ticks());
    let is_ready = loop {
        match next {
            Next::Look(looks) => {
                let is_ready = look(looks, &mut ready);
                let now = clock::ticks();
                if is_ready {
                    if spin.found(now) {
                        count_spin(thread);
                    }
                    break true;
                }
                next = spin.next(Event::Nothing, now);
            }
            Next::Yield => {
                rustix::thread::sched_yield();
                next = spin.next(Event::Yielded, clock::ticks());
            }
            Next::Sleep => break false,
        }
    };
    let Habits { memory, patience, keep_until, lost, in_place } = spin.habits();
    thread.waits.store(memory.pack(), Ordering::Relaxed);
    thread.patience.store(patience, Ordering::Relaxed);
    thread.keep_until.store(keep_until & !LOST | u64::from(lost), Ordering::Relaxed);
    thread.in_place.store(in_place, Ordering::Relaxed);
    is_ready
}

#[inline(always)]
fn look(looks: u32, ready: &mut impl FnMut() -> bool) -> bool {
    for _ in 0..looks {
        if ready() {
            return true;
        }
        core::hint::spin_loop();
    }
    false
}

/// In the low bits of the time until which a thread does not yield: how many yields in a row have lost a slice.
const LOST: u64 = 7;

fn habits(thread: &Thread) -> Habits {
    let keep_until = thread.keep_until.load(Ordering::Relaxed);
    Habits {
        memory: memory(thread),
        patience: thread.patience.load(Ordering::Relaxed),
        keep_until: keep_until & !LOST,
        lost: (keep_until & LOST) as u8,
        in_place: thread.in_place.load(Ordering::Relaxed),
    }
}

fn memory(thread: &Thread) -> Memory {
    Memory::unpack(thread.waits.load(Ordering::Relaxed))
}

/// Whether the calling thread naps before it sleeps.
pub fn naps() -> bool {
    memory(thread()).naps()
}

/// The calling thread has slept for so many ticks, or napped to the end.
pub fn slept(ticks: u64) {
    let thread = thread();
    let mut memory = memory(thread);
    memory.slept(ticks, clock::from_us(1));
    thread.waits.store(memory.pack(), Ordering::Relaxed);
}

fn count_spin(thread: &Thread) {
    let spins = thread.spins.load(Ordering::Relaxed) + 1;
    thread.spins.store(spins, Ordering::Relaxed);
    if spins >= SPINS_A_LINE {
        process::count_spins(thread);
    }
}
