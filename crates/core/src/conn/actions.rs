//! File actions of posix_spawn(), which give a child what stands at a number when it is spawned, long after they were made perhaps.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// File actions that are known at a time; of further ones it is not known which give what.
const MOST: usize = 16;

/// Of one `posix_spawn_file_actions_t`.
struct Actions {
    /// Where it is; 0 none.
    at: AtomicUsize,
    /// Numbers that are duplicated for the child, by their rests: a bit each.
    numbers: AtomicU64,
}

static KNOWN: [Actions; MOST] =
    [const { Actions { at: AtomicUsize::new(0), numbers: AtomicU64::new(0) } }; MOST];
static OTHERS: AtomicU64 = AtomicU64::new(0);

fn bit(fd: i32) -> u64 {
    1 << (fd as u32 % u64::BITS)
}

/// They begin, or end.
pub fn none_yet(actions: usize) {
    for known in KNOWN.iter().filter(|known| known.at.load(Ordering::Relaxed) == actions) {
        known.numbers.store(0, Ordering::Relaxed);
        known.at.store(0, Ordering::Release);
    }
}

/// They give what is at this number.
pub fn give(actions: usize, fd: i32) {
    let is_its = |known: &&Actions| known.at.load(Ordering::Relaxed) == actions;
    let is_free = |known: &&Actions| {
        known.at.compare_exchange(0, actions, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let known = KNOWN.iter().find(is_its).or_else(|| KNOWN.iter().find(is_free));
    known.map_or(&OTHERS, |known| &known.numbers).fetch_or(bit(fd), Ordering::Relaxed);
}

/// The numbers that they may give.
pub(super) fn given_by(actions: usize) -> impl Fn(i32) -> bool {
    let its = KNOWN.iter().find(|known| known.at.load(Ordering::Relaxed) == actions);
    let numbers = its.map_or(&OTHERS, |known| &known.numbers).load(Ordering::Relaxed);
    move |fd| actions != 0 && numbers & bit(fd) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_give_what_they_name_until_they_end() {
        for actions in 1..=MOST {
            give(actions, 3 + actions as i32);
        }
        assert!(given_by(1)(4) && given_by(2)(5) && !given_by(1)(5));
        assert!(given_by(1)(68), "by its rest");
        none_yet(1);
        assert!(!given_by(1)(4));
        give(100, 7);
        give(101, 9);
        assert!(given_by(100)(7) && !given_by(100)(9));
        assert!(given_by(101)(9) && given_by(102)(9), "one of those of which nothing else is known");
        assert!(!given_by(0)(9), "no actions at all");
    }
}
