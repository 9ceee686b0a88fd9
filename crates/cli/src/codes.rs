//! Every fallback code, with what to do about it: for `explain --codes` and docs/fallback-codes.md.

use crate::args::Format;
use crate::error::Error;
use crate::tools::table::{self, Table};
use serde_json::{Value, json};
use shunpike_wire::Reason;

/// Prints all codes.
pub fn print(format: &Format) -> Result<(), Error> {
    if format.json {
        return table::print_json(&Value::Array(Reason::ALL.iter().map(json_of).collect()));
    }
    let mut table = Table::new(&["Code", "Name", "Meaning"]);
    for reason in Reason::ALL {
        table.row([code(*reason), reason.key().into(), reason.text().into()]);
    }
    table.print()
}

fn json_of(reason: &Reason) -> Value {
    json!({
        "code": code(*reason),
        "name": reason.key(),
        "meaning": reason.text(),
        "advice": advice(*reason),
    })
}

fn code(reason: Reason) -> String {
    format!("0x{:08x}", reason.code())
}

/// What a person can do about a fallback; one sentence.
pub fn advice(reason: Reason) -> &'static str {
    use Reason::*;
    match reason {
        NotNominated => {
            "Nothing: a lane for so few bytes would cost more than it gives; 'run --eager' insists."
        }
        AwaitingPeer => {
            "Start the program at the other end with 'shunpike run' too, and let both use the same broker."
        }
        NotEstablished => "Nothing: wait until it is connected.",
        NoBroker => "See whether 'shunpike info' finds a broker; start one with 'shunpike broker'.",
        BrokerGone => "Start the broker again; programs find it without a restart.",
        Inactive => "Switch it on: 'shunpike device set active on'.",
        BrokerForeign => {
            "Let SHUNPIKE_SOCKET name a socket in a directory of this user's or root's that nobody else may write."
        }
        VersionDiffers => "Restart the program, or the broker: whichever runs the older version.",
        NotPermitted => {
            "Run both ends as one user, or let the system-wide broker's policy join them: allow = \"any\" under [peers] in \
             /etc/shunpike/broker.toml, then 'shunpike policy reload' ('shunpike policy' shows what holds)."
        }
        PortOff => {
            "Change the line in /etc/shunpike/enabled ('shunpike enable --all' checks it), and restart the program."
        }
        NotLocal => "Nothing: shared memory ends at the host; the connection stays TCP.",
        GidUnreachable | NoSmcDV2Device => {
            "Let both ends use one broker: 'shunpike device' shows the GID on either side."
        }
        NoUeid | NoSeid => "Give both sides a common EID: 'shunpike ueid add NAME' at each broker.",
        BypassedHooks => {
            "The program uses raw system calls or aio, or had the socket before it was preloaded, or another process \
             uses it, too; such a connection stays TCP."
        }
        FastOpen | OptionUnsupported => {
            "Switch the option off in the program if a lane is worth more to you than the option."
        }
        Shared => {
            "Usual where a parent accepts for its children; the connection may be upgraded again once one \
             process holds it."
        }
        HandedOver => {
            "Where a child has inherited it, it comes back when the child has closed it: open sockets with SOCK_CLOEXEC. What \
             was sent to another process stays TCP."
        }
        UrgentData | Ktls | TcpRepair | Stdio | Splice => {
            "The kernel must see these bytes: the connection stays TCP."
        }
        IoUring => {
            "Switch io_uring off in the program where lanes are worth more (libuv's ring for files: \
             UV_USE_IO_URING=0). Of a ring whose every entry is seen, only the connections that it named stay TCP."
        }
        OtherNames => {
            "Close the other name, or make it after the connection: who reads by it would read TCP beside the lane."
        }
        ReadingShut => "Nothing: TCP shows such a reader the stream's end, whatever comes.",
        PrivateDescriptors => {
            "Nothing: one number is several files in such a process, so its connections stay TCP."
        }
        EpollSets => "Register fewer connections in fewer epoll sets, or raise fs.epoll.max_user_watches.",
        WaitsUnseen => {
            "Nothing: a program that waits by system calls of its own (async-io, Go) hears of nothing that comes by a lane. \
             It passes once the program waits by libc: in a read, poll, select or epoll_wait."
        }
        NestedSets => {
            "Wait for the connection in a set of its own that is waited for by epoll_wait alone; where it is one-shot there, in one that was made after the fork."
        }
        SharedInSet => "Take a descriptor out of its epoll sets (EPOLL_CTL_DEL) before it is closed.",
        SetUnseen => "Register it by epoll_ctl (libuv: UV_USE_IO_URING=0).",
        LinkLimit => "Nothing: it has a lane as soon as lanes with another process have ended.",
        Confined => {
            "Nothing: a filter may end the program at a call that it does not make itself. Filters that are there before \
             the program begins (containers, services) are no hindrance, unless they refuse getsockopt or ioctl."
        }
        Memory | MemoryRefused => {
            "Free memory, or raise the limit (cgroup, RLIMIT_AS) of the process; smaller buffers or fewer connections help too."
        }
        MaxDmb => "Raise the limit: 'shunpike broker --max-dmbs N'; see those in use in 'shunpike device'.",
        DmbLimit => {
            "Raise the limit in the broker's policy, or lower 'rmem'; 'shunpike info' shows the limits."
        }
        NominationLimit => {
            "Nothing, if it is rare: the connection asks again later; else raise the limit in the broker's policy."
        }
        AttachRefused => {
            "See 'shunpike explain' at the other end; repeated, this is a bug: please report it."
        }
        NoDescriptors => {
            "Raise the hard limit of RLIMIT_NOFILE (ulimit -Hn) of the process: Shunpike's descriptors lie beyond a low soft limit. Where soft and hard are one, it takes no more than an eighth of it, and nothing below 1024."
        }
        HandshakeTimeout | ConfirmTimeout => {
            "The peer or the broker was stopped or overloaded; the next connection tries again."
        }
        PeerVanished => "Nothing: the peer closed or died meanwhile.",
        PeerDeclined => {
            "The peer's own reason is the one to look at: the number after the slash in 'shunpike ss'."
        }
        PeerNoSmc => "Start the program at the other end with 'shunpike run' too.",
        Revoked => "Asked for with 'shunpike revoke' or by switching the device off.",
        GraceExceeded => "The peer was stopped or very slow; the lane opens again when it reads.",
        GenerationsSpent => "Nothing for this connection; a new one starts afresh.",
        LentUnreadable => {
            "The sender was killed, or gave memory away that it had sent with MSG_ZEROCOPY: it must wait for its notice."
        }
        LentDenied => {
            "Nothing: one of the two became another user, or may not be looked at; the sender sends the bytes once more."
        }
        PeerViolation | Sync => {
            "The peer sent what the protocol does not allow: do not trust it, or see whether versions differ."
        }
        ReleaseMismatch | VersionMismatch | NoV2Extension | NoSmcDV2Extension | NoIsmV2 => {
            "Install the same version of Shunpike for both ends."
        }
        NoDevice | NoSmcD | ModeMismatch => {
            "Switch the device on at both brokers: 'shunpike device set active on'."
        }
        Configuration | MaxConnsMismatch | MaxLinksMismatch => {
            "Compare the settings of the two sides: 'shunpike device' and 'shunpike info'."
        }
        Internal => "A bug: please report it with the output of 'shunpike explain'.",
        AddLinkTimeout | NoSmcR | Ipsec | RmbeEyecatcher | PrefixMismatch | VlanUnknown | VlanNotOnIsm
        | NoActiveLink | ServerLinkUnknown | NoRoute | Indirect | Rtoken | ReadyLink | RegisterBuffer => {
            "Belongs to SMC-R or to ISM hardware; loopback-ism never gives it."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fallback-codes.md");

    fn page() -> String {
        let mut page = String::from(
            "# Fallback codes\n\n\
             Why a connection is on TCP. `shunpike ss` shows the number, `shunpike explain PID` the words, and\n\
             `shunpike explain --codes` this list. Codes from `0x0a000000` are Shunpike's own; the others are\n\
             SMC's, with SMC's meaning.\n\n\
             | Code | Name | Meaning | What to do |\n|---|---|---|---|\n",
        );
        for reason in Reason::ALL {
            let cells = [code(*reason), reason.key().into(), reason.text().into(), advice(*reason).into()];
            page += &format!("| `{}` | {} | {} | {} |\n", cells[0], cells[1], cells[2], cells[3]);
        }
        page
    }

    #[test]
    fn the_page_lists_every_code() {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(PAGE, page()).expect("docs/fallback-codes.md");
        }
        let written = fs::read_to_string(PAGE).expect("docs/fallback-codes.md");
        assert!(written == page(), "refresh it: UPDATE_DOCS=1 cargo test -p shunpike codes");
    }
}
