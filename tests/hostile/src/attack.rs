//! What a hostile peer does to what it has mapped, holds or may say.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, OFlags, SealFlags};
use rustix::io::Errno;
use shunpike_shm::lane::loans::{Loan, Witness};
use shunpike_shm::lane::{Cursor, MAX_OFFSET, Window};
use shunpike_shm::{Region, region};
use shunpike_wire::session::{ClcBytes, ToBroker};

use crate::dice::Dice;
use crate::peer::{ANSWER, CONS, LENT, Memory, PROD, Peer, RWAIT, START, WINDOW, WWAIT, add, take};
use crate::session::Session;

/// One thing to do.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Attack {
    /// One word of a DMB gets a value that somebody thought of.
    Word,
    /// Two values in turn, as fast as a CPU can, for some milliseconds.
    Hammer,
    /// Bytes of both rings change while they are read.
    Bytes,
    /// Bytes as an honest peer sends them.
    Publish,
    /// Bytes that the victim is not told of, for a while: as from a sender who lost the CPU there.
    Mute,
    /// Bytes announced, the victim told, and the announcement taken back.
    Retract,
    /// More requests than the answers find room for, and no answer is read.
    Fill,
    /// The receiver's flags on the victim's sending lane.
    Stop,
    /// The sender's TAKEN on what the victim has not read.
    Take,
    /// The link page: news of nobody, sleeps of nobody, or none.
    News,
    /// Doorbells rung often.
    Bells,
    /// Doorbells full, emptied, or made to wait; ours among them.
    BellState,
    /// Sizes and seals of all memory that is shared; a hole in it.
    Seals,
    /// Our mappings go.
    Unmap,
    /// Bytes on TCP that no lane announced.
    TcpBytes,
    /// An urgent byte.
    TcpUrgent,
    /// The TCP connection half closed.
    TcpShutdown,
    /// The TCP connection reset.
    TcpReset,
    /// Messages to the broker that nobody awaits.
    Messages,
    /// Loans of memory that is not there, of bytes that were read or lent already, with a witness that lies or not.
    Lend,
    /// Nothing for a moment.
    Pause,
}

/// All of them.
pub const ALL: [Attack; 21] = [
    Attack::Word,
    Attack::Hammer,
    Attack::Bytes,
    Attack::Publish,
    Attack::Mute,
    Attack::Retract,
    Attack::Fill,
    Attack::Stop,
    Attack::Take,
    Attack::News,
    Attack::Bells,
    Attack::BellState,
    Attack::Seals,
    Attack::Unmap,
    Attack::TcpBytes,
    Attack::TcpUrgent,
    Attack::TcpShutdown,
    Attack::TcpReset,
    Attack::Messages,
    Attack::Lend,
    Attack::Pause,
];

impl Attack {
    /// Does it. Errors: something that must be refused was not.
    pub fn run(self, peer: &mut Peer, session: &Session, dice: &mut Dice) -> Result<(), String> {
        match self {
            Attack::Word => word(peer, session, dice),
            Attack::Hammer => hammer(peer, dice),
            Attack::Bytes => bytes(peer, dice),
            Attack::Publish => {
                let message = vec![7; 1 + dice.below(4000) as usize];
                peer.publish(session, &message);
            }
            Attack::Mute => {
                let message = vec![8; 2 + dice.below(4000) as usize];
                peer.publish_untold(&message);
                std::thread::sleep(Duration::from_micros(dice.below(20_000)));
                peer.ring(session);
            }
            Attack::Retract => retract(peer, session, dice),
            Attack::Fill => {
                let message = vec![9; 4096];
                for _ in 0..64 {
                    if !peer.publish(session, &message) {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
            }
            Attack::Stop => {
                if let Some(own) = &peer.own {
                    let flags = dice.pick(&[
                        Cursor::STOP,
                        Cursor::STOP | Cursor::LEAVE,
                        Cursor::LEAVE,
                        Cursor::END,
                        8,
                        15,
                    ]);
                    own.word(PROD).fetch_or(flags, Ordering::SeqCst);
                    peer.ring(session);
                }
            }
            Attack::Take => {
                if let Some(victims) = &peer.victims {
                    victims.word(CONS).fetch_or(Cursor::TAKEN | dice.below(16), Ordering::SeqCst);
                    peer.ring(session);
                }
            }
            Attack::News => news(peer, session, dice),
            Attack::Bells => {
                let most = dice.pick(&[1, 10, 500]);
                (0..most).for_each(|_| peer.ring(session));
            }
            Attack::BellState => bell_state(peer, session, dice),
            Attack::Seals => return seals(peer, session),
            Attack::Unmap => match dice.below(3) {
                0 => drop(peer.own.take()),
                1 => drop(peer.victims.take()),
                _ => (peer.own, peer.victims) = (None, None),
            },
            Attack::TcpBytes => {
                let _ = peer.tcp.set_nonblocking(true);
                let _ = peer.tcp.write(&vec![b'!'; 1 + dice.below(3000) as usize]);
                let _ = peer.tcp.set_nonblocking(false);
            }
            Attack::TcpUrgent => {
                let _ = rustix::net::send(
                    &peer.tcp,
                    b"!",
                    rustix::net::SendFlags::OOB | rustix::net::SendFlags::DONTWAIT,
                );
            }
            Attack::TcpShutdown => {
                let _ = peer.tcp.shutdown(dice.pick(&[std::net::Shutdown::Write, std::net::Shutdown::Read]));
            }
            Attack::TcpReset => reset(peer),
            Attack::Messages => messages(peer, session, dice),
            Attack::Lend => lend(peer, session, dice),
            Attack::Pause => std::thread::sleep(Duration::from_micros(dice.below(2000))),
        }
        Ok(())
    }
}

/// As close() with SO_LINGER 0, but the descriptor stays.
fn reset(peer: &mut Peer) {
    // Connecting to nowhere dissolves the association: RST (tcp(7), tcp_disconnect).
    // SAFETY: an all-zero sockaddr is AF_UNSPEC.
    let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    let fd = std::os::fd::AsRawFd::as_raw_fd(&peer.tcp);
    // SAFETY: our own socket, and an address of the stated length.
    unsafe { libc::connect(fd, &nowhere, size_of::<libc::sockaddr>() as u32) };
}

fn memories(peer: &Peer) -> impl Iterator<Item = &Memory> {
    peer.own.iter().chain(&peer.victims)
}

fn any_memory<'p>(peer: &'p Peer, dice: &mut Dice) -> Option<&'p Memory> {
    let all: Vec<_> = memories(peer).collect();
    (!all.is_empty()).then(|| all[dice.below(all.len() as u64) as usize])
}

/// A value for the word that holds `now`: near it, at a limit, of another time, or anything.
fn value(now: u64, dice: &mut Dice) -> u64 {
    let cursor = Cursor(now);
    let (generation, offset) = (cursor.generation(), cursor.offset());
    let moved = |by: i64| Cursor::new(generation, offset.wrapping_add_signed(by)).0 | now & 15;
    match dice.below(15) {
        0 => dice.word(),
        1 => 0,
        2 => u64::MAX,
        3 => now ^ 1 << dice.below(4),
        4 => now | dice.below(16),
        5 => now ^ 1 << dice.below(64),
        6 => moved(dice.below(40_000) as i64),
        7 => moved(-(dice.below(40_000) as i64)),
        8 => moved(dice.pick(&[1, -1, 16384, 16385, -16384, 1 << 20, -(1 << 20), (1 << 20) + 1])),
        9 => Cursor::new(generation.wrapping_add(1), offset).0,
        10 => Cursor::new(generation.wrapping_sub(1), offset).0,
        11 => Cursor::new(generation, MAX_OFFSET + dice.below(3)).0,
        12 => Cursor::new(generation, (1 << 48) - 1 - dice.below(3)).0,
        13 => 1 << dice.below(32),
        _ => dice.word() << 32 | dice.below(256),
    }
}

const WORDS: [usize; 11] = [PROD, PROD, PROD, WINDOW, CONS, CONS, START, RWAIT, WWAIT, LENT, ANSWER];

/// The same for the word at `at`; for a window often that the sender moves, from somewhere near.
fn value_at(memory: &Memory, at: usize, dice: &mut Dice) -> u64 {
    if at != WINDOW || dice.one_in(3) {
        return value(memory.word(at).load(Ordering::SeqCst), dice);
    }
    let prod = Cursor(memory.word(PROD).load(Ordering::SeqCst)).offset();
    let size = dice.pick(&[0, 1, 2048, 16384, 16384, 16384, 32768, 1 << 20, 3 << 14, u32::MAX.into()]);
    let near = dice.pick(&[0, 1, 64, 2047, 2048, 2049, 1 << 30, (1 << 30) + 1, (1 << 31) - 1]);
    Window::moving(size, if dice.one_in(2) { prod.wrapping_add(near) } else { prod.wrapping_sub(near) }).0
}

fn word(peer: &Peer, session: &Session, dice: &mut Dice) {
    let Some(memory) = any_memory(peer, dice) else { return };
    let at = if dice.one_in(20) { 8 * dice.below(512) as usize } else { dice.pick(&WORDS) };
    let word = memory.word(at);
    word.store(value_at(memory, at, dice), Ordering::SeqCst);
    if !dice.one_in(4) {
        peer.ring(session);
    }
}

fn hammer(peer: &Peer, dice: &mut Dice) {
    let Some(memory) = any_memory(peer, dice) else { return };
    let at = dice.pick(&WORDS);
    let word = memory.word(at);
    let now = word.load(Ordering::SeqCst);
    let one = value_at(memory, at, dice);
    let other = if dice.one_in(2) { now } else { value_at(memory, at, dice) };
    let end = Instant::now() + Duration::from_micros(dice.below(4000));
    while Instant::now() < end {
        for _ in 0..100 {
            word.store(one, Ordering::SeqCst);
            word.store(other, Ordering::SeqCst);
        }
    }
}

fn bytes(peer: &Peer, dice: &mut Dice) {
    let end = Instant::now() + Duration::from_micros(dice.below(2000));
    while Instant::now() < end {
        for memory in memories(peer) {
            for _ in 0..200 {
                let at = memory.region.len() as u64 - shunpike_shm::lane::HEADER as u64;
                let at = shunpike_shm::lane::HEADER + (dice.below(at) as usize & !7);
                // Now and then in the first ring.
                let at = if dice.one_in(4) { 0x800 + (dice.below(0x400) as usize & !7) } else { at };
                memory.word(at).store(dice.word(), Ordering::Relaxed);
            }
        }
    }
}

fn retract(peer: &mut Peer, session: &Session, dice: &mut Dice) {
    let before = peer.sent;
    if peer.publish(session, &[5; 64])
        && let (Some(before), Some(victims)) = (before, &peer.victims)
    {
        let end = Instant::now() + Duration::from_micros(dice.below(300));
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        victims.word(PROD).store(before.0, Ordering::SeqCst);
    }
}

/// The victim may read this process, if the witness is where it is said to be; and of it what there is.
fn lend(peer: &mut Peer, session: &Session, dice: &mut Dice) {
    static WITNESS: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
    static MEMORY: [u8; 1 << 16] = [4; 1 << 16];
    let Some(victims) = &peer.victims else { return };
    let beside = if dice.one_in(4) { 8 } else { 0 };
    victims.dmb().words().announce(Witness { at: WITNESS.as_ptr() as u64 + beside, value: WITNESS });
    // It looks for the witness when it reads.
    peer.publish(session, &[6; 100]);
    std::thread::sleep(Duration::from_micros(dice.below(1000)));
    let (Some(victims), Some(sent)) = (&peer.victims, peer.sent) else { return };
    let memory = MEMORY.as_ptr() as u64;
    for number in 0..1 + dice.below(6) {
        let loan = Loan {
            at: sent.offset().wrapping_add_signed(dice.pick(&[0, 0, 0, 100, 4096, -1, -4096, 1 << 40])),
            len: dice.pick(&[0, 1, 100, 4096, 16384, 1 << 20, u64::MAX]),
            from: dice.pick(&[memory, memory, memory + (1 << 16) - 50, 0, 1 << 63, u64::MAX - 50]),
        };
        victims.dmb().words().lend(number as u32, loan);
    }
    let length = 1 + dice.below(8000) as usize;
    peer.publish(session, &vec![8; length]);
}

fn news(peer: &Peer, session: &Session, dice: &mut Dice) {
    let Some(group) = peer.group(session) else { return };
    let end = Instant::now() + Duration::from_micros(dice.below(3000));
    let pattern = dice.pick(&[0, u64::MAX, 1]);
    let sleeps_only = dice.one_in(3);
    loop {
        for line in (0..0x800).step_by(0x80) {
            for at in [0x00, 0x08, 0x10, 0x18, 0x20] {
                if sleeps_only && at != 0x20 {
                    continue;
                }
                // SAFETY: an atomic inside of the page, which stays mapped.
                let word = unsafe { group.page.at::<std::sync::atomic::AtomicU64>(line + at) };
                if let Some(word) = word {
                    word.store(pattern, Ordering::SeqCst);
                }
            }
        }
        if Instant::now() > end {
            return peer.ring(session);
        }
    }
}

/// Every doorbell, ours too, full, emptied, or one that waits; and the victim given cause to ring ours.
fn bell_state(peer: &mut Peer, session: &Session, dice: &mut Dice) {
    let Some(group) = peer.group(session) else { return };
    for bell in group.bells.iter().chain([&session.bell]) {
        match dice.below(3) {
            0 => (0..64).rev().for_each(|bit| add(bell, 1 << bit)),
            1 => take(bell, dice.pick(&[1, 1000])),
            _ => {}
        }
        if dice.one_in(2) {
            let flags = rustix::fs::fcntl_getfl(bell).unwrap_or(OFlags::empty());
            let _ = rustix::fs::fcntl_setfl(bell, flags ^ OFlags::NONBLOCK);
        }
    }
    for cq in 0..8 {
        let at = usize::from(peer.side & 1) * 0x400 + cq * 0x80 + 0x20;
        // SAFETY: an atomic inside of the page, which stays mapped.
        if let Some(sleeps) = unsafe { group.page.at::<std::sync::atomic::AtomicU64>(at) } {
            sleeps.store(u64::MAX, Ordering::SeqCst);
        }
    }
    if let Some(own) = &peer.own {
        own.word(RWAIT).store(u64::MAX, Ordering::SeqCst);
    }
    peer.publish(session, &[3; 100]);
}

/// Whatever is shared cannot change its size, and what we may only read we cannot write.
fn seals(peer: &Peer, session: &Session) -> Result<(), String> {
    let group = peer.group(session);
    let writable =
        memories(peer).map(|m| (&m.fd, m.region.len())).chain(group.map(|g| (&g.page_fd, g.page.len())));
    for (fd, len) in writable {
        for size in [0, len as u64 - 1, len as u64 + 1, 1 << 30] {
            refused("change the size of shared memory", rustix::fs::ftruncate(fd, size))?;
        }
        refused("grow shared memory", rustix::fs::fallocate(fd, FallocateFlags::empty(), len as u64, 4096))?;
        refused("seal shared memory further", rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE))?;
        region::verify(fd.as_fd(), len).map_err(|e| format!("after all that: {e}"))?;
        // Pages go, the size stays: the next look finds zeros.
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(fd, punch, 0, len as u64).map_err(|e| format!("punch: {e}"))?;
    }
    for fd in &session.pages {
        let mapped = Region::map(fd.as_fd(), 4096);
        if mapped.is_ok() {
            return Err("the broker's page can be mapped writable".into());
        }
        refused("write to the broker's page", rustix::io::write(fd, &[1]).map(drop))?;
        refused("change the size of the broker's page", rustix::fs::ftruncate(fd, 0))?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        refused("punch the broker's page", rustix::fs::fallocate(fd, punch, 0, 4096))?;
    }
    Ok(())
}

fn refused(what: &str, result: Result<(), Errno>) -> Result<(), String> {
    if result.is_ok() { Err(format!("it is possible to {what}")) } else { Ok(()) }
}

fn messages(peer: &Peer, session: &Session, dice: &mut Dice) {
    let token = match dice.below(3) {
        0 => dice.word(),
        1 => peer.own.as_ref().map_or(0, |m| m.token),
        _ => peer.victims.as_ref().map_or(0, |m| m.token),
    };
    let mut clc = vec![0; 1 + dice.below(200) as usize];
    clc.iter_mut().for_each(|byte| *byte = dice.word() as u8);
    // "SMCD", a type, a length: what is looked at further in.
    if !dice.one_in(3) && clc.len() >= 8 {
        let len = clc.len() as u16;
        clc[..4].copy_from_slice(&[0xe2, 0xd4, 0xc3, 0xc4]);
        clc[4] = 1 + dice.below(5) as u8;
        clc[5..7].copy_from_slice(&len.to_be_bytes());
        clc[7] = dice.pick(&[0x10, 0x12, 0x20, 0x22, 0x29]);
    }
    let Ok(clc) = ClcBytes::new(&clc) else { return };
    let conn = peer.id;
    let message = match dice.below(9) {
        0 => ToBroker::Withdraw { conn },
        1 => ToBroker::Detach { token, gone: dice.below(2) == 0 },
        2 => ToBroker::Unregister { token },
        3 => ToBroker::Attach { conn, token },
        4 => ToBroker::Park { token },
        5 => ToBroker::Reuse { conn, token },
        _ => ToBroker::Clc { conn, clc },
    };
    let _ = session.say(&message, &[]);
}
