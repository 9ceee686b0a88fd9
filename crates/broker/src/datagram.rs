//! Datagrams with descriptors on a SOCK_SEQPACKET unix socket, never blocking.
//!
//! The broker looks at a message before it takes it, and takes only those that nothing lies beside: a descriptor that it
//! received would be one that it has to close. The others are taken by a helper.

use crate::foreign::{Given, Shared};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use shunpike_wire::session::{MAX, MAX_CQS};
use std::mem::{MaybeUninit, zeroed};
use std::rc::Rc;

/// Most descriptors beside one message of the broker's: an arena or link page, and doorbells.
pub const MAX_FDS: usize = 1 + MAX_CQS;

/// The next message in a socket.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one at a time, on the stack")]
pub enum Next {
    /// There is none yet.
    Nothing,
    /// There is none, and there will be none.
    End,
    /// This one.
    Message(Message),
}

/// A message that is still in its socket.
#[derive(Debug)]
pub struct Message {
    bytes: [u8; MAX],
    len: usize,
    /// Whether descriptors lie beside it.
    pub has_fds: bool,
}

impl Message {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// Has the kernel add its credentials to each message that comes by `socket`, or by what is accepted there: so an empty message
/// differs from the end.
pub fn mark_messages(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::net::sockopt::set_socket_passcred(socket, true)
}

/// Looks at the next message, and leaves it where it is. The control buffer has room for the credentials only, so that no
/// descriptor is installed here. Errors: `MSGSIZE` when it is longer than any of the protocol's.
pub fn peek(socket: BorrowedFd<'_>) -> Result<Next, Errno> {
    // CMSG_SPACE of struct ucred, aligned as cmsghdr.
    const CREDENTIALS: usize = 4;
    let mut control = [0_u64; CREDENTIALS];
    let mut bytes = [0; MAX];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is a valid one, without buffers.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the header names one buffer and a control buffer, both ours, with their sizes.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    if got < 0 {
        return match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN) => Ok(Next::Nothing),
            errno => Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EIO))),
        };
    }
    if header.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(Errno::MSGSIZE);
    }
    if header.msg_controllen == 0 {
        return Ok(Next::End);
    }
    let has_fds = header.msg_flags & libc::MSG_CTRUNC != 0;
    Ok(Next::Message(Message { bytes, len: got as usize, has_fds }))
}

/// Takes the message that [`peek`] has shown, which has no descriptors.
pub fn take(socket: BorrowedFd<'_>) {
    // A client that goes with messages unread leaves an error, which is told of once and before the message.
    for _ in 0..2 {
        if rustix::net::recv(socket, &mut [0_u8; 1][..], RecvFlags::DONTWAIT).is_ok() {
            return;
        }
    }
}

/// Lets nothing come any more, nor go.
pub fn end(socket: BorrowedFd<'_>) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// Sends one datagram. Errors: `AGAIN` when the receiver's queue is full; anything else is final.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[Rc<Shared>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let given = fds.iter().map(|shared| shared.given()).collect::<Result<Vec<_>, _>>()?;
    let borrowed: Vec<BorrowedFd<'_>> = given.iter().flat_map(Given::fds).collect();
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::MemfdFlags;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// How many descriptors of this process are of that file. (Other tests' threads open and close others meanwhile.)
    fn descriptors_of(file: &str) -> usize {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
        links.filter(|link| std::fs::read_link(link).is_ok_and(|target| target.as_os_str() == file)).count()
    }

    #[test]
    fn a_look_tells_all_and_takes_nothing() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        mark_messages(ours.as_fd()).unwrap();
        assert!(matches!(peek(ours.as_fd()), Ok(Next::Nothing)));
        let file = rustix::fs::memfd_create("a_look_tells_all", MemfdFlags::CLOEXEC).unwrap();
        let file = [Rc::new(Shared::from(file))];
        for (bytes, fds) in [(&b""[..], &[][..]), (b"", &file), (b"one", &file), (b"two", &[])] {
            send(theirs.as_fd(), bytes, fds).unwrap();
        }
        for (bytes, has_fds) in [(&b""[..], false), (b"", true), (b"one", true), (b"two", false)] {
            for _ in 0..2 {
                let Ok(Next::Message(message)) = peek(ours.as_fd()) else { panic!("{bytes:?}") };
                assert_eq!((message.bytes(), message.has_fds), (bytes, has_fds));
            }
            take(ours.as_fd());
        }
        assert_eq!(descriptors_of("/memfd:a_look_tells_all (deleted)"), 1, "a descriptor was installed");
        send(theirs.as_fd(), &[0; MAX + 1], &[]).unwrap();
        assert_eq!(peek(ours.as_fd()).unwrap_err(), Errno::MSGSIZE);
        take(ours.as_fd());
        drop(theirs);
        assert!(matches!(peek(ours.as_fd()), Ok(Next::End)));
    }
}
