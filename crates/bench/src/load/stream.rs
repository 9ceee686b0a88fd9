//! One connection, bytes in one direction.

use super::endpoint::Endpoint;
use super::warm_up;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::time::Instant;

/// Reads to the end, then answers how many bytes came: only what has arrived counts.
pub fn sink(at: &Endpoint) -> io::Result<()> {
    let mut stream = at.listen()?.accept()?;
    let mut buffer = vec![0; 64 * 1024];
    let mut bytes = 0u64;
    loop {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        bytes += n as u64;
    }
    stream.write_all(&bytes.to_le_bytes())
}

pub fn source(to: &Endpoint, size: usize, seconds: f64) -> io::Result<Value> {
    let mut stream = to.connect()?;
    let block: Vec<u8> = (0..size).map(|i| i as u8).collect();
    let mut send = |seconds: f64| -> io::Result<(u64, f64)> {
        let (mut bytes, start) = (0, Instant::now());
        loop {
            stream.write_all(&block)?;
            bytes += size as u64;
            let taken = start.elapsed().as_secs_f64();
            if taken >= seconds {
                return Ok((bytes, taken));
            }
        }
    };
    let (before, _) = send(warm_up(seconds))?;
    let (bytes, taken) = send(seconds)?;
    stream.end_writing()?;
    let mut arrived = [0; 8];
    stream.read_exact(&mut arrived)?;
    if u64::from_le_bytes(arrived) != before + bytes {
        return Err(io::Error::other("not as many bytes arrived as were sent"));
    }
    Ok(json!({ "bytes": bytes, "seconds": taken, "before": before }))
}
