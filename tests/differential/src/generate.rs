//! How programs are made from a seed: which calls, how often, and what comes together.

mod kinds;
mod options;
mod sharing;

use proptest::prelude::*;

use crate::op::*;

use options::opt;

pub use kinds::{dialogue, fresh, held, switch, unseen, windows};

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1usize..64, 4 => 64usize..2000, 2 => 2000usize..9000, 1 => 9000usize..ON_THE_WAY]
}

fn side() -> impl Strategy<Value = Side> {
    prop::sample::select(Side::BOTH.to_vec())
}

fn send_by() -> impl Strategy<Value = SendBy> {
    prop_oneof![
        12 => Just(SendBy::Send), 6 => Just(SendBy::Write), 2 => Just(SendBy::Writev), 2 => Just(SendBy::Sendmsg),
        2 => Just(SendBy::Sendmmsg), 2 => Just(SendBy::Sendfile), 4 => Just(SendBy::Loud), 2 => Just(SendBy::Many),
        2 => Just(SendBy::Pwritev2), 2 => Just(SendBy::SendfileOn), 2 => Just(SendBy::Flagged), 2 => Just(SendBy::Batch),
        // It keeps the connection on TCP.
        1 => Just(SendBy::Splice),
    ]
}

fn recv_by() -> impl Strategy<Value = RecvBy> {
    prop_oneof![
        12 => Just(RecvBy::Recv), 6 => Just(RecvBy::Read), 2 => Just(RecvBy::Readv), 2 => Just(RecvBy::Recvfrom),
        4 => Just(RecvBy::Recvmsg), 2 => Just(RecvBy::Recvmmsg), 6 => Just(RecvBy::Peek), 2 => Just(RecvBy::Trunc),
        2 => Just(RecvBy::WaitAll), 8 => Just(RecvBy::Once), 2 => Just(RecvBy::Preadv2), 2 => Just(RecvBy::Many),
        2 => Just(RecvBy::ForOne), 2 => Just(RecvBy::PeekMsg), 2 => Just(RecvBy::TruncMsg), 2 => Just(RecvBy::Cloexec),
        2 => Just(RecvBy::PeekTrunc), 2 => Just(RecvBy::PeekWhole), 1 => Just(RecvBy::Splice),
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
        LookBy::Flags,
        LookBy::Refused,
        LookBy::Errors,
        LookBy::SendNothing,
        LookBy::TcpState,
        LookBy::PollEach,
        LookBy::Kinds,
        LookBy::CloseOnExec,
        LookBy::Empty,
        LookBy::Unsent,
        LookBy::Figures,
        LookBy::Mapped,
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
        WaitBy::EpollPwait,
        WaitBy::EpollPwait2,
        WaitBy::Timer,
        WaitBy::TimerPoll,
    ];
    if raw {
        all.extend([WaitBy::RawPoll, WaitBy::RawEpoll]);
    }
    prop::sample::select(all)
}

fn masked() -> impl Strategy<Value = Call> {
    use MaskBy::{EpollPwait, EpollPwait2, Ppoll, PpollBeside, Pselect};
    let by = prop::sample::select(vec![Ppoll, PpollBeside, Pselect, EpollPwait, EpollPwait2]);
    let mask = prop::sample::select(vec![Mask::Pending, Mask::Pending, Mask::Comes, Mask::Kept]);
    (by, mask, 0u16..15).prop_map(|(by, mask, ms)| Call::Masked(by, mask, ms))
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
        Alarm, Dup, Echo, Exchange, Finish, Fork, Hand, Look, Meddle as M, Nonblock, Open, Pass, Patience,
        Pour, Recv, Register, Send, Set, Signal, Wait,
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
        Child::Spawns,
        Child::Vforks,
    ]);
    let meddle = prop_oneof![
        3 => Just(Meddle::Revoke), 1 => Just(Meddle::Off), 3 => Just(Meddle::On), 1 => Just(Meddle::KillBroker),
        2 => (1u16..20).prop_map(Meddle::Wait), 1 => Just(Meddle::StopBroker),
    ];
    prop_oneof![
        2 => (any::<bool>(), family()).prop_map(|(nonblock, family)| Open { nonblock, nagle: false, family }),
        40 => (send_by(), size()).prop_map(|(by, n)| Send(by, n)),
        40 => (recv_by(), size()).prop_map(|(by, n)| Recv(by, n)),
        48 => look_by().prop_map(Look),
        16 => wait_by(raw).prop_map(Wait),
        5 => (wait_by(false), 1u16..25).prop_map(|(by, ms)| Patience(by, ms)),
        3 => wait_by(false).prop_map(Alarm),
        3 => masked(),
        32 => (1u16..32, 1usize..3000).prop_map(|(rounds, size)| Echo { rounds, size }),
        4 => (1u16..40, size()).prop_map(|(rounds, size)| Pour { rounds, size }),
        4 => (1u16..24, 2usize..9000).prop_map(|(rounds, size)| Exchange { by: By::Edge, rounds, size }),
        1 => handler().prop_map(Signal),
        4 => flood(),
        8 => opt().prop_map(Set),
        10 => registered().prop_map(Register),
        2 => end.prop_map(Finish),
        2 => Just(Dup),
        1 => Just(Pass),
        1 => Just(Hand),
        2 => child.prop_map(Fork),
        2 => any::<bool>().prop_map(Nonblock),
        6 => meddle.prop_map(M),
        13 => wide(),
    ]
}

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![
        3 => Just(Family::V4), 1 => Just(Family::V6), 1 => Just(Family::ServerV6), 1 => Just(Family::ClientV6),
    ]
}

/// Calls of several descriptors or threads, of sets as descriptors, of numbers that are taken over, and of bytes that are held back or lent.
fn wide() -> impl Strategy<Value = Call> {
    let look = prop::sample::select(vec![
        LookBy::AllPoll,
        LookBy::AllPoll,
        LookBy::AllSelect,
        LookBy::AllEpoll,
        LookBy::Peers,
        LookBy::Faults,
    ]);
    let wait = || {
        prop::sample::select(vec![
            WaitBy::AllPoll,
            WaitBy::AllPoll,
            WaitBy::AllSelect,
            WaitBy::AllEpoll,
            WaitBy::Crowd,
        ])
    };
    let over = prop_oneof![
        2 => (0..CONNS).prop_map(Over::Conn), 1 => Just(Over::Set), 1 => Just(Over::Same), 1 => Just(Over::Far),
        1 => Just(Over::Next),
    ];
    let uncork = prop::sample::select(vec![Uncork::More, Uncork::Off, Uncork::NoDelay, Uncork::MoreOff]);
    let lent = prop_oneof![
        4 => Just(Lent::Stays), 2 => Just(Lent::Unmapped), 1 => Just(Lent::Discarded), 1 => Just(Lent::Forked),
        1 => Just(Lent::Ended),
    ];
    let meanwhile = prop_oneof![
        6 => Just(None),
        2 => Just(Some(Meddle::Revoke)),
        1 => Just(Some(Meddle::KillBroker)),
    ];
    prop_oneof![
        60 => look.prop_map(Call::Look),
        24 => wait().prop_map(Call::Wait),
        12 => Just(Call::Wait(WaitBy::Set)),
        6 => (wait(), 1u16..25).prop_map(|(by, ms)| Call::Patience(by, ms)),
        4 => over.prop_map(Call::DupOver),
        2 => prop::sample::select(vec![End::Range, End::Over]).prop_map(Call::Finish),
        8 => prop::sample::select(vec![Registered::Exclusive, Registered::LevelIn]).prop_map(Call::Register),
        3 => Just(Call::Fork(Child::Looks)),
        8 => any::<bool>().prop_map(Call::Few),
        10 => (1u8..4, 1u8..20, 1u16..5000)
            .prop_map(|(threads, rounds, size)| Call::Torrent { threads, rounds, size }),
        12 => (uncork, 1u8..5, 1u16..1500).prop_map(|(by, pieces, size)| Call::Corked { by, pieces, size }),
        10 => (lent, 1u32..150_000, meanwhile)
            .prop_map(|(lent, size, meanwhile)| Call::Lend { size, lent, meanwhile }),
    ]
}

/// A connection is filled, and its sender waits for room.
fn flood() -> impl Strategy<Value = Call> {
    let by =
        prop::sample::select(vec![RoomBy::Poll, RoomBy::Select, RoomBy::Epoll, RoomBy::Edge, RoomBy::Send]);
    let chunk = prop_oneof![2 => 1000u16..8000, 1 => 8000u16..60_000];
    let meanwhile = prop_oneof![
        12 => Just(None),
        2 => Just(Some(Meddle::Revoke)),
        1 => Just(Some(Meddle::KillBroker)),
        1 => Just(Some(Meddle::Off)),
        1 => Just(Some(Meddle::StopBroker)),
        1 => (1u16..20).prop_map(|ms| Some(Meddle::Wait(ms))),
    ];
    (by, chunk, any::<bool>(), meanwhile).prop_map(|(by, chunk, early, meanwhile)| Call::Flood {
        by,
        chunk,
        early,
        meanwhile,
    })
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

fn handler() -> impl Strategy<Value = Handler> {
    prop_oneof![
        1 => Just(Handler::Nothing),
        2 => (1usize..64).prop_map(Handler::Sends),
        2 => (1usize..64).prop_map(Handler::Receives),
        1 => Just(Handler::Fionread),
    ]
}

/// A call that is cut after so many instructions, and what is made meanwhile: a call of the other side, of another thread, or of a
/// signal's handler, or what is done to Shunpike or to the process.
fn cut() -> impl Strategy<Value = [Op; 2]> {
    let meddle = prop::sample::select(vec![Meddle::Revoke, Meddle::Revoke, Meddle::Off, Meddle::KillBroker]);
    let child =
        prop::sample::select(vec![Child::Exits, Child::Closes, Child::Sends, Child::Receives, Child::Execs]);
    let first = prop_oneof![12 => short(), 1 => child.prop_map(Call::Fork)];
    let meanwhile = prop_oneof![
        8 => short().prop_map(|call| (call, true)),
        5 => meddle.prop_map(|meddle| (Call::Meddle(meddle), false)),
        4 => short().prop_map(|call| (call, false)),
        3 => handler().prop_map(|what| (Call::Signal(what), false)),
        1 => Just((Call::Kill, false)),
    ];
    let steps = (0u32..13).prop_flat_map(|power| (1u16 << power)..(2u16 << power));
    (side(), first, steps, meanwhile).prop_map(|(side, call, steps, (meanwhile, by_other))| {
        let whose = if by_other { side.other() } else { side };
        [Op { cut: Some(steps), ..Op::new(side, 0, call) }, Op::new(whose, 0, meanwhile)]
    })
}

/// What edges a set tells of while bytes go in one direction only, and a lane opens.
fn edges() -> impl Strategy<Value = Vec<Op>> {
    let how = prop::sample::select(vec![Registered::Edge, Registered::EdgeIn, Registered::OneShot]);
    (side(), side(), how, 1u16..40, 1usize..300).prop_map(|(whose, from, how, rounds, size)| {
        let look = Op::new(whose, 0, Call::Look(LookBy::Epoll));
        let pour = Op::new(from, 0, Call::Pour { rounds, size });
        vec![Op::new(whose, 0, Call::Register(how)), look, pour, look, look]
    })
}

/// A side is stopped, and the other one goes on.
fn stopped(raw: bool) -> impl Strategy<Value = Vec<Op>> {
    (side(), prop::collection::vec(call(raw), 1..5), 0u16..40).prop_map(|(side, calls, ms)| {
        let others = calls.into_iter().map(|call| Op::new(side.other(), 0, call));
        let wait = Op::new(side, 0, Call::Meddle(Meddle::Wait(ms)));
        std::iter::once(Op::new(side, 0, Call::Stop))
            .chain(others)
            .chain([wait, Op::new(side, 0, Call::Continue)])
            .collect()
    })
}

/// A side is killed, and the other one finds out.
fn killed() -> impl Strategy<Value = Vec<Op>> {
    let finds = prop_oneof![
        2 => look_by().prop_map(Call::Look),
        2 => (recv_by(), size()).prop_map(|(by, n)| Call::Recv(by, n)),
    ];
    (side(), prop::collection::vec(finds, 1..6)).prop_map(|(side, calls)| {
        let others = calls.into_iter().map(|call| Op::new(side.other(), 0, call));
        std::iter::once(Op::new(side, 0, Call::Kill)).chain(others).collect()
    })
}

/// A side ends its stream, or what it reads, and both go on.
fn ended(raw: bool) -> impl Strategy<Value = Vec<Op>> {
    let end = prop::sample::select(vec![End::ShutWr, End::ShutWr, End::ShutRd, End::ShutBoth, End::Close]);
    let after = prop::collection::vec((side(), call(raw)), 1..6);
    (side(), end, after).prop_map(|(side, end, after)| {
        let after = after.into_iter().map(|(side, call)| Op::new(side, 0, call));
        std::iter::once(Op::new(side, 0, Call::Finish(end))).chain(after).collect()
    })
}

/// Urgent data, and looks at it.
fn urgent() -> impl Strategy<Value = Vec<Op>> {
    let before = prop::sample::select(vec![
        Call::Set(Opt::Owner),
        Call::Set(Opt::OobInline(true)),
        Call::Wait(WaitBy::Urgent),
        Call::Look(LookBy::AtMark),
    ]);
    let after = prop_oneof![
        3 => prop::sample::select(vec![LookBy::AtMark, LookBy::Urgents, LookBy::Poll, LookBy::Select, LookBy::Fionread])
            .prop_map(Call::Look),
        2 => Just(Call::Recv(RecvBy::Oob, 1)),
        4 => (recv_by(), size()).prop_map(|(by, n)| Call::Recv(by, n)),
        2 => (send_by(), size()).prop_map(|(by, n)| Call::Send(by, n)),
    ];
    let before = prop::collection::vec(before, 0..3);
    (side(), before, 1usize..500, prop::collection::vec(after, 1..8)).prop_map(|(side, before, n, after)| {
        let receiver = side.other();
        let before = before.into_iter().map(|call| Op::new(receiver, 0, call));
        let after = after
            .into_iter()
            .map(|call| Op::new(if matches!(call, Call::Send(..)) { side } else { receiver }, 0, call));
        before.chain([Op::new(side, 0, Call::Send(SendBy::Oob, n))]).chain(after).collect()
    })
}

/// What takes connections back to TCP for good, some calls, and a new connection.
fn leaving(raw: bool) -> impl Strategy<Value = Vec<Op>> {
    let leave = prop_oneof![
        2 => Just(Call::Exec),
        2 => Just(Call::Look(LookBy::Set)),
        1 => Just(Call::Look(LookBy::Nested)),
        2 => Just(Call::Fork(Child::LooksAtSet)),
        1 => (1usize..4000).prop_map(|n| Call::Send(SendBy::Ring, n)),
        1 => (1usize..4000).prop_map(|n| Call::Recv(RecvBy::Ring, n)),
        1 => Just(Call::DupOver(Over::Set)),
    ];
    let registered = prop::sample::select(vec![Registered::Level, Registered::LevelIn, Registered::LevelIn]);
    let others = prop::collection::vec((side(), call(raw)), 1..6);
    (side(), leave, registered, others, 20u16..60).prop_map(|(side, leave, registered, others, rounds)| {
        let op = |call| Op::new(side, 0, call);
        let others = others.into_iter().map(|(side, call)| Op::new(side, 0, call));
        let close = Side::BOTH.map(|side| Op::new(side, 0, Call::Finish(End::Close)));
        let open = op(Call::Open { nonblock: false, nagle: false, family: Family::V4 });
        [op(Call::Register(registered)), op(leave)]
            .into_iter()
            .chain(others)
            .chain(close)
            .chain([open, op(Call::Echo { rounds, size: 50 })])
            .collect()
    })
}

/// A part of a program. After what ends a lane there are mostly exchanges, by which another one comes.
pub fn part(raw: bool) -> BoxedStrategy<Vec<Op>> {
    let conn = prop_oneof![5 => Just(0u8), 1 => 1..CONNS];
    let plain = (side(), conn, call(raw), 30u16..100).prop_map(|(side, conn, call, rounds)| {
        let op = |call| Op::new(side, conn, call);
        let again = op(Call::Echo { rounds, size: 50 });
        match call {
            Call::Open { .. } | Call::Meddle(Meddle::Revoke | Meddle::KillBroker) => {
                std::iter::once(op(call)).chain(earning(conn, rounds, 4, 50)).collect()
            }
            Call::Meddle(Meddle::Off) => {
                let few = Call::Echo { rounds: rounds / 20, size: 50 };
                vec![op(call), op(few), op(Call::Meddle(Meddle::On)), again]
            }
            Call::Meddle(Meddle::StopBroker) => {
                let few = Call::Echo { rounds: rounds / 4, size: 50 };
                vec![op(call), op(few), op(Call::Meddle(Meddle::ContinueBroker))]
            }
            call => vec![op(call)],
        }
    });
    prop_oneof![
        400 => plain,
        24 => cut().prop_map(|pair| pair.to_vec()),
        8 => edges(),
        6 => stopped(raw),
        4 => ended(raw),
        6 => options::told(),
        1 => options::corked(),
        1 => options::delayed(),
        2 => options::impatient(),
        3 => options::peeks(),
        2 => urgent(),
        1 => killed(),
        4 => leaving(raw),
        5 => sharing::branch(raw),
        1 => sharing::share(raw),
        2 => sharing::twin(raw),
        2 => sharing::signalled(),
        2 => sharing::broken(),
        1 => sharing::lingering(),
    ]
    .boxed()
}

/// Exchanges by which a lane opens, and more on it: the broker answers within a millisecond or so, in which TCP would make many.
fn earning(conn: u8, rounds: u16, ms: u16, size: usize) -> [Op; 3] {
    let echo = |rounds| Call::Echo { rounds, size };
    [echo(rounds / 5), Call::Meddle(Meddle::Wait(ms)), echo(rounds + rounds / 2)]
        .map(|call| Op::new(Side::Client, conn, call))
}

/// Whether a call keeps the connection on TCP from then on.
fn bars(call: Call) -> bool {
    match call {
        Call::Send(by, _) => matches!(by, SendBy::Splice | SendBy::Oob | SendBy::Ring),
        Call::Recv(by, _) => matches!(by, RecvBy::Splice | RecvBy::Ring),
        Call::Set(opt) => opt.bars(),
        Call::Look(by) => by == LookBy::Mapped,
        _ => false,
    }
}

/// Parts of a program, and where a connection has been kept on TCP for some of them, a new one: most calls are to be made on lanes.
pub fn joined(parts: impl IntoIterator<Item = Vec<Op>>) -> Vec<Op> {
    const SOME: u32 = 4;
    let (mut all, mut barred) = (Vec::new(), [0u32; CONNS as usize]);
    for part in parts {
        for op in &part {
            let since = &mut barred[usize::from(op.conn)];
            *since = if matches!(op.call, Call::Open { .. }) {
                0
            } else {
                *since + u32::from(bars(op.call) || *since > 0)
            };
        }
        all.extend(part);
        for (conn, since) in (0..CONNS).zip(&mut barred).filter(|(_, since)| **since > SOME) {
            *since = 0;
            let op = |side, call| Op::new(side, conn, call);
            all.extend(Side::BOTH.map(|side| op(side, Call::Finish(End::Close))));
            all.push(op(Side::Client, Call::Open { nonblock: false, nagle: false, family: Family::V4 }));
            all.extend(earning(conn, 60, 4, 50));
        }
    }
    all
}

/// A program. It begins with an open connection, and mostly with exchanges after which a lane may open: so does each connection that comes
/// later.
pub fn program(longest: usize, raw: bool) -> impl Strategy<Value = Vec<Op>> {
    // Few, so that a lane opens later, or long enough for one to open within.
    let begin = prop_oneof![
        1 => (0u16..12).prop_map(|rounds| (rounds, 0)),
        1 => (60u16..140).prop_map(|rounds| (rounds, 0)),
        6 => (60u16..140, 3u16..6),
    ];
    let first =
        (any::<bool>(), family(), begin, 1usize..300).prop_map(|(nonblock, family, (rounds, ms), size)| {
            let op = |call| Op::new(Side::Client, 0, call);
            let open = op(Call::Open { nonblock, nagle: false, family });
            match (rounds, ms) {
                (0, _) => vec![open],
                (rounds, 0) => vec![open, op(Call::Echo { rounds, size })],
                (rounds, ms) => std::iter::once(open).chain(earning(0, rounds, ms, size)).collect(),
            }
        });
    let shows_end = prop::bool::weighted(0.2);
    (first, prop::collection::vec(part(raw), 1..longest), shows_end).prop_map(|(mut all, rest, shows_end)| {
        all.extend(joined(rest));
        if shows_end {
            let looks =
                [LookBy::Flags, LookBy::PollEach, LookBy::Fionread, LookBy::TcpState, LookBy::SoError];
            let both = |by| Side::BOTH.map(|side| Op::new(side, 0, Call::Look(by)));
            all.extend(looks.into_iter().flat_map(both));
        }
        few_cuts(all)
    })
}
