//! `shunpike bench fabric`: what an engine between hosts can do by itself, and how much of that a link group gives.
//!
//! `shunpike-agent` measures, both ends on this host: it has libfabric, which this static program cannot load. Nothing of a lane is in these
//! figures: there are none between hosts yet.

use crate::error::Error;
use crate::machine::Machine;
use crate::options::Programs;
use crate::settings::Settings;
use crate::table;
use crate::unit::{Unit, digits};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::process::Command;

/// The word that asks for it, in place of a workload.
pub const NAME: &str = "fabric";

/// At least this part of the engine's bulk.
const BULK: f64 = 0.85;
/// At most so many seconds above the engine's latency.
const LATENCY: f64 = 1e-6;

/// As `shunpike-agent limit` writes it: bytes a second, seconds.
#[derive(Deserialize)]
struct Limit {
    engine_bulk: Vec<f64>,
    group_bulk: Vec<f64>,
    engine_latency: Vec<f64>,
    group_latency: Vec<f64>,
}

/// One row.
#[derive(Serialize)]
pub struct Row {
    name: &'static str,
    title: &'static str,
    unit: Unit,
    engine: Vec<f64>,
    group: Vec<f64>,
    /// Of the medians.
    ratio: f64,
    goal: String,
    reached: bool,
}

/// All of it: what --json writes.
#[derive(Serialize)]
pub struct Share {
    machine: Machine,
    /// libfabric's.
    provider: String,
    runs: u32,
    seconds: u32,
    rows: Vec<Row>,
}

impl Share {
    /// Rows that miss their bounds.
    pub fn missed(&self) -> Vec<String> {
        self.rows.iter().filter(|row| !row.reached).map(|row| row.name.to_owned()).collect()
    }
}

/// Measures over the provider, tcp by default.
pub fn measure(words: &[String], settings: &Settings, programs: &Programs) -> Result<Share, Error> {
    let provider = words.first().map_or("tcp", String::as_str).to_owned();
    let agent = programs.agent.as_ref().ok_or(Error::NoAgent)?;
    let mut machine = Machine::look();
    let output = Command::new(agent)
        .args(["limit", "--provider", &provider])
        .args(["--length", &(1000 * settings.seconds).to_string(), "--rounds", &settings.runs.to_string()])
        .output()
        .map_err(|source| Error::Setup("start shunpike-agent", source))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Agent(said.trim().trim_start_matches("shunpike-agent: ").to_owned()));
    }
    let limit: Limit =
        serde_json::from_slice(&output.stdout).map_err(|error| Error::Agent(error.to_string()))?;
    machine.end();
    let rows = rows(limit);
    Ok(Share { machine, provider, runs: settings.runs, seconds: settings.seconds, rows })
}

fn rows(limit: Limit) -> Vec<Row> {
    let bulk = median(&limit.group_bulk) / median(&limit.engine_bulk);
    let (engine, group) = (median(&limit.engine_latency), median(&limit.group_latency));
    vec![
        Row {
            name: "fabric-bulk",
            title: "bulk, writes of 256 KiB",
            unit: Unit::BytesPerSecond,
            engine: limit.engine_bulk,
            group: limit.group_bulk,
            ratio: bulk,
            goal: format!("≥{BULK}"),
            reached: bulk >= BULK,
        },
        Row {
            name: "fabric-latency",
            title: "a message of 8 bytes, one way",
            unit: Unit::Seconds,
            engine: limit.engine_latency,
            group: limit.group_latency,
            ratio: group / engine,
            goal: format!("≤+{}", Unit::Seconds.show(LATENCY)),
            reached: group <= engine + LATENCY,
        },
    ]
}

/// Prints the table.
pub fn show(share: &Share) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "An engine between hosts, libfabric's provider {}, on a {}",
        share.provider,
        share.machine.show()
    )?;
    writeln!(
        out,
        "Medians (least-most) of {} runs of {} s, in turn. Both ends are on this host, and spin. Ratio: link group to engine.\n",
        share.runs, share.seconds
    )?;
    if share.machine.is_busy() {
        writeln!(out, "{}\n", table::BUSY)?;
    }
    let mut table = table::new(&["Fabric", "engine", "link group", "Ratio", "Minimum"]);
    for row in &share.rows {
        let mark = if row.reached { "✓" } else { "✗" };
        table.add_row([
            row.title.to_owned(),
            range(row.unit, &row.engine),
            range(row.unit, &row.group),
            digits(row.ratio),
            format!("{} {mark}", row.goal),
        ]);
    }
    writeln!(out, "{}", table::text(&table))
}

fn range(unit: Unit, values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let most = values.iter().copied().fold(f64::MIN, f64::max);
    if values.len() < 2 { unit.show(median(values)) } else { unit.show_range(least, median(values), most) }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_whether_its_bound_is_reached() {
        let limit = |group_bulk, group_latency| Limit {
            engine_bulk: vec![9e9, 10e9, 11e9],
            group_bulk: vec![group_bulk],
            engine_latency: vec![10e-6],
            group_latency: vec![group_latency],
        };
        let reached = |limit| rows(limit).iter().map(|row| row.reached).collect::<Vec<_>>();
        assert_eq!(reached(limit(8.6e9, 10.9e-6)), [true, true]);
        assert_eq!(reached(limit(8.4e9, 11.1e-6)), [false, false]);
        let nothing =
            Limit { engine_bulk: vec![], group_bulk: vec![], engine_latency: vec![], group_latency: vec![] };
        assert_eq!(reached(nothing), [false, false], "what was not measured is not reached");
    }
}
