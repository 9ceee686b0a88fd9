//! What starts something: `run` and `broker`.

use super::{gid, setting};
use clap::{Args, ValueEnum, ValueHint};
use shunpike_broker::address::Address;
use shunpike_wire::Eid;
use std::ffi::OsString;
use std::path::PathBuf;

/// `run`.
#[derive(Args)]
pub struct Run {
    /// Ask for a lane at connect and accept, and let the first data call wait for it, a second or two at most
    #[arg(long)]
    pub eager: bool,
    /// Which waits of CMD spin, in place of the broker's setting: those that pay (balanced), all (latency), none (efficiency)
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(shunpike_broker::PROFILES))]
    pub profile: Option<String>,
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
    /// What reaches CMD: libshunpike.so for programs with a libc, while others stay on TCP (auto, libc); the same, and for programs
    /// without one (static C and Rust, Go) their system calls, patched as they are executed (syscall); nothing (none)
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Entry::Auto)]
    pub entry: Entry,
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

/// What reaches a program.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub enum Entry {
    /// As libc does, for now
    Auto,
    /// The preloaded library
    Libc,
    /// The preloaded library; where there is no libc, patched system calls: of CMD, and of what it starts
    Syscall,
    /// Nothing: CMD is on TCP, and what it starts
    None,
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
