//! nginx, with one worker unless said otherwise, and wrk.

use super::{Metric, NO_UNIX, OWN, Program, RATE, Seeds, Workload, number};
use crate::bed::{Bed, Sample, free_port};
use crate::child::Failed;
use crate::goal::Goal;
use std::fs;
use std::process::{Command, Stdio};

pub const NGINX: &[Program] =
    &[Program { name: "nginx", package: "nginx-light" }, Program { name: "wrk", package: "wrk" }];
const NGINX_TLS: &[Program] = &[
    Program { name: "nginx", package: "nginx-light" },
    Program { name: "wrk", package: "wrk" },
    Program { name: "openssl", package: "openssl" },
];

/// Bytes of the small file.
const FILE: usize = 1024;
const SEEDS_500: Option<Seeds> = Some(Seeds::of(1.38, "1.38"));
const SEEDS_1000: Option<Seeds> = Some(Seeds::of(1.34, "1.34"));

/// Threads of wrk in the seeds' tables.
const SEEDS: u32 = 8;

/// From so many connections on, a run takes several times as long: the seeds' take 30 s, and nginx accepts one connection each time it
/// looks at its events, so that it is a second until it serves 1,000 on lanes, and several on TCP.
const CROWD: u32 = 500;
const CROWD_TIMES: u32 = 3;

const HTTP: Workload = Workload { needs: NGINX, sides: NO_UNIX, ..OWN };
const EMPTY: Metric = Metric { goals: &[Goal::OfTcp(4.0)], ..RATE };
const PAGE: Metric = Metric { goals: &[Goal::OfTcp(1.8)], ..RATE };

#[derive(Copy, Clone, PartialEq, Eq)]
enum Page {
    /// `return 200`
    Return,
    /// A small static file, with open_file_cache.
    File,
    /// `return 200` by https.
    Tls,
    /// `return 200`, a connection for each request.
    Close,
}

pub const ROWS: &[Workload] = &[
    Workload {
        name: "nginx-1",
        title: "nginx return 200, wrk -t 1 -c 1",
        metrics: &[EMPTY],
        measure: |bed| requests(bed, Page::Return, SEEDS, 1),
        ..HTTP
    },
    Workload {
        name: "nginx-50",
        title: "nginx return 200, wrk -t 1 -c 50",
        quick: true,
        metrics: &[Metric { floor: Some(Goal::OfTcp(2.5)), ..EMPTY }],
        measure: |bed| requests(bed, Page::Return, 1, 50),
        ..HTTP
    },
    Workload {
        name: "nginx-100",
        title: "nginx return 200, wrk -t 8 -c 100",
        metrics: &[EMPTY],
        measure: |bed| requests(bed, Page::Return, SEEDS, 100),
        ..HTTP
    },
    Workload {
        name: "nginx-500",
        title: "nginx return 200, wrk -t 8 -c 500",
        metrics: &[Metric { seeds: SEEDS_500, ..EMPTY }],
        measure: |bed| requests(bed, Page::Return, SEEDS, 500),
        ..HTTP
    },
    Workload {
        name: "nginx-1000",
        title: "nginx return 200, wrk -t 8 -c 1000",
        metrics: &[Metric { seeds: SEEDS_1000, ..EMPTY }],
        measure: |bed| requests(bed, Page::Return, SEEDS, 1000),
        ..HTTP
    },
    Workload {
        name: "file-1",
        title: "nginx file of 1 KiB, wrk -t 1 -c 1",
        metrics: &[PAGE],
        measure: |bed| requests(bed, Page::File, SEEDS, 1),
        ..HTTP
    },
    Workload {
        name: "file-100",
        title: "nginx file of 1 KiB, wrk -t 8 -c 100",
        metrics: &[PAGE],
        measure: |bed| requests(bed, Page::File, SEEDS, 100),
        ..HTTP
    },
    Workload {
        name: "file-500",
        title: "nginx file of 1 KiB, wrk -t 8 -c 500",
        metrics: &[PAGE],
        measure: |bed| requests(bed, Page::File, SEEDS, 500),
        ..HTTP
    },
    Workload {
        name: "file-1000",
        title: "nginx file of 1 KiB, wrk -t 8 -c 1000",
        metrics: &[PAGE],
        measure: |bed| requests(bed, Page::File, SEEDS, 1000),
        ..HTTP
    },
    Workload {
        name: "tls",
        title: "nginx return 200, TLS, wrk -t 1 -c 50",
        needs: NGINX_TLS,
        metrics: &[RATE],
        measure: |bed| requests(bed, Page::Tls, 1, 50),
        ..HTTP
    },
    Workload {
        name: "short",
        title: "nginx return 200, no keep-alive, wrk -t 1 -c 20",
        quick: true,
        stays_on_tcp: true,
        metrics: &[Metric {
            seeds: Some(Seeds::said("below 1 (users)")),
            goals: &[Goal::OfTcp(0.97)],
            floor: Some(Goal::OfTcp(0.95)),
            ..RATE
        }],
        measure: |bed| requests(bed, Page::Close, 1, 20),
        ..HTTP
    },
];

fn requests(bed: &mut Bed, page: Page, threads: u32, connections: u32) -> Result<Sample, Failed> {
    let rate = rate(bed, page, 1, threads, connections)?;
    // Neither a request nor an answer is shorter than this.
    let bytes = if page == Page::Close { 0.0 } else { 40.0 * rate * f64::from(seconds(bed, connections)) };
    Ok(Sample::new(vec![rate], bytes))
}

/// An nginx with one worker at `port`, which answers each request with a few words.
pub fn one_worker(bed: &Bed, port: &str) -> Result<Command, Failed> {
    let configuration = bed.directory.join("nginx.conf");
    fs::write(&configuration, configure(bed, Page::Return, 1, port)?)?;
    Ok(bed.command([&"nginx".into(), &"-c".into(), &configuration.into_os_string()].map(|word| word.clone())))
}

/// Requests a second on so many connections, of a server with so many workers.
pub fn rate_of_workers(bed: &mut Bed, workers: u32, connections: u32) -> Result<f64, Failed> {
    rate(bed, Page::Return, workers, SEEDS, connections)
}

fn rate(bed: &mut Bed, page: Page, workers: u32, threads: u32, connections: u32) -> Result<f64, Failed> {
    let port = free_port()?.to_string();
    let configuration = bed.directory.join("nginx.conf");
    fs::write(&configuration, configure(bed, page, workers, &port)?)?;
    let server = bed
        .command([&"nginx".into(), &"-c".into(), &configuration.into_os_string()].map(|word| word.clone()));
    bed.serve(server, &format!("tcp:{port}"), None)?;
    let threads = threads.min(connections);
    let mut argv = vec!["wrk".to_owned(), format!("-t{threads}"), format!("-c{connections}")];
    argv.push(format!("-d{}", seconds(bed, connections)));
    if page == Page::Close {
        argv.extend(["-H".to_owned(), "Connection: close".into()]);
    }
    let scheme = if page == Page::Tls { "https" } else { "http" };
    argv.push(format!("{scheme}://127.0.0.1:{port}/{}", if page == Page::File { "page" } else { "" }));
    let client = bed.command(argv);
    let out = bed.run(client, None)?;
    if out.contains("Non-2xx") {
        return Err(Failed::new("nginx answered something else than 200"));
    }
    let rate = number(&out, "Requests/sec:")?;
    if rate == 0.0 { Err(Failed::new("nginx answered nothing")) } else { Ok(rate) }
}

fn seconds(bed: &Bed, connections: u32) -> u32 {
    bed.seconds() * if connections < CROWD { 1 } else { CROWD_TIMES }
}

/// Writes the page or the certificate, and gives nginx's configuration.
fn configure(bed: &Bed, page: Page, workers: u32, port: &str) -> Result<String, Failed> {
    let directory = bed.directory.display();
    // As root it would become a user who cannot read our directory.
    let user = if rustix::process::getuid().is_root() { "user root; " } else { "" };
    let location = match page {
        Page::File => {
            fs::write(bed.directory.join("page"), vec![b'x'; FILE])?;
            format!("root {directory}; open_file_cache max=10; open_file_cache_valid 1h; sendfile on;")
        }
        _ => "location / { return 200 'hello world'; }".to_owned(),
    };
    let tls = if page == Page::Tls {
        certificate(bed)?;
        format!("ssl_certificate {directory}/certificate; ssl_certificate_key {directory}/key;")
    } else {
        String::new()
    };
    let listen = if page == Page::Tls { "ssl" } else { "" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {directory}/{name}; "))
        .concat();
    Ok(format!(
        "{user}worker_processes {workers}; daemon off; error_log {directory}/error.log; pid {directory}/pid;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; {temporary}\n\
         server {{ listen 127.0.0.1:{port} {listen} backlog=4096; {tls} {location} }} }}\n"
    ))
}

/// A certificate of our own making: the key of RSA's usual size, for as long as the bench runs.
fn certificate(bed: &Bed) -> Result<(), Failed> {
    let file = |name: &str| bed.directory.join(name).into_os_string();
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=localhost",
            "-keyout",
        ])
        .arg(file("key"))
        .arg("-out")
        .arg(file("certificate"))
        .stdin(Stdio::null())
        .output()?;
    if made.status.success() {
        Ok(())
    } else {
        Err(Failed::new(format!(
            "openssl makes no certificate: {}",
            String::from_utf8_lossy(&made.stderr).trim()
        )))
    }
}
