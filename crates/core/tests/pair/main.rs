//! Both ends of a connection in one process, with the real broker turned by hand and a clock that is made up: what core does to a
//! connection is tested without a program. Kernel TCP is the judge: [`as_tcp`] gives the same script to a plain pair.
//!
//! What belongs to the process and is asked for at its start has a process of its own: `tests/eager`; so has what
//! others would end for good: `tests/lending`.

mod broker;
mod broker_gone;
mod closing;
mod data;
mod death;
mod end;
mod epoll;
mod fork;
mod grace;
mod handing;
mod mixed;
mod nested;
mod opening;
mod options;
mod place;
mod refused;
mod revoke;
mod ring;
mod room;
mod waits;

use place::{NOTHING, Pair, as_tcp, as_tcp_once, bytes};

/// As `--eager` is not given.
const EAGER: bool = false;
