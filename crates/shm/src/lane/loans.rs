//! Loans: stretches of a lane's stream whose bytes are not in the ring but still in the sender's memory (MSG_ZEROCOPY).
//!
//! A loan keeps its bytes' places in the ring, so positions, windows and all flags mean what they mean without it. The
//! sender *S* may at any time put the bytes into those places and take the loan back. All words lie in the DMB:
//!
//! | word | offset | writer | reader | a hostile value can |
//! |---|---|---|---|---|
//! | lent | 0x018 | S | R | name slots that hold nothing: each is checked |
//! | witness | 0x280 | S | R | make R read 16 bytes of S, in vain |
//! | answer | 0x300 | R | S | make S lend what R then cannot read: R's own loss |
//! | paces | 0x308, 0x310 | R | S | make S lend where that is slower, or copy, through the caches or past them: this connection's speed |
//! | slots | 0x1000 | S | R | name any memory of S: it is S's stream. R reads no other process, and checks place and length |
//!
//! R copies from S's memory first and asks then whether the loan still stood: if not, the copy is worth nothing, and the
//! bytes are in the ring. S reuses its memory only after it took the loan back, or after R consumed it.

use super::{Line, Words};
use crate::primitive::{Ordering, SharedU64, fence};

/// Loans of a lane at a time.
pub const SLOTS: u32 = if cfg!(loom) { 2 } else { 64 };
/// In the count: the witness stands. The low half counts loans, wrapping.
const ANNOUNCED: u64 = 1 << 32;

const DIRECT: u64 = 1;
const IN_RING: u64 = 2;

/// Words between the answer and the slots: these are in the next page, which is there only when something is lent.
const BETWEEN: usize = if cfg!(loom) { 0 } else { (4096 - 0x380) / 8 };

/// A loan's state: [`DIRECT`] or [`IN_RING`].
#[repr(C)]
struct Slot {
    at: SharedU64,
    len: SharedU64,
    from: SharedU64,
    state: SharedU64,
}

/// The words of a lane's loans.
#[repr(C)]
pub(crate) struct Loans {
    witness: Witnessed,
    answer: Line,
    /// The rest of the page, where the first ring is.
    between: [SharedU64; BETWEEN],
    slots: [Slot; SLOTS as usize],
}

#[repr(C, align(128))]
struct Witnessed([SharedU64; 3]);

impl Loans {
    /// From the words' beginning, bytes.
    #[cfg(not(loom))]
    pub(crate) const BETWEEN_AT: usize = Words::LOANS_AT + core::mem::offset_of!(Self, between);
    #[cfg(not(loom))]
    pub(crate) const SLOTS_AT: usize = Words::LOANS_AT + core::mem::offset_of!(Self, slots);

    /// Where the witness is, and the answer; for the document.
    #[cfg(all(test, not(loom)))]
    pub(crate) const AT: [usize; 2] = [
        Words::LOANS_AT + core::mem::offset_of!(Self, witness),
        Words::LOANS_AT + core::mem::offset_of!(Self, answer),
    ];

    pub(crate) fn new() -> Self {
        let word = || SharedU64::new(0);
        Self {
            witness: Witnessed([word(), word(), word()]),
            answer: Line::new(),
            between: core::array::from_fn(|_| word()),
            slots: core::array::from_fn(|_| Slot { at: word(), len: word(), from: word(), state: word() }),
        }
    }
}

/// Random bytes that only the sender's process has, and where: who finds them there reads that process.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Witness {
    /// Their address in the sender.
    pub at: u64,
    /// What stands there.
    pub value: [u64; 2],
}

/// `len` bytes of the stream from offset `at` on, which are at address `from` of the sender.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Loan {
    /// Offset of the first byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Address in the sender.
    pub from: u64,
}

impl Loan {
    /// Offset behind the last byte; saturating.
    pub fn end(&self) -> u64 {
        self.at.saturating_add(self.len)
    }
}

/// The count of loans of a lane as its sender says it, or as far as its receiver has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Lent(pub u64);

impl Lent {
    /// Whether the witness stands.
    pub const fn is_announced(self) -> bool {
        self.0 & ANNOUNCED != 0
    }
    /// So many loans, with the witness.
    pub const fn of(count: u32) -> Self {
        Self(ANNOUNCED | count as u64)
    }
    /// Loans so far, wrapping.
    pub const fn count(self) -> u32 {
        self.0 as u32
    }
}

impl Words {
    fn slot(&self, number: u32) -> &Slot {
        &self.loans.slots[(number % SLOTS) as usize]
    }

    /// Sender, once, under its lock: from now on it may lend, if the receiver can read the witness.
    pub fn announce(&self, witness: Witness) {
        for (word, value) in self.loans.witness.0.iter().zip([witness.at, witness.value[0], witness.value[1]])
        {
            word.store(value, Ordering::Relaxed);
        }
        // Release pairs with the Acquire in `lent`: who sees the announcement sees the witness.
        self.prod.3.store(Lent::of(0).0, Ordering::Release);
    }

    /// The witness, unchecked. After `lent` showed the announcement.
    pub fn witness(&self) -> Witness {
        let [at, first, second] =
            [0, 1, 2].map(|word: usize| self.loans.witness.0[word].load(Ordering::Relaxed));
        Witness { at, value: [first, second] }
    }

    /// The count of loans as the sender last said it, unchecked. To be asked after `prod`: a loan of bytes that `prod` showed
    /// is counted then.
    #[inline]
    pub fn lent(&self) -> Lent {
        // Acquire pairs with the Release of `announce` and `lend`.
        Lent(self.prod.3.load(Ordering::Acquire))
    }

    /// Receiver: whether it can read the sender.
    pub fn answer(&self, can: bool) {
        self.loans.answer.0.store(if can { 1 } else { 2 }, Ordering::Relaxed);
    }

    /// Whether the receiver has said that it can read us.
    #[inline]
    pub fn may_lend(&self) -> bool {
        self.loans.answer.0.load(Ordering::Relaxed) == 1
    }

    /// Receiver: how long it takes to copy out of the ring, and from the sender's memory; ticks per 64 KiB, 0 unknown.
    pub fn tell_paces(&self, (ring, lent): (u32, u32)) {
        self.loans.answer.1.store(ring.into(), Ordering::Relaxed);
        self.loans.answer.2.store(lent.into(), Ordering::Relaxed);
    }

    /// What the receiver told of its paces last (ring, lent), unchecked: for a guess.
    pub fn paces(&self) -> (u32, u32) {
        let [ring, lent] =
            [&self.loans.answer.1, &self.loans.answer.2].map(|word| word.load(Ordering::Relaxed));
        (ring as u32, lent as u32)
    }

    /// Sender, under its lock: loan number `number`, whose slot is free, stands. Its bytes are published after this.
    pub fn lend(&self, number: u32, loan: Loan) {
        let slot = self.slot(number);
        slot.at.store(loan.at, Ordering::Relaxed);
        slot.len.store(loan.len, Ordering::Relaxed);
        slot.from.store(loan.from, Ordering::Relaxed);
        slot.state.store(DIRECT, Ordering::Relaxed);
        // Release pairs with the Acquire in `lent`: who sees the count sees the loan, also before its bytes are published.
        self.prod.3.store(Lent::of(number.wrapping_add(1)).0, Ordering::Release);
    }

    /// Loan number `number`, unchecked. After `prod` and `lent`.
    pub fn loan(&self, number: u32) -> Loan {
        let slot = self.slot(number);
        let [at, len, from] = [&slot.at, &slot.len, &slot.from].map(|word| word.load(Ordering::Relaxed));
        Loan { at, len, from }
    }

    /// Receiver, after it has copied from the sender's memory: whether the loan still stood. If not, its bytes are in the
    /// ring.
    pub fn stands(&self, number: u32) -> bool {
        // Acquire pairs with the Release fence in `recalled`: whoever copied what the sender wrote after that sees it here.
        fence(Ordering::Acquire);
        // Acquire pairs with the Release of `recalled`: its ring bytes are visible.
        self.slot(number).state.load(Ordering::Acquire) == DIRECT
    }

    /// Sender, under its lock, with the loan's unread bytes in their places of the ring: its memory is its own again.
    pub fn recalled(&self, number: u32) {
        // Release pairs with the Acquire in `stands`.
        self.slot(number).state.store(IN_RING, Ordering::Release);
        // Release pairs with the Acquire fence in `stands`: before whatever the program writes into its memory from now on.
        fence(Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::HEADER;
    use super::*;

    #[test]
    fn the_words_lie_where_the_tables_say() {
        assert_eq!((Words::LENT_AT, Words::LOANS_AT), (0x18, 0x280));
        assert_eq!(core::mem::offset_of!(Loans, answer), 0x80);
        assert_eq!((Loans::BETWEEN_AT, Loans::SLOTS_AT), (0x380, 0x1000));
        assert!(size_of::<Words>() <= HEADER);
    }

    #[test]
    fn a_loan_is_as_it_was_made_until_it_is_recalled() {
        let words = Words::new();
        assert!(!words.lent().is_announced() && !words.may_lend());
        let witness = Witness { at: 7, value: [8, 9] };
        words.announce(witness);
        words.answer(true);
        assert_eq!((words.lent(), words.witness(), words.may_lend()), (Lent::of(0), witness, true));
        let loan = Loan { at: 100, len: 50, from: 4096 };
        words.lend(u32::MAX, loan);
        assert_eq!((words.lent(), words.loan(u32::MAX), loan.end()), (Lent::of(0), loan, 150));
        assert!(words.stands(u32::MAX));
        words.recalled(u32::MAX);
        assert!(!words.stands(u32::MAX));
        words.answer(false);
        assert!(!words.may_lend());
        assert_eq!(words.paces(), (0, 0));
        words.tell_paces((7, u32::MAX));
        assert_eq!(words.paces(), (7, u32::MAX));
    }
}
