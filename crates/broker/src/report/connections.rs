//! Connections, as the tools show them.

use super::ReasonText;
use serde::{Deserialize, Serialize};

/// `ss`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connections {
    /// One entry for each watched connection end. Listening sockets are not watched.
    pub connections: Vec<Connection>,
    /// Programs whose connections cannot be looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_versions: Vec<OtherVersion>,
    /// Users who have more than are told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut_off: Vec<u32>,
}

/// A program whose library is of another version than the broker, so that it gets no lanes there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OtherVersion {
    /// Process, as the broker sees it; 0 in a pid namespace that it cannot see.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its name.
    pub comm: String,
    /// Its version of the control protocol; 0: it has none.
    pub control: u16,
    /// Its version of the lanes' protocol.
    pub version: u32,
    /// The broker's.
    pub ours: u32,
    /// Connections that it says to have on lanes, by an earlier broker.
    pub lanes: Option<u32>,
    /// Others that it says to have.
    pub plain: Option<u32>,
    /// Why it gets no lanes.
    pub reason: ReasonText,
}

/// One watched connection end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// ACTIVE: watched ends are connected.
    pub state: String,
    /// Owner of the process.
    pub uid: u32,
    /// Process, as the broker sees it; 0 in a pid namespace that it cannot see.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// A descriptor of the socket in the process.
    pub fd: u32,
    /// SO_COOKIE of the socket, 0 while unknown.
    pub cookie: u64,
    /// "client" or "server".
    pub role: String,
    /// Own address and port; empty while the program has not said it.
    pub local: String,
    /// Peer's address and port; empty as well.
    pub remote: String,
    /// `SMCD`, or `TCP 0xOWN[/0xPEER]`.
    pub mode: String,
    /// Why it is not on a lane.
    pub reason: Option<ReasonText>,
    /// Why the peer says that it is not.
    pub peer_reason: Option<ReasonText>,
    /// Sending.
    pub tx: Direction,
    /// Receiving.
    pub rx: Direction,
    /// How Shunpike is in the process, `libc` or `syscall`; the broker does not know it, whoever asks looks.
    #[serde(default)]
    pub entry: Option<String>,
    /// Device's GID, while on a lane.
    pub gid: Option<String>,
    /// Link group, while matched.
    pub link: Option<u32>,
    /// Slot in the link group.
    pub slot: Option<u16>,
}

impl Connection {
    /// Which way it runs, as a sentence.
    pub fn how(&self) -> String {
        let Self { comm, pid, role, local, remote, .. } = self;
        let from = if local.is_empty() { String::new() } else { format!(" from {local} to {remote}") };
        let way = |mode: &str| if mode == "lane" { "shared memory" } else { "TCP" };
        let runs = match self.reason {
            Some(_) => "runs on TCP".to_owned(),
            None => {
                format!("sends through {} and receives through {}", way(&self.tx.mode), way(&self.rx.mode))
            }
        };
        format!("{comm} (PID {pid}) talks as {role}{from}; it {runs}")
    }
}

/// One direction of a connection end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Direction {
    /// plain (TCP), granted, lane or debt.
    pub mode: String,
    /// Bytes on lanes.
    pub bytes: u64,
    /// Calls that moved them.
    pub calls: u64,
    /// Bytes on TCP.
    pub tcp_bytes: u64,
    /// Bytes that the ring can grow to; 0 without a lane.
    pub ring: u64,
    /// Bytes of the ring in use; 0 without a lane.
    pub window: u64,
    /// DMB token, 16 hexadecimal digits.
    pub token: String,
    /// Generation of the lane.
    pub generation: u32,
    /// Own cursor, bytes since the lane began: produced (tx) or consumed (rx).
    pub own_cursor: u64,
    /// The peer's cursor as last seen: consumed (tx) or produced (rx).
    pub peer_cursor: u64,
    /// The sender's producer flags in CDC's terms: 0x80 it waits for room, 0x10 it asks for the consumer's cursor.
    pub prod_flags: u8,
    /// The sender's state flags in CDC's terms: 0x80 it sends no more on this lane.
    pub state_flags: u8,
}

impl Direction {
    /// A cursor as SMC shows it: wraps and count.
    pub fn wrap_count(&self, cursor: u64) -> (u16, u32) {
        let ring = self.ring.max(1);
        ((cursor / ring) as u16, (cursor % ring) as u32)
    }
}

/// `explain`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Explanations {
    /// One for each connection asked about.
    pub explanations: Vec<Explanation>,
    /// The process, where its connections cannot be looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_versions: Vec<OtherVersion>,
}

/// One connection in words.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// The connection.
    pub connection: Connection,
    /// How it runs: [`Connection::how`].
    pub how: String,
    /// Why.
    pub why: String,
    /// What to do, if anything.
    pub advice: String,
}

/// `linkgroup`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkGroups {
    /// The groups.
    pub link_groups: Vec<LinkGroup>,
}

/// `events`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Events {
    /// In order.
    pub events: Vec<Event>,
    /// Where to go on: the number of the last event that was looked at.
    pub next: u64,
    /// Whether events came before these that are not kept any more.
    pub is_missing: bool,
    /// Names the broker's life: numbers of another one are not to be compared.
    pub broker: String,
}

/// What became of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Rises; the first event has 1: the broker's for the operator, and for others the first one of their user.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// `opened`, `revoked` (it goes on on TCP), `fell back` (it got no lane), `closed` (it ended).
    pub event: String,
    /// How long, in microseconds: `opened`, from the match; else from its opening, or from the match where it was not opened. Absent
    /// where there was no match.
    pub after_us: Option<u64>,
    /// Why.
    pub reason: Option<ReasonText>,
    /// Which end said so, `client` or `server`; absent: the broker.
    pub by: Option<String>,
    /// The ends that the asker may see.
    pub ends: Vec<EventEnd>,
}

/// An end of a connection, in an event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventEnd {
    /// `client` or `server`.
    pub role: String,
    /// Process, as the broker sees it; 0 in a pid namespace that it cannot see.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its name.
    pub comm: String,
    /// Own address and port.
    pub local: String,
    /// Peer's address and port.
    pub remote: String,
}

/// One link group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkGroup {
    /// Its number.
    pub id: u32,
    /// Connections in it.
    pub conns: u32,
    /// Most that it may have.
    pub max_conns: u32,
    /// Process that connected.
    pub client_pid: u32,
    /// Its name.
    pub client_comm: String,
    /// Process that accepted.
    pub server_pid: u32,
    /// Its name.
    pub server_comm: String,
    /// As smc-tools says it: LINK_ACTIVE once both processes have been told, else LINK_ACTIVATING.
    pub state: String,
    /// Completion queues of the process that connected.
    pub client_cqs: u32,
    /// Completion queues of the process that accepted.
    pub server_cqs: u32,
}
