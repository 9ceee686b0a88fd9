//! The tools' side of a query: one question, one answer.

use crate::datagram::MAX_FDS;
use crate::dial::{connect_at, operators_socket};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags,
};
use shunpike_wire::session::{ClcBytes, FromBroker, MAX, ToBroker};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

/// What can be asked.
pub mod what {
    /// Connections: [`crate::report::Connections`]. No argument.
    pub const SS: u16 = 1;
    /// Sums: [`crate::report::Stats`]. No argument.
    pub const STATS: u16 = 2;
    /// Lets the sums begin anew. No argument.
    pub const STATS_RESET: u16 = 3;
    /// The device: [`crate::report::Device`]. No argument.
    pub const DEVICE: u16 = 4;
    /// `active on|off`, `dmb_copy on|off`, `rmem BYTES`. Answers the device.
    pub const DEVICE_SET: u16 = 5;
    /// The broker and its system: [`crate::report::Info`]. No argument.
    pub const INFO: u16 = 6;
    /// `show`, `add X`, `del X` or `flush`: [`crate::report::Ueids`].
    pub const UEID: u16 = 7;
    /// `show`, `enable` or `disable`: [`crate::report::Seid`].
    pub const SEID: u16 = 8;
    /// `PID` or `PID:FD`: [`crate::report::Explanations`].
    pub const EXPLAIN: u16 = 9;
    /// Link groups: [`crate::report::LinkGroups`]. No argument.
    pub const LINKGROUP: u16 = 10;
    /// `PID` or `PID:FD`: [`crate::report::Done`].
    pub const REVOKE: u16 = 11;
    /// Nothing, or `name=value`: [`crate::report::Sysctls`].
    pub const SYSCTL: u16 = 12;
    /// `PID UID`: [`crate::report::Check`].
    pub const CHECK: u16 = 13;
    /// What each process has done: [`crate::report::Processes`]. No argument.
    pub const PROCESSES: u16 = 14;
    /// What programs send on lanes: [`crate::report::Done`], and from then on the session is a tap's. No argument.
    pub const TAP: u16 = 15;
    /// Reads the policy again: [`crate::report::Reloaded`]. No argument.
    pub const POLICY_RELOAD: u16 = 16;
    /// `PID PID ...`, [`super::PROCESSES`] at most: pidfds of those that the asker may look into, and which they are:
    /// [`crate::report::Pids`]. See [`super::processes`].
    pub const PIDS: u16 = 18;
    /// `SINCE LATELY`: those after number SINCE, the last LATELY of them: [`crate::report::Events`].
    pub const EVENTS: u16 = 17;
}

/// Why there is no answer.
#[derive(Debug)]
pub enum QueryError {
    /// No broker at this socket.
    NoBroker {
        /// The socket.
        socket: PathBuf,
        /// What connecting to it said.
        error: std::io::Error,
    },
    /// The argument is too long to be sent, bytes.
    Argument(usize),
    /// This process may open no more files: what came with the answer is lost.
    NoFiles,
    /// The broker did not answer in time, went away, or answered nonsense.
    Broken {
        /// The socket.
        socket: PathBuf,
        /// What reading said.
        error: std::io::Error,
    },
    /// The broker ended the connection before it had answered all.
    CutOff {
        /// The socket.
        socket: PathBuf,
    },
    /// The broker let this connection go unheard.
    TurnedAway {
        /// The socket.
        socket: PathBuf,
    },
    /// The broker refused.
    Refused(crate::report::Failure),
}

impl core::fmt::Display for QueryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            QueryError::NoBroker { socket, error } => {
                write!(f, "no broker answers at {}: {error}", socket.display())
            }
            QueryError::Argument(len) => write!(f, "the argument is too long ({len} bytes)"),
            QueryError::NoFiles => {
                write!(
                    f,
                    "this process may open no more files (ulimit -n): a part of the broker's answer is lost"
                )
            }
            QueryError::Broken { socket, error } => {
                write!(f, "the broker at {} gave no answer: {error}", socket.display())
            }
            QueryError::CutOff { socket } => {
                write!(f, "the broker at {} ended in the middle of its answer; ask again", socket.display())
            }
            QueryError::TurnedAway { socket } => write!(
                f,
                "the broker at {} turned this connection away: you have as many as its policy allows, or connect too often, or it \
                 is another user's own, or it ended; ask again a little later (its log says which it is)",
                socket.display()
            ),
            QueryError::Refused(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for QueryError {}

/// Largest datagram of an answer, bytes.
pub(crate) const CHUNK: usize = 16 * 1024;

/// Asks the broker at `socket` and returns its answer, JSON text. Blocks; for tools.
pub fn query(socket: &Path, what: u16, arg: &str) -> Result<String, QueryError> {
    ask(socket, what, arg).map(|answered| answered.text)
}

/// Most processes that are asked for at a time.
pub const PROCESSES: usize = 64;

/// Those of the processes with these numbers (the broker's) that it tells of, as pidfds: what the asker calls them its own /proc says.
/// At most [`PROCESSES`].
pub fn processes(socket: &Path, pids: &[u32]) -> Result<Vec<(u32, OwnedFd)>, QueryError> {
    let arg = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let Answered { text, fds, .. } = ask(socket, what::PIDS, &arg)?;
    let answer: crate::report::Pids =
        serde_json::from_str(&text).map_err(|_| broken(socket, Errno::BADMSG))?;
    if answer.pids.len() == fds.len() {
        Ok(answer.pids.into_iter().zip(fds).collect())
    } else {
        Err(broken(socket, Errno::BADMSG))
    }
}

/// An answer, and what came with it.
struct Answered {
    /// The connection that it came by.
    by: OwnedFd,
    text: String,
    fds: Vec<OwnedFd>,
}

/// The answer. A container's root may open the operator's socket, and is turned away there: it asks
/// where everybody does. What has been heard is not asked twice: it may be a change.
fn ask(socket: &Path, what: u16, arg: &str) -> Result<Answered, QueryError> {
    let arg = ClcBytes::new(arg.as_bytes()).map_err(|_| QueryError::Argument(arg.len()))?;
    let mut message = [0; MAX];
    let len = ToBroker::Query { what, arg }.encode(&mut message).map_err(|_| QueryError::Argument(MAX))?;
    let message = message.get(..len).unwrap_or(&[]);
    if let Ok(fd) = connect_at(&operators_socket(socket), SocketFlags::CLOEXEC)
        && let Some(answered) = ask_by(fd, socket, message)?
    {
        return Ok(answered);
    }
    let absent = |errno: Errno| QueryError::NoBroker { socket: socket.to_owned(), error: errno.into() };
    let fd = connect_at(socket, SocketFlags::CLOEXEC).map_err(absent)?;
    ask_by(fd, socket, message)?.ok_or_else(|| QueryError::TurnedAway { socket: socket.to_owned() })
}

/// The answer to `message`; `None` from a broker that turns this connection away: it is closed without a byte.
fn ask_by(fd: OwnedFd, socket: &Path, message: &[u8]) -> Result<Option<Answered>, QueryError> {
    let (mut text, mut fds) = (Vec::new(), Vec::new());
    match rustix::net::send(&fd, message, SendFlags::NOSIGNAL) {
        Ok(_) => {}
        Err(Errno::PIPE | Errno::CONNRESET) => return Ok(None),
        Err(errno) => return Err(broken(socket, errno)),
    }
    let mut chunk = [0; CHUNK];
    loop {
        match hear(fd.as_fd(), &mut chunk, &mut fds) {
            Ok(0) | Err(Errno::CONNRESET) if text.is_empty() => return Ok(None),
            Ok(0) | Err(Errno::CONNRESET) => break,
            Ok(n) => text.extend_from_slice(chunk.get(..n).unwrap_or(&[])),
            Err(Errno::INTR) => {}
            Err(Errno::MFILE) => return Err(QueryError::NoFiles),
            Err(errno) => return Err(broken(socket, errno)),
        }
    }
    let answer = serde_json::from_slice::<crate::report::Answer>(&text).map_err(|error| {
        if error.is_eof() {
            QueryError::CutOff { socket: socket.to_owned() }
        } else {
            broken(socket, Errno::BADMSG)
        }
    })?;
    match (answer.error, String::from_utf8(text)) {
        (Some(failure), _) => Err(QueryError::Refused(failure)),
        (None, Ok(text)) => Ok(Some(Answered { by: fd, text, fds })),
        (None, Err(_)) => Err(broken(socket, Errno::BADMSG)),
    }
}

fn broken(socket: &Path, errno: Errno) -> QueryError {
    QueryError::Broken { socket: socket.to_owned(), error: errno.into() }
}

/// The next datagram's bytes, and its descriptors behind those that there are. Errors: EMFILE, where they are more than this process may
/// open.
fn hear(fd: BorrowedFd<'_>, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(fd, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = message {
            fds.extend(given);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) { Err(Errno::MFILE) } else { Ok(received.bytes) }
}

/// A tap's session: rings go to the broker, which gives them to programs and says which.
pub struct TapSession {
    fd: OwnedFd,
}

impl TapSession {
    /// Begins one. Errors: as those of a query, and the broker's refusal.
    pub fn begin(socket: &Path) -> Result<Self, QueryError> {
        ask(socket, what::TAP, "").map(|answered| Self { fd: answered.by })
    }

    /// Hands over the memory of ring number `ring`. Errors: the broker is gone, or reads nothing.
    pub fn hand_over(&self, ring: u32, class: u8, memory: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut message = [0; MAX];
        let len = ToBroker::Ring { ring, class }.encode(&mut message).map_err(|_| Errno::INVAL)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(core::slice::from_ref(&memory)));
        let bytes = IoSlice::new(message.get(..len).unwrap_or(&[]));
        rustix::net::sendmsg(&self.fd, &[bytes], &mut control, SendFlags::NOSIGNAL).map(drop)
    }

    /// What the broker has said, if anything; never waits. Errors: it is gone, or says what this version does not know.
    pub fn hear(&self) -> Result<Option<FromBroker>, Errno> {
        let mut bytes = [0; MAX];
        match rustix::net::recv(&self.fd, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Errno::PIPE),
            Ok((n, _)) => {
                FromBroker::decode(bytes.get(..n).unwrap_or(&[])).map(Some).map_err(|_| Errno::PROTO)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for TapSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

    /// What a tool says of a broker that answers this, and then ends with or without having read the question.
    fn told(answer: &'static [u8], reads: bool) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broker.sock");
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let listener = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let broker = std::thread::spawn(move || {
            let socket = rustix::net::accept(&listener).unwrap();
            // The question is there before anything of the answer is.
            rustix::net::recv(&socket, &mut [0_u8; MAX][..], RecvFlags::PEEK).unwrap();
            if reads {
                rustix::net::recv(&socket, &mut [0_u8; MAX][..], RecvFlags::empty()).unwrap();
            }
            if !answer.is_empty() {
                rustix::net::send(&socket, answer, SendFlags::NOSIGNAL).unwrap();
            }
        });
        let error = query(&path, what::INFO, "").unwrap_err();
        broker.join().unwrap();
        error.to_string()
    }

    #[test]
    fn a_broker_that_ends_meanwhile_is_not_said_to_answer_nonsense() {
        let half = b"{\"version\":\"0.1";
        assert!(told(half, true).contains("ended in the middle of its answer"), "{}", told(half, true));
        assert!(told(b"nonsense", true).contains("gave no answer"));
        for reads in [true, false] {
            assert!(told(b"", reads).contains("turned this connection away"), "{}", told(b"", reads));
        }
    }
}
