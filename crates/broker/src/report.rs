//! What the broker answers to the tools, as JSON. Both sides use these types.
//!
//! 64-bit names (tokens, GIDs) are hexadecimal text: JSON's readers do not all have 64-bit numbers.

mod connections;
mod counters;

use serde::{Deserialize, Serialize};

pub use connections::*;
pub use counters::*;

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
    /// Descriptors that the broker has open, and may have.
    #[serde(default)]
    pub open_files: Option<OpenFiles>,
    /// The device.
    pub device: Device,
}

/// A process's descriptors.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenFiles {
    /// So many are open.
    pub open: u64,
    /// So many may be (RLIMIT_NOFILE).
    pub limit: u64,
}

impl OpenFiles {
    /// Whether what is left may be too few for another program and its lanes.
    pub fn are_few(&self) -> bool {
        self.limit.saturating_sub(self.open) < 8 + self.limit / 16
    }
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
