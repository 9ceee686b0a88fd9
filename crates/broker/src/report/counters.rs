//! What was counted.

use serde::{Deserialize, Serialize};

/// Wake-ups by latency: from the ring (or FUTEX_WAKE) of the peer until the sleeper runs. Sleeps that end for other
/// reasons are not counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WakeUps {
    /// How many took less than 1 µs, 2, 4, ..., 16384 µs, and longer.
    pub classes: Vec<u64>,
}

impl WakeUps {
    /// From the counts of the classes.
    pub fn of(classes: impl Into<Vec<u64>>) -> Self {
        Self { classes: classes.into() }
    }

    /// All of them.
    pub fn count(&self) -> u64 {
        self.classes.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Upper bounds of the classes, microseconds; the last has none.
    pub fn bounds(&self) -> impl Iterator<Item = Option<u64>> {
        let last = self.classes.len().saturating_sub(1);
        (0..self.classes.len()).map(move |class| (class < last).then(|| 1 << class))
    }

    /// Upper bound of the class that the quantile `q` (0 to 1) is in, microseconds; for the last one its lower bound.
    /// `None` where there are none.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let wanted = ((self.count() as f64 * q).ceil() as u64).max(1);
        let mut seen = 0u64;
        let class = self.classes.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= wanted
        })?;
        Some(1 << class.min(self.classes.len().saturating_sub(2)))
    }

    /// Those that came since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let then = before.classes.iter().chain(std::iter::repeat(&0));
        Self::of(
            self.classes.iter().zip(then).map(|(now, then)| now.saturating_sub(*then)).collect::<Vec<_>>(),
        )
    }
}

/// `stats`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// Connections.
    pub connections: ConnectionCounts,
    /// Sent on lanes.
    pub tx: Traffic,
    /// Received on lanes.
    pub rx: Traffic,
    /// Sleeps for news.
    pub sleeps: u64,
    /// Waits that a spin satisfied.
    pub spins: u64,
    /// Times that TCP_CORK or MSG_MORE held bytes back on a lane.
    pub corked: u64,
    /// How fast sleepers ran after they were rung for.
    pub wakeups: WakeUps,
    /// Names the broker's life: counts of another one are not to be compared,
    pub broker: String,
    /// nor those from before another of its resets, of which this is the number. Zero with brokers that do not tell.
    #[serde(default)]
    pub resets: u64,
    /// When this was so, microseconds after the broker began. Absent with brokers that do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_us: Option<u64>,
}

impl Stats {
    /// Whether the counts of `before` are the same ones as these, earlier.
    pub fn goes_on_from(&self, before: &Self) -> bool {
        (&self.broker, self.resets) == (&before.broker, before.resets)
    }
}

/// Connection ends by what became of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionCounts {
    /// Seen by the hooks.
    pub handled: u64,
    /// At some time on a lane.
    pub smc: u64,
    /// On TCP with a reason: those that ended there and those that are.
    pub fallback: u64,
    /// Of them as client.
    pub client: RoleCounts,
    /// Of them as server.
    pub server: RoleCounts,
    /// Fallbacks by reason, those that occurred.
    pub reasons: Vec<FallbackCount>,
    /// Ends that sent their connection back to TCP, where it goes on.
    pub revoked: u64,
    /// Handshakes that failed.
    pub handshake_errors: u64,
}

/// Connection ends of one role.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RoleCounts {
    /// Seen by the hooks.
    pub handled: u64,
    /// At some time on a lane.
    pub smc: u64,
    /// On TCP with a reason.
    pub fallback: u64,
}

/// Connection ends that stayed on TCP for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FallbackCount {
    /// Number.
    pub code: u32,
    /// Stable name.
    pub key: String,
    /// For people.
    pub text: String,
    /// As client.
    pub client: u64,
    /// As server.
    pub server: u64,
}

/// Bytes and calls of one direction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Calls.
    pub calls: u64,
    /// Calls by size, in the order of [`HISTOGRAM`].
    pub histogram: Vec<Calls>,
}

/// Calls of one size class.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Calls {
    /// One of [`HISTOGRAM`].
    pub size: String,
    /// How many.
    pub calls: u64,
}

/// Size classes of calls: up to so much, the last one more. smc-tools' own.
pub const HISTOGRAM: [&str; 8] = ["8KB", "16KB", "32KB", "64KB", "128KB", "256KB", "512KB", ">512KB"];

/// `top`: what each process has done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Processes {
    /// One entry for each process that the asker may look into.
    pub processes: Vec<Process>,
}

/// What one process has done since it opened its session, over all its connections.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Process {
    /// Process, as the broker sees it; 0 in a pid namespace that it cannot see.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its name.
    pub comm: String,
    /// Connection ends that are open and watched.
    pub connections: u64,
    /// Of these, those with a lane in one direction at least.
    pub lanes: u64,
    /// Bytes sent on lanes.
    pub tx_bytes: u64,
    /// Calls that sent them.
    pub tx_calls: u64,
    /// Bytes received on lanes.
    pub rx_bytes: u64,
    /// Calls that received them.
    pub rx_calls: u64,
    /// Ends on TCP with a reason: those that ended there and those that are.
    pub fallback: u64,
    /// Ends that sent their connection back to TCP, where it goes on.
    pub revoked: u64,
    /// Sleeps for news.
    pub sleeps: u64,
    /// Waits that a spin satisfied.
    pub spins: u64,
    /// How fast its sleepers ran after they were rung for.
    pub wakeups: WakeUps,
}
