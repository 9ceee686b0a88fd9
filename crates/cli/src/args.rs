//! The command line, as help, man pages and completions show it.

mod node;
mod notes;
mod start;
mod tools;

pub use self::tools::{
    DeviceAction, Events, Explain, Extcap, Groups, LinkgroupAction, PolicyAction, SeidAction, Sort, Ss,
    Stats, StatsAction, Sysctl, Tap, Top, UeidAction,
};
use clap::{Args, Parser, Subcommand, ValueHint};
use node::{CDI_NOTES, DISABLE_NOTES, ENABLE_NOTES};
pub use node::{CdiAction, Disable, Enable};
pub use notes::EXIT_STATUS;
use notes::{
    BENCH_NOTES, BROKER_NOTES, CHK_NOTES, DBG_NOTES, DEVICE_NOTES, EVENTS_NOTES, EXAMPLES, OVERVIEW,
    POLICY_NOTES, RUN_NOTES, SS_NOTES, SYSCTL_NOTES, TAP_NOTES, TOP_NOTES,
};
use shunpike_broker::settings::{Origin, Setting};
pub use start::{Broker, Entry, Run, Whose};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

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
    #[command(
        after_help = "Examples:\n  shunpike stats -d\n  shunpike stats reset\n  shunpike stats --json | jq .connections.reasons"
    )]
    Stats(Stats),
    /// Say in words why connections are, or are not, on lanes
    #[command(
        after_help = "Examples:\n  shunpike explain 4711\n  shunpike explain 4711:8\n  shunpike explain --codes"
    )]
    #[command(arg_required_else_help = true)]
    Explain(Explain),
    /// Move connections back to TCP; they may be upgraded again later
    #[command(after_help = "Examples:\n  shunpike revoke 4711\n  shunpike revoke 4711:8")]
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
    /// Show who may be a peer of whom, check a policy's file, or have the broker read it again
    #[command(after_help = POLICY_NOTES)]
    Policy {
        /// Default: show.
        #[command(subcommand)]
        action: Option<PolicyAction>,
    },
    /// Show versions and what the broker supports
    #[command(after_help = "Examples:\n  shunpike info\n  shunpike info --json | jq .privileged")]
    Info(Format),
    /// Show or change the user-defined EIDs: two systems use SMC-D only if they share one
    #[command(after_help = "Examples:\n  shunpike ueid\n  shunpike ueid add MY-CLUSTER")]
    Ueid {
        /// Default: show.
        #[command(subcommand)]
        action: Option<UeidAction>,
    },
    /// Show the system EID, or whether it takes part
    #[command(after_help = "Examples:\n  shunpike seid\n  shunpike seid disable")]
    Seid {
        /// Default: show.
        #[command(subcommand)]
        action: Option<SeidAction>,
    },
    /// List link groups: pairs of processes, and what their connections share
    #[command(
        after_help = "Examples:\n  shunpike linkgroup\n  shunpike linkgroup show 00000001\n  shunpike linkgroup link-show"
    )]
    #[command(args_conflicts_with_subcommands = true)]
    Linkgroup {
        /// Default: show.
        #[command(subcommand)]
        action: Option<LinkgroupAction>,
        /// Which.
        #[command(flatten)]
        which: Groups,
    },
    /// Would a connection to HOST:PORT get a lane, and if not, why? Connects only where asked to
    #[command(after_help = CHK_NOTES)]
    Chk {
        /// Where a program would connect to
        #[arg(value_name = "HOST:PORT")]
        target: String,
        /// Make a connection, and look for who has its other end: through published ports and translated addresses
        #[arg(short, long)]
        connect: bool,
        /// How to print.
        #[command(flatten)]
        format: Format,
    },
    /// Show what became of connections: opened, revoked, fell back to TCP, closed; why, and after how long
    #[command(after_help = EVENTS_NOTES)]
    Events(Events),
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
    /// Have a service, or all programs of this machine, run under Shunpike from their next start on
    #[command(after_help = ENABLE_NOTES)]
    Enable(Enable),
    /// Undo 'enable'
    #[command(after_help = DISABLE_NOTES)]
    Disable(Disable),
    /// Have container engines put programs under Shunpike, by a device (CDI)
    #[command(after_help = CDI_NOTES)]
    Cdi {
        /// What.
        #[command(subcommand)]
        action: CdiAction,
    },
    /// Print the completions of a shell (bash, zsh, fish, elvish, powershell)
    #[command(
        after_help = "Examples:\n  shunpike completions bash >/etc/bash_completion.d/shunpike\n  shunpike completions fish >~/.config/fish/completions/shunpike.fish"
    )]
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
    /// Process.
    pub pid: u32,
    /// Its descriptor.
    pub fd: Option<u32>,
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
