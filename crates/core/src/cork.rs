//! TCP_CORK and MSG_MORE on a lane: bytes that their sender holds back, as tcp(7) says: until it sends without, takes the
//! cork away, sets TCP_NODELAY, ends its stream or has held them for 200 ms.
//!
//! Nobody of ours could wake up then, so they are published like any others, with a word beside them that says from
//! where on they are held, and since when. The reader overlooks them, and does not sleep past that time. What
//! ends a lane (END, STOP, a take-back, the sender's death) knows nothing of this: they are bytes of the ring.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{Block, RxHalf, TxHalf, TxHeld, mode};
use shunpike_shm::lane::{Cursor, Dmb, Held, MIN_WINDOW, Side, Words};

use crate::table::{self, Conn};
use crate::tls::critical;
use crate::{clock, process, state, sys, wait};

/// So long TCP holds an incomplete segment back, microseconds: its least retransmission time (tcp(7), TCP_CORK).
const MOST_US: u64 = 200_000;
/// A segment on loopback, bytes: what fills it goes out.
const SEGMENT: u64 = 65_483;
/// SIOCOUTQNSD (include/uapi/linux/sockios.h): bytes not sent yet.
pub const SIOCOUTQNSD: libc::c_ulong = 0x894B;

/// In place of a half's own copy of what is held, where nothing is, but the program has set TCP_CORK: so a send looks at one
/// word. It has not the bit that marks what is held.
const CORKED: u64 = 1;

/// What is held, as we know it.
fn own(half: &TxHalf) -> Held {
    Held(Some(half.held.load(Ordering::Relaxed)).filter(|&word| word != CORKED).unwrap_or(0))
}

/// Before `n` bytes at `offset` are published: says whether the reader need not be told of them, because it was told of
/// the time until which it overlooks what is held; but for [`may_be_over`]. Under the send lock.
#[inline]
pub fn before_publish(block: &Block, half: TxHeld<'_>, dmb: &Dmb, offset: u64, n: usize, flags: i32) -> bool {
    let more = flags & libc::MSG_MORE != 0;
    (more || half.held.load(Ordering::Relaxed) != 0)
        && decide(block, half, dmb, offset..offset + n as u64, more)
}

#[cold]
fn decide(block: &Block, half: TxHeld<'_>, dmb: &Dmb, bytes: core::ops::Range<u64>, more: bool) -> bool {
    if !more && block.corked.load(Ordering::Relaxed) == 0 {
        forget(half, dmb.words());
        return false;
    }
    let held = own(&half);
    let now = clock::ticks();
    // Something is, and its reader waits for the time: what it has read was shown.
    let is_unread = held.before(bytes.start) > 0 && dmb.words().cons().offset() < bytes.start;
    let goes_on = is_unread && held.left(now, clock::from_us(MOST_US)) > 0;
    let first = if goes_on { bytes.end - held.before(bytes.end) } else { bytes.start };
    // A ring that nobody empties must not be full of them.
    let segment = SEGMENT.min(dmb.window().max(MIN_WINDOW.into()) / 2);
    let complete = (bytes.end - first) / segment * segment;
    let next = if goes_on && complete == 0 { held.moved(first) } else { Held::new(first + complete, now) };
    half.held.store(half, next.0, Ordering::Relaxed);
    dmb.words().hold(next);
    if !goes_on && let Some(header) = process::header() {
        header.corked.fetch_add(1, Ordering::Relaxed);
    }
    goes_on && complete == 0
}

/// After such bytes were published: whether the reader may have seen that time end before, and sleeps without one.
#[cold]
pub fn may_be_over(half: &TxHalf) -> bool {
    own(half).left(clock::ticks(), clock::from_us(MOST_US)) <= 2 * Held::TICKS * Held::SKEW as u64
}

/// Nothing is held any more. Under the send lock.
pub fn forget(half: TxHeld<'_>, words: &Words) {
    let held = own(&half);
    half.held.store(half, 0, Ordering::Relaxed);
    words.show(held);
}

/// The cork is there or not; with nothing held. Under the send lock.
fn mark(block: &Block, half: TxHeld<'_>) {
    let word = if block.corked.load(Ordering::Relaxed) != 0 { CORKED } else { 0 };
    half.held.store(half, word, Ordering::Relaxed);
}

/// What is held goes out.
pub fn flush(conn: Conn) {
    let half = &conn.block.tx;
    if half.held.load(Ordering::Relaxed) == 0 {
        return;
    }
    let critical = critical();
    let guard = half.lock(&critical);
    let Some(dmb) = state::tx_dmb(half).filter(|_| half.mode.load(Ordering::Relaxed) == mode::LANE) else {
        return;
    };
    forget(guard.held(), dmb.words());
    mark(conn.block, guard.held());
    drop(guard);
    wait::notify(conn.block, dmb.words(), Side::Readers);
}

/// Whether something is held back, or TCP_CORK is set, as far as one word tells without the lock.
#[inline]
pub fn holds(fd: i32) -> bool {
    table::conn(fd).is_some_and(|conn| conn.block.tx.held.load(Ordering::Relaxed) != 0)
}

/// setsockopt(2) has set TCP_CORK or TCP_NODELAY to `on`.
pub fn option_set(fd: i32, name: i32, on: bool) {
    let Some(conn) = table::conn(fd) else { return };
    let cork = name == libc::TCP_CORK;
    if cork {
        conn.block.corked.store(u8::from(on), Ordering::Relaxed);
        if on {
            let guard = conn.block.tx.lock(critical());
            if own(&guard.held()) == Held::NOTHING {
                mark(conn.block, guard.held());
            }
        }
    }
    // TCP_NODELAY pushes what is held, also where the cork stays for what follows.
    if on != cork {
        flush(conn);
    }
}

/// A lane is about to begin: what TCP holds back comes before its bytes, and what the socket's options are holds for it.
pub fn lane_begins(conn: Conn, fd: i32, half: TxHeld<'_>) {
    conn.block.corked.store(u8::from(is_on(fd, libc::TCP_CORK)), Ordering::Relaxed);
    mark(conn.block, half);
    push(fd);
}

/// What TCP holds back goes out, by TCP_CORK or by Nagle's algorithm. The options stay as they are.
pub fn push(fd: i32) {
    if sys::queue(fd, SIOCOUTQNSD).is_ok_and(|bytes| bytes > 0) {
        let before = i32::from(is_on(fd, libc::TCP_NODELAY));
        for value in [1, before] {
            let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &value);
        }
    }
}

fn is_on(fd: i32, name: i32) -> bool {
    sys::option::<i32>(fd, libc::IPPROTO_TCP, name).is_ok_and(|value| value != 0)
}

/// SIOCOUTQNSD: bytes that are held now.
pub fn unsent_bytes(conn: Conn) -> usize {
    let half = &conn.block.tx;
    let _guard = half.lock(critical());
    let held = own(half);
    if held.left(clock::ticks(), clock::from_us(MOST_US)) == 0 {
        return 0;
    }
    held.before(half.cursor.load(Ordering::Relaxed)) as usize
}

/// Of what was published up to `prod`, how much the reader may see. Nothing that it has seen is held any more. Without
/// locks, or under the receive lock.
#[inline]
pub fn shown(half: &RxHalf, words: &Words, prod: Cursor) -> u64 {
    let held = words.held();
    if held == Held::NOTHING { prod.offset() } else { overlooked(half, held, prod) }
}

/// Whether all between the reader's cursor `at` and `prod` is overlooked. Without locks, or under the receive lock.
#[inline]
pub fn hides(half: &RxHalf, words: &Words, prod: Cursor, at: Cursor) -> bool {
    let held = words.held();
    let is_plain = || prod == Cursor::new(at.generation(), prod.offset());
    held != Held::NOTHING && is_plain() && overlooked(half, held, prod) == at.offset()
}

#[cold]
fn overlooked(half: &RxHalf, held: Held, prod: Cursor) -> u64 {
    let over =
        prod.has(Cursor::END | Cursor::STOP) || held.left(clock::ticks(), clock::from_us(MOST_US)) == 0;
    let hidden = if over { 0 } else { held.before(prod.offset()) };
    let seen = half.other.load(Ordering::Relaxed).min(prod.offset());
    prod.offset().saturating_sub(hidden).max(seen)
}

/// Nanoseconds after which more can be seen though nobody says so; `None` where all that is published was shown. Of a reader about to
/// sleep, which has declared that: within a critical section, and before its last look.
///
/// A sender that began to hold before the declaration rings nobody, and no ring follows the end of that time. After the look, another
/// reader could have been shown what it overlooked, or the time be over (models/cork.pml).
pub fn sleeps_at_most(half: &RxHalf) -> Option<u64> {
    let dmb = crate::state::rx_dmb(half).filter(|_| half.mode.load(Ordering::Relaxed) == mode::LANE)?;
    let prod = dmb.words().prod();
    let is_unseen = prod.offset() > half.other.load(Ordering::Relaxed) && !prod.has(Cursor::LEAVE);
    is_unseen.then(|| clock::to_ns(dmb.words().held().left(clock::ticks(), clock::from_us(MOST_US))))
}
