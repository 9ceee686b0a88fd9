//! The bytes of Shunpike: CLC handshake messages, CDC cursors and the broker's protocol.
//!
//! No unsafe code, no I/O, no clock and no allocation: all of it may run inside a signal handler of
//! somebody else's program. Without std there is nothing to do these with.
//!
//! [`session`] is what programs and broker say to each other, [`clc`] what the two ends of a connection say, and [`clc::handshake`] when.
//! Each message is a value; what comes from outside is decoded once, and is lawful then.
//!
//! ```
//! use shunpike_wire::session::{ConnId, FromBroker, MAX};
//!
//! let said = FromBroker::Gone { conn: ConnId(7) };
//! let mut bytes = [0; MAX];
//! let n = said.encode(&mut bytes)?;
//! assert_eq!(FromBroker::decode(&bytes[..n])?, said);
//! # Ok::<(), shunpike_wire::session::SessionError>(())
//! ```

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
