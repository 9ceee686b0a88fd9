//! Who is let in, and how connections end that are not.

use super::{LISTENER, Server};
use crate::datagram::{self, Next};
use crate::facts;
use crate::foreign::Last;
use crate::ism::SessionId;
use crate::policy::{Identity, Policy};
use crate::session::{Peer, Session};
use crate::sockopt;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Connections accepted in one turn.
const ACCEPTS_A_TURN: usize = 64;
/// Connections beyond the programs': tools, and those that have not said what they are.
const TOOLS: usize = 64;
/// Of these, those that one user, of several, can have beside as many programs as one may have.
const TOOLS_OF_USER: usize = 16;
/// ... and those that are left to root and the broker's own user, who may have to see what is going on.
const TOOLS_OF_OPERATOR: usize = 8;
/// How long a new connection may say nothing, a tool may leave its answer unread, and a message of one that is gone may wait.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody is accepted after descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);

impl Server {
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => {
                    // Descriptors or memory: level-triggered, the listener would have us spin.
                    tracing::warn!(%errno, "cannot accept; pausing");
                    return self.pause_accepting();
                }
            };
            match self.admit(&socket) {
                Ok(peer) => self.begin(socket, peer),
                Err(user) => {
                    tracing::warn!("turned a connection away");
                    self.let_go(user, Rc::new(socket));
                }
            }
        }
    }

    /// Who is at the other end, if we serve them. Errors: which user is turned away.
    fn admit(&self, socket: &OwnedFd) -> Result<Peer, u32> {
        let (pid, uid) = sockopt::peer_credentials(socket.as_fd()).ok_or(u32::MAX)?;
        let own = rustix::process::geteuid().as_raw();
        let is_operator = uid == own || uid == 0;
        if self.config.private && !is_operator {
            return Err(uid);
        }
        let mut limit = self.config.max_sessions + TOOLS;
        // Where there are several users, none can keep the others out, nor all of them the operator.
        if !self.config.private {
            let of_user = self.sessions.values().filter(|session| session.peer.uid() == uid).count();
            if of_user >= self.config.policy.user.sessions.saturating_add(TOOLS_OF_USER) {
                return Err(uid);
            }
            limit -= if is_operator { 0 } else { TOOLS_OF_OPERATOR };
        }
        if self.sessions.len() >= limit {
            return Err(uid);
        }
        let groups = sockopt::peer_groups(socket.as_fd());
        let identity = Identity { uid, groups, unmapped: self.unmapped };
        Ok(Peer { pid, identity, netns: facts::netns_cookie(socket.as_fd()) })
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
        let queued = self.queued.entry(peer.uid()).or_default();
        self.sessions.insert(SessionId(id), Session::new(socket, peer, Rc::clone(queued)));
        self.patience.push_back((Instant::now() + PATIENCE, SessionId(id)));
        self.idle_since = None;
    }

    /// Closes a session's socket, the only descriptor of it that the broker has. What lies in it unread may have descriptors, and
    /// their last close is not for us to wait for.
    pub(super) fn let_go(&mut self, user: u32, socket: Rc<OwnedFd>) {
        // Nothing comes any more, and what there is is no more than the socket's buffer holds.
        datagram::end(socket.as_fd());
        loop {
            match datagram::peek(socket.as_fd()) {
                Ok(Next::End) => return,
                Ok(Next::Message(message)) if !message.has_fds => datagram::take(socket.as_fd()),
                Err(Errno::INTR) => {}
                _ => return self.helpers.bury(user, socket, Last::Close, &self.epoll),
            }
        }
    }

    pub(super) fn pause_accepting(&mut self) {
        self.paused_until = Some(Instant::now() + PAUSE);
        self.listen_for(EventFlags::empty());
    }

    pub(super) fn listen_for(&self, flags: EventFlags) {
        if let Err(errno) = epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags) {
            tracing::error!(%errno, "listener");
        }
    }
}
