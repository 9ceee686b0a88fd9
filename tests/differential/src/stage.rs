//! A pair of actors, on TCP or under Shunpike, and a program run by them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::actor::{Order, Reply};
use crate::calls::Said;
use crate::model::{Model, Verdict};
use crate::op::{Call, Meddle, Op, Side};

/// An answer that takes longer is a hang.
const HANG: Duration = Duration::from_secs(8);

/// How a pair of actors runs.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Way {
    Tcp,
    /// The default setting.
    Earned,
    Eager,
    /// New lanes are written through a send buffer.
    Copy,
    /// Only the client is under Shunpike.
    Client,
    Server,
}

/// Where the programs under test are.
#[derive(Clone, Debug)]
pub struct Artefacts {
    pub command: PathBuf,
    pub library: PathBuf,
}

struct Actor {
    child: Child,
    to: ChildStdin,
    replies: Receiver<String>,
}

impl Actor {
    fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("an actor starts");
        let (tell, replies) = channel();
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Self { to: child.stdin.take().expect("piped"), child, replies }
    }

    fn tell(&mut self, order: &Order) {
        let mut line = serde_json::to_string(order).expect("an order");
        line.push('\n');
        // One that has died says so by not answering.
        let _ = self.to.write_all(line.as_bytes());
    }

    fn hear(&mut self) -> Result<Reply, Trouble> {
        match self.replies.recv_timeout(HANG) {
            Ok(line) => serde_json::from_str(&line).map_err(|_| Trouble::Died(line)),
            Err(RecvTimeoutError::Timeout) => Err(Trouble::Hangs),
            Err(RecvTimeoutError::Disconnected) => {
                let status =
                    self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(Trouble::Died(status))
            }
        }
    }

    fn ask(&mut self, order: &Order) -> Result<Reply, Trouble> {
        self.tell(order);
        self.hear()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why a program could not be run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    Hangs,
    Died(String),
}

/// What a call came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub said: Vec<Said>,
    pub ns: u64,
    pub state: Option<[u16; 3]>,
}

/// A run of a program: an outcome for each call, `None` where it made no sense and was left out.
pub type Run = Vec<Option<Outcome>>;

pub struct Stage {
    way: Way,
    artefacts: Artefacts,
    directory: tempfile::TempDir,
    broker: Option<Child>,
    actors: Option<[Actor; 2]>,
    port: u16,
    serial: u64,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.actors = None;
        self.end_broker();
    }
}

impl Stage {
    pub fn new(way: Way, artefacts: &Artefacts) -> Self {
        let directory =
            tempfile::Builder::new().prefix("shunpike-differential-").tempdir().expect("a directory");
        Self { way, artefacts: artefacts.clone(), directory, broker: None, actors: None, port: 0, serial: 0 }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("broker.sock")
    }

    fn tool(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.artefacts.command);
        command
            .args(arguments)
            .env("SHUNPIKE_SOCKET", self.socket())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn start_broker(&mut self) {
        let mut command = self.tool(&["broker"]);
        command.arg("--socket").arg(self.socket());
        self.broker = Some(command.spawn().expect("a broker starts"));
        let begin = Instant::now();
        while !self.tool(&["info"]).status().is_ok_and(|status| status.success()) {
            assert!(begin.elapsed() < Duration::from_secs(20), "the broker answers");
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.way == Way::Copy {
            let _ = self.tool(&["device", "set", "dmb_copy", "on"]).status();
        }
    }

    fn end_broker(&mut self) {
        if let Some(mut broker) = self.broker.take() {
            let _ = broker.kill();
            let _ = broker.wait();
        }
    }

    fn command(&self, side: Side) -> Command {
        let own = std::env::current_exe().expect("this program has a name");
        let is_under = match self.way {
            Way::Tcp => false,
            Way::Client => side == Side::Client,
            Way::Server => side == Side::Server,
            Way::Earned | Way::Eager | Way::Copy => true,
        };
        if !is_under {
            let mut command = Command::new(own);
            command.arg("actor");
            return command;
        }
        let mut command = Command::new(&self.artefacts.command);
        command.arg("run");
        if self.way == Way::Eager {
            command.arg("--eager");
        }
        command.arg("--").arg(own).arg("actor");
        command.env("SHUNPIKE_SOCKET", self.socket()).env("SHUNPIKE_LIB", &self.artefacts.library);
        command
    }

    fn ready(&mut self) -> Result<(), Trouble> {
        if self.actors.is_some() {
            return Ok(());
        }
        if self.way != Way::Tcp && self.broker.is_none() {
            self.start_broker();
        }
        let mut actors = Side::BOTH.map(|side| Actor::start(self.command(side)));
        let port = actors[Side::Server as usize].ask(&Order::Listen)?.said.map_or(0, |said| said.ret);
        self.port = port as u16;
        self.actors = Some(actors);
        Ok(())
    }

    /// Runs a program. After trouble both actors and the broker are made anew.
    pub fn run(&mut self, program: &[Op]) -> Result<Run, (usize, Trouble)> {
        self.serial = 0;
        let mut model = Model::new();
        let mut run = Run::new();
        let result = self.ready().and_then(|()| self.run_with(program, &mut model, &mut run));
        match result {
            Ok(()) => Ok(run),
            Err(trouble) => {
                self.actors = None;
                self.end_broker();
                Err((run.len(), trouble))
            }
        }
    }

    fn run_with(&mut self, program: &[Op], model: &mut Model, run: &mut Run) -> Result<(), Trouble> {
        let mut is_off = false;
        for &op in program {
            if model.allows(op) == Verdict::No {
                run.push(None);
                continue;
            }
            if let Call::Meddle(meddle) = op.call {
                self.meddle(op, meddle);
                is_off = (is_off || meddle == Meddle::Off) && meddle != Meddle::On;
                run.push(Some(Outcome { said: Vec::new(), ns: 0, state: None }));
                continue;
            }
            let mut outcome = self.make(op, model)?;
            model.happened(op, &outcome.said);
            self.hear_waits(model, &mut outcome)?;
            run.push(Some(outcome));
        }
        if is_off {
            let _ = self.tool(&["device", "set", "active", "on"]).status();
        }
        self.end_of_program(model)
    }

    /// Waits that are still under way end with their connections.
    fn end_of_program(&mut self, model: &Model) -> Result<(), Trouble> {
        let pending = model.pending();
        let actors = self.actors.as_mut().expect("ready");
        if pending.is_empty() {
            for actor in actors {
                actor.ask(&Order::Reset)?;
            }
        } else {
            // A thread that waits holds its socket: the processes are cheaper to make anew than to untangle.
            self.actors = None;
        }
        Ok(())
    }

    fn make(&mut self, op: Op, model: &mut Model) -> Result<Outcome, Trouble> {
        let (port, conn) = (self.port, op.conn);
        let actors = self.actors.as_mut().expect("ready");
        let reply = match op.call {
            Call::Open { nonblock, nagle } => {
                self.serial += 1;
                let serial = self.serial * 2;
                let one = actors[0].ask(&Order::Connect { conn, port, serial, nonblock, nagle })?;
                let other = actors[1].ask(&Order::Accept { conn, serial: serial + 1, nonblock, nagle })?;
                let opened = |reply: &Reply| {
                    Said::of(i64::from(reply.said.as_ref().is_some_and(|said| said.ret == 0)))
                };
                return Ok(Outcome {
                    said: vec![opened(&one), opened(&other)],
                    ns: one.ns.max(other.ns),
                    state: None,
                });
            }
            Call::Echo { rounds, size } => {
                let asks = |asks| Order::Echo { conn, rounds, size, asks };
                actors[op.side.other() as usize].tell(&asks(false));
                let one = actors[op.side as usize].ask(&asks(true));
                let other = actors[op.side.other() as usize].hear();
                let (one, other) = (one?, other?);
                return Ok(Outcome {
                    said: [&one, &other]
                        .map(|reply| reply.said.clone().unwrap_or_else(|| Said::of(-2)))
                        .to_vec(),
                    ns: one.ns.max(other.ns),
                    state: one.state,
                });
            }
            Call::Wait(by) => actors[op.side as usize].ask(&Order::Begin { conn, by })?,
            call => actors[op.side as usize].ask(&Order::Make { conn, call })?,
        };
        if let Call::Wait(by) = op.call {
            model.begins_to_wait(op, by);
        }
        Ok(Outcome { said: reply.said.into_iter().collect(), ns: reply.ns, state: reply.state })
    }

    /// What waits ended with the call just made: those that must have are waited for.
    fn hear_waits(&mut self, model: &mut Model, outcome: &mut Outcome) -> Result<(), Trouble> {
        for (side, conn) in model.pending() {
            let must = model.wakes(side, conn);
            let ms = if must { 4000 } else { 0 };
            let actors = self.actors.as_mut().expect("ready");
            let asked = Instant::now();
            let reply = actors[side as usize].ask(&Order::Ended { conn, ms })?;
            match reply.said {
                Some(said) => {
                    model.woke(side, conn, &said);
                    if must {
                        outcome.ns = outcome.ns.max(asked.elapsed().as_nanos() as u64);
                    }
                    outcome.said.push(said);
                }
                None if must => return Err(Trouble::Hangs),
                None => {}
            }
        }
        Ok(())
    }

    fn meddle(&mut self, op: Op, meddle: Meddle) {
        match meddle {
            Meddle::Wait(ms) => std::thread::sleep(Duration::from_millis(ms.into())),
            _ if self.way == Way::Tcp => {}
            Meddle::Off => drop(self.tool(&["device", "set", "active", "off"]).status()),
            Meddle::On => drop(self.tool(&["device", "set", "active", "on"]).status()),
            Meddle::Revoke => {
                let actors = self.actors.as_ref().expect("ready");
                let whom = actors[op.side as usize].child.id().to_string();
                drop(self.tool(&["revoke", &whom]).status());
            }
            Meddle::KillBroker => {
                self.end_broker();
                self.start_broker();
            }
        }
    }
}

/// Where a build of the project has its artefacts.
pub fn built(directory: &Path) -> Artefacts {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    Artefacts { command: directory.join("shunpike"), library: directory.join("libshunpike.so") }
}
