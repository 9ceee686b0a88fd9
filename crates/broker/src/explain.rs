//! Why a connection is or is not on a lane, in words, and what to do about it.

use crate::policy::Policy;
use crate::report::{Connection, Explanation};
use shunpike_wire::Reason;

/// Explains a connection, under this policy.
pub fn one(connection: Connection, policy: &Policy) -> Explanation {
    let how = connection.how();
    let Some(reason) = connection.reason.clone() else {
        let why = "both ends run under Shunpike and have agreed on a lane".to_owned();
        return Explanation { how, why, advice: String::new(), connection };
    };
    let peer = connection.peer_reason.as_ref();
    let why = match peer {
        Some(peer) => format!("{}; the peer says: {}", reason.text, peer.text),
        None => reason.text.clone(),
    };
    // Where the peer declined, its reason is the one that can be mended.
    let to_mend = match (Reason::from_code(reason.code), peer) {
        (Some(Reason::PeerDeclined), Some(peer)) => Reason::from_code(peer.code),
        (own, _) => own,
    };
    let advice = match to_mend {
        Some(Reason::NotPermitted) => policy.how_to_join(),
        to_mend => to_mend.map_or("look into the broker's log", advice).to_owned(),
    };
    Explanation { how, why, advice, connection }
}

fn advice(reason: Reason) -> &'static str {
    match reason {
        Reason::NotNominated => {
            "nothing is wrong: it gets a lane once it is busy enough; \
             'shunpike run --eager' or sysctl nominate_calls/nominate_bytes make it sooner"
        }
        Reason::AwaitingPeer => {
            "start the other end by 'shunpike run' too; if it was, it has not moved enough data yet"
        }
        Reason::NotEstablished => "nothing: the connection is being opened or closed",
        Reason::NoBroker | Reason::BrokerGone => {
            "start a broker ('shunpike broker'); programs find it without a restart"
        }
        Reason::BrokerForeign => {
            "let SHUNPIKE_SOCKET name a socket in a directory of this user's or root's that nobody else may write, and its broker \
             be this user's or root's"
        }
        Reason::VersionDiffers => "restart the program, or the broker: whichever runs the older version",
        Reason::Inactive => "the device was switched off: 'shunpike device set active on'",
        Reason::PortOff => {
            "change the line in /etc/shunpike/enabled, and restart the program; 'shunpike enable --all' checks the list"
        }
        Reason::NotLocal => "nothing: the peer is on another host, which only TCP reaches",
        Reason::GidUnreachable => {
            "the ends use different brokers: let both use one socket (SHUNPIKE_SOCKET or --socket)"
        }
        Reason::NoUeid | Reason::NoSeid => {
            "give both ends' brokers a common UEID ('shunpike ueid add'); programs learn of it when restarted"
        }
        Reason::BypassedHooks => {
            "the program moved bytes past the library (raw system calls, aio), or another process did; it stays on TCP"
        }
        Reason::FastOpen | Reason::OptionUnsupported | Reason::Ipsec => {
            "the program uses a TCP feature that a lane does not have; it stays on TCP"
        }
        Reason::WaitsUnseen => {
            "the program waits for it by system calls of its own, or has not waited yet: it stays on TCP until it waits by libc"
        }
        Reason::Shared => "nothing: it is tried again when one process alone has the connection",
        Reason::HandedOver => {
            "have the program open its sockets with SOCK_CLOEXEC, so that what it starts does not inherit them; an inherited \
             connection comes back when the other program has closed it, one that was sent stays on TCP"
        }
        Reason::IoUring => {
            "switch io_uring off in the program (UV_USE_IO_URING=0 for libuv's ring for files), or leave it on TCP"
        }
        Reason::EpollSets => "let the process register fewer connections in epoll sets, or leave it on TCP",
        Reason::NestedSets => {
            "nothing to mend from outside: the program puts its epoll set into another one, or polls it; it stays on TCP"
        }
        Reason::SharedInSet => {
            "a fault of the program: it should take a descriptor out of its sets before it closes it; it stays on TCP"
        }
        Reason::SetUnseen => {
            "let the program register by epoll_ctl (UV_USE_IO_URING=0 for Node and others with libuv); it stays on TCP"
        }
        Reason::NominationLimit => {
            "nothing: it is tried again when others are through; what a process and a user may ask for is policy ('shunpike policy')"
        }
        Reason::OtherNames => {
            "the program duplicated the socket, or had it from elsewhere, before it connected it; it stays on TCP"
        }
        Reason::LinkLimit => "nothing: it is tried again when lanes with other processes have ended",
        Reason::UrgentData
        | Reason::Ktls
        | Reason::TcpRepair
        | Reason::Stdio
        | Reason::Splice
        | Reason::ReadingShut
        | Reason::PrivateDescriptors => {
            "the program does with the connection what only TCP can serve; nothing to mend"
        }
        Reason::Confined => {
            "the program's own filter of system calls, or one that refuses getsockopt or ioctl: allow these; one that the \
             program installs itself keeps it on TCP"
        }
        Reason::DmbLimit | Reason::MaxDmb => {
            "too many connections have lanes: raise the broker's limit of DMBs (--max-dmbs)"
        }
        Reason::Memory | Reason::MemoryRefused => {
            "memory was refused: look at the process's and its cgroup's limits, or lower rmem; a process has lanes for 32,000 connections at most"
        }
        Reason::NoDescriptors => "raise the process's hard limit of open files (ulimit -Hn)",
        Reason::ConfirmTimeout | Reason::HandshakeTimeout | Reason::PeerVanished | Reason::Sync => {
            "the other end did not go through with it; busy again, the connection is tried again"
        }
        Reason::Revoked => "an operator asked for it ('shunpike device', 'shunpike revoke')",
        Reason::GraceExceeded => {
            "the peer was stopped or too slow to read; sysctl grace_ms says for how long that is borne"
        }
        Reason::PeerViolation => "the peer wrote nonsense into shared memory: look at that program",
        Reason::LentUnreadable => {
            "the sender was killed, or unmapped memory before the notice of its MSG_ZEROCOPY call had come"
        }
        Reason::LentDenied => {
            "one of the two programs became another user's or may not be looked at any more; a new lane copies"
        }
        Reason::Indirect => {
            "the same addresses exist in several network namespaces at once, and nothing tells them apart"
        }
        Reason::AttachRefused => "ask again; if it stays, the two ends use different brokers",
        _ => "look into the broker's log; as long as it lasts the connection stays on TCP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Direction, ReasonText};

    fn connection(reason: Option<Reason>, peer: Option<Reason>) -> Connection {
        let direction = Direction {
            mode: "lane".to_owned(),
            bytes: 0,
            calls: 0,
            tcp_bytes: 0,
            ring: 0,
            token: String::new(),
            generation: 0,
            window: 0,
            own_cursor: 0,
            peer_cursor: 0,
            prod_flags: 0,
            state_flags: 0,
        };
        let text = |reason: Reason| ReasonText {
            code: reason.code(),
            key: reason.key().to_owned(),
            text: reason.text().to_owned(),
        };
        Connection {
            state: "ACTIVE".to_owned(),
            uid: 0,
            pid: 7,
            comm: "prog".to_owned(),
            fd: 3,
            cookie: 0,
            role: "client".to_owned(),
            local: "127.0.0.1:1".to_owned(),
            remote: "127.0.0.1:2".to_owned(),
            mode: String::new(),
            reason: reason.map(text),
            peer_reason: peer.map(text),
            tx: direction.clone(),
            rx: direction,
            gid: None,
            entry: None,
            link: None,
            slot: None,
        }
    }

    #[test]
    fn a_lane_needs_no_advice_and_everything_else_has_some() {
        let policy = Policy::system_wide(8, 8);
        let lane = one(connection(None, None), &policy);
        assert!(lane.how.contains("shared memory") && lane.advice.is_empty());
        for reason in Reason::ALL {
            let explanation = one(connection(Some(*reason), None), &policy);
            assert_eq!(explanation.why, reason.text());
            assert!(!explanation.advice.is_empty());
        }
    }

    #[test]
    fn where_policy_declines_its_word_and_the_line_to_change_are_named() {
        let refused = || connection(Some(Reason::NotPermitted), None);
        let built_in = one(refused(), &Policy::system_wide(8, 8)).advice;
        assert!(built_in.contains("same-user (built in)") && built_in.contains("broker.toml"), "{built_in}");
        let file = Some("/srv/policy.toml".into());
        let policy = Policy { file, peers_line: Some(7), ..Policy::system_wide(8, 8) };
        let of_file = one(refused(), &policy).advice;
        assert!(of_file.contains("same-user (/srv/policy.toml, line 7)"), "{of_file}");
        assert!(of_file.contains("allow = \"any\"") && of_file.contains("policy reload"), "{of_file}");
    }

    #[test]
    fn the_peers_reason_is_the_one_to_mend() {
        let policy = Policy::system_wide(8, 8);
        let explanation = one(connection(Some(Reason::PeerDeclined), Some(Reason::NoUeid)), &policy);
        assert!(explanation.why.contains(Reason::NoUeid.text()));
        assert!(explanation.advice.contains("UEID"));
    }
}
