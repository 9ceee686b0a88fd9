//! Why a connection stays on TCP, or went back to it.
//!
//! One list from which everything derives: the diagnosis of a CLC Decline, the counters of the
//! statistics, what the tools print and what the documentation says.

use core::fmt;

macro_rules! reasons {
    ($($name:ident = $code:literal, $key:literal, $text:literal;)*) => {
        /// A numbered reason for not using shared memory on a connection.
        ///
        /// Codes below `0x0A00_0000` are those of SMC (Linux `net/smc/smc_clc.h`, `SMC_CLC_DECL_*`)
        /// and mean here what they mean there. Codes from `0x0A00_0000` are Shunpike's own: the kernel
        /// has no such case. The low byte of their upper half groups them: 0 not tried yet,
        /// 1 nobody to ask, 2 not eligible, 3 what the program did, 4 resources, 5 ended while open.
        #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $text] $name,)*
        }

        impl Reason {
            /// Every reason, in the order of [`Reason::index`].
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// The reason's number, as a Decline carries it and as the tools print it (`0x%08x`).
            pub const fn code(self) -> u32 {
                match self { $(Reason::$name => $code),* }
            }

            /// A stable snake_case name, for JSON and metrics.
            pub const fn key(self) -> &'static str {
                match self { $(Reason::$name => $key),* }
            }

            /// One line for people, without a full stop.
            pub const fn text(self) -> &'static str {
                match self { $(Reason::$name => $text),* }
            }

            /// The reason with this number, or `None` for a number that is not in the list
            /// (a peer may send any).
            pub const fn from_code(code: u32) -> Option<Reason> {
                match code { $($code => Some(Reason::$name),)* _ => None }
            }
        }
    };
}

impl Reason {
    /// How many reasons there are: the length of an array of counters.
    pub const COUNT: usize = Reason::ALL.len();

    /// The reason's place in [`Reason::ALL`], dense from 0. It may change from release to release:
    /// what is stored or sent is the [`code`](Reason::code).
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether the number is one that SMC itself defines.
    pub const fn is_smc(self) -> bool {
        self.code() < 0x0A00_0000
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:08x})", self.text(), self.code())
    }
}

reasons! {
    // SMC's own.
    Memory             = 0x0101_0000, "memory", "no memory for a buffer or a link group, or for one more connection of the process";
    ConfirmTimeout     = 0x0201_0000, "confirm_timeout", "the peer did not answer the handshake in time";
    AddLinkTimeout     = 0x0202_0000, "add_link_timeout", "the peer did not answer ADD LINK in time";
    Configuration      = 0x0300_0000, "configuration", "configuration error";
    PeerNoSmc          = 0x0301_0000, "peer_no_smc", "the peer does not offer SMC";
    Ipsec              = 0x0302_0000, "ipsec", "the connection is protected by IPsec";
    NoDevice           = 0x0303_0000, "no_device", "no SMC device found on either side";
    NoSmcD             = 0x0303_0001, "no_smcd", "no SMC-D device in common";
    NoSmcR             = 0x0303_0002, "no_smcr", "no SMC-R device in common";
    NoIsmV2            = 0x0303_0003, "no_ismv2", "no device that supports ISMv2";
    NoV2Extension      = 0x0303_0004, "no_v2_extension", "the proposal has no SMCv2 extension";
    NoSmcDV2Extension  = 0x0303_0005, "no_smcdv2_extension", "the proposal has no SMC-Dv2 extension";
    NoSeid             = 0x0303_0006, "no_seid", "no SEID that both sides enable, and no UEID offered";
    NoSmcDV2Device     = 0x0303_0007, "no_smcdv2_device", "no SMC-Dv2 device in common";
    NoUeid             = 0x0303_0008, "no_ueid", "no EID that both sides know";
    ReleaseMismatch    = 0x0303_0009, "release_mismatch", "the peer's SMC release does not fit";
    MaxConnsMismatch   = 0x0303_000a, "max_conns_mismatch", "connections per link group could not be agreed";
    MaxLinksMismatch   = 0x0303_000b, "max_links_mismatch", "links per link group could not be agreed";
    ModeMismatch       = 0x0304_0000, "mode_mismatch", "the two sides chose different SMC modes";
    RmbeEyecatcher     = 0x0305_0000, "rmbe_eyecatcher", "the RMBE's eyecatcher is missing";
    OptionUnsupported  = 0x0306_0000, "option_unsupported", "a socket option that SMC cannot serve is in use";
    PrefixMismatch     = 0x0307_0000, "prefix_mismatch", "the two sides share no IP prefix";
    VlanUnknown        = 0x0308_0000, "vlan_unknown", "the connection's VLAN could not be found out";
    VlanNotOnIsm       = 0x0309_0000, "vlan_not_on_ism", "the ISM device does not serve the connection's VLAN";
    NoActiveLink       = 0x030a_0000, "no_active_link", "the link group has no active link";
    ServerLinkUnknown  = 0x030b_0000, "server_link_unknown", "the server named a link that is not known";
    VersionMismatch    = 0x030c_0000, "version_mismatch", "the two sides' SMC versions do not fit";
    MaxDmb             = 0x030d_0000, "max_dmb", "the device has no DMB left";
    NoRoute            = 0x030e_0000, "no_route", "no route to the peer's RoCE device";
    Indirect           = 0x030f_0000, "indirect", "the two sides are not on one link";
    Sync               = 0x0400_0000, "sync", "the handshake is out of step";
    PeerDeclined       = 0x0500_0000, "peer_declined", "the peer declined";
    Internal           = 0x0999_0000, "internal", "internal error";
    Rtoken             = 0x0999_0001, "rtoken", "the peer's RMB token could not be stored";
    ReadyLink          = 0x0999_0002, "ready_link", "the link could not be made ready";
    RegisterBuffer     = 0x0999_0003, "register_buffer", "the RMB could not be registered";

    // Not tried yet.
    NotNominated       = 0x0a00_0000, "not_nominated", "too few bytes or exchanges so far to be worth a lane";
    AwaitingPeer       = 0x0a00_0001, "awaiting_peer", "the other end has not been nominated (yet)";
    NotEstablished     = 0x0a00_0002, "not_established", "the connection is not established";

    // Nobody to ask.
    NoBroker           = 0x0a01_0000, "no_broker", "no broker reached";
    BrokerGone         = 0x0a01_0001, "broker_gone", "the broker went away";
    Inactive           = 0x0a01_0002, "inactive", "the device is switched off";
    NotPermitted       = 0x0a01_0003, "not_permitted", "policy does not allow it, or the peer is another user's";
    BrokerForeign      = 0x0a01_0004, "broker_foreign", "who serves at the broker's socket is neither this user nor root, or anybody could have put it there";
    VersionDiffers     = 0x0a01_0005, "version_differs", "library and broker are of two versions, of which one does not know the other's lanes";

    // Not eligible.
    NotLocal           = 0x0a02_0000, "not_local", "the peer is on another host";
    GidUnreachable     = 0x0a02_0001, "gid_unreachable", "the peer's GID cannot be reached from this device";
    BypassedHooks      = 0x0a02_0002, "bypassed_hooks", "bytes go round the hooks (raw system calls, libc's aio, another process), or have: the kernel's counts differ";
    FastOpen           = 0x0a02_0003, "fast_open", "TCP Fast Open is in use";
    PortOff            = 0x0a02_0004, "port_off", "the list of what is on (shunpike enable --all) has one of its ports off";

    // What the program did with the connection.
    Shared             = 0x0a03_0000, "shared", "several processes hold the connection (fork)";
    HandedOver         = 0x0a03_0001, "handed_over", "another program has got it: inherited (exec, posix_spawn), or sent (SCM_RIGHTS)";
    UrgentData         = 0x0a03_0002, "urgent_data", "urgent data";
    Ktls               = 0x0a03_0003, "ktls", "kernel TLS";
    TcpRepair          = 0x0a03_0004, "tcp_repair", "TCP_REPAIR";
    IoUring            = 0x0a03_0005, "io_uring", "the program uses io_uring, whose reads and writes no hook sees";
    Stdio              = 0x0a03_0006, "stdio", "a stdio stream is open on the connection";
    Splice             = 0x0a03_0007, "splice", "splice or tee on the connection, or sendfile of what cannot be read into a ring (O_DIRECT)";
    EpollSets          = 0x0a03_0008, "epoll_sets", "the process has more registrations in epoll sets than can be kept, or than the kernel has room for";
    Confined           = 0x0a03_0009, "confined", "a system call filter (seccomp) that the program has installed, or that refuses what a proof takes";
    WaitsUnseen        = 0x0a03_000a, "waits_unseen", "nothing seen yet of how the program waits for the connection";
    PrivateDescriptors = 0x0a03_000c, "private_descriptors", "threads of the process have descriptors of their own (unshare)";
    ReadingShut        = 0x0a03_000d, "reading_shut", "the program has shut down its reading (SHUT_RD of shutdown)";
    OtherNames         = 0x0a03_000e, "other_names", "the socket had another name when it was connected: a duplicate, or one in another process";

    NestedSets         = 0x0a03_0010, "nested_sets", "an epoll set that it is in is waited for itself (by poll, or in another set, or by Linux AIO), or was sent to another program; or a forked process has the set, too, and it is one-shot there";
    SharedInSet        = 0x0a03_0011, "shared_in_set", "a descriptor of it that is in an epoll set was closed while it has another one";
    SetUnseen          = 0x0a03_0012, "set_unseen", "it came into an epoll set by a call that no hook sees (io_uring, raw system calls)";

    // Resources.
    DmbLimit           = 0x0a04_0000, "dmb_limit", "the process's or user's limit of DMBs or their memory is reached";
    MemoryRefused      = 0x0a04_0001, "memory_refused", "the kernel refused memory for a DMB";
    AttachRefused      = 0x0a04_0002, "attach_refused", "the broker refused to attach the peer's DMB";
    NoDescriptors      = 0x0a04_0003, "no_descriptors", "no file descriptor left";
    NominationLimit    = 0x0a04_0004, "nomination_limit", "more nominations or handshakes at a time than policy, limit_smc_hs or one process allows";

    LinkLimit          = 0x0a04_0008, "link_limit", "the process has lanes with as many other processes as it can keep link groups for";

    // Ended while it was being set up, or while it was open.
    HandshakeTimeout   = 0x0a05_0000, "handshake_timeout", "the device did not answer in the time of the handshake";
    PeerVanished       = 0x0a05_0001, "peer_vanished", "the peer went away during the handshake";
    Revoked            = 0x0a05_0002, "revoked", "revoked by the operator";
    GraceExceeded      = 0x0a05_0003, "grace_exceeded", "the peer took no bytes within the grace (stopped?)";
    PeerViolation      = 0x0a05_0004, "peer_violation", "the peer broke the protocol";
    GenerationsSpent   = 0x0a05_0005, "generations_spent", "the lane was reopened as often as its generations allow";
    LentUnreadable     = 0x0a05_0006, "lent_unreadable", "bytes sent with MSG_ZEROCOPY were gone before they were read";
    LentDenied         = 0x0a05_0007, "lent_denied", "the kernel does not let the receiver read any more what was sent with MSG_ZEROCOPY";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_the_place_in_all() {
        for (i, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), i);
        }
        assert_eq!(Reason::COUNT, Reason::ALL.len());
    }

    #[test]
    fn codes_and_keys_are_unique_and_codes_lead_back() {
        for (i, a) in Reason::ALL.iter().enumerate() {
            assert_eq!(Reason::from_code(a.code()), Some(*a));
            for b in &Reason::ALL[i + 1..] {
                assert_ne!(a.code(), b.code(), "{a:?} {b:?}");
                assert_ne!(a.key(), b.key(), "{a:?} {b:?}");
            }
        }
        assert_eq!(Reason::from_code(0), None);
        assert_eq!(Reason::from_code(0x0303_00ff), None);
    }

    #[test]
    fn keys_and_texts_have_their_form() {
        for reason in Reason::ALL {
            let key = reason.key();
            assert!(key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{key}");
            assert!(!reason.text().is_empty() && !reason.text().ends_with('.'));
        }
    }

    #[test]
    fn own_codes_stay_in_their_range() {
        for reason in Reason::ALL {
            let own = (0x0a00_0000..0x0b00_0000).contains(&reason.code());
            assert_eq!(own, !reason.is_smc(), "{reason:?}");
        }
    }

    #[test]
    fn prints_text_and_number() {
        assert_eq!(Reason::NoUeid.to_string(), "no EID that both sides know (0x03030008)");
    }
}
