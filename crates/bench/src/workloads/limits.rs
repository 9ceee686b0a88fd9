//! The machine's own limits: what no socket can be faster than.

use super::{LATENCY, Metric, OWN, RATE, Workload};
use crate::bed::{Bed, Sample, parse};
use crate::child::{Failed, Pin, Pinned};
use crate::load::{MEMORY, SIZES};
use crate::side::Side;
use crate::unit::Unit;
use serde::Deserialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const BYTES: Metric = Metric { unit: Unit::BytesPerSecond, ..RATE };

/// The row that latencies are compared with.
pub const LINE: &str = "line";
/// The row that streams are compared with, its metrics one for each ring size.
pub const RING: &str = "ring";

pub const ROWS: &[Workload] = &[
    Workload {
        name: LINE,
        title: "core-to-core latency of a cache line, one way",
        sides: &[Side::Machine],
        quick: true,
        metrics: &[LATENCY],
        measure: line,
        ..OWN
    },
    Workload {
        name: RING,
        title: "shared-memory ring of two processes, memcpy,",
        sides: &[Side::Machine],
        quick: true,
        metrics: &[
            Metric { name: "64K", title: "64 KiB", ..BYTES },
            Metric { name: "256K", title: "256 KiB", ..BYTES },
            Metric { name: "1M", title: "1 MiB", ..BYTES },
            Metric { name: "8M", title: "8 MiB", ..BYTES },
        ],
        measure: ring,
        ..OWN
    },
];

/// One word goes to and fro between two threads, each pinned to a core.
fn line(bed: &mut Bed) -> Result<Sample, Failed> {
    if crate::machine::cpus().len() < 2 {
        return Err(Failed::new("needs two CPUs"));
    }
    #[repr(align(128))]
    struct Line(AtomicU64);
    const END: u64 = u64::MAX;
    let line = Line(AtomicU64::new(0));
    let time = Duration::from_secs(1).min(Duration::from_secs(bed.seconds().into()) / 4);
    // The even number is ours to raise, the odd one the other's. Nothing but the word itself goes over.
    let wait = |wanted: u64| {
        loop {
            let now = line.0.load(Ordering::Relaxed);
            if now == wanted || now == END {
                return now;
            }
            std::hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let _pinned = Pinned::to(Pin::Server);
            let mut next = 1;
            while wait(next) != END {
                line.0.store(next + 1, Ordering::Relaxed);
                next += 2;
            }
        });
        let _pinned = Pinned::to(Pin::Client)?;
        let (mut next, mut measured_from, mut start) = (0, 0, Instant::now());
        loop {
            for _ in 0..1000 {
                wait(next);
                line.0.store(next + 1, Ordering::Relaxed);
                next += 2;
            }
            wait(next);
            if measured_from == 0 {
                // The other thread has found its core by now.
                (measured_from, start) = (next, Instant::now());
            } else if start.elapsed() >= time {
                break;
            }
        }
        let hand_overs = (next - measured_from) as f64;
        let value = start.elapsed().as_secs_f64() / hand_overs;
        line.0.store(END, Ordering::Relaxed);
        Ok(Sample::new(vec![value], 0.0))
    })
}

#[derive(Deserialize)]
struct Read {
    bytes: f64,
    seconds: f64,
}

fn ring(bed: &mut Bed) -> Result<Sample, Failed> {
    let mut values = Vec::new();
    let seconds = (f64::from(bed.seconds()) / 4.0).to_string();
    for size in SIZES {
        let memory = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(std::io::Error::from)?;
        rustix::fs::ftruncate(&memory, MEMORY + size).map_err(std::io::Error::from)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&memory));
        let command = bed.command(bed.load(&["ring-read", &path]));
        let reader = bed.start(command, Some(Pin::Server))?;
        let command = bed.command(bed.load(&["ring-write", &path, &seconds]));
        bed.run(command, Some(Pin::Client))?;
        let read: Read = parse(&reader.finish(bed.limit())?)?;
        values.push(read.bytes / read.seconds.max(f64::MIN_POSITIVE));
    }
    Ok(Sample::new(values, 0.0))
}
