//! How a thread waits: whether it spins, for how long, when it offers the CPU to others, and whether it naps before it sleeps. Pure: no clock,
//! no I/O; times are in ticks of any length. `spin` and `wait` do what it says.
//!
//! A spin pays where the answer comes sooner than a sleep and a wake-up would cost (the ski rental: who cannot know rents for as
//! long as buying costs, and no longer); where one wait is for many messages, sooner than TCP would take for these.
//!
//! After some spins that did not pay the thread rests: its waits do not spin, for many times as long as was spent. So what is spent in
//! vain is a part of the time. A rest is short: where more threads want to run than there are CPUs, they have to be awake together.
//!
//! Two that only wake each other never find out how soon the other answers when it is awake. So now and then one that has woken somebody
//! goes on spinning for some waits, whatever comes of them. If they become short by that, they stay so.

/// What an operator wants of waits (`profile`).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Spins that pay.
    Balanced,
    /// Spins always.
    Latency,
}

/// What has come of what [`Spin`] said.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The looks found nothing.
    Nothing,
    /// The CPU is this thread's again.
    Yielded,
}

/// What the thread does next.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// So many looks.
    Look(u32),
    /// It offers the CPU to others.
    Yield,
    /// It naps ([`Memory::naps`]) or sleeps.
    Sleep,
}

/// Looks between two of the clock.
const LOOKS: u32 = 8;
/// A yield that takes longer than this has let somebody else run, microseconds.
const TAKEN_US: u64 = 2;
/// Yields to others in one wait.
const YIELDS: u32 = 4;
/// The first yield comes after so much, microseconds. Never at once: of two who yield to each other, one must find the other awake some time.
const FIRST_YIELD_US: u64 = 1;
/// The first yield comes after so much at most, microseconds, where nobody has wanted the CPU.
const PATIENT_US: u64 = 16;
/// A wake-up may take so many times the longest spin.
const WAKE_UP: u64 = 4;
/// What TCP takes for a message: a sleep and a wake-up, this part of the longest spin.
const PAYS: u64 = 4;
/// Messages between two waits beyond this are not counted: a spin for so many is as long as a wake-up may take.
const MESSAGES: u32 = (PAYS * WAKE_UP) as u32;
/// The longest rest from spins, microseconds.
const REST_US: u64 = 1_000;
/// A yield puts the thread behind all others for a turn, and its next wake-up with it (EEVDF: kernel/sched/fair.c, yield_task_fair). So
/// after one that came back later than a wake-up takes, spins do not yield for so many times as long,
const KEEP: u64 = 256;
/// Spins do not yield for so long at most, microseconds, where that was not a whole slice.
const KEEP_US: u64 = 200_000;
/// A yield to who has woken the thread that takes so many times the time of a wake-up has given a program that computes a whole slice: threads
/// that are more than CPUs, and have their turns, are back sooner. One of those with more weight may take a tenth of a second.
const SLICE: u64 = 20;
/// Where so many in a row did, none of them comes from such a thread,
const LOST: u8 = 4;
/// and there are no yields for four times as long after each further one, up to this.
const MOST_LOST: u8 = 7;
/// How long that is at most, microseconds.
const LOST_US: u64 = KEEP_US << (2 * (MOST_LOST - LOST));
/// Longest nap, microseconds: so long TCP's own events go unseen. Longer than a tick of the kernel's clock, else naps end for nothing while
/// somebody else has the CPU.
pub const NAP_US: u64 = 10_000;

/// How long spins and rests may be, ticks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// What TCP takes for the messages since the last wait: a sleep and a wake-up for each.
    pays: u64,
    /// The longest spin.
    most: u64,
    /// The longest spin for one who was asleep.
    wake_up: u64,
    /// The longest rest.
    rest: u64,
    /// A microsecond.
    us: u64,
}

impl Bounds {
    /// The longest spin is of `most` ticks, of which a microsecond has `us`. `messages`: of the thread since its last wait.
    pub fn new(most: u64, us: u64, messages: u32) -> Self {
        let pays = most / PAYS * u64::from(messages.clamp(1, MESSAGES));
        Self { pays, most, wake_up: WAKE_UP * most, rest: REST_US * us, us }
    }
}

/// What a thread remembers of its waits. All zero in a new thread.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Rests of one that had woken somebody, up to [`Memory::RESTS`]; then waits of its trial.
    turns: u8,
    /// Spins that did not pay, less those that did. Each doubles the next rest, which is counted in times what was spent.
    vain: u8,
    /// How often the longest spin is halved for those that were not answered.
    halved: u8,
    /// The last wait was longer than a nap.
    is_long: bool,
    /// When the rest ends, in units of [`Memory::GRAIN`].
    rest_until: u64,
}

impl Memory {
    /// No rest follows so many spins in vain: somebody else may have had the CPU just then.
    const PATIENCE: u8 = 3;
    const MOST_VAIN: u8 = 9;
    const MOST_HALVED: u8 = 2;
    /// How often the longest spin is halved where the CPU is not offered to others meanwhile.
    const MOST_HALVED_KEPT: u8 = 4;
    /// Rests before a trial, and its waits: enough for the other end to come out of a rest of its own.
    const RESTS: u8 = 240;
    const TRIAL: u8 = 12;
    /// Ticks: a part of the shortest rest.
    const GRAIN: u64 = 1 << 12;

    /// How long the next wait, at `now`, spins; 0: not at all. `woke`: the thread has woken somebody since its last wait; `yields`: it offers
    /// the CPU to others meanwhile.
    fn plan(self, profile: Profile, bounds: Bounds, woke: bool, yields: bool, now: u64) -> u64 {
        let rest = (self.rest_until * Self::GRAIN).saturating_sub(now);
        let budget = match profile {
            // The clock may have been set back meanwhile, with the whole machine.
            Profile::Balanced if (1..=bounds.rest).contains(&rest) => return 0,
            Profile::Balanced => bounds.most >> self.halved,
            Profile::Latency => bounds.most,
        };
        // Who was asleep answers a wake-up later. That is worth a spin where it comes seldom, or stays awake then.
        let is_worth =
            self.vain <= Self::PATIENCE || self.turns >= Self::RESTS || profile == Profile::Latency;
        if woke && yields && is_worth { bounds.wake_up } else { budget }
    }

    /// A spin of so many ticks, until `now`, was answered.
    fn answered(&mut self, bounds: Bounds, woke: bool, spent: u64, now: u64) {
        if spent <= bounds.pays {
            self.vain = self.vain.saturating_sub(1);
            self.halved = self.halved.saturating_sub(1);
        } else {
            self.in_vain(bounds, woke, spent, now);
        }
    }

    /// A spin of so many ticks, until `now`, was not; a sleep follows.
    fn unanswered(&mut self, bounds: Bounds, woke: bool, yields: bool, spent: u64, now: u64) {
        let most = if yields { Self::MOST_HALVED } else { Self::MOST_HALVED_KEPT };
        self.halved = (self.halved + 1).min(most);
        self.in_vain(bounds, woke, spent, now);
    }

    /// So many ticks, until `now`, were lost in a wait for which others had the CPU.
    fn in_vain(&mut self, bounds: Bounds, woke: bool, spent: u64, now: u64) {
        self.vain = (self.vain + 1).min(Self::MOST_VAIN);
        if self.vain > Self::PATIENCE && !self.is_on_trial(woke) {
            let rest = spent.saturating_mul(1 << (self.vain - 1)).min(bounds.rest);
            self.rest_until = (now + rest) / Self::GRAIN;
        }
    }

    /// Whether the thread naps before it sleeps: not while its waits are longer.
    pub fn naps(self) -> bool {
        !self.is_long
    }

    /// A sleep, or a nap to its end, has lasted so many ticks, of which a microsecond has `us`.
    pub fn slept(&mut self, ticks: u64, us: u64) {
        self.is_long = ticks >= NAP_US * us;
    }

    /// Whether this spin in vain is one of a trial.
    fn is_on_trial(&mut self, woke: bool) -> bool {
        if woke {
            self.turns = (self.turns + 1) % (Self::RESTS + Self::TRIAL);
        }
        woke && self.turns >= Self::RESTS
    }

    /// As one word.
    pub fn pack(self) -> u64 {
        let spins = u8::from(self.is_long) << 7 | self.halved << 4 | self.vain;
        self.rest_until << 16 | u64::from(self.turns) << 8 | u64::from(spins)
    }

    /// From one word.
    pub fn unpack(word: u64) -> Self {
        let [spins, turns, ..] = word.to_le_bytes();
        let (vain, halved, is_long) = (spins & 15, spins >> 4 & 7, spins >> 7 != 0);
        Self { turns, vain, halved, is_long, rest_until: word >> 16 }
    }
}

/// What a thread has learned of waits. All zero in a new thread.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Habits {
    /// Of its spins and sleeps.
    pub memory: Memory,
    /// Ticks of spinning before it offers the CPU to others, adapted by whether anybody wanted it.
    pub patience: u64,
    /// Ticks until which its spins do not yield.
    pub keep_until: u64,
    /// How many yields to who had woken it have lost a whole slice in a row, up to a bound.
    pub lost: u8,
    /// Who last woke it did so on the CPU on which it runs now.
    pub in_place: bool,
}

/// Where a spin stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// It looks, and offers the CPU when it has lasted for so long.
    Looks(u64),
    /// It has offered the CPU, after so many ticks.
    Offers(u64),
    /// The CPU was wanted, perhaps by the peer: it yields, for this time.
    Yields(u32),
    /// One look is left.
    Last,
}

/// The spin of a wait that has found nothing at its first look.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Spin {
    habits: Habits,
    profile: Profile,
    bounds: Bounds,
    /// The thread has woken somebody since its last wait.
    woke: bool,
    yields: bool,
    /// When it began, ticks.
    begin: u64,
    /// How long it lasts.
    bound: u64,
    stage: Stage,
}

impl Spin {
    /// Begins one at `now`, for at most `left` ticks, and says what it does first.
    pub fn begin(
        habits: Habits,
        (profile, bounds): (Profile, Bounds),
        woke: bool,
        left: u64,
        now: u64,
    ) -> (Self, Next) {
        let keep = habits.keep_until.saturating_sub(now);
        // The clock may have been set back meanwhile, with the whole machine.
        let yields = !(1..=LOST_US * bounds.us).contains(&keep);
        let planned = habits.memory.plan(profile, bounds, woke, yields, now);
        let stage = match planned {
            0 => Stage::Last,
            _ => Stage::Looks(habits.patience.max(FIRST_YIELD_US * bounds.us)),
        };
        let mut spin =
            Self { habits, profile, bounds, woke, yields, begin: now, bound: planned.min(left), stage };
        let is_in_place = planned == 0 && core::mem::take(&mut spin.habits.in_place);
        let next = match planned {
            // Who woke us on this CPU may have lost it to us in the midst of its work: it goes on, and what else it has for us comes
            // without a wake-up, which would stop it again. Where threads are more than CPUs, all hangs on this: one that has to wake
            // the others keeps none of them busy. Beside a program that computes, that would have the CPU.
            0 if is_in_place && (yields || habits.lost < LOST) => Next::Yield,
            0 => Next::Sleep,
            _ => Next::Look(LOOKS),
        };
        (spin, next)
    }

    /// Says what it does after `event`, which is over at `now`. While nobody wants the CPU, yields become seldom; where somebody does, a few
    /// yields are all.
    #[inline]
    pub fn next(&mut self, event: Event, now: u64) -> Next {
        let spent = now.wrapping_sub(self.begin);
        match (self.stage, event) {
            (Stage::Looks(_), _) if spent > self.bound => {
                let (bounds, woke, yields) = (self.bounds, self.woke, self.yields);
                self.habits.memory.unanswered(bounds, woke, yields, spent, now);
                self.stage = Stage::Last;
                Next::Look(1)
            }
            (Stage::Looks(until), _) if self.yields && spent >= until => {
                self.stage = Stage::Offers(spent);
                Next::Yield
            }
            (Stage::Looks(_), _) => Next::Look(LOOKS),
            (Stage::Offers(before), _) if spent - before > TAKEN_US * self.bounds.us => {
                self.habits.patience = 0;
                self.stage = Stage::Yields(1);
                Next::Look(1)
            }
            (Stage::Offers(before), _) => {
                // Nobody has wanted it.
                self.habits.lost = 0;
                let until = (2 * before).max(2 * FIRST_YIELD_US * self.bounds.us);
                self.habits.patience = until.min(PATIENT_US * self.bounds.us);
                self.stage = Stage::Looks(until);
                Next::Look(LOOKS)
            }
            (Stage::Yields(_), Event::Yielded) => Next::Look(1),
            (Stage::Last, Event::Yielded) => {
                self.has_let_its_waker_finish(spent, now);
                Next::Look(1)
            }
            (Stage::Yields(yields), Event::Nothing) => {
                if self.is_late(spent, now) || yields > YIELDS {
                    self.habits.memory.in_vain(self.bounds, self.woke, spent, now);
                    return Next::Sleep;
                }
                self.stage = Stage::Yields(yields + 1);
                Next::Yield
            }
            (Stage::Last, Event::Nothing) => Next::Sleep,
        }
    }

    /// A look found something, at `now`. Says whether the spin did it.
    pub fn found(&mut self, now: u64) -> bool {
        let spent = now.wrapping_sub(self.begin);
        let (bounds, woke) = (self.bounds, self.woke);
        let yields = matches!(self.stage, Stage::Yields(_));
        if self.stage == Stage::Last {
            return false;
        }
        if yields && self.is_late(spent, now) {
            self.habits.memory.in_vain(bounds, woke, spent, now);
            return false;
        }
        // Where the others had the CPU, and perhaps some use of it, nothing was spent in vain.
        let spent = if yields { spent.min(bounds.pays) } else { spent };
        self.habits.memory.answered(bounds, woke, spent, now);
        true
    }

    /// What the thread has learned by it.
    pub fn habits(&self) -> Habits {
        self.habits
    }

    /// Whether the CPU was away for longer than a wake-up takes; then it is kept for a while.
    fn is_late(&mut self, away: u64, now: u64) -> bool {
        let is_late = away > self.bounds.wake_up;
        if is_late {
            // Beside a program that computes it is as the other kind of yield.
            if self.habits.lost >= LOST && away > SLICE * self.bounds.wake_up {
                self.has_lost_a_slice();
            }
            self.keep(away, now);
        }
        is_late
    }

    /// There are no yields for a while, as the CPU was away for so long.
    fn keep(&mut self, away: u64, now: u64) {
        let most = (KEEP_US << (2 * self.habits.lost.saturating_sub(LOST))) * self.bounds.us;
        self.habits.keep_until = now + away.saturating_mul(KEEP).min(most);
    }

    fn has_lost_a_slice(&mut self) {
        self.habits.lost = (self.habits.lost + 1).min(MOST_LOST);
    }

    /// The one yield of a thread that rests has taken so long.
    fn has_let_its_waker_finish(&mut self, away: u64, now: u64) {
        if away <= SLICE * self.bounds.wake_up {
            self.habits.lost = 0;
            return;
        }
        self.has_lost_a_slice();
        if self.habits.lost >= LOST {
            self.keep(away, now);
        }
    }
}

/// A bulk stream's writer may be ahead by so many bytes when a reader that had caught up with it begins again. One that is
/// close behind takes each line out of the writer's own cache, and both go at a third of the speed that they reach over the
/// shared one (docs/profiles.md).
pub const LEAD: u64 = 1 << 20;
/// A writer that adds nothing for so long, microseconds, has no more to say for now.
const STEP_US: u64 = 8;
/// The longest such wait, microseconds.
const LEAD_US: u64 = 32 * STEP_US;

/// A reader that lets the writer of a bulk stream take its lead.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Lead {
    read: u64,
    begin: u64,
    /// How far the writer is, and since when.
    last: (u64, u64),
    us: u64,
}

impl Lead {
    /// One that has read so far, from `now` on; a microsecond has `us` ticks.
    pub fn begin(read: u64, us: u64, now: u64) -> Self {
        Self { read, begin: now, last: (read, now), us }
    }

    /// Whether it waits on at `now`, when the writer is so far.
    pub fn goes_on(&mut self, written: u64, now: u64) -> bool {
        if written != self.last.0 {
            self.last = (written, now);
        }
        let is_idle = now.wrapping_sub(self.last.1) > STEP_US * self.us;
        let is_over = now.wrapping_sub(self.begin) > LEAD_US * self.us;
        written.wrapping_sub(self.read) < LEAD && !is_idle && !is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As of a clock of 2 GHz.
    const US: u64 = 2_000;
    const BOUNDS: Bounds =
        Bounds { pays: 7 * US, most: 30 * US, wake_up: 120 * US, rest: 1_000 * US, us: US };

    /// A thread, and a clock.
    #[derive(Default)]
    struct Waiter {
        memory: Memory,
        now: u64,
    }

    impl Waiter {
        /// One wait that is answered after `gap` ticks; what it spun.
        fn wait(&mut self, gap: u64, woke: bool) -> u64 {
            let bound = self.memory.plan(Profile::Balanced, BOUNDS, woke, true, self.now);
            let spun = gap.min(bound);
            if bound > 0 {
                let now = self.now + spun;
                match gap <= bound {
                    true => self.memory.answered(BOUNDS, woke, spun, now),
                    false => self.memory.unanswered(BOUNDS, woke, true, spun, now),
                }
            }
            self.now += gap;
            self.memory = Memory::unpack(self.memory.pack());
            spun
        }

        /// What `count` waits spin, of a thousand parts of the time.
        fn share(&mut self, count: u64, gap: u64, woke: bool) -> u64 {
            let spun: u64 = (0..count).map(|_| self.wait(gap, woke)).sum();
            spun * 1000 / (count * gap)
        }
    }

    #[test]
    fn short_waits_are_spun_through() {
        for gap in [US, 7 * US] {
            assert_eq!(Waiter::default().share(1000, gap, false), 1000);
            assert_eq!(Waiter::default().share(1000, gap, true), 1000);
        }
    }

    #[test]
    fn a_long_wait_among_short_ones_is_an_accident() {
        let mut waiter = Waiter::default();
        for _ in 0..100 {
            assert_eq!(waiter.wait(2 * US, false), 2 * US);
            waiter.wait(3_000 * US, false);
            assert_eq!(waiter.share(10, 2 * US, false), 1000);
        }
    }

    #[test]
    fn what_is_spun_in_vain_is_a_small_part_of_the_time() {
        for (gap, woke, most) in [
            (20, false, 40),
            (20, true, 40),
            (100, false, 20),
            (100, true, 130),
            (10_000, false, 2),
            (10_000, true, 15),
        ] {
            let mut waiter = Waiter::default();
            waiter.share(100, gap * US, woke);
            let share = waiter.share(10_000, gap * US, woke);
            assert!(share <= most, "{share} of 1000 with waits of {gap} us, woke: {woke}");
        }
    }

    #[test]
    fn short_waits_are_found_again_within_a_rest() {
        let mut waiter = Waiter::default();
        waiter.share(1000, 100 * US, false);
        let began = waiter.now;
        while waiter.wait(2 * US, false) == 0 {}
        assert!(waiter.now - began <= BOUNDS.rest + 2 * US);
        assert_eq!(waiter.share(1000, 2 * US, false), 1000);
    }

    #[test]
    fn two_that_woke_each_other_find_each_other_awake() {
        // Each answers at once when it is awake, and after a wake-up of 50 us else.
        let mut ends = [Waiter::default(), Waiter::default()];
        for end in &mut ends {
            end.share(2000, 1000 * US, true);
        }
        let mut asleep = [true, true];
        for turn in 0..20_000 {
            let (me, other) = (turn % 2, 1 - turn % 2);
            let woke = asleep[other];
            let gap = if woke { 50 * US } else { US };
            // The other one wakes, works, answers, and waits for us in turn.
            asleep[me] = ends[me].wait(gap, woke) < gap;
            assert!(turn < 10_000 || !asleep[me], "turn {turn}: {:?}", ends[me].memory);
        }
    }

    #[test]
    fn a_clock_that_was_set_back_ends_the_rest() {
        let mut waiter = Waiter { now: 1 << 50, ..Waiter::default() };
        waiter.share(1000, 100 * US, false);
        waiter.now = 0;
        assert_ne!(waiter.memory.plan(Profile::Balanced, BOUNDS, false, true, 0), 0);
    }

    #[test]
    fn latency_spins_always() {
        let mut waiter = Waiter::default();
        waiter.share(1000, 1000 * US, true);
        let plan = |woke| waiter.memory.plan(Profile::Latency, BOUNDS, woke, true, waiter.now);
        assert_eq!((plan(false), plan(true)), (BOUNDS.most, BOUNDS.wake_up));
    }

    /// What a spin that begins at `now` does whose looks find nothing before `until`, while each yield takes `away` ticks.
    fn steps(habits: Habits, mut now: u64, until: u64, away: u64) -> (Spin, Vec<Next>, bool) {
        let (mut spin, mut next) = Spin::begin(habits, (Profile::Balanced, BOUNDS), false, u64::MAX, now);
        let mut steps = Vec::new();
        loop {
            if steps.last() != Some(&next) {
                steps.push(next);
            }
            now += match next {
                Next::Look(looks) => u64::from(looks) * US / 16,
                Next::Yield => away,
                Next::Sleep => return (spin, steps, false),
            };
            if now >= until && matches!(next, Next::Look(_)) {
                let is_counted = spin.found(now);
                return (spin, steps, is_counted);
            }
            next = spin.next(if next == Next::Yield { Event::Yielded } else { Event::Nothing }, now);
        }
    }

    #[test]
    fn yields_become_seldom_where_nobody_wants_the_cpu() {
        let (spin, steps, _) = steps(Habits::default(), 0, u64::MAX, US / 4);
        let yields = steps.iter().filter(|step| **step == Next::Yield).count();
        assert!((3..=6).contains(&yields), "{yields} in a spin of {} us", BOUNDS.most / US);
        assert_eq!(steps[steps.len() - 2..], [Next::Look(1), Next::Sleep], "it looks once more");
        assert_eq!(spin.habits().patience, PATIENT_US * US);
        let (_, patient, _) = self::steps(spin.habits(), 0, u64::MAX, US / 4);
        assert!(patient.iter().filter(|step| **step == Next::Yield).count() < yields);
    }

    #[test]
    fn where_others_want_the_cpu_a_few_yields_are_all() {
        let (spin, steps, _) = steps(Habits::default(), 0, u64::MAX, 5 * US);
        let yields = steps.iter().filter(|step| **step == Next::Yield).count();
        assert_eq!(yields as u32, YIELDS + 1);
        assert_eq!(spin.habits().patience, 0);
        assert_eq!(spin.habits().keep_until, 0, "they came back soon");
    }

    #[test]
    fn a_yield_that_comes_back_late_is_the_last_for_a_while() {
        let away = 2 * BOUNDS.wake_up;
        let (spin, _, is_counted) = steps(Habits::default(), 0, away, away);
        assert!(!is_counted, "it was lost, though there is something");
        let habits = spin.habits();
        assert!(habits.keep_until > away && habits.keep_until <= away + KEEP_US * US + 2 * US);
        let (_, kept, _) = steps(habits, 2 * away, u64::MAX, away);
        assert!(!kept.contains(&Next::Yield));
    }

    #[test]
    fn who_rests_lets_its_waker_finish_once() {
        let memory = Memory { rest_until: BOUNDS.rest / 2 / Memory::GRAIN, ..Memory::default() };
        let habits = Habits { memory, in_place: true, ..Habits::default() };
        let (spin, in_place, _) = steps(habits, 0, u64::MAX, US);
        assert_eq!(in_place, [Next::Yield, Next::Look(1), Next::Sleep]);
        let (_, rests, _) = steps(spin.habits(), 0, u64::MAX, US);
        assert_eq!(rests, [Next::Sleep]);
    }

    /// Beside a program that computes on the one CPU that the two ends have.
    #[test]
    fn who_was_woken_in_place_does_not_yield_to_others_for_ever() {
        let second = 1_000_000 * US;
        let woken = |habits: Habits, now: u64| {
            let rest_until = (now + BOUNDS.rest / 2) / Memory::GRAIN;
            Habits { in_place: true, memory: Memory { rest_until, ..Memory::default() }, ..habits }
        };
        let next = |habits: Habits, now| {
            Spin::begin(woken(habits, now), (Profile::Balanced, BOUNDS), false, u64::MAX, now).1
        };
        let (mut habits, mut now, mut lost, slice) = (Habits::default(), 0, 0, 8_000 * US);
        while now < 60 * second {
            let (spin, steps, _) = steps(woken(habits, now), now, u64::MAX, slice);
            let yielded = steps.contains(&Next::Yield);
            (lost, now) = (lost + u64::from(yielded) * slice, now + if yielded { slice } else { 50 * US });
            habits = spin.habits();
        }
        assert!(lost < now / 200, "{} ms of {} are others'", lost / US / 1000, now / US / 1000);
        assert_eq!(next(habits, now), Next::Sleep);
        assert_eq!(next(habits, now + 30 * second), Next::Yield, "in the end it looks whether they are gone");
        // Those who have their turns are no such program.
        let turns = steps(woken(Habits::default(), 0), 0, u64::MAX, SLICE / 2 * BOUNDS.wake_up).0.habits();
        assert_eq!((turns.keep_until, turns.lost), (0, 0));
        let late = Habits { keep_until: second + KEEP_US * US / 2, ..Habits::default() };
        assert_eq!(
            next(late, second),
            Next::Yield,
            "one that was late for others' turns lets its waker finish"
        );
    }

    #[test]
    fn who_sleeps_long_does_not_nap_before() {
        let mut memory = Memory::default();
        assert!(memory.naps());
        memory.slept(NAP_US * US, US);
        assert!(!Memory::unpack(memory.pack()).naps());
        memory.slept(NAP_US * US - 1, US);
        assert!(Memory::unpack(memory.pack()).naps());
    }

    #[test]
    fn a_reader_lets_its_writer_take_a_lead_and_no_more() {
        let mut busy = Lead::begin(100, US, 0);
        assert!(busy.goes_on(100, US) && busy.goes_on(200, 7 * US) && busy.goes_on(300, 14 * US));
        assert!(!busy.goes_on(300, 23 * US), "it has no more to say");
        assert!(!Lead::begin(100, US, 0).goes_on(100 + LEAD, US), "far enough");
        let mut slow = Lead::begin(0, US, 0);
        let lasts = (1..).find(|&at| !slow.goes_on(at, at * 4 * US)).expect("it ends");
        assert!(lasts * 4 > LEAD_US && lasts * 4 <= LEAD_US + 4);
    }
}
