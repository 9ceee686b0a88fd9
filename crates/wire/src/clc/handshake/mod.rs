//! The handshake of one connection as two state machines without I/O or clock: [`Client`] is the
//! end that opened the TCP connection, [`Server`] the other.
//!
//! ```text
//! client                                        server
//!   Proposal: my devices, my EIDs       ->        choose device and EID, register a DMB
//!   attach the server's DMB,            <-      Accept: token of my DMB
//!   register one of its own
//!   Confirm: token of my DMB, open      ->        attach the client's DMB, open
//!                 either side, at any point: Decline, and both stay on TCP
//! ```
//!
//! A machine takes one [`Input`] at a time and answers with one [`Step`]: at most one message for the
//! peer, and what to do next. Whatever order inputs come in, every machine ends open or in a
//! [`Fallback`] that lists what must be let go.
//!
//! The client opens when it sends its Confirm, before it can know what the server makes of it. A server
//! that fails after that declines (the kernel's cannot), which takes an open client back to TCP. If that
//! Decline is lost as well, the client learns it from the memory itself: the server's fallback names the
//! DMB that the client may be writing to, and the server stops it.

mod client;
mod server;
#[cfg(test)]
mod tests;

pub use client::Client;
pub use server::Server;

use super::{
    AcceptConfirm, AcceptVersion, ClcError, Decline, FEATURE_EMULATED_ISM, FirstContact, FirstContactV2x,
    List, MAX_EIDS, MAX_LEN, Message, OS_LINUX,
};
use crate::session::Welcome;
use crate::{Chid, DmbSize, DmbToken, Eid, Gid, PeerId, Reason, Seid};

/// SMC release that is offered here: 2.1, the one that knows emulated devices.
const RELEASE: u8 = 1;

/// Room for the message of a [`Step`].
pub type Outbox = [u8; MAX_LEN];

/// What the handshake must know of this host and its device.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LocalDevice {
    /// The device's GID.
    pub gid: Gid,
    /// The device's CHID.
    pub chid: Chid,
    /// This host.
    pub peer_id: PeerId,
    /// The host's SEID, if it takes part in finding the common EID.
    pub seid: Option<Seid>,
    /// The UEIDs known here, the preferred one first.
    pub ueids: List<Eid, MAX_EIDS>,
    /// This host's name, padded with blanks.
    pub hostname: [u8; 32],
}

impl LocalDevice {
    /// What the broker announced, and this host's name, which is cut to 32 bytes.
    pub fn new(welcome: &Welcome, hostname: &[u8]) -> Self {
        let mut ueids = List::new();
        for ueid in welcome.ueids.iter().take(usize::from(welcome.ueid_count)) {
            // Both lists hold eight.
            let _ = ueids.push(Eid(*ueid));
        }
        let mut padded = [b' '; 32];
        for (to, from) in padded.iter_mut().zip(hostname) {
            *to = *from;
        }
        LocalDevice {
            gid: Gid(welcome.gid),
            chid: Chid(welcome.chid),
            peer_id: PeerId(welcome.peer_id),
            seid: welcome.seid_enabled.then_some(Seid(Eid(welcome.seid))),
            ueids,
            hostname: padded,
        }
    }

    /// Whether a device there can be reached from the one here. An emulated device exists once, so
    /// that it reaches only itself.
    fn reaches(&self, gid: Gid) -> bool {
        self.gid == gid
    }

    /// Whether the EID is one that this host answers to.
    fn knows(&self, eid: Eid) -> bool {
        let is_seid = self.seid.is_some_and(|own| own != Seid::NONE && own.0 == eid);
        is_seid || self.ueids.iter().any(|own| own == eid)
    }

    /// The body of this side's accept or confirm.
    fn answer(&self, own: NamedDmb, link_id: u32, eid: Eid, agreed: Option<Agreed>) -> AcceptConfirm {
        let first_contact = agreed.map(|Agreed { release, feature_mask }| FirstContact {
            v2_direct: false,
            os: OS_LINUX,
            release,
            hostname: self.hostname,
            v2x: FirstContactV2x { feature_mask, ..FirstContactV2x::default() },
        });
        AcceptConfirm {
            gid: self.gid,
            token: own.token,
            size: own.size,
            link_id,
            version: AcceptVersion::V2 { chid: self.chid, eid, first_contact },
        }
    }
}

/// What the sides agree once for a link group: the lower release, and the features that both know.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Agreed {
    release: u8,
    feature_mask: u16,
}

impl Agreed {
    /// Of what the peer states.
    fn with(release: u8, feature_mask: u16) -> Agreed {
        Agreed { release: release.min(RELEASE), feature_mask: feature_mask & FEATURE_EMULATED_ISM }
    }
}

/// A DMB, as the handshake names it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct NamedDmb {
    /// Its name.
    pub token: DmbToken,
    /// Its size.
    pub size: DmbSize,
}

/// What happened.
#[derive(Copy, Clone, Debug)]
pub enum Input<'a> {
    /// A CLC message came from the peer.
    Clc(&'a [u8]),
    /// The device registered the DMB that [`Next::Register`] asked for.
    Registered(NamedDmb),
    /// The device attached the DMB that [`Next::Attach`] asked for, and says how large it is.
    Attached(NamedDmb),
    /// The device refused what was asked last, or this end wants no lane any more.
    Refused(Reason),
    /// Nothing happened for as long as the caller cared to wait.
    Timeout,
    /// The peer closed the connection or its process ended.
    PeerVanished,
}

/// What to do, in this order.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Step<'a> {
    /// Send this message to the peer.
    pub send: Option<&'a [u8]>,
    /// Then do this.
    pub next: Next,
}

/// What to do after sending.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing, until something happens.
    Wait,
    /// Have the device register a DMB for this end to receive in, of a size that the caller chooses.
    Register,
    /// Have the device attach the peer's DMB.
    Attach(NamedDmb),
    /// Both directions may go through shared memory. A client may still be told to fall back.
    Open(Opened),
    /// Stay on TCP, or go back to it.
    Fallback(Fallback),
    /// Let go of an own DMB whose registration nobody waits for (any more).
    Unregister(DmbToken),
    /// Let go of a peer's DMB whose attachment nobody waits for (any more).
    Detach(DmbToken),
}

/// What the two ends agreed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The DMB that this end receives in.
    pub own: NamedDmb,
    /// The DMB that this end sends to.
    pub peer: NamedDmb,
    /// The peer's device.
    pub peer_gid: Gid,
    /// The EID in common.
    pub eid: Eid,
}

/// Why there is no lane, and what to let go.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fallback {
    /// The reason on this side; [`Reason::PeerDeclined`] if it was the peer's wish.
    pub reason: Reason,
    /// The number that the peer's Decline gave, else 0.
    pub peer_diagnosis: u32,
    /// Stop and unregister this DMB. The peer may know it and may have written to it.
    pub own: Option<DmbToken>,
    /// Detach this DMB.
    pub peer: Option<DmbToken>,
}

/// The DMBs that a machine would have to let go.
#[derive(Copy, Clone, Default)]
struct Held {
    own: Option<DmbToken>,
    peer: Option<DmbToken>,
}

impl Held {
    fn fall_back<'o>(self, reason: Reason, peer_diagnosis: u32) -> Step<'o> {
        let fallback = Fallback { reason, peer_diagnosis, own: self.own, peer: self.peer };
        Step { send: None, next: Next::Fallback(fallback) }
    }

    fn decline<'o>(self, local: &LocalDevice, reason: Reason, out: &'o mut Outbox) -> Step<'o> {
        Step { send: decline(local, reason, out), ..self.fall_back(reason, 0) }
    }
}

/// The Decline of an end that wants no lane, whatever the other is about to say.
pub fn decline<'o>(local: &LocalDevice, reason: Reason, out: &'o mut Outbox) -> Option<&'o [u8]> {
    write(Message::Decline(Decline::new(local.peer_id, reason)), out)
}

/// What to do with an answer of the device that is not, or no longer, waited for.
fn let_go<'o>(input: &Input<'_>) -> Step<'o> {
    match input {
        Input::Registered(dmb) => go(Next::Unregister(dmb.token)),
        Input::Attached(dmb) => go(Next::Detach(dmb.token)),
        _ => go(Next::Wait),
    }
}

fn go<'o>(next: Next) -> Step<'o> {
    Step { send: None, next }
}

fn write(message: Message, out: &mut Outbox) -> Option<&[u8]> {
    let len = message.encode(out).ok()?;
    out.get(..len)
}

/// Why a message that cannot be read ends the handshake.
fn reason_of(error: ClcError) -> Reason {
    match error {
        ClcError::Version(_) => Reason::VersionMismatch,
        ClcError::SmcR => Reason::ModeMismatch,
        _ => Reason::PeerViolation,
    }
}
