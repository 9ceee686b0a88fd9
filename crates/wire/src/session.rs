//! The broker's protocol: one datagram of a SOCK_SEQPACKET socket is one message.
//!
//! Little-endian, fixed layout, no allocation: the preload library encodes and decodes these inside
//! hooked calls. File descriptors travel beside a message (SCM_RIGHTS); each variant says which.
//! A message that does not parse ends the session, never the process.
//!
//! Two protocols share the socket, each with a version of its own:
//!
//! - *Control* ([`CONTROL`]): `Hello`, `Welcome`, `Lanes`, `Refused`, `Revoke`, `Query` with its answer, and the layouts of session
//!   page and knob page. It only grows: fields are added behind those that are there, messages under new numbers. Who does not know a
//!   field or a message passes over it, so that a library and a broker of different releases list, explain, switch and revoke.
//! - *Lanes* ([`VERSION`]): all other messages, the arena and all that two programs share. They may become anything with a new version. Where
//!   the two versions differ, nothing of it is sent, read or mapped: the session goes on without lanes.

mod codec;

/// Version of the lanes' protocol and of the arena's layout. 16 bits of it travel.
pub const VERSION: u32 = 16;
/// Version of the control protocol: of the messages of control that somebody knows. 0: none, as it was up to lanes' version 9.
pub const CONTROL: u16 = 1;
/// The last version of the lanes' protocol that had no control protocol beside it. It is answered in the form that it knows.
pub const LAST_WITHOUT_CONTROL: u32 = 9;
/// Largest message, bytes. A CLC message is at most [`CLC_MAX`] of them.
pub const MAX: usize = 1024;
/// Largest CLC message carried, bytes (a full SMCv2.1 proposal needs 688).
pub const CLC_MAX: usize = 768;
/// Most doorbells (completion queues) of one process; `num_comp_vectors` of an mlx5 device.
pub const MAX_CQS: usize = 8;
/// Most UEIDs that a broker announces (the wire carries eight).
pub const MAX_UEIDS: usize = 8;
/// Most taps of one process.
pub const MAX_TAPS: usize = 8;
/// Most connections of one link group; the link page has a news bit for each.
pub const MAX_CONNS_PER_LGR: u32 = 256;

/// Names one connection end within its process: block index (low 32 bits) and the block's name, which is another one for each
/// connection, and each time that a connection has withdrawn: what is said of an earlier nomination is not of the next.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ConnId(pub u64);

impl ConnId {
    /// The connection in block `index` while that has this name.
    pub const fn new(index: u32, name: u32) -> Self {
        Self((name as u64) << 32 | index as u64)
    }

    /// Block index.
    pub const fn index(self) -> u32 {
        self.0 as u32
    }

    /// Name of the block.
    pub const fn name(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Which end opened the TCP connection: CLC's client and server.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// connect(): sends the proposal; its `bytes_acked` counts the SYN.
    Client,
    /// accept(): answers it.
    Server,
}

/// What went wrong with bytes from the other side of a session.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SessionError {
    /// Shorter than its type needs.
    Length,
    /// No such role or flag.
    Unknown,
    /// No such message: the other side is of a later version, or means somebody else.
    Type,
    /// The buffer offered for encoding is too small.
    Room,
}

impl core::fmt::Display for SessionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            SessionError::Length => "broker message has a wrong length",
            SessionError::Unknown => "broker message with an unknown value",
            SessionError::Type => "broker message of an unknown type",
            SessionError::Room => "no room to encode a broker message",
        })
    }
}

impl core::error::Error for SessionError {}

/// A CLC message as it travels, not looked into here.
#[derive(Copy, Clone)]
pub struct ClcBytes {
    len: u16,
    bytes: [u8; CLC_MAX],
}

impl ClcBytes {
    /// Copies `clc`. Errors: longer than [`CLC_MAX`].
    pub fn new(clc: &[u8]) -> Result<Self, SessionError> {
        let mut bytes = [0; CLC_MAX];
        bytes.get_mut(..clc.len()).ok_or(SessionError::Length)?.copy_from_slice(clc);
        Ok(Self { len: clc.len() as u16, bytes })
    }

    /// The message's bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

impl PartialEq for ClcBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}
impl Eq for ClcBytes {}
impl core::fmt::Debug for ClcBytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ClcBytes({} B)", self.len)
    }
}

/// Client library to broker.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ToBroker {
    /// First message of a session. Fds: the process's arena (memfd, sealed), then `doorbells` eventfds.
    Hello {
        /// [`CONTROL`].
        control: u16,
        /// [`VERSION`].
        version: u32,
        /// Number of doorbells, 1..=[`MAX_CQS`].
        doorbells: u8,
        /// Process name, as in /proc/PID/comm, NUL-padded.
        comm: [u8; 16],
    },
    /// "I want a lane for this connection; `tx`/`rx` bytes went through my hooks." Fd: the TCP socket.
    /// A second nomination of the same connection replaces the first.
    Nominate {
        /// The connection end.
        conn: ConnId,
        /// Its role.
        role: Role,
        /// Bytes sent through the hooks since the connection was made.
        tx: u64,
        /// Bytes received through the hooks.
        rx: u64,
        /// Where there is no match yet, `Waiting` is to say so.
        answer: bool,
    },
    /// The connection was closed or no longer wants a lane. Ends its match; the peer gets `Gone`. Takes back an
    /// `Expect`, too.
    Withdraw {
        /// The connection end.
        conn: ConnId,
    },
    /// A CLC message for the matched peer.
    Clc {
        /// The sender's end.
        conn: ConnId,
        /// The message.
        clc: ClcBytes,
    },
    /// Register a DMB for `conn`; answered by `Registered`. Fd: the memfd, sealed, of header page + ring.
    Register {
        /// The owner's end; its matched peer is the only one that may attach.
        conn: ConnId,
        /// Ring size class n: 16 KiB << n.
        class: u8,
    },
    /// Attach the peer's DMB; answered by `Attached`.
    Attach {
        /// The attaching end.
        conn: ConnId,
        /// The DMB's name, from Accept or Confirm.
        token: u64,
    },
    /// Let go of a registered DMB.
    Unregister {
        /// Its name.
        token: u64,
    },
    /// Let go of an attached DMB.
    Detach {
        /// Its name.
        token: u64,
        /// It is mapped nowhere any more that the sender knows of: not in a forked child either.
        gone: bool,
    },
    /// In place of Unregister: the connection is over and the owner keeps the DMB for the next one with the same process.
    /// Answered by `Parked` once the peer has let go of it, or by `Dropped`.
    Park {
        /// Its name.
        token: u64,
    },
    /// In place of Register, and answered like it: a parked DMB, zeroed where it matters, is to serve `conn`, under a new name.
    /// Refused, it is let go of.
    Reuse {
        /// The owner's end; its matched peer is the only one that may attach.
        conn: ConnId,
        /// The DMB's name so far.
        token: u64,
    },
    /// A tool's first and only message; answered by datagrams of JSON text ended by an empty one.
    /// `arg` is the query's argument, e.g. a PID or a value to set.
    Query {
        /// What to do, see the broker's list.
        what: u16,
        /// UTF-8 argument.
        arg: ClcBytes,
    },
    /// Before connect(), and after listen(), by a program that waits for its lanes: whoever nominates the other
    /// end of such a connection is told that somebody is expected there. A hint; nothing is matched by it.
    Expect {
        /// Names this expectation in a later `Withdraw`; not a connection's.
        conn: ConnId,
        /// Client: is about to connect to this address. Server: listens there.
        role: Role,
        /// IPv6 or IPv4-mapped address; all zeroes (or the mapped zeroes) where a server listens on all.
        ip: [u8; 16],
        /// Port.
        port: u16,
    },
    /// In a session without lanes, after the Welcome and when it has changed: what this process has. (In one with lanes its arena
    /// shows it.)
    Lanes {
        /// Connections on lanes, which an earlier broker had matched.
        lanes: u32,
        /// Other watched connections.
        plain: u32,
    },
    /// From a tap: memory for the records of one process, whichever comes next. Fd: the memfd, sealed.
    Ring {
        /// The tap's own number for it.
        ring: u32,
        /// Ring size class n: 256 KiB << n.
        class: u8,
    },
}

/// Who may be at the other end of a connection that has been nominated from one end only.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Expected {
    /// Nobody that is known: most likely a program without Shunpike.
    Nobody,
    /// Only the nominating process itself.
    Own,
    /// Another process.
    Other,
}

/// Broker to client library.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FromBroker {
    /// Answer to Hello. Fds: the session page and the knob page (memfds, mapped read-only by the client).
    Welcome(Welcome),
    /// The peer has nominated too and the kernel says that the two sockets are one connection.
    /// Fds, only when `first_contact`: the link page, then `doorbells` eventfds of the peer process.
    Matched {
        /// The receiver's own end.
        conn: ConnId,
        /// Link group, unique in this broker's life.
        link: u32,
        /// News slot of this connection in the link page, < [`MAX_CONNS_PER_LGR`].
        slot: u16,
        /// Which half of the link page this process writes: 0 or 1.
        side: u8,
        /// Set when this side of the link group has not been told of it yet. Both ends of a connection always
        /// agree on it, also where one process is both sides.
        first_contact: bool,
        /// Number of the peer's doorbells, 1..=[`MAX_CQS`].
        doorbells: u8,
        /// Process of the peer, where the receiver may try to read its memory: they have one user, and one pid namespace
        /// with the broker. Else 0.
        peer: u32,
    },
    /// Tuples mirror but the counts of the two ends do not yet: nominate again when quiet.
    Again {
        /// The end.
        conn: ConnId,
    },
    /// No lane for this connection; final until the next nomination.
    Refused {
        /// The end.
        conn: ConnId,
        /// Fallback reason code.
        reason: u32,
    },
    /// The matched peer withdrew or its process ended.
    Gone {
        /// The end.
        conn: ConnId,
    },
    /// A CLC message from the matched peer.
    Clc {
        /// The receiver's end.
        conn: ConnId,
        /// The message.
        clc: ClcBytes,
    },
    /// Answer to Register.
    Registered {
        /// The end.
        conn: ConnId,
        /// Its DMB's name; 0 when refused.
        token: u64,
        /// 0, or the fallback reason code.
        reason: u32,
    },
    /// Answer to Attach. Fd, only when `reason` is 0: the DMB's memfd.
    Attached {
        /// The end.
        conn: ConnId,
        /// The name asked for.
        token: u64,
        /// Ring size class.
        class: u8,
        /// 0, or the fallback reason code.
        reason: u32,
    },
    /// A parked DMB can be used again.
    Parked {
        /// Its name.
        token: u64,
    },
    /// A parked DMB, or one that was to be, is let go of.
    Dropped {
        /// Its name.
        token: u64,
    },
    /// An operator asks: close the lane of this connection (0: of all), stay on TCP until nominated anew.
    Revoke {
        /// The end; `ConnId(0)` names all.
        conn: ConnId,
    },
    /// The other process of a link group ended: the group's page and doorbells serve no new connection.
    /// Sent after `Gone` for each of its connections.
    LinkGone {
        /// Link group.
        link: u32,
    },
    /// Answer to a Nominate that has no match yet: its descriptor is closed again. All that was sent to the broker
    /// before that Nominate was, by whatever process, has been read (but for a crowd's messages).
    ///
    /// Behind `Matched`, with nobody: that peer had been told so itself, and may be asleep where it hears of nothing but bytes by TCP.
    Waiting {
        /// The end.
        conn: ConnId,
        /// Who may nominate the other end.
        expected: Expected,
    },
    /// Somebody who may wants to see what this process sends on lanes. Fd: the ring, a sealed memfd.
    Tap {
        /// Names the tap in a later `Untap`.
        tap: u64,
        /// Ring size class n: 256 KiB << n.
        class: u8,
        /// It is root, who may look into every process.
        root: bool,
    },
    /// That one is gone.
    Untap {
        /// The tap.
        tap: u64,
    },
    /// To a tap: a process was given one of its rings.
    Tapped {
        /// The ring's number.
        ring: u32,
        /// The process, as the broker's pid namespace names it; 0 when it cannot.
        pid: u32,
        /// Its user.
        uid: u32,
        /// Its name, NUL-padded.
        comm: [u8; 16],
    },
    /// To a tap: the process of this ring has ended its session, and mostly itself.
    TapOver {
        /// The ring's number.
        ring: u32,
    },
}

/// What a client library must know of the device and the system.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The broker's [`CONTROL`].
    pub control: u16,
    /// The broker's [`VERSION`]; another one than the client's: the session is one without lanes.
    pub version: u32,
    /// Instance and MAC-like id of this host for CLC (`id_for_peer`).
    pub peer_id: [u8; 8],
    /// GID: high word `gid`, low word `gid_ext`, as 128-bit number.
    pub gid: u128,
    /// CHID of the device, 0xFFFF for loopback-ism.
    pub chid: u16,
    /// Whether the SEID takes part in the match.
    pub seid_enabled: bool,
    /// SEID, 32 bytes.
    pub seid: [u8; 32],
    /// Number of valid entries in `ueids`.
    pub ueid_count: u8,
    /// UEIDs, blank-padded.
    pub ueids: [[u8; 32]; MAX_UEIDS],
}
