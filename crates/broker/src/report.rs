//! What the broker answers to the tools, as JSON. Both sides use these types.
//!
//! 64-bit names (tokens, GIDs) are hexadecimal text: JSON's readers do not all have 64-bit numbers.

use serde::{Deserialize, Serialize};

/// What every answer may be instead: an error.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Present when the query was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// Why a query was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// What failed.
    pub what: String,
    /// On what.
    pub on: String,
    /// What to do.
    pub hint: String,
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({}); {}", self.what, self.on, self.hint)
    }
}

/// A numbered reason for staying on TCP.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReasonText {
    /// Number, as in a CLC Decline.
    pub code: u32,
    /// Stable name.
    pub key: String,
    /// For people.
    pub text: String,
}

impl ReasonText {
    /// A reason of ours.
    pub fn of(reason: shunpike_wire::Reason) -> Self {
        Self { code: reason.code(), key: reason.key().to_owned(), text: reason.text().to_owned() }
    }

    /// What a program says is its reason, or its peer's.
    pub fn of_code(code: u32) -> Self {
        let unknown = || Self {
            code,
            key: "unknown".to_owned(),
            text: "a reason that this version does not know".to_owned(),
        };
        shunpike_wire::Reason::from_code(code).map_or_else(unknown, Self::of)
    }
}

/// `ss`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connections {
    /// One entry for each watched connection end. Listening sockets are not watched.
    pub connections: Vec<Connection>,
    /// Programs whose connections cannot be looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_versions: Vec<OtherVersion>,
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

/// Wake-ups by latency: from the ring (or FUTEX_WAKE) of the peer until the sleeper runs. Sleeps that end for other
/// reasons are not counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WakeUps {
    /// How many took less than 1 µs, 2, 4, ..., 16384 µs, and longer.
    pub classes: Vec<u64>,
}

impl WakeUps {
    /// From the counts of the classes.
    pub fn of(classes: impl Into<Vec<u64>>) -> Self {
        Self { classes: classes.into() }
    }

    /// All of them.
    pub fn count(&self) -> u64 {
        self.classes.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Upper bounds of the classes, microseconds; the last has none.
    pub fn bounds(&self) -> impl Iterator<Item = Option<u64>> {
        let last = self.classes.len().saturating_sub(1);
        (0..self.classes.len()).map(move |class| (class < last).then(|| 1 << class))
    }

    /// Upper bound of the class that the quantile `q` (0 to 1) is in, microseconds; for the last one its lower bound.
    /// `None` where there are none.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let wanted = ((self.count() as f64 * q).ceil() as u64).max(1);
        let mut seen = 0u64;
        let class = self.classes.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= wanted
        })?;
        Some(1 << class.min(self.classes.len().saturating_sub(2)))
    }

    /// Those that came since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let then = before.classes.iter().chain(std::iter::repeat(&0));
        Self::of(
            self.classes.iter().zip(then).map(|(now, then)| now.saturating_sub(*then)).collect::<Vec<_>>(),
        )
    }
}

/// `stats`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// Connections.
    pub connections: ConnectionCounts,
    /// Sent on lanes.
    pub tx: Traffic,
    /// Received on lanes.
    pub rx: Traffic,
    /// Sleeps for news.
    pub sleeps: u64,
    /// Waits that a spin satisfied.
    pub spins: u64,
    /// Times that TCP_CORK or MSG_MORE held bytes back on a lane.
    pub corked: u64,
    /// How fast sleepers ran after they were rung for.
    pub wakeups: WakeUps,
    /// Names the broker's life: counts of another one are not to be compared.
    pub broker: String,
}

/// Connection ends by what became of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionCounts {
    /// Seen by the hooks.
    pub handled: u64,
    /// At some time on a lane.
    pub smc: u64,
    /// On TCP with a reason: those that ended there and those that are.
    pub fallback: u64,
    /// Of them as client.
    pub client: RoleCounts,
    /// Of them as server.
    pub server: RoleCounts,
    /// Fallbacks by reason, those that occurred.
    pub reasons: Vec<FallbackCount>,
    /// Ends that sent their connection back to TCP, where it goes on.
    pub revoked: u64,
    /// Handshakes that failed.
    pub handshake_errors: u64,
}

/// Connection ends of one role.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RoleCounts {
    /// Seen by the hooks.
    pub handled: u64,
    /// At some time on a lane.
    pub smc: u64,
    /// On TCP with a reason.
    pub fallback: u64,
}

/// Connection ends that stayed on TCP for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FallbackCount {
    /// Number.
    pub code: u32,
    /// Stable name.
    pub key: String,
    /// For people.
    pub text: String,
    /// As client.
    pub client: u64,
    /// As server.
    pub server: u64,
}

/// Bytes and calls of one direction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Calls.
    pub calls: u64,
    /// Calls by size, in the order of [`HISTOGRAM`].
    pub histogram: Vec<Calls>,
}

/// Calls of one size class.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Calls {
    /// One of [`HISTOGRAM`].
    pub size: String,
    /// How many.
    pub calls: u64,
}

/// Size classes of calls: up to so much, the last one more. smc-tools' own.
pub const HISTOGRAM: [&str; 8] = ["8KB", "16KB", "32KB", "64KB", "128KB", "256KB", "512KB", ">512KB"];

/// `device`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Device {
    /// loopback-ism.
    pub name: String,
    /// GID: two words of 16 hexadecimal digits.
    pub gid: String,
    /// CHID, 4 hexadecimal digits.
    pub chid: String,
    /// Whether new lanes may be opened.
    pub active: bool,
    /// Whether data is copied through a send buffer.
    pub dmb_copy: bool,
    /// Memory of DMBs: virtual, always.
    pub dmb_type: String,
    /// Bytes moved on lanes since the broker began.
    pub xfer_bytes: u64,
    /// Ring size of new DMBs, bytes.
    pub rmem: u64,
    /// DMBs registered.
    pub dmbs_cnt: u64,
    /// DMBs that there may be.
    pub max_dmbs: u64,
    /// Link groups.
    pub link_groups: u64,
    /// Processes with a session.
    pub sessions: u64,
}

/// `info`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Info {
    /// The broker's version.
    pub version: String,
    /// Version of the protocol between it and the library.
    pub protocol: u32,
    /// SMC versions spoken.
    pub smc: String,
    /// The broker's process.
    pub pid: u32,
    /// Its socket.
    pub socket: String,
    /// Whether it serves one user.
    pub private: bool,
    /// Who may be a peer of whom, and what each may take.
    pub policy: Policy,
    /// Whether it may look at sequence numbers, and so matches through NAT and between any namespaces.
    pub privileged: bool,
    /// Seconds since it began.
    pub uptime: u64,
    /// Processes with a session.
    pub sessions: u64,
    /// Others, whose library is of another version.
    #[serde(default)]
    pub other_versions: u64,
    /// Nominations that wait for their peer.
    pub waiting: u64,
    /// UEIDs.
    pub ueids: Vec<String>,
    /// The device.
    pub device: Device,
}

/// `ueid`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ueids {
    /// UEIDs in the order in which they are offered. Programs learn of a change at their next session.
    pub ueids: Vec<String>,
}

/// `seid`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seid {
    /// SEID; empty where the host has none, as everywhere but on s390.
    pub seid: String,
    /// Whether it takes part in the match.
    pub enabled: bool,
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

/// `top`: what each process has done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Processes {
    /// One entry for each process that the asker may look into.
    pub processes: Vec<Process>,
}

/// What one process has done since it opened its session, over all its connections.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Process {
    /// Process, as the broker sees it; 0 in a pid namespace that it cannot see.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its name.
    pub comm: String,
    /// Connection ends that are open and watched.
    pub connections: u64,
    /// Of these, those with a lane in one direction at least.
    pub lanes: u64,
    /// Bytes sent on lanes.
    pub tx_bytes: u64,
    /// Calls that sent them.
    pub tx_calls: u64,
    /// Bytes received on lanes.
    pub rx_bytes: u64,
    /// Calls that received them.
    pub rx_calls: u64,
    /// Ends on TCP with a reason: those that ended there and those that are.
    pub fallback: u64,
    /// Ends that sent their connection back to TCP, where it goes on.
    pub revoked: u64,
    /// Sleeps for news.
    pub sleeps: u64,
    /// Waits that a spin satisfied.
    pub spins: u64,
    /// How fast its sleepers ran after they were rung for.
    pub wakeups: WakeUps,
}

/// Processes of which pidfds come with the answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pids {
    /// Their numbers, as the broker sees them, in the order of the pidfds.
    pub pids: Vec<u32>,
}

/// May a lane be opened to a process: `chk`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// Whether new lanes are opened at all.
    pub active: bool,
    /// Whether the process has a session; `None` where the asker has no right to know.
    pub session: Option<bool>,
    /// The version of its library, where that is another one than the broker's.
    #[serde(default)]
    pub other_version: Option<u32>,
    /// Whether policy lets the asker and the process's user be peers.
    pub permitted: bool,
    /// What policy asks for, in words.
    pub peers: String,
    /// What to change where it does not permit it.
    #[serde(default)]
    pub advice: String,
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

/// A policy as `info` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// The file that it comes from; absent: built in.
    pub file: Option<String>,
    /// `same-user`, `groups` or `any`.
    pub peers: String,
    /// The line of the file that says so; absent: it is built in.
    #[serde(default)]
    pub line: Option<usize>,
    /// The groups.
    pub groups: Vec<String>,
    /// Mode of the socket, octal.
    pub socket_mode: String,
    /// Its group, where one is configured.
    pub socket_group: Option<String>,
    /// Of one process.
    pub process: Limits,
    /// Of one user.
    pub user: Limits,
}

/// Limits as `info` shows them; absent: none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Sessions.
    pub sessions: Option<u64>,
    /// DMBs.
    pub dmbs: Option<u64>,
    /// Bytes of DMBs.
    pub bytes: Option<u64>,
    /// Nominations in a second.
    pub nominations_per_second: Option<u32>,
}

/// `policy reload`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reloaded {
    /// Whether anything of it is other than before.
    pub changed: bool,
    /// The policy that holds now.
    pub policy: Policy,
    /// Settings that have another value now, as NAME=VALUE.
    pub settings: Vec<String>,
    /// Connections whose lanes it does not permit, and which were told to go back to TCP.
    pub revoked: usize,
    /// What is not taken before a restart.
    pub notes: Vec<String>,
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

/// A query that changes something, done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Done {
    /// What was done, for people.
    pub done: String,
}

/// `sysctl`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sysctls {
    /// The settings.
    pub sysctls: Vec<Sysctl>,
    /// Values that programs of a name have in place of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramSysctl>,
}

/// A setting of the programs of a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramSysctl {
    /// The programs' name.
    pub program: String,
    /// The setting's.
    pub name: String,
    /// Value.
    pub value: u64,
    /// Which file says so.
    pub from: String,
}

/// One setting.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sysctl {
    /// Name.
    pub name: String,
    /// Value.
    pub value: u64,
    /// Value that is built in.
    pub default: u64,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// Where the value comes from: default, file, environment, command line, run time.
    pub source: String,
    /// Which file or variable, or who set it; empty where there is no more to say.
    pub from: String,
    /// What it does, with its unit.
    pub text: String,
}
