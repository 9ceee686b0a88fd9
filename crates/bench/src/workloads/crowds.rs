//! More connections, or more programs, than CPUs.

use super::{LATENCY, Metric, OWN, RATE, Workload};
use crate::bed::{Bed, Client, Sample, parse};
use crate::child::Failed;
use crate::goal::{Better, Goal};
use crate::load::{Latencies, Pings};
use crate::unit::Unit;
use serde::Deserialize;

/// Bytes of a message and its answer.
const EXCHANGE: f64 = 200.0;
/// Client processes of a fan-in; pairs on the machine's CPUs.
const EIGHT: usize = 8;

pub const ROWS: &[Workload] = &[
    Workload {
        name: "crowd",
        title: "100 active connections,",
        metrics: &[
            Metric { name: "100", title: "of 100", ..RATE },
            Metric { name: "10000", title: "of 10,000", ..RATE },
            Metric {
                name: "share",
                title: "of 10,000, to that of 100",
                unit: Unit::Plain,
                goals: &[Goal::Value(0.9)],
                ..RATE
            },
        ],
        measure: crowd,
        ..OWN
    },
    Workload {
        name: "fan-in",
        title: "8 client processes, one server, 100 B",
        metrics: &[RATE],
        measure: fan_in,
        ..OWN
    },
    Workload {
        name: "connect",
        title: "new connections, 1 B request and response",
        stays_on_tcp: true,
        metrics: &[Metric { goals: &[Goal::OfTcp(0.97)], ..RATE }],
        measure: connect,
        ..OWN
    },
    Workload {
        name: "pairs",
        title: "8 process pairs, ping-pong on all CPUs, 100 B:",
        quick: true,
        metrics: &[
            Metric { name: "rate", title: "rate", goals: &[Goal::OfTcp(1.0)], ..RATE },
            Metric { name: "p99", title: "p99", better: Better::Less, goals: &[Goal::OfTcp(1.0)], ..LATENCY },
        ],
        measure: pairs,
        ..OWN
    },
];

#[derive(Deserialize)]
struct Exchanged {
    messages: f64,
    seconds: f64,
}

fn crowd(bed: &mut Bed) -> Result<Sample, Failed> {
    let seconds = (f64::from(bed.seconds()) / 2.0).to_string();
    let (mut rates, mut messages) = (Vec::new(), 0.0);
    for open in ["100", "10000"] {
        let server = bed.serve_load(&["echo"], None)?;
        let got: Exchanged = bed.run_load(&["crowd", &server, open, "100", &seconds], None)?;
        rates.push(got.messages / got.seconds);
        messages += got.messages;
    }
    rates.push(rates[1] / rates[0]);
    Ok(Sample::new(rates, EXCHANGE * messages))
}

fn fan_in(bed: &mut Bed) -> Result<Sample, Failed> {
    let server = bed.serve_load(&["echo"], None)?;
    let pings = pings(bed, &vec![server; EIGHT], false)?;
    Ok(Sample::new(vec![rate(&pings)], EXCHANGE * messages(&pings)))
}

fn pairs(bed: &mut Bed) -> Result<Sample, Failed> {
    let servers =
        (0..EIGHT).map(|_| bed.serve_load(&["pong", "100"], None)).collect::<Result<Vec<_>, _>>()?;
    let pings = pings(bed, &servers, true)?;
    let mut latencies = Latencies::default();
    pings.iter().for_each(|pings| latencies.add(pings));
    Ok(Sample::new(vec![rate(&pings), latencies.percentile(99.0)], EXCHANGE * messages(&pings)))
}

/// A client process to each of `servers`, all at a time.
fn pings(bed: &mut Bed, servers: &[String], latencies: bool) -> Result<Vec<Pings>, Failed> {
    let seconds = bed.seconds().to_string();
    let option = if latencies { &["--latencies"][..] } else { &[] };
    let mut clients: Vec<Client> = Vec::new();
    for server in servers {
        let words = [&["ping", server, "100", &seconds], option].concat();
        let command = bed.command(bed.load(&words));
        clients.push(bed.start(command, None)?);
    }
    clients.into_iter().map(|client| parse(&client.finish(bed.limit())?)).collect()
}

fn rate(pings: &[Pings]) -> f64 {
    pings.iter().map(|pings| pings.messages as f64 / pings.seconds).sum()
}

fn messages(pings: &[Pings]) -> f64 {
    pings.iter().map(|pings| pings.messages as f64).sum()
}

#[derive(Deserialize)]
struct Connected {
    connections: f64,
    seconds: f64,
}

fn connect(bed: &mut Bed) -> Result<Sample, Failed> {
    let server = bed.serve_load(&["brief"], None)?;
    let seconds = bed.seconds().to_string();
    let got: Connected = bed.run_load(&["connect", &server, &seconds], None)?;
    Ok(Sample::new(vec![got.connections / got.seconds], 0.0))
}
