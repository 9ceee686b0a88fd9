//! How the connections on a set's active list are looked at, reported and armed.

use core::sync::atomic::Ordering;

use shunpike_shm::lane::Side;

use crate::mutex::Guard;
use crate::ready::{self, Level};
use crate::set::{List, Set};
use crate::sets::list::{SOME, next, push};
use crate::sets::refusal::PUT_BACK_NS;
use crate::sets::regs::{Reg, reg};
use crate::sets::{EDGE, ONESHOT, is_left};
use crate::table::Conn;
use crate::{link, prefetch, state, sys, told, wait};

/// Looks without news after which a connection is armed and leaves the active list.
const QUIET: u8 = 32;

/// Whether a turn would find something: for spinning, over and over.
pub(crate) fn hot(set: &'static Set) -> bool {
    let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1) else { return false };
    if link::round(&set.links, SOME).any(|link| link.has_news(cq as u8)) {
        return true;
    }
    let list = set.list.lock();
    let mut at = list.head;
    while let Some(reg) = reg(at) {
        if let Some(conn) = reg.conn.get()
            && !reg.disarmed.get()
            && ready::changed(conn, reg.events.get(), &reg.seen.get())
        {
            return true;
        }
        at = reg.next_active.get();
    }
    false
}

/// Reports what is ready on the active list, each at most once and the first to the back; arms the quiet. Those that the
/// call has told of already, as `told` says, are left for the next one.
pub(crate) fn scan(
    set: &'static Set,
    mut list: Guard<'static, List>,
    out: &mut [libc::epoll_event],
    told: impl Fn(&Reg) -> bool,
) -> usize {
    let mut n = 0;
    for _ in 0..list.len {
        if n == out.len() {
            break;
        }
        let Some((index, reg, conn)) = next(&mut list) else { continue };
        look_ahead(&list);
        // The kernel may have told of one that another process has given it back to, or will.
        if told(reg) || is_left(conn) {
            push(&mut list, index);
            continue;
        }
        let level = look(reg, conn);
        match report(reg, &level) {
            Some(event) => {
                out[n] = event;
                n += 1;
                reg.reported.set(set.tick());
                reg.quiet.set(0);
                if !reg.disarmed.get() {
                    push(&mut list, index);
                }
            }
            None => {
                let quiet = reg.quiet.get().saturating_add(1);
                let stays = quiet < QUIET || level.full;
                if stays || !matches!(arm(set, reg, conn, &level), Armed { news: false, shown: None }) {
                    push(&mut list, index);
                }
                reg.quiet.set(quiet);
            }
        }
    }
    n
}

/// The next three on the list, each as far as the one before has made it known.
#[inline]
fn look_ahead(list: &List) {
    let Some(first) = reg(list.head) else { return };
    if let Some(conn) = first.conn.get() {
        prefetch::of_look(conn.block);
    }
    let Some(second) = reg(first.next_active.get()) else { return };
    if let Some(conn) = second.conn.get() {
        prefetch::of_words(conn.block);
    }
    if let Some(third) = reg(second.next_active.get()) {
        prefetch::of(third);
    }
}

pub(crate) fn look(reg: &Reg, conn: Conn) -> Level {
    let level = ready::level(conn, reg.fd.get(), reg.events.get(), reg.dirty.get());
    reg.dirty.set(level.keep_looking);
    level
}

/// The event to report, if there is one: level-triggered as it stands, edge-triggered once per news.
#[inline(always)]
fn report(reg: &Reg, level: &Level) -> Option<libc::epoll_event> {
    let wanted = reg.events.get() | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
    let events = level.events & wanted;
    if events == 0 {
        return None;
    }
    if reg.events.get() & EDGE != 0 && !reg.edge.get() && !level.is_fresh(reg.events.get(), &reg.seen.get()) {
        return None;
    }
    reg.edge.set(false);
    let mut seen = reg.seen.get();
    level.note(events, &mut seen);
    reg.seen.set(seen);
    if reg.events.get() & EDGE != 0 && level.events & libc::EPOLLRDHUP as u32 != 0 {
        reg.known.set(sys::Shown::at_the_end(reg.fd.get(), level.events as i16));
    }
    reg.disarmed.set(reg.events.get() & ONESHOT != 0);
    Some(libc::epoll_event { events, u64: reg.data.get() })
}

/// What there was to be seen once publishers of a connection must post.
pub(crate) struct Armed {
    /// News since the look before.
    pub(crate) news: bool,
    /// See [`ready::sleeps_at_most`].
    pub(crate) shown: Option<u64>,
}

/// Declares that publishers of this connection must post, and looks once more.
pub(crate) fn arm(set: &Set, reg: &Reg, conn: Conn, level: &Level) -> Armed {
    let cq = set.cq.load(Ordering::Acquire).checked_sub(1);
    let block = conn.block;
    if reg.events.get() & told::IN != 0
        && let Some(cq) = cq
        && let Some(dmb) = state::rx_dmb(&block.rx)
    {
        wait::arm(&block.rx, dmb.words(), Side::Readers, cq as u8);
    }
    if ready::waits_for_writers(block, reg.events.get(), &reg.seen.get())
        && let Some(cq) = cq
        && let Some(dmb) = state::tx_dmb(&block.tx)
    {
        wait::arm(&block.tx, dmb.words(), Side::Writers, cq as u8);
    }
    // Without a doorbell nobody can say so.
    let looked_at = cq.is_none().then_some(PUT_BACK_NS);
    let shown = ready::sleeps_at_most(conn, reg.events.get()).into_iter().chain(looked_at).min();
    let news = level.modes != state::modes(block) || ready::changed(conn, reg.events.get(), &reg.seen.get());
    Armed { news, shown }
}
