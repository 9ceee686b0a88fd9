//! `shunpike bench`: programs on kernel TCP, UNIX stream sockets and lanes, side by side in one run, with the
//! machine's own limits beside them.
//!
//! A [`Workload`](workloads::Workload) is measured on each [`Side`](side::Side) in a [`Bed`](bed::Bed) of its own:
//! its servers, its broker, its directory. [`round`] takes the measurements in turn, [`report`] makes the rows of
//! them, which [`table`] and [`chart`] show. The load programs that no package has are in [`load`].

mod bed;
mod broker;
mod chart;
mod child;
mod curve;
mod goal;
pub mod load;
mod machine;
mod report;
mod round;
mod settings;
mod side;
mod signals;
mod table;
mod unit;
mod workloads;

use clap::{Args, ValueHint};
use report::Report;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What to measure, and how to show it.
#[derive(Args)]
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
    /// `shunpike`: broker, `run` and the load programs are its subcommands.
    pub shunpike: PathBuf,
}

/// Why there is no result.
#[derive(Debug)]
pub enum Error {
    /// No workload has this name.
    Unknown(String),
    /// `load` knows no server of this name, but these.
    NoLoad(String, Vec<&'static str>),
    /// Something that all measurements need could not be set up.
    Setup(&'static str, io::Error),
    /// A file could not be written.
    Write(PathBuf, io::Error),
    /// Standard output could not be written.
    Output(io::Error),
    /// With --check: rows below their floor, or without a result.
    Missed(Vec<String>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unknown(name) => {
                write!(f, "no workload begins with '{name}'; 'shunpike bench --list' shows them")
            }
            Error::NoLoad(name, known) => write!(f, "no load '{name}'; there are {}", known.join(", ")),
            Error::Setup(what, source) => write!(f, "cannot {what}: {source}"),
            Error::Write(path, source) => write!(f, "cannot write {}: {source}", path.display()),
            Error::Output(source) => write!(f, "cannot write to standard output: {source}"),
            Error::Missed(rows) => {
                write!(f, "below the minimum, or not measured: {}; is the machine busy?", rows.join(", "))
            }
        }
    }
}

impl std::error::Error for Error {}

/// Measures, and shows what came of it.
pub fn bench(options: &Options, programs: &Programs) -> Result<(), Error> {
    if options.workloads.first().is_some_and(|word| word == curve::NAME) {
        return curves(options, programs);
    }
    let chosen = workloads::chosen(&options.workloads, options.quick).map_err(Error::Unknown)?;
    if options.list {
        return table::list(&chosen).map_err(Error::Output);
    }
    let settings = settings::Settings::of(options);
    let report = round::all(&chosen, &settings, programs)?;
    table::show(&report).map_err(Error::Output)?;
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report).expect("names and numbers are JSON");
        write(path, &(text + "\n"))?;
    }
    if let Some(path) = &options.chart {
        write(path, &chart::draw(&report))?;
    }
    if options.check { check(&report) } else { Ok(()) }
}

fn curves(options: &Options, programs: &Programs) -> Result<(), Error> {
    let settings = settings::Settings::of(options);
    let curves = curve::measure(&options.workloads[1..], &settings, programs)?;
    curve::table(&curves).map_err(Error::Output)?;
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&curves).expect("names and numbers are JSON");
        write(path, &(text + "\n"))?;
    }
    match &options.chart {
        Some(path) => write(path, &curve::draw(&curves)),
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::Write(path.to_owned(), source))
}

fn check(report: &Report) -> Result<(), Error> {
    let bad =
        report.rows.iter().filter(|row| row.floor.as_ref().is_some_and(|floor| floor.reached != Some(true)));
    let names: Vec<String> = bad.map(|row| row.name.clone()).collect();
    if names.is_empty() { Ok(()) } else { Err(Error::Missed(names)) }
}
