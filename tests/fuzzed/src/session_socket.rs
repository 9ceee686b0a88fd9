//! A session's socket, as its program has it.

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use shunpike_wire::session::{FromBroker, MAX, ToBroker};
use std::mem::MaybeUninit;

/// What a session heard.
pub enum Heard {
    /// This, and what lay beside it.
    Message(Box<FromBroker>, Vec<OwnedFd>),
    /// Nothing yet.
    Nothing,
    /// The broker has ended the session.
    End,
}

/// A connection to the broker, which says nothing yet.
pub fn connect(path: &std::path::Path) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    Some(socket)
}

/// A session that the broker has ended is found at the next look.
pub fn send(socket: &OwnedFd, message: &ToBroker, fds: &[BorrowedFd<'_>]) {
    let mut bytes = [0; MAX];
    let len = message.encode(&mut bytes).expect("encodes");
    let _ = send_bytes(socket, &bytes[..len], fds);
}

/// Bytes that need be no message.
pub fn send_bytes(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// What the broker has said. It says what can be read.
pub fn receive(socket: &OwnedFd) -> Heard {
    let mut bytes = [0; MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(got) if got.bytes > 0 => got,
        Err(rustix::io::Errno::AGAIN) => return Heard::Nothing,
        _ => return Heard::End,
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let message = FromBroker::decode(&bytes[..got.bytes]).expect("the broker says what can be read");
    Heard::Message(Box::new(message), fds)
}
