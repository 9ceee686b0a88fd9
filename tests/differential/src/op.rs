//! The vocabulary: what a program of the tester can do, how it is made from a seed, and how it is written down.
//!
//! Two processes, a client and a server, have up to [`CONNS`] connections with each other. One call is made at a time: the
//! next one begins when it has returned. That is what makes kernel TCP over loopback give the same answers each time, so
//! that its answers are the ones that a lane must give. The exception is a [`Call::Wait`], which a thread begins and a
//! later call ends.

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// Connections that a program can have at a time.
pub const CONNS: u8 = 3;
/// Most bytes on their way in one direction: what TCP takes without asking for a reader, on every kernel, and less than half of a
/// lane's first window, from which on a lane says that there is no room (COMPLIANCE.md, `EPOLLOUT`).
pub const ON_THE_WAY: usize = 12_000;

/// One of the two processes.
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
    WaitAll,
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
}

/// Options, with the value that is set.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Opt {
    NoDelay(bool),
    LowWater(i32),
    PeekOff(i32),
    Inq(bool),
    Timestamps(bool),
    KeepAlive(bool),
    Linger(bool),
    QuickAck(bool),
}

/// How a connection stands in a process's epoll set.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Registered {
    Level,
    Edge,
    OneShot,
    EdgeIn,
    LevelIn,
    Removed,
}

/// How a stream ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum End {
    ShutWr,
    ShutRd,
    ShutBoth,
    Close,
    RawClose,
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
}

/// What is done to Shunpike, which the programs must not notice. Nothing on TCP.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Meddle {
    Revoke,
    Off,
    On,
    KillBroker,
    Wait(u16),
}

/// One call.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Call {
    Open { nonblock: bool, nagle: bool },
    Send(SendBy, usize),
    Recv(RecvBy, usize),
    Look(LookBy),
    Wait(WaitBy),
    Echo { rounds: u16, size: usize },
    Set(Opt),
    Register(Registered),
    Finish(End),
    Dup,
    Fork(Child),
    Nonblock(bool),
    Meddle(Meddle),
}

/// A call of a program: by whom, and on which connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Op {
    pub side: Side,
    pub conn: u8,
    pub call: Call,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1usize..64, 4 => 64usize..2000, 2 => 2000usize..9000, 1 => 9000usize..ON_THE_WAY]
}

/// `raw`: with waits by system calls that no hook sees.
fn call(raw: bool) -> impl Strategy<Value = Call> {
    use Call::{Dup, Echo, Finish, Fork, Look, Meddle as M, Nonblock, Open, Recv, Register, Send, Set, Wait};
    let send_by = prop_oneof![
        6 => Just(SendBy::Send), 3 => Just(SendBy::Write), 1 => Just(SendBy::Writev), 1 => Just(SendBy::Sendmsg),
        1 => Just(SendBy::Sendmmsg), 1 => Just(SendBy::Sendfile), 1 => Just(SendBy::Splice),
    ];
    let recv_by = prop_oneof![
        6 => Just(RecvBy::Recv), 3 => Just(RecvBy::Read), 1 => Just(RecvBy::Readv), 1 => Just(RecvBy::Recvfrom),
        2 => Just(RecvBy::Recvmsg), 1 => Just(RecvBy::Recvmmsg), 1 => Just(RecvBy::Splice), 3 => Just(RecvBy::Peek),
        1 => Just(RecvBy::Trunc), 1 => Just(RecvBy::WaitAll),
    ];
    let look = prop::sample::select(vec![
        LookBy::Fionread,
        LookBy::Fionread,
        LookBy::Poll,
        LookBy::PollRdhup,
        LookBy::Select,
        LookBy::Epoll,
        LookBy::Epoll,
        LookBy::Epoll,
        LookBy::SoError,
        LookBy::Peek,
        LookBy::RecvNothing,
        LookBy::AtMark,
        LookBy::Names,
    ]);
    let wait = prop::sample::select(vec![
        WaitBy::Recv,
        WaitBy::Read,
        WaitBy::PeekAll,
        WaitBy::Poll,
        WaitBy::Ppoll,
        WaitBy::Select,
        WaitBy::Epoll,
        if raw { WaitBy::RawPoll } else { WaitBy::Poll },
        if raw { WaitBy::RawEpoll } else { WaitBy::Epoll },
    ]);
    let opt = prop_oneof![
        // With Nagle's algorithm TCP holds back what a lane shows at once (COMPLIANCE.md); `dialogue` is for it.
        Just(Opt::NoDelay(true)),
        (1i32..40).prop_map(Opt::LowWater),
        (-1i32..20).prop_map(Opt::PeekOff),
        any::<bool>().prop_map(Opt::Inq),
        any::<bool>().prop_map(Opt::KeepAlive),
        any::<bool>().prop_map(Opt::Timestamps),
        any::<bool>().prop_map(Opt::Linger),
        any::<bool>().prop_map(Opt::QuickAck),
    ];
    let registered = prop::sample::select(vec![
        Registered::Level,
        Registered::Edge,
        Registered::Edge,
        Registered::OneShot,
        Registered::EdgeIn,
        Registered::LevelIn,
        Registered::Removed,
    ]);
    let end = prop::sample::select(vec![
        End::ShutWr,
        End::ShutWr,
        End::ShutRd,
        End::ShutBoth,
        End::Close,
        End::Close,
        End::RawClose,
    ]);
    let child = prop::sample::select(vec![
        Child::Exits,
        Child::Closes,
        Child::Sends,
        Child::Receives,
        Child::ReceivesAndCloses,
        Child::Execs,
    ]);
    let meddle = prop_oneof![
        3 => Just(Meddle::Revoke), 1 => Just(Meddle::Off), 3 => Just(Meddle::On), 1 => Just(Meddle::KillBroker),
        2 => (1u16..20).prop_map(Meddle::Wait),
    ];
    prop_oneof![
        1 => any::<bool>().prop_map(|nonblock| Open { nonblock, nagle: false }),
        20 => (send_by, size()).prop_map(|(by, n)| Send(by, n)),
        20 => (recv_by, size()).prop_map(|(by, n)| Recv(by, n)),
        24 => look.prop_map(Look),
        8 => wait.prop_map(Wait),
        12 => (1u16..24, 1usize..3000).prop_map(|(rounds, size)| Echo { rounds, size }),
        4 => opt.prop_map(Set),
        5 => registered.prop_map(Register),
        1 => end.prop_map(Finish),
        1 => Just(Dup),
        1 => child.prop_map(Fork),
        1 => any::<bool>().prop_map(Nonblock),
        3 => meddle.prop_map(M),
    ]
}

/// A program. It begins with an open connection, and mostly with exchanges after which a lane may open: so does each connection that comes
/// later.
pub fn program(longest: usize, raw: bool) -> impl Strategy<Value = Vec<Op>> {
    let side = prop_oneof![Just(Side::Client), Just(Side::Server)];
    let conn = prop_oneof![5 => Just(0u8), 1 => 1..CONNS];
    let op = (side, conn, call(raw), 20u16..60).prop_map(|(side, conn, call, rounds)| {
        let op = |call| Op { side, conn, call };
        match call {
            Call::Open { .. } => vec![op(call), op(Call::Echo { rounds, size: 50 })],
            call => vec![op(call)],
        }
    });
    let first = (any::<bool>(), prop_oneof![1 => 0u16..12, 3 => 20u16..60], 1usize..300).prop_map(
        |(nonblock, rounds, size)| {
            let op = |call| Op { side: Side::Client, conn: 0, call };
            let open = op(Call::Open { nonblock, nagle: false });
            if rounds == 0 { vec![open] } else { vec![open, op(Call::Echo { rounds, size })] }
        },
    );
    (first, prop::collection::vec(op, 1..longest)).prop_map(|(mut all, rest)| {
        all.extend(rest.into_iter().flatten());
        all
    })
}

/// A program of exchanges on a connection with Nagle's algorithm, in which what counts is how long each call takes.
pub fn dialogue(longest: usize) -> impl Strategy<Value = Vec<Op>> {
    let call = prop_oneof![
        6 => (1u16..12, 1usize..3000).prop_map(|(rounds, size)| Call::Echo { rounds, size }),
        1 => Just(Call::Meddle(Meddle::Revoke)),
        1 => (1u16..30).prop_map(|ms| Call::Meddle(Meddle::Wait(ms))),
    ];
    let side = prop_oneof![Just(Side::Client), Just(Side::Server)];
    let op = (side, call).prop_map(|(side, call)| Op { side, conn: 0, call });
    (any::<bool>(), prop::collection::vec(op, 1..longest)).prop_map(|(nonblock, mut all)| {
        all.insert(0, Op { side: Side::Client, conn: 0, call: Call::Open { nonblock, nagle: true } });
        all
    })
}
