//! Round by round: each workload on each side in turn (A B C, A B C), so that what the machine does meanwhile
//! falls on all of them.

use crate::bed::{Bed, Failed, Sample};
use crate::broker::Carried;
use crate::machine::Machine;
use crate::report::{Report, Taken};
use crate::side::Side;
use crate::workloads::Workload;
use crate::{Error, Options, Programs};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

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

/// Set by SIGINT and SIGTERM: what was measured until then is shown.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Whether we were told to end.
pub fn is_interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// From here on SIGINT and SIGTERM end the rounds.
pub fn end_at_signals() -> Result<(), Error> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, flag.clone())
            .map_err(|error| Error::Setup("catch signals", error))?;
    }
    Ok(())
}

/// Where the programs of all measurements have theirs.
pub fn directory() -> Result<TempDir, Error> {
    let directory = tempfile::Builder::new().prefix("shunpike-bench-").tempdir();
    directory.map_err(|error| Error::Setup("make a directory for the programs", error))
}

/// Measures all of `workloads`.
pub fn all(
    workloads: &[&'static Workload],
    settings: &Settings,
    programs: &Programs,
) -> Result<Report, Error> {
    end_at_signals()?;
    let directory = directory()?;
    let mut machine = Machine::look();
    let runnable: Vec<&Workload> =
        workloads.iter().copied().filter(|workload| workload.missing().is_empty()).collect();
    let count: usize = runnable.iter().map(|workload| workload.sides.len()).sum();
    let progress = Progress::new(count * settings.runs as usize);
    let mut taken = Vec::new();
    'rounds: for round in 0..settings.runs {
        for workload in &runnable {
            for side in workload.sides {
                progress.begin(workload, *side, round + 1, settings.runs);
                let place = directory.path().join(format!("{}-{}-{round}", workload.name, side.title()));
                let result = std::fs::create_dir(&place)
                    .map_err(Failed::from)
                    .and_then(|()| measure(workload, *side, settings, programs, place));
                if is_interrupted() {
                    break 'rounds;
                }
                taken.push(Taken { workload, side: *side, result });
                progress.bar.inc(1);
            }
        }
    }
    progress.finish();
    machine.end();
    Ok(Report::new(workloads, &taken, machine, settings, is_interrupted()))
}

fn measure(
    workload: &Workload,
    side: Side,
    settings: &Settings,
    programs: &Programs,
    place: std::path::PathBuf,
) -> Result<(Sample, Carried), Failed> {
    let mut bed = Bed::new(side, settings, &programs.shunpike, place)?;
    let sample = (workload.measure)(&mut bed)?;
    // Half of what was sent: connections start on TCP, and some programs count both ends.
    let carried = if workload.stays_on_tcp { bed.carried(0.0) } else { bed.carried(sample.bytes / 2.0) }?;
    Ok((sample, carried))
}

/// A bar on a terminal, a line for each measurement elsewhere.
struct Progress {
    bar: ProgressBar,
    lines: bool,
}

impl Progress {
    fn new(steps: usize) -> Self {
        let lines = !stderr().is_terminal();
        let target = if lines { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        if let Ok(style) =
            ProgressStyle::with_template("{bar:20} {pos}/{len}  {elapsed} of about {duration}  {wide_msg}")
        {
            bar.set_style(style);
        }
        if !lines {
            // Seldom: it wants no CPU of those who are measured.
            bar.enable_steady_tick(Duration::from_secs(1));
        }
        Self { bar, lines }
    }

    fn begin(&self, workload: &Workload, side: Side, round: u32, rounds: u32) {
        let message = format!("round {round} of {rounds}: {} on {}", workload.name, side.title());
        if self.lines {
            eprintln!("{}/{} {message}", self.bar.position() + 1, self.bar.length().unwrap_or(0));
        }
        self.bar.set_message(message);
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
