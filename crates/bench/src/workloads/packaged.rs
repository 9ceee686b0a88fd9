//! sockperf, iperf3 and redis-benchmark, with the seeds' parameters.

use super::{ALL, LATENCY, Metric, NO_UNIX, OWN, Program, RATE, Seeds, Workload, number};
use crate::bed::{Bed, Sample, free_port};
use crate::child::{Failed, Pin};
use crate::goal::Goal;
use crate::side::Side;
use crate::unit::Unit;

const SOCKPERF: &[Program] = &[Program { name: "sockperf", package: "sockperf" }];
const IPERF: &[Program] = &[Program { name: "iperf3", package: "iperf3" }];
pub const REDIS: &[Program] = &[
    Program { name: "redis-server", package: "redis-server" },
    Program { name: "redis-benchmark", package: "redis-tools" },
];

const SET: Metric = Metric { name: "SET", title: "SET", ..RATE };
const GET: Metric = Metric { name: "GET", title: "GET", ..RATE };
const REDIS_GOALS: &[Goal] = &[Goal::OfTcp(10.0), Goal::OfUnix(5.0)];
/// Messages a second: unbounded, a lane runs over the end of sockperf's own table of messages.
const MPS: &str = "--mps=400000";

pub const ROWS: &[Workload] = &[
    Workload {
        name: "sockperf-pp",
        title: "sockperf pp, 14 B, pinned:",
        needs: SOCKPERF,
        sides: NO_UNIX,
        quick: true,
        metrics: &[
            Metric { name: "avg", title: "average", seeds: Some(Seeds::of(0.53, "0.53-0.56")), ..LATENCY },
            Metric {
                name: "p50",
                title: "p50",
                goals: &[Goal::OfTcp(0.035), Goal::OfLine(2.0)],
                floor: Some(Goal::OfTcp(0.1)),
                ..LATENCY
            },
            Metric { name: "p99", title: "p99", ..LATENCY },
        ],
        measure: ping_pong,
        ..OWN
    },
    Workload {
        name: "sockperf-tp",
        title: "sockperf tp, 64000 B, pinned",
        needs: SOCKPERF,
        sides: NO_UNIX,
        quick: true,
        metrics: &[Metric {
            unit: Unit::BytesPerSecond,
            seeds: Some(Seeds::of(1.67, "1.67 (copy 1.03)")),
            goals: &[Goal::OfTcp(3.0), Goal::OfRing(0.85)],
            floor: Some(Goal::OfTcp(2.0)),
            ..RATE
        }],
        measure: throughput,
        ..OWN
    },
    Workload {
        name: "iperf3",
        title: "iperf3, pinned",
        needs: IPERF,
        sides: NO_UNIX,
        metrics: &[Metric {
            unit: Unit::BytesPerSecond,
            seeds: Some(Seeds::of(1.78, "1.78 (copy 1.00)")),
            goals: &[Goal::OfTcp(3.0)],
            floor: Some(Goal::OfTcp(2.0)),
            ..RATE
        }],
        measure: iperf,
        ..OWN
    },
    Workload {
        name: "redis-c200",
        title: "redis-benchmark -n 400000 -c 200 -d 1024:",
        needs: REDIS,
        sides: ALL,
        metrics: &[
            Metric { seeds: Some(Seeds::of(1.38, "1.38")), goals: REDIS_GOALS, ..SET },
            Metric { seeds: Some(Seeds::of(1.35, "1.35")), goals: REDIS_GOALS, ..GET },
        ],
        measure: |bed| redis(bed, 200, 1, 400_000),
        ..OWN
    },
    Workload {
        name: "redis-c50",
        title: "redis-benchmark -c 50 -d 1024:",
        needs: REDIS,
        sides: ALL,
        quick: true,
        metrics: &[SET, Metric { floor: Some(Goal::OfTcp(4.0)), ..GET }],
        measure: |bed| redis(bed, 50, 1, 400_000),
        ..OWN
    },
    Workload {
        name: "redis-c1",
        title: "redis-benchmark -c 1 -d 1024:",
        needs: REDIS,
        sides: ALL,
        metrics: &[SET, GET],
        measure: |bed| redis(bed, 1, 1, 100_000),
        ..OWN
    },
    Workload {
        name: "redis-P32",
        title: "redis-benchmark -c 200 -P 32 -d 1024:",
        needs: REDIS,
        sides: ALL,
        metrics: &[SET, GET],
        measure: |bed| redis(bed, 200, 32, 1_600_000),
        ..OWN
    },
];

/// sockperf's server, and its client with `options`; what that wrote.
fn sockperf(bed: &mut Bed, options: &[&str]) -> Result<String, Failed> {
    let (port, seconds) = (free_port()?.to_string(), bed.seconds().to_string());
    let server = bed.command(["sockperf", "sr", "--tcp", "-i", "127.0.0.1", "-p", &port]);
    bed.serve(server, &format!("tcp:{port}"), Some(Pin::Server))?;
    let (mode, options) = options.split_first().ok_or_else(|| Failed::new("no mode"))?;
    let fixed = ["sockperf", mode, "--tcp", "-i", "127.0.0.1", "-p", &port, "-t", &seconds];
    let client = bed.command([&fixed, options].concat());
    bed.run(client, Some(Pin::Client))
}

fn ping_pong(bed: &mut Bed) -> Result<Sample, Failed> {
    let out = sockperf(bed, &["pp", "--msg-size=14", MPS])?;
    let lost = number(&out, "# dropped messages =")?;
    if lost > 0.0 {
        return Err(Failed::new(format!("{lost} messages lost")));
    }
    let micro = |label| number(&out, label).map(|value| value * 1e-6);
    let values = vec![micro("Latency is")?, micro("percentile 50.000 =")?, micro("percentile 99.000 =")?];
    // Of one of the two ends.
    Ok(Sample::new(values, 14.0 * number(&out, "ReceivedMessages=")?))
}

fn throughput(bed: &mut Bed) -> Result<Sample, Failed> {
    let out = sockperf(bed, &["tp", "--msg-size=64000"])?;
    // Its megabyte is a power of two.
    let rate = number(&out, "BandWidth is")? * 1048576.0;
    Ok(Sample::new(vec![rate], rate * f64::from(bed.seconds())))
}

fn iperf(bed: &mut Bed) -> Result<Sample, Failed> {
    let (port, seconds) = (free_port()?.to_string(), bed.seconds().to_string());
    let server = bed.command(["iperf3", "-s", "-B", "127.0.0.1", "-p", &port]);
    bed.serve(server, &format!("tcp:{port}"), Some(Pin::Server))?;
    let client = bed.command(["iperf3", "-c", "127.0.0.1", "-p", &port, "-t", &seconds, "--json"]);
    let out = bed.run(client, Some(Pin::Client))?;
    let report: serde_json::Value =
        serde_json::from_str(&out).map_err(|error| Failed::new(format!("iperf3's report: {error}")))?;
    let received = &report["end"]["sum_received"];
    let field = |name: &str| {
        received[name].as_f64().ok_or_else(|| Failed::new(format!("iperf3's report has no {name}")))
    };
    Ok(Sample::new(vec![field("bits_per_second")? / 8.0], field("bytes")?))
}

fn redis(bed: &mut Bed, clients: u32, pipeline: u32, requests: u32) -> Result<Sample, Failed> {
    let directory = bed.directory.to_string_lossy().into_owned();
    let common = ["redis-server", "--save", "", "--appendonly", "no", "--dir", &directory];
    let (endpoint, listen, connect) = if bed.side == Side::Unix {
        let path = bed.unix_path().to_string_lossy().into_owned();
        let listen = vec!["--port".to_owned(), "0".into(), "--unixsocket".into(), path.clone()];
        (format!("unix:{path}"), listen, vec!["-s".to_owned(), path])
    } else {
        let port = free_port()?.to_string();
        let listen = vec!["--port".into(), port.clone(), "--bind".into(), "127.0.0.1".into()];
        (format!("tcp:{port}"), listen, vec!["-p".into(), port])
    };
    let server = bed.command(common.iter().map(|word| (*word).to_owned()).chain(listen));
    bed.serve(server, &endpoint, None)?;
    // The seeds' number of requests takes a few seconds on TCP; another length of the runs changes it likewise.
    let requests = (f64::from(requests) * bed.settings.share()).max(20_000.0);
    let mut argv =
        vec!["redis-benchmark".to_owned(), "--csv".into(), "-t".into(), "set,get".into(), "-d".into()];
    argv.extend(["1024", "-n"].map(str::to_owned));
    argv.extend([
        format!("{requests:.0}"),
        "-c".into(),
        clients.to_string(),
        "-P".into(),
        pipeline.to_string(),
    ]);
    argv.extend(connect);
    let client = bed.command(argv);
    let out = bed.run(client, None)?;
    let rate = |test: &str| number(&out, &format!("\"{test}\",\""));
    // Each SET carries the value there, each GET carries it back.
    Ok(Sample::new(vec![rate("SET")?, rate("GET")?], 2.0 * 1024.0 * requests))
}
