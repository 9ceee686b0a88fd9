//! The seam between the broker and an ISM device.
//!
//! This is the broker's half of the device: who holds which DMB. The client's half, where bytes are moved, is
//! [`shunpike_shm::device`].
//!
//! Operations and their meanings are those of the kernel's `struct smcd_ops` (include/net/smc.h), with two
//! differences: a DMB's memory comes from its owner, and each DMB names the one party that may attach it.
//! What the kernel's have and these have not: `move_data` is the client's half's. `query_remote_gid` is done by the
//! handshake, which compares GIDs. `support_dmb_nocopy` is one of the [`Capabilities`]. Events and VLANs have nobody who would
//! use them.

use crate::ends::{Party, SessionId};
use crate::foreign::Shared;
use shunpike_shm::device::Capabilities;
use shunpike_wire::{Chid, DmbSize, DmbToken, Gid};
use std::rc::Rc;

/// Why a device refused. The errno is the one that the kernel's loopback-ism gives in that case.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum IsmError {
    /// No DMB left in the device (ENOSPC).
    NoSpace,
    /// Memory refused, or not fit to be a DMB (ENOMEM).
    NoMemory,
    /// No DMB of this token, or none that the caller holds (EINVAL).
    UnknownToken,
    /// The caller is not the party that may attach (EPERM; the kernel trusts all callers).
    NotAllowed,
    /// The DMB's owner is gone (EPIPE).
    PeerGone,
    /// An optional operation that this device does not have (EOPNOTSUPP).
    Unsupported,
}

impl core::fmt::Display for IsmError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            IsmError::NoSpace => "the device has no DMB left",
            IsmError::NoMemory => "no memory for the DMB, or memory that cannot be one",
            IsmError::UnknownToken => "no such DMB",
            IsmError::NotAllowed => "the DMB is for another peer",
            IsmError::PeerGone => "the DMB's owner is gone",
            IsmError::Unsupported => "the device does not have this operation",
        })
    }
}

impl std::error::Error for IsmError {}

/// What a DMB is made of.
#[derive(Debug)]
pub struct NewDmb {
    /// Who receives in it.
    pub owner: Party,
    /// The user whose processes' DMBs it is counted with.
    pub user: u32,
    /// The only one who may attach it.
    pub peer: Party,
    /// Ring size; the memory is a header page longer.
    pub size: DmbSize,
    /// Header page and ring, sealed against any change of size.
    pub memory: Shared,
}

/// What an attached DMB looks like to its peer.
#[derive(Debug)]
pub struct Attachment<'a> {
    /// Ring size.
    pub size: DmbSize,
    /// The memory to map, where the device is memory.
    pub memory: Option<&'a Rc<Shared>>,
}

/// DMBs in the device.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// How many.
    pub dmbs: usize,
    /// Their memory, bytes.
    pub bytes: u64,
}

/// A lane's cursors as its receiver's DMB has them, bytes since the lane began.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Cursors {
    /// Written by the sender.
    pub produced: u64,
    /// Read by the receiver.
    pub consumed: u64,
    /// Bytes of the ring in use.
    pub window: u64,
    /// The sender publishes no more.
    pub ended: bool,
    /// A sender sleeps until there is room.
    pub blocked: bool,
}

/// Makes a broker's device: one of this GID, for so many DMBs.
pub type MakeDevice = fn(Gid, usize) -> Box<dyn IsmDevice>;

/// An ISM device.
pub trait IsmDevice {
    /// Makes a DMB and names it. Its owner holds one reference.
    /// Errors: `NoSpace`, `NoMemory`.
    fn register_dmb(&mut self, dmb: NewDmb) -> Result<DmbToken, IsmError>;

    /// Lets the owner's reference go. Errors: `UnknownToken`, also when `owner` does not own it.
    fn unregister_dmb(&mut self, token: DmbToken, owner: SessionId) -> Result<(), IsmError>;

    /// Takes a reference for `by`. Errors: `UnknownToken`, `NotAllowed`, `PeerGone`.
    fn attach_dmb(&mut self, token: DmbToken, by: Party) -> Result<Attachment<'_>, IsmError>;

    /// Lets one reference of an attached session go; `gone`: its memory is mapped nowhere there any more.
    /// Errors: `UnknownToken`, also when it holds none.
    fn detach_dmb(&mut self, token: DmbToken, by: SessionId, gone: bool) -> Result<(), IsmError>;

    /// Optional: nobody attaches the DMB any more, and its owner keeps its reference, to use it again with the same process
    /// as its peer. Says which that is. Errors: `UnknownToken`, also when `owner` does not own it; `Unsupported`.
    fn park_dmb(&mut self, _token: DmbToken, _owner: SessionId) -> Result<SessionId, IsmError> {
        Err(IsmError::Unsupported)
    }

    /// Whether a parked DMB can be used again: its peer has let go of it. Errors: `UnknownToken`, also where it is not
    /// parked; `NotAllowed` where it never can, because others may have it, too.
    fn is_spare(&self, _token: DmbToken) -> Result<bool, IsmError> {
        Err(IsmError::UnknownToken)
    }

    /// Names a parked DMB that can be used again anew, for another connection of the same two processes. Errors: those of
    /// `is_spare`; `UnknownToken` when `owner` does not own it, `NotAllowed` when it is in use or was another process's.
    fn reuse_dmb(&mut self, _token: DmbToken, _owner: Party, _peer: Party) -> Result<DmbToken, IsmError> {
        Err(IsmError::UnknownToken)
    }

    /// What it is called, and as Linux 6.18's dibs calls it.
    fn names(&self) -> [&'static str; 2];

    /// The device's own GID.
    fn local_gid(&self) -> Gid;

    /// The fabric that the device is on.
    fn chid(&self) -> Chid;

    /// Whether SMC-Dv2 is spoken.
    fn supports_v2(&self) -> bool;

    /// What its client's half can do.
    fn capabilities(&self) -> Capabilities;

    /// Lets go of references that a session holds which has ended, as owner or attached: of so many DMBs. Returns of how many; if fewer
    /// than `most`, they were all.
    fn end_session(&mut self, session: SessionId, most: usize) -> usize;

    /// What is in the device of a session's DMBs, let go of by it or not.
    fn held_by_session(&self, session: SessionId) -> Held;

    /// What is in the device of a user's DMBs, also of sessions that have ended.
    fn held_by_user(&self, uid: u32) -> Held;

    /// DMBs in the device.
    fn dmb_count(&self) -> usize;

    /// DMBs that the device can hold.
    fn dmb_limit(&self) -> usize;

    /// Optional: how many bytes of its lane have been produced and consumed in a DMB, for the tools. `None`
    /// where the device cannot look, or does not know the token.
    fn cursors(&self, _token: DmbToken) -> Option<Cursors> {
        None
    }
}
