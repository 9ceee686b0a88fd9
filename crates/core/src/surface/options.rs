//! Options by level.

use shunpike_wire::Reason;

use super::Does::{Back, Differs, Nothing, Same, Tcp};
use super::Unset::{NoFilter, UpTo};
use super::{Numbered, Row, row};

const CONTROL: &str = "lifecycle.rs set_option";

/// SOL_SOCKET.
pub const SOCKET: &[Row<Numbered>] = &[
    row(
        &[("SO_TYPE", 3), ("SO_ACCEPTCONN", 30), ("SO_PROTOCOL", 38), ("SO_DOMAIN", 39), ("SO_COOKIE", 57)],
        Nothing,
        "Tell what the socket is. They are read only.",
    ),
    row(
        &[
            ("SO_PEERCRED", 17),
            ("SO_PEERNAME", 28),
            ("SO_PEERSEC", 31),
            ("SO_PEERGROUPS", 59),
            ("SO_PEERPIDFD", 77),
        ],
        Nothing,
        "Tell who the peer is. Of UNIX sockets, or the kernel's own answer.",
    ),
    row(
        &[
            ("SO_INCOMING_CPU", 49),
            ("SO_INCOMING_NAPI_ID", 56),
            ("SO_NETNS_COOKIE", 71),
            ("SO_BPF_EXTENSIONS", 48),
        ],
        Nothing,
        "Tell, or choose between listeners, by where TCP's segments came in.",
    ),
    row(&[("SO_ERROR", 4)], Nothing, "The kernel's pending error: TCP tells of life and death."),
    row(&[("SO_MEMINFO", 55)], Differs, "Memory of TCP's queues; a ring is not part of it."),
    row(
        &[("SO_REUSEADDR", 2), ("SO_REUSEPORT", 15), ("SO_ATTACH_REUSEPORT_CBPF", 51)],
        Nothing,
        "Which socket gets an address or a new connection.",
    ),
    row(
        &[("SO_ATTACH_REUSEPORT_EBPF", 52), ("SO_DETACH_REUSEPORT_BPF", 68), ("SO_CNX_ADVICE", 53)],
        Nothing,
        "Which listener gets a new connection; which neighbour entry is confirmed.",
    ),
    row(
        &[("SO_DEBUG", 1), ("SO_NO_CHECK", 11), ("SO_BSDCOMPAT", 14), ("SO_BROADCAST", 6), ("SO_NOFCS", 43)],
        Nothing,
        "Of other protocols, or without effect.",
    ),
    row(
        &[
            ("SO_SECURITY_AUTHENTICATION", 22),
            ("SO_SECURITY_ENCRYPTION_TRANSPORT", 23),
            ("SO_SECURITY_ENCRYPTION_NETWORK", 24),
            ("SO_SNDLOWAT", 19),
        ],
        Nothing,
        "ENOPROTOOPT: the kernel has never had them.",
    ),
    row(
        &[("SO_DONTROUTE", 5), ("SO_BINDTODEVICE", 25), ("SO_BINDTOIFINDEX", 62), ("SO_MARK", 36)],
        Differs,
        "Which way segments take. One that cuts the way between the two ends stops TCP, not a lane.",
    ),
    row(&[("SO_PRIORITY", 12), ("SO_TXREHASH", 74)], Nothing, "How segments are queued and hashed."),
    row(
        &[("SO_SNDBUF", 7), ("SO_SNDBUFFORCE", 32), ("SO_RCVBUF", 8), ("SO_RCVBUFFORCE", 33)],
        Differs,
        "Bound what is in flight. SO_RCVBUF bounds the DMB where it was set before the lane opened (upgrade/lanes.rs).",
    ),
    row(
        &[("SO_BUF_LOCK", 72), ("SO_RESERVE_MEM", 73)],
        Nothing,
        "How the kernel sizes and accounts TCP's buffers. The ring has memory of its own.",
    ),
    row(&[("SO_KEEPALIVE", 9)], Same("keepalive.rs aside"), "Probes go on on the TCP connection."),
    row(&[("SO_LINGER", 13)], Same("conn.rs close"), "What close() does with bytes that were not sent."),
    row(
        &[("SO_OOBINLINE", 10)],
        Tcp(UpTo(0)),
        "Where urgent data is delivered. Urgent data itself (MSG_OOB) takes the connection back, too.",
    ),
    row(
        &[("SO_RCVLOWAT", 18)],
        Tcp(UpTo(1)),
        "From how many bytes on a socket is readable, and a read returns.",
    ),
    row(
        &[("SO_RCVTIMEO_OLD", 20), ("SO_SNDTIMEO_OLD", 21), ("SO_RCVTIMEO_NEW", 66), ("SO_SNDTIMEO_NEW", 67)],
        Same("call.rs timeout_option"),
        "How long a call waits. The kernel is asked before a wait.",
    ),
    row(
        &[("SO_ATTACH_FILTER", 26), ("SO_ATTACH_BPF", 50)],
        Tcp(NoFilter),
        "A program that sees each segment and may drop it.",
    ),
    row(&[("SO_DETACH_FILTER", 27), ("SO_LOCK_FILTER", 44)], Nothing, "Take it away, or keep it there."),
    row(
        &[("SO_PASSCRED", 16), ("SO_PASSSEC", 34), ("SO_PASSPIDFD", 76), ("SO_PASSRIGHTS", 83)],
        Nothing,
        "Control messages of UNIX sockets; a TCP socket has none.",
    ),
    row(
        &[
            ("SO_RXQ_OVFL", 40),
            ("SO_WIFI_STATUS", 41),
            ("SO_RCVMARK", 75),
            ("SO_RCVPRIORITY", 82),
            ("SO_INQ", 84),
        ],
        Nothing,
        "Control messages of datagrams and UNIX sockets; a TCP socket has none.",
    ),
    row(
        &[
            ("SO_TIMESTAMP_OLD", 29),
            ("SO_TIMESTAMPNS_OLD", 35),
            ("SO_TIMESTAMP_NEW", 63),
            ("SO_TIMESTAMPNS_NEW", 64),
            ("SO_TIMESTAMPING_OLD", 37),
            ("SO_TIMESTAMPING_NEW", 65),
        ],
        Tcp(UpTo(0)),
        "A control message with each read that says when its segment came; notices of when segments went.",
    ),
    row(&[("SO_PEEK_OFF", 42)], Tcp(UpTo(-1)), "MSG_PEEK goes on where the last one ended."),
    row(
        &[("SO_SELECT_ERR_QUEUE", 45)],
        Same("ready.rs level"),
        "poll shows POLLPRI, too, while there are notices (MSG_ZEROCOPY).",
    ),
    row(
        &[("SO_BUSY_POLL", 46), ("SO_PREFER_BUSY_POLL", 69), ("SO_BUSY_POLL_BUDGET", 70)],
        Nothing,
        "How long the kernel polls a network card.",
    ),
    row(
        &[("SO_MAX_PACING_RATE", 47)],
        Tcp(UpTo(-1)),
        "How fast the stream goes. Limits that are set elsewhere (tc, a control group) are not felt.",
    ),
    row(&[("SO_ZEROCOPY", 60)], Same("zerocopy.rs option_changed"), "MSG_ZEROCOPY gives notices."),
    row(&[("SO_TXTIME", 61)], Nothing, "When a datagram is sent; TCP ignores it."),
    row(
        &[("SO_DEVMEM_LINEAR", 78), ("SO_DEVMEM_DMABUF", 79), ("SO_DEVMEM_DONTNEED", 80)],
        Nothing,
        "Memory of devices that a network card has written to: never so on this host.",
    ),
];

/// IPPROTO_IP.
pub const IP: &[Row<Numbered>] = &[
    row(
        &[
            ("IP_TOS", 1),
            ("IP_TTL", 2),
            ("IP_OPTIONS", 4),
            ("IP_MTU_DISCOVER", 10),
            ("IP_MTU", 14),
            ("IP_UNICAST_IF", 50),
            ("IP_NODEFRAG", 22),
        ],
        Nothing,
        "Headers and sizes of segments.",
    ),
    row(
        &[
            ("IP_RECVOPTS", 6),
            ("IP_RETOPTS", 7),
            ("IP_PKTINFO", 8),
            ("IP_RECVTTL", 12),
            ("IP_RECVTOS", 13),
            ("IP_PASSSEC", 18),
            ("IP_ORIGDSTADDR", 20),
            ("IP_RECVORIGDSTADDR", 20),
            ("IP_CHECKSUM", 23),
            ("IP_RECVFRAGSIZE", 25),
        ],
        Nothing,
        "Control messages of datagrams; a TCP socket has none.",
    ),
    row(&[("IP_PKTOPTIONS", 9)], Nothing, "What the last segment's header said: TCP's."),
    row(
        &[("IP_RECVERR", 11), ("IP_RECVERR_RFC4884", 26)],
        Nothing,
        "ICMP errors in the error queue, which the kernel keeps.",
    ),
    row(
        &[("IP_MINTTL", 21)],
        Tcp(UpTo(0)),
        "Segments that have crossed a router are dropped; where it is more than the peer sends with, all are.",
    ),
    row(
        &[("IP_IPSEC_POLICY", 16), ("IP_XFRM_POLICY", 17)],
        Differs,
        "Segments are encrypted, or dropped. A lane's bytes are in no segment.",
    ),
    row(
        &[
            ("IP_FREEBIND", 15),
            ("IP_TRANSPARENT", 19),
            ("IP_BIND_ADDRESS_NO_PORT", 24),
            ("IP_LOCAL_PORT_RANGE", 51),
            ("IP_PROTOCOL", 52),
        ],
        Nothing,
        "Which addresses and ports a socket gets.",
    ),
    row(&[("IP_HDRINCL", 3), ("IP_ROUTER_ALERT", 5)], Nothing, "Of raw sockets."),
    row(
        &[
            ("IP_MULTICAST_IF", 32),
            ("IP_MULTICAST_TTL", 33),
            ("IP_MULTICAST_LOOP", 34),
            ("IP_ADD_MEMBERSHIP", 35),
            ("IP_DROP_MEMBERSHIP", 36),
            ("IP_UNBLOCK_SOURCE", 37),
            ("IP_BLOCK_SOURCE", 38),
            ("IP_ADD_SOURCE_MEMBERSHIP", 39),
            ("IP_DROP_SOURCE_MEMBERSHIP", 40),
            ("IP_MSFILTER", 41),
            ("MCAST_JOIN_GROUP", 42),
            ("MCAST_BLOCK_SOURCE", 43),
            ("MCAST_UNBLOCK_SOURCE", 44),
            ("MCAST_LEAVE_GROUP", 45),
            ("MCAST_JOIN_SOURCE_GROUP", 46),
            ("MCAST_LEAVE_SOURCE_GROUP", 47),
            ("MCAST_MSFILTER", 48),
            ("IP_MULTICAST_ALL", 49),
        ],
        Nothing,
        "Multicast.",
    ),
];

/// IPPROTO_IPV6.
pub const IPV6: &[Row<Numbered>] = &[
    row(
        &[("IPV6_ADDRFORM", 1)],
        Same("zerocopy.rs option_changed"),
        "Makes an IPv4 socket of one with a mapped address: notices of MSG_ZEROCOPY change their level.",
    ),
    row(
        &[
            ("IPV6_UNICAST_HOPS", 16),
            ("IPV6_MTU_DISCOVER", 23),
            ("IPV6_MTU", 24),
            ("IPV6_FLOWINFO", 11),
            ("IPV6_FLOWLABEL_MGR", 32),
            ("IPV6_FLOWINFO_SEND", 33),
            ("IPV6_PATHMTU", 61),
            ("IPV6_DONTFRAG", 62),
            ("IPV6_USE_MIN_MTU", 63),
            ("IPV6_TCLASS", 67),
            ("IPV6_AUTOFLOWLABEL", 70),
            ("IPV6_UNICAST_IF", 76),
            ("IPV6_NEXTHOP", 9),
            ("IPV6_AUTHHDR", 10),
            ("IPV6_HOPLIMIT", 52),
            ("IPV6_HOPOPTS", 54),
            ("IPV6_RTHDRDSTOPTS", 55),
            ("IPV6_RTHDR", 57),
            ("IPV6_DSTOPTS", 59),
            ("IPV6_PKTINFO", 50),
        ],
        Nothing,
        "Headers and sizes of segments.",
    ),
    row(
        &[
            ("IPV6_2292PKTINFO", 2),
            ("IPV6_2292HOPOPTS", 3),
            ("IPV6_2292DSTOPTS", 4),
            ("IPV6_2292RTHDR", 5),
            ("IPV6_2292HOPLIMIT", 8),
            ("IPV6_RECVPKTINFO", 49),
            ("IPV6_RECVHOPLIMIT", 51),
            ("IPV6_RECVHOPOPTS", 53),
            ("IPV6_RECVRTHDR", 56),
            ("IPV6_RECVDSTOPTS", 58),
            ("IPV6_RECVPATHMTU", 60),
            ("IPV6_RECVTCLASS", 66),
            ("IPV6_ORIGDSTADDR", 74),
            ("IPV6_RECVORIGDSTADDR", 74),
            ("IPV6_RECVFRAGSIZE", 77),
        ],
        Nothing,
        "Control messages of datagrams; a TCP socket has none.",
    ),
    row(&[("IPV6_2292PKTOPTIONS", 6)], Nothing, "What the last segment's headers said: TCP's."),
    row(
        &[("IPV6_RECVERR", 25), ("IPV6_RECVERR_RFC4884", 31)],
        Nothing,
        "ICMP errors in the error queue, which the kernel keeps.",
    ),
    row(
        &[("IPV6_MINHOPCOUNT", 73)],
        Tcp(UpTo(0)),
        "Segments that have crossed a router are dropped; where it is more than the peer sends with, all are.",
    ),
    row(
        &[("IPV6_IPSEC_POLICY", 34), ("IPV6_XFRM_POLICY", 35)],
        Differs,
        "Segments are encrypted, or dropped. A lane's bytes are in no segment.",
    ),
    row(
        &[("IPV6_V6ONLY", 26), ("IPV6_TRANSPARENT", 75), ("IPV6_FREEBIND", 78)],
        Nothing,
        "Which addresses a socket gets.",
    ),
    row(
        &[
            ("IPV6_CHECKSUM", 7),
            ("IPV6_HDRINCL", 36),
            ("IPV6_ROUTER_ALERT", 22),
            ("IPV6_ROUTER_ALERT_ISOLATE", 30),
        ],
        Nothing,
        "Of raw sockets.",
    ),
    row(
        &[
            ("IPV6_MULTICAST_IF", 17),
            ("IPV6_MULTICAST_HOPS", 18),
            ("IPV6_MULTICAST_LOOP", 19),
            ("IPV6_ADD_MEMBERSHIP", 20),
            ("IPV6_DROP_MEMBERSHIP", 21),
            ("IPV6_JOIN_ANYCAST", 27),
            ("IPV6_LEAVE_ANYCAST", 28),
            ("IPV6_MULTICAST_ALL", 29),
        ],
        Nothing,
        "Multicast and anycast.",
    ),
];

/// IPPROTO_TCP.
pub const TCP: &[Row<Numbered>] = &[
    row(
        &[("TCP_NODELAY", 1)],
        Same("cork.rs option_set"),
        "Sends what is held back. A lane does without Nagle's algorithm.",
    ),
    row(&[("TCP_CORK", 3)], Same("cork.rs option_set"), "Holds back what does not fill a segment."),
    row(
        &[
            ("TCP_MAXSEG", 2),
            ("TCP_SYNCNT", 7),
            ("TCP_LINGER2", 8),
            ("TCP_CONGESTION", 13),
            ("TCP_THIN_LINEAR_TIMEOUTS", 16),
            ("TCP_THIN_DUPACK", 17),
            ("TCP_RTO_MAX_MS", 44),
            ("TCP_RTO_MIN_US", 45),
            ("TCP_DELACK_MAX_US", 46),
        ],
        Nothing,
        "How segments are sent, acknowledged and sent again.",
    ),
    row(
        &[("TCP_QUICKACK", 12)],
        Same("state.rs acknowledge_at_once"),
        "When TCP acknowledges. An end that sends by a lane does it at once, else a segment of the other end's could wait for it.",
    ),
    row(
        &[("TCP_KEEPIDLE", 4), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 6)],
        Same("keepalive.rs aside"),
        "Probes go on on the TCP connection; where somebody between may forget it, more often than the program asked for.",
    ),
    row(
        &[("TCP_USER_TIMEOUT", 18)],
        Differs,
        "Ends a connection whose peer does not acknowledge; a peer on this host that is alive always does.",
    ),
    row(
        &[("TCP_DEFER_ACCEPT", 9)],
        Same("eager.rs deferring"),
        "A server does not see a client before its first bytes, which go by TCP.",
    ),
    row(
        &[("TCP_WINDOW_CLAMP", 10), ("TCP_NOTSENT_LOWAT", 25)],
        Differs,
        "Bound what is on its way, and what waits for that. What is in a ring counts as received by the peer's host.",
    ),
    row(
        &[("TCP_INFO", 11), ("TCP_CC_INFO", 26)],
        Differs,
        "Tell what TCP has carried, which a lane's bytes are no part of.",
    ),
    row(
        &[
            ("TCP_MD5SIG", 14),
            ("TCP_MD5SIG_EXT", 32),
            ("TCP_AO_ADD_KEY", 38),
            ("TCP_AO_DEL_KEY", 39),
            ("TCP_AO_INFO", 40),
            ("TCP_AO_GET_KEYS", 41),
        ],
        Differs,
        "Segments are signed. A lane's bytes are in no segment; its two ends are known by the kernel's word.",
    ),
    row(
        &[("TCP_REPAIR", 19)],
        Back(Reason::TcpRepair, CONTROL),
        "The program reads and sets TCP's own state.",
    ),
    row(
        &[
            ("TCP_REPAIR_QUEUE", 20),
            ("TCP_QUEUE_SEQ", 21),
            ("TCP_REPAIR_OPTIONS", 22),
            ("TCP_TIMESTAMP", 24),
            ("TCP_REPAIR_WINDOW", 29),
            ("TCP_AO_REPAIR", 42),
        ],
        Nothing,
        "Only after TCP_REPAIR.",
    ),
    row(
        &[
            ("TCP_FASTOPEN", 23),
            ("TCP_FASTOPEN_KEY", 33),
            ("TCP_FASTOPEN_CONNECT", 30),
            ("TCP_FASTOPEN_NO_COOKIE", 34),
        ],
        Nothing,
        "Bytes travel with the SYN: long before a lane. Where the counts show it, the connection stays on TCP (facts.rs).",
    ),
    row(&[("TCP_SAVE_SYN", 27), ("TCP_SAVED_SYN", 28)], Nothing, "Keep the headers of the SYN."),
    row(
        &[("TCP_ULP", 31)],
        Back(Reason::Ktls, CONTROL),
        "The kernel encrypts, or frames, what is written (kernel TLS).",
    ),
    row(
        &[("TCP_ZEROCOPY_RECEIVE", 35)],
        Back(Reason::OptionUnsupported, "lifecycle.rs map_bytes"),
        "getsockopt() that maps what TCP has received. What a lane still holds is to be read (recv_skip_hint).",
    ),
    row(
        &[("TCP_INQ", 36)],
        Same("control.rs tell_unread"),
        "A control message with each read that says how much is still there.",
    ),
    row(&[("TCP_TX_DELAY", 37)], Tcp(UpTo(0)), "Each segment leaves so much later."),
    row(&[("TCP_IS_MPTCP", 43)], Nothing, "Tells whether it is MPTCP; such a socket is not watched."),
];
