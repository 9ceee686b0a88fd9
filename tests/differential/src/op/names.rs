//! Which of the kernel's names a call uses, as the library's table has them (docs/sockets.md). A new call or option says so here.

use super::*;

/// What every program does.
pub const OF_EACH: &[&str] = &[
    "socket",
    "connect",
    "accept",
    "accept4",
    "close",
    "setsockopt",
    "getsockopt",
    "fcntl",
    "ioctl",
    "F_SETFL",
    "exit",
    "exit_group",
    "epoll_create1",
    "epoll_ctl",
    "TCP_NODELAY",
    "SO_LINGER",
    "futex",
    "clone3",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "tgkill",
    "seccomp",
    "MSG_DONTWAIT",
    "MSG_NOSIGNAL",
];

pub fn of(call: Call) -> Vec<&'static str> {
    match call {
        Call::Send(by, _) => of_send(by).to_vec(),
        Call::Recv(by, _) => of_recv(by).to_vec(),
        Call::Look(by) => of_look(by).to_vec(),
        Call::Wait(by) | Call::Patience(by, _) | Call::Alarm(by) => of_wait(by).to_vec(),
        Call::Masked(by, ..) => match by {
            MaskBy::Ppoll | MaskBy::PpollBeside => vec!["ppoll"],
            MaskBy::Pselect => vec!["pselect6"],
            MaskBy::EpollPwait => vec!["epoll_pwait"],
            MaskBy::EpollPwait2 => vec!["epoll_pwait2"],
        },
        Call::Set(opt) => of_option(opt).to_vec(),
        Call::Corked { by, .. } => match by {
            Uncork::More | Uncork::MoreOff => vec!["MSG_MORE"],
            Uncork::Off | Uncork::NoDelay => vec!["TCP_CORK"],
        },
        Call::Lend { .. } => vec!["MSG_ZEROCOPY", "SO_ZEROCOPY", "MSG_ERRQUEUE"],
        Call::Finish(end) => match end {
            End::ShutWr | End::ShutRd | End::ShutBoth => vec!["shutdown"],
            End::Close | End::RawClose => vec!["close"],
            End::Range => vec!["close_range"],
            End::Over => vec!["dup2"],
        },
        Call::DupOver(over) => match over {
            Over::Next => vec!["F_DUPFD"],
            Over::Conn(_) | Over::Set | Over::Same | Over::Far => vec!["dup2", "dup3"],
        },
        Call::Dup | Call::Twin => vec!["dup"],
        Call::Pass | Call::Hand | Call::Share => vec!["sendmsg", "recvmsg"],
        Call::Fork(child) => match child {
            Child::Execs => vec!["fork", "execve"],
            Child::Spawns => vec!["clone"],
            Child::Vforks => vec!["vfork"],
            _ => vec!["fork"],
        },
        Call::Exec => vec!["execve"],
        Call::Few(_) => vec!["prlimit64"],
        Call::Branch => vec!["fork"],
        Call::Open { .. }
        | Call::Echo { .. }
        | Call::Pour { .. }
        | Call::Exchange { .. }
        | Call::Flood { .. }
        | Call::Torrent { .. }
        | Call::Register(_)
        | Call::Turn
        | Call::Swap
        | Call::KillBranch
        | Call::Nonblock(_)
        | Call::Signal(_)
        | Call::Kill
        | Call::Stop
        | Call::Continue
        | Call::Meddle(_) => Vec::new(),
    }
}

fn of_send(by: SendBy) -> &'static [&'static str] {
    match by {
        SendBy::Send | SendBy::Loud => &["sendto"],
        SendBy::Write => &["write"],
        SendBy::Writev => &["writev"],
        SendBy::Sendmsg => &["sendmsg"],
        SendBy::Sendmmsg | SendBy::Many => &["sendmmsg"],
        SendBy::Batch => &["sendmmsg", "MSG_BATCH"],
        SendBy::Sendfile | SendBy::SendfileOn => &["sendfile"],
        SendBy::Splice => &["splice"],
        SendBy::Ring => &["io_uring_setup", "io_uring_enter"],
        SendBy::Oob => &["MSG_OOB"],
        SendBy::Pwritev2 => &["pwritev2"],
        SendBy::Flagged => &["MSG_DONTROUTE", "MSG_CONFIRM", "MSG_EOR"],
    }
}

fn of_recv(by: RecvBy) -> &'static [&'static str] {
    match by {
        RecvBy::Recv | RecvBy::Recvfrom | RecvBy::Once => &["recvfrom"],
        RecvBy::Read => &["read"],
        RecvBy::Readv => &["readv"],
        RecvBy::Recvmsg => &["recvmsg"],
        RecvBy::Recvmmsg | RecvBy::Many => &["recvmmsg"],
        RecvBy::Splice => &["splice"],
        RecvBy::Peek | RecvBy::PeekMsg => &["MSG_PEEK"],
        RecvBy::Trunc | RecvBy::TruncMsg => &["MSG_TRUNC"],
        RecvBy::WaitAll => &["MSG_WAITALL"],
        RecvBy::Ring => &["io_uring_setup", "io_uring_enter"],
        RecvBy::Oob => &["MSG_OOB"],
        RecvBy::Preadv2 => &["preadv2"],
        RecvBy::ForOne => &["MSG_WAITFORONE"],
        RecvBy::Cloexec => &["MSG_CMSG_CLOEXEC"],
        RecvBy::PeekTrunc => &["MSG_PEEK", "MSG_TRUNC"],
        RecvBy::PeekWhole => &["MSG_PEEK", "MSG_WAITALL"],
    }
}

fn of_look(by: LookBy) -> &'static [&'static str] {
    match by {
        LookBy::Fionread => &["FIONREAD", "TIOCINQ", "SIOCINQ"],
        LookBy::Poll | LookBy::PollRdhup | LookBy::PollEach | LookBy::AllPoll => &["poll"],
        LookBy::Select | LookBy::AllSelect => &["select"],
        LookBy::Epoll | LookBy::AllEpoll | LookBy::Set | LookBy::Nested => &["epoll_wait"],
        LookBy::SoError => &["SO_ERROR"],
        LookBy::Peek => &["MSG_PEEK"],
        LookBy::RecvNothing => &["recvfrom"],
        LookBy::AtMark => &["SIOCATMARK"],
        LookBy::Names => &["SO_TYPE", "SO_DOMAIN", "SO_PROTOCOL", "SO_ACCEPTCONN"],
        LookBy::Peers => &["getsockname", "getpeername"],
        LookBy::Urgents | LookBy::Arrivals => &[],
        LookBy::Flags => &["F_GETFL", "F_GETFD", "F_GETSIG", "F_GETOWN"],
        LookBy::Refused => &["tee", "pread64", "lseek", "vmsplice", "copy_file_range"],
        LookBy::Errors => &["MSG_ERRQUEUE"],
        LookBy::SendNothing => &["sendto", "write"],
        LookBy::TcpState => &["TCP_INFO"],
        LookBy::Kinds => &["signalfd4", "eventfd2", "timerfd_create", "epoll_create"],
        LookBy::CloseOnExec => &["close_range", "FIOCLEX", "FIONCLEX", "F_DUPFD_CLOEXEC", "F_SETFD"],
        LookBy::Empty => &["readv", "writev", "sendfile"],
        LookBy::Faults => &["recvfrom", "sendto", "recvmsg"],
        LookBy::Unsent => &["TIOCOUTQ", "SIOCOUTQ", "SIOCOUTQNSD"],
        LookBy::Figures => &["SO_MEMINFO", "TCP_CC_INFO", "TCP_INFO"],
        LookBy::Mapped => &["TCP_ZEROCOPY_RECEIVE"],
    }
}

fn of_wait(by: WaitBy) -> &'static [&'static str] {
    match by {
        WaitBy::Recv | WaitBy::PeekAll => &["recvfrom"],
        WaitBy::Read => &["read"],
        WaitBy::Poll | WaitBy::RawPoll | WaitBy::Urgent | WaitBy::AllPoll | WaitBy::TimerPoll => &["poll"],
        WaitBy::Ppoll => &["ppoll"],
        WaitBy::Select | WaitBy::AllSelect => &["select"],
        WaitBy::Epoll | WaitBy::RawEpoll | WaitBy::AllEpoll | WaitBy::Set | WaitBy::Timer => &["epoll_wait"],
        WaitBy::Pselect => &["pselect6"],
        WaitBy::EpollPwait => &["epoll_pwait"],
        WaitBy::EpollPwait2 => &["epoll_pwait2"],
        WaitBy::Crowd => &["poll", "epoll_wait", "select", "epoll_pwait2"],
    }
}

fn of_option(opt: Opt) -> &'static [&'static str] {
    match opt {
        Opt::NoDelay(_) => &["TCP_NODELAY"],
        Opt::LowWater(_) => &["SO_RCVLOWAT"],
        Opt::PeekOff(_) => &["SO_PEEK_OFF"],
        Opt::Inq(_) => &["TCP_INQ"],
        Opt::Timestamps(_) => &["SO_TIMESTAMP_OLD"],
        Opt::KeepAlive(_) => &["SO_KEEPALIVE"],
        Opt::Linger(_) | Opt::LingerFor(_) => &["SO_LINGER"],
        Opt::QuickAck(_) => &["TCP_QUICKACK"],
        Opt::Cork(_) => &["TCP_CORK"],
        Opt::RcvBuf(_) => &["SO_RCVBUF"],
        Opt::SndBuf(_) => &["SO_SNDBUF"],
        Opt::UserTimeout(_) => &["TCP_USER_TIMEOUT"],
        Opt::OobInline(_) => &["SO_OOBINLINE"],
        Opt::Owner => &["F_SETOWN"],
        Opt::OwnerThread => &["F_SETOWN_EX"],
        Opt::Async(_) => &["F_SETFL"],
        Opt::AsyncIoctl(_) => &["FIOASYNC"],
        Opt::OwnSignal(_) => &["F_SETSIG"],
        Opt::NonblockIoctl(_) => &["FIONBIO"],
        Opt::TimestampNs(_) => &["SO_TIMESTAMPNS_OLD"],
        Opt::Timestamping(_) => &["SO_TIMESTAMPING_OLD"],
        Opt::ErrorsBySelect(_) => &["SO_SELECT_ERR_QUEUE"],
        Opt::Pacing => &["SO_MAX_PACING_RATE"],
        Opt::MinTtl(_) => &["IP_MINTTL"],
        Opt::Filter(_) => &["SO_ATTACH_FILTER", "SO_DETACH_FILTER"],
        Opt::KeepIdle(_) => &["TCP_KEEPIDLE"],
        Opt::KeepInterval(_) => &["TCP_KEEPINTVL"],
        Opt::KeepCount(_) => &["TCP_KEEPCNT"],
        Opt::AddressForm => &["IPV6_ADDRFORM"],
        Opt::Plain(_) => {
            &["SO_DONTROUTE", "SO_MARK", "SO_BINDTODEVICE", "SO_BINDTOIFINDEX", "TCP_DEFER_ACCEPT"]
        }
        // All that the table names so.
        Opt::Unfelt(..) => &[],
        Opt::ReceiveTimeout(ms) if ms % 2 == 0 => &["SO_RCVTIMEO_OLD"],
        Opt::ReceiveTimeout(_) => &["SO_RCVTIMEO_NEW"],
        Opt::SendTimeout(ms) if ms % 2 == 0 => &["SO_SNDTIMEO_OLD"],
        Opt::SendTimeout(_) => &["SO_SNDTIMEO_NEW"],
        Opt::RcvBufForce(_) => &["SO_RCVBUFFORCE"],
        Opt::SndBufForce(_) => &["SO_SNDBUFFORCE"],
        Opt::Bpf => &["SO_ATTACH_BPF", "bpf"],
        Opt::MinHops(_) => &["IPV6_MINHOPCOUNT"],
        Opt::UnsentLowat(_) => &["TCP_NOTSENT_LOWAT"],
        Opt::WindowClamp(_) => &["TCP_WINDOW_CLAMP"],
        Opt::SegmentDelay(_) => &["TCP_TX_DELAY"],
        Opt::NewStamps(Stamps::Micro) => &["SO_TIMESTAMP_NEW"],
        Opt::NewStamps(Stamps::Nano) => &["SO_TIMESTAMPNS_NEW"],
        Opt::NewStamps(Stamps::Each) => &["SO_TIMESTAMPING_NEW"],
    }
}
