//! What asks a broker: `ss`, `stats`, `sysctl`, `top`, `tap` and the others.

use super::notes::DEVICE_NOTES;
use super::{Format, Target, interval, link_id};
use clap::{Args, Subcommand, ValueHint};
use shunpike_shm::tap;
use std::path::PathBuf;

/// `ss`.
#[derive(Args)]
pub struct Ss {
    /// Listening sockets too: smcss has them, a lane does not need them, so that there are none
    #[arg(short, long)]
    pub all: bool,
    /// Listening sockets only: none
    #[arg(short, long, conflicts_with = "all")]
    pub listening: bool,
    /// Add buffer sizes, cursors and flags, process and descriptor
    #[arg(short, long, visible_short_alias = 'e', visible_alias = "extended")]
    pub debug: bool,
    /// Add GIDs, tokens and link groups; connections on lanes only
    #[arg(short = 'D', long)]
    pub smcd: bool,
    /// Connections on SMC-R only: there are none
    #[arg(short = 'R', long, conflicts_with = "smcd")]
    pub smcr: bool,
    /// Nothing is cut off, so that this changes nothing; smcss has it
    #[arg(short = 'W', long, hide = true)]
    pub wide: bool,
    /// Numbers, TCP, processes, as of ss(8): that is what is shown in any case
    #[arg(short = 'n', long, hide = true)]
    pub numeric: bool,
    /// As above.
    #[arg(short = 't', long, hide = true)]
    pub tcp: bool,
    /// As above.
    #[arg(short = 'p', long, hide = true)]
    pub processes: bool,
    /// No line with the columns' names
    #[arg(short = 'H', long)]
    pub no_header: bool,
    /// Only those that match, as in ss(8): 'sport = :6379 and state lane', 'not dst 10.0.0.0/8', 'pid = 4711', 'comm = nginx'
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// How to print.
    #[command(flatten)]
    pub format: Format,
}

/// `stats`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Stats {
    /// Default: show.
    #[command(subcommand)]
    pub action: Option<StatsAction>,
    /// Split by client and server, with the most frequent fallback reasons of each
    #[arg(short, long)]
    pub details: bool,
    /// All since the broker began or 'stats reset --all', whatever you have reset for yourself
    #[arg(short, long)]
    pub absolute: bool,
    /// How to print.
    #[command(flatten)]
    pub format: Format,
}

/// What `stats` can do besides showing.
#[derive(Subcommand)]
pub enum StatsAction {
    /// Count from zero again, for you alone
    #[command(after_help = "Examples:\n  shunpike stats reset\n  shunpike stats reset --all")]
    Reset {
        /// For everybody: the broker's own counts (its operator only)
        #[arg(long)]
        all: bool,
    },
    /// What smcd stats json prints, with its key names, as far as it is counted here
    #[command(after_help = "Examples:\n  shunpike stats json | jq .SMCD.SMC_TX_BYTES")]
    Json,
}

/// `sysctl`.
#[derive(Args)]
pub struct Sysctl {
    /// All settings, with where each value comes from
    #[arg(short, long, conflicts_with = "words")]
    pub all: bool,
    /// Change: NAME=VALUE is what you want
    #[arg(short, long, requires = "words")]
    pub write: bool,
    /// Names to show, NAME=VALUE to change; without any, all names with their ranges
    #[arg(value_name = "NAME[=VALUE]")]
    pub words: Vec<String>,
    /// How to print.
    #[command(flatten)]
    pub format: Format,
}

/// `events`.
#[derive(Args)]
pub struct Events {
    /// Go on with those that come, until you interrupt it
    #[arg(short, long)]
    pub follow: bool,
    /// The last N of those that there are
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    pub lines: u32,
    /// Only those of which an end matches, with the filters of 'shunpike ss': 'dport = :6379', 'comm = nginx'
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// How to print: as JSON, one object in a line.
    #[command(flatten)]
    pub format: Format,
}

/// `top`.
#[derive(Args)]
pub struct Top {
    /// Begin with connections in place of processes
    #[arg(short, long)]
    pub connections: bool,
    /// What to sort by
    #[arg(short, long, value_enum, default_value = "calls")]
    pub sort: Sort,
    /// The other way round
    #[arg(short, long)]
    pub reverse: bool,
    /// Only rows that have TEXT in the process's name, its PID or the peer's address
    #[arg(short, long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: f64,
    /// Print one look as text and leave
    #[arg(long, conflicts_with = "batch")]
    pub once: bool,
    /// Print N looks as text and leave
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Option<u32>,
}

/// What a table is sorted by.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Calls in a second, the busiest first.
    Calls,
    /// Bytes sent.
    Tx,
    /// Bytes received.
    Rx,
    /// Connections.
    Conns,
    /// Waits ended by spinning.
    Spins,
    /// Sleeps.
    Sleeps,
    /// Latency of wake-ups, the longest first.
    Wake,
    /// Fallbacks.
    Fallbacks,
    /// Process id, the lowest first.
    Pid,
    /// Name.
    Command,
}

/// `tap`.
#[derive(Args)]
pub struct Tap {
    /// Write a capture (pcapng) there, readable by you alone; - is standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub write: Option<PathBuf>,
    /// Room for each process's segments until they are read, 256K to 32M
    #[arg(short = 'B', long, value_name = "SIZE", default_value = BUFFER, value_parser = buffer)]
    pub buffer: usize,
    /// End after N segments
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// What to show
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
}

/// `extcap`: the names are Wireshark's.
#[derive(Args)]
pub struct Extcap {
    /// List interfaces
    #[arg(long = "extcap-interfaces")]
    pub interfaces: bool,
    /// Wireshark's version
    #[arg(long = "extcap-version", value_name = "VERSION", num_args = 0..=1, default_missing_value = "")]
    pub of_wireshark: Option<String>,
    /// Which interface
    #[arg(long = "extcap-interface", value_name = "NAME")]
    pub interface: Option<String>,
    /// List its link types
    #[arg(long = "extcap-dlts")]
    pub dlts: bool,
    /// List its options
    #[arg(long = "extcap-config")]
    pub config: bool,
    /// A filter, to be used or checked
    #[arg(long = "extcap-capture-filter", value_name = "FILTER")]
    pub filter: Option<String>,
    /// Capture
    #[arg(long)]
    pub capture: bool,
    /// ... to this FIFO
    #[arg(long, value_name = "PATH")]
    pub fifo: Option<PathBuf>,
    /// As `tap --buffer`
    #[arg(long, value_name = "SIZE", default_value = BUFFER, value_parser = buffer_or_default)]
    pub buffer: usize,
    /// Wireshark's log level: what there is to say goes to standard error
    #[arg(long = "log-level", value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Wireshark's log file: as above
    #[arg(long = "log-file", value_name = "FILE")]
    pub log_file: Option<PathBuf>,
}

/// `explain`.
#[derive(Args)]
pub struct Explain {
    /// A process, or one of its descriptors
    #[arg(value_name = "PID[:FD]", required_unless_present = "codes")]
    pub target: Option<Target>,
    /// List every fallback code with its meaning
    #[arg(long, conflicts_with = "target")]
    pub codes: bool,
    /// How to print.
    #[command(flatten)]
    pub format: Format,
}

/// Which link groups.
#[derive(Args)]
pub struct Groups {
    /// One group, by its LG-ID
    #[arg(value_name = "LG-ID", value_parser = link_id)]
    pub id: Option<u32>,
    /// How to print.
    #[command(flatten)]
    pub format: Format,
}

/// What `linkgroup` can do.
#[derive(Subcommand)]
pub enum LinkgroupAction {
    /// The groups, their connections and processes
    #[command(after_help = "Examples:\n  shunpike linkgroup show\n  shunpike linkgroup show 00000001")]
    Show(Groups),
    /// Both sides of each group's link, with their completion queues
    #[command(after_help = "Examples:\n  shunpike linkgroup link-show 00000001")]
    LinkShow(Groups),
}

/// What `device` can do.
#[derive(Subcommand)]
pub enum DeviceAction {
    /// The device's identity, knobs and counters
    #[command(after_help = "Examples:\n  shunpike device show --json")]
    Show(Format),
    /// One line, as smcd device prints it
    #[command(after_help = "Examples:\n  shunpike device list")]
    List,
    /// Turn a knob, at once and for all programs: active on|off, dmb_copy on|off, dmb_type virtual, rmem BYTES
    #[command(after_help = DEVICE_NOTES)]
    Set {
        /// The device, if you like: loopback-ism; the knob; its new value
        #[arg(value_names = ["[DEVICE] KEY", "VALUE"], num_args = 2..=3, required = true)]
        words: Vec<String>,
    },
    /// Print one value of the device, for scripts
    #[command(after_help = DEVICE_NOTES)]
    Get {
        /// The device, if you like: loopback-ism; the key
        #[arg(value_names = ["[DEVICE] KEY"], num_args = 1..=2, required = true)]
        words: Vec<String>,
    },
}

/// What `policy` can do.
#[derive(Subcommand)]
pub enum PolicyAction {
    /// The policy in force, and the line of the file that says it
    #[command(after_help = "Examples:\n  shunpike policy show --json")]
    Show(Format),
    /// Look at a file as a broker would that reads it; none is needed, and nothing is changed
    #[command(
        after_help = "Examples:\n  shunpike policy check ./broker.toml\n  shunpike policy check --private"
    )]
    Check {
        /// The file, in place of /etc/shunpike/broker.toml
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// For a private broker: of $XDG_CONFIG_HOME/shunpike/broker.toml, if no file is named
        #[arg(long)]
        private: bool,
    },
    /// Have the broker read its file again; a file with a mistake changes nothing
    #[command(after_help = "Examples:\n  shunpike policy check && shunpike policy reload")]
    Reload(Format),
}

/// What `ueid` can do.
#[derive(Subcommand)]
pub enum UeidAction {
    /// List them
    #[command(after_help = "Examples:\n  shunpike ueid show")]
    Show(Format),
    /// Add one (up to 32 of A-Z 0-9 . -, the first a letter or digit)
    #[command(after_help = "Examples:\n  shunpike ueid add MY-CLUSTER")]
    Add {
        /// The EID
        name: String,
    },
    /// Remove one
    #[command(after_help = "Examples:\n  shunpike ueid del MY-CLUSTER")]
    Del {
        /// The EID
        name: String,
    },
    /// Remove all
    #[command(after_help = "Examples:\n  shunpike ueid flush")]
    Flush,
}

/// What `seid` can do.
#[derive(Subcommand)]
pub enum SeidAction {
    /// Show it
    #[command(after_help = "Examples:\n  shunpike seid show")]
    Show(Format),
    /// Let it take part in the match
    #[command(after_help = "Examples:\n  shunpike seid enable")]
    Enable,
    /// Leave it out of the match
    #[command(after_help = "Examples:\n  shunpike seid disable")]
    Disable,
}

/// Room for each process's segments that nobody has chosen.
const BUFFER: &str = "4M";

/// Bytes for a ring, as `4M`. Errors: what may be written.
fn buffer(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    let range = tap::ring_size(0)..=tap::ring_size(tap::MAX_CLASS);
    bytes.filter(|bytes| range.contains(bytes)).ok_or_else(|| "write 256K to 32M".into())
}

/// Checks `--buffer`, where an empty one is none.
fn buffer_or_default(text: &str) -> Result<usize, String> {
    buffer(if text.is_empty() { BUFFER } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_rings_are_checked() {
        for (text, bytes) in [("256K", 256 << 10), ("4M", 4 << 20), ("32m", 32 << 20), ("300000", 300_000)] {
            assert_eq!(buffer(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "255K", "33M", "-1", "4G", "99999999999999999999M"] {
            assert!(buffer(text).is_err(), "{text}");
        }
    }
}
