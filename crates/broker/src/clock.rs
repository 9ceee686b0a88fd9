//! The time as the broker sees it: the system's, or in a test one that is made up.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    static MADE_UP: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time.
pub fn now() -> Instant {
    MADE_UP.get().unwrap_or_else(Instant::now)
}

/// How long ago that was.
pub fn since(earlier: Instant) -> Duration {
    now().saturating_duration_since(earlier)
}

/// For tests: time stands still for this thread's brokers from now on, but for what is said to pass.
pub fn pass(time: Duration) {
    MADE_UP.set(Some(now() + time));
}
