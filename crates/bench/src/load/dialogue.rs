//! One connection, one message under way, as ipc-bench has it.

use super::endpoint::Endpoint;
use super::warm_up;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::time::Instant;

/// So many messages between two looks at the clock.
const BATCH: u32 = 16;

/// What [`ping`] counted.
#[derive(Serialize, Deserialize)]
pub struct Pings {
    /// Answered messages.
    pub messages: u64,
    /// In this time.
    pub seconds: f64,
    /// Those before the measurement, which went over the same connection.
    pub before: u64,
    /// Times to and fro, nanoseconds, and how many messages took each; empty if not asked for.
    pub latencies: Vec<(u64, u64)>,
}

/// Times of several programs together.
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(times())
    }
}

impl Latencies {
    /// Adds those of one program.
    pub fn add(&mut self, pings: &Pings) {
        for (nanoseconds, count) in &pings.latencies {
            self.0.saturating_record_n(*nanoseconds, *count);
        }
    }

    /// The time that `percent` of the messages did not exceed, seconds.
    pub fn percentile(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 * 1e-9
    }
}

/// Nanoseconds, two digits of each, up to a minute.
pub(super) fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 2).expect("these bounds are allowed")
}

pub fn pong(at: &Endpoint, size: usize) -> io::Result<()> {
    let mut stream = at.listen()?.accept()?;
    let mut message = vec![0; size];
    loop {
        match stream.read_exact(&mut message) {
            Ok(()) => stream.write_all(&message)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

pub fn ping(to: &Endpoint, size: usize, seconds: f64, latencies: bool) -> io::Result<Pings> {
    let mut stream = to.connect()?;
    let (mut message, mut answer) = (vec![0; size], vec![0; size]);
    let mut exchange = |number: u64| {
        let number = number.to_le_bytes();
        let len = number.len().min(size);
        message[..len].copy_from_slice(&number[..len]);
        stream.write_all(&message)?;
        stream.read_exact(&mut answer)?;
        if message == answer { Ok(()) } else { Err(io::Error::other("the answer is not the message")) }
    };
    let mut before = 0;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < warm_up(seconds) {
        exchange(before)?;
        before += 1;
    }
    let mut times = times();
    let (mut messages, start) = (0, Instant::now());
    let taken = loop {
        for _ in 0..BATCH {
            if latencies {
                let begin = Instant::now();
                exchange(messages)?;
                times.saturating_record(begin.elapsed().as_nanos() as u64);
            } else {
                exchange(messages)?;
            }
            messages += 1;
        }
        let taken = start.elapsed().as_secs_f64();
        if taken >= seconds {
            break taken;
        }
    };
    let recorded = times.iter_recorded().map(|entry| (entry.value_iterated_to(), entry.count_at_value()));
    Ok(Pings { messages, seconds: taken, before, latencies: recorded.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_several_programs_are_pooled() {
        let mut all = Latencies::default();
        for (time, count) in [(1000, 98), (1_000_000, 2)] {
            all.add(&Pings { messages: count, seconds: 1.0, before: 0, latencies: vec![(time, count)] });
        }
        assert!((all.percentile(50.0) - 1e-6).abs() < 2e-8);
        assert!((all.percentile(99.0) - 1e-3).abs() < 2e-5);
    }
}
