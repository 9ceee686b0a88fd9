//! The tools: each asks the broker one question and shows its answer.

pub mod table;

use crate::args::Command;
use crate::error::Error;
use std::path::PathBuf;

/// Asks and shows.
pub fn ask(_question: Command, _socket: Option<PathBuf>) -> Result<(), Error> {
    Ok(())
}
