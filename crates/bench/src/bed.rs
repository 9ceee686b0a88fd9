//! One measurement's surroundings: a directory, a broker where the side needs one, servers that end with it.

use crate::broker::{Broker, Carried};
use crate::child::{Child, Failed, Pin, last_line, wait_for};
use crate::options::Programs;
use crate::settings::Settings;
use crate::side::Side;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What one measurement gave.
pub struct Sample {
    /// A value for each of the workload's metrics.
    pub values: Vec<f64>,
    /// Bytes that the programs say they sent, at the least: that many should have gone by lanes.
    pub bytes: f64,
    /// How it was measured, where that is not always the same.
    pub note: Option<&'static str>,
}

impl Sample {
    pub fn new(values: Vec<f64>, bytes: f64) -> Self {
        Self { values, bytes, note: None }
    }
}

/// One measurement's surroundings.
pub struct Bed<'a> {
    pub side: Side,
    pub settings: &'a Settings,
    pub directory: PathBuf,
    programs: &'a Programs,
    broker: Option<Broker>,
    servers: Vec<Child>,
}

impl<'a> Bed<'a> {
    pub fn new(
        side: Side,
        settings: &'a Settings,
        programs: &'a Programs,
        directory: PathBuf,
    ) -> Result<Self, Failed> {
        let broker = match side {
            Side::Copy | Side::NoCopy => {
                Some(Broker::start(&programs.shunpike, &directory, side == Side::Copy)?)
            }
            Side::Machine | Side::Tcp | Side::Unix => None,
        };
        Ok(Self { side, settings, directory, programs, broker, servers: Vec::new() })
    }

    /// Length of a run.
    pub fn seconds(&self) -> u32 {
        self.settings.seconds
    }

    /// The broker, of a side that has one.
    pub fn broker(&self) -> Result<&Broker, Failed> {
        self.broker.as_ref().ok_or_else(|| Failed::new("this side has no broker"))
    }

    /// A free address for a server of our own.
    pub fn endpoint(&self) -> Result<String, Failed> {
        Ok(match self.side {
            Side::Unix => format!("unix:{}", self.unix_path().display()),
            _ => format!("tcp:{}", free_port()?),
        })
    }

    /// A path for a server's UNIX socket, not used before.
    pub fn unix_path(&self) -> PathBuf {
        self.directory.join(format!("{}.sock", self.servers.len()))
    }

    /// A command of this side: alone, or under `shunpike run`.
    pub fn command<A: Into<OsString>>(&self, argv: impl IntoIterator<Item = A>) -> Command {
        self.command_after(&[], argv)
    }

    /// A command of this side, started by the program `prefix`.
    pub fn command_after<A: Into<OsString>>(
        &self,
        prefix: &[&str],
        argv: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut whole: Vec<OsString> = prefix.iter().map(OsString::from).collect();
        if self.side.is_shunpike() {
            whole.extend([self.programs.shunpike.clone().into(), "run".into(), "--".into()]);
        }
        whole.extend(argv.into_iter().map(Into::into));
        let mut command = Command::new(&whole[0]);
        command.args(&whole[1..]);
        // The bench may run under Shunpike itself: its programs do only where the side says so.
        let others: Vec<String> = std::env::var("LD_PRELOAD")
            .unwrap_or_default()
            .split([' ', ':'])
            .filter(|library| !library.is_empty() && !library.ends_with("libshunpike.so"))
            .map(str::to_owned)
            .collect();
        command
            .env("LD_PRELOAD", others.join(":"))
            .env_remove("SHUNPIKE_SOCKET")
            .env_remove("SHUNPIKE_EAGER");
        // Debian keeps servers there.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
        if let Some(broker) = &self.broker {
            command.env("SHUNPIKE_SOCKET", &broker.socket);
        }
        command
    }

    /// The arguments of one of our own load programs, which [`Load`](crate::load::Load) parses again.
    pub fn load(&self, words: &[&str]) -> Vec<OsString> {
        let mut argv: Vec<OsString> = vec![self.programs.load.clone().into()];
        argv.extend(words.iter().map(OsString::from));
        argv
    }

    /// Starts a server and waits until it listens at `endpoint` (tcp:PORT or unix:PATH). Its process id.
    pub fn serve(&mut self, command: Command, endpoint: &str, pin: Option<Pin>) -> Result<u32, Failed> {
        let log = self.directory.join(format!("server-{}.log", self.servers.len()));
        let mut server = Child::start(command, &log, pin)?;
        let pid = server.pid();
        let listening = wait_for(Duration::from_secs(10), || match server.ended() {
            Some(status) => {
                Some(Err(Failed::new(format!("its server ended ({status}): {}", last_line(&log)))))
            }
            None => listens(endpoint).then_some(Ok(())),
        });
        listening.unwrap_or_else(|| {
            Err(Failed::new(format!("its server does not listen: {}", last_line(&log))))
        })?;
        self.servers.push(server);
        if maps_library(pid) == self.side.is_shunpike() {
            Ok(pid)
        } else {
            Err(Failed::new(format!(
                "its server runs {} Shunpike",
                if self.side.is_shunpike() { "without" } else { "under" }
            )))
        }
    }

    /// Starts one of our own servers at a new address, and says which.
    pub fn serve_load(&mut self, words: &[&str], pin: Option<Pin>) -> Result<String, Failed> {
        let endpoint = self.endpoint()?;
        let (name, rest) = words.split_first().ok_or_else(|| Failed::new("no load program named"))?;
        let words: Vec<&str> = [&[*name, endpoint.as_str()], rest].concat();
        let command = self.command(self.load(&words));
        self.serve(command, &endpoint, pin)?;
        Ok(endpoint)
    }

    /// Starts a client.
    pub fn start(&mut self, command: Command, pin: Option<Pin>) -> Result<Client, Failed> {
        let number = self.settings.files.fetch_add(1, Ordering::Relaxed);
        let output = self.directory.join(format!("client-{number}.out"));
        Ok(Client { child: Child::start(command, &output, pin)?, output })
    }

    /// Runs a client to its end; what it wrote.
    pub fn run(&mut self, command: Command, pin: Option<Pin>) -> Result<String, Failed> {
        let limit = self.limit();
        self.start(command, pin)?.finish(limit)
    }

    /// Runs one of our own clients to its end; the JSON that it printed.
    pub fn run_load<T: DeserializeOwned>(&mut self, words: &[&str], pin: Option<Pin>) -> Result<T, Failed> {
        let command = self.command(self.load(words));
        parse(&self.run(command, pin)?)
    }

    /// How long a client may take.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(60 + 10 * u64::from(self.seconds()))
    }

    /// Waits for the servers that end by themselves once their client has.
    pub fn finish_servers(&mut self) -> Result<(), Failed> {
        for mut server in self.servers.drain(..) {
            wait_for(Duration::from_secs(10), || server.ended())
                .ok_or_else(|| Failed::new("its server does not end with its client"))?;
        }
        Ok(())
    }

    /// What lanes carried; waits a little for the counts of programs that have just ended.
    pub fn carried(&self, bytes: f64) -> Result<Carried, Failed> {
        let Some(broker) = &self.broker else { return Ok(Carried::default()) };
        let mut last = Carried::default();
        let enough = wait_for(Duration::from_secs(1), || match broker.carried() {
            Ok(now) => {
                last = now;
                (now.lanes > 0 && now.bytes as f64 >= bytes).then_some(Ok(now))
            }
            Err(failed) => Some(Err(failed)),
        });
        enough.unwrap_or(Ok(last))
    }
}

impl Drop for Bed<'_> {
    fn drop(&mut self) {
        for server in &mut self.servers {
            server.stop();
        }
        if let Some(broker) = &mut self.broker {
            broker.child.stop();
        }
    }
}

/// The JSON that a load program printed.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Failed> {
    serde_json::from_str(text)
        .map_err(|error| Failed::new(format!("what the load program printed: {error}: {text}")))
}

/// A client that runs.
pub struct Client {
    pub child: Child,
    output: PathBuf,
}

impl Client {
    /// Waits for its end; what it wrote.
    pub fn finish(mut self, limit: Duration) -> Result<String, Failed> {
        let status = wait_for(limit, || self.child.ended())
            .ok_or_else(|| Failed::new(format!("its client did not end within {} s", limit.as_secs())))?;
        if status.success() {
            Ok(String::from_utf8_lossy(&fs::read(&self.output)?).into_owned())
        } else {
            Err(Failed::new(format!("its client ended ({status}): {}", last_line(&self.output))))
        }
    }
}

/// A TCP port that nobody uses now.
pub fn free_port() -> Result<u16, Failed> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Asked of the kernel: a trial connection would be a client to some servers.
fn listens(endpoint: &str) -> bool {
    let lines = |path: &str| fs::read_to_string(path).unwrap_or_default();
    match endpoint.split_once(':') {
        Some(("tcp", port)) => {
            let Ok(port) = port.parse::<u16>() else { return false };
            let wanted = format!(":{port:04X}");
            let mut fields = lines("/proc/net/tcp");
            fields.push_str(&lines("/proc/net/tcp6"));
            fields.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                words.next().is_some_and(|local| local.ends_with(&wanted)) && words.nth(1) == Some("0A")
            })
        }
        Some(("unix", path)) => lines("/proc/net/unix").lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(7) == Some(&path) && words.get(3) == Some(&"00010000")
        }),
        _ => false,
    }
}

fn maps_library(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("libshunpike.so"))
}
