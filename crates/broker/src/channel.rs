//! What the broker and a helper say to one another: a value, and descriptors beside it.
//!
//! A helper is the broker's own image, forked and never executed. So a value goes as the bytes that it has in memory.

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::mem::{MaybeUninit, zeroed};

/// Most descriptors beside one message, of anybody's: SCM_MAX_FD (include/net/scm.h).
pub const MOST: usize = 253;

/// A value that may be sent.
///
/// # Safety
/// It has no pointers: the same bytes are the same value in a forked process.
pub unsafe trait Packet: Copy {}

// SAFETY: a number.
unsafe impl Packet for u8 {}

/// Sends a value. Never waits where the socket does not.
pub fn send<T: Packet>(socket: BorrowedFd<'_>, value: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    let mut bytes = MaybeUninit::<T>::zeroed();
    bytes.write(*value);
    // SAFETY: as many bytes as the value has; its padding may be anything, the kernel copies it and nobody looks.
    let bytes = unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), size_of::<T>()) };
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Receives a value; `None` at the end.
pub fn receive<T: Packet>(socket: BorrowedFd<'_>) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: as many bytes as the value has, all of them written.
    let bytes = unsafe { core::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    let (len, fds) = take(socket, bytes)?;
    // SAFETY: the other end, the same image, sent the bytes of a T (`Packet`).
    Ok((len == size_of::<T>()).then(|| (unsafe { value.assume_init() }, fds)))
}

/// Takes a message of whatever kind, with room for all descriptors that there can be. Its credentials, if any, are passed over:
/// rustix would have the process in them be one that we can see.
pub fn take(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    receive_with(socket, bytes, 0).map(|(len, fds, _)| (len, fds))
}

/// Copies of the descriptors beside the next message, which stays where it is. Errors: EMFILE where this process has no room for all.
pub fn copies(socket: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Errno> {
    let (_, fds, is_whole) = receive_with(socket, &mut [0], libc::MSG_PEEK | libc::MSG_DONTWAIT)?;
    if is_whole { Ok(fds) } else { Err(Errno::MFILE) }
}

/// The message's length, its descriptors, and whether these are all.
fn receive_with(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: libc::c_int,
) -> Result<(usize, Vec<OwnedFd>, bool), Errno> {
    // SAFETY: CMSG_SPACE computes.
    const SPACE: usize = unsafe {
        libc::CMSG_SPACE((MOST * size_of::<RawFd>()) as u32)
            + libc::CMSG_SPACE(size_of::<libc::ucred>() as u32)
    } as usize;
    let mut space = [0_u64; SPACE.div_ceil(8)];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is a valid one, without buffers.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    let len = loop {
        header.msg_control = space.as_mut_ptr().cast();
        header.msg_controllen = SPACE as _;
        // SAFETY: the header names one buffer and an aligned control buffer, both ours, with their sizes.
        let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
        match usize::try_from(len) {
            Ok(len) => break len,
            Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EIO))),
            },
        }
    };
    let mut fds = Vec::new();
    // SAFETY: the kernel has filled the control buffer, and the macros stay in what it says; each descriptor in a message of
    // rights was just given to us, once.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(&raw const header);
        while let Some(message) = next.as_ref() {
            if (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                #[allow(clippy::unnecessary_cast, reason = "musl's is a u32")]
                let count = (message.cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let data = libc::CMSG_DATA(next).cast::<RawFd>();
                fds.extend((0..count).map(|at| OwnedFd::from_raw_fd(data.add(at).read_unaligned())));
            }
            next = libc::CMSG_NXTHDR(&raw const header, next);
        }
    }
    Ok((len, fds, header.msg_flags & libc::MSG_CTRUNC == 0))
}
