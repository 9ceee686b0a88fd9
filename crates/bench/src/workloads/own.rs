//! One connection: messages to and fro, and a stream.

use super::{Metric, OWN, RATE, Seeds, Workload};
use crate::bed::{Bed, Sample};
use crate::child::{Failed, Pin};
use crate::goal::Goal;
use crate::load::Pings;
use crate::unit::Unit;
use serde::Deserialize;

pub const ROWS: &[Workload] = &[
    Workload {
        name: "pingpong",
        title: "ping-pong, 100 B (as ipc-bench -s 100)",
        quick: true,
        metrics: &[Metric {
            seeds: Some(Seeds::of(1.86, "1.86-1.90, UNIX 1.46")),
            goals: &[Goal::OfTcp(20.0)],
            ..RATE
        }],
        measure: |bed| ping_pong(bed, None),
        ..OWN
    },
    Workload {
        name: "pingpong-pinned",
        title: "ping-pong, 100 B, pinned",
        metrics: &[RATE],
        measure: |bed| ping_pong(bed, Some((Pin::Server, Pin::Client))),
        ..OWN
    },
    Workload {
        name: "stream",
        title: "stream, writes of 64 KiB, pinned",
        metrics: &[Metric {
            unit: Unit::BytesPerSecond,
            goals: &[Goal::OfTcp(3.0), Goal::OfRing(0.85)],
            ..RATE
        }],
        measure: stream,
        ..OWN
    },
];

/// Without pins the scheduler may put both ends on one CPU, where each must sleep for the other to run.
fn ping_pong(bed: &mut Bed, pins: Option<(Pin, Pin)>) -> Result<Sample, Failed> {
    let (server_pin, client_pin) = pins.unzip();
    let server = bed.serve_load(&["pong", "100"], server_pin)?;
    let seconds = bed.seconds().to_string();
    let pings: Pings = bed.run_load(&["ping", &server, "100", &seconds], client_pin)?;
    bed.finish_servers()?;
    Ok(Sample::new(vec![pings.messages as f64 / pings.seconds], 200.0 * pings.messages as f64))
}

/// A stream's result.
#[derive(Deserialize)]
struct Sent {
    bytes: f64,
    seconds: f64,
}

fn stream(bed: &mut Bed) -> Result<Sample, Failed> {
    let server = bed.serve_load(&["sink"], Some(Pin::Server))?;
    let seconds = bed.seconds().to_string();
    let sent: Sent = bed.run_load(&["source", &server, "65536", &seconds], Some(Pin::Client))?;
    bed.finish_servers()?;
    Ok(Sample::new(vec![sent.bytes / sent.seconds], sent.bytes))
}
