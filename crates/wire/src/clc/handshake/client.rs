//! The end that opened the TCP connection: it proposes.

use super::{
    Agreed, Held, Input, LocalDevice, NamedDmb, Next, Opened, Outbox, RELEASE, Step, go, let_go, reason_of,
    write,
};
use crate::clc::{
    AcceptConfirm, AcceptVersion, FEATURE_EMULATED_ISM, GidChid, List, Message, Paths, Proposal, SmcdArea,
    SmcdV2Extension, V2Extension, Version,
};
use crate::{Chid, Eid, Gid, Reason, Seid};

/// The client's machine.
#[derive(Copy, Clone)]
pub struct Client {
    state: State,
    held: Held,
    first_contact: bool,
    link_id: u32,
}

#[derive(Copy, Clone)]
enum State {
    /// The proposal is out.
    AwaitAccept,
    /// The device attaches the server's DMB.
    Attaching(Accepted),
    /// The device registers a DMB for this end.
    Registering(Accepted),
    /// The confirm is out.
    Open,
    /// Fallen back.
    Over,
}

/// What the server chose.
#[derive(Copy, Clone)]
struct Accepted {
    peer: NamedDmb,
    peer_gid: Gid,
    eid: Eid,
    /// Only on first contact.
    agreed: Option<Agreed>,
}

impl Client {
    /// Begins. `first_contact` says that the two processes have no link group yet, `link_id` is this
    /// side's number for it.
    pub fn start<'o>(
        local: &LocalDevice,
        first_contact: bool,
        link_id: u32,
        out: &'o mut Outbox,
    ) -> (Client, Step<'o>) {
        let mut client = Client { state: State::AwaitAccept, held: Held::default(), first_contact, link_id };
        let step = match write(Message::Proposal(propose(local)), out) {
            None => client.end_silently(Reason::Internal, 0),
            send => Step { send, next: Next::Wait },
        };
        (client, step)
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
            (State::Attaching(accepted), Input::Attached(dmb)) => {
                self.held.peer = Some(dmb.token);
                if dmb != accepted.peer {
                    return self.decline(local, Reason::PeerViolation, out);
                }
                self.state = State::Registering(accepted);
                go(Next::Register)
            }
            (State::Registering(accepted), Input::Registered(own)) => {
                self.held.own = Some(own.token);
                self.confirm(local, accepted, own, out)
            }
            // The caller is told already, and revokes.
            (State::Open, Input::Refused(_)) => go(Next::Wait),
            (_, Input::Refused(reason)) => self.decline(local, reason, out),
            (State::AwaitAccept, Input::Timeout) => self.decline(local, Reason::ConfirmTimeout, out),
            (_, Input::Timeout) => self.decline(local, Reason::HandshakeTimeout, out),
            (_, unasked) => let_go(&unasked),
        }
    }

    fn receive<'o>(&mut self, local: &LocalDevice, message: Message, out: &'o mut Outbox) -> Step<'o> {
        match (self.state, message) {
            (_, Message::Decline(decline)) => self.end_silently(Reason::PeerDeclined, decline.diagnosis),
            (State::AwaitAccept, Message::Accept(accept)) => {
                match check(local, self.first_contact, &accept) {
                    Ok(accepted) => {
                        self.state = State::Attaching(accepted);
                        go(Next::Attach(accepted.peer))
                    }
                    Err(reason) => self.decline(local, reason, out),
                }
            }
            _ => self.decline(local, Reason::Sync, out),
        }
    }

    fn confirm<'o>(
        &mut self,
        local: &LocalDevice,
        accepted: Accepted,
        own: NamedDmb,
        out: &'o mut Outbox,
    ) -> Step<'o> {
        let Accepted { peer, peer_gid, eid, agreed } = accepted;
        let answer = local.answer(own, self.link_id, eid, agreed);
        match write(Message::Confirm(answer), out) {
            None => self.end_silently(Reason::Internal, 0),
            send => {
                self.state = State::Open;
                Step { send, next: Next::Open(Opened { own, peer, peer_gid, eid }) }
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

/// The offer of this host's one device, for SMC-Dv2 alone.
fn propose(local: &LocalDevice) -> Proposal {
    let mut smcd = SmcdV2Extension { seid: local.seid.unwrap_or(Seid::NONE), gids: List::new() };
    // The list is empty and has room for eight.
    let _ = smcd.offer(local.gid, local.chid);
    let v2 = V2Extension {
        release: RELEASE,
        seid_enabled: local.seid.is_some(),
        roce: [0; 16],
        max_conns: 0,
        max_links: 0,
        feature_mask: FEATURE_EMULATED_ISM,
        ueids: local.ueids,
        smcd: Some(smcd),
    };
    Proposal {
        version: Version::V2,
        v1: Paths::None,
        v2: Paths::SmcD,
        peer_id: local.peer_id,
        ib_gid: [0; 16],
        mac: [0; 6],
        prefix: None,
        smcd: Some(SmcdArea { ism: GidChid { gid: 0, chid: Chid(0) }, vendor: [0; 8], v2: Some(v2) }),
    }
}

/// Whether the server's choice is one of those offered.
fn check(local: &LocalDevice, first_contact: bool, accept: &AcceptConfirm) -> Result<Accepted, Reason> {
    let AcceptVersion::V2 { chid, eid, first_contact: extension } = accept.version else {
        return Err(Reason::VersionMismatch);
    };
    if chid != local.chid {
        return Err(Reason::NoSmcDV2Device);
    }
    if !local.reaches(accept.gid) {
        return Err(Reason::GidUnreachable);
    }
    if !local.knows(eid) {
        return Err(Reason::NoUeid);
    }
    // A server that takes up a link group which is not known here would ring doorbells that are not there.
    if first_contact && extension.is_none() {
        return Err(Reason::Sync);
    }
    if extension.is_some_and(|extension| extension.release > RELEASE) {
        return Err(Reason::ReleaseMismatch);
    }
    Ok(Accepted {
        peer: NamedDmb { token: accept.token, size: accept.size },
        peer_gid: accept.gid,
        eid,
        agreed: extension.map(|theirs| Agreed::with(theirs.release, theirs.v2x.feature_mask)),
    })
}
