//! What clients say, and what is done about it.

use super::admission::PATIENCE;
use super::questions::Asked;
use super::{End, Server};
use crate::clock;
use crate::datagram::{self, Next};
use crate::delays;
use crate::ends::{Party, SessionId};
use crate::facts::{self, Counts, Endpoint, Proof};
use crate::foreign::{Last, Shared};
use crate::helpers::{Heard, Reply, Request};
use crate::policy::Policy;
use crate::runtime::{self, Confinement, OwnPid, Status};
use crate::session::{Kind, Pending, Program, Said, Sent, Session};
use crate::stats::ArenaKey;
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::Timespec;
use shunpike_shm::arena::{ArenaView, BLOCKS};
use shunpike_shm::lane::{HEADER, MAX_CLASS};
use shunpike_shm::pages::SessionPage;
use shunpike_shm::published::Published;
use shunpike_shm::tap;
use shunpike_wire::clc;
use shunpike_wire::session::{CONTROL, FromBroker, MAX_CQS, SessionError, ToBroker, VERSION};
use shunpike_wire::{DmbSize, Reason};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Messages of one client that are handled before the others have their turn.
const MESSAGES_A_TURN: usize = 16;
/// Messages of one user in one turn, over all sessions that it has, where the broker serves several users.
const OF_USER_A_TURN: usize = 32;
/// Helpers' answers that are looked at in one turn.
const ANSWERS_A_TURN: usize = 64;
/// What a program's socket may hold unread, bytes (which the kernel doubles): what waits beyond that is counted.
const OUTGOING: usize = 32 << 10;

impl Server {
    pub(super) fn serve_session(&mut self, id: SessionId, events: EventFlags) {
        if events.contains(EventFlags::OUT)
            && let Some(session) = self.sessions.get_mut(&id)
        {
            match session.flush() {
                Sent::All if matches!(session.kind, Kind::Listing(_)) => self.take_question(id, Asked::More),
                sent => self.note(id, sent),
            }
        }
        if !events.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return;
        }
        let is_with_helper = |session: &Session| session.with_helper.is_some();
        if self.sessions.get(&id).is_some_and(is_with_helper) {
            return self.pause(id, events);
        }
        self.read(id);
    }

    /// Something is said while an earlier message is with a helper.
    fn pause(&mut self, id: SessionId, events: EventFlags) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if events.intersects(EventFlags::HUP | EventFlags::ERR) && !session.is_over {
            // What it said still counts, but nobody waits for a helper that does not come to it.
            session.is_over = true;
            self.patience.push_back((clock::now() + PATIENCE, id));
        }
        if !std::mem::replace(&mut session.is_paused, true) {
            self.listen_to(id);
        }
    }

    /// Looks at what a session says.
    fn read(&mut self, id: SessionId) {
        for _ in 0..MESSAGES_A_TURN {
            let Some(session) = self.sessions.get_mut(&id) else { return };
            if session.with_helper.is_some() {
                return;
            }
            let user = session.peer.uid();
            let is_bounded = !self.config.private && !session.peer.is_operator;
            if is_bounded && self.heard.get(&user).is_some_and(|heard| *heard == OF_USER_A_TURN) {
                break;
            }
            let message = match delays::message(user, || datagram::peek(session.as_fd())) {
                Ok(Next::Message(message)) => message,
                Ok(Next::Nothing) => {
                    session.caught_up();
                    self.answerable.iter_mut().for_each(|all| all.caught_up(id));
                    return;
                }
                Err(Errno::INTR) => continue,
                Ok(Next::End) | Err(_) => return self.end(id),
            };
            if session.is_programs() {
                self.quiet_turns = 0;
            }
            if is_bounded {
                *self.heard.entry(user).or_default() += 1;
            }
            let len = message.bytes().len();
            if !message.has_fds {
                delays::message(user, || datagram::take(session.as_fd()));
                self.answerable.iter_mut().for_each(|all| all.heard(id, len));
            }
            let heard = self.decode(id, message.bytes()).and_then(|said| match message.has_fds {
                true => self.hand_over(id, said, len),
                false => self.hear(id, said, None, Vec::new()),
            });
            if heard.is_err() {
                return self.end_wrongdoer(id);
            }
            self.deliver();
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.is_behind = true;
        }
    }

    fn end_wrongdoer(&mut self, id: SessionId) {
        if let Some(times) = self.told.wrongdoers.happened(clock::now()) {
            tracing::warn!(session = id.0, times, "ended a session that broke the protocol");
        }
        self.end(id);
    }

    fn decode(&self, id: SessionId, message: &[u8]) -> Result<Said, End> {
        let strange = || Ok(Said::Strange(message.into()));
        match (self.sessions.get(&id).map(|session| &session.kind), ToBroker::decode(message)) {
            (Some(Kind::Laneless(_)), _) => strange(),
            (_, Ok(message)) => Ok(Said::Known(message)),
            // A later version's, that it says beside what we know.
            (Some(kind), Err(SessionError::Type)) if !matches!(kind, Kind::New) => strange(),
            (_, Err(error)) => {
                tracing::debug!(session = id.0, %error, "decode");
                Err(End)
            }
        }
    }

    /// A message with descriptors, which still is in its socket: a helper takes it.
    fn hand_over(&mut self, id: SessionId, said: Said, len: usize) -> Result<(), End> {
        let Some(session) = self.sessions.get(&id) else { return Err(End) };
        let mut fds = vec![session.socket()];
        let Said::Known(message) = &said else {
            return self.ask(id, Request::Discard, fds, Pending { said, len });
        };
        let request = match (*message, &session.kind) {
            (ToBroker::Hello { version: VERSION, doorbells, .. }, Kind::New) => {
                // Before there is an arena.
                if !(1..=MAX_CQS).contains(&usize::from(doorbells)) {
                    return Err(End);
                }
                Request::Greeting { doorbells: doorbells.into(), pid: session.peer.pid }
            }
            // What lies beside may be anything.
            (ToBroker::Hello { .. }, Kind::New) => Request::Discard,
            (ToBroker::Ring { class, .. }, Kind::Tap) if class <= tap::MAX_CLASS => {
                Request::Memory(tap::len(class))
            }
            (ToBroker::Register { conn, class }, Kind::Program(_)) => match DmbSize::from_class(class) {
                Some(size)
                    if class <= MAX_CLASS && self.exchange.may_register(Party { session: id, conn }) =>
                {
                    Request::Memory(HEADER + size.bytes())
                }
                _ => Request::Discard,
            },
            (ToBroker::Nominate { conn, .. }, _) if conn.index() >= BLOCKS as u32 => return Err(End),
            (ToBroker::Nominate { conn, role, tx, rx, .. }, Kind::Program(program)) => {
                fds.push(Rc::clone(program.arena.fd()));
                let claimed = Counts { tx, rx };
                if self.may_nominate(id) {
                    Request::Nomination { conn, role, claimed }
                } else {
                    Request::Discard
                }
            }
            _ => return Err(End),
        };
        self.ask(id, request, fds, Pending { said, len })
    }

    fn ask(
        &mut self,
        id: SessionId,
        request: Request,
        fds: Vec<Rc<OwnedFd>>,
        pending: Pending,
    ) -> Result<(), End> {
        let Some(session) = self.sessions.get_mut(&id) else { return Err(End) };
        session.with_helper = Some(pending);
        let user = session.peer.uid();
        self.helpers.ask(user, id, request, fds, &self.of_helpers);
        Ok(())
    }

    /// Looks at what helpers have to say. Returns how many.
    pub(super) fn serve_helpers(&mut self) -> usize {
        let mut room = [const { MaybeUninit::uninit() }; ANSWERS_A_TURN];
        // Failure leaves them for the next turn.
        let Ok((events, _)) = epoll::wait(&self.of_helpers, &mut room, Some(&Timespec::default())) else {
            return 0;
        };
        for event in &*events {
            self.hear_helper(event.data.u64());
            self.deliver();
        }
        events.len()
    }

    fn hear_helper(&mut self, helper: u64) {
        match self.helpers.hear(helper, &self.of_helpers) {
            Heard::Nothing => {}
            Heard::Lost(id) => self.end(id),
            Heard::Answer(id, reply, fds) => {
                let pending = self.sessions.get_mut(&id).and_then(|session| session.with_helper.take());
                let Some(Pending { said, len }) = pending else {
                    return debug_assert!(false, "nothing was asked");
                };
                self.answerable.iter_mut().for_each(|all| all.heard(id, len));
                if self.hear(id, said, Some(reply), fds).is_err() {
                    return self.end_wrongdoer(id);
                }
                self.deliver();
                // At once: others may wait for what was said behind it.
                self.read(id);
                if let Some(session) = self.sessions.get_mut(&id)
                    && session.with_helper.is_none()
                    && std::mem::take(&mut session.is_paused)
                {
                    self.listen_to(id);
                }
            }
        }
    }

    fn hear(
        &mut self,
        id: SessionId,
        said: Said,
        reply: Option<Reply>,
        fds: Vec<OwnedFd>,
    ) -> Result<(), End> {
        match said {
            Said::Known(message) => self.handle(id, message, reply, fds),
            Said::Strange(bytes) => {
                self.hear_without_lanes(id, &bytes);
                Ok(())
            }
        }
    }

    /// Does what a message asks for. `reply` and `fds` are what a helper made of the descriptors beside it.
    fn handle(
        &mut self,
        id: SessionId,
        message: ToBroker,
        reply: Option<Reply>,
        fds: Vec<OwnedFd>,
    ) -> Result<(), End> {
        let Some(session) = self.sessions.get(&id) else { return Err(End) };
        let (is_new, is_program) = (matches!(session.kind, Kind::New), session.program().is_some());
        let is_tap = matches!(session.kind, Kind::Tap);
        let party = |conn| Party { session: id, conn };
        match message {
            ToBroker::Hello { control, version, doorbells, comm } if is_new => {
                // Its own choice, and on its way to terminals.
                let comm = crate::text::plain_name(&comm);
                if let Some(peer) = self.sessions.get(&id).map(|session| &session.peer)
                    && let Err(why) = self.may_serve(peer)
                {
                    let user = peer.uid();
                    if let Some(times) = self.told.not_served.happened(clock::now()) {
                        tracing::warn!(pid = peer.pid, uid = user, times, "turned a program away: {why}");
                    }
                    fds.into_iter().for_each(|fd| self.graves.enter(user, fd, Last::Free));
                    return Err(End);
                }
                return match version {
                    VERSION => match reply {
                        Some(Reply::Greeted(status)) => {
                            self.hello(id, (control, doorbells), comm, fds, status)
                        }
                        _ => Err(End),
                    },
                    _ => self.hello_without_lanes(id, (control, version), comm),
                };
            }
            ToBroker::Query { what, arg } if is_new => self.take_question(id, Asked::This(what, arg)),
            ToBroker::Hello { .. } | ToBroker::Query { .. } => return Err(End),
            ToBroker::Ring { ring, class } if is_tap => {
                let user = session.peer.uid();
                let memory = single(fds).map(|fd| Shared::memory_of_client(fd, user, &self.graves));
                return self.taps.take_ring(&mut self.exchange, &self.sessions, id, ring, class, memory);
            }
            ToBroker::Ring { .. } => return Err(End),
            _ if !is_program => return Err(End),
            ToBroker::Nominate { conn, .. } if conn.index() >= BLOCKS as u32 => return Err(End),
            ToBroker::Nominate { conn, role, answer, .. } => {
                let proof = match reply {
                    Some(Reply::Proof(proof)) => proof,
                    None if self.may_nominate(id) => Proof::Refused(Reason::NoDescriptors),
                    _ => Proof::Refused(Reason::NominationLimit),
                };
                if let Proof::Proved(facts) = &proof {
                    let holds =
                        |known: &facts::Facts| self.diag.as_ref().is_some_and(|diag| diag.holds(known));
                    self.exchange.confront(party(conn), facts, holds);
                }
                self.exchange.nominate(party(conn), role, proof, answer);
            }
            ToBroker::Expect { conn, role, ip, port } => {
                let ip = IpAddr::from(ip).to_canonical();
                self.exchange.expect(party(conn), role, Endpoint { ip, port });
            }
            ToBroker::Withdraw { conn } => self.exchange.withdraw(party(conn)),
            ToBroker::Clc { conn, clc } => {
                match clc::Message::decode(clc.as_slice()) {
                    Ok(clc::Message::Decline(decline)) => {
                        self.exchange.declined(party(conn), decline.diagnosis);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(session = id.0, %error, "CLC message");
                        return Err(End);
                    }
                }
                if !self.exchange.relay(party(conn), clc) {
                    return Err(End);
                }
            }
            ToBroker::Register { conn, class } => {
                let user = session.peer.uid();
                let memory = single(fds).map(|fd| Shared::memory_of_client(fd, user, &self.graves));
                self.exchange.register(party(conn), class, memory);
            }
            ToBroker::Attach { conn, token } => self.exchange.attach(party(conn), token),
            ToBroker::Unregister { token } => self.exchange.unregister(id, token),
            ToBroker::Detach { token, gone } => self.exchange.detach(id, token, gone),
            // Its arena shows what it has.
            ToBroker::Lanes { .. } => {}
            ToBroker::Park { token } => self.exchange.park(id, token, clock::now()),
            ToBroker::Reuse { conn, token } => self.exchange.reuse(party(conn), token),
        }
        Ok(())
    }

    fn hello(
        &mut self,
        id: SessionId,
        (control, doorbells): (u16, u8),
        comm: String,
        fds: Vec<OwnedFd>,
        status: Status,
    ) -> Result<(), End> {
        let user = self.sessions.get(&id).map_or(u32::MAX, |session| session.peer.uid());
        let [arena, bells] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| End)?;
        let bells = Shared::of_client(bells, user, &self.graves);
        let key = ArenaKey::of(arena.as_fd()).map_err(|_| End)?;
        let view = ArenaView::of(arena).map_err(|_| End)?;
        let page = Published::<SessionPage>::create("shunpike-session").map_err(|_| End)?;
        let page_fd = Rc::new(page.fd().try_clone_to_owned().map_err(|_| End)?.into());
        let versions = (control.min(CONTROL), VERSION);
        let welcome = FromBroker::Welcome(self.system.welcome(self.exchange.device.as_ref(), versions));
        let fds = vec![page_fd, self.knobs_for(&comm)];
        let session = self.sessions.get_mut(&id).ok_or(End)?;
        tracing::debug!(session = id.0, pid = session.peer.pid, comm, "hello");
        let watch = delays::look(user);
        let maker = view.header().pid.load(Ordering::Relaxed);
        drop(watch);
        self.ledger.begin(key, user, maker);
        // What its socket held unread would be counted for nobody.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&session, OUTGOING);
        let confinement = Confinement::with(session.peer.pid, status);
        let confinement = confinement.filter(|_| runtime::is_alive(session.as_fd()));
        // Shown, and nothing else.
        let own_pid = OwnPid::with(status);
        let program = Program::new(view, key, comm, own_pid, confinement, page);
        session.kind = Kind::Program(Box::new(program));
        self.exchange.begin_session(id, session.peer.identity.clone(), bells, doorbells);
        if status.may_read_others() {
            self.exchange.lets_read(id, session.peer.pid);
        }
        let sent = session.post(&welcome, fds);
        self.note(id, sent);
        // Before it can have a lane.
        self.taps.show(&mut self.exchange, &self.sessions, id);
        Ok(())
    }

    /// Looking at a socket is the most that a message can cost us.
    fn may_nominate(&mut self, id: SessionId) -> bool {
        let now = clock::now();
        let Policy { process, user, .. } = &self.config.policy;
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        let (pid, uid) = (session.peer.pid, session.peer.uid());
        let Kind::Program(program) = &mut session.kind else { return false };
        let of_process = match pid {
            // In a pid namespace that we do not see into: as if each session were a process.
            0 => program.rate.take(process.nominations, now),
            // One that has ended may have left its number to another user's.
            pid => self.rates_of_processes.take((pid, uid), process.nominations, now),
        };
        of_process && self.rates.take(uid, user.nominations, now)
    }
}

fn single(fds: Vec<OwnedFd>) -> Option<OwnedFd> {
    let mut fds = fds.into_iter();
    fds.next().filter(|_| fds.next().is_none())
}
