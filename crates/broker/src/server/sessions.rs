//! The sessions that there are, and which of them each may see.

use crate::ends::SessionId;
use crate::journal::{Of, Whose};
use crate::laneless::Laneless;
use crate::reply::failure;
use crate::report::{Failure, OtherVersion, ReasonText};
use crate::runtime;
use crate::session::{Kind, Peer, Program, Session};
use rustix::fd::AsFd;
use shunpike_wire::Reason;
use shunpike_wire::session::VERSION;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

/// All sessions of a broker.
pub(crate) struct Sessions {
    by_id: HashMap<SessionId, Session>,
    /// The broker serves its own user only.
    private: bool,
}

impl Deref for Sessions {
    type Target = HashMap<SessionId, Session>;

    fn deref(&self) -> &Self::Target {
        &self.by_id
    }
}

impl DerefMut for Sessions {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.by_id
    }
}

impl Sessions {
    /// None yet.
    pub(super) fn new(private: bool) -> Self {
        Self { by_id: HashMap::new(), private }
    }

    /// Whether the broker serves its own user only.
    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    /// Running programs with their sessions.
    pub(crate) fn programs(&self) -> impl Iterator<Item = (SessionId, &Session, &Program)> {
        self.by_id.iter().filter_map(|(id, session)| Some((*id, session, session.program()?)))
    }

    /// Whether an asker is root or the broker's own user. A container's root may be root by number only: for
    /// the system-wide broker it has to be in the broker's own pid namespace.
    pub(crate) fn may_change(&self, asker: SessionId) -> Result<(), Failure> {
        let Some(session) = self.by_id.get(&asker) else {
            return Err(failure("not permitted", "", "the session has ended"));
        };
        let Peer { pid, identity, .. } = &session.peer;
        let own = rustix::process::geteuid().as_raw();
        if ![Some(own), Some(0)].contains(&identity.user()) {
            let on = format!("uid {}", identity.uid);
            let hint =
                "only root and the broker's own user change its settings and see other users' connections";
            return Err(failure("not permitted", &on, hint));
        }
        if !self.private && !runtime::shares_our_pids(session.as_fd(), *pid) {
            let hint = "do it on the host, or where the broker runs: this is another pid namespace (or the kernel is \
                        older than Linux 6.5 and does not say)";
            return Err(failure("not permitted", "a container's root", hint));
        }
        Ok(())
    }

    /// Which sessions an asker may look into and revoke: all who may change things, else its own user's; of
    /// these, as ss(8) of the kernel, the ones in its own network namespace.
    pub(crate) fn is_shown(&self, asker: SessionId) -> impl Fn(&Self, SessionId) -> bool + use<> {
        let all = self.may_change(asker).is_ok();
        let is_own = move |sessions: &Self, id| {
            let [own, peer] = [asker, id].map(|id| sessions.by_id.get(&id).map(|session| &session.peer));
            let (own, peer) = (own?, peer?);
            let user = own.identity.user()?;
            let is_near = sessions.private || peer.shares_netns(own);
            Some(is_near && peer.identity.user() == Some(user))
        };
        move |sessions, id| all || is_own(sessions, id) == Some(true)
    }

    /// Whether an asker gets figures of this moment, and at once. For others what looks at everybody's programs is made once a second,
    /// however many ask.
    pub(crate) fn gets_exact_figures(&self, asker: SessionId) -> bool {
        self.private || self.may_change(asker).is_ok()
    }

    /// Programs whose library speaks another version, by session.
    pub(crate) fn laneless(&self) -> impl Iterator<Item = (SessionId, &Session, &Laneless)> {
        self.by_id.iter().filter_map(|(id, session)| match &session.kind {
            Kind::Laneless(program) => Some((*id, session, &**program)),
            _ => None,
        })
    }

    /// What the tools say of programs whose library speaks another version: those of a process, or all.
    pub(crate) fn other_versions(&self, wanted: impl Fn(SessionId, u32) -> bool) -> Vec<OtherVersion> {
        let mut all: Vec<OtherVersion> = self
            .laneless()
            .filter(|(id, session, _)| wanted(*id, session.peer.pid))
            .map(|(_, session, program)| OtherVersion {
                pid: session.peer.pid,
                uid: session.peer.uid(),
                comm: program.comm.clone(),
                control: program.control,
                version: program.version,
                ours: VERSION,
                lanes: program.connections.map(|(lanes, _)| lanes),
                plain: program.connections.map(|(_, plain)| plain),
                reason: ReasonText::of(Reason::VersionDiffers),
            })
            .collect();
        all.sort_by_key(|other| other.pid);
        all
    }

    /// As [`Self::is_shown`], of ends whose sessions may have ended; and in whose events they are found.
    pub(super) fn sees_ends(&self, asker: SessionId) -> (Option<Of>, impl Fn(&Whose) -> bool + use<>) {
        let all = self.may_change(asker).is_ok();
        let private = self.private;
        let own = self.by_id.get(&asker).map(|session| (session.peer.identity.user(), session.peer.netns));
        let of = if all { Some(Of::Everybody) } else { own.and_then(|(user, _)| user).map(Of::User) };
        let sees = move |whose: &Whose| {
            let is_own = |(user, netns): (Option<u32>, Option<u64>)| {
                user.is_some() && user == whose.user && (private || netns.is_some() && netns == whose.netns)
            };
            all || own.is_some_and(is_own)
        };
        (of, sees)
    }
}
