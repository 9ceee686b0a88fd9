//! Socket semantics on lanes: connections, sending and receiving, readiness, the session with the broker.
//!
//! Exports no libc symbol; the preload library maps libc's names onto this. Start reading at [`rx`] and
//! [`tx`] (the data path), then [`wait`], [`epoll`] and [`upgrade`].

pub mod above;
mod ahead;
mod blocking;
pub mod bufs;
pub mod call;
pub mod clock;
pub mod closing;
pub mod conn;
pub mod cork;
pub mod descriptors;
pub mod device;
mod doorbell;
pub mod eager;
pub mod enabled;
pub mod epoll;
mod handshakes;
pub mod holders;
pub mod keepalive;
mod later;
pub mod life;
pub mod limits;
pub mod link;
mod look;
pub mod memory;
pub mod mutex;
pub mod options;
mod outbox;
mod pace;
pub mod peek;
pub mod plain;
pub mod policy;
pub mod poll;
mod proc;
pub mod process;
pub mod ready;
mod reset;
mod reuse;
pub mod rings;
pub mod rx;
pub mod seen;
mod send_lock;
pub mod session;
pub mod source;
pub mod spares;
pub mod spin;
pub mod state;
pub mod stores;
pub mod surface;
pub mod sys;
pub mod table;
pub mod tap;
pub mod tenants;
pub mod tls;
pub mod trace;
pub mod tx;
pub mod upgrade;
pub mod user;
pub mod wait;
pub mod window;
pub mod zerocopy;

pub use rustix::io::Errno;
pub use shunpike_shm::{libc_function, libc_is_musl};
pub use shunpike_wire as wire;
