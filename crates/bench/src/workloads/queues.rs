//! Servers with several threads or processes, and the completion queues that their events come by: all of a process forced on one,
//! and spread, as in the seeds' table of several CQs.

use super::{Metric, OWN, Program, RATE, Seeds, Workload, http};
use crate::bed::{Bed, Sample, free_port};
use crate::child::Failed;
use crate::side::Side;
use serde::Deserialize;
use shunpike_broker::what;
use std::fs;

const MEMCACHED: &[Program] = &[Program { name: "memcached", package: "memcached" }];
const JAVA: &[Program] = &[Program { name: "javac", package: "default-jdk-headless" }];
/// Client threads, as in the seeds' measurement.
const CLIENTS: &str = "8";
/// Bytes of the shortest request of all of them.
const REQUEST: f64 = 7.0;

const SEEDS: Option<Seeds> = Some(Seeds::said("several to one: 1.93-2.04"));
const ONE: Metric = Metric { name: "100-one", title: "100 connections, one completion queue", ..RATE };
const SPREAD: Metric =
    Metric { name: "100", title: "100 connections, several completion queues", seeds: SEEDS, ..RATE };
const METRICS: &[Metric] = &[
    ONE,
    SPREAD,
    Metric { name: "200-one", title: "200 connections, one completion queue", ..ONE },
    Metric { name: "200", title: "200 connections, several completion queues", ..SPREAD },
    Metric { name: "400-one", title: "400 connections, one completion queue", ..ONE },
    Metric { name: "400", title: "400 connections, several completion queues", ..SPREAD },
];

const QUEUES: Workload = Workload { sides: &[Side::Tcp, Side::NoCopy], metrics: METRICS, ..OWN };
const CACHE: Workload = Workload { needs: MEMCACHED, ..QUEUES };
const WEB: Workload = Workload { needs: http::NGINX, ..QUEUES };

pub const ROWS: &[Workload] = &[
    Workload {
        name: "cq-memcached-1",
        title: "memcached -t 1, 8 client threads,",
        measure: |bed| table(bed, |bed, connections| memcached(bed, "1", connections)),
        ..CACHE
    },
    Workload {
        name: "cq-memcached-2",
        title: "memcached -t 2, 8 client threads,",
        measure: |bed| table(bed, |bed, connections| memcached(bed, "2", connections)),
        ..CACHE
    },
    Workload {
        name: "cq-memcached-4",
        title: "memcached -t 4, 8 client threads,",
        measure: |bed| table(bed, |bed, connections| memcached(bed, "4", connections)),
        ..CACHE
    },
    Workload {
        name: "cq-memcached-8",
        title: "memcached -t 8, 8 client threads,",
        measure: |bed| table(bed, |bed, connections| memcached(bed, "8", connections)),
        ..CACHE
    },
    Workload {
        name: "cq-nginx-1",
        title: "nginx, 1 worker, wrk -t 8,",
        measure: |bed| table(bed, |bed, connections| http::rate_of_workers(bed, 1, connections)),
        ..WEB
    },
    Workload {
        name: "cq-nginx-2",
        title: "nginx, 2 workers, wrk -t 8,",
        measure: |bed| table(bed, |bed, connections| http::rate_of_workers(bed, 2, connections)),
        ..WEB
    },
    Workload {
        name: "cq-nginx-4",
        title: "nginx, 4 workers, wrk -t 8,",
        measure: |bed| table(bed, |bed, connections| http::rate_of_workers(bed, 4, connections)),
        ..WEB
    },
    Workload {
        name: "cq-java-4",
        title: "Java NIO echo, 4 selectors, 8 client threads,",
        needs: JAVA,
        measure: |bed| table(bed, |bed, connections| selectors(bed, "4", connections)),
        ..QUEUES
    },
];

/// A server of its own for each number of connections, with one queue and with as many as there are. On TCP there are none:
/// measured once.
fn table(bed: &mut Bed, rate: impl Fn(&mut Bed, u32) -> Result<f64, Failed>) -> Result<Sample, Failed> {
    let mut rates = Vec::new();
    for connections in [100, 200, 400] {
        if bed.side.is_shunpike() {
            for queues in ["max_cqs=1", "max_cqs=8"] {
                bed.broker()?.ask(what::SYSCTL, queues)?;
                rates.push(rate(bed, connections)?);
            }
        } else {
            let once = rate(bed, connections)?;
            rates.extend([once, once]);
        }
    }
    let requests = rates.iter().sum::<f64>() * f64::from(bed.seconds());
    Ok(Sample::new(rates, REQUEST * requests))
}

#[derive(Deserialize)]
struct Exchanged {
    messages: f64,
    seconds: f64,
}

fn crowd(bed: &mut Bed, server: &str, connections: u32, more: &[&str]) -> Result<f64, Failed> {
    let (all, seconds) = (connections.to_string(), bed.seconds().to_string());
    let words = [&["crowd", server, &all, &all, &seconds, "--threads", CLIENTS], more].concat();
    let got: Exchanged = bed.run_load(&words, None)?;
    Ok(got.messages / got.seconds)
}

fn memcached(bed: &mut Bed, threads: &str, connections: u32) -> Result<f64, Failed> {
    let port = free_port()?.to_string();
    // As root it wants to be told whom to become.
    let argv =
        ["memcached", "-u", "root", "-l", "127.0.0.1", "-U", "0", "-c", "4096", "-t", threads, "-p", &port];
    let endpoint = format!("tcp:{port}");
    let server = bed.command(argv);
    bed.serve(server, &endpoint, None)?;
    crowd(bed, &endpoint, connections, &["--memcached"])
}

fn selectors(bed: &mut Bed, selectors: &str, connections: u32) -> Result<f64, Failed> {
    let source = bed.directory.join("Selectors.java");
    fs::write(&source, include_str!("Selectors.java"))?;
    let port = free_port()?.to_string();
    let server = bed.command(["java".as_ref(), source.as_os_str(), port.as_ref(), selectors.as_ref()]);
    let endpoint = format!("tcp:{port}");
    bed.serve(server, &endpoint, None)?;
    crowd(bed, &endpoint, connections, &[])
}
