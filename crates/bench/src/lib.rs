//! `shunpike bench`: programs on kernel TCP, UNIX stream sockets and lanes, side by side in one run, with the
//! machine's own limits beside them.
//!
//! A [`Workload`](workloads::Workload) is measured on each [`Side`](side::Side) in a [`Bed`](bed::Bed) of its own:
//! its servers, its broker, its directory. [`round`] takes the measurements in turn, [`report`] makes the rows of
//! them, which [`table`] and [`chart`] show. The load programs that no package has are in [`load`].
//!
//! ```no_run
//! use shunpike_bench::{Error, Options, Programs, bench};
//!
//! let programs = Programs { shunpike: "target/release/shunpike".into(), load: "target/release/shunpike-load".into() };
//! let options = Options {
//!     workloads: vec!["redis".into(), "nginx-100".into()],
//!     runs: Some(5),
//!     json: Some("redis.json".into()),
//!     ..Options::default()
//! };
//! bench(&options, &programs)?;
//! # Ok::<(), Error>(())
//! ```

mod bed;
mod broker;
mod chart;
mod child;
mod curve;
mod error;
mod goal;
pub mod load;
mod machine;
mod options;
mod report;
mod round;
mod settings;
mod side;
mod signals;
mod table;
mod unit;
mod workloads;

pub use error::Error;
pub use options::{Options, Programs};
use report::Report;
use std::fs;
use std::path::Path;

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
