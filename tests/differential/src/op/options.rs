//! Options of a socket, and masks of signals for a wait.

use serde::{Deserialize, Serialize};

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
    Cork(bool),
    /// Never so small that what is on its way would not fit.
    RcvBuf(i32),
    SndBuf(i32),
    UserTimeout(i32),
    OobInline(bool),
    /// F_SETOWN: this process gets the signal of urgent data.
    Owner,
    /// The same of this thread, by F_SETOWN_EX.
    OwnerThread,
    /// O_ASYNC.
    Async(bool),
    /// The same by FIOASYNC.
    AsyncIoctl(bool),
    /// F_SETSIG: a signal of its own in place of SIGIO, or SIGIO.
    OwnSignal(bool),
    /// FIONBIO
    NonblockIoctl(bool),
    /// A close waits for what was sent, seconds.
    LingerFor(i32),
    TimestampNs(bool),
    Timestamping(bool),
    /// SO_SELECT_ERR_QUEUE
    ErrorsBySelect(bool),
    /// SO_MAX_PACING_RATE, so high that it is not felt.
    Pacing,
    /// IP_MINTTL, which all segments fulfil.
    MinTtl(bool),
    /// A filter that lets all pass.
    Filter(bool),
    KeepIdle(i32),
    KeepInterval(i32),
    KeepCount(i32),
    /// IPV6_ADDRFORM
    AddressForm,
    /// One that has nothing to do with the stream, of a table.
    Plain(u8),
    /// One that the library's table has nothing to do for: its level's place among [`LEVELS`], and its number.
    Unfelt(u8, u8),
    /// SO_RCVTIMEO, milliseconds: a call that receives gives up then. 0: never.
    ReceiveTimeout(u16),
    SendTimeout(u16),
    RcvBufForce(i32),
    SndBufForce(i32),
    /// SO_ATTACH_BPF: a program that lets all pass.
    Bpf,
    /// IPV6_MINHOPCOUNT, which all segments fulfil.
    MinHops(bool),
    /// TCP_NOTSENT_LOWAT: more than there ever is on its way, but in a flood.
    UnsentLowat(i32),
    /// TCP_WINDOW_CLAMP
    WindowClamp(i32),
    /// TCP_TX_DELAY, microseconds.
    SegmentDelay(u16),
    /// Time stamps as programs with a `time_t` of 64 bits ask for them: SO_TIMESTAMP_NEW and its kin.
    NewStamps(Stamps),
}

impl Opt {
    /// Whether it keeps the connection on TCP.
    pub fn bars(self) -> bool {
        matches!(
            self,
            Self::LowWater(_)
                | Self::PeekOff(_)
                | Self::Timestamps(_)
                | Self::TimestampNs(_)
                | Self::Timestamping(_)
                | Self::NewStamps(_)
                | Self::OobInline(_)
                | Self::Owner
                | Self::Async(_)
                | Self::AsyncIoctl(_)
                | Self::Pacing
                | Self::MinTtl(_)
                | Self::MinHops(_)
                | Self::Filter(_)
                | Self::Bpf
                | Self::SegmentDelay(_)
        )
    }

    /// Whether it sets O_ASYNC.
    pub fn is_async(self) -> bool {
        matches!(self, Self::Async(true) | Self::AsyncIoctl(true))
    }
}

/// Which time stamps.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stamps {
    Micro,
    Nano,
    Each,
}

/// The levels that have a table of options, in its order.
pub const LEVELS: [i32; 4] = [libc::SOL_SOCKET, libc::IPPROTO_IP, libc::IPPROTO_IPV6, libc::IPPROTO_TCP];

/// A wait with a mask of signals.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MaskBy {
    Ppoll,
    /// With another descriptor, which has nothing to tell.
    PpollBeside,
    Pselect,
    EpollPwait,
    EpollPwait2,
}

/// The signal during it, which the thread blocks but for the wait.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mask {
    /// It is pending before the wait.
    Pending,
    /// It comes meanwhile.
    Comes,
    /// It comes, and the wait blocks it, too.
    Kept,
}
