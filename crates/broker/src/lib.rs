//! The broker: the emulated ISM device, and the trust anchor of two processes that open a lane.
//!
//! It is never on the data path. It believes what the kernel says of a socket, not what a client says.

#[cfg(test)]
mod conformance;
pub mod exchange;
pub mod facts;
pub mod ism;
pub mod links;
pub mod loopback;
pub mod matching;
