//! `shunpike bench load`: what a request costs and how long it takes at shares of the highest rate that TCP reaches, on each side in turn.
//!
//! The other workloads run at full speed, where a thread never waits for long. Most programs wait most of the time, and what a wait
//! costs is seen only here.

mod show;

pub use show::{draw, table};

use crate::bed::{Bed, free_port, parse};
use crate::child::{Failed, wait_for};
use crate::error::Error;
use crate::load::Paced;
use crate::machine::Machine;
use crate::options::Programs;
use crate::round;
use crate::settings::Settings;
use crate::side::Side;
use crate::signals;
use crate::unit::Unit;
use crate::workloads::{NGINX, Program, REDIS, one_worker};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// The word that asks for it, in place of a workload.
pub const NAME: &str = "load";

/// Percent of TCP's highest rate.
const SHARES: [u32; 5] = [1, 10, 50, 90, 100];

/// A server that is asked.
struct Subject {
    name: &'static str,
    needs: &'static [Program],
    sides: &'static [Side],
    connections: usize,
    serve: fn(&mut Bed) -> Result<Served, Failed>,
}

/// One that runs.
struct Served {
    endpoint: String,
    pid: u32,
    /// As `shunpike-load paced` takes it.
    request: String,
    /// Bytes.
    answer: usize,
}

const WITH_UNIX: &[Side] = &[Side::Tcp, Side::Unix, Side::NoCopy];
const WITHOUT: &[Side] = &[Side::Tcp, Side::NoCopy];

const SUBJECTS: &[Subject] = &[
    Subject { name: "echo", needs: &[], sides: WITH_UNIX, connections: 8, serve: echo },
    Subject { name: "redis", needs: REDIS, sides: WITH_UNIX, connections: 1, serve: redis },
    Subject { name: "nginx", needs: NGINX, sides: WITHOUT, connections: 8, serve: nginx },
];

/// What one side gave at one rate: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    pub subject: &'static str,
    /// Percent of TCP's highest rate.
    pub share: u32,
    pub side: Side,
    /// Answers a second.
    pub rate: f64,
    /// CPU time of both ends for a request, seconds.
    pub both: f64,
    /// CPU time of the server for a request, seconds.
    pub server: f64,
    /// CPU time of all that ran on the machine, for a request, seconds.
    pub machine: f64,
    /// From when a request was due to its answer, seconds: 50th, 99th and 99.9th percentile.
    pub latencies: [f64; 3],
}

/// All of it.
#[derive(Serialize)]
pub struct Curves {
    pub machine: Machine,
    pub runs: u32,
    pub seconds: u32,
    pub points: Vec<Point>,
    pub failed: Vec<String>,
}

/// Measures the subjects of these names, or all.
pub fn measure(names: &[String], settings: &Settings, programs: &Programs) -> Result<Curves, Error> {
    if let Some(unknown) = names.iter().find(|name| SUBJECTS.iter().all(|subject| subject.name != **name)) {
        let known = SUBJECTS.iter().map(|subject| subject.name).collect();
        return Err(Error::NoLoad(unknown.clone(), known));
    }
    signals::end_at_signals()?;
    let directory = round::directory()?;
    let mut curves = Curves {
        machine: Machine::look(),
        runs: settings.runs,
        seconds: settings.seconds,
        points: Vec::new(),
        failed: Vec::new(),
    };
    let wanted = |subject: &&Subject| names.is_empty() || names.iter().any(|name| name == subject.name);
    for subject in SUBJECTS.iter().filter(wanted) {
        if let Some(missing) = subject.needs.iter().find(|program| !program.is_here()) {
            let (name, program, package) = (subject.name, missing.name, missing.package);
            curves.failed.push(format!("{name}: no {program} here; the package {package} brings it"));
            continue;
        }
        let mut number = 0;
        let mut ask = |side: Side, rate: f64| {
            number += 1;
            let place = directory.path().join(format!("{}-{number}", subject.name));
            asked(subject, side, rate, settings, programs, place)
        };
        match curve(subject, settings, &mut ask) {
            Ok(points) => curves.points.extend(points),
            Err(Failed(why)) => curves.failed.push(format!("{}: {why}", subject.name)),
        }
        if signals::is_interrupted() {
            break;
        }
    }
    curves.machine.end();
    Ok(curves)
}

/// The points of one subject. `ask` measures a side at a rate; 0: a closed loop.
fn curve(
    subject: &Subject,
    settings: &Settings,
    ask: &mut impl FnMut(Side, f64) -> Result<Paced, Failed>,
) -> Result<Vec<Point>, Failed> {
    let highest = ask(Side::Tcp, 0.0)?;
    let highest = highest.answers as f64 / highest.seconds;
    let mut points = Vec::new();
    for share in SHARES {
        let rate = highest * f64::from(share) / 100.0;
        let mut taken: Vec<Vec<Paced>> = subject.sides.iter().map(|_| Vec::new()).collect();
        for round in 0..settings.runs {
            for (side, taken) in subject.sides.iter().zip(&mut taken) {
                let (name, title) = (subject.name, side.title());
                eprintln!(
                    "{name}: {share} % of {}, {title}, round {}",
                    Unit::PerSecond.show(highest),
                    round + 1
                );
                taken.push(ask(*side, rate)?);
            }
        }
        points.extend(subject.sides.iter().zip(&taken).map(|(side, taken)| {
            let each = |of: &dyn Fn(&Paced) -> f64| median(taken.iter().map(of).collect());
            let request = |seconds: f64, paced: &Paced| seconds / (paced.answers as f64).max(1.0);
            Point {
                subject: subject.name,
                share,
                side: *side,
                rate: each(&|paced| paced.answers as f64 / paced.seconds),
                both: each(&|paced| request(paced.server + paced.client, paced)),
                server: each(&|paced| request(paced.server, paced)),
                machine: each(&|paced| request(paced.machine, paced)),
                latencies: [0, 1, 2].map(|at| each(&|paced| paced.latencies[at] as f64 * 1e-9)),
            }
        }));
    }
    Ok(points)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn asked(
    subject: &Subject,
    side: Side,
    rate: f64,
    settings: &Settings,
    programs: &Programs,
    place: PathBuf,
) -> Result<Paced, Failed> {
    fs::create_dir(&place)?;
    let mut bed = Bed::new(side, settings, programs, place)?;
    let served = (subject.serve)(&mut bed)?;
    let workers = workers_of(served.pid);
    let (rate, connections) = (rate.to_string(), subject.connections.to_string());
    let (seconds, answer) = (bed.seconds().to_string(), served.answer.to_string());
    let mut words = vec!["paced", &served.endpoint, &rate, &connections, &seconds, &served.request, &answer];
    words.extend(workers.iter().flat_map(|pid| ["--server", pid]));
    let command = bed.command(bed.load(&words));
    let paced: Paced = parse(&bed.run(command, None)?)?;
    let bytes = (served.request.len() + served.answer) as f64 * paced.answers as f64;
    // At a small share most of a connection's life may be over before it has a lane.
    let carried = bed.carried(bytes / 4.0)?;
    if side.is_shunpike() && carried.lanes == 0 {
        return Err(Failed::new("no connection was on a lane"));
    }
    Ok(paced)
}

/// A process and its children, once they are there.
fn workers_of(pid: u32) -> Vec<String> {
    let children = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut pids = vec![pid.to_string()];
    pids.extend(children().split_whitespace().map(str::to_owned));
    pids
}

fn echo(bed: &mut Bed) -> Result<Served, Failed> {
    const SIZE: usize = 100;
    let endpoint = bed.endpoint()?;
    let command = bed.command(bed.load(&["echo", &endpoint]));
    let pid = bed.serve(command, &endpoint, None)?;
    Ok(Served { endpoint, pid, request: "x".repeat(SIZE), answer: SIZE })
}

fn redis(bed: &mut Bed) -> Result<Served, Failed> {
    let directory = bed.directory.to_string_lossy().into_owned();
    let endpoint = bed.endpoint()?;
    let mut argv = vec!["redis-server", "--save", "", "--appendonly", "no", "--dir", &directory];
    match endpoint.split_once(':') {
        Some(("unix", path)) => argv.extend(["--port", "0", "--unixsocket", path]),
        Some((_, port)) => argv.extend(["--bind", "127.0.0.1", "--port", port]),
        None => {}
    }
    let pid = bed.serve(bed.command(argv), &endpoint, None)?;
    Ok(Served { endpoint, pid, request: "GET absent\\r\\n".into(), answer: "$-1\r\n".len() })
}

fn nginx(bed: &mut Bed) -> Result<Served, Failed> {
    let port = free_port()?.to_string();
    let endpoint = format!("tcp:{port}");
    let command = one_worker(bed, &port)?;
    let pid = bed.serve(command, &endpoint, None)?;
    wait_for(Duration::from_secs(5), || (workers_of(pid).len() > 1).then_some(()))
        .ok_or_else(|| Failed::new("nginx has no worker"))?;
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let answer = answer_to(&port, request)?;
    Ok(Served { endpoint, pid, request: request.replace('\r', "\\r").replace('\n', "\\n"), answer })
}

/// Bytes of the answer to one request: all are alike.
fn answer_to(port: &str, request: &str) -> Result<usize, Failed> {
    use std::io::{Read, Write};
    let last = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{port}"))?;
    stream.write_all(last.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    // The answer that keeps the connection says so in its place.
    Ok(answer.replace("Connection: close", "Connection: keep-alive").len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced(answers: u64) -> Paced {
        Paced {
            answers,
            seconds: 1.0,
            before: 0,
            server: 0.1,
            client: 0.3,
            machine: 0.5,
            latencies: [1, 2, 3],
        }
    }

    #[test]
    fn shares_are_of_what_tcp_reaches() {
        let subject = &SUBJECTS[0];
        let settings = Settings { runs: 3, ..Settings::for_tests() };
        let mut rates = Vec::new();
        let points = curve(subject, &settings, &mut |side, rate| {
            rates.push((side, rate));
            Ok(paced(if rate == 0.0 { 10_000 } else { rate as u64 }))
        });
        let points = points.expect("nothing failed");
        assert_eq!(rates[0], (Side::Tcp, 0.0));
        assert_eq!(points.len(), SHARES.len() * subject.sides.len());
        let tenth = points.iter().find(|point| point.share == 10 && point.side == Side::NoCopy).unwrap();
        assert_eq!(tenth.rate, 1000.0);
        assert!((tenth.both - 0.4e-3).abs() < 1e-9, "{tenth:?}");
    }

    #[test]
    fn what_fails_has_no_points() {
        let fails = |_: Side, _: f64| Err(Failed::new("no"));
        assert!(curve(&SUBJECTS[1], &Settings::for_tests(), &mut { fails }).is_err());
    }
}
