//! A program of the tester as a C program that anyone can compile.

use std::fmt::Write;

use crate::model::Model;
use crate::op::{
    By, Call, Child, End, Handler, LookBy, Meddle, Op, Opt, Over, RecvBy, Registered, SendBy, Side, WaitBy,
};

#[cfg(test)]
mod tests;

const PREAMBLE: &str = include_str!("preamble.c");

/// The program, with `fault` in its first comment. Calls are told of by their kind: what is sent by writev or sendfile is sent by send here.
pub fn as_c(program: &[Op], fault: &str) -> String {
    let mut text =
        format!("/* {} */\n{PREAMBLE}\nstatic void program(void) {{\n", fault.replace("*/", "* /"));
    let mut model = Model::new();
    for &op in program {
        if !model.allows(op) {
            continue;
        }
        let waits = model.pending();
        let _ = statement(&mut text, op);
        model.happened(op, &[crate::calls::Said::of(result_of(op))]);
        if let Call::Wait(by) = op.call {
            model.begins_to_wait(op, by);
        }
        for (side, conn) in waits {
            if !model.wakes(side, conn) {
                continue;
            }
            let _ = writeln!(text, "    turn({}); if (side == {0}) ends({conn});", name(side));
            model.woke(side, conn, &crate::calls::Said::of(0));
        }
    }
    text.push_str("}\n");
    text
}

/// What the model is told that the call came to: that it worked.
fn result_of(op: Op) -> i64 {
    match op.call {
        Call::Open { .. } => 1,
        Call::Send(_, n) | Call::Recv(_, n) => n as i64,
        _ => 0,
    }
}

fn name(side: Side) -> &'static str {
    match side {
        Side::Client => "CLIENT",
        Side::Server => "SERVER",
    }
}

fn limit(conn: u8, name: &str, ms: u16) -> String {
    let value = format!("&(struct timeval){{0, {ms} * 1000}}, sizeof(struct timeval)");
    format!("setsockopt(fds[{conn}], SOL_SOCKET, {name}, {value})")
}

fn statement(text: &mut String, op: Op) -> std::fmt::Result {
    let (conn, who) = (op.conn, name(op.side));
    match op.call {
        Call::Open { nonblock, nagle, family } => {
            let (nonblock, nagle) = (u8::from(nonblock), u8::from(nagle));
            writeln!(
                text,
                "    turn(CLIENT); if (side == CLIENT) opens({conn}, {nonblock}, {nagle}); /* {family:?} */"
            )?;
            return writeln!(
                text,
                "    turn(SERVER); if (side == SERVER) opens({conn}, {nonblock}, {nagle});"
            );
        }
        Call::Echo { rounds, size } => {
            return writeln!(text, "    turn({who}); echo({conn}, {rounds}, {size}, side == {who});");
        }
        Call::Pour { rounds, size } => {
            let other = name(op.side.other());
            return writeln!(
                text,
                "    for (int i = 0; i < {rounds}; i++) {{ turn({who}); if (side == {who}) all_out(fds[{conn}], {size}); turn({other}); \
                 if (side == {other}) all_in(fds[{conn}], {size}); }}"
            );
        }
        Call::Exchange { by, rounds, size } => {
            let raw = u8::from(by != By::Edge);
            return writeln!(
                text,
                "    turn({who}); exchange({conn}, {rounds}, {size}, side == {who}, {raw}); /* {by:?} */"
            );
        }
        Call::Flood { by, chunk, early, meanwhile } => {
            let when = if early { " from before the reads on" } else { "" };
            return writeln!(
                text,
                "    flood({conn}, {who}, {chunk}); /* {by:?}{when}; before the reads: {meanwhile:?} */"
            );
        }
        Call::Corked { by, pieces, size } => {
            let (other, held) = (name(op.side.other()), usize::from(pieces) * usize::from(size));
            return writeln!(
                text,
                "    turn({who}); if (side == {who}) sends({conn}, {held}, MSG_MORE); turn({other}); if (side == {other}) readable({conn}); \
                 turn({who}); if (side == {who}) sends({conn}, {size}, 0); turn({other}); \
                 if (side == {other}) readable({conn}), all_in(fds[{conn}], {held} + {size}); /* {pieces} pieces, {by:?} */"
            );
        }
        Call::Torrent { threads, rounds, size } => {
            return writeln!(
                text,
                "    /* {threads} threads a side send {rounds} times {size} bytes, and as many receive */"
            );
        }
        Call::Lend { size, lent, meanwhile } => {
            return writeln!(
                text,
                "    /* {size} bytes by MSG_ZEROCOPY; their memory: {lent:?}; before the reads: {meanwhile:?} */"
            );
        }
        Call::Kill | Call::Stop | Call::Continue => {
            let signal = match op.call {
                Call::Kill => "SIGKILL",
                Call::Stop => "SIGSTOP",
                _ => "SIGCONT",
            };
            let other = name(op.side.other());
            return writeln!(text, "    turn({other}); if (side == {other}) signals({signal});");
        }
        Call::Branch | Call::Swap | Call::Share | Call::KillBranch => {
            return writeln!(text, "    /* {who}, connection {conn}: {:?} */", op.call);
        }
        Call::Meddle(Meddle::Wait(ms)) => {
            return writeln!(text, "    turn({who}); if (side == {who}) usleep({ms} * 1000);");
        }
        Call::Meddle(meddle) => return writeln!(text, "    /* here: {meddle:?} */"),
        _ => {}
    }
    if let Some(steps) = op.cut {
        writeln!(text, "    /* after {steps} instructions of the next call, the one behind it is made: */")?;
    }
    let call = match op.call {
        Call::Send(SendBy::Oob, n) => format!("sends({conn}, {n}, MSG_OOB)"),
        Call::Send(_, n) => format!("sends({conn}, {n}, 0)"),
        Call::Signal(what) => {
            let call = match what {
                Handler::Nothing => "(void)0".to_owned(),
                Handler::Sends(n) => format!("sends({conn}, {n}, 0)"),
                Handler::Receives(n) => format!("receives({conn}, {n}, MSG_DONTWAIT)"),
                Handler::Fionread => format!("readable({conn})"),
            };
            format!("{call} /* by a signal's handler */")
        }
        Call::Recv(RecvBy::Once, n) => format!("receives_once({conn}, {n})"),
        Call::Recv(by, n) => {
            let flags = match by {
                RecvBy::Peek | RecvBy::PeekMsg => "MSG_DONTWAIT | MSG_PEEK",
                RecvBy::PeekTrunc => "MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC",
                RecvBy::PeekWhole => "MSG_PEEK | MSG_WAITALL",
                RecvBy::Trunc | RecvBy::TruncMsg => "MSG_DONTWAIT | MSG_TRUNC",
                RecvBy::WaitAll => "MSG_WAITALL",
                RecvBy::Oob => "MSG_DONTWAIT | MSG_OOB",
                RecvBy::Read | RecvBy::Readv | RecvBy::Splice | RecvBy::ForOne => "0",
                RecvBy::Recv
                | RecvBy::Ring
                | RecvBy::Once
                | RecvBy::Recvfrom
                | RecvBy::Recvmsg
                | RecvBy::Recvmmsg
                | RecvBy::Preadv2
                | RecvBy::Many
                | RecvBy::Cloexec => "MSG_DONTWAIT",
            };
            format!("receives({conn}, {n}, {flags})")
        }
        Call::Look(LookBy::Fionread) => format!("readable({conn})"),
        Call::Look(LookBy::Epoll | LookBy::Set | LookBy::Nested) => "set_shows()".to_owned(),
        Call::Look(LookBy::PollRdhup) => format!("polls({conn}, POLLIN | POLLRDHUP)"),
        Call::Look(
            LookBy::Poll
            | LookBy::PollEach
            | LookBy::Kinds
            | LookBy::Select
            | LookBy::AllPoll
            | LookBy::AllSelect
            | LookBy::AllEpoll,
        ) => format!("polls({conn}, POLLIN | POLLOUT | POLLPRI)"),
        Call::Look(LookBy::Peek) => format!("receives({conn}, 1, MSG_DONTWAIT | MSG_PEEK)"),
        Call::Look(LookBy::RecvNothing) => format!("receives({conn}, 0, MSG_DONTWAIT)"),
        Call::Look(
            by @ (LookBy::SoError
            | LookBy::AtMark
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
            | LookBy::Faults
            | LookBy::Unsent
            | LookBy::Figures
            | LookBy::Mapped),
        ) => {
            format!("(void)0 /* {by:?} */")
        }
        Call::Wait(by) => format!(
            "begins({conn}, {}) /* {by:?} */",
            u8::from(matches!(by, WaitBy::RawPoll | WaitBy::RawEpoll))
        ),
        Call::Set(opt) => match opt {
            Opt::NoDelay(on) => format!("option({conn}, IPPROTO_TCP, TCP_NODELAY, {})", u8::from(on)),
            Opt::LowWater(bytes) => format!("option({conn}, SOL_SOCKET, SO_RCVLOWAT, {bytes})"),
            Opt::PeekOff(at) => format!("option({conn}, SOL_SOCKET, SO_PEEK_OFF, {at})"),
            Opt::Inq(on) => format!("option({conn}, IPPROTO_TCP, 36 /* TCP_INQ */, {})", u8::from(on)),
            Opt::Timestamps(on) => format!("option({conn}, SOL_SOCKET, SO_TIMESTAMP, {})", u8::from(on)),
            Opt::KeepAlive(on) => format!("option({conn}, SOL_SOCKET, SO_KEEPALIVE, {})", u8::from(on)),
            Opt::QuickAck(on) => format!("option({conn}, IPPROTO_TCP, TCP_QUICKACK, {})", u8::from(on)),
            Opt::Cork(on) => format!("option({conn}, IPPROTO_TCP, TCP_CORK, {})", u8::from(on)),
            Opt::RcvBuf(bytes) => format!("option({conn}, SOL_SOCKET, SO_RCVBUF, {bytes})"),
            Opt::SndBuf(bytes) => format!("option({conn}, SOL_SOCKET, SO_SNDBUF, {bytes})"),
            Opt::UserTimeout(ms) => format!("option({conn}, IPPROTO_TCP, TCP_USER_TIMEOUT, {ms})"),
            Opt::OobInline(on) => format!("option({conn}, SOL_SOCKET, SO_OOBINLINE, {})", u8::from(on)),
            Opt::ReceiveTimeout(ms) => limit(conn, "SO_RCVTIMEO", ms),
            Opt::SendTimeout(ms) => limit(conn, "SO_SNDTIMEO", ms),
            Opt::RcvBufForce(bytes) => format!("option({conn}, SOL_SOCKET, SO_RCVBUFFORCE, {bytes})"),
            Opt::SndBufForce(bytes) => format!("option({conn}, SOL_SOCKET, SO_SNDBUFFORCE, {bytes})"),
            Opt::UnsentLowat(bytes) => format!("option({conn}, IPPROTO_TCP, TCP_NOTSENT_LOWAT, {bytes})"),
            Opt::WindowClamp(bytes) => format!("option({conn}, IPPROTO_TCP, TCP_WINDOW_CLAMP, {bytes})"),
            Opt::SegmentDelay(us) => format!("option({conn}, IPPROTO_TCP, 37 /* TCP_TX_DELAY */, {us})"),
            Opt::MinHops(on) => {
                format!("option({conn}, IPPROTO_IPV6, 73 /* IPV6_MINHOPCOUNT */, {})", u8::from(on))
            }
            Opt::Owner => format!("fcntl(fds[{conn}], F_SETOWN, getpid())"),
            opt @ (Opt::OwnerThread
            | Opt::Async(_)
            | Opt::AsyncIoctl(_)
            | Opt::OwnSignal(_)
            | Opt::NonblockIoctl(_)
            | Opt::LingerFor(_)
            | Opt::TimestampNs(_)
            | Opt::Timestamping(_)
            | Opt::ErrorsBySelect(_)
            | Opt::Pacing
            | Opt::MinTtl(_)
            | Opt::Filter(_)
            | Opt::KeepIdle(_)
            | Opt::KeepInterval(_)
            | Opt::KeepCount(_)
            | Opt::AddressForm
            | Opt::Plain(_)
            | Opt::Unfelt(..)
            | Opt::Bpf
            | Opt::NewStamps(_)) => format!("(void)0 /* {opt:?} */"),
            Opt::Linger(on) => {
                format!(
                    "setsockopt(fds[{conn}], SOL_SOCKET, SO_LINGER, &(struct linger){{{}, 0}}, sizeof(struct linger))",
                    u8::from(on)
                )
            }
        },
        Call::Register(how) => {
            let events = match how {
                Registered::Level => "EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI",
                Registered::Edge => "EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET",
                Registered::OneShot => "EPOLLIN | EPOLLONESHOT",
                Registered::EdgeIn => "EPOLLIN | EPOLLET",
                Registered::LevelIn => "EPOLLIN",
                Registered::Exclusive => "EPOLLIN | EPOLLEXCLUSIVE",
                Registered::Removed => "0",
            };
            format!("registers({conn}, {events})")
        }
        Call::Finish(end) => match end {
            End::ShutWr => format!("shutdown(fds[{conn}], SHUT_WR)"),
            End::ShutRd => format!("shutdown(fds[{conn}], SHUT_RD)"),
            End::ShutBoth => format!("shutdown(fds[{conn}], SHUT_RDWR)"),
            End::Close => format!("close(fds[{conn}])"),
            End::Range => format!("close_range(fds[{conn}], fds[{conn}], 0)"),
            End::Over => format!("{{ dup2(0, fds[{conn}]); close(fds[{conn}]); }}"),
            End::RawClose => format!("syscall(SYS_close, fds[{conn}])"),
        },
        Call::Patience(by, ms) => format!("waits_for({conn}, {ms}) /* {by:?} */"),
        Call::Alarm(by) => format!("alarmed({conn}) /* {by:?} */"),
        Call::Masked(by, mask, ms) => format!("waits_for({conn}, {ms}) /* {by:?}, SIGALRM: {mask:?} */"),
        Call::Twin => format!("twin = dup(fds[{conn}])"),
        Call::Turn => format!("{{ int other = fds[{conn}]; fds[{conn}] = twin; twin = other; }}"),
        // Here both processes of a side are one.
        Call::Pass | Call::Hand => format!("passes({conn})"),
        Call::Dup => format!(
            "{{ int other = dup(fds[{conn}]); close(fds[{conn}]); fds[{conn}] = other; registered[{conn}] = 0; }}"
        ),
        Call::DupOver(Over::Same) => format!("dup2(fds[{conn}], fds[{conn}])"),
        Call::DupOver(over) => {
            let to = match over {
                Over::Conn(other) => format!("fds[{other}]"),
                Over::Set => "set".to_owned(),
                Over::Same | Over::Far | Over::Next => format!("{}", 700 + u16::from(conn)),
            };
            let new = if over == Over::Set { " set = epoll_create1(0);" } else { "" };
            format!(
                "{{ int to = {to}; dup2(fds[{conn}], to); close(fds[{conn}]); fds[{conn}] = to; registered[{conn}] = 0;{new} }}"
            )
        }
        Call::Fork(child) => {
            let what = match child {
                Child::Exits => "_exit(0)".to_owned(),
                Child::Closes => {
                    "{ for (int i = 0; i < 8; i++) if (fds[i]) close(fds[i]); _exit(0); }".to_owned()
                }
                Child::Sends => format!("_exit(send(fds[{conn}], bytes, 5, MSG_NOSIGNAL | MSG_DONTWAIT))"),
                Child::Receives => format!("_exit(recv(fds[{conn}], bytes, 10, MSG_DONTWAIT))"),
                Child::ReceivesAndCloses => {
                    format!(
                        "{{ int got = recv(fds[{conn}], bytes, 10, MSG_DONTWAIT); close(fds[{conn}]); _exit(got); }}"
                    )
                }
                Child::Looks => format!("{{ polls({conn}, POLLIN | POLLOUT | POLLPRI); _exit(0); }}"),
                Child::LooksAtSet => "{ set_shows(); _exit(0); }".to_owned(),
                Child::Execs | Child::Spawns | Child::Vforks => {
                    "execl(\"/bin/true\", \"true\", NULL)".to_owned()
                }
            };
            format!("{{ if (!fork()) {what}; int status; wait(&status); tell(\"child\", status); line(); }}")
        }
        Call::Few(on) => {
            format!("setrlimit(RLIMIT_NOFILE, &(struct rlimit){{{}, 4096}})", if on { 64 } else { 1024 })
        }
        Call::Exec => {
            "(void)0 /* the process executes its program anew, and goes on with its connections */".to_owned()
        }
        Call::Nonblock(on) => format!("fcntl(fds[{conn}], F_SETFL, {})", if on { "O_NONBLOCK" } else { "0" }),
        Call::Open { .. }
        | Call::Echo { .. }
        | Call::Pour { .. }
        | Call::Exchange { .. }
        | Call::Flood { .. }
        | Call::Corked { .. }
        | Call::Lend { .. }
        | Call::Torrent { .. }
        | Call::Branch
        | Call::Swap
        | Call::Share
        | Call::KillBranch
        | Call::Kill
        | Call::Stop
        | Call::Continue
        | Call::Meddle(_) => return Ok(()),
    };
    writeln!(text, "    turn({who}); if (side == {who}) {call};")
}
