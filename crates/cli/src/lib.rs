//! The command line: runs programs under Shunpike, serves as its broker, and shows what happens.
//!
//! A library only so that its parts can be tested; [`command_line`] is all of it.
//!
//! Each subcommand is a module: `run` and `broker`, `enable` and `cdi`, which change the system, and `tools`, which ask the broker.
//!
//! ```no_run
//! std::process::exit(shunpike_cli::command_line(std::env::args_os().collect()).into());
//! ```

mod args;
mod background;
mod broker;
mod cdi;
mod children;
mod codes;
mod enable;
mod error;
mod filter;
mod kernel;
mod log;
mod names;
mod pages;
mod policy;
mod program;
mod replace;
mod run;
mod say;
mod shipped;
mod signals;
mod socket;
mod standard;
mod tools;

use args::{Cli, Command, PolicyAction};
use clap::Parser;
use error::Error;
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use tools::table::plain;

/// Does what the process's arguments say (the first one is its own name) and returns its exit status. `run` does not return if it
/// succeeds.
pub fn command_line(arguments: Vec<OsString>) -> u8 {
    if children::helped(&arguments) {
        return 0;
    }
    let arguments = match names::translated(arguments) {
        Ok(arguments) => arguments,
        Err(message) => {
            say::line(message);
            return 2;
        }
    };
    let parsed = match Cli::try_parse_from(&arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            let error = names::with_tip(error);
            // Nobody has to hear it.
            let _ = error.print().and_then(|()| io::stdout().flush());
            return match error.exit_code() {
                0 => 0,
                // 2 may be CMD's.
                _ if names::is_run(&arguments) => 125,
                _ => 2,
            };
        }
    };
    match dispatch(parsed, &arguments) {
        Ok(true) => 0,
        // What was asked about is not so, and has been said.
        Ok(false) => 1,
        Err(error) => {
            say::say(plain(&error.to_string()));
            error.exit_status()
        }
    }
}

/// Whether what was asked about is so; true for what asks nothing.
fn dispatch(cli: Cli, words: &[OsString]) -> Result<bool, Error> {
    if !matches!(cli.command, Command::Run(_)) {
        standard::open()?;
    }
    let is_told = cli.socket.is_some();
    let socket = socket::named(cli.socket);
    match cli.command {
        Command::Run(args) => match run::run(&args, socket, is_told)? {},
        Command::Broker(args) if args.background => background::start(words, &args, socket),
        Command::Broker(args) => broker::serve(args, socket),
        Command::Explain(args) if args.codes => codes::print(&args.format),
        Command::Bench(options) => bench(&options),
        Command::Enable(args) => enable::enable(&args),
        Command::Disable(args) => enable::disable(&args),
        Command::Cdi { action } => cdi::cdi(&action, socket),
        Command::Completions { shell } => pages::completions(shell),
        Command::Policy { action: Some(PolicyAction::Check { file, private }) } => {
            tools::policy::check(file, private)
        }
        Command::Man { directory } => pages::man(&directory),
        Command::Chk { target, connect, format } => return tools::check(&target, socket, connect, &format),
        Command::Tap(args) => tools::tap::tap(&args, socket),
        Command::Extcap(args) => tools::tap::extcap::answer(&args, socket),
        Command::Dbg { output } => tools::collect(socket, output),
        question => tools::ask(question, socket),
    }
    .map(|()| true)
}

fn bench(options: &shunpike_bench::Options) -> Result<(), Error> {
    // Itself again: brokers and `run` are its subcommands.
    let shunpike = env::current_exe().map_err(Error::Itself)?;
    let programs = shunpike_bench::Programs { shunpike, load: shipped::load()? };
    shunpike_bench::bench(options, &programs).map_err(Error::Bench)
}
