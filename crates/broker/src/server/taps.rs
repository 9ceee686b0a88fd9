//! Taps: who may see what programs send on their lanes, and by which memory.
//!
//! A tap hands over rings in advance, so that a program has one before it can have a lane. The broker passes each to a
//! program that its tap may look into, and never maps it.

use super::End;
use super::sessions::Sessions;
use crate::clock;
use crate::datagram::MAX_FDS;
use crate::ends::SessionId;
use crate::exchange::{Exchange, Post};
use crate::foreign::Shared;
use crate::rate::Seldom;
use crate::reply::{Reply, done, failure};
use crate::runtime::{self, Confinement};
use crate::session::Kind;
use rustix::fd::AsFd;
use shunpike_wire::session::{FromBroker, MAX_TAPS};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Taps of one user at a time. Root's are beside those of a program's user, so that a program's places suffice for both.
const OF_USER: usize = MAX_TAPS / 2;
/// Taps of all users at a time, beside the operator's.
const OF_ALL: usize = 32;
/// Rings that a tap can have handed over in advance.
const SPARE: usize = MAX_FDS;

/// Those who look.
#[derive(Default)]
pub struct Taps(BTreeMap<SessionId, Tap>);

struct Tap {
    /// Who looks; `None` where that is not known.
    asker: Option<Confinement>,
    /// Whether it may look at everybody's programs.
    is_root: bool,
    /// Rings that no program has yet.
    spare: VecDeque<Spare>,
    /// The programs that it looks into, with its number for their ring.
    rings: BTreeMap<SessionId, u32>,
}

struct Spare {
    ring: u32,
    class: u8,
    memory: Rc<Shared>,
}

impl Taps {
    /// The asker becomes a tap, if there is room for one more.
    pub(super) fn begin(&mut self, sessions: &mut Sessions, told: &mut Seldom, asker: SessionId) -> Reply {
        let uid = |id: &SessionId| sessions.get(id).and_then(|session| session.peer.identity.user());
        let Some(own) = uid(&asker) else {
            return Err(failure("not permitted", "tap", "your user has no name where the broker runs"));
        };
        let of_user = self.0.keys().filter(|id| uid(id) == Some(own)).count();
        let is_operator = sessions.get(&asker).is_some_and(|session| session.peer.is_operator);
        if of_user >= OF_USER || self.0.len() >= OF_ALL && !is_operator {
            let on = format!("{of_user} of yours, {} in all", self.0.len());
            return Err(failure("too many taps", &on, "end one first"));
        }
        if let Some(times) = told.happened(clock::now()) {
            tracing::info!(session = asker.0, uid = own, times, "tap");
        }
        if let Some(session) = sessions.get_mut(&asker) {
            session.kind = Kind::Tap;
        }
        // Once, and before it is looked whether that process lives: /proc tells of a number.
        let session = sessions.get(&asker);
        let of_asker = session.and_then(|session| Confinement::of(session.peer.pid));
        let is_asker = session.is_some_and(|session| runtime::is_alive(session.as_fd()));
        let private = sessions.is_private();
        let known = of_asker.filter(|_| private || is_asker);
        let is_root = own == 0 && (private || known.as_ref().is_some_and(Confinement::sees_all));
        let (spare, rings) = (VecDeque::new(), BTreeMap::new());
        self.0.insert(asker, Tap { asker: known, is_root, spare, rings });
        Ok(done("tapping"))
    }

    /// Whether the tap may look into the program, and whether it may as root: who may read a process's memory anyway. A
    /// container's root is root by number only: it and others look into their own user's programs, in their own namespaces, that have
    /// no rights which they have not.
    fn may_tap(&self, sessions: &Sessions, tap: SessionId, program: SessionId) -> Option<bool> {
        let known = self.0.get(&tap)?;
        if known.is_root {
            return Some(true);
        }
        let session = sessions.get(&program)?;
        let (asker, subject) = (&sessions.get(&tap)?.peer, &session.peer);
        let user = asker.identity.user()?;
        let sees = || {
            let confined = session.program()?.confinement.as_ref()?;
            Some(subject.shares_netns(asker) && known.asker.as_ref()?.sees(confined))
        };
        let together =
            subject.identity.user() == Some(user) && (sessions.is_private() || sees() == Some(true));
        together.then_some(false)
    }

    /// A ring of a tap's, for the first program that has none, or for one that is still to come.
    pub(super) fn take_ring(
        &mut self,
        exchange: &mut Exchange,
        sessions: &Sessions,
        id: SessionId,
        ring: u32,
        class: u8,
        memory: Option<Shared>,
    ) -> Result<(), End> {
        let memory = Rc::new(memory.ok_or(End)?);
        let tap = self.0.get_mut(&id).ok_or(End)?;
        if tap.spare.len() >= SPARE {
            return Err(End);
        }
        tap.spare.push_back(Spare { ring, class, memory });
        // The first that it may have. Others are of programs that are still to come.
        let mut programs = exchange.members().into_iter();
        let _ = programs.find(|program| self.assign(exchange, sessions, id, *program));
        Ok(())
    }

    /// A program has come.
    pub(super) fn show(&mut self, exchange: &mut Exchange, sessions: &Sessions, program: SessionId) {
        let taps: Vec<SessionId> = self.0.keys().copied().collect();
        for tap in taps {
            self.assign(exchange, sessions, tap, program);
        }
    }

    /// Gives the program a ring of the tap's, where it may have one and has none. Whether it did.
    fn assign(
        &mut self,
        exchange: &mut Exchange,
        sessions: &Sessions,
        tap: SessionId,
        program: SessionId,
    ) -> bool {
        let wanted = |tap: &Tap| !tap.spare.is_empty() && !tap.rings.contains_key(&program);
        if !self.0.get(&tap).is_some_and(wanted) {
            return false;
        }
        let Some(root) = self.may_tap(sessions, tap, program) else { return false };
        let Some(session) = sessions.get(&program) else { return false };
        let (Some(of), Some(known)) = (session.program(), self.0.get_mut(&tap)) else { return false };
        let Some(Spare { ring, class, memory }) = known.spare.pop_front() else { return false };
        known.rings.insert(program, ring);
        let mut comm = [0; 16];
        comm.iter_mut().zip(of.comm.bytes().take(15)).for_each(|(to, byte)| *to = byte);
        let (pid, uid) = (session.peer.pid, session.peer.uid());
        // The program first: once the tap hears of it, all that the program sends is seen.
        let message = FromBroker::Tap { tap: tap.0, class, root };
        exchange.posts.push(Post { to: program, message, fds: vec![memory] });
        let message = FromBroker::Tapped { ring, pid, uid, comm };
        exchange.posts.push(Post { to: tap, message, fds: Vec::new() });
        true
    }

    /// A session has ended: a tap's, or a program's.
    pub(super) fn end_of(&mut self, exchange: &mut Exchange, id: SessionId) {
        let posts = &mut exchange.posts;
        for program in self.0.remove(&id).into_iter().flat_map(|tap| tap.rings.into_keys()) {
            posts.push(Post { to: program, message: FromBroker::Untap { tap: id.0 }, fds: Vec::new() });
        }
        for (tap, known) in &mut self.0 {
            if let Some(ring) = known.rings.remove(&id) {
                posts.push(Post { to: *tap, message: FromBroker::TapOver { ring }, fds: Vec::new() });
            }
        }
    }

    /// Whether the taps' tables agree with the sessions. Errors: where they do not.
    pub(super) fn audit(&self, exchange: &Exchange, sessions: &Sessions) -> Result<(), String> {
        let is_tap =
            |id: &SessionId| sessions.get(id).is_some_and(|session| matches!(session.kind, Kind::Tap));
        let programs = exchange.members();
        for (id, tap) in &self.0 {
            let stray = tap.rings.keys().find(|program| !programs.contains(program));
            if !is_tap(id) || stray.is_some() || tap.spare.len() > SPARE {
                return Err(format!("tap {id:?}: programs {:?}, of {programs:?}", tap.rings));
            }
        }
        Ok(())
    }
}
