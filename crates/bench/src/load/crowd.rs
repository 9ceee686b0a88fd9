//! Many connections of two processes.

use super::endpoint::{Endpoint, Stream};
use super::epoll::Set;
use super::warm_up;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes in a message: less than any socket buffer, so that a write takes all of it at once.
const SIZE: usize = 100;

pub fn echo(at: &Endpoint) -> io::Result<()> {
    raise_limit();
    let listener = at.listen()?;
    listener.set_nonblocking()?;
    let mut set = Set::new()?;
    // The listener is 0, the stream in slot n is n + 1.
    set.add(listener.as_raw_fd(), 0)?;
    let (mut streams, mut free): (Vec<Option<Stream>>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut buffer = [0; 4096];
    loop {
        let ready: Vec<usize> = set.wait()?.collect();
        for data in ready {
            let Some(slot) = data.checked_sub(1) else {
                while let Ok(stream) = listener.accept() {
                    stream.set_nonblocking()?;
                    let slot = free.pop().unwrap_or(streams.len());
                    set.add(stream.as_raw_fd(), slot + 1)?;
                    if slot == streams.len() {
                        streams.push(Some(stream));
                    } else {
                        streams[slot] = Some(stream);
                    }
                }
                continue;
            };
            let Some(stream) = &mut streams[slot] else { continue };
            let answered = match stream.read(&mut buffer) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => stream.write_all(&buffer[..n]),
                Err(error) => Err(error),
            };
            match answered {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => {
                    streams[slot] = None;
                    free.push(slot);
                }
                Ok(()) => {}
            }
        }
    }
}

/// What a connection sends again and again, and how long the answer is.
#[derive(Copy, Clone)]
pub struct Message {
    request: &'static [u8],
    answer: usize,
}

/// To a server that sends back what it gets.
pub const ECHOED: Message = Message { request: &[7; SIZE], answer: SIZE };

/// To a memcached, which is given a value to answer with.
pub fn asked(to: &Endpoint) -> io::Result<Message> {
    let (stored, head, tail) = ("STORED\r\n", format!("VALUE k 0 {SIZE}\r\n"), "\r\nEND\r\n");
    let mut stream = to.connect()?;
    stream.write_all(format!("set k 0 0 {SIZE}\r\n{}\r\n", "v".repeat(SIZE)).as_bytes())?;
    let mut answer = vec![0; stored.len()];
    stream.read_exact(&mut answer)?;
    if answer != stored.as_bytes() {
        return Err(ErrorKind::InvalidData.into());
    }
    Ok(Message { request: b"get k\r\n", answer: head.len() + SIZE + tail.len() })
}

/// Connections divided among threads, each with an epoll set of its own; `open` and `active` in all.
pub fn crowds(
    to: &Endpoint,
    [open, active]: [usize; 2],
    seconds: f64,
    threads: usize,
    message: Message,
) -> io::Result<Value> {
    raise_limit();
    let share = |all: usize, thread: usize| (thread + 1) * all / threads - thread * all / threads;
    let results: Vec<io::Result<[f64; 3]>> = std::thread::scope(|scope| {
        let start = |thread| {
            let (open, active) = (share(open, thread), share(active, thread));
            scope.spawn(move || crowd(to, open, active, seconds, message))
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        let died = |_| Err(io::Error::other("a thread of the load program died"));
        running.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
    });
    let mut sum = [0.0f64; 3];
    for result in results {
        let [messages, taken, before] = result?;
        sum = [sum[0] + messages, sum[1].max(taken), sum[2] + before];
    }
    Ok(json!({ "messages": sum[0], "seconds": sum[1], "before": sum[2] }))
}

/// Messages, seconds that they took, and messages of the warm-up.
fn crowd(to: &Endpoint, open: usize, active: usize, seconds: f64, message: Message) -> io::Result<[f64; 3]> {
    let mut streams = Vec::with_capacity(open);
    let mut set = Set::new()?;
    for number in 0..open {
        let stream = to.connect()?;
        stream.set_nonblocking()?;
        set.add(stream.as_raw_fd(), number)?;
        streams.push((stream, 0));
    }
    // The busy ones lie spread among the others.
    for number in (0..active).map(|n| n * open / active) {
        streams[number].0.write_all(message.request)?;
    }
    let mut buffer = [0; 4096];
    let mut turn = |seconds: f64| -> io::Result<(u64, f64)> {
        let (mut messages, start) = (0, Instant::now());
        loop {
            for number in set.wait()? {
                let (stream, got) = &mut streams[number];
                match stream.read(&mut buffer) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(n) => *got += n,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(error),
                }
                if *got >= message.answer {
                    *got -= message.answer;
                    messages += 1;
                    stream.write_all(message.request)?;
                }
            }
            let taken = start.elapsed().as_secs_f64();
            if taken >= seconds {
                return Ok((messages, taken));
            }
        }
    };
    let (before, _) = turn(warm_up(seconds))?;
    let (messages, taken) = turn(seconds)?;
    Ok([messages as f64, taken, before as f64])
}

pub fn idle(to: &Endpoint, open: usize, still: &Path) -> io::Result<()> {
    raise_limit();
    let mut streams = (0..open).map(|_| to.connect()).collect::<io::Result<Vec<_>>>()?;
    let mut answer = [0; SIZE];
    while !still.exists() {
        for stream in &mut streams {
            stream.write_all(&[7; SIZE])?;
            stream.read_exact(&mut answer)?;
        }
        sleep(Duration::from_millis(1));
    }
    // Until the end of standard input: nothing on any of them.
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// As many descriptors as are allowed.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where that fails, the first connection beyond the limit says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
