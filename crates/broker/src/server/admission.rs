//! Who is let in, and how connections end that are not.

use super::{LISTENER, Server};
use crate::clock;
use crate::datagram::{self, Next};
use crate::delays;
use crate::ends::SessionId;
use crate::facts;
use crate::foreign::Last;
use crate::policy::{Identity, Policy};
use crate::reply::{failure, json};
use crate::report::Answer;
use crate::runtime;
use crate::session::{Door, Peer, Session};
use crate::sockopt;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use shunpike_wire::session::{MAX_CQS, ToBroker};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Connections looked at in one turn, where no program says anything: with those that are let in, and those that are turned away, half
/// a millisecond.
const ACCEPTS_A_TURN: usize = 64;
/// Connections of one user in a second: who waits to be let in waits behind everybody's, so that those who come too often are
/// turned away by the first look.
const ARRIVALS: u32 = 1000;
/// Connections beyond the programs': tools, and those that have not said what they are.
const TOOLS: usize = 64;
/// Of these, those that one user, of several, can have beside as many programs as one may have.
const TOOLS_OF_USER: usize = 16;
/// Of these, those that are left to root and the broker's own user, who may have to see what is going on.
const TOOLS_OF_OPERATOR: usize = 8;
/// Who is turned away for one of these is not told so: it would cost more than to turn him away.
const TOO_OFTEN: &str = "its user connects too often";
const DELAYS: &str = "what its user has passed has kept the broker waiting";
/// How long a new connection may say nothing, a tool may leave its answer unread, and a message of one that is gone may wait.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Who has kept the broker waiting is served no more for so long at least.
const SHUNNED: Duration = Duration::from_secs(10);
/// How long nobody is accepted after descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);

impl Server {
    /// Lets in who waits at a door.
    pub(super) fn accept(&mut self, door: Door) {
        let began = clock::now();
        for _ in 0..self.share(ACCEPTS_A_TURN) {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(self.listener_at(door), flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => {
                    // Descriptors or memory: level-triggered, the listener would have us spin.
                    tracing::warn!(%errno, "cannot accept; pausing");
                    return self.pause_accepting(door);
                }
            };
            match self.admit(&socket, door, began) {
                Ok(peer) => self.begin(socket, peer, door),
                Err((user, why)) => {
                    if let Some(times) = self.told.turned_away.happened(clock::now()) {
                        tracing::warn!(uid = user, times, "turned a connection away: {why}");
                    }
                    // One that finds the operator's door closed without a word asks at everybody's.
                    if door == Door::Everybodys && ![TOO_OFTEN, DELAYS].contains(&why) {
                        tell_tool(&socket, why);
                    }
                    self.let_go(user, Rc::new(socket));
                }
            }
        }
    }

    /// Who is at the other end, if we serve them. Errors: which user is turned away, and why.
    fn admit(&mut self, socket: &OwnedFd, door: Door, now: Instant) -> Result<Peer, (u32, &'static str)> {
        let (pid, uid) = sockopt::peer_credentials(socket.as_fd()).ok_or((u32::MAX, "it is nobody's"))?;
        let is_operators = uid == self.uid || uid == 0;
        if self.config.private && !is_operators {
            return Err((uid, "another user's"));
        }
        // A container's root is root by number only.
        let is_operator = is_operators && (self.config.private || runtime::shares_our_pids(socket.as_fd()));
        if !is_operator && self.is_shunned(uid, now) {
            return Err((uid, DELAYS));
        }
        // This one costs least.
        let is_bounded = !self.config.private && door == Door::Everybodys;
        if is_bounded && !self.arrivals.take(uid, ARRIVALS, now) {
            return Err((uid, TOO_OFTEN));
        }
        if door == Door::Operators && !is_operator {
            return Err((uid, "it is not the operator"));
        }
        let mut limit = self.config.max_sessions + TOOLS;
        // Where there are several users, none can keep the others out, nor all of them the operator.
        if !self.config.private {
            let is_tools = |session: &Session| session.peer.is_operator && !session.is_programs();
            let tools = || self.sessions.values().filter(|session| is_tools(session)).count();
            let has_place = is_operator && tools() < TOOLS_OF_OPERATOR;
            let like = |other: &Peer| (other.uid(), other.is_operator) == (uid, is_operator);
            let of_user = self.sessions.values().filter(|session| like(&session.peer)).count();
            if !has_place && of_user >= self.config.policy.user.sessions.saturating_add(TOOLS_OF_USER) {
                return Err((uid, "its user has as many as policy allows"));
            }
            limit -= if has_place { 0 } else { TOOLS_OF_OPERATOR };
        }
        if self.sessions.len() >= limit {
            return Err((uid, "there are as many as can be served"));
        }
        let groups = self.config.policy.groups_of(socket.as_fd());
        let identity = Identity { uid, groups, unmapped: self.unmapped };
        Ok(Peer { pid, identity, is_operator, netns: facts::netns_cookie(socket.as_fd()) })
    }

    /// Whether one more program may be served. Errors: why not.
    pub(super) fn may_serve(&self, peer: &Peer) -> Result<(), &'static str> {
        let Peer { pid, identity, .. } = peer;
        let of = |is_like: &dyn Fn(&Peer) -> bool| {
            let programs = self.sessions.values().filter(|session| session.is_programs());
            programs.filter(|session| is_like(&session.peer)).count()
        };
        let Policy { process, user, .. } = &self.config.policy;
        if of(&|_| true) >= self.config.max_sessions {
            Err("as many as configured are served")
        } else if of(&|other| (other.uid(), other.is_operator) == (identity.uid, peer.is_operator))
            >= user.sessions
        {
            Err("its user has as many as policy allows")
        } else if *pid != 0
            && of(&|other| (other.pid, other.uid()) == (*pid, identity.uid)) >= process.sessions
        {
            Err("its process has as many sessions as policy allows")
        } else if self.exchange.doorbells() + MAX_CQS > self.most_in_flight {
            Err(
                "its doorbells would be more descriptors than may be under way (the broker's limit of open files)",
            )
        } else {
            Ok(())
        }
    }

    fn begin(&mut self, socket: OwnedFd, peer: Peer, door: Door) {
        let id = self.next_session;
        self.next_session += 1;
        if let Err(errno) = epoll::add(self.set_of(door), &socket, EventData::new_u64(id), EventFlags::IN) {
            return tracing::warn!(%errno, "cannot wait for a client");
        }
        let queued = self.queued.entry(peer.uid()).or_default();
        self.sessions.insert(SessionId(id), Session::new(socket, peer, door, Rc::clone(queued)));
        self.patience.push_back((clock::now() + PATIENCE, SessionId(id)));
        self.idle_since = None;
    }

    /// Closes a session's socket, the only descriptor of it that the broker has. What lies in it unread may have descriptors, and
    /// their last close is not for us to wait for.
    pub(super) fn let_go(&mut self, user: u32, socket: Rc<OwnedFd>) {
        // Nothing comes any more: what there is is no more than the socket's buffer holds. What was said to the client stays there.
        let is_empty = !self.is_shunned(user, clock::now()) && delays::message(user, || drain(&socket));
        if !is_empty {
            self.helpers.bury(user, socket, Last::Close, &self.of_helpers);
        }
    }

    /// Ends the sessions of users that have kept the loop waiting for more than their share. Where there is one user it is its own broker;
    /// the operator's and a container's root have one number.
    pub(super) fn shun_who_delays(&mut self) {
        let now = clock::now();
        for (user, time) in delays::take() {
            self.delaying.spend(user, time, now);
            let Some(over) = self.delaying.free_at(user).and_then(|at| at.checked_duration_since(now)) else {
                continue;
            };
            if self.config.private || self.is_shunned(user, now) {
                continue;
            }
            tracing::warn!(uid = user, "{DELAYS}: its sessions end, and it gets none for a while");
            self.shunned.retain(|_, until| *until > now);
            self.shunned.insert(user, now + SHUNNED.max(10 * over));
            let is_its = |session: &Session| session.peer.uid() == user && !session.peer.is_operator;
            let its: Vec<SessionId> =
                self.sessions.iter().filter(|(_, session)| is_its(session)).map(|(id, _)| *id).collect();
            its.into_iter().for_each(|id| self.end(id));
        }
    }

    pub(super) fn is_shunned(&self, user: u32, now: Instant) -> bool {
        self.shunned.get(&user).is_some_and(|until| *until > now)
    }

    /// A user without sessions has no helpers.
    pub(super) fn dismiss_if_last(&mut self, user: u32) {
        if !self.sessions.values().any(|session| session.peer.uid() == user) {
            self.queued.remove(&user);
            self.helpers.dismiss(user, &self.of_helpers);
        }
    }

    /// Has what nobody needs any more closed.
    pub(super) fn bury(&mut self) {
        for (user, fd, last) in self.graves.take() {
            self.helpers.bury(user, Rc::new(fd), last, &self.of_helpers);
        }
        if self.helpers.is_clogged() && self.paused_until.is_none() {
            tracing::warn!("too much waits to be closed; pausing");
            self.pause_accepting(Door::Everybodys);
        }
    }

    pub(super) fn pause_accepting(&mut self, door: Door) {
        self.paused_until = Some(clock::now() + PAUSE);
        self.listen_at(door, EventFlags::empty());
    }

    /// After a pause.
    pub(super) fn accept_again(&mut self) {
        self.paused_until = None;
        self.listen_at(Door::Everybodys, EventFlags::IN);
        if self.operators.is_some() {
            self.listen_at(Door::Operators, EventFlags::IN);
        }
    }

    fn listen_at(&self, door: Door, flags: EventFlags) {
        let (set, listener) = (self.set_of(door), self.listener_at(door));
        if let Err(errno) = epoll::modify(set, listener, EventData::new_u64(LISTENER), flags) {
            tracing::error!(%errno, "listener");
        }
    }

    fn listener_at(&self, door: Door) -> &OwnedFd {
        match (door, &self.operators) {
            (Door::Operators, Some(operators)) => &operators.listener,
            _ => &self.listener,
        }
    }
}

/// Takes what lies in a socket, of which nothing comes any more. Says whether that is all: what has descriptors stays.
fn drain(socket: &OwnedFd) -> bool {
    datagram::end(socket.as_fd());
    loop {
        match datagram::peek(socket.as_fd()) {
            Ok(Next::End) => return true,
            Ok(Next::Message(message)) if !message.has_fds => datagram::take(socket.as_fd()),
            Err(Errno::INTR) => {}
            _ => return false,
        }
    }
}

/// Tells a tool why it is turned away, where its question is there already: a library waits for nothing of the kind. What the socket does
/// not take at once is lost.
fn tell_tool(socket: &OwnedFd, why: &str) {
    let Ok(Next::Message(message)) = datagram::peek(socket.as_fd()) else { return };
    if !matches!(ToBroker::decode(message.bytes()), Ok(ToBroker::Query { .. })) {
        return;
    }
    let hint = "ask again a little later, or end some of your tools and programs; what each user may have is policy ('shunpike policy')";
    let answer = json(&Answer { error: Some(failure("the broker turned this connection away", why, hint)) });
    // An empty one ends an answer.
    let _ = datagram::send(socket.as_fd(), answer.as_bytes(), &[])
        .and_then(|()| datagram::send(socket.as_fd(), &[], &[]));
}
