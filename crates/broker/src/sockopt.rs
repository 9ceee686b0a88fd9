//! Socket options for which rustix has no, or no safe enough, call.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Reads a socket option and returns its length; `None` where the kernel has no such option.
pub fn read(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, to: &mut [u8]) -> Option<usize> {
    let mut len = to.len() as libc::socklen_t;
    let (fd, at) = (socket.as_raw_fd(), to.as_mut_ptr().cast());
    // SAFETY: `to` is writable for the `len` bytes stated, and the kernel writes no more than that.
    let rc = unsafe { libc::getsockopt(fd, level, name, at, &raw mut len) };
    (rc == 0).then_some(len as usize)
}

/// Process and user at the other end of a unix socket. The process is 0 when it is in a pid namespace that
/// we cannot see into, which rustix's type for it cannot say.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let mut raw = [0; 12];
    read(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut raw).filter(|len| *len == raw.len())?;
    let word = |at: usize| raw.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    Some((word(0)?, word(4)?))
}

/// The process at the other end of a unix socket, the very one that connected it (a pidfd). `None` before Linux 6.5, and when it
/// has ended.
pub fn peer_process(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    // include/uapi/asm-generic/socket.h
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut raw = [0; 4];
    read(socket, libc::SOL_SOCKET, SO_PEERPIDFD, &mut raw).filter(|len| *len == raw.len())?;
    // SAFETY: the kernel has just given this descriptor (close-on-exec) to us alone.
    Some(unsafe { OwnedFd::from_raw_fd(i32::from_ne_bytes(raw)) })
}

/// Whether the process of a pidfd has not ended: its number is nobody else's then.
pub fn lives(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())) == Ok(0)
}

/// Groups of the process at the other end of a unix socket when it was connected: the effective one, then
/// the supplementary ones, if these are no more than `most`. Only the first on a kernel without SO_PEERGROUPS (before 4.13).
pub fn peer_groups(socket: BorrowedFd<'_>, most: usize) -> Vec<u32> {
    // include/uapi/asm-generic/socket.h
    const SO_PEERGROUPS: libc::c_int = 59;
    const FEW: usize = 64;
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(u32::MAX, |bytes| u32::from_ne_bytes(*bytes));
    let mut credentials = [0; 12];
    let mut groups = Vec::new();
    if read(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials) == Some(credentials.len()) {
        groups.push(word(&credentials[8..]));
    }
    for room in [FEW.min(most), most] {
        let mut raw = vec![0; room * 4];
        if let Some(len) = read(socket, libc::SOL_SOCKET, SO_PEERGROUPS, &mut raw) {
            groups.extend(raw.get(..len).unwrap_or(&[]).chunks_exact(4).map(word));
            break;
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn we_are_our_own_peer() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        let (pid, uid) = peer_credentials(a.as_fd()).unwrap();
        assert_eq!(pid, std::process::id());
        assert_eq!(uid, rustix::process::geteuid().as_raw());
        let ours = rustix::process::getgroups().unwrap();
        let groups = peer_groups(a.as_fd(), 65536);
        assert_eq!(groups[0], rustix::process::getegid().as_raw());
        assert_eq!(peer_groups(a.as_fd(), 0)[0], groups[0]);
        assert_eq!(groups[1..], ours.iter().map(|gid| gid.as_raw()).collect::<Vec<_>>());
    }
}
