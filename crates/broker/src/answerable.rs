//! Nominations whose peers have not come, and what has to be heard before they are told so.
//!
//! A peer's message may lie in its socket behind one that a helper has. It was said earlier all the same.

use crate::clock;
use crate::ends::SessionId;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Nothing more is heard for so long: what is awaited is with a helper that something keeps waiting.
const STILL: Duration = Duration::from_millis(20);
/// How long the answers are put off at most, whatever somebody has piled up.
const MOST: Duration = Duration::from_millis(100);

/// Nominations that are to be answered.
pub struct Answerable {
    /// So many, the first of those that are not answered.
    pub count: usize,
    /// Sessions, and how many bytes of theirs lay unread when these nominations were heard.
    awaited: HashMap<SessionId, usize>,
    until: Instant,
    latest: Instant,
}

impl Answerable {
    /// To be answered when so much of each session in `awaited` is heard.
    pub fn new(count: usize, awaited: HashMap<SessionId, usize>, now: Instant) -> Self {
        Self { count, awaited, until: now + STILL, latest: now + MOST }
    }

    /// A message of so many bytes has been heard.
    pub fn heard(&mut self, session: SessionId, len: usize) {
        let Some(left) = self.awaited.get_mut(&session) else { return };
        *left = left.saturating_sub(len);
        if *left == 0 {
            self.awaited.remove(&session);
        }
        self.until = self.latest.min(clock::now() + STILL);
    }

    /// Nothing of the session's lies unread, or it has ended.
    pub fn caught_up(&mut self, session: SessionId) {
        self.awaited.remove(&session);
    }

    /// Whether the answers are due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.awaited.is_empty() || now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    #[test]
    fn due_when_all_that_was_said_earlier_is_heard() {
        let now = Instant::now();
        let mut all = Answerable::new(3, HashMap::from([(A, 100), (B, 40)]), now);
        assert!(!all.is_due(now));
        all.heard(A, 60);
        all.caught_up(B);
        all.heard(B, 40);
        assert!(!all.is_due(now));
        all.heard(A, 60);
        assert!(all.is_due(now));
        assert!(Answerable::new(1, HashMap::new(), now).is_due(now));
    }

    #[test]
    fn who_is_never_heard_out_is_not_waited_for() {
        let now = Instant::now();
        let all = Answerable::new(1, HashMap::from([(A, 100)]), now);
        assert!(!all.is_due(now + STILL / 2) && all.is_due(now + STILL));
        let mut all = Answerable::new(1, HashMap::from([(A, usize::MAX)]), now - MOST);
        all.heard(A, 1);
        assert!(all.is_due(now));
    }
}
