//! What carries the bytes of a measurement.

use serde::Serialize;

/// What carries the bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// No socket: a limit of the machine.
    Machine,
    /// Kernel TCP over loopback.
    Tcp,
    /// UNIX stream sockets.
    Unix,
    /// Lanes, with a send buffer of their own (`dmb_copy on`).
    Copy,
    /// Lanes, written directly into the peer's DMB.
    NoCopy,
}

impl Side {
    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Side::Machine => "machine",
            Side::Tcp => "TCP",
            Side::Unix => "UNIX",
            Side::Copy => "copy",
            Side::NoCopy => "no-copy",
        }
    }

    /// Whether programs run under Shunpike.
    pub fn is_shunpike(self) -> bool {
        matches!(self, Side::Copy | Side::NoCopy)
    }
}
