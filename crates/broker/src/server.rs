//! The event loop: one thread, nothing that blocks, a bounded amount of work for each client and turn.

use crate::datagram::{self, Received};
use crate::diag::Diag;
use crate::exchange::{Exchange, Post};
use crate::facts::{self, Counts, Endpoint, Proof};
use crate::foreign::Foreign;
use crate::ism::{Party, SessionId};
use crate::loopback::LoopbackIsm;
use crate::metrics::{self, Metrics};
use crate::policy::{self, Identity, Policy};
use crate::query::System;
use crate::rate::Rates;
use crate::runtime::{self, Place};
use crate::sequence::SequenceReader;
use crate::session::{Kind, Peer, Program, Sent, Session};
use crate::settings::Settings;
use crate::sockopt;
use crate::stats::{ArenaKey, Ledger};
use crate::successor::LOOK;
use crate::taps::Taps;
use crate::{BrokerError, Config};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Resource, Rlimit};
use rustix::time::Timespec;
use shunpike_shm::arena::{ArenaView, BLOCKS, Block};
use shunpike_shm::pages::{KnobPage, SessionPage};
use shunpike_shm::published::Published;
use shunpike_wire::Reason;
use shunpike_wire::clc;
use shunpike_wire::session::{CONTROL, ConnId, FromBroker, MAX_CQS, Role, SessionError, ToBroker, VERSION};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_SESSION: u64 = 2;
/// Messages of one client that are handled before the others have their turn.
const MESSAGES_A_TURN: usize = 16;
/// Connections accepted in one turn.
const ACCEPTS_A_TURN: usize = 64;
/// Connections beyond the programs': tools, and those that have not said what they are.
const TOOLS: usize = 64;
/// Of these, those that one user, of several, can have beside as many programs as one may have.
const TOOLS_OF_USER: usize = 16;
/// ... and those that are left to root and the broker's own user, who may have to see what is going on.
const TOOLS_OF_OPERATOR: usize = 8;
/// How long a new connection may say nothing, and a tool may leave its answer unread.
const PATIENCE: Duration = Duration::from_secs(5);
/// Looks at all sessions before a nomination is answered: what was sent before it is read by then, but for
/// a crowd's messages.
const LOOKS: u32 = 4;
/// How long nobody is accepted after descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);

/// A broker at work.
pub struct Server {
    pub(crate) config: Config,
    pub(crate) exchange: Exchange,
    pub(crate) sessions: HashMap<SessionId, Session>,
    pub(crate) knobs: Published<KnobPage>,
    pub(crate) system: System,
    pub(crate) ledger: Ledger,
    pub(crate) settings: Settings,
    pub(crate) taps: Taps,
    pub(crate) began: Instant,
    /// Where the operator wants them.
    metrics: Option<Metrics>,
    /// Nominations of users,
    rates: Rates,
    /// ... and of processes, whose sessions may be several.
    rates_of_processes: Rates,
    /// What the kernel says in the place of users and groups that have no name here.
    unmapped: (u32, u32),
    /// Where we are privileged.
    sequences: Option<SequenceReader>,
    /// Where the kernel can be asked.
    diag: Option<Diag>,
    knobs_fd: Rc<OwnedFd>,
    place: Place,
    listener: OwnedFd,
    epoll: OwnedFd,
    next_session: u64,
    /// Connections that have yet to say what they are, or are answered, by their patience's end.
    patience: VecDeque<(Instant, SessionId)>,
    idle_since: Option<Instant>,
    /// When the successor is looked for.
    successor_at: Instant,
    paused_until: Option<Instant>,
    /// Room for what one turn finds.
    events: Vec<epoll::Event>,
    /// Turns since the nominations that are to be answered were heard.
    looks: u32,
}

/// The client broke the protocol, or is gone: its session ends.
pub(crate) struct End;

impl Server {
    /// Takes its place and listens.
    pub fn new(config: Config) -> Result<Self, BrokerError> {
        raise_descriptor_limit();
        let mut place = Place::claim(&config)?;
        let gid = match config.gid {
            Some(gid) => gid,
            None => place.gid()?,
        };
        let device = LoopbackIsm::new(gid, config.max_dmbs);
        let knobs = Published::<KnobPage>::create("shunpike-knobs")?;
        knobs.page().cpus.store(cpus(), Ordering::Relaxed);
        let system_failed = |what| move |errno: Errno| BrokerError::System { what, error: errno.into() };
        let knobs_fd =
            knobs.fd().try_clone_to_owned().map_err(|error| BrokerError::System { what: "dup", error })?;
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system_failed("make an epoll instance"))?;
        let sequences = SequenceReader::new();
        if let Err(error) = &sequences {
            tracing::info!(%error, "no sequence numbers: nothing is matched through NAT");
        }
        let metrics = config.metrics.clone().map(|address| Metrics::new(address, &epoll)).transpose()?;
        let diag = Diag::new();
        // Last: whoever finds the socket finds a broker that is ready.
        let listener = place
            .listen(config.policy.socket_mode, config.policy.socket_group.as_ref().map(|group| group.gid))?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(system_failed("wait for clients"))?;
        tracing::info!(socket = %config.socket.display(), %gid, "serving");
        let exchange = Exchange::new(Box::new(device), config.policy.clone(), config.private);
        let mut server = Self {
            exchange,
            sessions: HashMap::new(),
            knobs,
            system: System::new(&config, gid),
            ledger: Ledger::default(),
            taps: Taps::default(),
            began: Instant::now(),
            metrics,
            rates: Rates::default(),
            rates_of_processes: Rates::default(),
            unmapped: policy::unmapped(),
            sequences: sequences.ok(),
            diag,
            knobs_fd: Rc::new(knobs_fd),
            place,
            listener,
            epoll,
            next_session: FIRST_SESSION,
            patience: VecDeque::new(),
            idle_since: Some(Instant::now()),
            successor_at: Instant::now() + LOOK,
            paused_until: None,
            events: Vec::with_capacity(256),
            looks: 0,
            settings: Settings::default(),
            config,
        };
        server.set_at_first();
        Ok(server)
    }

    /// Serves until `stop` is readable, or idle for as long as configured.
    pub fn serve(mut self, stop: Option<BorrowedFd<'_>>) -> Result<(), BrokerError> {
        if let Some(stop) = stop {
            epoll::add(&self.epoll, stop, EventData::new_u64(STOP), EventFlags::IN).map_err(|errno| {
                BrokerError::System { what: "wait for the stop signal", error: errno.into() }
            })?;
        }
        while self.turn(Duration::MAX)?.is_some() {}
        Ok(())
    }

    /// One turn of the loop: waits no longer than `patience` for somebody who has something to say, and serves all who
    /// have. Returns how many those were; `None` when the broker has left.
    pub fn turn(&mut self, patience: Duration) -> Result<Option<usize>, BrokerError> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let unanswered = self.exchange.unanswered();
        let timeout = if unanswered > 0 { Some(Timespec::default()) } else { self.timeout(patience) };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(BrokerError::System { what: "wait for events", error: errno.into() });
            }
        }
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept(),
                STOP => {
                    self.make_room();
                    return Ok(None);
                }
                id if id & metrics::LISTENER != 0 => self.serve_metrics(id),
                id => self.serve_session(SessionId(id), event.flags),
            }
            self.deliver();
        }
        if unanswered > 0 {
            self.looks += 1;
            if events.is_empty() || self.looks >= LOOKS {
                self.exchange.answer(unanswered);
                self.deliver();
                self.looks = 0;
            }
        }
        let served = events.len();
        self.events = events;
        if self.is_superseded() {
            tracing::info!("another broker serves: leaving");
            self.make_room();
            return Ok(None);
        }
        Ok((!self.keep_time()).then_some(served))
    }

    /// The knob page, for a program.
    pub(crate) fn knobs_fd(&self) -> Rc<OwnedFd> {
        Rc::clone(&self.knobs_fd)
    }

    /// Ends all sessions, and tells the programs to look for another broker.
    fn make_room(&mut self) {
        self.place.leave();
        self.sessions.drain().for_each(|(_, session)| session.leave());
    }

    /// Whether the broker serves that is to take over; looks once in a second.
    fn is_superseded(&mut self) -> bool {
        let Some(successor) = &self.config.successor else { return false };
        let now = Instant::now();
        if now < self.successor_at {
            return false;
        }
        self.successor_at = now + LOOK;
        successor.serves()
    }

    fn timeout(&self, patience: Duration) -> Option<Timespec> {
        let due = self
            .next_deadline()
            .map(|deadline| deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let left = due.unwrap_or(Duration::MAX).min(patience);
        (left != Duration::MAX)
            .then(|| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    /// Whether no session, and nothing of any, is left.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.exchange.is_empty()
    }

    /// Whether all tables agree with one another, for tests. Errors: which do not.
    pub fn audit(&self) -> Result<(), String> {
        let greeted = self.sessions.iter().filter(|(_, session)| session.program().is_some());
        let mut greeted: Vec<SessionId> = greeted.map(|(id, _)| *id).collect();
        greeted.sort();
        if greeted != self.exchange.members() {
            return Err(format!("programs {greeted:?}, members {:?}", self.exchange.members()));
        }
        if !self.exchange.posts.is_empty() {
            return Err(format!("not delivered: {:?}", self.exchange.posts));
        }
        self.audit_taps()?;
        self.exchange.audit()
    }

    /// Whether sequence numbers can be looked at.
    pub(crate) fn is_privileged(&self) -> bool {
        self.sequences.is_some()
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => {
                    // Descriptors or memory: level-triggered, the listener would have us spin.
                    tracing::warn!(%errno, "cannot accept; pausing");
                    self.paused_until = Some(Instant::now() + PAUSE);
                    self.listen_for(EventFlags::empty());
                    return;
                }
            };
            match self.admit(&socket) {
                Some(peer) => self.begin(socket, peer),
                None => tracing::warn!("turned a connection away"),
            }
        }
    }

    /// Who is at the other end, if we serve them.
    fn admit(&self, socket: &OwnedFd) -> Option<Peer> {
        let (pid, uid) = sockopt::peer_credentials(socket.as_fd())?;
        let own = rustix::process::geteuid().as_raw();
        let is_operator = uid == own || uid == 0;
        if self.config.private && !is_operator {
            return None;
        }
        let mut limit = self.config.max_sessions + TOOLS;
        // Where there are several users, none can keep the others out, nor all of them the operator.
        if !self.config.private {
            let of_user = self.sessions.values().filter(|session| session.peer.uid() == uid).count();
            if of_user >= self.config.policy.user.sessions.saturating_add(TOOLS_OF_USER) {
                return None;
            }
            limit -= if is_operator { 0 } else { TOOLS_OF_OPERATOR };
        }
        if self.sessions.len() >= limit {
            return None;
        }
        let groups = sockopt::peer_groups(socket.as_fd());
        let identity = Identity { uid, groups, unmapped: self.unmapped };
        Some(Peer { pid, identity, netns: facts::netns_cookie(socket.as_fd()) })
    }

    /// Whether one more program may be served. Errors: why not.
    fn may_serve(&self, peer: &Peer) -> Result<(), &'static str> {
        let Peer { pid, identity, .. } = peer;
        let of = |is_like: &dyn Fn(&Peer) -> bool| {
            let programs = self.sessions.values().filter(|session| session.is_programs());
            programs.filter(|session| is_like(&session.peer)).count()
        };
        let Policy { process, user, .. } = &self.config.policy;
        if of(&|_| true) >= self.config.max_sessions {
            Err("as many as configured are served")
        } else if of(&|other| other.uid() == identity.uid) >= user.sessions {
            Err("its user has as many as policy allows")
        } else if *pid != 0 && of(&|other| other.pid == *pid) >= process.sessions {
            Err("its process has as many sessions as policy allows")
        } else {
            Ok(())
        }
    }

    fn begin(&mut self, socket: OwnedFd, peer: Peer) {
        let id = self.next_session;
        self.next_session += 1;
        if let Err(errno) = epoll::add(&self.epoll, &socket, EventData::new_u64(id), EventFlags::IN) {
            return tracing::warn!(%errno, "cannot wait for a client");
        }
        self.sessions.insert(SessionId(id), Session::new(socket, peer));
        self.patience.push_back((Instant::now() + PATIENCE, SessionId(id)));
        self.idle_since = None;
    }

    fn serve_session(&mut self, id: SessionId, events: EventFlags) {
        if events.contains(EventFlags::OUT)
            && let Some(session) = self.sessions.get_mut(&id)
        {
            let sent = session.flush();
            self.note(id, sent);
        }
        if !events.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return;
        }
        for _ in 0..MESSAGES_A_TURN {
            let Some(session) = self.sessions.get_mut(&id) else { return };
            let received = match datagram::receive(session.as_fd()) {
                Ok(Some(received)) => received,
                Err(Errno::AGAIN) => return session.caught_up(),
                Err(Errno::INTR) => continue,
                Ok(None) | Err(_) => return self.end(id),
            };
            if matches!(session.kind, Kind::Laneless(_)) {
                self.hear_without_lanes(id, &received);
                self.deliver();
                continue;
            }
            let is_known = !matches!(session.kind, Kind::New);
            let handled = match ToBroker::decode(received.bytes()) {
                Ok(message) => self.handle(id, message, received),
                // A later version's, that it says beside what we know.
                Err(SessionError::Type) if is_known => Ok(()),
                Err(error) => {
                    tracing::debug!(session = id.0, %error, "decode");
                    Err(End)
                }
            };
            if handled.is_err() {
                tracing::warn!(session = id.0, "ended a session that broke the protocol");
                return self.end(id);
            }
            self.deliver();
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.is_behind = true;
        }
    }

    fn handle(&mut self, id: SessionId, message: ToBroker, received: Received) -> Result<(), End> {
        let Some(session) = self.sessions.get(&id) else { return Err(End) };
        let (is_new, is_program) = (matches!(session.kind, Kind::New), session.program().is_some());
        let is_tap = matches!(session.kind, Kind::Tap);
        let party = |conn| Party { session: id, conn };
        match message {
            ToBroker::Hello { control, version, doorbells, comm } if is_new => {
                // Its own choice, and on its way to terminals.
                let comm = String::from_utf8_lossy(&comm);
                let comm = comm.trim_end_matches('\0').replace(char::is_control, "?");
                if let Some(peer) = self.sessions.get(&id).map(|session| &session.peer)
                    && let Err(why) = self.may_serve(peer)
                {
                    tracing::warn!(pid = peer.pid, uid = peer.uid(), "turned a program away: {why}");
                    return Err(End);
                }
                return match version {
                    VERSION => self.hello(id, control, doorbells, comm, received.fds),
                    _ => self.hello_without_lanes(id, (control, version), comm),
                };
            }
            ToBroker::Query { what, arg } if is_new => {
                let text = self.query(id, what, arg.as_slice());
                if let Some(session) = self.sessions.get_mut(&id) {
                    let sent = session.answer(&text);
                    self.note(id, sent);
                }
            }
            ToBroker::Hello { .. } | ToBroker::Query { .. } => return Err(End),
            ToBroker::Ring { ring, class } if is_tap => return self.take_ring(id, ring, class, received.fds),
            ToBroker::Ring { .. } => return Err(End),
            _ if !is_program => return Err(End),
            ToBroker::Nominate { conn, .. } if conn.index() >= BLOCKS as u32 => return Err(End),
            ToBroker::Nominate { conn, role, tx, rx, answer } => {
                let proof = if self.may_nominate(id) {
                    self.prove(party(conn), role, Counts { tx, rx }, received.fds)
                } else {
                    Proof::Refused(Reason::NominationLimit)
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
                if let Err(error) = clc::Message::decode(clc.as_slice()) {
                    tracing::debug!(session = id.0, %error, "CLC message");
                    return Err(End);
                }
                self.exchange.relay(party(conn), clc);
            }
            ToBroker::Register { conn, class } => {
                let memory = single(received.fds).and_then(Foreign::into_memory);
                self.exchange.register(party(conn), class, memory);
            }
            ToBroker::Attach { conn, token } => self.exchange.attach(party(conn), token),
            ToBroker::Unregister { token } => self.exchange.unregister(id, token),
            ToBroker::Detach { token, gone } => self.exchange.detach(id, token, gone),
            // Its arena shows what it has.
            ToBroker::Lanes { .. } => {}
            ToBroker::Park { token } => self.exchange.park(id, token, Instant::now()),
            ToBroker::Reuse { conn, token } => self.exchange.reuse(party(conn), token),
        }
        Ok(())
    }

    fn hello(
        &mut self,
        id: SessionId,
        control: u16,
        doorbells: u8,
        comm: String,
        fds: Vec<Foreign>,
    ) -> Result<(), End> {
        let mut fds = fds.into_iter();
        let arena = fds.next().and_then(Foreign::into_memory).ok_or(End)?;
        let bells = fds.map(|fd| fd.into_doorbell().ok_or(End)).collect::<Result<Vec<_>, End>>()?;
        if !(1..=MAX_CQS).contains(&bells.len()) || bells.len() != usize::from(doorbells) {
            return Err(End);
        }
        let view = ArenaView::map(&arena).map_err(|_| End)?;
        let key = ArenaKey::of(arena.as_fd()).map_err(|_| End)?;
        let page = Published::<SessionPage>::create("shunpike-session").map_err(|_| End)?;
        let page_fd = Rc::new(page.fd().try_clone_to_owned().map_err(|_| End)?);
        let versions = (control.min(CONTROL), VERSION);
        let welcome = FromBroker::Welcome(self.system.welcome(self.exchange.device.as_ref(), versions));
        let fds = vec![page_fd, Rc::clone(&self.knobs_fd)];
        let session = self.sessions.get_mut(&id).ok_or(End)?;
        tracing::debug!(session = id.0, pid = session.peer.pid, comm, "hello");
        self.ledger.begin(key, &view);
        session.kind = Kind::Program(Box::new(Program::new(view, key, comm, page)));
        self.exchange.begin_session(id, session.peer.identity.clone(), bells);
        if runtime::may_read_others(session.peer.pid) {
            self.exchange.lets_read(id, session.peer.pid);
        }
        let sent = session.post(&welcome, fds);
        self.note(id, sent);
        // Before it can have a lane.
        self.show_to_taps(id);
        Ok(())
    }

    /// Looking at a socket is the most that a message can cost us.
    fn may_nominate(&mut self, id: SessionId) -> bool {
        let now = Instant::now();
        let Policy { process, user, .. } = &self.config.policy;
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        let (pid, uid) = (session.peer.pid, session.peer.uid());
        let Kind::Program(program) = &mut session.kind else { return false };
        let of_process = match pid {
            // In a pid namespace that we do not see into: as if each session were a process.
            0 => program.rate.take(process.nominations, now),
            pid => self.rates_of_processes.take(pid, process.nominations, now),
        };
        of_process && self.rates.take(uid, user.nominations, now)
    }

    fn prove(&self, party: Party, role: Role, claimed: Counts, fds: Vec<Foreign>) -> Proof {
        let Some(socket) = single(fds) else { return Proof::Refused(Reason::NoDescriptors) };
        let program = self.sessions.get(&party.session).and_then(Session::program);
        let latest = || {
            let block = block_of(&program?.arena, party.conn)?;
            let bytes = |half: &shunpike_shm::arena::Half| half.tcp_bytes.load(Ordering::Acquire);
            Some(Counts { tx: bytes(&block.tx), rx: bytes(&block.rx) })
        };
        let mut proof = facts::prove(socket.as_fd(), role, claimed, latest);
        if let (Proof::Proved(facts), Some(reader)) = (&mut proof, &self.sequences) {
            facts.sequences = reader.read(socket.as_fd(), role, facts);
        }
        proof
    }

    /// Sends what the exchange has decided. A session that cannot be sent to ends, which decides more.
    pub(crate) fn deliver(&mut self) {
        while !self.exchange.posts.is_empty() {
            for Post { to, message, fds } in std::mem::take(&mut self.exchange.posts) {
                if let Some(session) = self.sessions.get_mut(&to) {
                    let sent = session.post(&message, fds);
                    self.note(to, sent);
                }
            }
        }
    }

    pub(crate) fn note(&mut self, id: SessionId, sent: Sent) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let waits = match sent {
            Sent::All => false,
            Sent::Waiting => true,
            Sent::Over => return self.end(id),
        };
        if std::mem::replace(&mut session.awaits_room, waits) != waits {
            let flags = if waits { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            if epoll::modify(&self.epoll, session.as_fd(), EventData::new_u64(id.0), flags).is_err() {
                self.end(id);
            }
        }
    }

    fn end(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, session.as_fd());
        if let Some(program) = session.program() {
            tracing::debug!(session = id.0, pid = session.peer.pid, comm = program.comm, "ended");
            self.ledger.end(program.key, &program.arena);
            self.exchange.end_session(id);
        }
        self.end_of_taps(id);
        if self.sessions.is_empty() {
            self.idle_since = Some(Instant::now());
        }
    }

    /// When something is due without an event.
    fn next_deadline(&self) -> Option<Instant> {
        let idle = self.config.idle_exit.zip(self.idle_since).map(|(after, since)| since + after);
        let silent = self.patience.front().map(|(until, _)| *until);
        let scraper = self.metrics.as_ref().and_then(Metrics::deadline);
        let stale = self.exchange.stale_at();
        let successor = self.config.successor.as_ref().map(|_| self.successor_at);
        idle.into_iter()
            .chain(successor)
            .chain(self.paused_until)
            .chain(silent)
            .chain(scraper)
            .chain(stale)
            .min()
    }

    /// Does what is due; returns whether the broker has to go.
    fn keep_time(&mut self) -> bool {
        let now = Instant::now();
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.listen_for(EventFlags::IN);
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.keep_time(now, &self.epoll);
        }
        while let Some((until, id)) = self.patience.front().copied() {
            let is_settled = |session: &Session| session.is_programs() || matches!(session.kind, Kind::Tap);
            let waits = self.sessions.get(&id).is_some_and(|session| !is_settled(session));
            if waits && until > now {
                break;
            }
            self.patience.pop_front();
            if waits {
                self.end(id);
            }
        }
        self.exchange.drop_stale(now);
        self.deliver();
        let idle = self.config.idle_exit.zip(self.idle_since);
        idle.is_some_and(|(after, since)| since + after <= now) && self.leave()
    }

    /// Leaves, unless somebody came in the last moment.
    fn leave(&mut self) -> bool {
        self.place.hide();
        self.accept();
        if self.sessions.is_empty() && self.paused_until.is_none() {
            self.place.leave();
            tracing::info!("idle: leaving");
            true
        } else {
            self.place.stay();
            false
        }
    }

    fn serve_metrics(&mut self, id: u64) {
        let Some(mut metrics) = self.metrics.take() else { return };
        metrics.serve(id, &self.epoll, || self.figures());
        self.metrics = Some(metrics);
    }

    fn listen_for(&self, flags: EventFlags) {
        if let Err(errno) = epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags) {
            tracing::error!(%errno, "listener");
        }
    }
}

/// The block that a connection id names, while it is that connection's.
pub(crate) fn block_of(arena: &ArenaView, conn: ConnId) -> Option<&Block> {
    let block = arena.block(conn.index())?;
    (block.name.load(Ordering::Acquire) == conn.name()).then_some(block)
}

fn single(fds: Vec<Foreign>) -> Option<Foreign> {
    let mut fds = fds.into_iter();
    fds.next().filter(|_| fds.next().is_none())
}

/// CPUs online. Not available_parallelism(): clients may have other affinities.
fn cpus() -> u32 {
    // SAFETY: sysconf only reads a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(cpus).unwrap_or(1).max(1)
}

/// A broker holds a few descriptors for each process and one for each DMB.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(errno) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%errno, "cannot raise the limit of open files");
    }
}
