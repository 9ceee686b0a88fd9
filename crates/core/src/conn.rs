//! A connection's life: watched, nominated, on a lane, back on TCP, closed.

use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::{Event, Phase};

use shunpike_shm::arena::{Block, Half, Header, RxHeld, mode};
use shunpike_shm::lane::{Cursor, Dmb, Side};
use shunpike_wire::Reason;

use crate::table::{self, Conn, Entry};
use crate::tls::critical;
use crate::zerocopy::lending;
use crate::{
    above, clock, closing, eager, holders, keepalive, link, options, process, reset, reuse, rx, session,
    sets, state, surface, sys, tap, trace, tx, upgrade, wait, zerocopy,
};

pub mod actions;
mod given;
mod handover;
mod named;
mod orphans;
mod rings;

pub use given::spawned;
pub use handover::{
    before_exec, before_shell, before_spawn, hand_over, hand_over_from_child, leave_to_sets, let_go_of_all,
    ring_set_up,
};
pub use named::{give_socket, give_sockets, has_other_names, is_named};
pub use rings::{
    before_liburing_submits, before_ring_enters, before_ring_registers, liburing_made, ring_made, ring_mapped,
};

pub(crate) use orphans::look as look_for_orphans;

/// A revoked connection is nominated again after this long, microseconds; doubled each time, up to 256 times,
const REOPEN_US: u64 = 10_000;
/// Lanes that have carried this many bytes are asked for again without the doubling: a handshake costs about as much as copying one MiB.
const WORTHWHILE: u64 = 4 << 20;

/// Before connect(): does what can be done of `watch` before it. The peer is awake from then on, and waits for the first bytes:
/// who comes with them at once finds it so, and who comes later has to wake it once more, for several microseconds.
pub fn prepare() {
    if process::enabled() && !process::confined() {
        process::prepare();
    }
}

/// Watches a new connection. `server`: it came from accept(). `nonblock`: as far as we know. `announced`: the
/// broker was told of it before.
pub fn watch(fd: i32, server: bool, nonblock: bool, announced: bool) {
    if !process::enabled() || process::confined() {
        return;
    }
    let Some(block) = process::allocate() else { return };
    block.role.store(u8::from(server), Ordering::Relaxed);
    block.nonblock.store(u8::from(nonblock), Ordering::Relaxed);
    block.fd.store(fd as u32, Ordering::Relaxed);
    state::note(block, Reason::NotNominated);
    if let Some(header) = process::header() {
        header.handled[usize::from(server)].fetch_add(1, Ordering::Relaxed);
    }
    let conn = Conn::new(block);
    sets::by_tcp();
    // What stood there was closed behind our back.
    stale(fd, table::set(fd, Entry::Conn(conn)));
    if process::eager() {
        upgrade::made(conn, fd, announced);
    }
}

/// An entry that the kernel has shown to be out of date.
pub fn stale(fd: i32, entry: Entry) {
    match entry {
        Entry::Conn(conn) => {
            sets::forget(fd);
            drop_end(conn, fd, false);
        }
        Entry::Set(set) => sets::close(set, fd),
        Entry::None | Entry::Socket | Entry::Internal => {}
    }
}

/// After a call on plain TCP that moved bytes, one of so many in its direction: perhaps it is time for a lane. One that could not be
/// had is asked for again by the clock, which is looked at now and then: that takes a tenth of what the whole call costs.
pub fn moved(conn: Conn, fd: i32, calls: u16) {
    let block = conn.block;
    match block.life.phase() {
        Phase::Watched if !calls.is_multiple_of(4) && block.retry_at.load(Ordering::Relaxed) != 0 => {}
        Phase::Watched => {
            let knobs = process::knobs();
            let calls =
                block.rx.tcp_calls.load(Ordering::Relaxed).min(block.tx.tcp_calls.load(Ordering::Relaxed));
            let bytes =
                block.rx.tcp_bytes.load(Ordering::Relaxed).max(block.tx.tcp_bytes.load(Ordering::Relaxed));
            if u32::from(calls) >= knobs.nominate_calls.load(Ordering::Relaxed)
                || bytes >= u64::from(knobs.nominate_bytes.load(Ordering::Relaxed))
            {
                upgrade::nominate(conn, fd);
            }
        }
        Phase::Nominated if !state::is_inherited(block) || holders::shared(block) => {}
        Phase::Nominated | Phase::Shaking | Phase::Open => upgrade::retry(conn, fd),
        // Another thread gave it away at the very moment at which it came back.
        Phase::Given if calls.is_multiple_of(4) && given::look(conn, fd) => {
            handover::hand_over_to_listed(conn, fd);
        }
        _ => {}
    }
}

/// After a lane closed, with no lock held: when both directions are on TCP the epoll sets are the kernel's
/// again, and the connection may be nominated anew.
#[cold]
pub(crate) fn settle_slowly(conn: Conn, fd: i32) {
    let block = conn.block;
    let plain = |half: &Half| half.mode.load(Ordering::Acquire) == mode::PLAIN;
    let both_plain = || conn.current() && plain(&block.rx) && plain(&block.tx);
    block.life.settle();
    zerocopy::told(conn);
    tx::attend(conn, fd);
    if plain(&block.rx) && block.life.ends_both() {
        // Both directions, else neither would ever come on a lane again.
        tx::revoke(conn, fd);
    }
    if both_plain() {
        // A lane that was opened and never begun; another thread may be beginning it.
        let guard = block.tx.lock(critical());
        if both_plain() {
            closing::tx_closed(conn, guard.held());
            block.life.settle();
        }
    }
    if !both_plain() && sets::bars_managed(conn, fd).is_some() {
        if block.rx.mode.load(Ordering::Acquire) == mode::DEBT && plain(&block.tx) {
            // What was in the ring stands on TCP: the kernel tells of it as often as the program has asked.
            sets::restore(conn, || ());
        } else {
            sets::stand(conn);
        }
    }
    // Left: it was revoked for good with bytes unread.
    let is_over = || {
        both_plain()
            && (block.life.is(Phase::Open) || block.life.phase().is_left())
            && link::of(block).is_some()
    };
    if !is_over() {
        return;
    }
    let mut session = session::lock();
    // From here on no lane opens. One may have since the look, where another thread has settled the connection before.
    if !is_over() || zerocopy::keeps(conn, fd) {
        return;
    }
    keepalive::over(conn, fd);
    upgrade::forget(&mut session, block);
    orphans::look(&mut session);
    reuse::sweep(&mut session);
    // The end that wanted it counts it. The other one cannot tell it from a close, whose FIN comes behind the end of the lane. One that was
    // reset does not go on.
    let reason = Reason::from_code(block.reason.load(Ordering::Relaxed));
    if !matches!(reason, None | Some(Reason::PeerViolation | Reason::LentUnreadable))
        && let Some(header) = process::header()
    {
        header.revoked.fetch_add(1, Ordering::Relaxed);
        trace::revoke(block, fd);
    }
    let carried = block.lane_bytes() - block.carried.load(Ordering::Relaxed);
    let tries = if carried >= WORTHWHILE { 0 } else { block.attempts.load(Ordering::Relaxed).min(8) };
    block.attempts.store(tries + 1, Ordering::Relaxed);
    block.retry_at.store(clock::ticks() + clock::from_us(REOPEN_US << tries), Ordering::Relaxed);
    sets::restore(conn, || {
        link::part(block);
        // Last: who closes a connection that is watched has no lanes to end, nor waits for us.
        block.life.on(Event::End);
    });
}

/// Closes both lanes of a connection at the next byte boundary; it goes on on TCP.
pub fn revoke(conn: Conn, fd: i32, reason: Reason) {
    state::note(conn.block, reason);
    closing::stop(conn);
    tx::revoke(conn, fd);
    reset::wake_ourselves();
    sets::touch(conn);
}

/// The connection stays on TCP from its next byte on: what it does now, a lane cannot do. Bytes that are in
/// our ring already are still read from there.
pub fn revoke_for_good(conn: Conn, fd: i32, reason: Reason) {
    upgrade::decline(conn, fd, reason);
    if state::on_lane(conn) {
        revoke(conn, fd, reason);
        conn.block.life.unsettle();
        above::settle(conn, fd);
    } else {
        state::note(conn.block, reason);
    }
    conn.block.life.on(Event::Bar);
}

/// At exit: lanes end as at close(), with what the peer wants back; unread bytes reset the connection as on TCP, and what a forked
/// process held, it holds no more.
pub fn at_exit() {
    lending::close();
    let began = clock::now();
    for (fd, entry) in table::all() {
        let Entry::Conn(conn) = entry else { continue };
        let alone = holders::alone(conn.block);
        if alone {
            tx::end_last(conn, fd);
        }
        if tx::must_attend(conn) {
            if alone {
                tx::conclude_stream(conn, fd, clock::now() - began);
            } else {
                // The stream goes on with the others.
                tx::conclude(conn, fd);
            }
        }
        if alone {
            tap::over(conn.block);
            let guard = conn.block.rx.lock(critical());
            let half = guard.held();
            if let Some(dmb) = state::rx_dmb(&half) {
                if leaves_unread(conn.block, half, &dmb) {
                    // As TCP does with unread data (RFC 1122, 4.2.2.13).
                    sys::reset_at_close(fd);
                }
                let _ = dmb.words().flag(half.generation.load(Ordering::Relaxed), Cursor::STOP, 0);
                wait::notify(conn.block, dmb.words(), Side::Writers);
            }
            if eager::is_lent(conn.block) {
                close_lent(fd);
            }
        } else {
            table::take(fd);
            // The kernel finds out when we are gone, should the others be the last just now.
            let _ = holders::leave(conn.block);
        }
    }
}

/// Whether bytes of the lane are unread, also where none has been read yet. What was taken back is TCP's to judge, and so is what the sender
/// takes back for a program that has the connection, too.
fn leaves_unread(block: &Block, half: RxHeld<'_>, dmb: &Dmb) -> bool {
    let prod = dmb.words().prod();
    let is_others = || given::is_listed(block) && prod.has(Cursor::LEAVE);
    matches!(half.mode.load(Ordering::Relaxed), mode::GRANTED | mode::LANE)
        && prod.offset() != half.cursor.load(Ordering::Relaxed)
        && !dmb.words().cons().has(Cursor::TAKEN)
        && !is_others()
}

/// close(): before libc's own.
#[inline]
pub fn close(fd: i32) {
    end(fd, true);
}

/// connect(AF_UNSPEC) has ended the connection, and `fd` is a socket as before its connect(), with the options and the other names that it
/// has.
pub fn dissolved(fd: i32) {
    options::ask_the_kernel();
    let others = table::conn(fd)
        .filter(|conn| conn.block.dups.load(Ordering::Relaxed) != 0 || !holders::alone(conn.block));
    if let Some(conn) = others {
        // They go on with what was known of it, for a socket that may be connected once more.
        revoke_for_good(conn, fd, Reason::OtherNames);
    }
    end(fd, false);
    table::set(fd, Entry::Socket);
    if others.is_some() {
        table::name_socket(fd, true);
    }
}

/// `open`: it is the connection's still.
#[inline]
fn end(fd: i32, open: bool) {
    session::pump_if_news();
    if let Some(conn) = table::conn(fd) {
        eager::leaving(conn, fd);
        if open {
            sets::closing(conn, fd);
        } else {
            sets::staying(fd);
        }
        // To shut a socket that is not connected any more would last through its next connect().
        if open
            && eager::is_lent(conn.block)
            && (conn.block.dups.load(Ordering::Relaxed) == 0
                || table::names_of(conn).all(|other| other == fd))
            && holders::alone(conn.block)
        {
            close_lent(fd);
        }
    }
    let entry = table::take(fd);
    // Before the block can be another connection's: sets look at what their registrations name.
    sets::forget(fd);
    match entry {
        Entry::Conn(conn) => drop_end(conn, fd, open),
        Entry::Set(set) => sets::close(set, fd),
        Entry::Socket if process::eager() => eager::closing(fd),
        _ => {}
    }
}

/// close() of a descriptor of which the broker has a copy: the kernel's ends nothing then, but the peer is to see the end now, and what
/// it sends from now on refused, as tcp_close (net/ipv4/tcp.c) has it.
fn close_lent(fd: i32) {
    let is_abortive = |linger: libc::linger| linger.l_onoff != 0 && linger.l_linger == 0;
    if sys::unread(fd).is_ok_and(|unread| unread > 0)
        || sys::option(fd, libc::SOL_SOCKET, libc::SO_LINGER).is_ok_and(is_abortive)
    {
        let _ = rustix::net::connect_unspec(sys::borrowed(fd));
    } else {
        let _ = rustix::net::shutdown(sys::borrowed(fd), rustix::net::Shutdown::Both);
    }
}

/// One descriptor fewer. With the last one the connection ends; `open`: `fd` still is that socket.
fn drop_end(conn: Conn, fd: i32, open: bool) {
    orphans::note_activity();
    let block = conn.block;
    if block.dups.load(Ordering::Relaxed) != 0
        && let Some(other) = table::names_of(conn).next()
    {
        let _ = block.fd.compare_exchange(fd as u32, other as u32, Ordering::Relaxed, Ordering::Relaxed);
        return;
    }
    if !holders::alone(block) {
        abandon_handshake(conn);
    }
    if !holders::leave(block) {
        lending::forget(block);
        orphans::left();
        return;
    }
    if eager::is_announced(block) {
        eager::dropped(&mut session::lock(), block, fd);
    }
    if !block.life.is(Phase::Watched) || block.rx.mode.load(Ordering::Relaxed) != mode::PLAIN {
        end_lanes(conn, fd, open);
    }
    tap::over(block);
    let server = usize::from(!state::opener(block));
    if let Some(header) = process::header() {
        let reason = match block.reason.load(Ordering::Relaxed) {
            // Nearly all that have had no lane.
            code if code == Reason::NotNominated.code() => Reason::NotNominated,
            code => Reason::from_code(code).unwrap_or(Reason::Internal),
        };
        if (!block.life.has_been_open() || reason == Reason::PeerViolation)
            && let Some(count) = header.fallback[server].get(reason.index())
        {
            count.fetch_add(1, Ordering::Relaxed);
            trace::fallback(block, fd, true);
        }
        // Bytes may have come by a lane before ours was open.
        if block.life.has_been_open() || !block.life.is(Phase::Watched) {
            sum_up(block, header);
        }
    }
    lending::forget(block);
    block.life.on(Event::Close);
    block.free();
}

/// What its lanes carried goes to the process's sums.
fn sum_up(block: &Block, header: &Header) {
    let halves = block.halves().into_iter().zip([&header.rx, &header.tx]);
    for (half, totals) in halves.filter(|(half, _)| half.calls.load(Ordering::Relaxed) != 0) {
        totals.bytes.fetch_add(half.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        totals.calls.fetch_add(half.calls.load(Ordering::Relaxed), Ordering::Relaxed);
        for (sum, one) in totals.sizes.iter().zip(&half.sizes) {
            sum.fetch_add(u64::from(one.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }
}

/// This process lets go of a connection that another one of its tree goes on with: a handshake of ours would
/// open a lane whose memory is mapped here only. The other may nominate it anew. A handshake of the other, which is where
/// the block is of another arena, is not ours to end.
fn abandon_handshake(conn: Conn) {
    let block = conn.block;
    if process::index(block).is_none() {
        return;
    }
    if !block.life.phase().is_on_the_way() {
        return;
    }
    let mut session = session::lock();
    closing::withdraw_grant(conn);
    upgrade::forget(&mut session, block);
    sets::restore(conn, || link::part(block));
    block.life.on(Event::End);
}

fn end_lanes(conn: Conn, fd: i32, open: bool) {
    let block = conn.block;
    end_receiving(conn, fd, open);
    if open {
        tx::conclude_stream(conn, fd, 0);
    } else {
        tx::conclude(conn, fd);
    }
    let mut session = session::lock();
    upgrade::forget(&mut session, block);
    // Up to here another thread could hear the broker, and open a lane.
    end_receiving(conn, fd, open);
    tx::revoke(conn, fd);
    {
        let guard = block.tx.lock(critical());
        let half = guard.held();
        half.mode.store(half, mode::PLAIN, Ordering::Release);
        closing::tx_closed(conn, half);
    }
    block.tx.keepalive.store(0, Ordering::Relaxed);
    orphans::look(&mut session);
    reuse::sweep(&mut session);
    link::part(block);
}

fn end_receiving(conn: Conn, fd: i32, open: bool) {
    let guard = conn.block.rx.lock(critical());
    let half = guard.held();
    if let Some(dmb) = state::rx_dmb(&half) {
        if open && leaves_unread(conn.block, half, &dmb) {
            // As TCP does with unread data (RFC 1122, 4.2.2.13).
            sys::reset_at_close(fd);
        }
        let _ = dmb.words().flag(half.generation.load(Ordering::Relaxed), Cursor::STOP, 0);
        wait::notify(conn.block, dmb.words(), Side::Writers);
    }
    half.mode.store(half, mode::PLAIN, Ordering::Release);
    closing::rx_closed(conn, half);
}

/// dup() and its kin: `new` is another name of `old`.
pub fn duplicated(old: i32, new: i32) {
    let entry = table::look(old);
    match entry {
        Entry::Conn(conn) => conn.block.dups.store(1, Ordering::Relaxed),
        Entry::Set(set) => sets::retain(set),
        Entry::None if table::is_none(new) => return,
        _ => {}
    }
    let (_, is_given) = table::socket_names(old);
    let entry = if matches!(entry, Entry::Internal) { Entry::None } else { entry };
    let before = table::set(new, entry);
    stale(new, before);
    if matches!(entry, Entry::Socket) {
        for name in [old, new] {
            table::name_socket(name, is_given);
        }
    }
}

/// dup2 over `fd`, accept or socket returning `fd`: whatever we knew of it is over.
#[inline]
pub fn replaced(fd: i32) {
    if !table::is_none(fd) {
        close(fd);
    }
}

/// epoll_create() returned `epfd`.
pub fn set_created(epfd: i32) {
    replaced(epfd);
    sets::created(epfd);
}

/// shutdown(): before libc's own. The lane's end comes before TCP's FIN.
pub fn shutdown(fd: i32, how: i32) {
    let Some(conn) = table::conn(fd) else { return };
    session::pump_if_news();
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        if !tx::conclude_stream(conn, fd, 0) {
            let _ = rustix::net::connect_unspec(sys::borrowed(fd));
        }
        tap::over(conn.block);
    }
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        conn.block.life.end_reading();
    }
    above::settle(conn, fd);
}

/// shutdown(): after libc's own. Now the peer has TCP's FIN, where it gets one: a sender that heard of STOP before it would take back what
/// is unread, and TCP answers bytes behind both ends with a reset.
pub fn shut_down(fd: i32, how: i32) {
    let Some(conn) = table::conn(fd) else { return };
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        closing::stop(conn);
        reset::wake_ourselves();
    }
}

/// Whether what is read next, and all after it, comes by TCP.
pub fn reads_tcp(conn: Conn) -> bool {
    conn.block.rx.mode.load(Ordering::Acquire) == mode::PLAIN
}

/// FIONREAD: bytes that a read would find without waiting. They are shown by it, to who waits for the connection, too.
pub fn readable_bytes(conn: Conn, fd: i32) -> usize {
    let n = rx::available(conn, fd);
    let _critical = critical();
    if let Some(dmb) = state::rx_dmb(&conn.block.rx).filter(|_| n > 0) {
        sets::shown(conn, dmb.words(), Side::Readers);
    }
    n
}

/// setsockopt() has succeeded with an option of [`surface::Does::Tcp`].
pub fn option_set(fd: i32, level: i32, name: i32, unset: surface::Unset) {
    if !options::is_in_force(fd, level, name, unset) {
        return;
    }
    match table::conn(fd) {
        Some(conn) => revoke_for_good(conn, fd, Reason::OptionUnsupported),
        None => options::ask_the_kernel(),
    }
}

/// After a read from a lane: what the control message of TCP_INQ says, where the program wants it.
pub fn unread(conn: Conn, fd: i32) -> Option<i32> {
    if conn.block.tells_unread.load(Ordering::Relaxed) == 0 || !options::tells(fd) {
        return None;
    }
    let bytes = readable_bytes(conn, fd) as i32;
    // As tcp_inq_hint() has it: the end of the stream is a byte more, and worth a read.
    let read = conn.block.rx.tcp_bytes.load(Ordering::Relaxed);
    Some(bytes + sys::left_out_by_siocinq(fd, read) as i32)
}

/// SIOCOUTQ: bytes sent that the peer has not taken yet.
pub fn unsent_bytes(conn: Conn, fd: i32) -> usize {
    tx::outside_tcp(conn) as usize + sys::queue(fd, sys::SIOCOUTQ).unwrap_or(0)
}
