//! What the kernel tells of a set: events of the program's own entries, and news of TCP behind ours.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::mode;

use crate::host::host;
use crate::set::Set;
use crate::sets::entries::{end_lingering_of, has_had_room};
use crate::sets::list::push;
use crate::sets::regs::{BELL, CONTROL, Control, Reg, index_and_turn, reg, untag};
use crate::sets::{EDGE, asked, number_of};
use crate::table::Conn;
use crate::tls::critical;
use crate::{clock, holders, told};

/// Events taken from the kernel in one call, where the program asks for no more.
const BATCH: usize = 128;
/// Events taken from the kernel in one call, where the program asks for few.
const FEW: usize = 8;

/// The kernel's part of the set: its own events go to the program, ours are looked at. `control`: for who holds it.
///
/// Not into the program's array, which beyond its events must stay as it is; a large one serves itself, as the kernel
/// tells of what is level-triggered once in a call only.
pub(super) fn kernel(
    set: &'static Set,
    epfd: i32,
    out: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
    control: Option<&Control>,
) -> Result<usize, Errno> {
    const NONE: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };
    asked::asking(set, || match out.len() {
        // Clearing the larger one takes as long as all the rest.
        0..=FEW => kernel_by(&mut [NONE; FEW], set, epfd, out, (timeout, mask), control),
        _ => kernel_by(&mut [NONE; BATCH], set, epfd, out, (timeout, mask), control),
    })
}

/// The kernel's part of the set, by way of `batch`.
#[inline(never)]
fn kernel_by(
    batch: &mut [libc::epoll_event],
    set: &'static Set,
    mut epfd: i32,
    out: &mut [libc::epoll_event],
    (mut timeout, mut mask): (Option<u64>, *const libc::sigset_t),
    control: Option<&Control>,
) -> Result<usize, Errno> {
    let mut n = 0;
    // Those of ours that stand are told of in each call, by turns with what the program has there. So may be one that nobody can change any
    // more: its number is closed, and another process has the connection.
    let (mut stood, mut ours) = (0, 0);
    while n < out.len() {
        let room = &mut out[n..];
        let (most, direct) = (room.len(), room.len() > batch.len());
        let into = if direct { &mut *room } else { &mut batch[..most] };
        let began = clock::ticks();
        let got = match (host().epoll)(epfd, into, timeout, mask) {
            Ok(got) => got,
            Err(_) if n > 0 => break,
            Err(errno) => return Err(errno),
        };
        if got < most {
            set.told_all.store(began, Ordering::Relaxed);
        }
        let Sorted { kept, has_more, stands } = sort_out(set, &mut into[..got], control);
        stood += stands;
        ours += got - kept;
        if !direct {
            room[..kept].copy_from_slice(&batch[..kept]);
        }
        n += kept;
        // Tags of ours took the place of what the kernel may have for the program. Not where it had something: a
        // second call would report what is level-triggered a second time.
        let managed = set.managed.load(Ordering::Relaxed);
        let has_all = got < most || stood > managed;
        if has_all && !has_more || n > 0 || ours > managed as usize + BATCH {
            break;
        }
        // The set may have lost its number while it was waited for.
        let Ok(number) = number_of(set, epfd) else { break };
        (epfd, timeout, mask) = (number, Some(0), core::ptr::null());
    }
    if n == out.len() {
        set.list.lock().kernel_filled = true;
    }
    Ok(n)
}

/// What an event of the kernel's comes to that has our tag.
enum Told {
    /// It is for the program.
    Event(libc::epoll_event),
    /// The kernel tells the program for itself, next time.
    Again,
    /// Nothing, or a connection that is to be looked at.
    Ours,
    /// Such a one, of which the kernel may tell again next time: once for each before all else that it has by then.
    Stands,
}

/// What the kernel has told.
#[derive(Default)]
pub(super) struct Sorted {
    /// How much is for the program.
    pub(super) kept: usize,
    /// The kernel has something again.
    has_more: bool,
    /// How much of it is told of in each call.
    stands: u32,
}

/// Of what the kernel has told, keeps at the beginning what is for the program. Ours is looked at.
pub(super) fn sort_out(
    set: &'static Set,
    events: &mut [libc::epoll_event],
    control: Option<&Control>,
) -> Sorted {
    let mut sorted = Sorted::default();
    for at in 0..events.len() {
        let event = events[at];
        let told = match untag(event.u64) {
            None => Told::Event(event),
            Some(BELL) => Told::Ours,
            Some(word) => tcp_news(set, word, event.events, control),
        };
        match told {
            Told::Event(event) => {
                events[sorted.kept] = event;
                sorted.kept += 1;
            }
            Told::Again => sorted.has_more = true,
            Told::Ours => {}
            Told::Stands => sorted.stands += 1,
        }
    }
    sorted
}

/// The kernel reports the TCP socket of a registration that has our tag.
fn tcp_news(set: &'static Set, word: u32, events: u32, control: Option<&Control>) -> Told {
    let (index, turn) = index_and_turn(word);
    let _control = control.is_none().then(|| CONTROL.lock());
    let mut list = set.list.lock();
    let Some(reg) = reg(index).filter(|reg| reg.is_in(set)) else { return Told::Ours };
    if reg.turn.get() != turn {
        // Void, or what another process has the kernel tell of the set that it shares with us.
        if reg.managed.get() {
            reg.dirty.set(true);
            push(&mut list, index);
        }
        let may_stand = reg.managed.get() || reg.conn.get().is_some_and(|conn| holders::shared(conn.block));
        return if may_stand { Told::Stands } else { Told::Ours };
    }
    let is_news = is_news(reg, events) && is_asked_for(reg, events) && !is_of_debt(reg, events);
    if reg.managed.get() {
        reg.dirty.set(true);
        reg.edge.set(reg.edge.get() || is_news);
        push(&mut list, index);
        let is_level = reg.stands.get() != 0 && reg.stands.get() & EDGE == 0;
        return if is_level { Told::Stands } else { Told::Ours };
    }
    if reg.lingers.get() {
        return if is_news && end_lingering_of(reg, index) { Told::Again } else { Told::Ours };
    }
    if reg.lost.get() {
        let events = events & (reg.events.get() | (libc::EPOLLERR | libc::EPOLLHUP) as u32);
        let event = libc::epoll_event { events, u64: reg.data.get() };
        return if events != 0 { Told::Event(event) } else { Told::Ours };
    }
    // A one-shot on TCP. One that has fired still has the kernel's EPOLLERR and EPOLLHUP when it was restored.
    // One of another process's tags may be that of any of ours.
    let fires = reg.tagged.get() && !reg.disarmed.replace(true);
    if fires { Told::Event(libc::epoll_event { events, u64: reg.data.get() }) } else { Told::Ours }
}

/// Whether what the kernel tells of our entry is more than the program has been told. The first event of an entry is what stood when it was
/// made. Of the stream's end the kernel tells twice (tcp_fin, then tcp_data_ready, net/ipv4/tcp_input.c), to whoever asks in between,
/// and a look of ours may have come before both.
fn is_news(reg: &Reg, events: u32) -> bool {
    let Some(known) = reg.known.take() else { return true };
    // Off its lanes nobody counts the calls that find no room, and none of its edges may be lost.
    let may_be_room = || reg.lingers.get() && known.has_sent(reg.fd.get());
    if known.has_more(reg.fd.get()) || may_be_room() {
        return true;
    }
    if !known.is_over() {
        return false;
    }
    reg.known.set(Some(known));
    // Errors and notices come one after the other, and room is an edge each time that a call has found none.
    let is_error = events & (libc::EPOLLERR | libc::EPOLLPRI) as u32 != 0;
    is_error || reg.conn.get().is_none_or(|conn| is_in_want(reg, conn))
}

/// Whether news of our entry, which asks for all, are some of the program's. Room alone is not for a program that asks for bytes only.
/// Bytes alone are not for one that asks for room only, unless TCP may have had none. Ends and errors are for everybody.
fn is_asked_for(reg: &Reg, events: u32) -> bool {
    let are_bytes = events & !(told::IN | told::OUT) == 0;
    if are_bytes && events & told::IN == 0 && reg.events.get() & told::OUT == 0 {
        return false;
    }
    let may_be_room = |conn: Conn| {
        let is_on_tcp = conn.block.tx.mode.load(Ordering::Acquire) != mode::LANE;
        // Off its lanes nobody counts the calls that find no room.
        reg.lingers.get() || is_on_tcp && (is_in_want(reg, conn) || !has_had_room(reg))
    };
    !are_bytes || reg.events.get() & told::IN != 0 || reg.conn.get().is_none_or(may_be_room)
}

/// Whether room alone shows because the bytes came that a lane had owed: the program had been told of them by the lane, and has read them.
/// Not where TCP may have had no room, or anything came behind them.
fn is_of_debt(reg: &Reg, events: u32) -> bool {
    let is_paid = |conn: Conn| {
        let half = &conn.block.rx;
        let end = half.debt_end.load(Ordering::Relaxed);
        end != 0 && half.tcp_bytes.load(Ordering::Relaxed) == end
    };
    // Off its lanes nobody counts the calls that find no room: not behind one that went by TCP.
    let has_sent = |conn: Conn| {
        let guard = conn.block.tx.lock(critical());
        let half = guard.held();
        half.tcp_bytes.load(Ordering::Relaxed) != half.own().start.load(Ordering::Relaxed)
    };
    let is_debts = |conn: Conn| is_paid(conn) && !is_in_want(reg, conn) && !has_sent(conn);
    events & !told::OUT == 0 && reg.conn.get().is_some_and(is_debts) && has_had_room(reg)
}

/// Whether a call has found no room since the program was told of some.
fn is_in_want(reg: &Reg, conn: Conn) -> bool {
    reg.seen.get() != reg.seen.get().with_room(conn.block)
}
