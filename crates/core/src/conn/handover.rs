//! Connections that go to other programs: exec, SCM_RIGHTS, stdio, a filter of system calls.

use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::Event;

use shunpike_shm::arena::{Block, mode};
use shunpike_wire::Reason;

use super::named::give_socket;
use super::{actions, drop_end, given};
use crate::host::is_alone;
use crate::table::{self, Conn, Entry};
use crate::zerocopy::lending;
use crate::{
    above, clock, closing, eager, holders, keepalive, proc, process, rings, sets, state, sys, tx, upgrade,
};

/// The descriptor goes to code that knows nothing of lanes (exec, SCM_RIGHTS, stdio): the sender takes back
/// what we have not read and sends it by TCP (models/lane.pml, LEAVE).
///
/// A sender that ended its lane before we could ask has counted on our reading the ring to its end; bytes that
/// stand there then are out of a foreign program's reach, unless it has taken them back itself (`tx::conclude`): COMPLIANCE.md.
pub fn hand_over(conn: Conn, fd: i32, reason: Reason) {
    given::to_anybody(conn.block);
    leave_to_others(conn, fd, Event::Bar, reason, false);
}

/// `hand_over` to a process that is known: `child`.
fn hand_over_to(conn: Conn, fd: i32, child: u32) {
    given::to_child(conn.block, fd, child);
    // A child that is ourselves executes another program in our place.
    leave_to_others(conn, fd, Event::Give, Reason::HandedOver, child != process::pid());
}

/// Hands it over to the children that its list names already.
pub(super) fn hand_over_to_listed(conn: Conn, fd: i32) {
    leave_to_others(conn, fd, Event::Give, Reason::HandedOver, true);
}

/// `reads_on`: this process does, with hooks. What never comes by TCP it reads from the ring.
fn leave_to_others(conn: Conn, fd: i32, event: Event, reason: Reason, reads_on: bool) {
    let block = conn.block;
    state::note(block, reason);
    eager::given(block);
    // A child of vfork() works on its parent's memory, but may have closed its sets and its session.
    let is_ours = sys::pid() == process::pid();
    // A forked child has no say in its parent's session: a match that is still to come finds this.
    let id = upgrade::id_of(block);
    if block.life.on(event).leaves_a_handshake() && is_ours {
        upgrade::given_away(conn, id);
    }
    // Only now: another thread may have opened the lane meanwhile.
    keepalive::over(conn, fd);
    closing::ask_back(conn, reads_on);
    // Only now: who finds our lane ended finds LEAVE, too.
    tx::conclude(conn, fd);
    if is_ours {
        above::settle(conn, fd);
    }
}

/// A vfork child, which works on our memory with descriptors of its own, has `fd` under another number too: what it
/// executes gets it.
pub fn hand_over_from_child(fd: i32) {
    if let Some(conn) = table::conn(fd).filter(|conn| is_socket_of(conn.block, fd)) {
        hand_over(conn, fd, Reason::HandedOver);
    }
    give_socket(fd);
}

/// Whether `fd` is the connection's socket in a process that our table of descriptors may not be true of.
fn is_socket_of(block: &Block, fd: i32) -> bool {
    // Not known before the first nomination: nothing can be lost then either.
    let known = block.cookie.load(Ordering::Relaxed);
    known == 0 || sys::cookie(fd) == known
}

/// Before exec(): connections whose descriptors survive it are handed over, on a lane or not yet.
pub fn before_exec() {
    survive(sys::pid());
    if sys::pid() != process::pid() {
        return;
    }
    // What this program owes nobody pays after it, and what is left in a ring nobody reads.
    let began = clock::now();
    for (fd, entry) in table::all() {
        let Entry::Conn(conn) = entry else { continue };
        if !holders::alone(conn.block) {
            continue;
        }
        if tx::must_attend(conn) {
            tx::conclude_stream(conn, fd, clock::now() - began);
        }
        if survives_exec(fd) && conn.block.rx.mode.load(Ordering::Relaxed) == mode::LANE {
            // To the next program TCP's end would look like that of all bytes.
            let _ = rustix::net::connect_unspec(sys::borrowed(fd));
        }
    }
}

fn survives_exec(fd: i32) -> bool {
    rustix::io::fcntl_getfd(sys::borrowed(fd))
        .is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
}

/// Before posix_spawn() with these file actions, or 0: those that the child inherits, or is given by them, are. [`given::spawned`] follows.
pub fn before_spawn(file_actions: usize) {
    let child = given::child_to_be();
    survive(child);
    let is_given = actions::given_by(file_actions);
    for (fd, entry) in table::all().filter(|(fd, _)| is_given(*fd)) {
        match entry {
            Entry::Conn(conn) if !survives_exec(fd) && is_socket_of(conn.block, fd) => {
                hand_over_to(conn, fd, child);
            }
            Entry::Socket => give_socket(fd),
            _ => {}
        }
    }
}

/// Before system() or popen(): as before a spawn of a child whose number nobody tells. Returns the number of which [`given::spawned`] is
/// to be told: the child's is that, or comes after it.
pub fn before_shell() -> u32 {
    before_spawn(0);
    proc::last_made().map_or(u32::MAX, |last| last + 1)
}

/// Sets that processes share are to tell of it. With no lock held.
pub fn leave_to_sets(conn: Conn, fd: i32) {
    leave_to_others(conn, fd, Event::Bar, Reason::NestedSets, false);
}

fn survive(child: u32) {
    // Not of the process on whose memory a child of vfork() runs. After an exec that fails, all is copied.
    if sys::pid() == process::pid() {
        lending::close();
    }
    for (fd, entry) in table::all() {
        if let Entry::Conn(conn) = entry
            && survives_exec(fd)
            && is_socket_of(conn.block, fd)
        {
            hand_over_to(conn, fd, child);
        }
        if matches!(entry, Entry::Socket) && survives_exec(fd) {
            give_socket(fd);
        }
    }
    // What the kernel has in the sets is the programs' own from now on.
    if sys::pid() == process::pid() {
        for (fd, entry) in table::all() {
            if let Entry::Set(set) = entry
                && survives_exec(fd)
            {
                sets::give_words(set);
            }
        }
    }
}

/// Takes every connection off its lane, and out of the table where no other thread may be within a call on it. One whose sender had
/// ended its lane stays until it is read.
pub fn let_go_of_all(reason: Reason) {
    for (fd, entry) in table::all() {
        let Entry::Conn(conn) = entry else { continue };
        hand_over(conn, fd, reason);
        if is_alone() && state::modes(conn.block) == (mode::PLAIN, mode::PLAIN) {
            table::take(fd);
            drop_end(conn, fd, false);
        }
    }
}

/// A ring was set up, and the program does not know of it yet: it hears of it when every connection has left its lane for
/// good. A call that the kernel refuses makes none. With no lock held.
pub fn ring_set_up() {
    if !process::enabled() || !rings::note() {
        return;
    }
    for (fd, entry) in table::all() {
        if let Entry::Conn(conn) = entry {
            hand_over(conn, fd, Reason::IoUring);
        }
    }
}
