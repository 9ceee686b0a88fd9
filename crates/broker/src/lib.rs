//! The broker: the emulated ISM device, and the trust anchor of two processes that open a lane.
//!
//! It is never on the data path. It believes what the kernel says of a socket, not what a client says.

pub mod address;
mod answerable;
mod channel;
mod client;
pub mod clock;
#[cfg(test)]
mod conformance;
mod datagram;
mod diag;
pub mod ends;
pub mod exchange;
mod expectations;
mod explain;
pub mod facts;
mod foreign;
mod helpers;
pub mod ism;
mod journal;
mod knobs;
mod laneless;
pub mod links;
mod listing;
pub mod loopback;
pub mod matching;
pub mod metrics;
pub mod policy;
mod rate;
mod reply;
pub mod report;
mod runtime;
pub mod sequence;
mod server;
mod session;
pub mod settings;
mod sockopt;
mod stats;
mod successor;
mod system;

pub use client::{QueryError, TapSession, query, what, who_serves};
use policy::{Policy, Source};
use rustix::fd::BorrowedFd;
pub use server::Server;
pub use settings::PROFILES;
use settings::Setting;
use shunpike_shm::RegionError;
use shunpike_wire::{Eid, Gid};
use std::path::PathBuf;
use std::time::Duration;
pub use successor::Successor;

/// How a broker is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens. The directory is made if missing.
    pub socket: PathBuf,
    /// Serves its own user (and root) only; otherwise everybody.
    pub private: bool,
    /// Who may be a peer of whom, and what each may take.
    pub policy: Policy,
    /// Where that is read from again.
    pub source: Source,
    /// Settings that differ from the built-in ones, in rising precedence.
    pub settings: Vec<Setting>,
    /// Where metrics are served; nowhere otherwise.
    pub metrics: Option<address::Address>,
    /// The device's GID; otherwise a random one, kept for the boot.
    pub gid: Option<Gid>,
    /// UEIDs, at most 8; where there is none, one of this system's own.
    pub ueids: Vec<Eid>,
    /// Ends this long after the last session did.
    pub idle_exit: Option<Duration>,
    /// Ends once this one serves; its programs go there.
    pub successor: Option<Successor>,
    /// DMBs that the device can hold.
    pub max_dmbs: usize,
    /// Processes served at a time.
    pub max_sessions: usize,
}

impl Config {
    /// A private broker at `socket` that never ends by itself.
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            private: true,
            policy: Policy::private(),
            source: Source::none(true, Policy::private()),
            settings: Vec::new(),
            metrics: None,
            gid: None,
            ueids: Vec::new(),
            idle_exit: None,
            successor: None,
            max_dmbs: 32768,
            max_sessions: 4096,
        }
    }

    /// A system-wide broker at `socket`, with the built-in policy.
    pub fn system_wide(socket: PathBuf) -> Self {
        let private = Self::new(socket);
        let policy = Policy::system_wide(private.max_sessions, private.max_dmbs);
        let source = Source::none(false, policy.clone());
        Self { private: false, policy, source, ..private }
    }
}

/// Why a broker does not serve.
#[derive(Debug)]
pub enum BrokerError {
    /// Another broker serves this socket.
    AlreadyServed {
        /// The socket.
        socket: PathBuf,
    },
    /// Others than its owner could replace what is in the directory.
    UnsafeDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Something that is no socket is in the way.
    NotASocket {
        /// What is there.
        path: PathBuf,
    },
    /// A system call on a file.
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A system call on no file in particular.
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
    /// Metrics cannot be served.
    Metrics {
        /// Where.
        address: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// No memory for the knob page.
    Region(RegionError),
}

impl core::fmt::Display for BrokerError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            BrokerError::AlreadyServed { socket } => {
                write!(
                    f,
                    "another broker serves {} already; use that one, or another --socket",
                    socket.display()
                )
            }
            BrokerError::UnsafeDirectory { path } => write!(
                f,
                "{} is not a directory of yours (or root's) that only its owner can write to: \
                 anybody could pose as the broker there; chmod go-w it, or choose another --socket",
                path.display()
            ),
            BrokerError::NotASocket { path } => {
                write!(f, "{} is no socket and stays; choose another --socket", path.display())
            }
            BrokerError::Io { what, path, error } => write!(f, "cannot {what} {}: {error}", path.display()),
            BrokerError::System { what, error } => write!(f, "cannot {what}: {error}"),
            BrokerError::Metrics { address, error } => {
                write!(f, "cannot serve metrics at {address}: {error}; choose another --metrics")
            }
            BrokerError::Region(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BrokerError {}

impl From<RegionError> for BrokerError {
    fn from(error: RegionError) -> Self {
        BrokerError::Region(error)
    }
}

/// Serves until `stop` becomes readable, or until idle. Then the socket is removed and sessions end;
/// open lanes go on without a broker.
pub fn run(mut config: Config, stop: Option<BorrowedFd<'_>>) -> Result<(), BrokerError> {
    serve(&mut config, stop.map(|fd| Orders { fd, take: &|| Order::End }))
}

/// What the operator has told a broker to do.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// To end.
    End,
    /// To read its policy again.
    Reload,
    /// Nothing.
    Nothing,
}

/// How the operator's orders come.
#[derive(Copy, Clone)]
pub struct Orders<'a> {
    /// Readable when there is one.
    pub fd: BorrowedFd<'a>,
    /// Takes it.
    pub take: &'a dyn Fn() -> Order,
}

/// As [`run`], with orders. What was read again meanwhile is in `config` afterwards.
pub fn serve(config: &mut Config, orders: Option<Orders<'_>>) -> Result<(), BrokerError> {
    *config = Server::new(config.clone())?.serve(orders)?;
    Ok(())
}
