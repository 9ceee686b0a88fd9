//! The differential tester: random programs of socket calls, run on kernel TCP and under Shunpike, and compared call by call.
//!
//! `differential run` makes programs from a seed, and cuts one that fails to the shortest that still does. `differential replay` runs
//! one that was kept. How it is used: tests/README.md.

mod actor;
mod as_c;
mod calls;
mod compare;
mod edges;
mod errors;
mod generate;
mod lab;
mod maker;
mod model;
mod op;
mod order;
mod pairs;
mod search;
mod stage;
mod state;
mod stepper;
mod surface;
mod team;
mod warden;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Random programs of socket calls, on TCP and on lanes, compared call by call")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make programs and compare.
    Run(Search),
    /// Run programs that were kept, each many times.
    Replay {
        /// Where `shunpike` and `libshunpike.so` are.
        #[arg(long, default_value = "target/release")]
        built: PathBuf,
        /// Times that each is run in each way.
        #[arg(long, default_value_t = 3)]
        times: u32,
        #[arg(long, value_delimiter = ',', default_value = "earned,eager,copy,client,server")]
        ways: Vec<stage::Way>,
        /// Cuts the call that is cut after each number of its instructions in turn, so many apart.
        #[arg(long, value_name = "STEP", num_args = 0..=1, default_missing_value = "1")]
        windows: Option<u16>,
        /// Where those that fail are written, also as C programs.
        #[arg(long)]
        keep: Option<PathBuf>,
        files: Vec<PathBuf>,
    },
    /// Prints a table of pairs of call and state, from what runs have written by `--pairs`.
    Table {
        /// Of the first runs.
        #[arg(long)]
        seed: u64,
        /// What runs of the seed have written, at least two.
        #[arg(long, required = true)]
        each: Vec<PathBuf>,
        /// What runs of other seeds have written.
        others: Vec<PathBuf>,
    },
    /// One of the processes of a program.
    #[command(hide = true)]
    Actor {
        /// Has the driver asked about system calls of the library's own.
        #[arg(long)]
        asks: bool,
        /// From where it goes on.
        state: Option<String>,
    },
}

/// What to search, and for how long.
#[derive(clap::Args, Clone)]
pub struct Search {
    /// Where `shunpike` and `libshunpike.so` are.
    #[arg(long, default_value = "target/release")]
    built: PathBuf,
    /// From which all else follows; by default a new one each time, and programs that reach something new are gone on from.
    #[arg(long)]
    seed: Option<u64>,
    /// Ends after so many seconds; without any of the three bounds, after 60.
    #[arg(long)]
    seconds: Option<u64>,
    /// Ends after so many programs.
    #[arg(long)]
    programs: Option<u64>,
    /// Runs only the program of this number; the others are made and left out.
    #[arg(long)]
    only: Option<u64>,
    /// Ends after so many calls on lanes.
    #[arg(long)]
    calls: Option<u64>,
    /// Searches that go on at the same time, each with a seed of its own: the seed and the numbers behind it.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Ways to run, besides TCP. `tcp` itself: TCP against TCP, which checks the tester.
    #[arg(long, value_delimiter = ',', default_value = "earned,eager,copy,client,server")]
    ways: Vec<stage::Way>,
    /// Makes system calls of the library's own fail, as the seed says.
    #[arg(long)]
    errors: bool,
    /// Programs of one call that is cut after each number of its instructions in turn, so many apart, until it is over before.
    #[arg(long, value_name = "STEP", num_args = 0..=1, default_missing_value = "1")]
    windows: Option<u16>,
    /// Most calls of a program.
    #[arg(long, default_value_t = 40)]
    longest: usize,
    /// With waits by system calls that no hook sees: a program that does both is not served as on TCP (COMPLIANCE.md).
    #[arg(long)]
    raw: bool,
    /// Fails where less of the calls, in a hundred, are made on lanes.
    #[arg(long)]
    share: Option<u64>,
    /// A table of pairs of call and state, of which the run must reach those that are marked so, and leave out no more than it says.
    #[arg(long)]
    reaches: Option<PathBuf>,
    /// Where the pairs that it reached are written, and how often each.
    #[arg(long)]
    pairs: Option<PathBuf>,
    /// Where failing programs are written.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Faults in one call and way that are cut short; further ones are only counted.
    #[arg(long, default_value_t = 3)]
    cuts: u64,
    /// Go on after a failure.
    #[arg(long)]
    go_on: bool,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(mut search) => {
            if search.programs.or(search.calls).is_none() {
                search.seconds.get_or_insert(60);
            }
            search::search(&search)
        }
        Command::Replay { built, times, ways, windows, keep, files } => {
            search::replay(&built, times, &ways, windows, &files, keep.as_deref())
        }
        Command::Table { seed, each, others } => {
            pairs::print_table(seed, &each, &others);
            ExitCode::SUCCESS
        }
        Command::Actor { asks, state } => {
            if asks {
                calls::have_driver_asked();
            }
            actor::run(state.as_deref());
            ExitCode::SUCCESS
        }
    }
}
