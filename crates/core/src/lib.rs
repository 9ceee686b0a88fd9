//! Socket semantics on lanes: connections, sending and receiving, readiness, the session with the broker.
//!
//! Exports no libc symbol; the preload library maps libc's names onto this. Start reading at [`tx`] and
//! [`rx`] (the data path), then [`wait`], [`epoll`] and [`upgrade`].
//!
//! The modules stand in floors, the lowest first: a module uses its own floor and those below it. What lies above is told
//! by two tables, [`session::Above`] and [`above::Above`], which [`life::start`] fills.
//!
//! A hooked call, in short:
//!
//! ```no_run
//! use shunpike_core::{bufs::Bufs, call::Outcome, source::Source, table, tx};
//!
//! /// send(2). `real` is libc's own, with these flags.
//! fn send(fd: i32, parts: &[libc::iovec], flags: i32, real: impl FnOnce(i32) -> isize) -> Outcome {
//!     match table::conn(fd) {
//!         Some(conn) => tx::send(conn, fd, Source::Memory(Bufs::new(parts)), flags, real),
//!         None => Outcome::Libc(real(flags)), // Not ours.
//!     }
//! }
//! ```

#![cfg_attr(not(test), no_std)]

// Leaves: no connection is known here.
pub mod clock;
mod doorbell;
pub mod host;
pub mod mutex;
pub mod policy;
mod prefetch;
mod proc;
pub mod surface;
pub mod sys;
mod text;
pub mod tls;
pub mod trace;
pub mod user;

// What a process has.
pub mod descriptors;
pub mod limits;
pub mod memory;
pub mod process;
pub mod set;
pub mod table;
pub mod tenants;

// A connection's state, and the calls on it.
pub mod above;
pub mod call;
pub mod enabled;
pub mod holders;
pub mod keepalive;
pub mod options;
pub mod rings;
pub mod state;

// One end of a lane.
pub mod bufs;
mod copy_rate;
pub mod device;
mod handshakes;
mod later;
mod look;
mod outbox;
pub mod peek;
pub mod source;
pub mod spares;
pub mod tap;
pub mod window;

// The session with the broker.
pub mod eager;
pub mod link;
pub mod reuse;
pub mod session;

// Waits, and the sets that wait.
pub mod cork;
mod reset;
pub mod seen;
mod send_lock;
pub mod sets;
pub mod spin;
pub mod told;
pub mod wait;

// Memory that is lent, and the end of a direction's lane.
pub mod closing;
pub mod stores;
pub mod zerocopy;

// The handshake, and the wait for it.
mod hope;
pub mod upgrade;

// Data calls.
mod blocking;
pub mod passthrough;
pub mod rx;
pub mod tx;

// Readiness.
pub mod epoll;
pub mod poll;
pub mod ready;

// A connection's life.
pub mod conn;

// The process's life.
pub mod life;
pub use rustix::io::Errno;
pub use shunpike_wire as wire;
