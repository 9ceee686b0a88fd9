//! MSG_ZEROCOPY beside plain writes: what of the CPU time and of the speed is left.
//!
//! The seeds measured the kernel's own on TCP to another host: of the sender's cycles 41, 18, 11, 10 and 8 % were left at
//! 4, 16, 64, 256 KiB and 1 MiB, of the whole system's 79, 67, 64, 63 and 61 %. Here it is CPU time, of the two programs.

use super::{Metric, OWN, RATE, Seeds, Workload};
use crate::bed::{Bed, Sample};
use crate::child::{Failed, Pin};
use crate::goal::{Better, Goal};
use crate::side::Side;
use crate::unit::Unit;
use serde::Deserialize;
use shunpike_broker::what;

/// Goals from 64 KiB on.
const LARGE: &[Goal] = &[Goal::Value(15.0)];

const fn metrics(seeds: [&'static str; 2], sender: &'static [Goal], speed: &'static [Goal]) -> [Metric; 3] {
    const CPU: Metric = Metric { unit: Unit::Percent, better: Better::Less, ..RATE };
    [
        Metric {
            name: "sender",
            title: "CPU time of the sender, to plain writes",
            seeds: Some(Seeds::said(seeds[0])),
            goals: sender,
            ..CPU
        },
        Metric {
            name: "both",
            title: "CPU time of both ends, to plain writes",
            seeds: Some(Seeds::said(seeds[1])),
            goals: &[Goal::Value(60.0)],
            ..CPU
        },
        Metric {
            name: "speed",
            title: "throughput, to plain writes",
            unit: Unit::Percent,
            goals: speed,
            ..RATE
        },
    ]
}

const AS_FAST: &[Goal] = &[Goal::Value(100.0)];
const FASTER: &[Goal] = &[Goal::Value(120.0)];

const ROW: Workload = Workload { sides: &[Side::Tcp, Side::NoCopy], ..OWN };

pub const ROWS: &[Workload] = &[
    Workload {
        name: "zerocopy-4k",
        title: "MSG_ZEROCOPY, writes of 4 KiB, pinned:",
        metrics: &metrics(["41 %", "79 %"], &[], AS_FAST),
        measure: |bed| both_ways(bed, 4 << 10, AS_MEASURED),
        ..ROW
    },
    Workload {
        name: "zerocopy-16k",
        title: "MSG_ZEROCOPY, writes of 16 KiB, pinned:",
        metrics: &metrics(["18 %", "67 %"], &[], AS_FAST),
        measure: |bed| both_ways(bed, 16 << 10, AS_MEASURED),
        ..ROW
    },
    Workload {
        name: "zerocopy-64k",
        title: "MSG_ZEROCOPY, writes of 64 KiB, pinned:",
        metrics: &metrics(["11 %", "64 %"], LARGE, AS_FAST),
        measure: |bed| both_ways(bed, 64 << 10, AS_MEASURED),
        ..ROW
    },
    Workload {
        name: "zerocopy-256k",
        title: "MSG_ZEROCOPY, writes of 256 KiB, pinned:",
        metrics: &metrics(["10 %", "63 %"], LARGE, FASTER),
        measure: |bed| both_ways(bed, 256 << 10, AS_MEASURED),
        ..ROW
    },
    Workload {
        name: "zerocopy-1m",
        title: "MSG_ZEROCOPY, writes of 1 MiB, pinned:",
        metrics: &metrics(["8 %", "61 %"], LARGE, AS_FAST),
        measure: |bed| both_ways(bed, 1 << 20, AS_MEASURED),
        ..ROW
    },
    Workload {
        name: "lent-64k",
        title: "MSG_ZEROCOPY, writes of 64 KiB, zero-copy always, pinned:",
        metrics: &metrics(["11 %", "64 %"], LARGE, AS_FAST),
        measure: |bed| both_ways(bed, 64 << 10, ALL_LENT),
        ..ROW
    },
    Workload {
        name: "lent-256k",
        title: "MSG_ZEROCOPY, writes of 256 KiB, zero-copy always, pinned:",
        metrics: &metrics(["10 %", "63 %"], LARGE, FASTER),
        measure: |bed| both_ways(bed, 256 << 10, ALL_LENT),
        ..ROW
    },
    Workload {
        name: "lent-1m",
        title: "MSG_ZEROCOPY, writes of 1 MiB, zero-copy always, pinned:",
        metrics: &metrics(["8 %", "61 %"], LARGE, AS_FAST),
        measure: |bed| both_ways(bed, 1 << 20, ALL_LENT),
        ..ROW
    },
];

const AS_MEASURED: &str = "lend_bytes=0";
/// Whatever it costs, where Shunpike would copy on a machine that copies faster.
const ALL_LENT: &str = "lend_bytes=32K";

/// What a run took; CPU time in nanoseconds.
#[derive(Deserialize)]
struct Poured {
    bytes: f64,
    seconds: f64,
    sender: f64,
    reader: f64,
}

/// Without the flag, then with it, in the same turn: the machine is the same for both.
fn both_ways(bed: &mut Bed, size: usize, lending: &str) -> Result<Sample, Failed> {
    if bed.side.is_shunpike() {
        bed.broker()?.ask(what::SYSCTL, lending)?;
    }
    let (size, seconds) = (size.to_string(), bed.seconds().to_string());
    let mut pour = |flag: &[&str]| -> Result<Poured, Failed> {
        let server = bed.serve_load(&["drain"], Some(Pin::Server))?;
        let words = [&["pour", &server, &size, &seconds], flag].concat();
        let poured = bed.run_load(&words, Some(Pin::Client))?;
        bed.finish_servers()?;
        Ok(poured)
    };
    let (without, with) = (pour(&[])?, pour(&["--zerocopy"])?);
    let percent = |of: fn(&Poured) -> f64| 100.0 * of(&with) / of(&without);
    let values = vec![
        percent(|one| one.sender / one.bytes),
        percent(|one| (one.sender + one.reader) / one.bytes),
        percent(|one| one.bytes / one.seconds),
    ];
    Ok(Sample::new(values, with.bytes))
}
