//! The benchmark's own load programs, subcommands of `shunpike-load`: what no packaged program measures, over TCP
//! and UNIX stream sockets alike. A client prints one line of JSON.
//!
//! They go to libc for everything that concerns a socket: a raw system call would go past the preloaded library.

mod crowd;
mod dialogue;
mod endpoint;
mod epoll;
mod paced;
mod pour;
mod ring;
mod short;
mod stream;

pub use dialogue::{Latencies, Pings};
pub use paced::Paced;

use clap::Subcommand;
use endpoint::Endpoint;
use serde::Serialize;
use std::io;
use std::path::PathBuf;

/// A load program.
#[derive(Subcommand)]
pub enum Load {
    /// Answers each message of one connection with the same bytes
    Pong {
        /// tcp:PORT or unix:PATH
        at: Endpoint,
        /// Bytes in a message
        size: usize,
    },
    /// Sends a message, waits for the answer, and again
    Ping {
        /// tcp:PORT or unix:PATH
        to: Endpoint,
        /// Bytes in a message
        size: usize,
        /// How long
        seconds: f64,
        /// Takes the time of each message too
        #[arg(long)]
        latencies: bool,
    },
    /// Answers on any number of connections, by epoll
    Echo {
        /// tcp:PORT or unix:PATH
        at: Endpoint,
    },
    /// Opens many connections and keeps some of them busy
    Crowd {
        /// tcp:PORT or unix:PATH
        to: Endpoint,
        /// Connections to open
        open: usize,
        /// Those of them that carry messages
        active: usize,
        /// How long
        seconds: f64,
        /// Threads that the connections are divided among
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// The server is a memcached, the messages ask for 100 bytes
        #[arg(long)]
        memcached: bool,
    },
    /// Opens connections, uses them until the file `still` exists, and then only keeps them
    Idle {
        /// tcp:PORT or unix:PATH
        to: Endpoint,
        /// Connections to open
        open: usize,
        /// The file that ends their use
        still: PathBuf,
    },
    /// Sends requests at fixed times, whatever the answers do
    Paced {
        /// tcp:PORT or unix:PATH
        to: Endpoint,
        /// Requests a second; 0: as many as are answered
        rate: f64,
        /// Connections that they are divided among
        connections: usize,
        /// How long
        seconds: f64,
        /// A request, with \r and \n for line ends
        request: String,
        /// Bytes of its answer
        answer: usize,
        /// A process of the server; its CPU time is taken
        #[arg(long = "server", value_name = "PID")]
        servers: Vec<u32>,
    },
    /// Reads one connection to its end
    Sink {
        /// tcp:PORT or unix:PATH
        at: Endpoint,
    },
    /// Writes to one connection, as much as it takes
    Source {
        /// tcp:PORT or unix:PATH
        to: Endpoint,
        /// Bytes in a write
        size: usize,
        /// How long
        seconds: f64,
    },
    /// Reads one connection to its end, and answers what it cost
    Drain {
        /// tcp:PORT or unix:PATH
        at: Endpoint,
    },
    /// Writes to one connection, and tells what it cost both ends
    Pour {
        /// tcp:PORT or unix:PATH
        to: Endpoint,
        /// Bytes in a write
        size: usize,
        /// How long
        seconds: f64,
        /// With MSG_ZEROCOPY, and all notices awaited
        #[arg(long)]
        zerocopy: bool,
    },
    /// Answers one byte on each connection, and closes it
    Brief {
        /// tcp:PORT or unix:PATH
        at: Endpoint,
    },
    /// Opens a connection, sends one byte, reads to the end, closes, and again
    Connect {
        /// tcp:PORT or unix:PATH
        to: Endpoint,
        /// How long
        seconds: f64,
    },
    /// Writes into a ring in shared memory: the limit of a stream, without sockets
    RingWrite {
        /// The memory
        memory: PathBuf,
        /// How long
        seconds: f64,
    },
    /// Reads that ring
    RingRead {
        /// The memory
        memory: PathBuf,
    },
}

/// Runs a load program; a client's result goes to standard output.
pub fn run(load: Load) -> io::Result<()> {
    match load {
        Load::Pong { at, size } => dialogue::pong(&at, size),
        Load::Ping { to, size, seconds, latencies } => print(&dialogue::ping(&to, size, seconds, latencies)?),
        Load::Echo { at } => crowd::echo(&at),
        Load::Crowd { to, open, active, seconds, threads, memcached } => {
            let message = if memcached { crowd::asked(&to)? } else { crowd::ECHOED };
            print(&crowd::crowds(&to, [open, active], seconds, threads.max(1), message)?)
        }
        Load::Idle { to, open, still } => crowd::idle(&to, open, &still),
        Load::Paced { to, rate, connections, seconds, request, answer, servers } => {
            let request = request.replace("\\r", "\r").replace("\\n", "\n");
            let request = request.as_bytes();
            let plan = paced::Plan { request, answer, rate, connections, seconds, servers: &servers };
            print(&paced::paced(&to, &plan)?)
        }
        Load::Sink { at } => stream::sink(&at),
        Load::Source { to, size, seconds } => print(&stream::source(&to, size, seconds)?),
        Load::Drain { at } => pour::drain(&at),
        Load::Pour { to, size, seconds, zerocopy } => print(&pour::pour(&to, size, seconds, zerocopy)?),
        Load::Brief { at } => short::brief(&at),
        Load::Connect { to, seconds } => print(&short::connect(&to, seconds)?),
        Load::RingWrite { memory, seconds } => ring::write(&memory, seconds),
        Load::RingRead { memory } => print(&ring::read(&memory)?),
    }
}

fn print(result: &impl Serialize) -> io::Result<()> {
    println!("{}", serde_json::to_string(result)?);
    Ok(())
}

/// A first part of each run is not measured: connections earn their lanes there.
fn warm_up(seconds: f64) -> f64 {
    (seconds / 5.0).min(0.5)
}

pub use ring::{MEMORY, SIZES};
