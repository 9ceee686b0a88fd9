//! Connections that end as soon as they have said something.

use super::endpoint::Endpoint;
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read, Write};
use std::time::Instant;

/// The server closes first: its port is the one that lies in TIME_WAIT, and the client never runs out of ports.
pub fn brief(at: &Endpoint) -> io::Result<()> {
    let listener = at.listen()?;
    loop {
        let mut stream = listener.accept()?;
        let mut byte = [0];
        match stream.read_exact(&mut byte) {
            Ok(()) => stream.write_all(&byte)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
}

pub fn connect(to: &Endpoint, seconds: f64) -> io::Result<Value> {
    let (mut connections, start) = (0u64, Instant::now());
    loop {
        let mut stream = to.connect()?;
        stream.write_all(b"x")?;
        let mut answer = Vec::with_capacity(8);
        stream.read_to_end(&mut answer)?;
        if answer != b"x" {
            return Err(io::Error::other("the answer is not the message"));
        }
        connections += 1;
        let taken = start.elapsed().as_secs_f64();
        if taken >= seconds {
            return Ok(json!({ "connections": connections, "seconds": taken }));
        }
    }
}
