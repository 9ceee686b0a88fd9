//! Whether a wait spins, and for how long. Pure: no clock, no I/O; times are in ticks of any length.
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

/// How long spins and rests may be, ticks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// What TCP takes for the messages since the last wait: a sleep and a wake-up for each.
    pub pays: u64,
    /// The longest spin.
    pub most: u64,
    /// ... for one who was asleep.
    pub wake_up: u64,
    /// The longest rest.
    pub rest: u64,
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
    /// When the rest ends, in units of [`Memory::GRAIN`].
    rest_until: u64,
}

impl Memory {
    /// No rest follows so many spins in vain: somebody else may have had the CPU just then.
    const PATIENCE: u8 = 3;
    const MOST_VAIN: u8 = 9;
    const MOST_HALVED: u8 = 2;
    /// ... where the CPU is not offered to others meanwhile.
    const MOST_HALVED_KEPT: u8 = 4;
    /// Rests before a trial, and its waits: enough for the other end to come out of a rest of its own.
    const RESTS: u8 = 240;
    const TRIAL: u8 = 12;
    /// Ticks: a part of the shortest rest.
    const GRAIN: u64 = 1 << 12;

    /// How long the next wait, at `now`, spins; 0: not at all. `woke`: the thread has woken somebody since its last wait; `yields`: it offers
    /// the CPU to others meanwhile.
    pub fn plan(self, profile: Profile, bounds: Bounds, woke: bool, yields: bool, now: u64) -> u64 {
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
    pub fn answered(&mut self, bounds: Bounds, woke: bool, spent: u64, now: u64) {
        if spent <= bounds.pays {
            self.vain = self.vain.saturating_sub(1);
            self.halved = self.halved.saturating_sub(1);
        } else {
            self.in_vain(bounds, woke, spent, now);
        }
    }

    /// A spin of so many ticks, until `now`, was not; a sleep follows.
    pub fn unanswered(&mut self, bounds: Bounds, woke: bool, yields: bool, spent: u64, now: u64) {
        let most = if yields { Self::MOST_HALVED } else { Self::MOST_HALVED_KEPT };
        self.halved = (self.halved + 1).min(most);
        self.in_vain(bounds, woke, spent, now);
    }

    /// So many ticks, until `now`, were lost in a wait for which others had the CPU.
    pub fn in_vain(&mut self, bounds: Bounds, woke: bool, spent: u64, now: u64) {
        self.vain = (self.vain + 1).min(Self::MOST_VAIN);
        if self.vain > Self::PATIENCE && !self.is_on_trial(woke) {
            let rest = spent.saturating_mul(1 << (self.vain - 1)).min(bounds.rest);
            self.rest_until = (now + rest) / Self::GRAIN;
        }
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
        self.rest_until << 16 | u64::from(self.turns) << 8 | u64::from(self.halved << 4 | self.vain)
    }

    /// From one word.
    pub fn unpack(word: u64) -> Self {
        let [spins, turns, ..] = word.to_le_bytes();
        Self { turns, vain: spins & 15, halved: spins >> 4, rest_until: word >> 16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As of a clock of 2 GHz.
    const US: u64 = 2_000;
    const BOUNDS: Bounds = Bounds { pays: 7 * US, most: 30 * US, wake_up: 120 * US, rest: 1_000 * US };

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
}
