//! Whether a wait spins, and for how long. Pure: no clock, no I/O; times are in ticks of any length.
//!
//! A spin pays where the answer comes sooner than a sleep and a wake-up would cost (the ski rental: who cannot know rents for as
//! long as buying costs, and no longer); where one wait is for many messages, sooner than TCP would take for these. So a wait
//! spins where more than half of the last ones were so short, and sleeps at once elsewhere.
//!
//! A long wait among many short ones is an accident as a rule: an interrupt, or the host, took the other end's CPU. So each short wait earns
//! a little of a longer spin, which is less than TCP takes for a message.
//!
//! Two that only wake each other never find out how soon the other answers when it is awake. So now and then a wait that
//! has woken somebody tries: it and the next ones spin for as long as a wake-up may take. If they become short by that, they
//! stay so; if not, the next trial comes later.

/// What an operator wants of waits (`profile`).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Spins that pay.
    Balanced,
    /// Spins always.
    Latency,
}

/// How long a spin may be, ticks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// What TCP takes for the messages since the last wait: a sleep and a wake-up for each.
    pub pays: u64,
    /// The longest spin.
    pub most: u64,
    /// ... for one who was asleep.
    pub wake_up: u64,
}

/// What a thread remembers of its waits. All zero in a new thread.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Share of long waits among the last ones, of [`ALL`].
    long: u8,
    /// Waits that are left of a trial.
    trial: u8,
    /// Trials in a row that changed nothing, at most [`Memory::SELDOM`].
    failed: u8,
    /// Waits that have woken somebody since the last trial.
    since: u16,
    /// Short waits since the last long one, at most [`u8::MAX`].
    short: u8,
}

/// Every one of the last waits.
const ALL: u8 = 240;
/// One of them, as the mean moves by it.
const ONE: u8 = 30;

impl Memory {
    /// Waits of a trial: enough for the other end to learn that its waits are short now.
    const TRIAL: u8 = 16;
    /// Waits until the first trial; twice as many after each that changed nothing.
    const FIRST: u16 = 16;
    const SELDOM: u8 = 6;
    /// So many short waits earn a longest spin: half a microsecond each, of the seven that TCP takes for a message.
    const EARNS: u64 = 64;

    /// How long the next wait spins; 0: not at all. `woke`: the thread has woken somebody since its last wait.
    pub fn plan(&mut self, profile: Profile, bounds: Bounds, woke: bool) -> u64 {
        let awaited = if woke { bounds.wake_up } else { bounds.most };
        if profile == Profile::Latency {
            return awaited;
        }
        if self.trial == 0 && self.is_long() && woke {
            self.since += 1;
            if self.since >= Self::FIRST << self.failed {
                self.since = 0;
                self.trial = Self::TRIAL;
            }
        }
        match (self.trial > 0, self.is_long()) {
            (true, _) => awaited,
            (false, true) => 0,
            // It is awake as a rule.
            (false, false) if woke => bounds.wake_up,
            (false, false) => {
                let earned = u64::from(self.short) * bounds.most / Self::EARNS;
                (bounds.pays + earned).min(bounds.wake_up)
            }
        }
    }

    /// A spin of so many ticks was answered.
    pub fn answered(&mut self, bounds: Bounds, spent: u64) {
        self.note(bounds, spent);
        if self.trial > 0 {
            self.trial -= 1;
            if self.trial == 0 {
                self.judge();
            }
        }
    }

    /// A spin was not; a sleep follows.
    pub fn unanswered(&mut self) {
        if self.trial > 0 {
            self.trial = 0;
            self.judge();
        }
    }

    /// A wait of so many ticks, of which the end was slept through. As for the ticks: until it was rung for, not until it ran.
    pub fn slept(&mut self, bounds: Bounds, waited: u64) {
        self.note(bounds, waited);
    }

    fn is_long(&self) -> bool {
        self.long > ALL / 2
    }

    fn note(&mut self, bounds: Bounds, waited: u64) {
        let is_long = waited > bounds.pays;
        self.long = self.long - self.long / (ALL / ONE) + if is_long { ONE } else { 0 };
        self.short = if is_long { 0 } else { self.short.saturating_add(1) };
    }

    fn judge(&mut self) {
        self.failed = if self.is_long() { (self.failed + 1).min(Self::SELDOM) } else { 0 };
    }

    /// As one word.
    pub fn pack(self) -> u64 {
        let [low, high] = self.since.to_le_bytes();
        u64::from_le_bytes([self.long, self.trial, self.failed, low, high, self.short, 0, 0])
    }

    /// From one word.
    pub fn unpack(word: u64) -> Self {
        let [long, trial, failed, low, high, short, ..] = word.to_le_bytes();
        Self { long, trial, failed, since: u16::from_le_bytes([low, high]), short }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { pays: 8, most: 30, wake_up: 120 };

    /// One wait that is answered after `gap` ticks; what it spun.
    fn wait(memory: &mut Memory, gap: u64, woke: bool) -> u64 {
        let bound = memory.plan(Profile::Balanced, BOUNDS, woke);
        if gap <= bound {
            memory.answered(BOUNDS, gap);
            return gap;
        }
        if bound > 0 {
            memory.unanswered();
        }
        memory.slept(BOUNDS, gap);
        bound
    }

    /// What `count` waits spin.
    fn waits(memory: &mut Memory, count: u64, gap: u64, woke: bool) -> u64 {
        (0..count).map(|_| wait(memory, gap, woke)).sum()
    }

    #[test]
    fn short_waits_are_spun_through() {
        let mut memory = Memory::default();
        assert_eq!(waits(&mut memory, 1000, 2, false), 2000);
        assert_eq!(waits(&mut memory, 1000, 8, false), 8000);
    }

    #[test]
    fn a_long_wait_among_short_ones_is_spun_through() {
        let mut memory = Memory::default();
        assert_eq!(wait(&mut memory, 100, false), BOUNDS.pays);
        waits(&mut memory, 240, 2, false);
        assert_eq!(wait(&mut memory, 100, false), 100);
        assert_eq!(wait(&mut memory, 100, false), BOUNDS.pays, "it is earned anew");
        // What a burst leaves behind is little for each of its messages.
        for burst in 1..60 {
            waits(&mut memory, burst, 2, false);
            assert!(wait(&mut memory, 1000, false) <= BOUNDS.pays + burst * BOUNDS.most / Memory::EARNS);
        }
    }

    #[test]
    fn long_waits_are_slept_through_soon() {
        let mut memory = Memory::default();
        assert!(waits(&mut memory, 10, 1000, false) <= 10 * BOUNDS.pays);
        assert_eq!(waits(&mut memory, 100_000, 1000, false), 0);
    }

    #[test]
    fn a_thread_that_wakes_others_in_vain_tries_ever_more_seldom() {
        let mut memory = Memory::default();
        waits(&mut memory, 10_000, 1000, true);
        let spun = waits(&mut memory, 10_240, 1000, true);
        assert_eq!(spun, 10 * BOUNDS.wake_up, "one in 1,024 spins");
    }

    #[test]
    fn trials_that_are_answered_late_change_nothing() {
        let mut memory = Memory::default();
        waits(&mut memory, 20_000, 60, true);
        let spun = waits(&mut memory, 20_800, 60, true);
        assert_eq!(spun, 20 * 16 * 60, "16 waits of 1,040");
    }

    #[test]
    fn two_that_woke_each_other_find_each_other_awake() {
        // Each answers at once when it is awake, and after a wake-up of 50 else.
        let mut ends = [Memory::default(); 2];
        for end in &mut ends {
            waits(end, 2000, 1000, true);
        }
        let mut asleep = [true, true];
        let mut slept = 0;
        for turn in 0..20_000 {
            let (me, other) = (turn % 2, 1 - turn % 2);
            let woke = asleep[other];
            let gap = if woke { 50 } else { 1 };
            let bound = ends[me].plan(Profile::Balanced, BOUNDS, woke);
            // The other one wakes, works, answers, and waits for us in turn.
            asleep[me] = gap > bound;
            if asleep[me] {
                slept += 1;
                ends[me].unanswered();
                ends[me].slept(BOUNDS, gap);
            } else {
                ends[me].answered(BOUNDS, gap);
            }
            if turn > 10_000 {
                assert!(!asleep[me], "turn {turn}: {:?}", ends[me]);
            }
        }
        assert!(slept < 4000, "{slept} sleeps until then");
    }

    #[test]
    fn short_waits_come_back_after_long_ones() {
        let mut memory = Memory::default();
        waits(&mut memory, 1000, 1000, false);
        waits(&mut memory, 8, 1, false);
        assert_eq!(wait(&mut memory, 5, false), 5);
    }

    #[test]
    fn the_share_of_long_waits_stays_within_its_bounds() {
        for first in [0, ALL] {
            for gap in [0, 1000] {
                let mut memory = Memory { long: first, ..Memory::default() };
                waits(&mut memory, 1000, gap, false);
                assert!(memory.long <= ALL, "{memory:?}");
                assert_eq!(memory.is_long(), gap > 0);
            }
        }
    }

    #[test]
    fn latency_spins_always() {
        let mut memory = Memory::default();
        waits(&mut memory, 1000, 1000, true);
        assert_eq!(memory.plan(Profile::Latency, BOUNDS, false), BOUNDS.most);
        assert_eq!(memory.plan(Profile::Latency, BOUNDS, true), BOUNDS.wake_up);
    }

    #[test]
    fn it_fits_into_a_word() {
        let memory = Memory { long: 200, trial: 3, failed: 6, since: 1023, short: 255 };
        assert_eq!(Memory::unpack(memory.pack()), memory);
        assert_eq!(Memory::unpack(0), Memory::default());
    }
}
