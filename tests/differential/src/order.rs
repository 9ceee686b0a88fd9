//! What the driver tells an actor, and what it hears: a line of JSON each.

use serde::{Deserialize, Serialize};

use crate::calls::Said;
use crate::op::{By, Call, Family, Lent, RoomBy, Uncork, WaitBy};

/// What an actor is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Listen on free ports, for IPv4 and for both: the results.
    Listen,
    Connect {
        conn: u8,
        port: u16,
        family: Family,
        serial: u64,
        nonblock: bool,
        nagle: bool,
    },
    Accept {
        conn: u8,
        family: Family,
        serial: u64,
        nonblock: bool,
        nagle: bool,
    },
    /// `cut`: between two marks, for who traces this process.
    Make {
        conn: u8,
        call: Call,
        cut: bool,
    },
    /// The connection goes to the side's other process by a message, with what is known of it; it is closed when that one has it.
    Give {
        conn: u8,
    },
    Take {
        conn: u8,
        sent: u64,
        serial: u64,
    },
    Forget {
        conn: u8,
    },
    /// Forks a child that lives on, and takes orders by a socket that comes by the descriptor at [`crate::calls::GO`].
    Branch {
        conn: u8,
    },
    /// Waits for its end.
    Reap,
    /// Such a child ends.
    Quit,
    /// One side of an echo. The time is that of the slowest exchange.
    Echo {
        conn: u8,
        rounds: u16,
        size: usize,
        asks: bool,
    },
    /// Two calls of this process on one connection: the second is made by another thread, or by a signal's handler.
    Pair {
        conn: u8,
        calls: [Call; 2],
        how: How,
    },
    /// One side of an exchange, as of an echo.
    Exchange {
        conn: u8,
        by: By,
        rounds: u16,
        size: usize,
        asks: bool,
    },
    /// Sends until the socket takes no more: how many bytes, and their hash.
    Flood {
        conn: u8,
        by: RoomBy,
        chunk: u16,
    },
    /// Receives so many bytes, and tells of their hash together with those before them.
    Drain {
        conn: u8,
        n: usize,
        hash: u64,
    },
    /// Waits for room after a flood; with `early` a thread begins to.
    Room {
        conn: u8,
        by: RoomBy,
        n: usize,
        early: bool,
    },
    /// Sends a mapping by MSG_ZEROCOPY.
    Lend {
        conn: u8,
        size: u32,
        lent: Lent,
    },
    /// One side of a torrent.
    Torrent {
        conn: u8,
        threads: u8,
        rounds: u8,
        size: u16,
    },
    /// Waits for the notices.
    Lent {
        conn: u8,
    },
    /// Sends pieces that are held back.
    Cork {
        conn: u8,
        by: Uncork,
        pieces: u8,
        size: u16,
    },
    /// Lets them go, with a last one where the call is one that sends.
    Uncork {
        conn: u8,
        by: Uncork,
        size: u16,
    },
    /// A thread begins to wait.
    Begin {
        conn: u8,
        by: WaitBy,
    },
    /// What came of it, if it ends within so many milliseconds.
    Ended {
        conn: u8,
        ms: u64,
    },
    /// Ends all waits, on TCP, by shutting their connections down.
    EndWaits,
    /// Closes everything. Tells how many edges of code the library has, and those that were passed for the first time.
    Reset,
}

/// When the second call of a pair is made.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    InOrder,
    Swapped,
    /// When who traces this process, and sees the first call between two marks, asks for it.
    Traced,
}

/// What it says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// Nothing where a wait has not ended.
    pub said: Option<Said>,
    /// Of the second call of a pair.
    pub also: Option<Said>,
    pub ns: u64,
    /// CPU time of the thread that made the call.
    pub cpu_ns: u64,
    /// How long that thread could have run and did not, as the machine was busy; of an echo: in the exchange in which that was longest.
    pub held_up_ns: u64,
    /// Calls on a connection, and how many of them with a half on a lane.
    pub calls: [u64; 2],
    /// Where the connection stood before the call: its phase, and the modes of its receiving and sending half.
    pub state: Option<[u16; 3]>,
}
