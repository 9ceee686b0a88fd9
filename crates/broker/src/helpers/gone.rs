//! Helpers that were killed and whose channels are closed: zombies, or what still waits for the last thing that it closes.

use super::process::Process;
use crate::clock;
use std::time::{Duration, Instant};

/// What was killed in its sleep has ended after so long, mostly. Then it is looked at less and less often.
const SOON: Duration = Duration::from_millis(5);
/// The least often.
const AT_LAST: Duration = Duration::from_secs(1);

/// All of them, with their users: what is in a channel is closed after the channel is, and may take as long as anything.
pub struct Gone {
    processes: Vec<(u32, Process)>,
    look_at: Instant,
    every: Duration,
}

impl Gone {
    /// None yet.
    pub fn new() -> Self {
        Self { processes: Vec::new(), look_at: clock::now(), every: SOON }
    }

    /// Kills one more.
    pub fn enter(&mut self, user: u32, process: Process) {
        process.kill();
        self.processes.push((user, process));
        self.every = SOON;
        self.look_at = clock::now() + SOON;
    }

    /// Lets go of those of which nothing is left.
    pub fn reap(&mut self) {
        self.processes.retain(|(_, process)| !process.is_gone());
    }

    /// When to look again.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.processes.is_empty()).then_some(self.look_at)
    }

    /// Looks, if it is time.
    pub fn keep_time(&mut self, now: Instant) {
        if self.look_at <= now {
            self.reap();
            self.every = (self.every * 2).min(AT_LAST);
            self.look_at = now + self.every;
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// How many of these are a user's.
    pub fn of(&self, user: u32) -> usize {
        self.processes.iter().filter(|(of, _)| *of == user).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_killed_counts_until_nothing_is_left_of_it() {
        let lasts = |_| loop {
            std::thread::sleep(SOON);
        };
        let mut gone = Gone::new();
        // As one whose end the kernel keeps waiting.
        gone.processes.push((7, Process::start(&[], lasts).expect("a process")));
        gone.reap();
        assert_eq!((gone.of(7), gone.of(8), gone.count()), (1, 0, 1));
        let (user, process) = gone.processes.remove(0);
        gone.enter(user, process);
        while gone.count() > 0 {
            assert!(gone.deadline().is_some(), "it is looked at again");
            gone.reap();
        }
        assert!(gone.of(7) == 0 && gone.deadline().is_none());
    }
}
