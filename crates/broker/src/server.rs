//! The event loop: one thread, nothing that blocks, a bounded amount of work for each client and turn.
//!
//! No descriptor of a client's is received here but memory and eventfds that a helper has looked at: see [`helpers`](crate::helpers).

mod admission;
mod census;
mod connections;
mod hearing;
mod journal;
mod laneless;
mod lists;
mod operators;
mod query;
mod questions;
mod reload;
mod revocation;
mod search;
mod sessions;
mod taps;

use crate::answerable::Answerable;
use crate::clock;
use crate::cpus;
use crate::datagram;
use crate::delays;
use crate::diag::Diag;
use crate::ends::SessionId;
use crate::exchange::{Exchange, Post};
use crate::foreign::{Graves, Last, Shared};
use crate::helpers::Helpers;
use crate::ism::MakeDevice;
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::metrics::{self, Metrics};
use crate::policy::{self};
use crate::program_knobs::ProgramKnobs;
use crate::rate::{Rates, Seldom, Shares};
use crate::runtime::{self, Place};
use crate::sequence::SequenceReader;
use crate::session::{Door, Kind, Sent, Session};
use crate::settings::Settings;
use crate::successor::LOOK;
use crate::system::System;

use crate::config::Config;
use crate::error::BrokerError;
use crate::orders::{Order, Orders};
use census::Census;
use operators::Operators;
use questions::Questions;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use rustix::time::Timespec;
use sessions::Sessions;
use shunpike_shm::pages::KnobPage;
use shunpike_shm::published::Published;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use taps::Taps;

const LISTENER: u64 = 0;
const ORDERS: u64 = 1;
const OPERATORS: u64 = 2;
const HELPERS: u64 = 3;
const FIRST_SESSION: u64 = 4;
/// Looks at all sessions before a nomination is answered: what was sent before it is read by then, but for
/// a crowd's messages.
const LOOKS: u32 = 4;
/// Programs have the larger part of so many turns after one of them has said something: what becomes of a connection takes some.
const HURRY: u32 = 32;
/// Sessions that end are served for so long in one turn, with what else it has, in microseconds.
const ENDING: usize = 10_000;

/// Things that sessions held which have ended, and that are let go in one turn.
const LET_GO: usize = 512;

/// What could not be sent, as the broker was short of something, is tried again after so long.
const SHORT: Duration = Duration::from_millis(10);

/// A broker at work.
pub struct Server {
    pub(crate) config: Config,
    pub(crate) exchange: Exchange,
    pub(crate) sessions: Sessions,
    pub(crate) knobs: Published<KnobPage>,
    pub(crate) system: System,
    pub(crate) ledger: Ledger,
    census: Census,
    pub(crate) settings: Settings,
    pub(crate) taps: Taps,
    pub(crate) journal: Journal,
    pub(crate) began: Instant,
    /// Where the operator wants them.
    metrics: Option<Metrics>,
    /// Doorbells that may be in flight: half of what may be, so that messages can have descriptors.
    most_in_flight: usize,
    /// Nominations of users,
    rates: Rates<u32>,
    /// Nominations of processes, whose sessions may be several.
    rates_of_processes: Rates<(u32, u32)>,
    /// Bytes that wait for each user's sessions.
    queued: HashMap<u32, Rc<Cell<usize>>>,
    /// The time that users' questions take.
    answering: Shares,
    questions: Questions,
    /// Connections of users.
    arrivals: Rates<u32>,
    /// How long users have kept the loop waiting;
    delaying: Shares,
    /// those that did for more than their share, and until when nothing is done for them.
    shunned: HashMap<u32, Instant>,
    told: Told,
    /// What the kernel says in the place of users and groups that have no name here.
    unmapped: (u32, u32),
    helpers: Helpers,
    /// Where their answers come, which are looked at first in each turn: however many have something to say, a nomination goes on.
    of_helpers: OwnedFd,
    /// Turns so far, wrapping.
    turns: usize,
    /// Messages of each user in this turn, where several are served.
    heard: HashMap<u32, usize>,
    /// What clients passed and nobody needs any more.
    graves: Graves,
    /// Where the kernel can be asked.
    diag: Option<Diag>,
    knobs_fd: Rc<Shared>,
    /// Settings for programs by their names.
    pub(crate) program_knobs: BTreeMap<String, ProgramKnobs>,
    place: Place,
    listener: OwnedFd,
    /// Where several users are served.
    operators: Option<Operators>,
    epoll: OwnedFd,
    next_session: u64,
    /// Connections that have yet to say what they are, or are answered, by their patience's end.
    patience: VecDeque<(Instant, SessionId)>,
    /// Sessions for which something was short when they were told something, and when that is tried again.
    short: VecDeque<(Instant, SessionId)>,
    idle_since: Option<Instant>,
    /// When the successor is looked for.
    successor_at: Instant,
    paused_until: Option<Instant>,
    /// Whether the operator has an order.
    is_ordered: bool,
    /// Room for what one turn finds.
    events: Vec<epoll::Event>,
    /// Turns since the nominations that are to be answered were heard.
    looks: u32,
    /// Turns since a program said something.
    quiet_turns: u32,
    /// Whose the broker is.
    uid: u32,
    answerable: Option<Answerable>,
}

/// What clients can have happen, for the log.
struct Told {
    turned_away: Seldom,
    not_served: Seldom,
    other_versions: Seldom,
    taps: Seldom,
    wrongdoers: Seldom,
}

/// The client broke the protocol, or is gone: its session ends.
pub(crate) struct End;

impl Server {
    /// Takes its place and listens, with the device that `make` makes.
    pub fn new(config: Config, make: MakeDevice) -> Result<Self, BrokerError> {
        raise_descriptor_limit();
        let mut place = Place::claim(&config)?;
        let gid = match config.gid {
            Some(gid) => gid,
            None => place.gid()?,
        };
        let graves = Graves::default();
        let device = make(gid, config.max_dmbs);
        let knobs = Published::<KnobPage>::create("shunpike-knobs")?;
        knobs.page().cpus.store(cpus::online(), Ordering::Relaxed);
        let system_failed = |what| move |errno: Errno| BrokerError::System { what, error: errno.into() };
        let knobs_fd =
            knobs.fd().try_clone_to_owned().map_err(|error| BrokerError::System { what: "dup", error })?;
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system_failed("make an epoll instance"))?;
        let of_helpers =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system_failed("make an epoll instance"))?;
        epoll::add(&epoll, &of_helpers, EventData::new_u64(HELPERS), EventFlags::IN)
            .map_err(system_failed("wait for helpers"))?;
        let sequences = SequenceReader::new();
        if let Err(error) = &sequences {
            tracing::info!(%error, "no sequence numbers: nothing is matched through NAT");
        }
        let metrics = config.metrics.clone().map(|address| Metrics::new(address, &epoll)).transpose()?;
        let diag = Diag::new();
        let operators = Operators::new(&config, &place, &epoll);
        // Last: whoever finds the socket finds a broker that is ready.
        let listener = place
            .listen(config.policy.socket_mode, config.policy.socket_group.as_ref().map(|group| group.gid))?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(system_failed("wait for clients"))?;
        tracing::info!(socket = %config.socket.display(), %gid, "serving");
        let exchange = Exchange::new(device, config.policy.clone(), config.private);
        let began = clock::now();
        let mut server = Self {
            exchange,
            of_helpers,
            turns: 0,
            heard: HashMap::new(),
            sessions: Sessions::new(config.private),
            knobs,
            uid: rustix::process::geteuid().as_raw(),
            system: System::new(&config, gid),
            ledger: Ledger::default(),
            census: Census::default(),
            taps: Taps::default(),
            journal: Journal::default(),
            began,
            metrics,
            most_in_flight: runtime::descriptors_under_way() / 2,
            rates: Rates::default(),
            rates_of_processes: Rates::default(),
            queued: HashMap::new(),
            answering: Shares::default(),
            questions: Questions::default(),
            arrivals: Rates::default(),
            delaying: Shares::default(),
            shunned: HashMap::new(),
            told: Told {
                turned_away: Seldom::new(began),
                not_served: Seldom::new(began),
                other_versions: Seldom::new(began),
                taps: Seldom::new(began),
                wrongdoers: Seldom::new(began),
            },
            unmapped: policy::unmapped(),
            helpers: Helpers::new(sequences.ok()),
            graves,
            diag,
            knobs_fd: Rc::new(knobs_fd.into()),
            program_knobs: BTreeMap::new(),
            place,
            listener,
            operators,
            epoll,
            next_session: FIRST_SESSION,
            patience: VecDeque::new(),
            short: VecDeque::new(),
            idle_since: Some(began),
            successor_at: began + LOOK,
            paused_until: None,
            is_ordered: false,
            events: Vec::with_capacity(256),
            looks: 0,
            quiet_turns: HURRY,
            answerable: None,
            settings: Settings::default(),
            config,
        };
        server.set_at_first();
        Ok(server)
    }

    /// Serves until told to end, or idle for as long as configured. Returns the configuration as it is by then.
    pub fn serve(mut self, orders: Option<Orders<'_>>) -> Result<Config, BrokerError> {
        if let Some(orders) = orders {
            epoll::add(&self.epoll, orders.fd, EventData::new_u64(ORDERS), EventFlags::IN)
                .map_err(|errno| BrokerError::System { what: "wait for signals", error: errno.into() })?;
        }
        while self.turn(Duration::MAX)?.is_some() {
            if !std::mem::take(&mut self.is_ordered) {
                continue;
            }
            match orders.map_or(Order::Nothing, |orders| (orders.take)()) {
                Order::End => {
                    self.make_room();
                    break;
                }
                Order::Reload => {
                    // What is wrong is in the log: nobody waits for an answer.
                    let _ = self.reload();
                    self.deliver();
                }
                Order::Nothing => {}
            }
        }
        Ok(self.config)
    }

    /// One turn of the loop: waits no longer than `patience` for somebody who has something to say, and serves all who
    /// have. Returns how many those were; `None` when the broker has left.
    pub fn turn(&mut self, patience: Duration) -> Result<Option<usize>, BrokerError> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        self.quiet_turns = self.quiet_turns.saturating_add(1);
        // Nobody is told that nobody came before all was looked at that was said earlier.
        let looks_first = self.answerable.is_none() && self.exchange.unanswered() > 0;
        let patience = match &self.answerable {
            _ if looks_first => Duration::ZERO,
            Some(_) => patience.min(Duration::from_millis(1)),
            None => patience,
        };
        let patience = match self.questions.due_at(&self.answering, clock::now()) {
            _ if self.census.is_at_work() || self.exchange.is_ending() => Duration::ZERO,
            Some(at) if at <= clock::now() => Duration::ZERO,
            _ => patience,
        };
        let timeout = if patience.is_zero() { Some(Timespec::default()) } else { self.timeout(patience) };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(BrokerError::System { what: "wait for events", error: errno.into() });
            }
        }
        self.heard.clear();
        let helped = self.serve_helpers();
        // What ends may cost as much as it was, and can wait a little.
        let ending = clock::now() + Duration::from_micros(self.share(ENDING) as u64);
        let is_end = |event: &&epoll::Event| { event.flags }.contains(EventFlags::HUP);
        // Each begins some time: whoever is first has his user's messages of this turn.
        self.turns = self.turns.wrapping_add(1);
        let (early, late) = events.split_at(self.turns % events.len().max(1));
        let from_another = || late.iter().chain(early);
        for event in from_another().filter(|event| !is_end(event)).chain(from_another().filter(is_end)) {
            if is_end(&event) && clock::now() > ending {
                break;
            }
            match event.data.u64() {
                LISTENER => self.accept(Door::Everybodys),
                ORDERS => self.is_ordered = true,
                OPERATORS => self.serve_operators(),
                id if id & metrics::LISTENER != 0 => self.serve_metrics(id),
                HELPERS => {}
                id => self.serve_session(SessionId(id), event.flags),
            }
            self.deliver();
            self.shun_who_delays();
            self.look_at_operators();
        }
        let ended = usize::from(self.let_go_of_ended());
        let answered = self.answer_questions() + usize::from(self.count());
        self.shun_who_delays();
        if looks_first {
            self.looks += 1;
            if events.is_empty() && helped == 0 || self.looks >= LOOKS {
                self.answerable = Some(self.answerable());
                self.looks = 0;
            }
        }
        if let Some(due) = self.answerable.take_if(|all| all.is_due(clock::now())) {
            self.exchange.answer(due.count);
            self.deliver();
        }
        let served = events.len() + answered + helped + ended;
        self.events = events;
        if self.is_superseded() {
            tracing::info!("another broker serves: leaving");
            self.make_room();
            return Ok(None);
        }
        Ok((!self.keep_time()).then_some(served))
    }

    /// Of so much that one turn does for others than programs: a sixteenth, while these say something.
    pub(crate) fn share(&self, of_turn: usize) -> usize {
        if self.quiet_turns < HURRY { of_turn / 16 } else { of_turn }
    }

    /// All that wait for an answer now, and what is to be heard before they have it.
    fn answerable(&self) -> Answerable {
        let unread = |id| {
            let session = self.sessions.get(&id)?;
            let pending = session.with_helper.as_ref()?;
            // The helper may have taken it or not; too much is no harm.
            let behind = rustix::io::ioctl_fionread(session.as_fd()).unwrap_or(0);
            Some((id, pending.len + behind as usize))
        };
        // What others say, who are not to be peers of these, they do not wait for.
        let asking: Vec<&Session> =
            self.exchange.asking().iter().filter_map(|id| self.sessions.get(id)).collect();
        let concerns = |id: &SessionId| {
            let said = self.sessions.get(id).map(|session| &session.peer.identity);
            said.is_some_and(|said| {
                asking.iter().any(|asker| self.config.policy.permits(&asker.peer.identity, said))
            })
        };
        let awaited = self.helpers.sessions().filter(concerns).filter_map(unread).collect();
        Answerable::new(self.exchange.unanswered(), awaited, clock::now())
    }

    /// The knob page, for a program.
    pub(crate) fn knobs_fd(&self) -> Rc<Shared> {
        Rc::clone(&self.knobs_fd)
    }

    /// Ends all sessions, and tells the programs to look for another broker.
    fn make_room(&mut self) {
        self.place.leave();
        let all: Vec<SessionId> = self.sessions.keys().copied().collect();
        all.into_iter().for_each(|id| self.end(id));
        self.exchange.let_go(usize::MAX);
        self.bury();
        self.forgo_last_looks();
    }

    /// Whether the broker serves that is to take over; looks once in a second.
    fn is_superseded(&mut self) -> bool {
        let Some(successor) = &self.config.successor else { return false };
        let now = clock::now();
        if now < self.successor_at {
            return false;
        }
        self.successor_at = now + LOOK;
        successor.serves()
    }

    fn timeout(&self, patience: Duration) -> Option<Timespec> {
        let due = self
            .next_deadline()
            .map(|deadline| deadline.saturating_duration_since(clock::now()) + Duration::from_millis(1));
        let left = due.unwrap_or(Duration::MAX).min(patience);
        (left != Duration::MAX)
            .then(|| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    /// Whether helpers have something to do, so that there will be more to serve.
    pub fn is_busy(&self) -> bool {
        self.helpers.is_busy()
    }

    /// Whether no session, and nothing of any, is left.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.exchange.is_empty() && !self.census.is_at_work()
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
        self.taps.audit(&self.exchange, &self.sessions)?;
        journal::audit(&self.journal, &self.exchange)?;
        self.exchange.audit()
    }

    /// Whether sequence numbers can be looked at.
    pub(crate) fn is_privileged(&self) -> bool {
        self.helpers.is_privileged()
    }

    /// Sends what the exchange has decided. A session that cannot be sent to ends, which decides more.
    pub(crate) fn deliver(&mut self) {
        journal::note_news(&mut self.journal, &mut self.exchange, &self.sessions);
        while !self.exchange.posts.is_empty() {
            for Post { to, message, fds } in std::mem::take(&mut self.exchange.posts) {
                if let Some(session) = self.sessions.get_mut(&to) {
                    let sent = session.post(&message, fds);
                    self.note(to, sent);
                }
            }
        }
        // Of the sessions that ended by that.
        journal::note_news(&mut self.journal, &mut self.exchange, &self.sessions);
    }

    pub(crate) fn note(&mut self, id: SessionId, sent: Sent) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let waits = match sent {
            // More of a list is made when there is room for it.
            Sent::All => matches!(session.kind, Kind::Listing(_)),
            Sent::Waiting => true,
            Sent::Short => {
                if !std::mem::replace(&mut session.is_short, true) {
                    self.short.push_back((clock::now() + SHORT, id));
                }
                false
            }
            Sent::Over => return self.end(id),
        };
        if std::mem::replace(&mut session.awaits_room, waits) != waits {
            self.listen_to(id);
        }
    }

    /// Has the event loop wait for what a session can go on with.
    fn listen_to(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !session.is_paused);
        flags.set(EventFlags::OUT, session.awaits_room);
        // Its end is told of once, and not until the message that is with a helper is done.
        flags.set(EventFlags::ONESHOT, session.is_paused);
        let set = self.set_of(session.door);
        if epoll::modify(set, session.as_fd(), EventData::new_u64(id.0), flags).is_err() {
            self.end(id);
        }
    }

    fn end(&mut self, id: SessionId) {
        journal::note_news(&mut self.journal, &mut self.exchange, &self.sessions);
        let Some(session) = self.sessions.remove(&id) else { return };
        let _ = epoll::delete(self.set_of(session.door), session.as_fd());
        let arena = session.program().map(|program| (program.key, program.arena.clone()));
        if let Some(program) = session.program() {
            tracing::debug!(session = id.0, pid = session.peer.pid, comm = program.comm, "ended");
            self.exchange.end_session(id);
        }
        self.taps.end_of(&mut self.exchange, id);
        let (user, is_operator) = (session.peer.uid(), session.peer.is_operator);
        self.helpers.forget(user, id);
        self.questions.forget(user, id);
        self.census.forget(id);
        self.answerable.iter_mut().for_each(|all| all.caught_up(id));
        let socket = session.socket();
        // Of one that is shunned the helper ends it.
        if !self.is_shunned(user, clock::now()) {
            delays::message(user, || datagram::end(socket.as_fd()));
        }
        session.tell_end();
        // First: a helper may close it as soon as it is asked to, and must find this one gone.
        drop(session);
        self.let_go(user, socket);
        match arena {
            Some((key, arena)) if self.ledger.end(key) => self.look_at_last(user, is_operator, key, arena),
            Some((_, arena)) => self.helpers.bury(user, arena.into_fd(), Last::Free, &self.of_helpers),
            None => {}
        }
        self.bury();
        self.dismiss_if_last(user);
        if self.sessions.is_empty() {
            self.idle_since = Some(clock::now());
        }
    }

    /// Lets go of what sessions held that have ended, in turns. Whether there was something.
    fn let_go_of_ended(&mut self) -> bool {
        let is_ending = self.exchange.is_ending();
        if is_ending {
            let over = self.exchange.let_go(self.share(LET_GO));
            self.deliver();
            self.bury();
            over.into_iter().for_each(|user| self.dismiss_if_last(user));
        }
        is_ending
    }

    /// When something is due without an event.
    fn next_deadline(&self) -> Option<Instant> {
        let idle = self.config.idle_exit.zip(self.idle_since).map(|(after, since)| since + after);
        let silent = self.patience.front().map(|(until, _)| *until);
        let scraper = self.metrics.as_ref().and_then(Metrics::deadline);
        let stale = self.exchange.stale_at();
        let successor = self.config.successor.as_ref().map(|_| self.successor_at);
        let helpers = self.helpers.deadline();
        let questions = self.questions.due_at(&self.answering, clock::now());
        idle.into_iter()
            .chain(questions)
            .chain(self.short.front().map(|(at, _)| *at))
            .chain(successor)
            .chain(self.paused_until)
            .chain(silent)
            .chain(scraper)
            .chain(stale)
            .chain(helpers)
            .min()
    }

    /// Does what is due; returns whether the broker has to go.
    fn keep_time(&mut self) -> bool {
        let now = clock::now();
        if self.paused_until.is_some_and(|until| until <= now) {
            self.accept_again();
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.keep_time(now, &self.epoll);
        }
        while let Some((until, id)) = self.patience.front().copied() {
            let is_settled = |session: &Session| {
                !session.is_over && (session.is_programs() || matches!(session.kind, Kind::Tap))
            };
            let waits = self.sessions.get(&id).is_some_and(|session| !is_settled(session));
            if waits && until > now {
                break;
            }
            self.patience.pop_front();
            if waits {
                self.end(id);
            }
        }
        while self.short.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, id)) = self.short.pop_front()
        {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.is_short = false;
                let sent = session.flush();
                self.note(id, sent);
            }
        }
        self.exchange.drop_stale(now);
        for id in self.helpers.keep_time(now, &self.of_helpers) {
            self.end(id);
        }
        self.deliver();
        self.bury();
        let idle = self.config.idle_exit.zip(self.idle_since);
        idle.is_some_and(|(after, since)| since + after <= now) && self.leave()
    }

    /// Leaves, unless somebody came in the last moment.
    fn leave(&mut self) -> bool {
        self.place.hide();
        for door in [Door::Everybodys, Door::Operators] {
            self.accept(door);
        }
        if self.sessions.is_empty() && self.paused_until.is_none() {
            self.place.leave();
            tracing::info!("idle: leaving");
            true
        } else {
            self.place.stay();
            false
        }
    }
}

/// A broker holds a few descriptors for each process and one for each DMB.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(errno) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%errno, "cannot raise the limit of open files");
    }
}
