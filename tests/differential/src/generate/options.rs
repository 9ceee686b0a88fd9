//! Options of a socket, and what comes together with some of them.

use proptest::prelude::*;

use super::{recv_by, send_by, sharing, side, size};
use crate::calls::PLAINS;
use crate::op::*;
use crate::surface::UNFELT;

pub(super) fn opt() -> impl Strategy<Value = Opt> {
    let stamps = prop::sample::select(vec![Stamps::Micro, Stamps::Nano, Stamps::Each]);
    // These take the connection back to TCP.
    let back = prop_oneof![
        2 => (1i32..40).prop_map(Opt::LowWater),
        2 => (-1i32..20).prop_map(Opt::PeekOff),
        2 => any::<bool>().prop_map(Opt::Timestamps),
        1 => any::<bool>().prop_map(Opt::TimestampNs),
        1 => any::<bool>().prop_map(Opt::Timestamping),
        1 => stamps.prop_map(Opt::NewStamps),
        1 => Just(Opt::Pacing),
        1 => any::<bool>().prop_map(Opt::MinTtl),
        1 => any::<bool>().prop_map(Opt::MinHops),
        1 => any::<bool>().prop_map(Opt::Filter),
        1 => Just(Opt::Bpf),
    ];
    let own = prop_oneof![
        // With Nagle's algorithm TCP holds back what a lane shows at once (COMPLIANCE.md); `dialogue` is for it.
        Just(Opt::NoDelay(true)),
        any::<bool>().prop_map(Opt::Inq),
        any::<bool>().prop_map(Opt::KeepAlive),
        any::<bool>().prop_map(Opt::Linger),
        (0i32..2).prop_map(Opt::LingerFor),
        any::<bool>().prop_map(Opt::QuickAck),
        (65_536i32..400_000).prop_map(Opt::RcvBuf),
        (65_536i32..400_000).prop_map(Opt::SndBuf),
        (65_536i32..400_000).prop_map(Opt::RcvBufForce),
        (65_536i32..400_000).prop_map(Opt::SndBufForce),
        (65_536i32..400_000).prop_map(Opt::WindowClamp),
        (65_536i32..400_000).prop_map(Opt::UnsentLowat),
        (0i32..60_000).prop_map(Opt::UserTimeout),
        any::<bool>().prop_map(Opt::ErrorsBySelect),
        any::<bool>().prop_map(Opt::NonblockIoctl),
        any::<bool>().prop_map(Opt::OwnSignal),
        (1i32..30).prop_map(Opt::KeepIdle),
        (1i32..30).prop_map(Opt::KeepInterval),
        (1i32..9).prop_map(Opt::KeepCount),
        Just(Opt::AddressForm),
        limit().prop_map(Opt::ReceiveTimeout),
        limit().prop_map(Opt::SendTimeout),
    ];
    let unfelt = prop::sample::select(&UNFELT[..]).prop_map(|(level, name)| Opt::Unfelt(level, name));
    prop_oneof![3 => back, 8 => own, 2 => (0..PLAINS).prop_map(Opt::Plain), 3 => unfelt]
}

/// Milliseconds that a call waits, or none: for ever.
fn limit() -> impl Strategy<Value = u16> {
    prop_oneof![1 => Just(0u16), 2 => 5u16..25]
}

/// An option that changes what a call tells besides bytes, and bytes, before it and behind it.
pub(super) fn told() -> impl Strategy<Value = Vec<Op>> {
    let option = prop::sample::select(vec![
        Opt::Inq(true),
        Opt::Inq(true),
        Opt::Inq(false),
        Opt::Timestamps(true),
        Opt::PeekOff(0),
    ]);
    let by = prop::sample::select(vec![RecvBy::Recvmsg, RecvBy::Recvmmsg, RecvBy::Peek, RecvBy::Trunc]);
    let receives = prop::collection::vec((by, size()), 1..4);
    (side(), option, send_by(), size(), receives).prop_map(|(side, option, by, n, receives)| {
        let op = |call| Op::new(side, 0, call);
        let receives = receives.into_iter().map(|(by, n)| op(Call::Recv(by, n)));
        [op(Call::Set(option)), Op::new(side.other(), 0, Call::Send(by, n))]
            .into_iter()
            .chain(receives)
            .collect()
    })
}

/// Looks that go on where the last one ended (SO_PEEK_OFF), among reads, one of which may wait.
pub(super) fn peeks() -> impl Strategy<Value = Vec<Op>> {
    let peek = prop::sample::select(vec![RecvBy::Peek, RecvBy::PeekMsg, RecvBy::PeekTrunc]);
    let step = prop_oneof![
        3 => (send_by(), 1usize..300).prop_map(|(by, n)| (true, Call::Send(by, n))),
        4 => (peek, 1usize..200).prop_map(|(by, n)| (false, Call::Recv(by, n))),
        2 => (recv_by(), 1usize..100).prop_map(|(by, n)| (false, Call::Recv(by, n))),
    ];
    let wait = prop_oneof![1 => Just(None), 1 => Just(Some(Call::Wait(WaitBy::Read)))];
    (side(), 0i32..20, wait, prop::collection::vec(step, 3..9)).prop_map(|(side, at, wait, steps)| {
        let op = |by_other, call| Op::new(if by_other { side.other() } else { side }, 0, call);
        std::iter::once(op(false, Call::Set(Opt::PeekOff(at))))
            .chain(wait.map(|call| op(false, call)))
            .chain(steps.into_iter().map(|(by_other, call)| op(by_other, call)))
            .collect()
    })
}

/// Bytes that TCP_CORK alone holds back, until it is off.
pub(super) fn corked() -> impl Strategy<Value = Vec<Op>> {
    let sends = prop::collection::vec((send_by(), 1usize..2000), 1..5);
    (side(), sends, recv_by(), size()).prop_map(|(side, sends, by, n)| {
        let op = |call| Op::new(side, 0, call);
        let sends = sends.into_iter().map(|(by, n)| op(Call::Send(by, n)));
        std::iter::once(op(Call::Set(Opt::Cork(true))))
            .chain(sends)
            .chain([op(Call::Set(Opt::Cork(false))), Op::new(side.other(), 0, Call::Recv(by, n))])
            .collect()
    })
}

/// Segments that leave later, which takes a connection back to TCP; and a new one.
pub(super) fn delayed() -> impl Strategy<Value = Vec<Op>> {
    (side(), side(), 1u16..3000, 1u16..12, 1usize..3000).prop_map(|(side, asks, us, rounds, size)| {
        let set = |us| Op::new(side, 0, Call::Set(Opt::SegmentDelay(us)));
        [set(us), Op::new(asks, 0, Call::Echo { rounds, size }), set(0)]
            .into_iter()
            .chain(sharing::anew())
            .collect()
    })
}

/// Calls that would wait give up, as SO_RCVTIMEO says.
pub(super) fn impatient() -> impl Strategy<Value = Vec<Op>> {
    let step = prop_oneof![
        3 => (recv_by(), size()).prop_map(|(by, n)| (false, Call::Recv(by, n))),
        2 => prop::sample::select(vec![RecvBy::Read, RecvBy::WaitAll, RecvBy::Readv])
            .prop_map(|by| (false, Call::Recv(by, 2000))),
        3 => (send_by(), 1usize..1500).prop_map(|(by, n)| (true, Call::Send(by, n))),
        1 => (1u16..20, 1usize..300).prop_map(|(rounds, size)| (true, Call::Echo { rounds, size })),
    ];
    (side(), limit(), prop::collection::vec(step, 2..7)).prop_map(|(side, ms, steps)| {
        let op = |by_other, call| Op::new(if by_other { side.other() } else { side }, 0, call);
        [op(false, Call::Nonblock(false)), op(false, Call::Set(Opt::ReceiveTimeout(ms)))]
            .into_iter()
            .chain(steps.into_iter().map(|(by_other, call)| op(by_other, call)))
            .chain([op(false, Call::Set(Opt::ReceiveTimeout(0)))])
            .collect()
    })
}
