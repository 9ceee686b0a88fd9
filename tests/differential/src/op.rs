//! The vocabulary: what a program of the tester can do, and how it is written down.
//!
//! Two sides, a client and a server of two processes each, have up to [`CONNS`] connections with each other. One call is made at a
//! time: the next one begins when it has returned. That is what makes kernel TCP over loopback give the same answers each time, so
//! that its answers are the ones that a lane must give. The exceptions are a [`Call::Wait`], which a thread begins and a later
//! call ends, and a [`Op::cut`], in which the next call is made between two instructions of this one: by the other side, by another
//! thread of the same process, or by a handler of a signal.

#[cfg(test)]
pub mod names;
mod options;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use options::{LEVELS, Mask, MaskBy, Opt, Stamps};

/// Connections that a program can have at a time.
pub const CONNS: u8 = 3;
/// Most bytes on their way in one direction: what TCP takes without asking for a reader, on every kernel, and less than half of a
/// lane's first window, from which on a lane says that there is no room (COMPLIANCE.md, `EPOLLOUT`).
pub const ON_THE_WAY: usize = 12_000;

/// Calls of a program that are cut: TCP is asked for its answers in each order.
pub const CUTS: usize = 2;

/// One of the two sides.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Side {
    Client,
    Server,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::Client, Self::Server];

    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// How bytes are sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SendBy {
    Send,
    Write,
    Writev,
    Sendmsg,
    Sendmmsg,
    Sendfile,
    Splice,
    /// By io_uring: the process has no lanes from then on.
    Ring,
    /// Urgent data: the last byte is the urgent one.
    Oob,
    /// Without MSG_NOSIGNAL: where it fails, SIGPIPE comes.
    Loud,
    /// sendmmsg(2) of three messages.
    Many,
    /// pwritev2(2) with RWF_NOWAIT.
    Pwritev2,
    /// A file from where it stands.
    SendfileOn,
    /// With flags that do nothing to a stream.
    Flagged,
    /// [`SendBy::Many`] with MSG_BATCH.
    Batch,
}

/// How bytes are received.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RecvBy {
    Recv,
    Read,
    Readv,
    Recvfrom,
    Recvmsg,
    Recvmmsg,
    Splice,
    Peek,
    Trunc,
    /// One call, whose answer must not be shorter than TCP's: who waits for edges takes a short read for the last one.
    Once,
    WaitAll,
    /// By io_uring.
    Ring,
    /// The urgent byte.
    Oob,
    /// preadv2(2) with RWF_NOWAIT.
    Preadv2,
    /// recvmmsg(2) of three messages.
    Many,
    /// The same, which waits for the first one (MSG_WAITFORONE), and has a timeout.
    ForOne,
    /// recvmsg(2) with MSG_PEEK,
    PeekMsg,
    /// ... with MSG_TRUNC,
    TruncMsg,
    /// ... and with MSG_CMSG_CLOEXEC.
    Cloexec,
    PeekTrunc,
    /// MSG_PEEK and MSG_WAITALL.
    PeekWhole,
}

impl RecvBy {
    /// Whether it leaves the bytes there.
    pub fn peeks(self) -> bool {
        matches!(self, Self::Peek | Self::Oob | Self::PeekMsg | Self::PeekTrunc | Self::PeekWhole)
    }

    /// Whether it waits where there are no bytes, on a socket that blocks.
    pub fn may_wait(self) -> bool {
        matches!(
            self,
            Self::Read | Self::Readv | Self::WaitAll | Self::Splice | Self::ForOne | Self::PeekWhole
        )
    }

    /// Whether it throws them away.
    pub fn throws_away(self) -> bool {
        matches!(self, Self::Trunc | Self::TruncMsg | Self::PeekTrunc)
    }

    /// Whether it wants all that it has room for.
    pub fn is_for_all(self) -> bool {
        matches!(self, Self::WaitAll | Self::PeekWhole)
    }
}

/// How a connection is looked at, without a wait.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LookBy {
    Fionread,
    Poll,
    PollRdhup,
    Select,
    Epoll,
    SoError,
    Peek,
    RecvNothing,
    AtMark,
    Names,
    /// Whose addresses the two ends have, without their ports.
    Peers,
    /// The set itself, by poll(2).
    Set,
    /// The set, within a set.
    Nested,
    /// All connections of the process at once, a listener, and pipes with and without a byte.
    AllPoll,
    AllSelect,
    AllEpoll,
    /// How many SIGURG this process has had.
    Urgents,
    /// Whether this process has had SIGIO, or what stands for it, since it was last asked.
    Arrivals,
    /// Flags of the descriptor, and options.
    Flags,
    /// Calls that fail on sockets.
    Refused,
    /// The error queue.
    Errors,
    /// A send of no bytes, and a write.
    SendNothing,
    /// TCP_INFO's state.
    TcpState,
    /// By poll(2), all that it can be asked for.
    PollEach,
    /// In one set with an eventfd, a timerfd and a signalfd that have something to tell.
    Kinds,
    /// Close-on-exec by close_range(2), and off again.
    CloseOnExec,
    /// Reads and writes of no bytes.
    Empty,
    /// Bad pointers.
    Faults,
    /// What is still to be sent (SIOCOUTQNSD), and whether TIOCOUTQ answers.
    Unsent,
    /// Whether SO_MEMINFO, TCP_CC_INFO and all of TCP_INFO answer: their figures are TCP's own.
    Figures,
    /// TCP_ZEROCOPY_RECEIVE that maps nothing, and so tells how much there is.
    Mapped,
}

impl LookBy {
    pub fn is_of_all(self) -> bool {
        matches!(self, Self::AllPoll | Self::AllSelect | Self::AllEpoll)
    }

    /// Whether it is several calls, between which others may be seen.
    pub fn is_of_several(self) -> bool {
        matches!(
            self,
            Self::Flags
                | Self::SendNothing
                | Self::Kinds
                | Self::CloseOnExec
                | Self::Empty
                | Self::Faults
                | Self::Unsent
                | Self::Figures
        )
    }

    pub fn is_of_set(self) -> bool {
        matches!(self, Self::Epoll | Self::Set | Self::Nested)
    }
}

/// How a thread waits for a connection to become readable.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WaitBy {
    Recv,
    Read,
    PeekAll,
    Poll,
    Ppoll,
    Select,
    Epoll,
    RawPoll,
    RawEpoll,
    Pselect,
    EpollPwait2,
    /// For urgent data, by poll(2).
    Urgent,
    /// For any connection of the process, with a listener and a pipe that stay silent.
    AllPoll,
    AllSelect,
    AllEpoll,
    /// On the process's own set.
    Set,
    /// Four threads wait for one connection, each in another way.
    Crowd,
    EpollPwait,
    /// A timerfd ends it, which is in a set with the connection,
    Timer,
    /// ... or beside it, in poll(2).
    TimerPoll,
}

impl WaitBy {
    pub fn is_of_all(self) -> bool {
        matches!(self, Self::AllPoll | Self::AllSelect | Self::AllEpoll)
    }

    /// Whether more than one connection may end it.
    pub fn is_of_many(self) -> bool {
        self.is_of_all() || self == Self::Set
    }
}

/// Which addresses a connection has.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Family {
    #[default]
    V4,
    V6,
    /// The server's socket is of IPv6, and takes IPv4.
    ServerV6,
    /// The client's socket is of IPv6, and has a mapped address.
    ClientV6,
}

/// Where dup2(2) and dup3(2) put a connection. Its own number is closed then.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Over {
    /// Over another connection's number, which closes that.
    Conn(u8),
    /// Over the set's number. There is a new set then.
    Set,
    /// Its own number, which does nothing.
    Same,
    /// A number that is far away.
    Far,
    /// The next free one from a number on, by F_DUPFD.
    Next,
}

/// How bytes that were held back are let go.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Uncork {
    /// MSG_MORE, until a call without it.
    More,
    /// TCP_CORK, until it is off.
    Off,
    /// TCP_CORK, and TCP_NODELAY lets go what there is.
    NoDelay,
    /// TCP_CORK, and a call with MSG_MORE within it.
    MoreOff,
}

/// What becomes of memory that was lent by MSG_ZEROCOPY before it is read.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Lent {
    Stays,
    Unmapped,
    /// MADV_DONTNEED.
    Discarded,
    /// A child is forked, and ends.
    Forked,
    /// The sender ends its stream.
    Ended,
}

/// How those who exchange messages wait for them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum By {
    /// An epoll set of their own tells of edges, and a read that brings less than there is room for is the last one (epoll(7)).
    Edge,
    /// The same by system calls that no hook sees.
    RawEdge,
    RawPoll,
}

/// What the handler of a signal does with the connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Handler {
    Nothing,
    Sends(usize),
    Receives(usize),
    Fionread,
}

/// How a connection stands in a process's epoll set.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Registered {
    Level,
    Edge,
    OneShot,
    EdgeIn,
    LevelIn,
    /// EPOLLEXCLUSIVE, for levels: it can be added, and not changed.
    Exclusive,
    Removed,
}

impl Registered {
    pub fn is_for_edges(self) -> bool {
        matches!(self, Self::Edge | Self::EdgeIn | Self::OneShot)
    }
}

/// How a stream ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum End {
    ShutWr,
    ShutRd,
    ShutBoth,
    Close,
    RawClose,
    /// close_range(2)
    Range,
    /// By dup2(2) of a pipe.
    Over,
}

impl End {
    pub fn is_close(self) -> bool {
        matches!(self, Self::Close | Self::RawClose | Self::Range | Self::Over)
    }
}

/// What a forked child does with the connections that it has inherited.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Child {
    Exits,
    Closes,
    Sends,
    Receives,
    ReceivesAndCloses,
    Execs,
    /// In place of fork(2), posix_spawn(3).
    Spawns,
    /// In place of fork(2), vfork(2); it executes another program.
    Vforks,
    /// By poll(2).
    Looks,
    /// At the set that it has inherited.
    LooksAtSet,
}

/// How a sender that was refused learns of room.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RoomBy {
    Poll,
    Select,
    Epoll,
    /// A set for edges that had the connection before it was filled.
    Edge,
    /// A call that sends, and waits.
    Send,
}

/// What is done to Shunpike, which the programs must not notice. Nothing on TCP.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Meddle {
    Revoke,
    Off,
    On,
    KillBroker,
    /// It is stopped (SIGSTOP): what it has not said by then it says when it goes on, which is before any other of these.
    StopBroker,
    ContinueBroker,
    Wait(u16),
}

/// One call.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Call {
    Open {
        nonblock: bool,
        nagle: bool,
        #[serde(default)]
        family: Family,
    },
    Send(SendBy, usize),
    Recv(RecvBy, usize),
    Look(LookBy),
    Wait(WaitBy),
    /// A wait of so many milliseconds at most.
    Patience(WaitBy, u16),
    /// A wait that a signal interrupts if nothing ends it before.
    Alarm(WaitBy),
    /// A wait of so many milliseconds at most, with a mask.
    Masked(MaskBy, Mask, u16),
    Echo {
        rounds: u16,
        size: usize,
    },
    /// Bytes in one direction: each lot is read before the next one is sent.
    Pour {
        rounds: u16,
        size: usize,
    },
    /// Questions and answers of a header and a body each, which are sent by two calls.
    Exchange {
        by: By,
        rounds: u16,
        size: usize,
    },
    /// Bytes in one direction by calls of `chunk`, until the socket takes no more. Then `meanwhile` happens, seven eighths are read, and the
    /// sender must learn of room; with `early` it waits for that before they are read. How many bytes it takes is nobody's business.
    Flood {
        by: RoomBy,
        chunk: u16,
        early: bool,
        meanwhile: Option<Meddle>,
    },
    /// Pieces that are held back and let go: what the receiver sees before and after.
    Corked {
        by: Uncork,
        pieces: u8,
        size: u16,
    },
    /// Each side has so many threads that send, and as many that receive, all at the same time.
    Torrent {
        threads: u8,
        rounds: u8,
        size: u16,
    },
    /// Bytes by MSG_ZEROCOPY. `meanwhile` happens before they are read; then notices tell that their memory is free again.
    Lend {
        size: u32,
        lent: Lent,
        meanwhile: Option<Meddle>,
    },
    Set(Opt),
    Register(Registered),
    Finish(End),
    Dup,
    DupOver(Over),
    /// A second number of the process for it, which stays.
    Twin,
    /// The process goes on with the other one.
    Turn,
    /// A message of the process to itself brings it under another number (SCM_RIGHTS).
    Pass,
    /// A message brings it to the side's other process, and this one closes it.
    Hand,
    /// The same, and this process keeps it, too.
    Share,
    /// The process forks a child that lives on with its connections.
    Branch,
    /// The other process that has the connection makes the next calls on it.
    Swap,
    /// The child that lives on is killed.
    KillBranch,
    Fork(Child),
    /// The process executes its program anew, which goes on with what it inherits.
    Exec,
    Nonblock(bool),
    /// The process may have so few descriptors (RLIMIT_NOFILE), or as many as before.
    Few(bool),
    /// A signal comes, and its handler makes a call.
    Signal(Handler),
    /// The processes of the side are killed.
    Kill,
    /// The processes of the side are stopped.
    Stop,
    Continue,
    Meddle(Meddle),
}

impl Call {
    /// What is done to the processes of a side, rather than by them.
    pub fn is_of_driver(self) -> bool {
        matches!(self, Self::Kill | Self::KillBranch | Self::Stop | Self::Continue | Self::Meddle(_))
    }

    /// What both sides take part in.
    pub fn is_of_both(self) -> bool {
        matches!(
            self,
            Self::Open { .. }
                | Self::Echo { .. }
                | Self::Pour { .. }
                | Self::Exchange { .. }
                | Self::Flood { .. }
                | Self::Corked { .. }
                | Self::Lend { .. }
                | Self::Torrent { .. }
        )
    }
}

/// A call of a program: by whom, and on which connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Op {
    pub side: Side,
    pub conn: u8,
    pub call: Call,
    /// After so many instructions of this call the next one is made, and then this one goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<u16>,
}

impl Op {
    pub fn new(side: Side, conn: u8, call: Call) -> Self {
        Self { side, conn, call, cut: None }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {:?}", self.side, self.conn, self.call)?;
        self.cut.map_or(Ok(()), |steps| write!(f, ", cut after {steps} instructions"))
    }
}

/// Whether a call takes bytes out of the stream.
pub fn reads(call: Call) -> bool {
    match call {
        Call::Recv(by, _) => !by.peeks(),
        Call::Signal(what) => matches!(what, Handler::Receives(_)),
        Call::Fork(child) => matches!(child, Child::Receives | Child::ReceivesAndCloses),
        _ => false,
    }
}

/// Whether a call says which bytes there are, and takes none.
pub fn looks(call: Call) -> bool {
    match call {
        Call::Recv(by, _) => by.peeks(),
        Call::Look(by) => !matches!(
            by,
            LookBy::SoError
                | LookBy::Names
                | LookBy::Peers
                | LookBy::Urgents
                | LookBy::Arrivals
                | LookBy::Flags
                | LookBy::Refused
                | LookBy::Errors
                | LookBy::SendNothing
                | LookBy::TcpState
                | LookBy::CloseOnExec
                | LookBy::Empty
                | LookBy::Unsent
                | LookBy::Figures
        ),
        Call::Signal(what) => what == Handler::Fionread,
        _ => false,
    }
}

/// The program with no more cuts than are compared.
pub fn few_cuts(mut program: Vec<Op>) -> Vec<Op> {
    program.iter_mut().filter(|op| op.cut.is_some()).skip(CUTS).for_each(|op| op.cut = None);
    program
}

/// Whether a program is of exchanges on connections with Nagle's algorithm.
pub fn is_dialogue(program: &[Op]) -> bool {
    program.iter().any(|op| matches!(op.call, Call::Open { nagle: true, .. }))
}

/// Whether a program has rings of io_uring, which its processes are marked by.
pub fn has_rings(program: &[Op]) -> bool {
    program.iter().any(|op| is_by_ring(op.call))
}

pub fn is_by_ring(call: Call) -> bool {
    matches!(call, Call::Send(SendBy::Ring, _) | Call::Recv(RecvBy::Ring, _))
}

/// Whether a program waits by system calls that no hook sees.
pub fn is_raw(program: &[Op]) -> bool {
    program.iter().any(|op| {
        matches!(
            op.call,
            Call::Wait(WaitBy::RawPoll | WaitBy::RawEpoll)
                | Call::Exchange { by: By::RawEdge | By::RawPoll, .. }
        )
    })
}
