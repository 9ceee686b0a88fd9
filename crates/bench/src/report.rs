//! From measurements to rows: medians, ratios, what was reached.

use crate::bed::Sample;
use crate::broker::Carried;
use crate::child::Failed;
use crate::goal::{Better, Goal, Yardsticks};
use crate::machine::Machine;
use crate::settings::Settings;
use crate::side::Side;
use crate::unit::Unit;
use crate::workloads::{Metric, Seeds, Workload};
use serde::Serialize;
use std::collections::BTreeMap;

/// One measurement.
pub struct Taken {
    pub workload: &'static Workload,
    pub side: Side,
    pub result: Result<(Sample, Carried), Failed>,
}

/// All that was found out. This is what --json writes.
#[derive(Serialize)]
pub struct Report {
    /// Of Shunpike.
    pub version: &'static str,
    pub machine: Machine,
    pub runs: u32,
    pub seconds: u32,
    pub quick: bool,
    /// Told to end before all rounds were through.
    pub interrupted: bool,
    pub rows: Vec<Row>,
    /// Workloads whose programs are missing.
    pub skipped: Vec<Skipped>,
}

/// One metric of one workload.
#[derive(Serialize)]
pub struct Row {
    pub name: String,
    pub workload: &'static str,
    pub title: String,
    pub unit: Unit,
    pub better: Better,
    pub sides: BTreeMap<Side, Values>,
    /// No-copy to TCP.
    pub ratio: Option<f64>,
    /// The ratio that the seeds had.
    pub seeds: Option<Seeds>,
    pub goals: Vec<Judged>,
    pub floor: Option<Judged>,
    pub notes: Vec<String>,
}

/// The runs of a row on one side. Values are in seconds, bytes, and counts a second.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Values {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub values: Vec<f64>,
    /// Connections on lanes, at the least in any run.
    pub lanes: u64,
    /// Bytes on lanes, likewise.
    pub lane_bytes: u64,
    /// Bytes that the programs said they had sent, likewise.
    pub sent_bytes: u64,
}

/// A goal, and whether the no-copy side (of a limit: the machine) reached it.
#[derive(Serialize)]
pub struct Judged {
    pub goal: String,
    /// As a ratio to TCP, where it is one.
    pub ratio: Option<f64>,
    /// `None` where what it is compared with was not measured.
    pub reached: Option<bool>,
}

/// A workload that could not be measured.
#[derive(Serialize)]
pub struct Skipped {
    pub name: &'static str,
    pub program: &'static str,
    pub package: &'static str,
}

impl Report {
    pub fn new(
        workloads: &[&'static Workload],
        taken: &[Taken],
        machine: Machine,
        settings: &Settings,
        interrupted: bool,
    ) -> Self {
        let limit = |name: &str, pick: fn(f64, f64) -> f64| {
            let of = taken.iter().filter(|taken| taken.workload.name == name);
            let metrics = of.clone().next()?.workload.metrics.len();
            let medians =
                (0..metrics).filter_map(|metric| Values::of(of.clone(), metric)).map(|values| values.median);
            medians.reduce(pick)
        };
        let machine_limits = Yardsticks {
            line: limit(crate::workloads::LINE, f64::min),
            ring: limit(crate::workloads::RING, f64::max),
            ..Yardsticks::default()
        };
        let rows = workloads.iter().filter(|workload| workload.missing().is_empty()).flat_map(|workload| {
            let of: Vec<&Taken> = taken.iter().filter(|taken| taken.workload.name == workload.name).collect();
            (0..workload.metrics.len()).map(move |metric| Row::new(workload, metric, &of, machine_limits))
        });
        let skipped = workloads.iter().flat_map(|workload| {
            let missing = workload.missing().into_iter();
            missing.map(|program| Skipped {
                name: workload.name,
                program: program.name,
                package: program.package,
            })
        });
        Self {
            version: env!("CARGO_PKG_VERSION"),
            machine,
            runs: settings.runs,
            seconds: settings.seconds,
            quick: settings.quick,
            interrupted,
            rows: rows.collect(),
            skipped: skipped.collect(),
        }
    }
}

impl Row {
    fn new(workload: &'static Workload, index: usize, taken: &[&Taken], mut sticks: Yardsticks) -> Self {
        let Metric { name, title, unit, better, seeds, goals, floor } = workload.metrics[index];
        let mut sides = BTreeMap::new();
        let mut notes: Vec<String> = Vec::new();
        for side in workload.sides {
            let of = taken.iter().copied().filter(|taken| taken.side == *side);
            for taken in of.clone() {
                match &taken.result {
                    Ok((sample, _)) => notes.extend(sample.note.map(str::to_owned)),
                    Err(failed) => notes.push(format!("{}: {failed}", side.title())),
                }
            }
            if let Some(values) = Values::of(of, index) {
                notes.extend(values.lanes_note(workload, *side));
                sides.insert(*side, values);
            }
        }
        notes.sort();
        notes.dedup();
        let median = |side| sides.get(&side).map(|values: &Values| values.median);
        (sticks.tcp, sticks.unix) = (median(Side::Tcp), median(Side::Unix));
        let ours = median(Side::NoCopy);
        let judge = |goal: &Goal| Judged {
            goal: goal.show(unit),
            ratio: if let Goal::OfTcp(part) = goal { Some(*part) } else { None },
            reached: ours.and_then(|value| goal.is_reached(value, better, &sticks)),
        };
        let join =
            |a: &str, between, b: &str| if b.is_empty() { a.to_owned() } else { format!("{a}{between}{b}") };
        Self {
            name: join(workload.name, " ", name),
            workload: workload.name,
            title: join(workload.title, " ", title),
            unit,
            better,
            ratio: ours.zip(sticks.tcp).map(|(ours, tcp)| ours / tcp).filter(|ratio| ratio.is_finite()),
            seeds,
            goals: goals.iter().map(judge).collect(),
            floor: floor.as_ref().map(judge),
            sides,
            notes,
        }
    }

    /// How many times better than TCP a side is; 1 is TCP.
    pub fn gain(&self, side: Side) -> Option<f64> {
        let (value, tcp) = (self.sides.get(&side)?.median, self.sides.get(&Side::Tcp)?.median);
        self.better_by(value / tcp)
    }

    /// How many times better than TCP a ratio to TCP is.
    pub fn better_by(&self, ratio: f64) -> Option<f64> {
        let gain = match self.better {
            Better::More => ratio,
            Better::Less => 1.0 / ratio,
        };
        (gain.is_finite() && gain > 0.0).then_some(gain)
    }
}

impl Values {
    fn of<'a>(taken: impl Iterator<Item = &'a Taken>, metric: usize) -> Option<Self> {
        let good: Vec<(f64, &Sample, Carried)> = taken
            .filter_map(|taken| taken.result.as_ref().ok())
            .map(|(sample, carried)| (sample.values[metric], sample, *carried))
            .collect();
        let mut sorted: Vec<f64> = good.iter().map(|(value, ..)| *value).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        let (_, sample, carried) = good.iter().min_by(|(_, a, b), (_, c, d)| {
            (b.bytes as f64 / a.bytes.max(1.0)).total_cmp(&(d.bytes as f64 / c.bytes.max(1.0)))
        })?;
        Some(Self {
            median,
            min,
            max,
            values: good.iter().map(|(value, ..)| *value).collect(),
            lanes: carried.lanes,
            lane_bytes: carried.bytes,
            sent_bytes: sample.bytes as u64,
        })
    }

    /// Whether lanes carried what they should have, if not.
    fn lanes_note(&self, workload: &Workload, side: Side) -> Option<String> {
        if !side.is_shunpike() {
            return None;
        }
        if workload.stays_on_tcp {
            return (self.lanes > 0)
                .then(|| format!("{}: {} connections on lanes", side.title(), self.lanes));
        }
        let share = self.lane_bytes as f64 / (self.sent_bytes as f64).max(1.0);
        (share < 0.5).then(|| {
            format!(
                "{}: lanes carried {:.0} % of the bytes ({} connections)",
                side.title(),
                100.0 * share,
                self.lanes
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads;

    fn taken(workload: &'static Workload, side: Side, value: f64, lane_bytes: u64) -> Taken {
        let sample = Sample::new(vec![value; workload.metrics.len()], 1000.0);
        let lanes = u64::from(lane_bytes > 0);
        Taken { workload, side, result: Ok((sample, Carried { lanes, bytes: lane_bytes })) }
    }

    fn report(taken: &[Taken]) -> Report {
        let settings = Settings { runs: 3, seconds: 1, quick: false, files: Default::default() };
        let workloads: Vec<&'static Workload> = taken.iter().take(1).map(|taken| taken.workload).collect();
        Report::new(&workloads, taken, Machine::look(), &settings, false)
    }

    #[test]
    fn a_row_has_medians_and_says_what_was_reached() {
        let pingpong = workloads::chosen(&["pingpong".into()], false).unwrap()[0];
        let tcp = [1.0, 3.0, 2.0].map(|value| taken(pingpong, Side::Tcp, value, 0));
        let ours = [50.0, 40.0].map(|value| taken(pingpong, Side::NoCopy, value, 900));
        let row = &report(&tcp.into_iter().chain(ours).collect::<Vec<_>>()).rows[0];
        let values = &row.sides[&Side::Tcp];
        assert_eq!((values.median, values.min, values.max), (2.0, 1.0, 3.0));
        assert_eq!(row.sides[&Side::NoCopy].median, 45.0);
        assert_eq!((row.ratio, row.gain(Side::NoCopy)), (Some(22.5), Some(22.5)));
        assert_eq!(row.goals[0].reached, Some(true));
        assert!(row.notes.is_empty(), "{:?}", row.notes);
    }

    #[test]
    fn a_row_says_that_lanes_did_not_carry_it_and_what_failed() {
        let pingpong = workloads::chosen(&["pingpong".into()], false).unwrap()[0];
        let failed = Taken { workload: pingpong, side: Side::Copy, result: Err(Failed::new("no luck")) };
        let all = [taken(pingpong, Side::Tcp, 1.0, 0), taken(pingpong, Side::NoCopy, 2.0, 100), failed];
        let row = &report(&all).rows[0];
        assert_eq!(row.notes, ["copy: no luck", "no-copy: lanes carried 10 % of the bytes (1 connections)"]);
        assert_eq!(row.goals[0].reached, Some(false));
        assert!(!row.sides.contains_key(&Side::Copy));
    }
}
