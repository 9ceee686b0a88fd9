//! The command line, as help, man pages and completions show it.

use crate::tools::tap::{self, extcap};
use crate::tools::top::Sort;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use shunpike_broker::metrics::Address;
use shunpike_broker::settings::{Origin, Setting};
use shunpike_wire::Eid;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

const OVERVIEW: &str = "\
Carries TCP connections between two programs of one host through shared memory.

The programs are not changed, not recompiled and need no root. Every connection starts as ordinary TCP; \
once both ends run under Shunpike and the kernel confirms that they are two ends of one connection, their \
bytes move to a lane in shared memory. What cannot move stays on TCP, with a numbered reason.";

/// The exit status of a command that says nothing else of it.
macro_rules! exit_status {
    () => {
        "0 done, 1 it failed (the message says what to do), 2 wrong usage."
    };
}

/// The same, for its man page.
pub const EXIT_STATUS: &str = exit_status!();

const EXAMPLES: &str = concat!(
    "\
Examples:
  shunpike run redis-server            a server, and in another terminal
  shunpike run redis-benchmark -q      its client: both ends must run under Shunpike
  shunpike ss                          which connections are on lanes, and why others are not
  shunpike explain 4711                the same in words, for one process
  shunpike device set active off       everything back to TCP, without a restart

Exit status: ",
    exit_status!()
);

const RUN_NOTES: &str = "\
Runs CMD with libshunpike.so preloaded. Signals and exit status are CMD's own: shunpike replaces itself by it. \
If no broker answers, a private one for your user is started in the background; it leaves when nobody has \
needed it for a while. If that fails too, CMD runs all the same, on plain TCP.

Both ends of a connection must run under Shunpike. A program that is statically linked, setuid or built for \
another architecture ignores preloading: you are warned, and it stays on TCP.

Exit status: CMD's own; 125 Shunpike itself failed, 126 CMD cannot be executed, 127 CMD was not found.

Examples:
  shunpike run redis-server --port 7000
  shunpike run -- python3 -m http.server
  shunpike run --eager -- pytest tests/    short connections get a lane too";

const SS_NOTES: &str = "\
Mode tells where a connection's bytes run:
  SMCD               on a lane in shared memory
  TCP 0xOWN          on TCP; the number is this end's reason
  TCP 0xOWN/0xPEER   on TCP; this end's reason, then the one that the peer gave
`shunpike explain PID` says it in words; `shunpike explain --codes` lists all numbers.

Without -a or -l, connected sockets are shown. Only programs started by `shunpike run` appear. Cursors \
(-d) are written as wraps:offset, in hexadecimal, as smcss does.";

const BROKER_NOTES: &str = "\
The broker is the emulated ISM device: it proves that two sockets are one connection, passes the handshake on \
and answers the tools. It is never on the data path: stop it and open lanes go on, new connections stay TCP; \
start it again and programs find it without a restart.

`shunpike run` starts a private one when it needs one. Start it yourself, as root, to serve all users and \
containers through one socket, /run/shunpike/broker.sock. It joins processes of one user, unless its policy \
(--config, docs/policy.md) says otherwise; `shunpike info` shows what holds.
  shunpike broker --ueid MY-CLUSTER
  shunpike broker --config ./broker.toml --socket /run/test/broker.sock";

const CHK_NOTES: &str = "\
Looks at what decides, from where it is called: is HOST this host, who listens at PORT, is that process under Shunpike, \
does it use the broker that you use, is the device active, does policy join the two users. A question mark stands \
before what cannot be seen from here (another user's process, without root).

Exit status: 0 a lane, 1 TCP.

Examples:
  shunpike chk 127.0.0.1:6379
  shunpike chk --json '[::1]:5432'";

const TOP_NOTES: &str = "\
Columns:
  CONN, LANE     watched connections of the process, and those on lanes
  TX/s, RX/s     bytes in a second: of a process on lanes, of a connection whichever way they go
  CALL/s         calls that moved them
  SPIN/s         waits that ended while spinning: no wake-up was needed
  SLEEP/s        waits that ended in a sleep: each costs the peer a wake-up
  FALL           connections that stayed on TCP so far
Processes that share their connections with the one that forked them are counted there.

Keys: c or Tab processes/connections, s next order, r reverse, p or space pause, arrows scroll, q leave.

Examples:
  shunpike top -s tx
  shunpike top --once --connections
  shunpike top -b 10 -i 5 >log";

const TAP_NOTES: &str = "\
Shows what processes under Shunpike send on lanes, from their next call on; programs that start later are seen from their \
first byte. Without -w each segment is a line of text; with it, a capture in pcapng for Wireshark and tshark, in which each process \
is an interface. Addresses and ports are the connection's own; sequence numbers count its bytes from 1. Bytes that went by TCP, \
before a lane or after it, are not in it: that is said in comments.

FILTER: port N, host ADDRESS (either with src or dst before it), pid N, tcp, ip, ip6, joined by and, or, not, parentheses.

Nobody waits for a tap: what finds no room in the ring of its process (--buffer) is lost, and counted in the capture and at the end.

Whose processes: your own, and for root all. One that is not dumpable (prctl(2)) is root's only.

Examples:
  shunpike tap port 6379
  shunpike tap -w lanes.pcapng
  shunpike tap -w - | wireshark -k -i -
  shunpike tap -w - pid 4711 | tshark -r - -Y http

In Wireshark's own list of interfaces: WIRESHARK_EXTCAP_DIR=PREFIX/lib/shunpike/extcap, or a link to shunpike-extcap there \
(docs/seeing.md).";

const DBG_NOTES: &str = "\
In it: versions, kernel, CPUs and memory; the broker's settings, policy, statistics, connections, link groups; for each \
process with a connection its limits and where the library is mapped. Not in it: bytes of connections, command lines, \
environments (but for SHUNPIKE_* and LD_PRELOAD). Tokens are replaced by numbers. Only you can read the file.";

const SYSCTL_NOTES: &str = "\
A setting is the broker's, for all programs that it serves. It takes effect at once, without a restart of any \
program; connections take it up as they go. Names and ranges are SMC's (net.smc.*) where the kernel has them too; \
'sysctl NAME' of one that only SMC has says why it is not here. Numbers may end in K or M.

Where a value comes from, each over those before it:
  default        built in
  file           [sysctl] in /etc/shunpike/broker.toml, or for a private broker in ~/.config/shunpike/broker.toml
  environment    SHUNPIKE_<NAME> of the broker, as SHUNPIKE_SPIN_US=0
  command line   shunpike broker --set NAME=VALUE
  run time       shunpike sysctl -w NAME=VALUE; lost when the broker ends

Examples:
  shunpike sysctl -a
  shunpike sysctl rmem
  shunpike sysctl -w rmem=256K spin_us=0";

const DEVICE_NOTES: &str = "\
Keys, as loopback-ism's in sysfs:
  active      on|off    off: no new lanes, open ones go back to TCP, at once and without a restart
  dmb_copy    on|off    on: new lanes are written through a send buffer, as hardware ISM is
  dmb_type    virtual   DMBs are virtual memory of processes; there is no other type
  rmem        BYTES     ring size of new DMBs; the same as 'sysctl -w rmem=BYTES'
  xfer_bytes            bytes moved on lanes since the broker began; to read
  dmbs_cnt              DMBs registered; to read

Examples:
  shunpike device set active off
  shunpike device set loopback-ism dmb_copy on
  shunpike device get xfer_bytes";

const BENCH_NOTES: &str = "\
Runs each workload on kernel TCP, on UNIX stream sockets where its programs know them, and on lanes in copy and \
no-copy mode, in turn, and shows medians side by side, with the ratio that the kernel's own SMC-D had in its \
published tables and what Shunpike is to reach. A row says so where lanes did not carry its bytes. A program that is \
missing is named with the package that brings it. Each measurement has a broker of its own; yours is left alone.

Both ends want a CPU each, and nobody else on the machine: look at the load averages beneath the heading.

Examples:
  shunpike bench --quick                  a first look, under a minute
  shunpike bench redis nginx-100          some workloads, by the beginnings of their names
  shunpike bench --chart speed.svg        a quarter of an hour, and a picture of it";

/// Carries TCP connections between two programs of one host through shared memory.
#[derive(Parser)]
#[command(name = "shunpike", version, long_about = OVERVIEW, after_help = EXAMPLES, propagate_version = true)]
pub struct Cli {
    /// The broker's socket, in place of the default ones [env: SHUNPIKE_SOCKET]
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub socket: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Run a program with its connections on lanes where possible
    #[command(after_help = RUN_NOTES)]
    Run(Run),
    /// Serve as the device and matchmaker of this host, in the foreground
    #[command(after_help = BROKER_NOTES)]
    Broker(Broker),
    /// List connections and where their bytes run, as smcss does
    #[command(after_help = SS_NOTES)]
    Ss(Ss),
    /// Count connections, fallbacks, bytes and calls, as smcd stats does
    Stats(Stats),
    /// Say in words why connections are, or are not, on lanes
    #[command(arg_required_else_help = true)]
    Explain(Explain),
    /// Move connections back to TCP; they may be upgraded again later
    Revoke {
        /// A process, or one of its descriptors
        #[arg(value_name = "PID[:FD]")]
        target: Target,
    },
    /// Show the emulated ISM device, or turn its knobs
    #[command(after_help = DEVICE_NOTES)]
    Device {
        /// Default: show.
        #[command(subcommand)]
        action: Option<DeviceAction>,
    },
    /// Show versions and what the broker supports
    Info(Format),
    /// Show or change the user-defined EIDs: two systems use SMC-D only if they share one
    Ueid {
        /// Default: show.
        #[command(subcommand)]
        action: Option<UeidAction>,
    },
    /// Show the system EID, or whether it takes part
    Seid {
        /// Default: show.
        #[command(subcommand)]
        action: Option<SeidAction>,
    },
    /// List link groups: pairs of processes, and what their connections share
    #[command(args_conflicts_with_subcommands = true)]
    Linkgroup {
        /// Default: show.
        #[command(subcommand)]
        action: Option<LinkgroupAction>,
        /// Which.
        #[command(flatten)]
        which: Groups,
    },
    /// Would a connection to HOST:PORT get a lane, and if not, why? Connects nowhere
    #[command(after_help = CHK_NOTES)]
    Chk {
        /// Where a program would connect to
        #[arg(value_name = "HOST:PORT")]
        target: String,
        /// How to print.
        #[command(flatten)]
        format: Format,
    },
    /// Watch processes and connections live: rates, lanes, fallbacks, spinning
    #[command(after_help = TOP_NOTES)]
    Top(Top),
    /// Show what goes over lanes, or write it down for Wireshark and tshark
    #[command(after_help = TAP_NOTES)]
    Tap(Tap),
    /// What Wireshark calls, by a link in its extcap directory
    #[command(hide = true)]
    Extcap(Extcap),
    /// Collect everything for a bug report into one archive, without payload or secrets
    #[command(after_help = DBG_NOTES)]
    Dbg {
        /// The archive, in place of ./shunpike-dbg-TIME.tar.gz; must not be there yet
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Show the settings, or change them: at once, for all programs of the broker
    #[command(after_help = SYSCTL_NOTES)]
    Sysctl(Sysctl),
    /// Measure lanes beside kernel TCP and UNIX sockets, on this machine
    #[command(after_help = BENCH_NOTES)]
    Bench(shunpike_bench::Options),
    /// A load program of `bench`
    #[command(hide = true)]
    BenchLoad {
        /// Which
        #[command(subcommand)]
        load: shunpike_bench::load::Load,
    },
    /// Print the completions of a shell (bash, zsh, fish, elvish, powershell)
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man {
        /// An existing directory
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
}

/// `run`.
#[derive(Args)]
pub struct Run {
    /// Ask for a lane at connect and accept, and let the first data call wait for it, a second or two at most
    #[arg(long)]
    pub eager: bool,
    /// Whose broker CMD is to use: the system's where it serves, else a private one that CMD leaves for the system's once that
    /// serves (auto); the system's, or nothing is started (system); a private one, which it stays with (private)
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Whose::Auto)]
    pub broker: Whose,
    /// Wait so long for the system's broker to serve, or for the one that --socket or SHUNPIKE_SOCKET names
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u32>,
    /// A setting for the private broker that this starts; may be repeated. Where one answers already, it is refused:
    /// settings are for all programs of a broker ('shunpike sysctl -w' changes them there)
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<String>,
    /// The program and its arguments
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// Whose broker a program is to use.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub enum Whose {
    /// The system's where it serves, until then a private one.
    Auto,
    /// The system's.
    System,
    /// The user's own.
    Private,
}

/// `broker`.
#[derive(Args)]
pub struct Broker {
    /// Serve one user, at the user's own socket, and serve no one else
    #[arg(long)]
    pub private: bool,
    /// Return as soon as it serves; it stays in the background
    #[arg(long)]
    pub background: bool,
    /// Who may be a peer of whom, and limits: a TOML file, in place of /etc/shunpike/broker.toml, or with
    /// --private of $XDG_CONFIG_HOME/shunpike/broker.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// A setting, over those of file and environment; may be repeated ('shunpike sysctl' lists them)
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<String>,
    /// Serve metrics (OpenMetrics over HTTP, GET /metrics) at this address, as 127.0.0.1:9477 or unix:/PATH; off
    /// otherwise
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<Address>,
    /// Fix the device's GID (128 bits, hexadecimal): fault injection only, it is random otherwise
    #[arg(long, value_name = "HEX", value_parser = gid)]
    pub gid: Option<u128>,
    /// A user-defined EID to offer (up to 32 of A-Z 0-9 . -); may be repeated, eight at most; without it, one
    /// of this system's own
    #[arg(long = "ueid", value_name = "NAME", value_parser = Eid::ueid)]
    pub ueids: Vec<Eid>,
    /// Leave when no program has been connected for this long
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub idle_exit: Option<u32>,
    /// Leave once a broker serves at this socket: programs under this one go there
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub yield_to: Option<PathBuf>,
    /// Most DMBs (receive buffers) at one time; further connections stay on TCP
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_dmbs: Option<u32>,
    /// Log each program that comes and goes
    #[arg(short, long)]
    pub verbose: bool,
}

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
    /// All since the broker began, whatever you have reset
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
    Reset {
        /// For everybody: the broker's own counts (its operator only)
        #[arg(long)]
        all: bool,
    },
    /// What smcd stats json prints, with its key names, as far as it is counted here
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

/// `tap`.
#[derive(Args)]
pub struct Tap {
    /// Write a capture (pcapng) there, readable by you alone; - is standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub write: Option<PathBuf>,
    /// Room for each process's segments until they are read, 256K to 32M
    #[arg(short = 'B', long, value_name = "SIZE", default_value = extcap::BUFFER, value_parser = tap::buffer)]
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
    #[arg(long, value_name = "SIZE", default_value = extcap::BUFFER, value_parser = extcap::buffer_or_default)]
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
    Show(Groups),
    /// Both sides of each group's link, with their completion queues
    LinkShow(Groups),
}

/// What `device` can do.
#[derive(Subcommand)]
pub enum DeviceAction {
    /// The device's identity, knobs and counters
    Show(Format),
    /// One line, as smcd device prints it
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

/// What `ueid` can do.
#[derive(Subcommand)]
pub enum UeidAction {
    /// List them
    Show(Format),
    /// Add one (up to 32 of A-Z 0-9 . -, the first a letter or digit)
    Add {
        /// The EID
        name: String,
    },
    /// Remove one
    Del {
        /// The EID
        name: String,
    },
    /// Remove all
    Flush,
}

/// What `seid` can do.
#[derive(Subcommand)]
pub enum SeidAction {
    /// Show it
    Show(Format),
    /// Let it take part in the match
    Enable,
    /// Leave it out of the match
    Disable,
}

/// How to print an answer.
#[derive(Args, Default)]
pub struct Format {
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// A process, or one of its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pid: u32,
    fd: Option<u32>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            part.parse::<u32>()
                .ok()
                .filter(|n| i32::try_from(*n).is_ok())
                .ok_or_else(|| format!("'{part}' is no number; write PID or PID:FD, as 4711 or 4711:8"))
        };
        let (pid, fd) = match text.split_once(':') {
            Some((pid, fd)) => (pid, Some(number(fd)?)),
            None => (text, None),
        };
        Ok(Self { pid: number(pid)?, fd })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fd {
            Some(fd) => write!(f, "{}:{fd}", self.pid),
            None => write!(f, "{}", self.pid),
        }
    }
}

/// Checks `NAME=VALUE` as early as possible.
fn setting(text: &str) -> Result<String, String> {
    Setting::parse(text, Origin::CommandLine).map(|_| text.to_owned()).map_err(|failure| failure.to_string())
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "write seconds, 0.1 to 3600".into())
}

fn link_id(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 16)
        .map_err(|_| "write an LG-ID as 'shunpike linkgroup' shows it, as 00000001".into())
}

fn gid(text: &str) -> Result<u128, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u128::from_str_radix(digits, 16).map_err(|_| "write 1 to 32 hexadecimal digits".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn targets_are_a_process_or_a_descriptor() {
        assert_eq!("12".parse(), Ok(Target { pid: 12, fd: None }));
        assert_eq!("12:3".parse(), Ok(Target { pid: 12, fd: Some(3) }));
        for wrong in ["", ":3", "12:", "x", "12:3:4", "-1", "4294967295"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_setting_is_checked_before_anything_is_done() {
        assert_eq!(setting("rmem=64K"), Ok("rmem=64K".into()));
        for wrong in ["rmem", "=1", "rmem=", "rmem=1", "speed=1"] {
            assert!(setting(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_gid_is_hexadecimal() {
        assert_eq!(gid("0xff"), Ok(255));
        assert_eq!(gid(&"f".repeat(32)), Ok(u128::MAX));
        assert!(gid("").is_err() && gid("g").is_err() && gid(&"f".repeat(33)).is_err());
    }
}
