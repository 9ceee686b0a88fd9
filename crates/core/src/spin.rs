//! The spin before a sleep. [`policy`](crate::policy) says how long.

use core::sync::atomic::Ordering;

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
/// The longest rest from spins, microseconds.
const REST_US: u64 = 1_000;
/// A yield puts the thread behind all others for a turn, and its next wake-up with it (EEVDF: kernel/sched/fair.c, yield_task_fair). So
/// after one that came back later than a wake-up takes, spins do not yield for so many times as long,
const KEEP: u64 = 256;
/// ... and at most so long, microseconds.
const KEEP_US: u64 = 200_000;

/// What is left of a program's time counts up to an hour.
const LEFT_US: u64 = 3_600_000_000;

/// Spins until `ready`, as long as that pays and at most `left` nanoseconds; says whether it became ready.
///
/// While nobody wants the CPU, yields become seldom; where somebody does, a few yields are all.
pub fn spin(left: Option<u64>, mut ready: impl FnMut() -> bool) -> bool {
    let thread = thread();
    let woke = thread.woke.load(Ordering::Relaxed);
    thread.woke.store(false, Ordering::Relaxed);
    if ready() {
        count_spin(thread);
        return true;
    }
    let is_ready = Spin::begin(thread, woke).is_some_and(|spin| spin.run(left, ready));
    // What its own looks have crossed is no message.
    thread.crossed.store(crossed() as u32, Ordering::Relaxed);
    is_ready
}

/// The spin of a wait that has found nothing at its first look.
struct Spin {
    thread: &'static Thread,
    /// The thread has woken somebody since its last wait.
    woke: bool,
    profile: Profile,
    bounds: Bounds,
    /// Ticks when it began.
    begin: u64,
    /// Its spin offers the CPU to others.
    yields: bool,
}

impl Spin {
    /// `None`: this process does not spin.
    fn begin(thread: &'static Thread, woke: bool) -> Option<Self> {
        let most = clock::from_us(u64::from(process::knobs().spin_us.load(Ordering::Relaxed)));
        let profile = process::profile().filter(|_| most > 0 && process::may_spin())?;
        let crossed = (crossed() as u32).wrapping_sub(thread.crossed.load(Ordering::Relaxed));
        let messages = (crossed / BORDERS).clamp(1, MESSAGES);
        let pays = most / PAYS * u64::from(messages);
        let bounds = Bounds { pays, most, wake_up: WAKE_UP * most, rest: clock::from_us(REST_US) };
        let begin = clock::ticks();
        let keep = thread.keep_until.load(Ordering::Relaxed).saturating_sub(begin);
        // The clock may have been set back meanwhile, with the whole machine.
        let yields = !(1..=clock::from_us(KEEP_US)).contains(&keep);
        Some(Self { thread, woke, profile, bounds, begin, yields })
    }

    /// Says whether it became ready.
    fn run(&self, left: Option<u64>, mut ready: impl FnMut() -> bool) -> bool {
        let planned = memory(self.thread).plan(self.profile, self.bounds, self.woke, self.yields, self.begin);
        if planned == 0 {
            return self.let_waker_finish(ready);
        }
        let bound = planned.min(left.map_or(u64::MAX, |ns| clock::from_us((ns / 1000).min(LEFT_US))));
        // Never at once: of two who yield to each other, one must find the other awake some time.
        let mut next_yield = self.thread.patience.load(Ordering::Relaxed).max(clock::from_us(1));
        let mut spent = 0;
        while spent <= bound {
            if self.yields && spent >= next_yield {
                rustix::thread::sched_yield();
                if self.spent() - spent > clock::from_us(TAKEN_US) {
                    return self.yield_to_others(ready);
                }
                next_yield = (2 * spent).max(clock::from_us(2));
                self.thread.patience.store(next_yield.min(clock::from_us(16)), Ordering::Relaxed);
            }
            for _ in 0..8 {
                if ready() {
                    self.answered(self.spent());
                    return true;
                }
                core::hint::spin_loop();
            }
            spent = self.spent();
        }
        self.change(|memory| {
            memory.unanswered(self.bounds, self.woke, self.yields, spent, self.begin + spent)
        });
        ready()
    }

    /// The CPU was wanted, perhaps by our peer: a few yields more, each of which costs less than a wake-up. Says whether
    /// it became ready.
    #[cold]
    fn yield_to_others(&self, mut ready: impl FnMut() -> bool) -> bool {
        self.thread.patience.store(0, Ordering::Relaxed);
        let mut yields = 1;
        loop {
            let (is_ready, lost) = (ready(), self.spent());
            let is_late = lost > self.bounds.wake_up;
            if is_late {
                let keep = lost.saturating_mul(KEEP).min(clock::from_us(KEEP_US));
                self.thread.keep_until.store(self.begin + lost + keep, Ordering::Relaxed);
            }
            if is_ready && !is_late {
                // The others had the CPU, and perhaps some use of it: nothing was spent in vain.
                self.answered(lost.min(self.bounds.pays));
            } else if is_ready || is_late || yields > YIELDS {
                self.change(|memory| memory.in_vain(self.bounds, self.woke, lost, self.begin + lost));
            } else {
                rustix::thread::sched_yield();
                yields += 1;
                continue;
            }
            return is_ready;
        }
    }

    /// In place of a spin, before a sleep. Who woke us on this CPU may have lost it to us in the midst of its work: it goes on, and
    /// what else it has for us comes without a wake-up, which would stop it again. Where threads are more than CPUs, all hangs on this:
    /// one that has to wake the others keeps none of them busy. Says whether something is ready.
    fn let_waker_finish(&self, ready: impl FnOnce() -> bool) -> bool {
        if !self.thread.in_place.swap(false, Ordering::Relaxed) {
            return false;
        }
        rustix::thread::sched_yield();
        ready()
    }

    /// Ticks since it began.
    fn spent(&self) -> u64 {
        clock::ticks() - self.begin
    }

    fn answered(&self, spent: u64) {
        self.change(|memory| memory.answered(self.bounds, self.woke, spent, self.begin + spent));
        count_spin(self.thread);
    }

    fn change(&self, change: impl FnOnce(&mut Memory)) {
        let mut memory = memory(self.thread);
        change(&mut memory);
        self.thread.waits.store(memory.pack(), Ordering::Relaxed);
    }
}

fn memory(thread: &Thread) -> Memory {
    Memory::unpack(thread.waits.load(Ordering::Relaxed))
}

fn count_spin(thread: &Thread) {
    let spins = thread.spins.load(Ordering::Relaxed) + 1;
    thread.spins.store(spins, Ordering::Relaxed);
    if spins >= SPINS_A_LINE {
        process::count_spins(thread);
    }
}
