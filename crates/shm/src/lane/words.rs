//! The words of a DMB, and what stands in them: each is read once and checked before use. The table at the head of `lane` has who writes what.

use super::loans::Loans;
use super::short::Short;
#[cfg(not(loom))]
use super::{COLOUR, COLOURS, FIRST_AT, HEADER, PAGE};
use crate::primitive::{Ordering, SharedU64, full_fence_after_rmw};

const OFFSET_MASK: u64 = (1 << 48) - 1;

/// What a sender says of where its bytes are: a window, and while there may be unread bytes in the first ring and others behind it, the
/// offset of the first one that is not there.
///
/// moves (1 bit) | lower bits of that offset (31 bits) | window (32 bits)
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Window(pub u64);

impl Window {
    const MOVES: u64 = 1 << 63;
    pub(super) const OFFSET: u64 = u32::MAX as u64 >> 1;

    /// `window` behind the header from offset `until` on; what is unread before it is in the first ring.
    pub const fn moving(window: u64, until: u64) -> Self {
        Self(Self::MOVES | (until & Self::OFFSET) << 32 | window)
    }

    /// Whether there may be bytes in both places.
    pub const fn moves(self) -> bool {
        self.0 & Self::MOVES != 0
    }

    /// Its size, bytes.
    pub const fn size(self) -> u64 {
        if self.moves() { self.0 & u32::MAX as u64 } else { self.0 }
    }

    /// Bytes from `offset` up to where the first ring's end; 0 when `offset` is behind that. At most [`FIRST_WINDOW`](super::FIRST_WINDOW) of a sender that keeps to the rules.
    pub const fn ahead(self, offset: u64) -> u64 {
        let n = (self.0 >> 32).wrapping_sub(offset) & Self::OFFSET;
        if n > Self::OFFSET / 2 { 0 } else { n }
    }
}

/// generation (12 bits) | offset (48 bits) | flags (4 bits), in one 64-bit word.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Cursor(pub u64);

impl Cursor {
    /// prod: the sender publishes no more; the rest of the stream is on TCP.
    pub const END: u64 = 1;
    /// prod: the receiver wants no more: the sender ENDs in its next call. Until then the receiver drains the ring.
    pub const STOP: u64 = 2;
    /// prod, with STOP: the receiver will not drain; the sender takes back and resends.
    pub const LEAVE: u64 = 4;
    /// cons: the sender has taken back what was unread.
    pub const TAKEN: u64 = 1;
    /// cons, with TAKEN: the sender's stream is over. Where TCP ends by a reset, that says only that it has not taken all of what was unread.
    pub const UNPAID: u64 = 2;

    /// A cursor without flags.
    pub const fn new(generation: u32, offset: u64) -> Self {
        Self(((generation as u64) << 52) | ((offset & OFFSET_MASK) << 4))
    }
    /// Which grant of the DMB it belongs to.
    pub const fn generation(self) -> u32 {
        (self.0 >> 52) as u32
    }
    /// Bytes since the lane's beginning.
    pub const fn offset(self) -> u64 {
        (self.0 >> 4) & OFFSET_MASK
    }
    /// Whether any of `flags` is set.
    pub const fn has(self, flags: u64) -> bool {
        self.0 & flags != 0
    }
    /// Whether a producer's word has flags that the two ends set: LEAVE comes together with STOP only.
    pub const fn is_lawful(self) -> bool {
        let flags = self.0 & 15;
        flags & !(Self::END | Self::STOP | Self::LEAVE) == 0
            && (flags & Self::LEAVE == 0 || flags & Self::STOP != 0)
    }
    /// This cursor with `flags` set.
    pub const fn with(self, flags: u64) -> Self {
        Self(self.0 | flags)
    }
    /// This cursor, `n` bytes on.
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0 + (n << 4))
    }
}

/// What a sender holds back (TCP_CORK, MSG_MORE): it is in the ring and published, but readers overlook it until the
/// sender says otherwise, ends the lane, or has held it for as long as TCP does.
///
/// 1 (1 bit) | time (31 bits, in [`Held::TICKS`]) | lower half of the offset of the first byte held; 0: nothing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Held(pub u64);

impl Held {
    /// Nothing.
    pub const NOTHING: Self = Self(0);
    /// Ticks of a unit of its time.
    pub const TICKS: u64 = 1 << 10;
    const TIME: u32 = u32::MAX >> 1;
    /// So far two cores' clocks may differ, in its units.
    pub const SKEW: u32 = 64;

    /// The bytes from `offset` on, held since `now`.
    pub const fn new(offset: u64, now: u64) -> Self {
        Self(1 << 63 | ((now / Self::TICKS) as u32 as u64 & Self::TIME as u64) << 32 | offset as u32 as u64)
    }

    /// The bytes from `offset` on, held since the same time.
    pub const fn moved(self, offset: u64) -> Self {
        Self(self.0 & !(u32::MAX as u64) | offset as u32 as u64)
    }

    /// Ticks for which it will be held, of `most` in all; 0 when it is no more.
    pub const fn left(self, now: u64, most: u64) -> u64 {
        let since = (self.0 >> 32) as u32 & Self::TIME;
        let age =
            (((now / Self::TICKS) as u32).wrapping_sub(since).wrapping_add(Self::SKEW) & Self::TIME) as u64;
        if self.0 == 0 { 0 } else { most.saturating_sub(age * Self::TICKS) }
    }

    /// How many of the bytes before `end` are behind its first one, whatever its time.
    pub const fn before(self, end: u64) -> u64 {
        let n = (end as u32).wrapping_sub(self.0 as u32);
        if self.0 == 0 || n > u32::MAX / 2 { 0 } else { n as u64 }
    }
}

/// The producer's word; the window, what is held, the count of loans; and a short message. With them its line is full.
#[repr(C, align(128))]
pub(crate) struct Produced(
    pub(crate) SharedU64,
    pub(crate) SharedU64,
    pub(crate) SharedU64,
    pub(crate) SharedU64,
    pub(crate) Short,
);

/// A word alone on its pair of cache lines; but for the wait words, each followed by when it was last answered.
#[repr(C, align(128))]
pub(crate) struct Line(
    pub(crate) SharedU64,
    pub(crate) SharedU64,
    pub(crate) SharedU64,
    pub(crate) SharedU64,
);

impl Line {
    pub(crate) fn new() -> Self {
        Self(SharedU64::new(0), SharedU64::new(0), SharedU64::new(0), SharedU64::new(0))
    }
}

/// The words at the start of a DMB.
#[repr(C)]
pub struct Words {
    pub(crate) prod: Produced,
    cons: Line,
    start: Line,
    rwait: Line,
    wwait: Line,
    pub(crate) loans: Loans,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Words>() + (COLOURS - 1) * COLOUR <= HEADER);
#[cfg(not(loom))]
const _: () = assert!(Loans::SLOTS_AT == PAGE && Loans::BETWEEN_AT + (COLOURS - 1) * COLOUR <= FIRST_AT);
#[cfg(not(loom))]
const _: () = assert!(core::mem::offset_of!(Produced, 4) == 0x20 && size_of::<Short>() == 0x20);

/// Each word, for the document.
#[cfg(all(test, not(loom)))]
pub(crate) fn layout() -> Vec<(&'static str, Vec<usize>)> {
    use core::mem::offset_of;
    let [witness, answer] = Loans::AT;
    let beside = |word: usize| word + offset_of!(Line, 1);
    let short = offset_of!(Words, prod) + offset_of!(Produced, 4);
    vec![
        ("prod", vec![Words::PROD_AT]),
        ("window", vec![Words::WINDOW_AT]),
        ("held", vec![offset_of!(Words, prod) + offset_of!(Produced, 2)]),
        ("lent", vec![offset_of!(Words, prod) + offset_of!(Produced, 3)]),
        ("short", vec![short, short + Short::BYTES_AT]),
        ("cons", vec![Words::CONS_AT]),
        ("reach", vec![beside(Words::CONS_AT)]),
        ("drained", vec![offset_of!(Words, cons) + offset_of!(Line, 2)]),
        ("start", vec![offset_of!(Words, start)]),
        ("rwait", vec![offset_of!(Words, rwait)]),
        ("wwait", vec![Words::WWAIT_AT]),
        ("woken", vec![beside(offset_of!(Words, rwait)), beside(Words::WWAIT_AT)]),
        ("witness", vec![witness]),
        ("answer", vec![answer]),
        ("paces", vec![beside(answer), answer + offset_of!(Line, 2)]),
        ("slots", vec![Loans::SLOTS_AT]),
        ("first ring", vec![FIRST_AT]),
        ("ring", vec![HEADER]),
    ]
}

/// A wait word: epoch (32 bits) | ... | nap mark (1 bit) | CQ mask (8 bits); 0 is awake. The epoch's half is the futex
/// of those who nap: each declaration and each answer changes it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Wait(pub u64);

impl Wait {
    const NAP: u64 = 1 << 8;
    const MARKS: u64 = Self::NAP | 0xff;

    /// Number of this declaration, as it stands in the futex.
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// Whether somebody naps on the word itself.
    pub const fn naps(self) -> bool {
        self.0 & Self::NAP != 0
    }
    /// Completion queues to post to.
    pub const fn cqs(self) -> u8 {
        self.0 as u8
    }
    /// Whether somebody sleeps, or will.
    pub const fn declared(self) -> bool {
        self.0 != 0
    }
}

/// Which of the two wait words.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Side {
    /// Readers of an empty ring.
    Readers,
    /// Writers at a full ring.
    Writers,
}

#[cfg(not(loom))]
impl Words {
    /// Where in a DMB the producer's word is, bytes: for who looks without mapping it.
    pub const PROD_AT: usize = core::mem::offset_of!(Words, prod);
    /// Where the consumer's is.
    pub const CONS_AT: usize = core::mem::offset_of!(Words, cons);
    /// Where the window is.
    pub const WINDOW_AT: usize = Self::PROD_AT + size_of::<SharedU64>();
    /// Where the count of loans is.
    pub const LENT_AT: usize = Self::WINDOW_AT + 2 * size_of::<SharedU64>();
    /// Where the loans begin: the witness, the answer, the slots.
    pub const LOANS_AT: usize = core::mem::offset_of!(Words, loans);
    /// Where the writers' wait word is.
    pub const WWAIT_AT: usize = core::mem::offset_of!(Words, wwait);
}

impl Words {
    /// Words of a DMB never granted.
    pub fn new() -> Self {
        let (word, line, loans) = (|| SharedU64::new(0), Line::new, Loans::new());
        let prod = Produced(word(), word(), word(), word(), Short::new());
        Self { prod, cons: line(), start: line(), rwait: line(), wwait: line(), loans }
    }

    /// Receiver, under its lock, with no lane of an earlier generation unfinished: offers generation `g`.
    pub fn grant(&self, generation: u32) {
        self.rwait.0.store(0, Ordering::Relaxed);
        self.wwait.0.store(0, Ordering::Relaxed);
        self.cons.0.store(Cursor::new(generation, 0).0, Ordering::Relaxed);
        // Release pairs with the Acquire of `prod` in `begin`: who sees the grant sees cons.
        self.prod.0.store(Cursor::new(generation, 0).0, Ordering::Release);
    }

    /// Receiver: how large a window it can read, bytes; before `grant`, and when that is more.
    pub fn set_reach(&self, window: u64) {
        // Nothing of the sender's hangs on it: it maps for itself.
        self.cons.1.store(window, Ordering::Relaxed);
    }

    /// How large a window the receiver can read, unchecked.
    pub fn reach(&self) -> u64 {
        self.cons.1.load(Ordering::Relaxed)
    }

    /// Receiver, under its lock: how many bytes of the TCP stream it has read; before `grant`, and with each that it reads in front of the lane.
    pub fn set_drained(&self, tcp_byte: u64) {
        // A hint, as `reach` is: how long a full ring is borne hangs on it.
        self.cons.2.store(tcp_byte + 1, Ordering::Relaxed);
    }

    /// How many of the TCP stream's bytes the receiver has read, unchecked; no more than those before the lane are told. `None`: it does not say.
    pub fn drained(&self) -> Option<u64> {
        self.cons.2.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Sender: begins the granted lane at byte `tcp_byte` of the TCP stream, with so large a window. False when the grant was
    /// stopped or is of another generation; nothing is written then.
    #[must_use]
    pub fn begin(&self, generation: u32, tcp_byte: u64, window: u64) -> bool {
        if self.prod() != Cursor::new(generation, 0) {
            return false;
        }
        self.set_window(window);
        self.prod.2.store(0, Ordering::Relaxed);
        self.forget_short();
        // Release pairs with the Acquire in `start`. A STOP that comes in between makes the first publish fail.
        self.start.0.store(Cursor::new(generation, tcp_byte).0, Ordering::Release);
        true
    }

    /// Producer cursor. Acquire pairs with the Release of `publish`: its ring bytes are visible.
    #[inline]
    pub fn prod(&self) -> Cursor {
        Cursor(self.prod.0.load(Ordering::Acquire))
    }

    /// Sender, under its lock: bytes published from here on lie as this [`Window`] says.
    pub fn set_window(&self, window: u64) {
        // The Release of `publish` (of `begin` for the first one) makes it visible with the first such byte.
        self.prod.1.store(window, Ordering::Relaxed);
    }

    /// The window as the sender last said it, unchecked. Not older than what `prod` showed before.
    #[inline]
    pub fn window(&self) -> u64 {
        self.prod.1.load(Ordering::Relaxed)
    }

    /// Sender, under its lock, before it publishes them: the bytes from some offset on are held back.
    pub fn hold(&self, held: Held) {
        // The Release of `publish` makes it visible with them.
        self.prod.2.store(held.0, Ordering::Relaxed);
    }

    /// Sender, under its lock: what it holds back, `held`, may be seen. Who waits for it must be told then.
    pub fn show(&self, held: Held) {
        // AcqRel and the fence: pairs with `mark`, as a publish does. A peer that wrote here hides from itself.
        let _ = self.prod.2.compare_exchange(held.0, 0, Ordering::AcqRel, Ordering::Relaxed);
        full_fence_after_rmw();
    }

    /// Reader: what the sender holds back, unchecked. Not older than what `prod` showed before.
    #[inline]
    pub fn held(&self) -> Held {
        // Acquire pairs with the AcqRel of `show`.
        Held(self.prod.2.load(Ordering::Acquire))
    }

    /// Consumer cursor. Acquire pairs with the Release of `consume`: its reads of the ring are over.
    #[inline]
    pub fn cons(&self) -> Cursor {
        Cursor(self.cons.0.load(Ordering::Acquire))
    }

    /// TCP byte at which the lane of `generation` begins; `None` before it does.
    pub fn start(&self, generation: u32) -> Option<u64> {
        // Acquire pairs with the Release of `begin`.
        let start = Cursor(self.start.0.load(Ordering::Acquire));
        (start.generation() == generation).then(|| start.offset())
    }

    /// Sender, under its lock: `n` bytes behind `at` are in the ring. Errors: what stands there instead
    /// (STOP, or another generation).
    #[inline]
    pub fn publish(&self, at: Cursor, n: u64) -> Result<Cursor, Cursor> {
        let next = at.plus(n);
        // Release pairs with the Acquire of `prod`.
        match self.prod.0.compare_exchange(at.0, next.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                full_fence_after_rmw();
                Ok(next)
            }
            Err(seen) => Err(Cursor(seen)),
        }
    }

    /// Receiver: `n` bytes behind `at` were copied. Errors: what stands there instead (TAKEN, or another
    /// reader's or generation's); the copy is worth nothing then.
    #[inline]
    pub fn consume(&self, at: Cursor, n: u64) -> Result<Cursor, Cursor> {
        let next = at.plus(n);
        // Release pairs with the Acquire of `cons`: the sender may overwrite only what was read.
        match self.cons.0.compare_exchange(at.0, next.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                full_fence_after_rmw();
                Ok(next)
            }
            Err(seen) => Err(Cursor(seen)),
        }
    }

    /// Sets `flags` on prod where it is of `generation` and has none of `unless`. Errors: what stands there.
    pub fn flag(&self, generation: u32, flags: u64, unless: u64) -> Result<Cursor, Cursor> {
        let mut seen = self.prod();
        loop {
            if seen.generation() != generation || seen.has(unless) {
                return Err(seen);
            }
            let next = seen.with(flags);
            // Release/Acquire as in `publish`.
            match self.prod.0.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    full_fence_after_rmw();
                    return Ok(next);
                }
                Err(other) => seen = Cursor(other),
            }
        }
    }

    /// Sender: takes back what was unread. Returns the offsets [from, to) that are its own again; `None`
    /// when the receiver has had everything or is done with this generation.
    pub fn take_back(&self, generation: u32) -> Option<(u64, u64)> {
        // No publish of ours after this.
        let prod = match self.flag(generation, Cursor::END, 0) {
            Ok(prod) => prod,
            Err(_) => return None,
        };
        let mut seen = self.cons();
        loop {
            if seen.generation() != generation || seen.has(Cursor::TAKEN) {
                return None;
            }
            let next = seen.with(Cursor::TAKEN);
            // AcqRel: pairs with `consume`, whoever comes first wins.
            match self.cons.0.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((seen.offset(), prod.offset())),
                Err(other) => seen = Cursor(other),
            }
        }
    }

    /// Sender, when it has taken back and TCP may not take all of it before the end.
    pub fn mark_unpaid(&self, generation: u32) {
        let seen = self.cons();
        if seen.generation() == generation && seen.has(Cursor::TAKEN) {
            // Nobody else writes it any more. The receiver looks when it has seen TCP's end, which comes after.
            self.cons.0.store(seen.with(Cursor::UNPAID).0, Ordering::Release);
        }
    }

    fn wait_line(&self, side: Side) -> &Line {
        match side {
            Side::Readers => &self.rwait,
            Side::Writers => &self.wwait,
        }
    }

    fn wait_word(&self, side: Side) -> &SharedU64 {
        &self.wait_line(side).0
    }

    /// Sleeper: declares a sleep with a fresh epoch, whatever stands there, keeping the CQs of those who
    /// sleep already, and the mark of those who nap. The ring must be looked at again before sleeping.
    pub fn declare(&self, side: Side, epoch: u32, cqs: u8) -> Wait {
        self.mark(side, epoch, u64::from(cqs))
    }

    /// Sleeper: declares a nap on the word itself: FUTEX_WAIT for as long as this epoch stands there.
    pub fn declare_nap(&self, side: Side, epoch: u32) -> Wait {
        self.mark(side, epoch, Wait::NAP)
    }

    fn mark(&self, side: Side, epoch: u32, mark: u64) -> Wait {
        let word = self.wait_word(side);
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let next = (u64::from(epoch.max(1)) << 32) | mark | (seen & Wait::MARKS);
            // AcqRel and the fence: pairs with `waiting`, one of the two sees the other (wake.pml).
            match word.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    full_fence_after_rmw();
                    return Wait(next);
                }
                Err(other) => seen = other,
            }
        }
    }

    /// Publisher or consumer, after its compare-and-swap: who sleeps on the other side?
    #[inline]
    pub fn waiting(&self, side: Side) -> Wait {
        Wait(self.wait_word(side).load(Ordering::Acquire))
    }

    /// The futex of those who nap: the half of the word that has the epoch.
    #[cfg(not(loom))]
    pub fn futex(&self, side: Side) -> *const u32 {
        // The upper half, which on a little-endian machine comes second.
        let word = core::ptr::from_ref(self.wait_word(side)).cast::<u32>();
        word.wrapping_add(usize::from(cfg!(target_endian = "little")))
    }

    /// Before those who nap are woken: when that is.
    pub fn stamp(&self, side: Side, ticks: u64) {
        // Only counted with, never relied upon.
        self.wait_line(side).1.store(ticks, Ordering::Relaxed);
    }

    /// When they were last woken, unchecked.
    pub fn woken(&self, side: Side) -> u64 {
        self.wait_line(side).1.load(Ordering::Relaxed)
    }

    /// After ringing for exactly this declaration: it is answered. Those who nap are woken after it, else one that
    /// is about to would find its epoch still there, and nobody who wakes it.
    pub fn answered(&self, side: Side, wait: Wait) {
        // A fresher epoch stays: its sleeper may not have been rung.
        let _ = self.wait_word(side).compare_exchange(wait.0, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl Default for Words {
    fn default() -> Self {
        Self::new()
    }
}
