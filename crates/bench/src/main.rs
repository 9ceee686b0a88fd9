//! `shunpike-load`: the load programs of `shunpike bench` ([`Load`]), which run on a side, under Shunpike or not.

use clap::Parser;
use shunpike_bench::load::{self, Load};
use std::process::ExitCode;

/// A load program of `shunpike bench`
#[derive(Parser)]
#[command(name = "shunpike-load", version)]
struct Cli {
    #[command(subcommand)]
    load: Load,
}

fn main() -> ExitCode {
    match load::run(Cli::parse().load) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shunpike-load: {error}");
            ExitCode::FAILURE
        }
    }
}
