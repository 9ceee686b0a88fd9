//! Where brokers serve, and the socket of a session: messages whole, with their descriptors, and nothing is waited for.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use shunpike_shm::pages::CQS;
use shunpike_shm::place::Place;
use shunpike_wire::session::{FromBroker, MAX, SessionError};

use crate::mutex::Mutex;
use crate::{descriptors, sys};

/// Descriptors that a message can carry: the link page and the peer's doorbells.
const MAX_FDS: usize = 1 + CQS;

/// Descriptors of one message.
pub type Fds = [Option<OwnedFd>; MAX_FDS];

/// A message could not be sent for something that the socket does not tell of: it shows room all the time.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Where brokers may serve, in the order in which they are tried: one that is preferred, and the one named.
static PATHS: Mutex<[SocketPath; 2]> = Mutex::new([SocketPath { len: 0, bytes: [0; 108] }; 2]);

/// A broker's socket; none is empty.
#[derive(Copy, Clone)]
struct SocketPath {
    len: usize,
    bytes: [u8; 108],
}

impl SocketPath {
    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// Names the broker's socket, and that of one to be used in its place as soon as it serves; at start-up. A path longer than a UNIX
/// socket's is none.
pub fn configure(path: &[u8], preferred: &[u8]) {
    for (to, path) in PATHS.lock().iter_mut().zip([preferred, path]) {
        if let Some(bytes) = to.bytes.get_mut(..path.len()) {
            bytes.copy_from_slice(path);
            to.len = path.len();
        }
    }
}

/// Whether only our user can reach the broker.
pub(super) fn is_private() -> bool {
    let [preferred, named] = *PATHS.lock();
    let path = match connect_at(&preferred) {
        Ok(socket) => {
            descriptors::close(socket);
            preferred
        }
        Err(_) => named,
    };
    rustix::fs::stat(path.as_slice()).is_ok_and(|socket| {
        socket.st_mode & 0o077 == 0 && socket.st_uid == rustix::process::geteuid().as_raw()
    })
}

/// Which brokers serve: another number where one has come or gone, as each makes its socket anew.
pub(super) fn brokers_there() -> u64 {
    let sockets = (*PATHS.lock()).into_iter().filter_map(|path| rustix::fs::stat(path.as_slice()).ok());
    sockets.fold(0, |all, socket| {
        all.rotate_left(1)
            ^ socket.st_ino
            ^ (socket.st_ctime as u64).rotate_left(32)
            ^ u64::from(socket.st_ctime_nsec as u32)
    })
}

/// A socket of the broker that serves, the preferred one first. Errors: those of `connect_at`.
pub(super) fn connect() -> Result<OwnedFd, Errno> {
    let [preferred, named] = *PATHS.lock();
    connect_at(&preferred).or_else(|_| connect_at(&named))
}

/// A socket of the broker there. Errors: `PERM` where it is none that may have what we give it, `MFILE` without a descriptor to spare.
fn connect_at(path: &SocketPath) -> Result<OwnedFd, Errno> {
    if path.len == 0 {
        return Err(Errno::NOENT);
    }
    let address = SocketAddrUnix::new(path.as_slice())?;
    let place = Place::of(path.as_slice())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    if sys::peer_user(socket.as_raw_fd()).is_some_and(|uid| place.may_serve(uid)) {
        descriptors::internal(socket).map_err(|_| Errno::MFILE)
    } else {
        Err(Errno::PERM)
    }
}

/// What came of an attempt to send.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Sent {
    Yes,
    /// There is no room in the socket.
    Later,
    /// The socket failed: the broker is gone.
    Never,
}

/// Sends a message if there is room for it at once.
pub(super) fn transmit(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Sent {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Sent::Never;
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
        Ok(_) => Sent::Yes,
        Err(Errno::AGAIN | Errno::INTR) => {
            REFUSED.store(false, Ordering::Relaxed);
            Sent::Later
        }
        // No memory; more descriptors of this user are on their way than it may have open.
        Err(Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => {
            REFUSED.store(true, Ordering::Relaxed);
            Sent::Later
        }
        Err(_) => Sent::Never,
    }
}

/// Whether what was to be sent last met something that the socket does not tell of.
pub(super) fn is_refused() -> bool {
    REFUSED.load(Ordering::Relaxed)
}

/// The broker is gone, or says what is none.
pub(super) struct Over;

/// Takes the next message, if there is one. It is `None` in its turn where its type is not known.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Option<FromBroker>, Fds)>, Over> {
    let mut bytes = [0; MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let mut fds: Fds = Default::default();
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    for (slot, fd) in fds.iter_mut().zip(rights.flatten()) {
        *slot = Some(fd);
    }
    match got.map(|got| got.bytes) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Ok(n) if n > 0 => match bytes.get(..n).map(FromBroker::decode) {
            Some(Ok(message)) => Ok(Some((Some(message), fds))),
            Some(Err(SessionError::Type)) => Ok(Some((None, fds))),
            _ => Err(Over),
        },
        _ => Err(Over),
    }
}

/// Before fork().
pub(super) fn hold_across_fork() {
    PATHS.hold();
}

/// After it, in the parent and in the child.
pub(super) fn let_go_after_fork() {
    PATHS.let_go();
}
