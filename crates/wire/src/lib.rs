//! The bytes of Shunpike: CLC handshake messages, CDC cursors and the broker's protocol.
//!
//! No unsafe code, no I/O, no clock and no allocation: all of it may run inside a signal handler of
//! somebody else's program. Without std there is nothing to do these with.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![allow(clippy::large_enum_variant, reason = "without allocation there is no box to put the large one in")]

pub mod cdc;
pub mod clc;
pub mod enabled;
pub mod ids;
pub mod reason;
pub mod session;

pub use ids::{Chid, DmbSize, DmbToken, Eid, Gid, PeerId, Seid};
pub use reason::Reason;
