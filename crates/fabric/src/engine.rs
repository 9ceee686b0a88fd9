//! What moves bytes between two hosts: the seam beneath link groups.
//!
//! An engine has connected endpoints (queue pairs of RDMA, `FI_EP_MSG` of libfabric), registered memory, and one operation: it writes bytes of
//! ours into registered memory of the peer's and tells the peer 32 bits (an RDMA write with immediate). All engines keep to these rules, which
//! conformance.rs tests:
//!
//! 1. Writes of one endpoint land in the order in which they were posted, and an immediate is told after all of its write's bytes have landed.
//! 2. A completion says that the source may be changed. It does not say that the bytes have landed.
//! 3. An endpoint that dies is told to both ends, each in its own time. What was posted may land or not, in order: a beginning of it has landed.
//! 4. After [`Engine::close`] nothing lands through that endpoint any more. After [`Engine::deregister`] nothing lands in that memory.
//!
//! An engine is used by one thread.

use crate::memory::Memory;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// An endpoint of this engine. Numbers are not used again.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint(pub u32);

/// A completion queue of this engine.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Queue(pub u32);

/// A peer's wish to connect, to be accepted or refused.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Request(pub u32);

/// Registered memory of this engine.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Registered(pub u32);

/// Names registered memory to a peer (RFC 7609's RToken: RKey and virtual address).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RToken {
    /// The key. Whoever knows it may write: it is told over the brokers' connection only.
    pub key: u64,
    /// What the peer counts offsets from.
    pub address: u64,
}

/// What of ours is written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Memory of ours.
    pub memory: Registered,
    /// Byte in it.
    pub offset: usize,
    /// How many, from one to [`Limits::write`].
    pub len: usize,
}

/// Where it goes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Memory of the peer's.
    pub token: RToken,
    /// Byte in it.
    pub offset: u64,
}

/// What an engine can do.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most bytes of one write.
    pub write: usize,
    /// Writes of one endpoint that may be under way.
    pub writes: usize,
    /// Completion vectors: queues beyond these share a CPU.
    pub vectors: u32,
}

/// Most bytes that either end says at connecting: what verbs leaves of rdma_cm's private data.
pub const MAX_HELLO: usize = 32;

/// News of connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer wants to connect.
    Requested {
        /// To be answered.
        request: Request,
        /// What the peer says, at most [`MAX_HELLO`] bytes.
        hello: Vec<u8>,
    },
    /// An endpoint is connected; on the side that accepted, too.
    Connected {
        /// Which.
        endpoint: Endpoint,
        /// What the peer said on accepting; empty on the side that accepted.
        hello: Vec<u8>,
    },
    /// An endpoint has died, or did not come to be. It is still to be closed. Told once.
    Lost {
        /// Which.
        endpoint: Endpoint,
    },
}

/// News of writes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Completion {
    /// A write of ours is over.
    Written {
        /// Through which endpoint.
        endpoint: Endpoint,
        /// What it was posted with.
        context: u32,
        /// Whether the engine has taken it. `false`: the endpoint is lost, or will be said to be.
        done: bool,
    },
    /// A write of the peer's has landed.
    Immediate {
        /// Through which endpoint.
        endpoint: Endpoint,
        /// What the peer tells.
        data: u32,
    },
}

/// Why an engine refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineError {
    /// As many writes as may be are under way: poll, and try again.
    Full,
    /// The endpoint, queue, request or memory is not, or no longer, there.
    Unknown,
    /// The write is longer than [`Limits::write`], empty, or not inside the source.
    Range,
    /// More than [`MAX_HELLO`] bytes.
    Hello,
    /// The library is not there: what the loader says.
    Missing(String),
    /// The provider cannot be used, and why.
    Unfit(String),
    /// An operation of the library's failed, with its error's number (libfabric's `-FI_E...`, positive).
    Failed(&'static str, i32),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("as many writes as may be are under way"),
            Self::Unknown => f.write_str("no such endpoint, queue, request or memory"),
            Self::Range => f.write_str("the write is empty, too long or not inside its source"),
            Self::Hello => write!(f, "more than {MAX_HELLO} bytes to say at connecting"),
            Self::Missing(why) => write!(f, "libfabric is not here (Debian's package: libfabric1): {why}"),
            Self::Unfit(why) => f.write_str(why),
            Self::Failed(what, errno) => write!(f, "{what} failed with libfabric's error {errno}"),
        }
    }
}

impl std::error::Error for EngineError {}

/// An engine: see the [module](self).
pub trait Engine {
    /// What it can do.
    fn limits(&self) -> Limits;

    /// A completion queue on a completion vector, taken modulo [`Limits::vectors`].
    fn open_queue(&mut self, vector: u32) -> Result<Queue, EngineError>;

    /// Takes peers' wishes to connect, at an address of this host, port 0 for any. Says which it is.
    fn listen(&mut self, at: SocketAddr) -> Result<SocketAddr, EngineError>;

    /// Begins to connect to a peer that listens. [`Event::Connected`] or [`Event::Lost`] follows.
    fn connect(&mut self, to: SocketAddr, queue: Queue, hello: &[u8]) -> Result<Endpoint, EngineError>;

    /// Accepts. [`Event::Connected`] or [`Event::Lost`] follows.
    fn accept(&mut self, request: Request, queue: Queue, hello: &[u8]) -> Result<Endpoint, EngineError>;

    /// Refuses: the peer's endpoint is lost.
    fn refuse(&mut self, request: Request) -> Result<(), EngineError>;

    /// Ends an endpoint. When it returns, nothing lands through it, and nothing more is told of it. An endpoint that is not there: nothing is done.
    fn close(&mut self, endpoint: Endpoint);

    /// Registers memory, as source and as target of writes. The engine keeps it mapped until it is deregistered.
    fn register(&mut self, memory: &Memory) -> Result<(Registered, RToken), EngineError>;

    /// Takes it back. When it returns, nothing lands there. No write from it is to be under way.
    fn deregister(&mut self, memory: Registered) -> Result<(), EngineError>;

    /// Posts a write, and with it what the peer is told of it. [`Completion::Written`] follows, in the order of posting, unless the endpoint is
    /// closed first or dies.
    /// Errors: `Full`, `Range`, `Unknown`; `Failed` where the endpoint is not connected or is dead.
    fn write(
        &mut self,
        endpoint: Endpoint,
        source: Source,
        target: Target,
        immediate: u32,
        context: u32,
    ) -> Result<(), EngineError>;

    /// Moves on what is under way, and adds a queue's news to `news`. Never waits.
    fn poll(&mut self, queue: Queue, news: &mut Vec<Completion>) -> Result<(), EngineError>;

    /// The next news of connections. Never waits.
    fn event(&mut self) -> Option<Event>;

    /// Waits until there may be news, at most `most`. Returns early for no reason at times.
    fn wait(&mut self, most: Duration) -> Result<(), EngineError>;
}
