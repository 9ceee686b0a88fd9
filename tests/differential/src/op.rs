//! The vocabulary: what a program of the tester can do, how it is made from a seed, and how it is written down.
//!
//! Two sides, a client and a server of two processes each, have up to [`CONNS`] connections with each other. One call is made at a
//! time: the next one begins when it has returned. That is what makes kernel TCP over loopback give the same answers each time, so
//! that its answers are the ones that a lane must give. The exceptions are a [`Call::Wait`], which a thread begins and a later
//! call ends, and a [`Op::cut`], in which the next call is made between two instructions of this one.

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

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
    Pselect,
    EpollPwait2,
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
    /// Never so small that what is on its way would not fit.
    RcvBuf(i32),
    SndBuf(i32),
    UserTimeout(i32),
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
    Open {
        nonblock: bool,
        nagle: bool,
    },
    Send(SendBy, usize),
    Recv(RecvBy, usize),
    Look(LookBy),
    Wait(WaitBy),
    /// A wait of so many milliseconds at most.
    Patience(WaitBy, u16),
    /// A wait that a signal interrupts if nothing ends it before.
    Alarm(WaitBy),
    Echo {
        rounds: u16,
        size: usize,
    },
    Set(Opt),
    Register(Registered),
    Finish(End),
    Dup,
    /// A message of the process to itself brings it under another number (SCM_RIGHTS).
    Pass,
    /// A message brings it to the side's other process, and this one closes it.
    Hand,
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
    /// After so many instructions of this call the next one is made, and then this one goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<u16>,
}

impl Op {
    pub fn new(side: Side, conn: u8, call: Call) -> Self {
        Self { side, conn, call, cut: None }
    }
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1usize..64, 4 => 64usize..2000, 2 => 2000usize..9000, 1 => 9000usize..ON_THE_WAY]
}

fn side() -> impl Strategy<Value = Side> {
    prop::sample::select(Side::BOTH.to_vec())
}

fn send_by() -> impl Strategy<Value = SendBy> {
    prop_oneof![
        6 => Just(SendBy::Send), 3 => Just(SendBy::Write), 1 => Just(SendBy::Writev), 1 => Just(SendBy::Sendmsg),
        1 => Just(SendBy::Sendmmsg), 1 => Just(SendBy::Sendfile), 1 => Just(SendBy::Splice),
    ]
}

fn recv_by() -> impl Strategy<Value = RecvBy> {
    prop_oneof![
        6 => Just(RecvBy::Recv), 3 => Just(RecvBy::Read), 1 => Just(RecvBy::Readv), 1 => Just(RecvBy::Recvfrom),
        2 => Just(RecvBy::Recvmsg), 1 => Just(RecvBy::Recvmmsg), 1 => Just(RecvBy::Splice), 3 => Just(RecvBy::Peek),
        1 => Just(RecvBy::Trunc), 1 => Just(RecvBy::WaitAll),
    ]
}

fn look_by() -> impl Strategy<Value = LookBy> {
    prop::sample::select(vec![
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
    ])
}

/// `raw`: also by system calls that no hook sees.
fn wait_by(raw: bool) -> impl Strategy<Value = WaitBy> {
    let mut all = vec![
        WaitBy::Recv,
        WaitBy::Read,
        WaitBy::PeekAll,
        WaitBy::Poll,
        WaitBy::Ppoll,
        WaitBy::Select,
        WaitBy::Pselect,
        WaitBy::Epoll,
        WaitBy::EpollPwait2,
    ];
    if raw {
        all.extend([WaitBy::RawPoll, WaitBy::RawEpoll]);
    }
    prop::sample::select(all)
}

fn opt() -> impl Strategy<Value = Opt> {
    prop_oneof![
        // With Nagle's algorithm TCP holds back what a lane shows at once (COMPLIANCE.md); `dialogue` is for it.
        Just(Opt::NoDelay(true)),
        (1i32..40).prop_map(Opt::LowWater),
        (-1i32..20).prop_map(Opt::PeekOff),
        any::<bool>().prop_map(Opt::Inq),
        any::<bool>().prop_map(Opt::KeepAlive),
        any::<bool>().prop_map(Opt::Timestamps),
        any::<bool>().prop_map(Opt::Linger),
        any::<bool>().prop_map(Opt::QuickAck),
        (65_536i32..400_000).prop_map(Opt::RcvBuf),
        (65_536i32..400_000).prop_map(Opt::SndBuf),
        (0i32..60_000).prop_map(Opt::UserTimeout),
    ]
}

fn registered() -> impl Strategy<Value = Registered> {
    prop::sample::select(vec![
        Registered::Level,
        Registered::Edge,
        Registered::Edge,
        Registered::OneShot,
        Registered::EdgeIn,
        Registered::LevelIn,
        Registered::Removed,
    ])
}

fn call(raw: bool) -> impl Strategy<Value = Call> {
    use Call::{
        Alarm, Dup, Echo, Finish, Fork, Hand, Look, Meddle as M, Nonblock, Open, Pass, Patience, Recv,
        Register, Send, Set, Wait,
    };
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
        2 => any::<bool>().prop_map(|nonblock| Open { nonblock, nagle: false }),
        40 => (send_by(), size()).prop_map(|(by, n)| Send(by, n)),
        40 => (recv_by(), size()).prop_map(|(by, n)| Recv(by, n)),
        48 => look_by().prop_map(Look),
        16 => wait_by(raw).prop_map(Wait),
        5 => (wait_by(false), 1u16..25).prop_map(|(by, ms)| Patience(by, ms)),
        3 => wait_by(false).prop_map(Alarm),
        24 => (1u16..24, 1usize..3000).prop_map(|(rounds, size)| Echo { rounds, size }),
        8 => opt().prop_map(Set),
        10 => registered().prop_map(Register),
        2 => end.prop_map(Finish),
        2 => Just(Dup),
        1 => Just(Pass),
        1 => Just(Hand),
        2 => child.prop_map(Fork),
        2 => any::<bool>().prop_map(Nonblock),
        6 => meddle.prop_map(M),
    ]
}

/// A call that may be cut in two, or be made meanwhile: one that other calls see done or not begun.
fn short() -> impl Strategy<Value = Call> {
    let end = prop::sample::select(vec![End::ShutWr, End::ShutRd, End::Close]);
    prop_oneof![
        6 => (send_by(), 1usize..64).prop_map(|(by, n)| Call::Send(by, n)),
        6 => (recv_by(), 1usize..4000).prop_map(|(by, n)| Call::Recv(by, n)),
        6 => look_by().prop_map(Call::Look),
        2 => registered().prop_map(Call::Register),
        1 => opt().prop_map(Call::Set),
        1 => end.prop_map(Call::Finish),
        1 => any::<bool>().prop_map(Call::Nonblock),
        1 => prop::sample::select(vec![Call::Dup, Call::Pass]),
    ]
}

/// A call that is cut after so many instructions, and what is made meanwhile: a call of the other side, or what is done to Shunpike.
fn cut() -> impl Strategy<Value = [Op; 2]> {
    let meddle = prop::sample::select(vec![Meddle::Revoke, Meddle::Revoke, Meddle::Off, Meddle::KillBroker]);
    let meanwhile = prop_oneof![2 => short(), 1 => meddle.prop_map(Call::Meddle)];
    let steps = (0u32..13).prop_flat_map(|power| (1u16 << power)..(2u16 << power));
    (side(), short(), steps, meanwhile).prop_map(|(side, call, steps, meanwhile)| {
        let whose = if matches!(meanwhile, Call::Meddle(_)) { side } else { side.other() };
        [Op { cut: Some(steps), ..Op::new(side, 0, call) }, Op::new(whose, 0, meanwhile)]
    })
}

/// A part of a program. After what ends a lane there are mostly exchanges, by which another one comes.
pub fn part(raw: bool) -> impl Strategy<Value = Vec<Op>> {
    let conn = prop_oneof![5 => Just(0u8), 1 => 1..CONNS];
    let plain = (side(), conn, call(raw), 20u16..60).prop_map(|(side, conn, call, rounds)| {
        let op = |call| Op::new(side, conn, call);
        let again = op(Call::Echo { rounds, size: 50 });
        match call {
            Call::Open { .. } | Call::Meddle(Meddle::Revoke | Meddle::KillBroker) => vec![op(call), again],
            Call::Meddle(Meddle::Off) => {
                let few = Call::Echo { rounds: rounds / 20, size: 50 };
                vec![op(call), op(few), op(Call::Meddle(Meddle::On)), again]
            }
            call => vec![op(call)],
        }
    });
    prop_oneof![19 => plain, 1 => cut().prop_map(|pair| pair.to_vec())]
}

/// A program. It begins with an open connection, and mostly with exchanges after which a lane may open: so does each connection that comes
/// later.
pub fn program(longest: usize, raw: bool) -> impl Strategy<Value = Vec<Op>> {
    let first = (any::<bool>(), prop_oneof![1 => 0u16..12, 5 => 40u16..120], 1usize..300).prop_map(
        |(nonblock, rounds, size)| {
            let op = |call| Op::new(Side::Client, 0, call);
            let open = op(Call::Open { nonblock, nagle: false });
            if rounds == 0 { vec![open] } else { vec![open, op(Call::Echo { rounds, size })] }
        },
    );
    (first, prop::collection::vec(part(raw), 1..longest)).prop_map(|(mut all, rest)| {
        all.extend(rest.into_iter().flatten());
        few_cuts(all)
    })
}

/// The program with no more cuts than are compared.
pub fn few_cuts(mut program: Vec<Op>) -> Vec<Op> {
    program.iter_mut().filter(|op| op.cut.is_some()).skip(CUTS).for_each(|op| op.cut = None);
    program
}

/// A program of exchanges on a connection with Nagle's algorithm, in which what counts is how long each call takes.
pub fn dialogue(longest: usize) -> impl Strategy<Value = Vec<Op>> {
    let call = prop_oneof![
        6 => (1u16..12, 1usize..3000).prop_map(|(rounds, size)| Call::Echo { rounds, size }),
        1 => Just(Call::Meddle(Meddle::Revoke)),
        1 => (1u16..30).prop_map(|ms| Call::Meddle(Meddle::Wait(ms))),
    ];
    let op = (side(), call).prop_map(|(side, call)| Op::new(side, 0, call));
    (any::<bool>(), prop::collection::vec(op, 1..longest)).prop_map(|(nonblock, mut all)| {
        all.insert(0, Op::new(Side::Client, 0, Call::Open { nonblock, nagle: true }));
        all
    })
}

/// Whether a program is one of those.
pub fn is_dialogue(program: &[Op]) -> bool {
    program.iter().any(|op| matches!(op.call, Call::Open { nagle: true, .. }))
}
