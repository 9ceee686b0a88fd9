//! One connection to the broker: a program's session or a tool's question.

use crate::client::CHUNK;
use crate::clock;
use crate::datagram;
use crate::delays;
use crate::foreign::Shared;
use crate::laneless::Laneless;
use crate::listing::Listing;
use crate::policy::Identity;
use crate::rate::Rate;
use crate::runtime::{Confinement, OwnPid};
use crate::stats::ArenaKey;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use shunpike_shm::arena::{ArenaView, BLOCKS};
use shunpike_shm::pages::SessionPage;
use shunpike_shm::published::Published;
use shunpike_wire::session::{FromBroker, MAX, ToBroker};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Messages that may wait for a client that does not read: a handshake's for each of its connections. One that is further behind is
/// dropped; its connections stay on TCP or on the lanes that they have.
const MAX_QUEUE: usize = 4 * BLOCKS;

/// Bytes that may wait for the sessions of one user. The one that has more queued then is dropped.
const OF_USER: usize = 32 << 20;

/// What a descriptor that waits with its message counts for, bytes.
const OF_DESCRIPTOR: usize = 1024;

/// Who a session is with.
pub struct Peer {
    /// Process, as this broker's pid namespace names it; 0 when it cannot.
    pub pid: u32,
    /// User and groups.
    pub identity: Identity,
    /// Whether it is root or the broker's own user, and where there are several users, in the broker's own pid namespace.
    pub is_operator: bool,
    /// SO_NETNS_COOKIE of its end of the session; `None` on a kernel without it (before 5.14).
    pub netns: Option<u64>,
}

impl Peer {
    /// The user, as this broker's user namespace names it.
    pub fn uid(&self) -> u32 {
        self.identity.uid
    }

    /// Whether both are known to be in one network namespace.
    pub fn shares_netns(&self, other: &Self) -> bool {
        self.netns.is_some() && self.netns == other.netns
    }
}

/// A program under Shunpike.
pub struct Program {
    /// Its arena.
    pub arena: ArenaView,
    /// Names the arena, which several processes of a tree may share.
    pub key: ArenaKey,
    /// Its name, /proc/PID/comm.
    pub comm: String,
    /// Its number in its own pid namespace.
    pub own_pid: OwnPid,
    /// Of its nominations.
    pub rate: Rate,
    /// What of its process decides who may look into it, as it was when it said hello; `None` where that is not known.
    pub confinement: Option<Confinement>,
    page: Published<SessionPage>,
}

impl Program {
    /// A program whose session page does not count anything yet.
    pub fn new(
        arena: ArenaView,
        key: ArenaKey,
        comm: String,
        own_pid: OwnPid,
        confinement: Option<Confinement>,
        page: Published<SessionPage>,
    ) -> Self {
        Self { arena, key, comm, own_pid, confinement, rate: Rate::new(clock::now()), page }
    }
}

/// A socket at which the broker listens.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Door {
    /// The one that everybody uses.
    Everybodys,
    /// The operator's own.
    Operators,
}

/// What a session is for.
pub enum Kind {
    /// Nothing said yet.
    New,
    /// A program.
    Program(Box<Program>),
    /// A program whose library is of another version.
    Laneless(Box<Laneless>),
    /// A tool; nothing more is expected of it.
    Tool,
    /// A tool that reads a list.
    Listing(Listing),
    /// A tool that looks at what programs send, for as long as it likes.
    Tap,
}

impl Kind {
    fn page(&self) -> Option<&SessionPage> {
        match self {
            Kind::Program(program) => Some(program.page.page()),
            Kind::Laneless(program) => Some(program.page.page()),
            Kind::New | Kind::Tool | Kind::Listing(_) | Kind::Tap => None,
        }
    }
}

/// What a message says.
#[allow(clippy::large_enum_variant, reason = "most are of the larger kind")]
pub enum Said {
    /// Something that we know.
    Known(ToBroker),
    /// These bytes, of another version of the protocol.
    Strange(Box<[u8]>),
}

/// A message that is with a helper.
pub struct Pending {
    /// What it says.
    pub said: Said,
    /// Its length.
    pub len: usize,
}

struct Outgoing {
    bytes: Box<[u8]>,
    fds: Vec<Rc<Shared>>,
}

impl Outgoing {
    /// What it takes while it waits, about.
    fn cost(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + self.fds.len() * OF_DESCRIPTOR
    }
}

/// How a session stands after an attempt to send.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Sent {
    /// Nothing waits.
    All,
    /// The rest waits until the socket takes more.
    Waiting,
    /// The rest waits: the broker is short of something, mostly of descriptors, or of what may be under way.
    Short,
    /// The session has to end: the socket failed, the client is too far behind, or all was said.
    Over,
}

/// A session with its socket.
pub struct Session {
    /// Who.
    pub peer: Peer,
    /// Where it came in.
    pub door: Door,
    /// What for.
    pub kind: Kind,
    /// To be ended once all is sent.
    pub closing: bool,
    /// Whether the event loop waits for room in the socket.
    pub awaits_room: bool,
    /// Whether more messages came than one turn handles: the client may have met a full socket.
    pub is_behind: bool,
    /// A message that a helper has taken up: until it is done, no other is looked at.
    pub with_helper: Option<Pending>,
    /// Whether the event loop does not wait for messages meanwhile, for there are some.
    pub is_paused: bool,
    /// Whether what waits is tried again later, see [`Sent::Short`].
    pub is_short: bool,
    /// Whether the client is gone, and a message of its is with a helper yet.
    pub is_over: bool,
    socket: Rc<OwnedFd>,
    queue: VecDeque<Outgoing>,
    /// Bytes that wait for sessions of this user.
    queued: Rc<Cell<usize>>,
}

impl Session {
    /// A connection just accepted.
    /// `queued` counts what waits for all sessions of its user.
    pub fn new(socket: OwnedFd, peer: Peer, door: Door, queued: Rc<Cell<usize>>) -> Self {
        Self {
            peer,
            door,
            kind: Kind::New,
            closing: false,
            awaits_room: false,
            is_behind: false,
            with_helper: None,
            is_paused: false,
            is_short: false,
            is_over: false,
            socket: Rc::new(socket),
            queue: VecDeque::new(),
            queued,
        }
    }

    /// The program, if it is one.
    pub fn program(&self) -> Option<&Program> {
        match &self.kind {
            Kind::Program(program) => Some(program),
            _ => None,
        }
    }

    /// Whether it is a program's, with lanes or without.
    pub fn is_programs(&self) -> bool {
        self.page().is_some()
    }

    /// What counts the messages that a program has been sent.
    fn page(&self) -> Option<&SessionPage> {
        self.kind.page()
    }

    /// Has the program look at its socket, which was shut down: it goes to the next broker, with the lanes that it has.
    pub fn tell_end(&self) {
        if let Some(page) = self.page() {
            // Release: as in `flush`; the client finds the end.
            page.posted.fetch_add(1, Ordering::Release);
        }
    }

    /// Its socket, for a helper.
    pub fn socket(&self) -> Rc<OwnedFd> {
        Rc::clone(&self.socket)
    }

    /// Queues a message and sends what can be sent.
    pub fn post(&mut self, message: &FromBroker, fds: Vec<Rc<Shared>>) -> Sent {
        let mut buffer = [0; MAX];
        let Ok(len) = message.encode(&mut buffer) else { return Sent::Over };
        let bytes = buffer.get(..len).unwrap_or(&[]).into();
        self.push(Outgoing { bytes, fds });
        self.flush()
    }

    /// Queues a tool's answer: chunks, and an empty one as its end. The session ends with it, but for a tap's.
    pub fn answer(&mut self, text: &str) -> Sent {
        if !matches!(self.kind, Kind::Tap) {
            self.kind = Kind::Tool;
        }
        self.add(text, true)
    }

    /// Queues a piece of an answer, and after the last one its end.
    pub fn add(&mut self, text: &str, is_last: bool) -> Sent {
        let end = is_last.then_some(&[][..]);
        for chunk in text.as_bytes().chunks(CHUNK).chain(end) {
            self.push(Outgoing { bytes: chunk.into(), fds: Vec::new() });
        }
        self.closing = is_last && !matches!(self.kind, Kind::Tap);
        self.flush()
    }

    /// As [`Session::answer`], of pieces that come with descriptors.
    pub fn answer_with(&mut self, pieces: Vec<(String, Vec<Rc<Shared>>)>) -> Sent {
        for (text, fds) in pieces {
            self.push(Outgoing { bytes: text.into_bytes().into(), fds });
        }
        self.answer("")
    }

    fn push(&mut self, message: Outgoing) {
        self.queued.set(self.queued.get() + message.cost());
        self.queue.push_back(message);
    }

    /// All that the client had sent is read: if it met a full socket, there is room again for what it could not say.
    pub fn caught_up(&mut self) {
        if std::mem::take(&mut self.is_behind)
            && let Some(page) = self.page()
        {
            // Release: as below; the client looks at its socket, and finds room in it.
            page.posted.fetch_add(1, Ordering::Release);
        }
    }

    /// Sends what waits, as far as the socket takes it.
    pub fn flush(&mut self) -> Sent {
        while let Some(next) = self.queue.front() {
            let sent = delays::message(self.peer.uid(), || {
                datagram::send(self.socket.as_fd(), &next.bytes, &next.fds)
            });
            match sent {
                Ok(()) => {
                    self.queued.set(self.queued.get().saturating_sub(next.cost()));
                    self.queue.pop_front();
                    if let Some(page) = self.page() {
                        // Release: a client that sees the count (Acquire, in its hooks) finds the message.
                        page.posted.fetch_add(1, Ordering::Release);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.queue.len() > MAX_QUEUE && !self.closing => return Sent::Over,
                Err(Errno::AGAIN) if self.queued.get() > OF_USER => return Sent::Over,
                Err(Errno::AGAIN) => return Sent::Waiting,
                Err(errno) if is_shortage(errno) => {
                    let is_behind = self.queue.len() > MAX_QUEUE || self.queued.get() > OF_USER;
                    return if is_behind { Sent::Over } else { Sent::Short };
                }
                Err(_) => return Sent::Over,
            }
        }
        if self.closing { Sent::Over } else { Sent::All }
    }
}

/// Whether a failure to send is none of the client's. (Descriptors under way count against RLIMIT_NOFILE of whoever sends them, until
/// somebody receives them: ETOOMANYREFS.)
fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS)
}

impl Drop for Session {
    fn drop(&mut self) {
        let left: usize = self.queue.iter().map(Outgoing::cost).sum();
        self.queued.set(self.queued.get().saturating_sub(left));
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_that_nobody_knows_are_not_the_same() {
        let peer = |netns| {
            let identity = Identity { uid: 1, groups: Vec::new(), unmapped: (65534, 65534) };
            Peer { pid: 1, identity, is_operator: false, netns }
        };
        assert!(peer(Some(3)).shares_netns(&peer(Some(3))));
        for (one, other) in [(Some(3), Some(4)), (Some(3), None), (None, Some(3)), (None, None)] {
            assert!(!peer(one).shares_netns(&peer(other)), "{one:?} {other:?}");
        }
    }
}
