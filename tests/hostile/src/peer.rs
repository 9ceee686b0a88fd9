//! One connection to the victim: made, matched, shaken hands on. Up to the end of the handshake an honest peer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use shunpike_shm::lane::{Cursor, Dmb, HEADER};
use shunpike_shm::{Region, region};
use shunpike_wire::clc::handshake::{Client, Input, NamedDmb as Named, Next, Outbox, Step};
use shunpike_wire::session::{ClcBytes, ConnId, FromBroker, Role, ToBroker};
use shunpike_wire::{DmbSize, DmbToken};

use crate::dice::Dice;
use crate::session::{Group, Session};

/// Words of a DMB, bytes from its start (docs/shared-memory.md).
pub const PROD: usize = 0x000;
/// See [`PROD`].
pub const WINDOW: usize = 0x008;
/// See [`PROD`].
pub const CONS: usize = 0x080;
/// See [`PROD`].
pub const START: usize = 0x100;
/// See [`PROD`].
pub const RWAIT: usize = 0x180;
/// See [`PROD`].
pub const WWAIT: usize = 0x200;
/// See [`PROD`].
pub const LENT: usize = 0x018;
/// See [`PROD`].
pub const ANSWER: usize = 0x300;
/// Size class of the DMBs that we register: the smallest.
const CLASS: u8 = 0;
/// Nothing honest takes as long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A DMB that we can write to.
pub struct Memory {
    /// Its mapping.
    pub region: Region,
    /// Its memfd.
    pub fd: OwnedFd,
    /// Its name at the broker.
    pub token: u64,
}

impl Memory {
    /// The word at byte `offset` of the words, or of the region, where that is behind them.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let offset = if offset < HEADER { Dmb::words_at(self.token) + offset } else { offset };
        // SAFETY: an atomic inside of a live mapping; unmapped only together with `self`.
        unsafe { self.region.at(offset).expect("inside the region") }
    }

    /// Begins the lane at `tcp_byte`, with all of the ring in use that the receiver can read.
    fn begin(&self, tcp_byte: u64) -> bool {
        let words = self.dmb().words();
        words.begin(1, tcp_byte, words.reach())
    }

    /// As a DMB.
    pub fn dmb(&self) -> Dmb {
        Dmb::new(self.region, self.token).expect("a DMB's size")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing borrowed from `self` is left.
        unsafe { self.region.unmap() };
    }
}

/// How far the handshake came.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Both ends are open.
    Open,
    /// Left in the middle, as asked.
    Interrupted,
    /// The other end, or the broker, did not want a lane.
    Refused,
    /// The broker has ended our session, for what we said to it before.
    Lost,
}

/// Our end of a connection.
pub struct Peer {
    /// The TCP connection.
    pub tcp: TcpStream,
    /// Its name towards the broker.
    pub id: ConnId,
    /// Link group, 0 before it is matched.
    pub link: u32,
    /// News slot.
    pub slot: u16,
    /// Our side.
    pub side: u8,
    /// What the victim sends to.
    pub own: Option<Memory>,
    /// What we send to.
    pub victims: Option<Memory>,
    /// Bytes sent and received by TCP.
    counts: (u64, u64),
    /// What an honest peer would have published, and consumed.
    pub sent: Option<Cursor>,
    consumed: u64,
}

impl Peer {
    /// Connects to the victim.
    pub fn connect(session: &mut Session, target: SocketAddr) -> std::io::Result<Self> {
        let tcp = TcpStream::connect(target)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_write_timeout(Some(PATIENCE))?;
        let id = session.fresh_id();
        Ok(Self {
            tcp,
            id,
            link: 0,
            slot: 0,
            side: 0,
            own: None,
            victims: None,
            counts: (0, 0),
            sent: None,
            consumed: 0,
        })
    }

    /// The link group's page and doorbells.
    pub fn group<'s>(&self, session: &'s Session) -> Option<&'s Group> {
        session.groups.get(&self.link)
    }

    /// Tells the broker of the connection; says whether it could.
    fn nominate(&self, session: &Session) -> bool {
        let (tx, rx) = self.counts;
        let message = ToBroker::Nominate { conn: self.id, role: Role::Client, tx, rx, answer: false };
        session.say(&message, &[self.tcp.as_fd()]).is_ok()
    }

    /// Nominates the connection and shakes hands as CLC's client; stops after `most` messages of the broker.
    pub fn shake(&mut self, session: &mut Session, most: u64) -> Result<Stage, String> {
        if !self.nominate(session) {
            return Ok(Stage::Lost);
        }
        let mut machine = None;
        let mut out: Outbox = [0; _];
        let end = Instant::now() + PATIENCE;
        let mut heard = 0;
        while heard < most {
            let Ok(heard_now) = session.hear(1) else { return Ok(Stage::Lost) };
            let Some((message, mut fds)) = heard_now else {
                if Instant::now() > end {
                    return Err(format!("the handshake does not go on after {heard} messages"));
                }
                // The victim reads the broker's messages inside of calls of its own: it must have something to do.
                self.exchange(session, b"..").map_err(|e| format!("by TCP in the handshake: {e}"))?;
                continue;
            };
            let input = match message {
                FromBroker::Matched { conn, link, slot, side, first_contact, .. } => {
                    // Also of a connection that was left before it was matched: the group is told of but once.
                    if first_contact {
                        session.enter(link, fds)?;
                    }
                    if conn != self.id {
                        continue;
                    }
                    (self.link, self.slot, self.side) = (link, slot, side);
                    let (client, step) = Client::start(&session.device, first_contact, link, &mut out);
                    machine = Some(client);
                    if !self.act(session, step)? {
                        return Ok(Stage::Lost);
                    }
                    heard += 1;
                    continue;
                }
                FromBroker::Again { conn } if conn == self.id => {
                    if !self.nominate(session) {
                        return Ok(Stage::Lost);
                    }
                    continue;
                }
                FromBroker::Refused { conn, .. } if conn == self.id => return Ok(Stage::Refused),
                FromBroker::Gone { conn } if conn == self.id => Input::PeerVanished,
                FromBroker::Clc { conn, ref clc } if conn == self.id => Input::Clc(clc.as_slice()),
                FromBroker::Registered { conn, token, reason } if conn == self.id => {
                    let Some(own) = self.own.as_mut().filter(|_| reason == 0) else {
                        return Ok(Stage::Refused);
                    };
                    own.token = token;
                    own.dmb().words().set_reach(u64::MAX);
                    own.dmb().words().grant(1);
                    Input::Registered(named(token, CLASS))
                }
                FromBroker::Attached { conn, token, class, reason } if conn == self.id => {
                    if reason != 0 || fds.is_empty() {
                        return Ok(Stage::Refused);
                    }
                    let fd = fds.remove(0);
                    let region = Region::map(fd.as_fd(), Dmb::len(class)).map_err(|e| e.to_string())?;
                    self.victims = Some(Memory { region, fd, token });
                    Input::Attached(named(token, class))
                }
                // Of a connection that was left earlier.
                _ => continue,
            };
            heard += 1;
            let Some(client) = &mut machine else { continue };
            let step = client.step(&session.device, input, &mut out);
            let next = step.next;
            if !self.act(session, step)? {
                return Ok(Stage::Lost);
            }
            match next {
                Next::Open(_) => {
                    let begins = self.victims.as_ref().is_some_and(|m| m.begin(self.counts.0));
                    self.sent = begins.then(|| Cursor::new(1, 0));
                    return Ok(Stage::Open);
                }
                Next::Fallback(_) => return Ok(Stage::Refused),
                _ => {}
            }
        }
        Ok(Stage::Interrupted)
    }

    /// Does what the handshake asks for. False: the broker has ended the session.
    fn act(&mut self, session: &mut Session, step: Step<'_>) -> Result<bool, String> {
        if let Some(clc) = step.send {
            let clc = ClcBytes::new(clc).map_err(|e| e.to_string())?;
            if session.say(&ToBroker::Clc { conn: self.id, clc }, &[]).is_err() {
                return Ok(false);
            }
        }
        let said = match step.next {
            Next::Register => {
                let fd = region::create("hostile", Dmb::len(CLASS)).map_err(|e| e.to_string())?;
                let region = Region::map(fd.as_fd(), Dmb::len(CLASS)).map_err(|e| e.to_string())?;
                let said = session.say(&ToBroker::Register { conn: self.id, class: CLASS }, &[fd.as_fd()]);
                self.own = Some(Memory { region, fd, token: 0 });
                said
            }
            Next::Attach(dmb) => session.say(&ToBroker::Attach { conn: self.id, token: dmb.token.0 }, &[]),
            _ => Ok(()),
        };
        Ok(said.is_ok())
    }

    /// Rings the victim: a news bit for every queue, and every doorbell.
    pub fn ring(&self, session: &Session) {
        let Some(group) = self.group(session) else { return };
        let to = usize::from(1 - (self.side & 1));
        for cq in 0..8 {
            let at = to * 0x400 + cq * 0x80 + usize::from(self.slot / 64) * 8;
            // SAFETY: an atomic inside of the page, which stays mapped.
            if let Some(news) = unsafe { group.page.at::<AtomicU64>(at) } {
                news.fetch_or(1 << (self.slot % 64), Ordering::SeqCst);
            }
        }
        group.bells.iter().for_each(|bell| take(bell, 1));
    }

    /// Puts `bytes` on the lane as an honest sender does. False: there is no lane (any more), or no room.
    pub fn publish(&mut self, session: &Session, bytes: &[u8]) -> bool {
        let published = self.publish_untold(bytes);
        if published {
            self.ring(session);
        }
        published
    }

    /// The same, but tells nobody.
    pub fn publish_untold(&mut self, bytes: &[u8]) -> bool {
        let (Some(at), Some(memory)) = (self.sent, &self.victims) else { return false };
        let dmb = memory.dmb();
        let dmb = dmb.as_sent().unwrap_or(dmb);
        let unread = at.offset().wrapping_sub(dmb.words().cons().offset());
        if unread > dmb.window() || dmb.window() - unread < bytes.len() as u64 {
            return false;
        }
        // SAFETY: `bytes` is readable; its length is at most what is free.
        unsafe { dmb.fill(at.offset(), bytes.as_ptr(), bytes.len()) };
        self.sent = dmb.words().publish(at, bytes.len() as u64).ok();
        self.sent.is_some()
    }

    /// Sends a message and awaits its echo, by lane or TCP as the victim chooses. Errors: what differs.
    pub fn echo(&mut self, session: &Session, dice: &mut Dice) -> Result<(), String> {
        let message: Vec<u8> = (0..2 + dice.below(700)).map(|_| dice.word() as u8).collect();
        if !self.publish(session, &message) {
            return Err("the lane is closed".into());
        }
        self.await_echo(session, &message)
    }

    /// The same by TCP, before the lane.
    pub fn exchange(&mut self, session: &Session, message: &[u8]) -> Result<(), String> {
        self.tcp.write_all(message).map_err(|e| e.to_string())?;
        self.counts.0 += message.len() as u64;
        self.await_echo(session, message)
    }

    fn await_echo(&mut self, session: &Session, message: &[u8]) -> Result<(), String> {
        let mut back = Vec::new();
        let end = Instant::now() + PATIENCE;
        while back.len() < message.len() {
            if Instant::now() > end {
                return Err(format!("{} of {} bytes came back", back.len(), message.len()));
            }
            self.collect(session, &mut back).map_err(|e| format!("echo: {e}"))?;
        }
        if back == message { Ok(()) } else { Err("the echo is not what was sent".into()) }
    }

    /// Reads what there is, by TCP up to the lane's beginning and from the ring after it.
    fn collect(&mut self, session: &Session, to: &mut Vec<u8>) -> std::io::Result<()> {
        if let Some(own) = &self.own {
            let dmb = own.dmb();
            let begun = dmb.words().start(1) == Some(self.counts.1);
            let prod = dmb.words().prod();
            // Before it has begun, the sender has said nothing of its window.
            let dmb = dmb.as_sent_behind(self.consumed).unwrap_or(dmb);
            let unread = prod.offset().wrapping_sub(self.consumed).min(dmb.most(self.consumed));
            if begun && unread > 0 {
                for at in self.consumed..self.consumed + unread {
                    // SAFETY: `span` points into the ring.
                    to.push(unsafe { dmb.span(at).0.read_volatile() });
                }
                let _ = dmb.words().consume(Cursor::new(1, self.consumed), unread);
                self.consumed += unread;
                self.ring(session);
                return Ok(());
            }
        }
        self.tcp.set_read_timeout(Some(Duration::from_millis(1)))?;
        let mut chunk = [0; 4096];
        match self.tcp.read(&mut chunk) {
            Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.counts.1 += n as u64;
                to.extend_from_slice(&chunk[..n]);
                Ok(())
            }
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

/// Adds `n` to a doorbell that may be full.
pub fn add(bell: &OwnedFd, n: u64) {
    at_once(bell, || {
        let _ = rustix::io::write(bell, &n.to_ne_bytes());
    });
}

/// Takes from a doorbell `times` over, or until it is empty.
pub fn take(bell: &OwnedFd, times: usize) {
    at_once(bell, || {
        let mut count = [0; 8];
        let _ = (0..times).try_for_each(|_| rustix::io::read(bell, &mut count).map(drop));
    });
}

/// Does something with a doorbell that may wait since we changed its flags.
fn at_once(bell: &OwnedFd, act: impl FnOnce()) {
    let Ok(flags) = rustix::fs::fcntl_getfl(bell) else { return };
    let _ = rustix::fs::fcntl_setfl(bell, flags | OFlags::NONBLOCK);
    act();
    let _ = rustix::fs::fcntl_setfl(bell, flags);
}

fn named(token: u64, class: u8) -> Named {
    Named { token: DmbToken(token), size: DmbSize::from_class(class).expect("a class of the broker's") }
}

/// Whether the victim still serves: a message by plain TCP and back. Errors: it does not.
pub fn probe(target: SocketAddr) -> Result<(), String> {
    let probe = || -> std::io::Result<bool> {
        let mut tcp = TcpStream::connect_timeout(&target, PATIENCE)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.write_all(b"alive?")?;
        let mut back = [0; 6];
        tcp.read_exact(&mut back)?;
        Ok(&back == b"alive?")
    };
    match probe() {
        Ok(true) => Ok(()),
        Ok(false) => Err("the victim echoes other bytes to a bystander".into()),
        Err(e) => Err(format!("the victim does not serve a bystander: {e}")),
    }
}
