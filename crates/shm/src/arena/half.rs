//! The two directions of a connection end, and what a lock lets its holder do.
//!
//! | words | are read by | are written by |
//! |---|---|---|
//! | [`Guarded`] | everybody | who holds the lock of their direction |
//! | [`RxOwn`], [`TxOwn`] | who holds the lock | the same |
//! | all others | everybody | everybody, as each of them says |
//!
//! A lock is taken in a [`Section`], which its guard keeps. [`RxHeld`] and [`TxHeld`], which only a guard gives, are the way to what it
//! protects.

use core::ops::Deref;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{BUCKETS, bucket, mode};
use crate::lock::{Guard, Locked, RobustLock, Section};

/// A word that everybody may read, and only who holds the lock of its direction may write.
#[repr(transparent)]
pub struct Guarded<A>(A);

macro_rules! guarded {
    ($($atomic:ty: $word:ty),*) => {$(
        impl Guarded<$atomic> {
            /// What stands there.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $word {
                self.0.load(order)
            }

            /// Writes it.
            #[inline(always)]
            pub fn store(&self, held: impl Held, value: $word, order: Ordering) {
                held.assert_holds(self);
                self.0.store(value, order);
            }

            /// Writes it, and says what was there.
            #[inline(always)]
            pub fn swap(&self, held: impl Held, value: $word, order: Ordering) -> $word {
                held.assert_holds(self);
                self.0.swap(value, order)
            }
        }
    )*};
}

guarded!(AtomicU16: u16, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize);

/// Which stores copies into a ring are made with, and the trial of others (core's `stores`).
#[repr(C)]
pub struct StoresTrial {
    /// 1: past the caches.
    pub past: AtomicU32,
    /// In a trial of this way, the pace of the other one before it, ticks per 64 KiB; else 0.
    pub other: AtomicU32,
    /// Samples until it is over.
    pub left: AtomicU32,
    /// Offset at which the next one begins.
    pub next: AtomicU64,
    /// Bytes from the last trial to that one.
    pub wait: AtomicU64,
}

/// Whether buffers are lent or copied (core's `zerocopy::choice`).
#[repr(C)]
pub struct LendingChoice {
    /// 1: lent.
    pub lends: AtomicU32,
    /// Offset from which on that seems wrong; 0 it does not.
    pub doubted: AtomicU64,
}

/// How long copies take, in ticks per 64 KiB; 0 unknown (core's `copy_rate`).
#[repr(C)]
pub struct Paces {
    /// Into the ring, or out of it.
    pub ring: AtomicU32,
    /// From the sender's memory; by who receives.
    pub lent: AtomicU32,
}

/// What both directions of a connection end have.
// By cache lines: where the lane is; what a call on TCP needs, too; what is counted, and the first words of the direction's own.
#[repr(C)]
pub struct Half {
    /// Token of the DMB.
    pub token: Guarded<AtomicU64>,
    /// What `bytes` and `tcp_bytes` together lack of the stream's own count (wrapping), see [`Half::position`].
    skew: AtomicU64,
    /// Ticks at which the TCP socket was last asked how it is; written by whoever asks.
    pub checked: AtomicU64,
    /// Last sleep epoch used; changed without the lock.
    pub epoch: AtomicU32,
    /// Forks of the process that mapped the DMB, before it did.
    pub forks: Guarded<AtomicU32>,
    /// Address of the mapped DMB (own for receive, the peer's for send); 0 none.
    pub dmb: Guarded<AtomicUsize>,
    /// Private copy of our own cursor: consumed for receive, produced for send (offset).
    pub cursor: Guarded<AtomicU64>,
    /// Furthest value seen of the other's cursor (offset), already checked: it may not go back behind it.
    pub other: Guarded<AtomicU64>,
    /// Generation of the lane.
    pub generation: Guarded<AtomicU32>,
    /// Capacity of the DMB's ring, bytes.
    pub ring: Guarded<AtomicU32>,

    /// Guards the direction; taken before nothing else (order: receive half, then send half).
    lock: RobustLock,
    /// One of [`mode`].
    pub mode: Guarded<AtomicU16>,
    /// Calls that moved bytes by TCP, about; it stays at the highest number. Counted within [`Half::enter`].
    pub tcp_calls: AtomicU16,
    /// Threads inside a kernel call on this direction while it is PLAIN (any process of the tree).
    pub inflight: AtomicU32,
    /// Bytes of the TCP stream in this direction that went through the hooks: counted within [`Half::enter`], else under the lock.
    pub tcp_bytes: AtomicU64,

    /// Bytes moved on lanes of this direction.
    pub bytes: Guarded<AtomicU64>,
    /// Calls that moved them.
    pub calls: Guarded<AtomicU64>,
    /// Calls by size.
    pub sizes: [Guarded<AtomicU32>; BUCKETS],
}

/// The receiving direction of a connection end.
#[repr(C, align(64))]
pub struct RxHalf {
    half: Half,
    own: RxOwn,
    /// Process of the sender, where its memory may be read; else 0. Written when a match is taken.
    pub lender: AtomicU32,
    /// Bytes to read by TCP before the debt is paid, as TCP byte position.
    pub debt_end: Guarded<AtomicU64>,
    /// Ticks at which the sender was last asked for what cannot be read where it is.
    pub asked_at: Guarded<AtomicU64>,
    /// How much we had sent, by lane and TCP, when a reader of a bulk stream last looked; written by whoever waits.
    pub answered: AtomicU64,
    /// Where in the lane it found that to be more than before.
    pub answered_at: AtomicU64,
}

/// What only the holder of the receive lock looks at.
#[repr(C)]
pub struct RxOwn {
    /// The sender's count of loans as far as they were consumed.
    pub loans: AtomicU64,
    /// Bytes before this offset were peeked at; they are in the private copy.
    pub peeked: AtomicU64,
    /// Address of that copy, a buffer with the DMB's layout; 0 none.
    pub copy: AtomicUsize,
    /// The process that made the copy.
    pub copier: AtomicU32,
    /// Link group of the lane, as the broker numbers it; 0 none.
    pub group: AtomicU32,
    /// TCP byte at which the lane begins.
    pub start: AtomicU64,
    /// Of a lane with loans: how far the sender had come when it was last found to have gone on, and the offset from which on it is told of
    /// what was consumed.
    pub tell: [AtomicU64; 2],
    /// Ticks at which more of the ring was last asked to be mapped.
    pub widened_at: AtomicU64,
    /// How long copies take.
    pub paces: Paces,
}

/// The sending direction of a connection end.
#[repr(C, align(64))]
pub struct TxHalf {
    half: Half,
    /// What is held back, our own copy of the lane's word.
    pub held: Guarded<AtomicU64>,
    /// Bytes of the ring in use, our own copy; with [`MOVES`](super::MOVES) while `moved` counts.
    pub window: Guarded<AtomicU32>,
    /// Where the process named by the block's `pid` keeps what it has lent, plus one; 0 nowhere. Taken under the lock, let go with the connection.
    pub ledger: AtomicU32,
    /// Ticks at which the ring was first seen full with an unmoving reader; 0 not full.
    pub full_since: Guarded<AtomicU64>,
    own: TxOwn,
    /// Offset up to which unread bytes are in the first ring.
    pub moved: Guarded<AtomicU64>,
    /// Bytes unread, by TCP and in the ring, when the ring was first seen full with some of TCP's in front of it; 0 it was not.
    pub full_with: Guarded<AtomicU64>,
    /// Bytes unread when a writer last looked.
    pub full_left: Guarded<AtomicU64>,
    /// Offset at which the oldest call with a notice still to come is consumed; 0 none.
    pub due: Guarded<AtomicU64>,
    /// Ticks at which bytes were first seen unread by a reader that had declared no wait; 0 none are. Also written without the lock,
    pub unheard_since: AtomicU64,
    /// How far the reader had read then. Also written without the lock.
    pub unheard_at: AtomicU64,
    /// The program's own keepalive settings while lanes need others (core's `keepalive`); 0 they are in force. Written by whoever changes them.
    pub keepalive: AtomicU64,
}

/// What only the holder of the send lock looks at.
#[repr(C)]
pub struct TxOwn {
    /// Address of the copy mode's send buffer, with the DMB's layout; 0 none.
    pub stage: AtomicUsize,
    /// TCP byte at which the lane begins.
    pub start: AtomicU64,
    /// Writes that speak for a larger window, since it last changed; in the first ring those that pass its end in short order.
    pub crowded: AtomicU32,
    /// Whether bytes are lent or copied, from a lane's begin on.
    pub choice: LendingChoice,
    /// Ticks of the last write that spoke for no smaller window.
    pub crowded_at: AtomicU64,
    /// How copies are made, from a lane's begin on.
    pub stores: StoresTrial,
    /// How long copies take.
    pub paces: Paces,
}

/// That the calling thread holds a direction's lock.
pub trait Held: Copy {
    /// The direction.
    fn half(&self) -> &Half;

    /// In a debug build: that the word is of this direction.
    #[inline(always)]
    fn assert_holds<W>(&self, word: &W) {
        let offset = core::ptr::from_ref(word).addr().wrapping_sub(core::ptr::from_ref(self.half()).addr());
        debug_assert!(offset < size_of::<RxHalf>().min(size_of::<TxHalf>()), "a word of another direction");
    }

    /// Counts a call that moved `n` bytes on the lane.
    #[inline]
    fn count(&self, n: usize) {
        // Nobody else writes, so plain read-modify-write through relaxed atomics loses nothing.
        let (held, half) = (*self, self.half());
        half.bytes.store(held, half.bytes.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
        half.calls.store(held, half.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if let Some(size) = half.sizes.get(bucket(n)) {
            size.store(held, size.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// `n` bytes that were counted on the lane are counted on TCP as well, as they were taken back.
    fn recount(&self, n: u64) {
        let skew = &self.half().skew;
        skew.store(skew.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }
}

/// A direction of a connection end.
pub trait Direction: Deref<Target = Half> {
    /// It is the receiving one.
    const RECEIVES: bool;
}

macro_rules! direction {
    ($half:ident, $own:ident, $guard:ident, $held:ident, $receives:expr) => {
        impl Deref for $half {
            type Target = Half;

            #[inline(always)]
            fn deref(&self) -> &Half {
                &self.half
            }
        }

        // SAFETY: its own.
        unsafe impl Locked for $half {
            #[inline(always)]
            fn its_lock(&self) -> &RobustLock {
                &self.half.lock
            }
        }

        impl Direction for $half {
            const RECEIVES: bool = $receives;
        }

        impl $half {
            /// Takes its lock; see [`RobustLock::lock`].
            #[inline(always)]
            pub fn lock<S: Section>(&self, section: S) -> $guard<'_, S> {
                Guard::lock(self, section)
            }

            /// Takes its lock if nobody holds it.
            pub fn try_lock<S: Section>(&self, section: S) -> Option<$guard<'_, S>> {
                Guard::try_lock(self, section)
            }
        }

        /// Its lock is held, and the thread within a critical section, as long as this lives.
        pub type $guard<'a, S> = Guard<'a, S, $half>;

        impl<S: Section> $guard<'_, S> {
            /// What the lock protects.
            #[inline(always)]
            pub fn held(&self) -> $held<'_> {
                $held(self.of())
            }
        }

        /// The direction, of who holds its lock.
        #[derive(Copy, Clone)]
        pub struct $held<'a>(&'a $half);

        impl<'a> $held<'a> {
            /// What only the lock's holder looks at.
            #[inline(always)]
            pub fn own(self) -> &'a $own {
                &self.0.own
            }
        }

        impl Deref for $held<'_> {
            type Target = $half;

            #[inline(always)]
            fn deref(&self) -> &$half {
                self.0
            }
        }

        impl Held for $held<'_> {
            #[inline(always)]
            fn half(&self) -> &Half {
                &self.0.half
            }
        }
    };
}

direction!(RxHalf, RxOwn, RxGuard, RxHeld, true);
direction!(TxHalf, TxOwn, TxGuard, TxHeld, false);

fn clear<const N: usize>(words: [&AtomicU64; N]) {
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

fn clear_short<const N: usize>(words: [&AtomicU32; N]) {
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

impl Half {
    /// For a new connection, which nobody else knows yet; `first`: of this block.
    fn reset(&self, first: bool) {
        // A thread that was late may still stand at the lock of an earlier use: made once, never anew.
        if first {
            self.lock.init();
        }
        clear_short([&self.inflight, &self.ring.0, &self.generation.0, &self.epoch]);
        clear([
            &self.cursor.0,
            &self.other.0,
            &self.tcp_bytes,
            &self.token.0,
            &self.bytes.0,
            &self.calls.0,
            &self.skew,
        ]);
        self.sizes.iter().for_each(|size| size.0.store(0, Ordering::Relaxed));
        self.mode.0.store(mode::PLAIN, Ordering::Relaxed);
        self.tcp_calls.store(0, Ordering::Relaxed);
        self.dmb.0.store(0, Ordering::Relaxed);
    }

    /// Bytes of this direction of the stream so far, whichever way they went: for a tap.
    pub fn position(&self) -> u64 {
        [
            self.tcp_bytes.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
            self.skew.load(Ordering::Relaxed),
        ]
        .into_iter()
        .fold(0u64, u64::wrapping_add)
    }

    /// A new block, which nobody else knows yet, goes on with the connection of another one.
    pub fn go_on_from(&self, old: &Half) {
        let bytes = old.tcp_bytes.load(Ordering::Relaxed);
        self.tcp_bytes.store(bytes, Ordering::Relaxed);
        self.tcp_calls.store(old.tcp_calls.load(Ordering::Relaxed), Ordering::Relaxed);
        self.skew.store(old.position().wrapping_sub(bytes), Ordering::Relaxed);
    }

    /// The connection is reset: the direction has no lane any more. By who holds the lock of either direction: both end at once, and
    /// whoever holds the other one finds it so.
    pub fn break_off(&self, _held: impl Held) {
        self.mode.0.store(mode::PLAIN, Ordering::Release);
    }

    /// Before a kernel call on this direction while it is PLAIN: no lane begins until [`Half::leave`]. False when
    /// one has begun, or is just being begun and must not find us here.
    #[inline]
    #[must_use]
    pub fn enter(&self) -> bool {
        // SeqCst, as in who sets the mode and looks at `inflight` then: one of the two sees the other.
        self.inflight.fetch_add(1, Ordering::SeqCst);
        let is_plain = self.mode.load(Ordering::SeqCst) == mode::PLAIN;
        if !is_plain {
            self.leave();
        }
        is_plain
    }

    /// Inside: one call has moved `n` bytes. Returns how many have moved any, about: threads that count at the same time may lose some.
    #[inline]
    pub fn count_tcp(&self, n: usize) -> u16 {
        self.tcp_bytes.fetch_add(n as u64, Ordering::Relaxed);
        let calls = self.tcp_calls.load(Ordering::Relaxed).saturating_add(1);
        self.tcp_calls.store(calls, Ordering::Relaxed);
        calls
    }

    /// After it, with its bytes counted.
    #[inline]
    pub fn leave(&self) {
        self.inflight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RxHalf {
    /// As [`Half::reset`].
    pub(super) fn reset(&self, first: bool) {
        self.half.reset(first);
        let own = &self.own;
        clear_short([&self.lender, &own.copier, &own.paces.ring, &own.paces.lent]);
        clear([&self.debt_end.0, &self.asked_at.0, &self.answered, &self.answered_at]);
        clear([&own.loans, &own.peeked, &own.start, &own.tell[0], &own.tell[1]]);
        own.copy.store(0, Ordering::Relaxed);
    }
}

impl TxHalf {
    /// As [`Half::reset`].
    pub(super) fn reset(&self, first: bool) {
        self.half.reset(first);
        let own = &self.own;
        clear_short([&self.ledger, &own.paces.ring]);
        clear([&self.held.0, &self.full_since.0, &self.full_with.0, &self.due.0, &own.start]);
        own.stage.store(0, Ordering::Relaxed);
    }
}

// What a call looks at lies in few cache lines.
const _: () = {
    use core::mem::offset_of;
    // A mutex has 40 bytes on x86-64, and a word more on AArch64.
    let more = size_of::<libc::pthread_mutex_t>() - 40;
    assert!(
        offset_of!(Half, dmb) == 32 && offset_of!(Half, lock) == 64 && offset_of!(Half, bytes) == 128 + more
    );
    assert!(size_of::<Half>() == 176 + more && offset_of!(RxHalf, own) == 176 + more);
    assert!(
        offset_of!(TxHalf, held) == 176 + more
            && offset_of!(RxOwn, peeked) == 8
            && offset_of!(TxHalf, full_since) == 192 + more
            && offset_of!(TxHalf, own) == 200 + more
    );
};
