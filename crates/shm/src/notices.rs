//! MSG_ZEROCOPY: who numbers a connection's calls, and which notices of them are unread.
//!
//! The program sees one sequence of numbers. The kernel counts its own calls from 0; calls that a lane has had a part in
//! are counted here. So the two take *turns*. It is the kernel's until the first lane begins to send; then it is *ours*,
//! on the lane and also by TCP after it, until every notice has been read and the connection is the kernel's
//! again. What we have counted is then added to each of the kernel's numbers.
//!
//! A call of ours that copies is complete when it returns, but its notice comes after those of the calls before it: one
//! whose memory was lent is complete once that was consumed or taken back (core keeps account of them). What is unread is
//! always one range with one code. Each word changes by one compare-and-swap, and a process killed between two leaves no gap.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// In `turn`: it is ours. Beside it how often calls have entered (31 bits), and how many are inside (32 bits).
const OURS: u64 = 1 << 63;
const ENTERED: u64 = 1 << 32;
const INSIDE: u64 = ENTERED - 1;

/// State of each [`Fact`] as last asked of the kernel, two bits of `facts`; above them a count of changes.
const UNKNOWN: u32 = 0;
const NO: u32 = 1;
const YES: u32 = 2;
const STATE: u32 = 3;
const STATES: u32 = 0x3f;

/// What the kernel says of the socket, asked once until an option was set.
#[derive(Copy, Clone)]
pub enum Fact {
    /// SO_ZEROCOPY is set.
    ZeroCopy = 0,
    /// What is received comes with a time, SO_TIMESTAMP and its kin.
    Stamped = 2,
    /// It is an IPv6 socket.
    Ipv6 = 4,
}

/// The notices of a connection end. See the module.
#[repr(C, align(64))]
pub struct Notices {
    /// Numbers of ours that are complete and unread: the first, and in the low half the one behind the last.
    unread: AtomicU64,
    /// Whose turn it is.
    turn: AtomicU64,
    /// Calls that the kernel has counted.
    kernel: AtomicU32,
    /// Calls that the kernel has counted and whose notices the program has read.
    kernel_read: AtomicU32,
    /// What is added to the kernel's numbers.
    ahead: AtomicU32,
    /// See [`Fact`].
    facts: AtomicU32,
    /// Completion queues of threads that sleep until there is a notice.
    sleepers: AtomicU32,
    /// Calls that have a number and are not complete.
    pending: AtomicU32,
    /// Whether what is unread was copied: 1. Changes from 1 to 0 only while nothing is unread.
    copied: AtomicU32,
}

impl Notices {
    /// As for a new socket.
    pub fn reset(&self) {
        self.unread.store(0, Ordering::Relaxed);
        self.turn.store(0, Ordering::Relaxed);
        for word in [
            &self.kernel,
            &self.kernel_read,
            &self.ahead,
            &self.facts,
            &self.sleepers,
            &self.pending,
            &self.copied,
        ] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Goes on with another block's. Nobody uses this one yet.
    pub fn move_from(&self, other: &Self) {
        self.unread.store(other.unread.load(Ordering::Acquire), Ordering::Relaxed);
        self.turn.store(other.turn.load(Ordering::Relaxed) & OURS, Ordering::Relaxed);
        for (to, from) in [
            (&self.kernel, &other.kernel),
            (&self.kernel_read, &other.kernel_read),
            (&self.ahead, &other.ahead),
            (&self.copied, &other.copied),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Whether the kernel alone has to do with the connection's notices: it never had a call to count, nor we.
    pub fn untouched(&self) -> bool {
        self.kernel.load(Ordering::Relaxed) == 0
            && !self.are_ours()
            && self.ahead.load(Ordering::Relaxed) == 0
    }

    /// What is known of the socket; if nothing, `ask` asks the kernel.
    #[inline]
    pub fn is(&self, fact: Fact, ask: impl FnOnce() -> bool) -> bool {
        let seen = self.facts.load(Ordering::Relaxed);
        let state = seen >> fact as u32 & STATE;
        if state != UNKNOWN {
            return state == YES;
        }
        let is = ask();
        // Not over a change that came meanwhile.
        let known = seen | (if is { YES } else { NO }) << fact as u32;
        let _ = self.facts.compare_exchange(seen, known, Ordering::Relaxed, Ordering::Relaxed);
        is
    }

    /// An option of the socket was set or cleared just now.
    pub fn option_changed(&self) {
        let forgotten = |seen: u32| Some((seen & !STATES).wrapping_add(STATES + 1));
        let _ = self.facts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, forgotten);
    }

    /// Whether it is our turn.
    #[inline]
    pub fn are_ours(&self) -> bool {
        self.turn.load(Ordering::Acquire) & OURS != 0
    }

    /// A lane begins to send: our turn. Under the send lock, with no call inside the kernel.
    pub fn begin(&self) {
        if self.are_ours() {
            return;
        }
        let next = self.kernel.load(Ordering::Relaxed).wrapping_add(self.ahead.load(Ordering::Relaxed));
        self.unread.store(u64::from(next) << 32 | u64::from(next), Ordering::Relaxed);
        // Release pairs with the Acquire in `enter`: who finds it our turn finds the numbers.
        let entered = self.turn.load(Ordering::Relaxed);
        self.turn.store(entered | OURS, Ordering::Release);
    }

    /// The connection is the kernel's again, if nothing is left of our turn: no call inside, no notice unread, of the
    /// kernel's neither. Says whether it is. Under the send lock, on TCP.
    #[must_use]
    pub fn end(&self) -> bool {
        let turn = self.turn.load(Ordering::SeqCst);
        if turn & OURS == 0 {
            return true;
        }
        let kernel = self.kernel.load(Ordering::Relaxed);
        if turn & INSIDE != 0 || self.owed() || kernel != self.kernel_read.load(Ordering::Relaxed) {
            return false;
        }
        // Nobody translates a number of the kernel's now, as all that it gave were read.
        self.ahead.store(self.told().wrapping_sub(kernel), Ordering::Relaxed);
        // A call that came and went since the first look has left its trace in the word.
        let after = turn & !OURS;
        self.turn.compare_exchange(turn, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// A call that asks for a notice, while it is our turn: it stays so until `leave`. False: the kernel's turn.
    #[must_use]
    pub fn enter(&self) -> bool {
        let enter = |turn: u64| {
            let entered = (turn & !OURS).wrapping_add(ENTERED) & !OURS;
            (turn & OURS != 0).then_some(OURS | (entered + 1))
        };
        self.turn.fetch_update(Ordering::SeqCst, Ordering::Relaxed, enter).is_ok()
    }

    /// The end of such a call. `moved`: it moved bytes, so it has a number, which is complete once the caller says so.
    /// Under the send lock.
    pub fn leave(&self, moved: bool) {
        if moved {
            self.pending.fetch_add(1, Ordering::Relaxed);
        }
        self.turn.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether calls that are complete can be told of just now: what is unread has the same code, or is nothing.
    pub fn fits(&self, copied: bool) -> bool {
        !self.unread() || (self.copied.load(Ordering::Relaxed) == 1) == copied
    }

    /// So many calls more are complete, in the order of their numbers. Where they do not fit, all that is unread says COPIED:
    /// that must not be lost. Under the send lock.
    pub fn complete(&self, calls: u32, copied: bool) {
        if calls == 0 {
            return;
        }
        // A thread that reads meanwhile takes what was there before: that says COPIED rather than not.
        if copied || !self.unread() {
            self.copied.store(u32::from(copied), Ordering::SeqCst);
        }
        self.pending.fetch_sub(calls, Ordering::Relaxed);
        self.told_of(calls);
    }

    /// Whether one more call that copies can be told of at once, by [`Notices::copied_one`]: it is our turn, and nothing waits.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.are_ours() && self.pending() == 0 && self.fits(true)
    }

    /// Such a call is complete, in the same hold of the send lock. One that did not `enter` needs not, as a turn ends under it.
    #[inline]
    pub fn copied_one(&self) {
        if self.copied.load(Ordering::Relaxed) != 1 {
            self.copied.store(1, Ordering::SeqCst);
        }
        self.told_of(1);
    }

    fn told_of(&self, calls: u32) {
        let told = |unread: u64| Some(unread & !INSIDE | u64::from((unread as u32).wrapping_add(calls)));
        // SeqCst, as in `sleep` and its look after: one of the two sees the other.
        let _ = self.unread.fetch_update(Ordering::SeqCst, Ordering::Relaxed, told);
    }

    /// Whether so many notices are unread, or to come, that one more could not be told from none.
    pub fn are_full(&self) -> bool {
        let unread = self.unread.load(Ordering::Relaxed);
        let used = (unread as u32).wrapping_sub((unread >> 32) as u32);
        used.saturating_add(self.pending()) == u32::MAX
    }

    /// Whether notices of ours are unread.
    #[inline]
    fn unread(&self) -> bool {
        let unread = self.unread.load(Ordering::SeqCst);
        unread >> 32 != unread & INSIDE
    }

    /// Calls that are not complete.
    pub fn pending(&self) -> u32 {
        self.pending.load(Ordering::Relaxed)
    }

    /// Whether notices of ours are unread, or to come.
    fn owed(&self) -> bool {
        self.unread() || self.pending() != 0
    }

    /// Whether notices of ours are there to be read: not before those of the kernel, which have lower numbers and may still
    /// be on their way.
    #[inline]
    pub fn readable(&self) -> bool {
        self.are_ours() && self.unread() && !self.kernel_owes()
    }

    /// The number behind the last one that is complete: changes with each notice.
    #[inline]
    pub fn told(&self) -> u32 {
        self.unread.load(Ordering::Relaxed) as u32
    }

    /// The unread notices of ours: first, last, whether they say COPIED; they are read now.
    pub fn take(&self) -> Option<(u32, u32, bool)> {
        let mut copied = false;
        let all = |unread: u64| {
            let next = unread & INSIDE;
            // Of this range or of one with more in it: the numbers only grow.
            copied = self.copied.load(Ordering::SeqCst) == 1;
            (unread >> 32 != next).then_some(next << 32 | next)
        };
        let unread = self.unread.fetch_update(Ordering::SeqCst, Ordering::SeqCst, all).ok()?;
        Some(((unread >> 32) as u32, (unread as u32).wrapping_sub(1), copied))
    }

    /// The kernel is about to be given a call that it counts: before, as its notice may be read before the call returns.
    pub fn kernel_call(&self) {
        self.kernel.fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel's call moved nothing: it has no number.
    pub fn kernel_call_failed(&self) {
        self.kernel.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the kernel has, or will have, a notice that the program has not read.
    pub fn kernel_owes(&self) -> bool {
        self.kernel.load(Ordering::Relaxed) != self.kernel_read.load(Ordering::Relaxed)
    }

    /// A notice of the kernel's, first and last, was taken from its queue: the numbers that the program is to see.
    pub fn translate(&self, (first, last): (u32, u32)) -> (u32, u32) {
        let ahead = self.ahead.load(Ordering::Relaxed);
        self.kernel_read.fetch_add(last.wrapping_sub(first).wrapping_add(1), Ordering::Relaxed);
        (first.wrapping_add(ahead), last.wrapping_add(ahead))
    }

    /// A thread of queue `cq` is about to sleep until there is a notice. It looks once more after this.
    pub fn sleep(&self, cq: u8) {
        self.sleepers.fetch_or(1 << cq, Ordering::SeqCst);
    }

    /// After `leave`: the queues to ring for, a bit each. They are told once.
    #[inline]
    pub fn wake(&self) -> u32 {
        if self.sleepers.load(Ordering::SeqCst) == 0 { 0 } else { self.sleepers.swap(0, Ordering::SeqCst) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Notices {
        // SAFETY: atomics only, valid when zero, as a new block is.
        unsafe { core::mem::zeroed() }
    }

    fn sends(notices: &Notices, n: u32) {
        for _ in 0..n {
            assert!(notices.enter());
            notices.leave(true);
            notices.complete(1, true);
        }
    }

    #[test]
    fn one_sequence_over_the_turns() {
        let notices = fresh();
        assert!(notices.untouched() && !notices.enter(), "a new socket's calls are the kernel's");
        (0..3).for_each(|_| notices.kernel_call());
        notices.begin();
        assert!(!notices.owed());
        sends(&notices, 2);
        assert!(notices.kernel_owes() && !notices.readable(), "the kernel's come first");
        assert_eq!(notices.translate((0, 2)), (0, 2));
        assert!(notices.readable() && !notices.end());
        assert_eq!((notices.take(), notices.take()), (Some((3, 4, true)), None));
        assert!(!notices.readable() && notices.end() && !notices.enter());
        notices.kernel_call();
        assert_eq!(notices.translate((3, 3)), (5, 5));
        notices.begin();
        sends(&notices, 1);
        assert_eq!(notices.take(), Some((6, 6, true)));
    }

    #[test]
    fn a_call_that_copies_is_told_of_at_once_where_nothing_waits() {
        let notices = fresh();
        assert!(!notices.is_free(), "the kernel's turn");
        notices.begin();
        assert!(notices.is_free());
        notices.copied_one();
        sends(&notices, 1);
        notices.copied_one();
        assert_eq!(notices.take(), Some((0, 2, true)));
        assert!(notices.enter());
        notices.leave(true);
        assert!(!notices.is_free(), "one before it is not complete");
        notices.complete(1, false);
        assert!(!notices.is_free(), "what is unread has the other code");
        assert_eq!(notices.take(), Some((3, 3, false)));
        notices.copied_one();
        assert_eq!(notices.take(), Some((4, 4, true)));
        assert!(notices.end());
    }

    #[test]
    fn calls_that_move_nothing_leave_no_gap() {
        let notices = fresh();
        notices.begin();
        assert!(notices.enter());
        notices.leave(false);
        sends(&notices, 1);
        assert_eq!(notices.take(), Some((0, 0, true)));
    }

    #[test]
    fn a_turn_does_not_end_under_a_call_nor_over_its_notice() {
        let notices = fresh();
        notices.begin();
        assert!(notices.enter());
        assert!(!notices.end());
        notices.leave(true);
        assert!(!notices.end() && !notices.readable() && notices.take().is_none(), "not complete");
        notices.complete(1, true);
        assert!(!notices.end());
        assert_eq!(notices.take(), Some((0, 0, true)));
        assert!(notices.end() && notices.end(), "and stays ended");
    }

    #[test]
    fn numbers_wrap_and_there_is_an_end_to_what_is_unread() {
        let notices = fresh();
        notices.kernel.store(u32::MAX, Ordering::Relaxed);
        notices.begin();
        sends(&notices, 2);
        assert_eq!(notices.take(), Some((u32::MAX, 0, true)));
        notices.unread.store(7 << 32 | 5, Ordering::Relaxed);
        assert!(!notices.are_full());
        sends(&notices, 1);
        assert!(notices.are_full() && notices.unread());
        assert_eq!(notices.take(), Some((7, 5, true)));
    }

    #[test]
    fn a_range_has_one_code_and_copied_is_never_lost() {
        let notices = fresh();
        notices.begin();
        for _ in 0..4 {
            assert!(notices.enter());
            notices.leave(true);
        }
        notices.complete(2, false);
        assert!(notices.fits(false) && !notices.fits(true));
        assert_eq!((notices.take(), notices.pending()), (Some((0, 1, false)), 2));
        assert!(notices.fits(true));
        notices.complete(1, false);
        notices.complete(1, true);
        assert_eq!((notices.take(), notices.pending()), (Some((2, 3, true)), 0));
    }

    #[test]
    fn many_entries_do_not_reach_the_mark_of_the_turn() {
        let notices = fresh();
        notices.begin();
        notices.turn.store(OURS | (OURS - ENTERED), Ordering::Relaxed);
        sends(&notices, 1);
        assert!(notices.are_ours());
        assert_eq!(notices.turn.load(Ordering::Relaxed) & INSIDE, 0);
    }

    #[test]
    fn a_fact_is_asked_for_once_until_an_option_changes() {
        let notices = fresh();
        let is = |ask: &dyn Fn() -> bool| notices.is(Fact::ZeroCopy, ask);
        assert!(is(&|| true) && is(&|| unreachable!()));
        assert!(!notices.is(Fact::Stamped, || false) && notices.is(Fact::Ipv6, || true));
        assert!(is(&|| unreachable!()), "each by itself");
        notices.option_changed();
        let overtaken = || {
            notices.option_changed();
            true
        };
        assert!(is(&overtaken) && !is(&|| false), "an answer from before a change is not kept");
        assert!(!is(&|| unreachable!()));
        assert!(notices.is(Fact::Stamped, || true) && !notices.is(Fact::Ipv6, || false));
    }

    #[test]
    fn each_number_comes_once_whoever_sends_and_reads() {
        let notices = fresh();
        notices.begin();
        let seen = std::sync::Mutex::new(Vec::new());
        let done = std::sync::atomic::AtomicU32::new(0);
        let lock = std::sync::Mutex::new(());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        assert!(notices.enter());
                        // As under the send lock.
                        let _locked = lock.lock().expect("whole");
                        notices.leave(true);
                        notices.complete(1, true);
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
            scope.spawn(|| {
                loop {
                    let over = done.load(Ordering::SeqCst) == 3;
                    match notices.take() {
                        Some(range) => seen.lock().expect("whole").push(range),
                        None if over => break,
                        None => std::hint::spin_loop(),
                    }
                }
            });
        });
        let seen = seen.into_inner().expect("whole");
        let ends = seen.iter().scan(0, |next, &(first, last, _)| {
            assert_eq!(first, *next);
            *next = last + 1;
            Some(*next)
        });
        assert_eq!(ends.last(), Some(15000));
        assert!(notices.end());
    }
}
