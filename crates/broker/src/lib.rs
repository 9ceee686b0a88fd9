//! The broker: the emulated ISM device, and the trust anchor of two processes that open a lane.
//!
//! It is never on the data path. It believes what the kernel says of a socket, not what a client says.
//!
//! [`Server`] is the loop, with all I/O. [`exchange`] has the tables and no I/O: who has a match, and what is to be said. DMBs are in a
//! device behind [`ism::IsmDevice`], which is made outside.
//!
//! ```no_run
//! use shunpike_broker::{Config, loopback::LoopbackIsm};
//!
//! // Serves this user's programs until it is killed.
//! shunpike_broker::run(Config::new("/tmp/broker.sock".into()), LoopbackIsm::boxed, None)?;
//! # Ok::<(), shunpike_broker::BrokerError>(())
//! ```

pub mod address;
mod answerable;
mod channel;
mod client;
pub mod clock;
mod config;
#[cfg(test)]
mod conformance;
mod cpus;
mod datagram;
mod delays;
mod diag;
mod dial;
pub mod ends;
mod error;
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
mod ledger;
pub mod links;
mod listing;
pub mod loopback;
pub mod matching;
pub mod metrics;
mod orders;
pub mod policy;
mod program_knobs;
mod random;
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
pub mod text;

pub use client::{PROCESSES, QueryError, TapSession, processes, query, what};
pub use config::Config;
pub use dial::{process_that_serves, who_serves};
pub use error::BrokerError;
pub use orders::{Order, Orders};
use rustix::fd::BorrowedFd;
pub use server::Server;
pub use settings::PROFILES;
pub use successor::Successor;

/// Serves with such a device until `stop` becomes readable, or until idle. Then the socket is removed and sessions end;
/// open lanes go on without a broker.
pub fn run(
    mut config: Config,
    device: ism::MakeDevice,
    stop: Option<BorrowedFd<'_>>,
) -> Result<(), BrokerError> {
    serve(&mut config, device, stop.map(|fd| Orders { fd, take: &|| Order::End }))
}

/// As [`run`], with orders. What was read again meanwhile is in `config` afterwards.
pub fn serve(
    config: &mut Config,
    device: ism::MakeDevice,
    orders: Option<Orders<'_>>,
) -> Result<(), BrokerError> {
    *config = Server::new(config.clone(), device)?.serve(orders)?;
    Ok(())
}
