//! How a broker is reached: its two sockets, and who listens there.

use crate::sockopt::{peer_credentials, peer_process};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
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

/// The user of the process that listens at `path`. Never waits. Errors: what connecting said.
pub fn who_serves(path: &Path) -> std::io::Result<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = connect_at(&operators_socket(path), flags).or_else(|_| connect_at(path, flags))?;
    let (_, uid) = peer_credentials(fd.as_fd()).ok_or(Errno::NOTCONN)?;
    Ok(uid)
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
