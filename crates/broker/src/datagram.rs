//! Datagrams with descriptors on a SOCK_SEQPACKET unix socket, never blocking.

use crate::foreign::Foreign;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use shunpike_wire::session::{MAX, MAX_CQS};
use std::mem::MaybeUninit;
use std::rc::Rc;

/// Most descriptors beside one message: an arena or link page, and doorbells.
pub const MAX_FDS: usize = 1 + MAX_CQS;

/// A datagram as it came.
pub struct Received {
    bytes: [u8; MAX],
    len: usize,
    /// The descriptors beside it.
    pub fds: Vec<Foreign>,
}

impl Received {
    /// The message's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// Receives one datagram; `None` at the end of the session.
/// Errors: `AGAIN` when there is none; `MSGSIZE` when it or its descriptors are more than fit.
pub fn receive(socket: BorrowedFd<'_>) -> Result<Option<Received>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; MAX];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received.map(Foreign::new));
        }
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((got.bytes > 0).then_some(Received { bytes, len: got.bytes, fds }))
}

/// Sends one datagram. Errors: `AGAIN` when the receiver's queue is full; anything else is final.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[Rc<OwnedFd>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
}
