//! System calls of the library's own that the kernel refuses: which of them, and with what error.
//!
//! A filter in the processes under test hands each such call to the driver ([`crate::warden`]), which lets it pass or not. The program must
//! go on as on TCP.

use std::fmt;

use proptest::prelude::prop;
use proptest::strategy::{BoxedStrategy, Just, Strategy, Union};
use serde::{Deserialize, Serialize};

use crate::op::{Call, End, Family, LookBy, Meddle, Op, Registered, Side, WaitBy};

/// A call of the library's own, made for nobody else.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Own {
    /// A doorbell comes into an epoll set.
    Bell,
    /// An exclusive registration is put in again, as one of a lane.
    Entry,
    /// eventfd2: a doorbell is made.
    NewBell,
    /// epoll_create1: what a thread sleeps on.
    NewSet,
    Memfd,
    /// mmap of shared memory.
    Map,
    /// sendmsg to the broker,
    Tell,
    /// and recvmsg from it.
    Hear,
    TcpInfo,
    Cookie,
    /// ioctl SIOCINQ.
    Unread,
}

impl Own {
    pub const ALL: [Self; 11] = [
        Self::Bell,
        Self::Entry,
        Self::NewBell,
        Self::NewSet,
        Self::Memfd,
        Self::Map,
        Self::Tell,
        Self::Hear,
        Self::TcpInfo,
        Self::Cookie,
        Self::Unread,
    ];

    /// What the kernel, or a filter of system calls, may say.
    fn errors(self) -> &'static [i32] {
        match self {
            Self::Bell | Self::Entry => &[libc::ENOMEM, libc::ENOSPC],
            Self::NewBell | Self::NewSet | Self::Memfd => &[libc::EMFILE, libc::ENOMEM, libc::EPERM],
            Self::Map => &[libc::ENOMEM],
            Self::Tell => &[libc::ENOBUFS, libc::ETOOMANYREFS, libc::ENOMEM, libc::EPERM],
            Self::Hear => &[libc::ENOMEM, libc::EPERM],
            Self::TcpInfo | Self::Cookie => &[libc::ENOBUFS, libc::EPERM],
            Self::Unread => &[libc::EPERM],
        }
    }

    /// How many a short program makes, or so.
    fn of_a_program(self) -> u16 {
        match self {
            Self::Bell | Self::Entry | Self::NewSet => 2,
            Self::NewBell => 6,
            Self::Memfd | Self::Cookie => 5,
            Self::Map | Self::Tell => 14,
            Self::Hear => 30,
            Self::TcpInfo | Self::Unread => 40,
        }
    }
}

/// So many such calls of the processes of a side fail, from the `nth` on, which counts from 0.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    pub side: Side,
    pub call: Own,
    pub nth: u16,
    pub times: u16,
    pub errno: i32,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { side, call, nth, times, errno } = self;
        write!(
            f,
            "{side:?} {call:?}, {times} from the {nth}th on: {}",
            std::io::Error::from_raw_os_error(*errno)
        )
    }
}

/// What goes wrong in one program.
pub fn failures() -> impl Strategy<Value = Vec<Failure>> {
    let side = prop::sample::select(Side::BOTH.to_vec());
    // Of some there are few in a program, and of others many.
    let rare = [Own::Bell, Own::Entry, Own::NewSet, Own::Unread];
    let call = prop::sample::select([&Own::ALL[..], &rare, &rare].concat());
    let one = (side, call).prop_flat_map(|(side, call)| {
        let times = Union::new_weighted(vec![
            (5, (1u16..2).boxed()),
            (3, (2u16..12).boxed()),
            (1, Just(u16::MAX).boxed()),
        ]);
        // By then it can be put in again, else a later one of the program's own would be taken for it.
        let most = if call == Own::Entry { 3 } else { u16::MAX };
        let errno = prop::sample::select(call.errors().to_vec());
        (0..call.of_a_program(), times, errno).prop_map(move |(nth, times, errno)| Failure {
            side,
            call,
            nth,
            times: times.min(most),
            errno,
        })
    });
    // Where much fails there is no lane, and nothing else to see.
    Union::new_weighted(vec![(3, 1usize..2), (1, 2usize..4)])
        .prop_flat_map(move |n| prop::collection::vec(one.clone(), n))
}

/// The program without what goes between the instructions of a call, or into it: a filter makes calls interruptible that never are.
pub fn tame(mut program: Vec<Op>) -> Vec<Op> {
    program.iter_mut().for_each(|op| op.cut = None);
    let is_left_out = |call| {
        matches!(call, Call::Signal(_) | Call::Alarm(_) | Call::Masked(..) | Call::Branch | Call::KillBranch)
            || matches!(call, Call::Set(opt) if opt.is_async())
    };
    program.retain(|op| !is_left_out(op.call));
    program
}

/// A program that waits in vain again and again while connections beside it come and go: a wait that should be a sleep takes no CPU time, and
/// what comes next is heard of.
pub fn waits() -> impl Strategy<Value = Vec<Op>> {
    let side = || prop::sample::select(Side::BOTH.to_vec());
    let registered = || {
        use Registered::{Edge, EdgeIn, Exclusive, Level, LevelIn};
        prop::sample::select(vec![Edge, EdgeIn, Exclusive, Exclusive, Level, LevelIn])
            .prop_map(Call::Register)
    };
    let wait = || {
        use WaitBy::{AllEpoll, AllPoll, Epoll, Poll, Recv, Select, Set};
        let by = prop::sample::select(vec![AllEpoll, AllPoll, Epoll, Poll, Recv, Select, Set, Set, Set]);
        (by, 30u16..60).prop_map(|(by, ms)| Call::Patience(by, ms))
    };
    let open = || Call::Open { nonblock: false, nagle: false, family: Family::V4 };
    let echo = || (10u16..50, 1usize..200).prop_map(|(rounds, size)| Call::Echo { rounds, size });
    let anew = (side(), echo()).prop_map(move |(side, echo)| {
        let one = |call| Op::new(side, 1, call);
        vec![
            one(Call::Finish(End::Close)),
            Op::new(side.other(), 1, Call::Finish(End::Close)),
            one(open()),
            one(echo),
        ]
    });
    let one = |call: BoxedStrategy<Call>| {
        (side(), call).prop_map(|(side, call)| vec![Op::new(side, 0, call)]).boxed()
    };
    let again = (side(), registered()).prop_map(|(side, call)| {
        [call, Call::Look(LookBy::Epoll)].map(|call| Op::new(side, 0, call)).to_vec()
    });
    let step = Union::new_weighted(vec![
        (6, one(wait().boxed())),
        (3, one(echo().boxed())),
        (2, again.boxed()),
        (3, anew.boxed()),
        (1, one(Just(Call::Meddle(Meddle::Revoke)).boxed())),
        (1, one(Just(Call::Meddle(Meddle::KillBroker)).boxed())),
    ]);
    let begin = (side(), registered(), echo(), wait());
    (begin, prop::collection::vec(step, 3..12)).prop_map(move |((side, registered, echo, wait), steps)| {
        let op = |call| Op::new(side, 0, call);
        let look = op(Call::Look(LookBy::Epoll));
        // A set of which no wait was seen keeps its connections from lanes.
        let begin = vec![op(open()), op(registered), look, op(echo), Op::new(side, 1, open()), op(wait)];
        begin.into_iter().chain(steps.into_iter().flatten()).collect()
    })
}
