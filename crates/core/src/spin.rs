//! The spin before a sleep. [`policy`](crate::policy) says how long.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::policy::{Bounds, Memory, Profile};
use crate::tls::{Thread, crossed, thread};
use crate::{clock, process};

/// Spins that a thread counts by itself before it touches the counter that all threads share.
const SPINS_A_LINE: u32 = 1024;

/// A yield that takes longer than this has let somebody else run, microseconds.
const TAKEN_US: u64 = 2;
/// Yields to others in one wait.
const YIELDS: u32 = 4;
/// A wake-up may take so many times the longest spin.
const WAKE_UP: u64 = 4;
/// What TCP takes for a message: a sleep and a wake-up, this part of the longest spin.
const PAYS: u64 = 4;
/// Borders of critical sections that a thread crosses for one message: a dozen or more in an epoll_wait, a recv, another one that finds
/// nothing, and a send.
const BORDERS: u32 = 16;
/// Messages between two waits beyond this are not counted: a spin for so many is as long as a wake-up may take.
const MESSAGES: u32 = (PAYS * WAKE_UP) as u32;
/// A yield puts the thread behind all others for a turn, and its next wake-up with it (EEVDF: kernel/sched/fair.c, yield_task_fair).
/// So where the CPU was lost for longer than a wake-up takes, the process neither spins nor yields for so many times as long;
const REST: u64 = 4;
/// twice as long as the last time where it is lost again, up to this, microseconds.
const LONGEST_REST_US: u64 = 10_000_000;
/// Not again, but for the first time, where so many yields have cost nothing since,
const QUIET: u32 = 16;
/// or spins were answered for so many times as long as the CPU was lost now: interrupts and the host take it, too, and nobody computes here;
const HELD: u64 = 16;
/// or so long ago, microseconds, and as long as the last rest took.
const LONG_AGO_US: u64 = 1_000_000;

/// What is left of a program's time counts up to an hour.
const LEFT_US: u64 = 3_600_000_000;

/// Spins until `ready`, as long as that pays and at most `left` nanoseconds; says whether it became ready.
///
/// While nobody wants the CPU, yields become seldom; where somebody does, a few yields are all.
pub fn spin(left: Option<u64>, mut ready: impl FnMut() -> bool) -> bool {
    let thread = thread();
    let woke = thread.woke.load(Ordering::Relaxed);
    thread.woke.store(false, Ordering::Relaxed);
    thread.spun.store(0, Ordering::Relaxed);
    if ready() {
        count_spin(thread);
        return true;
    }
    let messages = (crossed() as u32).wrapping_sub(thread.crossed.load(Ordering::Relaxed)) / BORDERS;
    thread.messages.store(messages.clamp(1, MESSAGES), Ordering::Relaxed);
    let is_ready = spin_on(thread, woke, left, ready);
    // What its own looks have crossed is no message.
    thread.crossed.store(crossed() as u32, Ordering::Relaxed);
    is_ready
}

/// After a first look, which has found nothing.
fn spin_on(thread: &Thread, woke: bool, left: Option<u64>, mut ready: impl FnMut() -> bool) -> bool {
    let Some((profile, bounds)) = bounds(thread) else { return false };
    let begin = clock::ticks();
    // The clock may have been set back meanwhile, with the whole machine.
    let rest = REST_UNTIL.load(Ordering::Relaxed).saturating_sub(begin);
    if (1..=clock::from_us(LONGEST_REST_US)).contains(&rest) {
        return false;
    }
    let planned = change(thread, |memory| memory.plan(profile, bounds, woke));
    if planned == 0 {
        return let_waker_finish(thread, begin, bounds, ready);
    }
    let bound = planned.min(left.map_or(u64::MAX, |ns| clock::from_us((ns / 1000).min(LEFT_US))));
    // Never at once: of two who yield to each other, one must find the other awake some time.
    let mut next_yield = thread.patience.load(Ordering::Relaxed).max(clock::from_us(1));
    let mut spent = 0;
    while spent <= bound {
        if spent >= next_yield {
            rustix::thread::sched_yield();
            if clock::ticks() - begin - spent > clock::from_us(TAKEN_US) {
                return yield_to_others(thread, begin, bounds, ready);
            }
            count_yield(thread);
            next_yield = (2 * spent).max(clock::from_us(2));
            thread.patience.store(next_yield.min(clock::from_us(16)), Ordering::Relaxed);
        }
        for _ in 0..8 {
            if ready() {
                answered(thread, bounds, clock::ticks() - begin);
                return true;
            }
            core::hint::spin_loop();
        }
        spent = clock::ticks() - begin;
    }
    unanswered(thread, spent);
    ready()
}

/// The CPU was wanted, perhaps by our peer: a few yields more, each of which costs less than a wake-up. Says whether
/// it became ready.
#[cold]
fn yield_to_others(thread: &Thread, begin: u64, bounds: Bounds, mut ready: impl FnMut() -> bool) -> bool {
    thread.patience.store(0, Ordering::Relaxed);
    for _ in 0..YIELDS {
        let (is_ready, lost) = (ready(), clock::ticks() - begin);
        if rests(thread, bounds, lost) {
            unanswered(thread, lost);
            return is_ready;
        }
        if is_ready {
            answered(thread, bounds, lost.min(bounds.pays));
            return true;
        }
        rustix::thread::sched_yield();
    }
    unanswered(thread, clock::ticks() - begin);
    ready()
}

/// In place of a spin, before a sleep. Who woke us on this CPU may have lost it to us in the midst of its work: it goes on, and
/// what else it has for us comes without a wake-up, which would stop it again. Says whether something is ready.
fn let_waker_finish(thread: &Thread, begin: u64, bounds: Bounds, ready: impl FnOnce() -> bool) -> bool {
    if !thread.in_place.swap(false, Ordering::Relaxed) {
        return false;
    }
    rustix::thread::sched_yield();
    rests(thread, bounds, clock::ticks() - begin);
    ready()
}

/// Ticks until which no thread of this process spins or yields, because somebody else computes here; and how long that rest is. Written
/// only when a rest begins.
static REST_UNTIL: AtomicU64 = AtomicU64::new(0);
static LAST_REST: AtomicU64 = AtomicU64::new(0);

/// Whether the process is to rest, a wait of this thread having lost the CPU for so many ticks: somebody computes here.
fn rests(thread: &Thread, bounds: Bounds, lost: u64) -> bool {
    if lost <= bounds.wake_up {
        count_yield(thread);
        return false;
    }
    let now = clock::ticks();
    let is_held = u64::from(thread.held.swap(0, Ordering::Relaxed)) >= lost.saturating_mul(HELD);
    let is_quiet = thread.in_time.swap(0, Ordering::Relaxed) >= QUIET || is_held;
    let (until, last) = (REST_UNTIL.load(Ordering::Relaxed), LAST_REST.load(Ordering::Relaxed));
    if let Some(rest) = next_rest((until, last), now, lost, is_quiet) {
        LAST_REST.store(rest, Ordering::Relaxed);
        REST_UNTIL.store(now + rest, Ordering::Relaxed);
    }
    true
}

/// How long to rest from `now` on, ticks, where the last rest ended at `until` and took `last`. `None`: that one goes on, or began while this
/// wait had the CPU lost already, as other threads' waits may have to the same program.
fn next_rest((until, last): (u64, u64), now: u64, lost: u64, is_quiet: bool) -> Option<u64> {
    if until > now.saturating_sub(lost) && until.saturating_sub(now) <= clock::from_us(LONGEST_REST_US) {
        return None;
    }
    let rest = lost.saturating_mul(REST);
    let is_again = !is_quiet && now.saturating_sub(until) < last.max(clock::from_us(LONG_AGO_US));
    Some(if is_again { rest.max(2 * last) } else { rest }.min(clock::from_us(LONGEST_REST_US)))
}

fn count_yield(thread: &Thread) {
    thread.in_time.store(thread.in_time.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
}

/// The wait after the last spin ended in a sleep, of so many ticks until somebody rang.
pub fn slept(ticks: u64) {
    let thread = thread();
    if let Some((_, bounds)) = bounds(thread) {
        let waited = ticks.saturating_add(thread.spun.load(Ordering::Relaxed));
        change(thread, |memory| memory.slept(bounds, waited));
    }
}

/// How this process spins, and for how long in the wait under way; `None` where it does not.
fn bounds(thread: &Thread) -> Option<(Profile, Bounds)> {
    let most = clock::from_us(u64::from(process::knobs().spin_us.load(Ordering::Relaxed)));
    let profile = process::profile().filter(|_| most > 0 && process::may_spin())?;
    let pays = most / PAYS * u64::from(thread.messages.load(Ordering::Relaxed).max(1));
    Some((profile, Bounds { pays, most, wake_up: WAKE_UP * most }))
}

fn answered(thread: &Thread, bounds: Bounds, spent: u64) {
    change(thread, |memory| memory.answered(bounds, spent));
    let held = thread.held.load(Ordering::Relaxed).saturating_add(spent.min(bounds.most) as u32);
    thread.held.store(held, Ordering::Relaxed);
    count_spin(thread);
}

#[cold]
fn unanswered(thread: &Thread, spent: u64) {
    thread.spun.store(spent, Ordering::Relaxed);
    change(thread, Memory::unanswered);
}

fn change<T>(thread: &Thread, change: impl FnOnce(&mut Memory) -> T) -> T {
    let mut memory = Memory::unpack(thread.waits.load(Ordering::Relaxed));
    let result = change(&mut memory);
    thread.waits.store(memory.pack(), Ordering::Relaxed);
    result
}

fn count_spin(thread: &Thread) {
    let spins = thread.spins.load(Ordering::Relaxed) + 1;
    thread.spins.store(spins, Ordering::Relaxed);
    if spins >= SPINS_A_LINE {
        process::count_spins(thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_loss_of_the_cpu_is_one_rest_however_many_threads_it_hit() {
        clock::calibrate();
        let us = clock::from_us;
        let (now, lost) = (us(60_000_000), us(9_000));
        let rest = next_rest((0, 0), now, lost, false);
        assert_eq!(rest, Some(REST * lost));
        // Others lost it by the same turn, and hear of that a little later.
        let known = (now + REST * lost, REST * lost);
        assert_eq!(next_rest(known, now + us(500), lost + us(500), false), None);
    }

    #[test]
    fn a_rest_is_longer_where_the_cpu_is_lost_again() {
        clock::calibrate();
        let us = clock::from_us;
        let (lost, mut last, mut now) = (us(9_000), us(36_000), us(60_000_000));
        for _ in 0..10 {
            let until = now;
            now = until + 2 * lost;
            let rest = next_rest((until, last), now, lost, false).unwrap();
            assert!(rest == (2 * last).min(us(LONGEST_REST_US)));
            (last, now) = (rest, now + rest);
        }
        assert_eq!(last, us(LONGEST_REST_US));
        // Not after much time in which the CPU was ours, nor where the last rest is long over.
        assert_eq!(next_rest((now, last), now + 2 * lost, lost, true), Some(REST * lost));
        assert_eq!(next_rest((now, us(36_000)), now + us(LONG_AGO_US), lost, false), Some(REST * lost));
    }
}
