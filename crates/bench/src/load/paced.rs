//! An open loop: messages are due at fixed times, whatever the answers do, and each is timed from when it was due. So a
//! stall counts for all that it delays (Tene's "coordinated omission"; wrk2 measures so).

use super::dialogue::times;
use super::endpoint::{Endpoint, Stream};
use super::epoll::Set;
use super::warm_up;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// What to send, how often, and whom to watch.
pub struct Plan<'a> {
    /// A request.
    pub request: &'a [u8],
    /// Bytes of its answer.
    pub answer: usize,
    /// Requests a second, over all connections; 0: as many as are answered, a closed loop.
    pub rate: f64,
    pub connections: usize,
    pub seconds: f64,
    /// Processes of the server, whose CPU time is taken.
    pub servers: &'a [u32],
}

/// What [`paced`] counted.
#[derive(Serialize, Deserialize)]
pub struct Paced {
    /// Answered requests.
    pub answers: u64,
    /// In this time.
    pub seconds: f64,
    /// Those before the measurement, over the same connections.
    pub before: u64,
    /// CPU time of the server's processes meanwhile, seconds.
    pub server: f64,
    /// CPU time of the client, seconds.
    pub client: f64,
    /// CPU time of all that ran on the machine, seconds.
    pub machine: f64,
    /// From when a request was due to its answer, nanoseconds: the 50th, 99th and 99.9th percentile.
    pub latencies: [u64; 3],
}

const PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];

/// One that is not answered within this time has no connection left.
const LOST: Duration = Duration::from_secs(5);

struct Connection {
    stream: Stream,
    /// Bytes of the answer under way.
    got: usize,
    due: Instant,
}

/// The requests of a run, and what became of them.
struct Run<'a> {
    plan: &'a Plan<'a>,
    set: Set,
    connections: Vec<Connection>,
    /// Numbers of those without a request under way.
    free: VecDeque<usize>,
    buffer: Vec<u8>,
}

/// Sends what the plan says.
pub fn paced(to: &Endpoint, plan: &Plan) -> io::Result<Paced> {
    exact_timers();
    let mut run = Run::new(to, plan)?;
    let (before, _) = run.turn(warm_up(plan.seconds), &mut times())?;
    let mut latencies = times();
    let [server, client, machine] = usage(plan.servers)?;
    let (answers, seconds) = run.turn(plan.seconds, &mut latencies)?;
    let after = usage(plan.servers)?;
    Ok(Paced {
        answers,
        seconds,
        before,
        server: after[0] - server,
        client: after[1] - client,
        machine: after[2] - machine,
        latencies: PERCENTILES.map(|percent| latencies.value_at_percentile(percent)),
    })
}

impl<'a> Run<'a> {
    fn new(to: &Endpoint, plan: &'a Plan<'a>) -> io::Result<Self> {
        let set = Set::new()?;
        let mut connections = Vec::with_capacity(plan.connections);
        for number in 0..plan.connections {
            let stream = to.connect()?;
            stream.set_nonblocking()?;
            set.add(stream.as_raw_fd(), number)?;
            connections.push(Connection { stream, got: 0, due: Instant::now() });
        }
        let free = (0..plan.connections).collect();
        Ok(Self { plan, set, connections, free, buffer: vec![0; 1 << 16] })
    }

    /// Answers to what was due within so many seconds, and the seconds until the last of them. What is still due then, as the server is too
    /// slow, is not sent.
    fn turn(&mut self, seconds: f64, latencies: &mut Histogram<u64>) -> io::Result<(u64, f64)> {
        let start = Instant::now();
        let end = start + Duration::from_secs_f64(seconds);
        let step = if self.plan.rate > 0.0 { 1.0 / self.plan.rate } else { 0.0 };
        let due = |number: u64| start + Duration::from_secs_f64(number as f64 * step);
        let (mut sent, mut answers) = (0, 0);
        let mut heard = start;
        loop {
            let mut now = Instant::now();
            while now < end && due(sent) <= now {
                let Some(number) = self.free.pop_front() else { break };
                let connection = &mut self.connections[number];
                connection.due = if step > 0.0 { due(sent) } else { now };
                // Less than any socket buffer, and nothing else is under way.
                connection.stream.write_all(self.plan.request)?;
                sent += 1;
                now = Instant::now();
            }
            let may_send = now < end && due(sent) < end && !self.free.is_empty();
            if !may_send && answers == sent {
                break;
            }
            let wait = if may_send { due(sent).saturating_duration_since(now) } else { LOST };
            let got = self.answers(wait, latencies)?;
            answers += got;
            if got > 0 {
                heard = Instant::now();
            } else if !may_send && heard.elapsed() > LOST {
                return Err(io::Error::other(format!("no answer for {} s", LOST.as_secs())));
            }
        }
        // A rate of little has its last pause, too.
        Ok((answers, start.elapsed().as_secs_f64().max(seconds)))
    }

    /// Waits so long for answers, and takes them.
    fn answers(&mut self, wait: Duration, latencies: &mut Histogram<u64>) -> io::Result<u64> {
        let mut answers = 0;
        for number in self.set.wait_for(wait)? {
            let connection = &mut self.connections[number];
            match connection.stream.read(&mut self.buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => connection.got += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            if connection.got > self.plan.answer {
                return Err(io::Error::other("an answer is longer than said"));
            }
            if connection.got == self.plan.answer {
                connection.got = 0;
                latencies.saturating_record(connection.due.elapsed().as_nanos() as u64);
                self.free.push_back(number);
                answers += 1;
            }
        }
        Ok(answers)
    }
}

/// Waits end when they are over, not up to 50 us later (prctl(2), PR_SET_TIMERSLACK).
fn exact_timers() {
    // SAFETY: takes no pointer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// CPU time in seconds: of the server's processes, our own, and the machine's.
fn usage(servers: &[u32]) -> io::Result<[f64; 3]> {
    let mut server = 0.0;
    for pid in servers {
        server += of_process(&pid.to_string())?;
    }
    Ok([server, of_process("self")?, of_machine()?])
}

/// Of all its threads; those that have ended are not counted.
fn of_process(pid: &str) -> io::Result<f64> {
    let mut nanoseconds = 0.0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += stat.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    }
    Ok(nanoseconds * 1e-9)
}

/// Of all CPUs, since some time: that they were not idle. Busy time itself the kernel only samples, each tick.
fn of_machine() -> io::Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let cpus = stat.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
    let field = |at| stat.split_whitespace().nth(at).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    // SAFETY: takes no pointer.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let uptime = fs::read_to_string("/proc/uptime")?;
    let up = uptime.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    // Idle, and idle with a disk at work.
    Ok(up * cpus as f64 - (field(4) + field(5)) / ticks)
}
