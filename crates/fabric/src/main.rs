//! `shunpike-agent`: what needs libfabric, in a program of its own beside `shunpike`.

use clap::{Parser, Subcommand};
use shunpike_fabric::engine::EngineError;
use shunpike_fabric::libfabric::Provider;
use shunpike_fabric::limit::{Plan, measure};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

/// What needs libfabric, in a program of its own
#[derive(Parser)]
#[command(name = "shunpike-agent", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure an engine, and the link group's share of it: JSON, for 'shunpike bench fabric'
    Limit {
        /// libfabric's provider: tcp or verbs
        #[arg(long, default_value = "tcp")]
        provider: String,
        /// An address of this host, on the device: both ends are there, and one listens while it is measured
        #[arg(long, default_value = "127.0.0.1")]
        address: IpAddr,
        /// Length of one measurement, milliseconds
        #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(50..=600_000))]
        length: u64,
        /// Measurements of each kind
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shunpike-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), EngineError> {
    let Command::Limit { provider, address, length, rounds } = command;
    let provider = Provider::named(&provider)?;
    let plan = Plan { provider, address, length: Duration::from_millis(length), rounds };
    let measured = measure(&plan)?;
    println!("{}", serde_json::to_string(&measured).expect("numbers are JSON"));
    Ok(())
}
