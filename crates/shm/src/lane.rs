//! A lane: one direction of a connection, a ring in the receiver's DMB and the words that rule it.
//!
//! The rules are those of models/lane.pml (data, revocation), models/wake.pml (sleep and wake) and
//! models/handshake.pml (grant and begin); ring *R*, sender *S*:
//!
//! | word | offset | writer | reader | a hostile value can |
//! |---|---|---|---|---|
//! | prod | 0x000 | S publishes, ENDs; R sets STOP, LEAVE | both | end the lane, reset the connection (beyond the ring: refused) |
//! | reach | 0x088 | R | S | be more than R can read: R's own loss |
//! | cons | 0x080 | R consumes; S sets TAKEN | both | end the lane, reset the connection; S never reads behind it but its own ring bytes |
//! | start | 0x100 | S | R | make R wait for TCP bytes that never come: R's TCP count is compared, a mismatch resets |
//! | rwait | 0x180 | R declares; S clears | S | cost S a needless post or futex wake, or R its wake-up |
//! | wwait | 0x200 | S declares; R clears | R | the same the other way round |
//! | woken | 0x188, 0x208 | who wakes a nap | who napped | lie in the other's statistics of wake-ups |
//! | window | 0x008 | S | R | give R other bytes of the DMB than were written: they are S's bytes anyway |
//! | held | 0x010 | S | R | have R overlook bytes of S's for a while: as if S had sent them later |
//! | lent | 0x018 | S | R | see [`loans`], as what follows from 0x280 on |
//! | short | 0x020 | S | R | see [`short`] |
//!
//! A lane begins with a *first ring*, in the page that the words are in: a connection with short messages touches one page in
//! each direction, and no other. When more room is needed, S goes on in the *ring* behind the header, from some offset on, and says so in
//! the window's word ([`Window`]). The two places have no byte in common: whatever is unread in the first ring stays there until it is read, and R
//! reads up to that offset there. S comes back to the first ring only when nothing is unread.
//!
//! The ring *grows in place*: of the DMB's capacity only a window is used, byte `o` of the lane lies at `o` modulo
//! the window. S doubles it only while both windows put all that is unread at the same places, so that R may read it
//! by either; as when the producer stands at an odd multiple of the window.
//!
//! Neither end maps more than it uses: a lane begins with the start of the DMB, R says in `reach` how large a window it can read, and both map
//! more when the window has come to the end of what they have.
//!
//! Each word lies on a pair of cache lines of its own (adjacent-line prefetch). Offsets are from where the words begin: the
//! DMB's start, or a multiple of [`COLOUR`] behind it by its token ([`Dmb::words_at`]). Were it the start of a page for all,
//! the cursors of all lanes would share the few places that a cache has for such addresses: those of more than 128 connections
//! (two DMBs each; 16 ways, 16 sets of 1024 in a second level of 1 MiB) would push each other out. Whatever is read here is
//! one copy, checked by the caller against its private cursor before use.

pub mod loans;
pub mod short;

use loans::Loans;
use short::Short;

use crate::primitive::{Ordering, SharedU64, full_fence_after_rmw};
use crate::region::Region;

/// Bytes before the ring in a DMB: a page with the words and the first ring, and one with the loans' slots, which is there when something is lent.
pub const HEADER: usize = 2 * PAGE;
/// What memory comes in.
pub const PAGE: usize = 4096;
/// Where in its first page a DMB's first ring is, behind the words wherever they begin.
const FIRST_AT: usize = PAGE - FIRST_WINDOW as usize;
/// Fewest bytes of a ring that are mapped.
const SMALLEST: u32 = 4096;
/// In a DMB's address: how often these are doubled.
const ORDER: usize = 15;
const _: () = assert!(ORDER < COLOUR && (SMALLEST as usize) << ORDER >= ring_size(MAX_CLASS));
/// Distance between two places where a DMB's words can begin, bytes: a pair of cache lines.
pub const COLOUR: usize = 128;
/// How many such places there are.
const COLOURS: usize = 8;
/// Generations that one DMB can serve; 0 is "never granted".
pub const MAX_GENERATION: u32 = (1 << 12) - 1;
/// A lane ends itself before its offset gets here: cursors never wrap within reach of a stale view.
pub const MAX_OFFSET: u64 = 1 << 47;
const OFFSET_MASK: u64 = (1 << 48) - 1;

/// Size of the ring of class `n`: 16 KiB << n, bytes (SMC-D's dmbe_size, RFC 7609 and net/smc/smc_ism.h).
pub const fn ring_size(class: u8) -> usize {
    16384 << class
}

/// Largest size class, 16 MiB.
pub const MAX_CLASS: u8 = 10;
/// Window that a lane begins with, bytes: all of the first ring.
pub const FIRST_WINDOW: u32 = 2048;
/// The least behind the header, bytes: two of them stay in a core's first-level cache.
pub const MIN_WINDOW: u32 = 16384;

/// What a sender says of where its bytes are: a window, and while there may be unread bytes in the first ring and others behind it, the
/// offset of the first one that is not there.
///
/// moves (1 bit) | lower bits of that offset (31 bits) | window (32 bits)
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Window(pub u64);

impl Window {
    const MOVES: u64 = 1 << 63;
    const OFFSET: u64 = u32::MAX as u64 >> 1;

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

    /// Bytes from `offset` up to where the first ring's end; 0 when `offset` is behind that. At most [`FIRST_WINDOW`] of a sender that keeps to the rules.
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
    /// prod: the receiver wants no more; it drains the ring and goes on with TCP.
    pub const STOP: u64 = 2;
    /// prod, with STOP: the receiver will not drain; the sender takes back and resends.
    pub const LEAVE: u64 = 4;
    /// cons: the sender has taken back what was unread.
    pub const TAKEN: u64 = 1;

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
    /// The same with `flags` set.
    pub const fn with(self, flags: u64) -> Self {
        Self(self.0 | flags)
    }
    /// The same, `n` bytes on.
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

    /// The same time for the bytes from `offset` on.
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

    /// The same for who naps on the word itself: FUTEX_WAIT for as long as this epoch stands there.
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

/// A mapped DMB: its words and its ring, of which a window is in use.
#[derive(Copy, Clone)]
pub struct Dmb {
    words: &'static Words,
    ring: *mut u8,
    capacity: u32,
    mapped: u32,
    window: u32,
    /// Bytes before this offset are in the first ring, whatever the window.
    until: u64,
}

// SAFETY: words are atomics; ring bytes are copied raw, as cursors allow.
unsafe impl Send for Dmb {}
// SAFETY: as above.
unsafe impl Sync for Dmb {}

impl Dmb {
    /// Bytes of a DMB of size class `class`.
    pub const fn len(class: u8) -> usize {
        HEADER + ring_size(class)
    }

    /// Byte of a DMB at which its words begin: both ends know its token.
    pub const fn words_at(token: u64) -> usize {
        token as usize % COLOURS * COLOUR
    }

    /// The DMB named `token`, all of which is in `region`.
    pub fn new(region: Region, token: u64) -> Option<Self> {
        Self::part(region, token, u32::try_from(region.len().checked_sub(HEADER)?).ok()?)
    }

    /// The DMB named `token` with a ring of `capacity` bytes, of which the first ones, a power of two, are in `region`.
    pub fn part(region: Region, token: u64, capacity: u32) -> Option<Self> {
        let mapped = u32::try_from(region.len().checked_sub(HEADER)?).ok()?;
        let fits =
            mapped.is_power_of_two() && (SMALLEST..=capacity).contains(&mapped) && capacity.is_power_of_two();
        let words = region.base() as usize + Self::words_at(token);
        // SAFETY: the region is page-aligned and holds a header; mappings of DMBs outlive their users
        // (core retires them only when no thread looks any more).
        fits.then(|| unsafe { Self::at(Self::address_of(words, mapped), capacity) })
    }

    /// The [address](Self::address) of a DMB whose words are mapped at `words`, and so many bytes of its ring.
    pub const fn address_of(words: usize, mapped: u32) -> usize {
        words | (mapped / SMALLEST).trailing_zeros() as usize
    }

    /// Bytes of the ring that are mapped at `address`.
    #[inline]
    pub const fn mapped_at(address: usize) -> u32 {
        SMALLEST << (address & ORDER)
    }

    /// Length of the mapping that `address` is in.
    pub const fn len_at(address: usize) -> usize {
        HEADER + Self::mapped_at(address) as usize
    }

    /// The address of the same DMB in another mapping, which starts at `base` and has so many bytes of its ring.
    pub const fn moved(address: usize, base: usize, mapped: u32) -> usize {
        let offset = (address - Self::start_of(address)) & !ORDER;
        Self::address_of(base + offset, mapped)
    }

    /// The DMB at `address`, with a ring of `capacity` bytes. All that is mapped is in use.
    ///
    /// # Safety
    /// `address` is the [address](Self::address) of a DMB made from a region accepted by [`Dmb::part`] with this capacity, and the region
    /// stays mapped while the value is used.
    #[inline]
    pub unsafe fn at(address: usize, capacity: u32) -> Self {
        let mapped = Self::mapped_at(address);
        Self {
            // SAFETY: the caller's word for it.
            words: unsafe { &*((address & !ORDER) as *const Words) },
            ring: (Self::start_of(address) + HEADER) as *mut u8,
            capacity,
            mapped,
            window: mapped,
            until: 0,
        }
    }

    /// Owner, with nobody who uses it: makes the header of the memory at `region` what it was at first, whoever wrote there.
    /// The ring keeps what is in it, which the next sender is free to say again: its process wrote it.
    #[cfg(not(loom))]
    pub fn reset(region: Region) {
        // The slots of loans say nothing where none is counted.
        for at in (0..PAGE).step_by(size_of::<SharedU64>()) {
            // SAFETY: an atomic, valid for any bit pattern; the caller's mapping stays for as long as the loop.
            if let Some(word) = unsafe { region.at::<SharedU64>(at) } {
                // Relaxed: the peer learns of the DMB by the broker, after this.
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Where its words are, and how much of its ring is mapped there, to be found again by [`Self::at`]: in one word, so that who reads it
    /// without a lock finds what belongs together.
    pub fn address(&self) -> usize {
        Self::address_of(core::ptr::from_ref(self.words) as usize, self.mapped)
    }

    /// Start of the mapping that `address` is in.
    #[inline]
    pub const fn start_of(address: usize) -> usize {
        address & !(PAGE - 1)
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &'static Words {
        self.words
    }

    /// The same DMB, of whose ring `window` bytes are in use; `None` where that is no window of what is mapped.
    #[inline]
    pub fn with_window(self, window: u64) -> Option<Self> {
        let window = u32::try_from(window).ok()?;
        (window.is_power_of_two() && window <= self.mapped).then_some(Self { window, until: 0, ..self })
    }

    /// Sender: the same DMB, of whose ring `window` bytes are in use, a power of two, and before offset `until` the first ring. `None` where less is
    /// mapped.
    #[inline]
    pub fn with_own_window(self, window: u32, until: u64) -> Option<Self> {
        // One comparison for both: a lane that is closed has a window of 0.
        (window.wrapping_sub(1) < self.mapped).then_some(Self { window, until, ..self })
    }

    /// Receiver: the same DMB as the sender uses it now; `None` where it says what cannot be. To be asked after
    /// `prod`: then all that prod showed can be read so. `None` also while the sender moves.
    #[inline]
    pub fn as_sent(self) -> Option<Self> {
        self.with_window(self.words.window())
    }

    /// The same also while the sender moves, for who has read up to `cursor`.
    pub fn as_sent_behind(self, cursor: u64) -> Option<Self> {
        let window = Window(self.words.window());
        if !window.moves() {
            return self.with_window(window.0);
        }
        let ahead = window.ahead(cursor);
        let is_lawful = ahead <= u64::from(FIRST_WINDOW) && window.size() >= u64::from(MIN_WINDOW);
        let until = if ahead == 0 { 0 } else { cursor + ahead };
        self.with_window(window.size()).filter(|_| is_lawful).map(|dmb| Self { until, ..dmb })
    }

    /// Sender that has published up to `prod` and inherits the words of one that died: the same DMB as that one used it.
    pub fn as_left(self, prod: u64) -> Option<Self> {
        let window = Window(self.words.window());
        if !window.moves() {
            return self.with_window(window.0);
        }
        let behind = prod.wrapping_sub(window.0 >> 32) & Window::OFFSET;
        let is_lawful = behind <= window.size() && window.size() >= u64::from(MIN_WINDOW);
        let dmb = self.with_window(window.size()).filter(|_| is_lawful);
        dmb.map(|dmb| Self { until: prod.saturating_sub(behind), ..dmb })
    }

    /// Offset up to which unread bytes are in the first ring, while the window is behind the header.
    #[inline]
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Whether the first ring is all that is in use.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.window == FIRST_WINDOW
    }

    /// How many bytes can be unread for who has read up to `cursor`.
    #[inline]
    pub fn most(&self, cursor: u64) -> u64 {
        self.window() + self.until.saturating_sub(cursor)
    }

    /// Sender: how many bytes fit behind `offset` when all before `cons` was read; `None` where that cannot be.
    #[inline]
    pub fn room(&self, cons: u64, offset: u64) -> Option<u64> {
        self.window().checked_sub(offset.wrapping_sub(cons.max(self.until)))
    }

    /// Sender: offset of the first byte that may be unread.
    pub fn oldest(&self, offset: u64) -> u64 {
        let least = if self.until == 0 { offset } else { offset.min(self.until) };
        let window = if self.until == 0 { self.window() } else { FIRST_WINDOW.into() };
        least.saturating_sub(window)
    }

    /// Where the loans' slots are, in a page that is there only when something was lent.
    #[cfg(not(loom))]
    pub fn slots(&self) -> *const u8 {
        core::ptr::from_ref(self.words).cast::<u8>().wrapping_add(Loans::SLOTS_AT)
    }

    /// Bytes that the ring can grow to.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Bytes of it that are mapped here.
    #[inline]
    pub fn mapped(&self) -> u32 {
        self.mapped
    }

    /// Whether all that is mapped is in use, and there could be more.
    #[inline]
    pub fn is_at_its_end(&self) -> bool {
        self.window == self.mapped && self.mapped < self.capacity
    }

    /// Bytes of the ring that are in use.
    #[inline]
    pub fn window(&self) -> u64 {
        u64::from(self.window)
    }

    /// Address of the byte at `offset`, and how many follow it there: not more than up to the window's end.
    #[inline]
    pub fn span(&self, offset: u64) -> (*mut u8, usize) {
        if offset < self.until {
            return self.first_span(offset);
        }
        let at = offset as usize & (self.window as usize - 1);
        let back = if self.window == FIRST_WINDOW { HEADER - FIRST_AT } else { 0 };
        // SAFETY: masked, so inside the window, which is inside the ring, or the first ring, so far before it.
        (unsafe { self.ring.sub(back).add(at) }, self.window as usize - at)
    }

    #[cold]
    fn first_span(&self, offset: u64) -> (*mut u8, usize) {
        let at = offset as usize & (FIRST_WINDOW as usize - 1);
        let left = usize::try_from(self.until - offset).unwrap_or(usize::MAX);
        // SAFETY: masked, so inside the first ring, which is so far before the ring.
        (unsafe { self.ring.sub(HEADER - FIRST_AT).add(at) }, left.min(FIRST_WINDOW as usize - at))
    }

    /// Sender: what it has just put into the ring at `offset`, as far as a short message goes; `None` next to the window's end.
    #[inline]
    pub fn last_put(&self, offset: u64) -> Option<short::Bytes> {
        let (at, room) = self.span(offset);
        // SAFETY: within the window. The receiver may write there: it would only change what it is told.
        (room >= short::MOST).then(|| unsafe { at.cast::<short::Bytes>().read_unaligned() })
    }

    /// The same DMB with twice the window; `None` when it fills the ring, or when what is unread, from `cons` up to
    /// `prod`, would lie elsewhere.
    pub fn doubled(self, cons: u64, prod: u64) -> Option<Self> {
        let more = self.window.checked_mul(2).filter(|_| self.may_double(cons, prod))?;
        self.with_own_window(more, self.until)
    }

    /// Sender that has published up to `prod`, what is unread being in the first ring from `cons` on: the same with the least window behind
    /// the header; `None` where that is not mapped.
    pub fn moved_on(self, cons: u64, prod: u64) -> Option<Self> {
        self.with_own_window(MIN_WINDOW, if cons == prod { 0 } else { prod })
    }

    /// The same when all that is in the first ring was read.
    pub fn settled(self) -> Self {
        Self { until: 0, ..self }
    }

    /// What the sender says of it.
    pub fn said(&self) -> Window {
        if self.until == 0 { Window(self.window()) } else { Window::moving(self.window(), self.until) }
    }

    /// Whether all that is unread would stay where it is in twice the window.
    #[inline]
    pub fn may_double(&self, cons: u64, prod: u64) -> bool {
        let window = self.window();
        let cons = cons.max(self.until);
        cons == prod || (cons & window == 0 && (prod - 1) / window == cons / window)
    }

    /// Offset of the next point, at `offset` or behind, at which the window may be doubled whatever is unread.
    pub fn growth_point(&self, offset: u64) -> u64 {
        offset.next_multiple_of(self.window()) | self.window()
    }

    /// Sender, with nothing unread: gives the memory of the ring behind the first `window` bytes back to the system; all of it where that is the first
    /// ring's.
    pub fn release_behind(&self, window: u64) {
        let (at, end) =
            (if window <= FIRST_WINDOW.into() { 0 } else { window as usize }, self.mapped as usize);
        if at < end {
            // SAFETY: within the mapping; nothing there is unread, and only the sender writes, which is the caller.
            // Failure (a seal, a filter) leaves the memory where it is.
            unsafe {
                shunpike_arch::syscall(
                    libc::SYS_madvise,
                    self.ring.add(at).expose_provenance(),
                    end - at,
                    libc::MADV_REMOVE as usize,
                    0,
                    0,
                    0,
                )
            };
        }
    }

    /// Copies `len` bytes at `from` into the ring at `offset`; the caller owns that stretch of the ring.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes; `len` is at most the window.
    #[inline]
    pub unsafe fn fill(&self, offset: u64, from: *const u8, len: usize) {
        let mut done = 0;
        while done < len {
            let (to, room) = self.span(offset + done as u64);
            let n = room.min(len - done);
            // SAFETY: `n` bytes fit before the window's end; all of them are within `len`.
            unsafe { core::ptr::copy_nonoverlapping(from.add(done), to, n) };
            done += n;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
