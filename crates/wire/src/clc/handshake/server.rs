//! The end that accepted the TCP connection: it chooses.

use super::{
    Agreed, Held, Input, LocalDevice, NamedDmb, Next, Opened, Outbox, Step, go, let_go, reason_of, write,
};
use crate::clc::{AcceptConfirm, AcceptVersion, Message, Proposal, SmcdV2Extension, V2Extension, Version};
use crate::{Eid, Gid, Reason, Seid};

/// The server's machine.
#[derive(Copy, Clone)]
pub struct Server {
    state: State,
    held: Held,
    first_contact: bool,
    link_id: u32,
}

#[derive(Copy, Clone)]
enum State {
    /// Nothing came yet.
    AwaitProposal,
    /// The device registers a DMB for this end.
    Registering(Chosen),
    /// The accept is out.
    AwaitConfirm(Chosen, NamedDmb),
    /// The device attaches the client's DMB.
    Attaching(Opened),
    /// Both ends have agreed.
    Open,
    /// Fallen back.
    Over,
}

/// What was chosen of the client's offer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Chosen {
    peer_gid: Gid,
    eid: Eid,
    /// Only on first contact.
    agreed: Option<Agreed>,
}

impl Server {
    /// Waits for a proposal. `first_contact` says that the two processes have no link group yet,
    /// `link_id` is this side's number for it.
    pub fn new(first_contact: bool, link_id: u32) -> Server {
        Server { state: State::AwaitProposal, held: Held::default(), first_contact, link_id }
    }

    /// Takes what happened, and answers what to do.
    pub fn step<'o>(&mut self, local: &LocalDevice, input: Input<'_>, out: &'o mut Outbox) -> Step<'o> {
        if let State::Over = self.state {
            return let_go(&input);
        }
        match (self.state, input) {
            // The connection's own end and the lane's rules speak from here on.
            (State::Open, Input::Timeout | Input::PeerVanished) => go(Next::Wait),
            (_, Input::PeerVanished) => self.end_silently(Reason::PeerVanished, 0),
            (_, Input::Clc(bytes)) => match Message::decode(bytes) {
                Ok(message) => self.receive(local, message, out),
                Err(error) => self.decline(local, reason_of(error), out),
            },
            (State::Registering(chosen), Input::Registered(own)) => {
                self.held.own = Some(own.token);
                self.accept(local, chosen, own, out)
            }
            (State::Attaching(opened), Input::Attached(dmb)) => {
                self.held.peer = Some(dmb.token);
                if dmb != opened.peer {
                    return self.decline(local, Reason::PeerViolation, out);
                }
                self.state = State::Open;
                go(Next::Open(opened))
            }
            // The caller is told already, and revokes.
            (State::Open, Input::Refused(_)) => go(Next::Wait),
            (_, Input::Refused(reason)) => self.decline(local, reason, out),
            (State::AwaitProposal | State::AwaitConfirm(..), Input::Timeout) => {
                self.decline(local, Reason::ConfirmTimeout, out)
            }
            (_, Input::Timeout) => self.decline(local, Reason::HandshakeTimeout, out),
            (_, unasked) => let_go(&unasked),
        }
    }

    fn receive<'o>(&mut self, local: &LocalDevice, message: Message, out: &'o mut Outbox) -> Step<'o> {
        match (self.state, message) {
            (_, Message::Decline(decline)) => self.end_silently(Reason::PeerDeclined, decline.diagnosis),
            (State::AwaitProposal, Message::Proposal(proposal)) => {
                match choose(local, self.first_contact, &proposal) {
                    Ok(chosen) => {
                        self.state = State::Registering(chosen);
                        go(Next::Register)
                    }
                    Err(reason) => self.decline(local, reason, out),
                }
            }
            (State::AwaitConfirm(chosen, own), Message::Confirm(confirm)) => {
                match check(local, chosen, own, &confirm) {
                    Ok(opened) => {
                        self.state = State::Attaching(opened);
                        go(Next::Attach(opened.peer))
                    }
                    Err(reason) => self.decline(local, reason, out),
                }
            }
            _ => self.decline(local, Reason::Sync, out),
        }
    }

    fn accept<'o>(
        &mut self,
        local: &LocalDevice,
        chosen: Chosen,
        own: NamedDmb,
        out: &'o mut Outbox,
    ) -> Step<'o> {
        let answer = local.answer(own, self.link_id, chosen.eid, chosen.agreed);
        match write(Message::Accept(answer), out) {
            None => self.end_silently(Reason::Internal, 0),
            send => {
                self.state = State::AwaitConfirm(chosen, own);
                Step { send, next: Next::Wait }
            }
        }
    }

    fn decline<'o>(&mut self, local: &LocalDevice, reason: Reason, out: &'o mut Outbox) -> Step<'o> {
        self.state = State::Over;
        self.held.decline(local, reason, out)
    }

    fn end_silently<'o>(&mut self, reason: Reason, peer_diagnosis: u32) -> Step<'o> {
        self.state = State::Over;
        self.held.fall_back(reason, peer_diagnosis)
    }
}

/// The first device offered that can be reached from here, and the EID in common.
fn choose(local: &LocalDevice, first_contact: bool, proposal: &Proposal) -> Result<Chosen, Reason> {
    if proposal.version == Version::V1 {
        return Err(Reason::VersionMismatch);
    }
    if !proposal.v2.has_smcd() {
        return Err(Reason::NoSmcD);
    }
    let v2 = proposal.smcd.and_then(|area| area.v2).ok_or(Reason::NoV2Extension)?;
    let smcd = v2.smcd.ok_or(Reason::NoSmcDV2Extension)?;
    let eid = common_eid(local, &v2, &smcd).ok_or(Reason::NoUeid)?;
    let mut reason = Reason::NoSmcDV2Device;
    for (gid, chid) in smcd.devices() {
        if chid != local.chid {
            continue;
        }
        if local.reaches(gid) {
            let agreed = first_contact.then_some(Agreed::with(v2.release, v2.feature_mask));
            return Ok(Chosen { peer_gid: gid, eid, agreed });
        }
        reason = Reason::GidUnreachable;
    }
    Err(reason)
}

/// The SEID if both sides enable it and it is the same, else the client's first UEID that is known here.
fn common_eid(local: &LocalDevice, v2: &V2Extension, smcd: &SmcdV2Extension) -> Option<Eid> {
    match local.seid {
        Some(seid) if v2.seid_enabled && seid != Seid::NONE && seid == smcd.seid => Some(seid.0),
        _ => v2.ueids.iter().find(|&theirs| local.ueids.iter().any(|own| own == theirs)),
    }
}

/// Whether the confirm is one to the accept that was sent.
fn check(
    local: &LocalDevice,
    chosen: Chosen,
    own: NamedDmb,
    confirm: &AcceptConfirm,
) -> Result<Opened, Reason> {
    let AcceptVersion::V2 { chid, eid, first_contact } = confirm.version else {
        return Err(Reason::VersionMismatch);
    };
    if chid != local.chid || confirm.gid != chosen.peer_gid || eid != chosen.eid {
        return Err(Reason::PeerViolation);
    }
    match (first_contact, chosen.agreed) {
        (Some(theirs), Some(agreed)) if theirs.release != agreed.release => {
            return Err(Reason::ReleaseMismatch);
        }
        (Some(_), None) | (None, Some(_)) => return Err(Reason::Sync),
        _ => {}
    }
    let peer = NamedDmb { token: confirm.token, size: confirm.size };
    Ok(Opened { own, peer, peer_gid: chosen.peer_gid, eid })
}
