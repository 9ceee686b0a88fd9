//! What lanes cost: calls to the kernel while both ends are busy, CPU and memory while nothing happens.

use super::{Metric, NO_UNIX, OWN, RATE, Seeds, Workload};
use crate::bed::{Bed, Sample, parse};
use crate::child::{Failed, Pin, wait_for};
use crate::goal::{Better, Goal};
use crate::load::Pings;
use crate::side::Side;
use crate::unit::Unit;
use shunpike_broker::what;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Connections of the idle row; each has two lanes, one in each direction.
const IDLE: u64 = 1000;
/// Bytes that go over each lane before: more than a ring for messages holds.
const USED: u64 = 20_000;
const MEMORY: Metric = Metric { unit: Unit::Bytes, better: Better::Less, ..RATE };

pub const ROWS: &[Workload] = &[
    Workload {
        name: "calls",
        title: "system calls per message, ping-pong, pinned",
        sides: NO_UNIX,
        quick: true,
        metrics: &[Metric {
            unit: Unit::Plain,
            better: Better::Less,
            seeds: Some(Seeds::said("2 and more")),
            goals: &[Goal::Value(0.01)],
            ..RATE
        }],
        measure: calls,
        ..OWN
    },
    Workload {
        name: "idle",
        title: "1,000 idle connections:",
        sides: &[Side::Copy, Side::NoCopy],
        metrics: &[
            Metric {
                name: "CPU",
                title: "CPU of client, server and broker",
                unit: Unit::Percent,
                better: Better::Less,
                goals: &[Goal::Value(0.05)],
                ..RATE
            },
            Metric {
                name: "memory",
                title: "resident memory per direction",
                unit: Unit::Bytes,
                better: Better::Less,
                goals: &[Goal::Value(32.0 * 1024.0)],
                ..RATE
            },
            // In a process of 10,000 connections 40 MB of page tables.
            Metric { name: "shared", title: "shared memory per connection", ..MEMORY },
            Metric {
                name: "tables",
                title: "page tables per connection and process",
                goals: &[Goal::Value(4_000.0)],
                ..MEMORY
            },
            Metric {
                name: "addresses",
                title: "address space per connection and process",
                goals: &[Goal::Value(1_048_576.0)],
                ..MEMORY
            },
        ],
        measure: idle,
        ..OWN
    },
];

/// What counts system calls here: perf where it may, which slows nothing down, or else strace.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Counter {
    Perf,
    Strace,
}

impl Counter {
    fn here() -> Result<Self, Failed> {
        let works = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).arg("true").stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        if works("perf", &["stat", "-e", "raw_syscalls:sys_enter"]) {
            Ok(Counter::Perf)
        } else if works("strace", &["-c"]) {
            Ok(Counter::Strace)
        } else {
            Err(Failed::new(
                "neither perf (linux-perf, as root) nor strace (strace) counts system calls here",
            ))
        }
    }

    fn note(self) -> &'static str {
        match self {
            Counter::Perf => "counted by perf stat -e raw_syscalls:sys_enter",
            Counter::Strace => "counted by strace -c",
        }
    }

    fn argv(self, file: &str) -> Vec<&str> {
        match self {
            Counter::Perf => vec!["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-o", file],
            Counter::Strace => vec!["strace", "-f", "-c", "-U", "name,calls", "-o", file],
        }
    }

    fn read(self, file: &Path) -> Result<f64, Failed> {
        let text = fs::read_to_string(file)?;
        let numbers: Vec<f64> = match self {
            Counter::Perf => {
                let line = text.lines().find(|line| line.contains("raw_syscalls"));
                line.and_then(|line| line.split(',').next()?.parse().ok()).into_iter().collect()
            }
            Counter::Strace => {
                let calls = |line: &str| {
                    let mut words = line.split_whitespace();
                    let (name, calls) = (words.next()?, words.next()?.parse().ok()?);
                    (name != "total").then_some(calls)
                };
                text.lines().filter_map(calls).collect()
            }
        };
        let sum: f64 = numbers.iter().sum();
        if sum > 0.0 { Ok(sum) } else { Err(Failed::new("no system call was counted")) }
    }
}

/// The client's calls; its start is counted too, a few hundred among the calls of a million messages.
fn calls(bed: &mut Bed) -> Result<Sample, Failed> {
    let counter = Counter::here()?;
    if counter == Counter::Strace && bed.side.is_shunpike() {
        // A call that strace stops lasts longer than the other end spins: it would sleep, with more calls, and so on.
        bed.broker()?.ask(what::SYSCTL, "spin_us=1000")?;
    }
    let server = bed.serve_load(&["pong", "100"], Some(Pin::Server))?;
    let file = bed.directory.join("calls");
    let name = file.to_string_lossy().into_owned();
    let seconds = bed.seconds().to_string();
    let command = bed.command_after(&counter.argv(&name), bed.load(&["ping", &server, "100", &seconds]));
    let pings: Pings = parse(&bed.run(command, Some(Pin::Client))?)?;
    bed.finish_servers()?;
    let messages = (pings.messages + pings.before) as f64;
    let sample = Sample::new(vec![counter.read(&file)? / messages], 200.0 * pings.messages as f64);
    Ok(Sample { note: Some(counter.note()), ..sample })
}

fn idle(bed: &mut Bed) -> Result<Sample, Failed> {
    let endpoint = bed.endpoint()?;
    let command = bed.command(bed.load(&["echo", &endpoint]));
    let server = bed.serve(command, &endpoint, None)?;
    let broker = bed.broker()?.child.pid();
    let before: f64 = [server, broker].iter().map(|pid| resident(*pid)).sum::<Result<f64, Failed>>()?;
    let still = bed.directory.join("still");
    let words = ["idle", &endpoint, &IDLE.to_string(), &still.to_string_lossy()];
    let command = bed.command(bed.load(&words));
    let client = bed.start(command, None)?;
    let all = || match bed.broker().and_then(|broker| broker.carried()) {
        Ok(carried) => (carried.lanes >= IDLE && carried.bytes >= 2 * IDLE * USED).then_some(Ok(())),
        Err(failed) => Some(Err(failed)),
    };
    wait_for(Duration::from_secs(60), all)
        .ok_or_else(|| Failed::new("not all connections came to lanes"))??;
    fs::write(&still, "")?;
    // Lets the last spins and looks of all three pass.
    sleep(Duration::from_secs(1));
    let three = [server, client.child.pid(), broker];
    let cpu = || three.iter().map(|pid| cpu_seconds(*pid)).sum::<Result<f64, Failed>>();
    let (spent, start) = (cpu()?, Instant::now());
    sleep(Duration::from_secs(bed.seconds().into()));
    let percent = 100.0 * (cpu()? - spent) / start.elapsed().as_secs_f64();
    let after: f64 = three.iter().map(|pid| resident(*pid)).sum::<Result<f64, Failed>>()?;
    // The client's own memory is counted with its connections: it has hardly any before.
    let memory = (after - before).max(0.0) / (2.0 * IDLE as f64);
    let shared: f64 = three.iter().map(|pid| Ok(mapped(*pid)?.0)).sum::<Result<f64, Failed>>()?;
    let status = fs::read_to_string(format!("/proc/{server}/status"))?;
    let tables = 1024.0 * super::number(&status, "\nVmPTE:")?;
    let each = [shared, tables, mapped(server)?.1].map(|bytes| bytes / IDLE as f64);
    Ok(Sample::new([[percent, memory].as_slice(), &each].concat(), 100.0 * IDLE as f64))
}

/// What a process has in memory, bytes; what it shares with others divided among them.
fn resident(pid: u32) -> Result<f64, Failed> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(1024.0 * super::number(&text, "\nPss:")?)
}

/// Of a process's mappings of Shunpike's memory: bytes in memory, those that others have too divided among them, and bytes of addresses.
fn mapped(pid: u32) -> Result<(f64, f64), Failed> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let (mut is_ours, mut pss, mut size) = (false, 0.0, 0.0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next().and_then(|word| word.parse::<f64>().ok())) {
            (Some("Size:"), Some(kib)) if is_ours => size += 1024.0 * kib,
            (Some("Pss:"), Some(kib)) if is_ours => pss += 1024.0 * kib,
            (Some(first), _) if first.contains('-') => is_ours = line.contains("/memfd:shunpike-"),
            _ => {}
        }
    }
    Ok((pss, size))
}

/// CPU time of all threads of a process.
fn cpu_seconds(pid: u32) -> Result<f64, Failed> {
    let mut nanoseconds = 0.0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        nanoseconds += text.split(' ').next().and_then(|first| first.parse::<f64>().ok()).unwrap_or(0.0);
    }
    Ok(nanoseconds * 1e-9)
}
