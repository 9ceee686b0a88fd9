//! How a broker is reached: its two sockets, and who listens there.

use crate::sockopt::{lives, peer_credentials, peer_process};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, test_kill_process};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The operator's own socket, beside the one that everybody uses: who waits there waits for nobody else's connections.
pub fn operators_socket(socket: &Path) -> PathBuf {
    with_suffix(socket, ".operator")
}

/// How long a broker may take for one datagram of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to the broker at `path`.
pub fn connect_at(path: &Path, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for timeout in [Timeout::Recv, Timeout::Send] {
        sockopt::set_socket_timeout(&fd, timeout, Some(PATIENCE))?;
    }
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// The user of the process that listens at `path`. Never waits. Errors: what connecting said, or that this process has ended: a child that
/// it has just forked can have its socket for a moment longer.
pub fn who_serves(path: &Path) -> std::io::Result<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = connect_at(&operators_socket(path), flags).or_else(|_| connect_at(path, flags))?;
    let (pid, uid) = peer_credentials(fd.as_fd()).ok_or(Errno::NOTCONN)?;
    if has_ended(fd.as_fd(), pid) { Err(Errno::CONNREFUSED.into()) } else { Ok(uid) }
}

/// Whether the process that listens there is known to have ended. It is not known of one that this pid namespace cannot see.
fn has_ended(socket: BorrowedFd<'_>, pid: u32) -> bool {
    let Some(process) = peer_process(socket) else {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        return pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
    };
    !lives(&process)
}

/// The process that listens at `path`: a pidfd, where the kernel gives one, and its number; 0 for one that this pid namespace cannot see.
/// Never waits. Errors: what connecting said.
pub fn process_that_serves(path: &Path) -> std::io::Result<(Option<OwnedFd>, u32)> {
    let fd = connect_at(path, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let (pid, _) = peer_credentials(fd.as_fd()).ok_or(Errno::NOTCONN)?;
    Ok((peer_process(fd.as_fd()), pid))
}

/// `path` with more at its end.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As of a helper that was forked just before its broker was killed.
    #[test]
    fn a_socket_of_a_dead_broker_serves_nobody() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("broker.sock");
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        // SAFETY: the child makes two system calls.
        let child = match unsafe { libc::fork() } {
            0 => {
                let listens = rustix::net::listen(&socket, 1);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(listens.is_err())) }
            }
            child => Pid::from_raw(child),
        };
        let ended = rustix::process::waitpid(child, rustix::process::WaitOptions::empty()).unwrap();
        assert_eq!(ended.and_then(|(_, status)| status.exit_status()), Some(0));
        assert_eq!(who_serves(&path).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        rustix::net::listen(&socket, 1).unwrap();
        assert_eq!(who_serves(&path).unwrap(), rustix::process::geteuid().as_raw());
    }
}
