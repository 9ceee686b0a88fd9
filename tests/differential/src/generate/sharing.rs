//! What comes together where several processes or numbers have a connection, and where signals tell of it.

use proptest::prelude::*;

use super::{call, recv_by, send_by, side, size};
use crate::op::*;

/// Both ends are closed, by all who have them, and there is a new connection.
pub(super) fn anew() -> impl Iterator<Item = Op> {
    let op = |side, call| Op::new(side, 0, call);
    let close = Side::BOTH.into_iter().flat_map(move |side| [op(side, Call::Finish(End::Close)); 2]);
    let open = Call::Open { nonblock: false, nagle: false, family: Family::V4 };
    close.chain([op(Side::Client, open)]).chain(super::earning(0, 40, 4, 50))
}

/// A child lives on with the connections, and both use them; it is closed in each order, or the child is killed.
pub(super) fn branch(raw: bool) -> impl Strategy<Value = Vec<Op>> {
    let small = || prop_oneof![3 => 1usize..64, 1 => 64usize..2000];
    let step = prop_oneof![
        5 => (side(), send_by(), small()).prop_map(|(side, by, n)| (side, Call::Send(by, n))),
        5 => (side(), recv_by(), small()).prop_map(|(side, by, n)| (side, Call::Recv(by, n))),
        5 => (side(), call(raw)),
        4 => (side(), 1u16..20, 1usize..300).prop_map(|(side, rounds, size)| (side, Call::Echo { rounds, size })),
        8 => side().prop_map(|side| (side, Call::Swap)),
        1 => side().prop_map(|side| (side, Call::Finish(End::Close))),
        1 => side().prop_map(|side| (side, Call::KillBranch)),
        1 => side().prop_map(|side| (side, Call::Branch)),
        1 => Just((Side::Client, Call::Meddle(Meddle::Revoke))),
    ];
    let after = prop_oneof![
        1 => Just(vec![Call::KillBranch]),
        1 => Just(vec![Call::Finish(End::Close)]),
        1 => Just(vec![Call::Swap, Call::Finish(End::Close)]),
        1 => Just(vec![]),
    ];
    (side(), prop::collection::vec(step, 3..12), after).prop_map(|(side, steps, after)| {
        let steps = steps.into_iter().map(|(side, call)| Op::new(side, 0, call));
        let after = after.into_iter().map(|call| Op::new(side, 0, call));
        std::iter::once(Op::new(side, 0, Call::Branch))
            .chain(steps)
            .chain(after)
            .chain([Op::new(side, 0, Call::Echo { rounds: 30, size: 50 })])
            .collect()
    })
}

/// The side's other process is given the connection, and this one keeps it.
pub(super) fn share(raw: bool) -> impl Strategy<Value = Vec<Op>> {
    let step = prop_oneof![
        4 => (side(), call(raw)),
        4 => side().prop_map(|side| (side, Call::Swap)),
        1 => side().prop_map(|side| (side, Call::Finish(End::Close))),
    ];
    (side(), prop::collection::vec(step, 2..9)).prop_map(|(side, steps)| {
        let steps = steps.into_iter().map(|(side, call)| Op::new(side, 0, call));
        std::iter::once(Op::new(side, 0, Call::Share)).chain(steps).chain(anew()).collect()
    })
}

/// The connection has two numbers; the one or the other is closed first.
pub(super) fn twin(raw: bool) -> impl Strategy<Value = Vec<Op>> {
    let step = prop_oneof![
        6 => (side(), call(raw)),
        3 => side().prop_map(|side| (side, Call::Turn)),
        1 => side().prop_map(|side| (side, Call::Finish(End::Close))),
    ];
    (side(), prop::collection::vec(step, 2..9), any::<bool>()).prop_map(|(side, steps, turns)| {
        let op = |call| Op::new(side, 0, call);
        let steps = steps.into_iter().map(|(side, call)| Op::new(side, 0, call));
        let turn = turns.then(|| op(Call::Turn));
        std::iter::once(op(Call::Twin))
            .chain(steps)
            .chain(turn)
            .chain([op(Call::Finish(End::Close)), op(Call::Echo { rounds: 20, size: 50 })])
            .chain(anew())
            .collect()
    })
}

/// Signals tell of what comes (O_ASYNC).
pub(super) fn signalled() -> impl Strategy<Value = Vec<Op>> {
    let owner = prop::sample::select(vec![Opt::Owner, Opt::OwnerThread]);
    let on = prop::sample::select(vec![Opt::Async(true), Opt::AsyncIoctl(true)]);
    let step = prop_oneof![
        3 => (send_by(), size()).prop_map(|(by, n)| (true, Call::Send(by, n))),
        2 => (recv_by(), size()).prop_map(|(by, n)| (false, Call::Recv(by, n))),
        4 => Just((false, Call::Look(LookBy::Arrivals))),
        1 => (send_by(), size()).prop_map(|(by, n)| (false, Call::Send(by, n))),
        1 => Just((true, Call::Finish(End::ShutWr))),
        1 => Just((true, Call::Finish(End::Close))),
        1 => any::<bool>().prop_map(|on| (false, Call::Set(Opt::OwnSignal(on)))),
        1 => any::<bool>().prop_map(|on| (false, Call::Set(Opt::Async(on)))),
    ];
    (side(), owner, on, any::<bool>(), prop::collection::vec(step, 3..10)).prop_map(
        |(side, owner, on, own_signal, steps)| {
            let op = |call| Op::new(side, 0, call);
            let steps = steps
                .into_iter()
                .map(|(by_other, call)| Op::new(if by_other { side.other() } else { side }, 0, call));
            [
                Call::Set(owner),
                Call::Set(Opt::OwnSignal(own_signal)),
                Call::Set(on),
                Call::Look(LookBy::Arrivals),
            ]
            .into_iter()
            .map(op)
            .chain(steps)
            .chain(anew())
            .collect()
        },
    )
}

/// Sends to nobody, which SIGPIPE tells of.
pub(super) fn broken() -> impl Strategy<Value = Vec<Op>> {
    let end = prop::sample::select(vec![
        (true, End::ShutWr),
        (true, End::ShutBoth),
        (false, End::Close),
        (false, End::ShutRd),
        (false, End::ShutBoth),
    ]);
    let step = prop_oneof![
        4 => (send_by(), 1usize..300).prop_map(|(by, n)| Call::Send(by, n)),
        1 => Just(Call::Look(LookBy::SendNothing)),
        1 => Just(Call::Look(LookBy::SoError)),
        1 => (recv_by(), 1usize..300).prop_map(|(by, n)| Call::Recv(by, n)),
    ];
    (side(), end, prop::collection::vec(step, 2..6)).prop_map(|(side, (by_self, end), steps)| {
        let whose = if by_self { side } else { side.other() };
        std::iter::once(Op::new(whose, 0, Call::Finish(end)))
            .chain(steps.into_iter().map(|call| Op::new(side, 0, call)))
            .chain(anew())
            .collect()
    })
}

/// A close waits for what was sent, or resets, in each order of both ends.
pub(super) fn lingering() -> impl Strategy<Value = Vec<Op>> {
    let linger = prop::sample::select(vec![
        Opt::LingerFor(1),
        Opt::LingerFor(1),
        Opt::LingerFor(0),
        Opt::Linger(true),
        Opt::Linger(false),
    ]);
    let end = || prop::sample::select(vec![End::ShutWr, End::ShutRd, End::ShutBoth, End::Close, End::Close]);
    let step = (
        side(),
        prop_oneof![
            2 => end().prop_map(Call::Finish),
            1 => (send_by(), size()).prop_map(|(by, n)| Call::Send(by, n)),
            1 => (recv_by(), size()).prop_map(|(by, n)| Call::Recv(by, n)),
            1 => prop::sample::select(vec![LookBy::Poll, LookBy::TcpState, LookBy::SoError, LookBy::Fionread])
                .prop_map(Call::Look),
        ],
    );
    (side(), linger, send_by(), size(), prop::collection::vec(step, 2..8)).prop_map(
        |(side, linger, by, n, steps)| {
            [Call::Set(linger), Call::Send(by, n)]
                .into_iter()
                .map(|call| Op::new(side, 0, call))
                .chain(steps.into_iter().map(|(side, call)| Op::new(side, 0, call)))
                .chain(anew())
                .collect()
        },
    )
}
