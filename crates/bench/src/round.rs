//! Round by round: each workload on each side in turn (A B C, A B C), so that what the machine does meanwhile
//! falls on all of them.

use crate::bed::{Bed, Sample};
use crate::broker::Carried;
use crate::child::Failed;
use crate::error::Error;
use crate::machine::Machine;
use crate::options::Programs;
use crate::report::{Report, Taken};
use crate::settings::Settings;
use crate::side::Side;
use crate::signals::{end_at_signals, is_interrupted};
use crate::workloads::Workload;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::time::Duration;
use tempfile::TempDir;

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
    let mut bed = Bed::new(side, settings, programs, place)?;
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
