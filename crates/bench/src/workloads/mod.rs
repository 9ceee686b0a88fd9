//! What is measured: the programs of the seeds' tables with their parameters, and ours.
//!
//! "The seeds" are the tables published with the kernel's loopback-ism patches: RFC v4 (2023) and v6 (2024).

mod cost;
mod crowds;
mod http;
mod limits;
mod own;
mod packaged;
mod queues;
mod zerocopy;

pub use http::{NGINX, one_worker};
pub use limits::{LINE, RING};
pub use packaged::REDIS;

use crate::bed::{Bed, Sample};
use crate::child::Failed;
use crate::goal::{Better, Goal};
use crate::side::Side::{self, Copy, NoCopy, Tcp, Unix};
use crate::unit::Unit;
use serde::Serialize;
use std::env;
use std::path::Path;

/// One program with its parameters. It gives a value for each of its metrics.
pub struct Workload {
    pub name: &'static str,
    pub title: &'static str,
    pub needs: &'static [Program],
    pub sides: &'static [Side],
    /// Whether --quick has it.
    pub quick: bool,
    /// Whether its connections are too short for lanes, by design.
    pub stays_on_tcp: bool,
    pub metrics: &'static [Metric],
    pub measure: fn(&mut Bed) -> Result<Sample, Failed>,
}

/// A value of a workload: a row of the table.
pub struct Metric {
    /// Added to the workload's name; empty where it has one metric only.
    pub name: &'static str,
    /// Added to the workload's title.
    pub title: &'static str,
    pub unit: Unit,
    pub better: Better,
    /// Kernel SMC-D over loopback-ism to TCP, as the seeds measured it.
    pub seeds: Option<Seeds>,
    /// What it is to reach.
    pub goals: &'static [Goal],
    /// What it must not fall below.
    pub floor: Option<Goal>,
}

/// What the seeds say of a row.
#[derive(Copy, Clone, Debug, Serialize)]
pub struct Seeds {
    /// Kernel SMC-D without copy to TCP.
    pub ratio: Option<f64>,
    /// For people.
    pub said: &'static str,
}

impl Seeds {
    const fn of(ratio: f64, said: &'static str) -> Self {
        Self { ratio: Some(ratio), said }
    }

    const fn said(said: &'static str) -> Self {
        Self { ratio: None, said }
    }
}

/// A program that must be there, and Debian's package that brings it.
pub struct Program {
    pub name: &'static str,
    pub package: &'static str,
}

/// All sides.
const ALL: &[Side] = &[Tcp, Unix, Copy, NoCopy];
/// Of programs that know no UNIX sockets.
const NO_UNIX: &[Side] = &[Tcp, Copy, NoCopy];

/// A rate without goals; the others are written as changes of it.
const RATE: Metric = Metric {
    name: "",
    title: "",
    unit: Unit::PerSecond,
    better: Better::More,
    seeds: None,
    goals: &[],
    floor: None,
};

/// A latency without goals.
const LATENCY: Metric = Metric { unit: Unit::Seconds, better: Better::Less, ..RATE };

/// A workload of our own load programs on all sides; the others are written as changes of it.
const OWN: Workload = Workload {
    name: "",
    title: "",
    needs: &[],
    sides: ALL,
    quick: false,
    stays_on_tcp: false,
    metrics: &[],
    measure: |_| Err(Failed(String::new())),
};

/// All of them, in the table's order.
pub fn all() -> Vec<&'static Workload> {
    let groups: [&'static [Workload]; 8] = [
        limits::ROWS,
        own::ROWS,
        packaged::ROWS,
        http::ROWS,
        queues::ROWS,
        crowds::ROWS,
        zerocopy::ROWS,
        cost::ROWS,
    ];
    groups.iter().flat_map(|rows| rows.iter()).collect()
}

/// Those whose names begin with one of `names`; without names all, or the quick ones. Error: the unknown name.
pub fn chosen(names: &[String], quick: bool) -> Result<Vec<&'static Workload>, String> {
    let begins = |workload: &Workload, name: &String| {
        // "redis-c1" is a name by itself, not the beginning of "redis-c100".
        workload.name == name
            || (workload.name.starts_with(name.as_str()) && all().iter().all(|w| w.name != name))
    };
    if let Some(unknown) = names.iter().find(|name| !all().iter().any(|workload| begins(workload, name))) {
        return Err(unknown.clone());
    }
    let wanted = |workload: &&Workload| match names {
        [] => !quick || workload.quick,
        names => names.iter().any(|name| begins(workload, name)),
    };
    Ok(all().into_iter().filter(wanted).collect())
}

impl Workload {
    /// The programs that are not here.
    pub fn missing(&self) -> Vec<&'static Program> {
        self.needs.iter().filter(|program| !program.is_here()).collect()
    }
}

impl Program {
    /// Whether it is on the path.
    pub fn is_here(&self) -> bool {
        let path = env::var_os("PATH").unwrap_or_default();
        let usual = ["/usr/sbin", "/sbin"].map(|dir| Path::new(dir).to_owned());
        env::split_paths(&path).chain(usual).any(|dir| dir.join(self.name).is_file())
    }
}

/// The number behind `label` in the output of a program.
fn number(text: &str, label: &str) -> Result<f64, Failed> {
    let rest = text.split_once(label).map(|(_, rest)| rest.trim_start());
    let digits: Option<String> =
        rest.map(|rest| rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect());
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| Failed::new(format!("no number behind '{label}' in what its client wrote")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_beginnings_unless_they_are_whole() {
        let names = |wanted: &[&str]| -> Vec<&str> {
            let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            chosen(&wanted, false).unwrap().iter().map(|workload| workload.name).collect()
        };
        assert_eq!(names(&["nginx-100"]), ["nginx-100"], "not nginx-1000");
        assert!(names(&["redis"]).len() >= 4);
        assert_eq!(names(&[]).len(), all().len());
        assert_eq!(chosen(&["nothing".into()], false).err().as_deref(), Some("nothing"));
    }

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let mut rows: Vec<String> = all()
            .iter()
            .flat_map(|w| w.metrics.iter().map(|metric| format!("{} {}", w.name, metric.name)))
            .collect();
        let count = rows.len();
        rows.sort();
        rows.dedup();
        assert_eq!(rows.len(), count);
        assert!(all().iter().all(|workload| !workload.metrics.is_empty() && !workload.sides.is_empty()));
    }

    /// Who runs the bench has not read our documents: a title says what is measured in words that any benchmark uses.
    #[test]
    fn titles_are_in_the_words_of_the_field() {
        const OURS: [&str; 16] = [
            "lane", "lent", "lend", "loan", "cork", "nap", "outbox", "cq", "dmb", "spare", "eager",
            "upgrade", "revoke", "nominat", "seed", "spread",
        ];
        let titles = all().into_iter().flat_map(|workload| {
            workload.metrics.iter().map(move |metric| format!("{} {}", workload.title, metric.title))
        });
        let mut count = 0;
        for title in titles {
            let lower = title.to_lowercase();
            let ours = |word: &str| OURS.iter().find(|own| word.starts_with(**own)).copied();
            let found = lower.split(|c: char| !c.is_ascii_alphanumeric()).find_map(ours);
            assert_eq!(found, None, "{title}");
            assert!(
                title.trim() == title.trim_end_matches([':', ',']).trim(),
                "a title is begun and not ended: {title}"
            );
            count += 1;
        }
        assert!(count >= 26, "{count}");
    }

    #[test]
    fn numbers_stand_behind_their_labels() {
        assert_eq!(number("a: 1\nLatency is 0.290 usec", "Latency is"), Ok(0.29));
        assert!(number("Latency is low", "Latency is").is_err());
    }
}
