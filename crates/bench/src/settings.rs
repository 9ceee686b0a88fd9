//! How each measurement is taken.

use crate::options::Options;
use serde::Serialize;
use std::sync::atomic::AtomicU32;

/// The seeds' number of requests is for runs of this length.
const USUAL_SECONDS: u32 = 2;

/// How each measurement is taken.
#[derive(Debug, Serialize)]
pub struct Settings {
    /// Runs of each workload on each side.
    pub runs: u32,
    /// Length of a run.
    pub seconds: u32,
    /// --quick.
    pub quick: bool,
    /// Numbers for files.
    #[serde(skip)]
    pub files: AtomicU32,
}

impl Settings {
    pub fn of(options: &Options) -> Self {
        let usual = if options.quick { (1, 1) } else { (3, USUAL_SECONDS) };
        Self {
            runs: options.runs.unwrap_or(usual.0),
            seconds: options.seconds.unwrap_or(usual.1),
            quick: options.quick,
            files: AtomicU32::new(0),
        }
    }

    #[cfg(test)]
    pub fn for_tests() -> Self {
        Self { runs: 1, seconds: 1, quick: true, files: AtomicU32::new(0) }
    }

    /// How much longer than usual a run is.
    pub fn share(&self) -> f64 {
        let share = f64::from(self.seconds) / f64::from(USUAL_SECONDS);
        if self.quick { share / 4.0 } else { share }
    }
}
