//! What the bench is asked for.

use clap::{Args, ValueHint};
use std::path::PathBuf;

/// What to measure, and how to show it.
#[derive(Args, Default)]
pub struct Options {
    /// Workloads, by the names or beginnings of names that --list shows; all of them by default. Or 'load', and echo, redis or nginx: CPU
    /// time and latencies at shares of TCP's highest rate
    #[arg(value_name = "WORKLOAD")]
    pub workloads: Vec<String>,
    /// List the workloads, and what they need
    #[arg(long)]
    pub list: bool,
    /// A first look, under a minute: some of the workloads, one short run of each
    #[arg(long)]
    pub quick: bool,
    /// Runs of each workload on each side [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: Option<u32>,
    /// Length of one run [default: 2]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: Option<u32>,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub json: Option<PathBuf>,
    /// Draw the results, as SVG
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub chart: Option<PathBuf>,
    /// Exit with status 1 if a minimum is missed
    #[arg(long)]
    pub check: bool,
}

/// What the bench runs beside the workloads' own programs.
pub struct Programs {
    /// `shunpike`: broker and `run` are its subcommands.
    pub shunpike: PathBuf,
    /// `shunpike-load`: [`load`](crate::load).
    pub load: PathBuf,
}
