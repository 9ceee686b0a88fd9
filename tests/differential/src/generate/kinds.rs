//! Programs of their own kind: of one sort of traffic, or of one moment in a lane's life.

use proptest::prelude::*;

use super::{cut, earning, recv_by, send_by, short, side, size};
use crate::op::*;

/// A program of exchanges on a connection with Nagle's algorithm, in which what counts is how long each call takes.
pub fn dialogue(longest: usize) -> impl Strategy<Value = Vec<Op>> {
    let call = prop_oneof![
        6 => (1u16..12, 1usize..3000).prop_map(|(rounds, size)| Call::Echo { rounds, size }),
        1 => Just(Call::Meddle(Meddle::Revoke)),
        1 => (1u16..30).prop_map(|ms| Call::Meddle(Meddle::Wait(ms))),
    ];
    let op = (side(), call).prop_map(|(side, call)| Op::new(side, 0, call));
    (any::<bool>(), prop::collection::vec(op, 1..longest)).prop_map(|(nonblock, mut all)| {
        all.insert(0, Op::new(Side::Client, 0, Call::Open { nonblock, nagle: true, family: Family::V4 }));
        all
    })
}

/// Connections that come and go, each with some messages at its beginning, as servers have them.
pub fn fresh() -> impl Strategy<Value = Vec<Op>> {
    let exchange = prop_oneof![
        4 => (3u16..40, 2usize..9000).prop_map(|(rounds, size)| Call::Exchange { by: By::Edge, rounds, size }),
        1 => (3u16..40, 1usize..3000).prop_map(|(rounds, size)| Call::Pour { rounds, size }),
    ];
    let one = (side(), side(), 0..CONNS, exchange, any::<bool>()).prop_map(
        |(asks, first, conn, call, nonblock)| {
            let op = |side, call| Op::new(side, conn, call);
            let close = |side| op(side, Call::Finish(End::Close));
            vec![
                op(Side::Client, Call::Open { nonblock, nagle: false, family: Family::V4 }),
                op(asks, call),
                close(first),
                close(first.other()),
            ]
        },
    );
    prop::collection::vec(one, 2..10).prop_map(|all| all.into_iter().flatten().collect())
}

/// A connection whose lane opens while each lot of bytes is looked at before it is read: in `program` it opens within a first exchange of many
/// rounds, so that a look seldom falls between the grant and the switch.
pub fn switch() -> impl Strategy<Value = Vec<Op>> {
    let look = prop_oneof![
        3 => Just(LookBy::Fionread),
        2 => prop::sample::select(vec![LookBy::Poll, LookBy::Select, LookBy::Epoll, LookBy::Peek]),
    ];
    let lot = (side(), send_by(), 1usize..300, look, recv_by(), 0u16..3).prop_map(
        |(from, by, n, look, read, ms)| {
            let to = from.other();
            // The broker answers within a millisecond or so.
            let wait = (ms > 0).then(|| Op::new(from, 0, Call::Meddle(Meddle::Wait(ms))));
            let calls = [
                Op::new(from, 0, Call::Send(by, n)),
                Op::new(to, 0, Call::Look(look)),
                Op::new(to, 0, Call::Recv(read, n)),
            ];
            wait.into_iter().chain(calls).collect::<Vec<_>>()
        },
    );
    let lots = prop::collection::vec(lot, 2..16);
    (any::<bool>(), side(), 1u16..14, 1usize..300, lots).prop_map(|(nonblock, asks, rounds, size, lots)| {
        let open = Op::new(Side::Client, 0, Call::Open { nonblock, nagle: false, family: Family::V4 });
        let all = [open, Op::new(asks, 0, Call::Echo { rounds, size })];
        all.into_iter().chain(lots.into_iter().flatten()).collect()
    })
}

/// The broker is stopped while a lane opens: the half that has been told by then sends by its lane, and the other one by TCP, for as long
/// as it takes.
pub fn held() -> impl Strategy<Value = Vec<Op>> {
    let small = || (1u16..8, 1usize..300).prop_map(|(rounds, size)| Call::Echo { rounds, size });
    // The broker answers within a millisecond or so.
    let step = (side(), 1u16..3, 1usize..300).prop_map(|(asks, ms, size)| {
        [Call::Meddle(Meddle::Wait(ms)), Call::Echo { rounds: 1, size }].map(|call| Op::new(asks, 0, call))
    });
    let steps = prop::collection::vec(step, 0..6);
    let held = prop::collection::vec((side(), small()), 1..4);
    (any::<bool>(), prop::bool::weighted(0.7), (side(), 1u16..14, 1usize..300), steps, held).prop_map(
        |(nonblock, nagle, (asks, rounds, size), steps, held)| {
            let op = |side, call| Op::new(side, 0, call);
            let begin = [
                op(Side::Client, Call::Open { nonblock, nagle, family: Family::V4 }),
                op(asks, Call::Echo { rounds, size }),
            ];
            let held = held.into_iter().map(|(side, call)| op(side, call));
            begin
                .into_iter()
                .chain(steps.into_iter().flatten())
                .chain([op(asks, Call::Meddle(Meddle::StopBroker))])
                .chain(held)
                .chain([
                    op(asks, Call::Meddle(Meddle::ContinueBroker)),
                    op(asks, Call::Echo { rounds: 20, size }),
                ])
                .collect()
        },
    )
}

/// A program all whose waits are by system calls that no hook sees, as async-io's and Go's: it is on TCP all the time.
pub fn unseen(longest: usize) -> impl Strategy<Value = Vec<Op>> {
    let look = prop::sample::select(vec![LookBy::Fionread, LookBy::SoError, LookBy::Peek, LookBy::AtMark]);
    let by = prop::sample::select(vec![By::RawEdge, By::RawPoll]);
    let wait = prop::sample::select(vec![WaitBy::RawPoll, WaitBy::RawEpoll]);
    let receive = prop::sample::select(vec![RecvBy::Recv, RecvBy::Recvfrom, RecvBy::Recvmsg, RecvBy::Peek]);
    let send = prop::sample::select(vec![SendBy::Send, SendBy::Write, SendBy::Writev, SendBy::Sendmsg]);
    let call = prop_oneof![
        4 => (by, 1u16..20, 2usize..6000).prop_map(|(by, rounds, size)| Call::Exchange { by, rounds, size }),
        4 => wait.prop_map(Call::Wait),
        6 => (send, size()).prop_map(|(by, n)| Call::Send(by, n)),
        5 => (receive, size()).prop_map(|(by, n)| Call::Recv(by, n)),
        3 => look.prop_map(Call::Look),
        1 => Just(Call::Meddle(Meddle::Revoke)),
    ];
    let op = (side(), call).prop_map(|(side, call)| Op::new(side, 0, call));
    prop::collection::vec(op, 1..longest).prop_map(|mut all| {
        all.insert(
            0,
            Op::new(Side::Client, 0, Call::Open { nonblock: true, nagle: false, family: Family::V4 }),
        );
        all.insert(1, Op::new(Side::Client, 0, Call::Exchange { by: By::RawPoll, rounds: 20, size: 100 }));
        all
    })
}

/// One call that is cut, in a short program: in some state of a connection, with what shows what came of it behind.
pub fn windows() -> impl Strategy<Value = Vec<Op>> {
    // A lane that is open, or that opens meanwhile.
    let begin = prop_oneof![3 => Just((60u16, 4)), 1 => (1u16..30).prop_map(|rounds| (rounds, 0))];
    let before = prop::collection::vec((side(), short()), 0..4);
    (any::<bool>(), begin, before, cut()).prop_map(|(nonblock, (rounds, ms), before, pair)| {
        let op = |side, call| Op::new(side, 0, call);
        let open = op(Side::Client, Call::Open { nonblock, nagle: false, family: Family::V4 });
        let begin = match ms {
            0 => vec![op(Side::Client, Call::Echo { rounds, size: 50 })],
            ms => earning(0, rounds, ms, 50).to_vec(),
        };
        let looks = [
            Call::Look(LookBy::Epoll),
            Call::Look(LookBy::Poll),
            Call::Recv(RecvBy::Recv, ON_THE_WAY),
            Call::Look(LookBy::Epoll),
        ];
        let after = looks.into_iter().flat_map(|call| Side::BOTH.map(|side| op(side, call)));
        std::iter::once(open)
            .chain(begin)
            .chain(before.into_iter().map(|(side, call)| op(side, call)))
            .chain(pair)
            .chain(after)
            .chain([op(Side::Client, Call::Echo { rounds: 2, size: 50 })])
            .collect()
    })
}
