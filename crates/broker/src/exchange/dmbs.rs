//! DMBs of matched ends: registered, attached and let go, within what policy and limits permit.

use super::{Exchange, News, Post};
use crate::ends::{Party, SessionId};
use crate::foreign::Shared;
use crate::ism::{IsmError, NewDmb};
use shunpike_wire::session::FromBroker;
use shunpike_wire::{DmbSize, DmbToken, Reason};
use std::rc::Rc;

impl Exchange {
    /// Registers a DMB for an end that has a match, whose peer may attach it.
    pub fn register(&mut self, owner: Party, class: u8, memory: Option<Shared>) {
        let result = self.try_register(owner, class, memory);
        self.answer_register(owner, result);
    }

    fn answer_register(&mut self, owner: Party, result: Result<DmbToken, Reason>) {
        let conn = owner.conn;
        let message = match result {
            Ok(DmbToken(token)) => FromBroker::Registered { conn, token, reason: 0 },
            Err(reason) => FromBroker::Registered { conn, token: 0, reason: reason.code() },
        };
        self.post(owner.session, message);
    }

    /// Registers a parked DMB anew, for an end whose match is with the same process as before. Where that cannot be, it is
    /// let go of.
    pub fn reuse(&mut self, owner: Party, token: u64) {
        let result = self.try_reuse(owner, DmbToken(token));
        self.unpark(DmbToken(token), owner.session);
        match result {
            // It has taken the room that was kept.
            Ok(_) => self.forgo_promise(owner),
            Err(_) => self.unregister(owner.session, token),
        }
        self.answer_register(owner, result);
    }

    fn try_reuse(&mut self, owner: Party, token: DmbToken) -> Result<DmbToken, Reason> {
        if !self.active {
            return Err(Reason::Inactive);
        }
        let peer = self.permitted_peer(owner)?;
        self.device.reuse_dmb(token, owner, peer).map_err(reason_of)
    }

    fn try_register(&mut self, owner: Party, class: u8, memory: Option<Shared>) -> Result<DmbToken, Reason> {
        if !self.active {
            return Err(Reason::Inactive);
        }
        let peer = self.permitted_peer(owner)?;
        let size = DmbSize::from_class(class).ok_or(Reason::Configuration)?;
        let memory = memory.ok_or(Reason::MemoryRefused)?;
        let holder = self.holder(owner.session).ok_or(Reason::Internal)?;
        self.forgo_promise(owner);
        self.evict_while(holder, |all| all.promises.room(holder, size, all.device.as_ref(), &all.policy))?;
        let new = NewDmb { owner, user: holder.uid, peer, size, memory };
        self.device.register_dmb(new).map_err(reason_of)
    }

    /// Attaches the peer's DMB to an end that has a match.
    pub fn attach(&mut self, by: Party, token: u64) {
        let conn = by.conn;
        let (message, fds) = match self.try_attach(by, DmbToken(token)) {
            Ok((size, fds)) => {
                self.note_attached(by);
                (FromBroker::Attached { conn, token, class: size.class(), reason: 0 }, fds)
            }
            Err(reason) => {
                (FromBroker::Attached { conn, token, class: 0, reason: reason.code() }, Vec::new())
            }
        };
        self.posts.push(Post { to: by.session, message, fds });
    }

    fn note_attached(&mut self, by: Party) {
        let Some(end) = self.ends.get_mut(&by) else { return };
        let is_first = !std::mem::replace(&mut end.has_attached, true);
        let peer = end.peer.and_then(|peer| self.ends.get(&peer));
        if is_first && peer.is_some_and(|peer| peer.has_attached) {
            self.news.push(News::Opened { party: by });
        }
    }

    fn try_attach(&mut self, by: Party, token: DmbToken) -> Result<(DmbSize, Vec<Rc<Shared>>), Reason> {
        self.permitted_peer(by)?;
        let attachment = self.device.attach_dmb(token, by).map_err(reason_of)?;
        Ok((attachment.size, attachment.memory.into_iter().map(Rc::clone).collect()))
    }

    /// Lets a registered DMB go. One that is not the session's, or of an earlier broker, is nobody's loss.
    pub fn unregister(&mut self, session: SessionId, token: u64) {
        self.unpark(DmbToken(token), session);
        if let Err(error) = self.device.unregister_dmb(DmbToken(token), session) {
            tracing::debug!(session = session.0, token, %error, "unregister");
        }
    }

    /// Lets an attached DMB go; `gone`: it is mapped nowhere there any more.
    pub fn detach(&mut self, session: SessionId, token: u64, gone: bool) {
        match self.device.detach_dmb(DmbToken(token), session, gone) {
            Ok(()) => self.look_at_parked(DmbToken(token)),
            Err(error) => tracing::debug!(session = session.0, token, %error, "detach"),
        }
    }

    /// Whether memory that an end registers could be used.
    pub fn may_register(&self, owner: Party) -> bool {
        self.active && self.permitted_peer(owner).is_ok()
    }

    /// The other end of a match, for memory to be shared with. Errors: why not.
    fn permitted_peer(&self, party: Party) -> Result<Party, Reason> {
        let peer = self.peer(party).ok_or(Reason::PeerVanished)?;
        if self.permits(party, peer) { Ok(peer) } else { Err(Reason::NotPermitted) }
    }
}

fn reason_of(error: IsmError) -> Reason {
    match error {
        IsmError::NoSpace => Reason::MaxDmb,
        IsmError::NoMemory => Reason::MemoryRefused,
        IsmError::UnknownToken | IsmError::NotAllowed => Reason::AttachRefused,
        IsmError::PeerGone => Reason::PeerVanished,
        IsmError::Unsupported => Reason::Configuration,
    }
}
