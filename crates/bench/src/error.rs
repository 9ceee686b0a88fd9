//! Why there is no result.

use std::fmt;
use std::io;
use std::path::PathBuf;

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
