//! Actors on TCP or under Shunpike, two or more, and a program run by them.

mod both;
mod cuts;
mod sharing;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::calls::Said;
use crate::errors::Failure;
use crate::model::Model;
use crate::op::{Call, Family, Meddle, Op, Side, has_rings, is_raw};
use crate::order::{How, Order, Reply};
use crate::team::{Actor, HANG, Team, Trouble};
use crate::warden::Plan;

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

/// What a call came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub said: Vec<Said>,
    pub ns: u64,
    /// How long a thread that made a call alone could have run besides, and did not.
    pub held_up_ns: u64,
    /// CPU time of the threads whose calls ended.
    pub cpu_ns: u64,
    /// Calls on the connection, and how many of them with a half on a lane.
    pub calls: [u64; 2],
    pub state: Option<[u16; 3]>,
}

impl Outcome {
    /// Of what is done to Shunpike.
    fn nothing() -> Self {
        Self { said: Vec::new(), ns: 0, held_up_ns: 0, cpu_ns: 0, calls: [0; 2], state: None }
    }
}

impl From<Reply> for Outcome {
    fn from(reply: Reply) -> Self {
        Self {
            said: reply.said.into_iter().collect(),
            ns: reply.ns,
            held_up_ns: reply.held_up_ns,
            cpu_ns: reply.cpu_ns,
            calls: reply.calls,
            state: reply.state,
        }
    }
}

/// A run of a program: an outcome for each call, `None` where it made no sense and was left out.
pub type Run = Vec<Option<Outcome>>;

/// Where a call is cut and another one made meanwhile, TCP makes one after the other, and its answers in either order are right: bit N says
/// that the other one is first at the Nth such place.
pub type Turns = u8;

pub struct Stage {
    way: Way,
    artefacts: Artefacts,
    directory: tempfile::TempDir,
    broker: Option<Child>,
    /// It is stopped.
    is_held: bool,
    teams: Option<[Team; 2]>,
    /// For IPv4, and for both; none where there is no IPv6.
    ports: [u16; 2],
    serial: u64,
    /// System calls of the library's own that fail; none are asked about where this is `None`.
    pub failures: Option<Vec<Failure>>,
    /// Calls that were cut while they were under way.
    pub windows: u64,
    /// Edges of the library's code that were passed, and how many there are; none where it was not built to tell.
    pub edges: BTreeSet<u32>,
    pub all_edges: i64,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.teams = None;
        self.end_broker();
    }
}

impl Stage {
    pub fn new(way: Way, artefacts: &Artefacts) -> Self {
        let directory =
            tempfile::Builder::new().prefix("shunpike-differential-").tempdir().expect("a directory");
        Self {
            way,
            artefacts: artefacts.clone(),
            directory,
            broker: None,
            is_held: false,
            teams: None,
            ports: [0; 2],
            serial: 0,
            failures: None,
            windows: 0,
            edges: BTreeSet::new(),
            all_edges: 0,
        }
    }

    /// Other processes run the next program.
    pub fn renew(&mut self) {
        self.teams = None;
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("broker.sock")
    }

    /// Whoever asks a broker that is stopped would wait.
    fn let_broker_go_on(&mut self) {
        if let Some(broker) = self.broker.as_ref().filter(|_| self.is_held) {
            signal(broker, libc::SIGCONT);
            self.is_held = false;
        }
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

    /// Errors: it has ended, or does not answer.
    fn start_broker(&mut self) -> Result<(), Trouble> {
        let log = self.directory.path().join("broker.log");
        let mut command = self.tool(&["broker"]);
        command.arg("--socket").arg(self.socket());
        command.stderr(File::create(&log).expect("a log of the broker's"));
        let mut broker = command.spawn().expect("a broker starts");
        let begin = Instant::now();
        while !self.answers() {
            let ended = broker.try_wait();
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            if !matches!(ended, Ok(None)) || begin.elapsed() > Duration::from_secs(20) {
                let _ = broker.kill();
                let _ = broker.wait();
                return Err(Trouble::Died(format!(
                    "a new broker does not answer: {ended:?}, it said {}",
                    said()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.broker = Some(broker);
        if self.way == Way::Copy {
            let _ = self.tool(&["device", "set", "dmb_copy", "on"]).status();
        }
        Ok(())
    }

    /// Whether the broker answers, within some time.
    fn answers(&self) -> bool {
        let Ok(mut asks) = self.tool(&["info"]).spawn() else { return false };
        let begin = Instant::now();
        loop {
            match asks.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) if begin.elapsed() < HANG => std::thread::sleep(Duration::from_millis(1)),
                _ => {
                    let _ = asks.kill();
                    let _ = asks.wait();
                    return false;
                }
            }
        }
    }

    fn end_broker(&mut self) {
        self.is_held = false;
        if let Some(mut broker) = self.broker.take() {
            let _ = broker.kill();
            let _ = broker.wait();
        }
    }

    fn is_under(&self, side: Side) -> bool {
        match self.way {
            Way::Tcp => false,
            Way::Client => side == Side::Client,
            Way::Server => side == Side::Server,
            Way::Earned | Way::Eager | Way::Copy => true,
        }
    }

    fn command(&self, side: Side) -> Command {
        let own = std::env::current_exe().expect("this program has a name");
        if !self.is_under(side) {
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
        if self.failures.is_some() {
            command.arg("--asks");
        }
        command.env("SHUNPIKE_SOCKET", self.socket()).env("SHUNPIKE_LIB", &self.artefacts.library);
        command
    }

    fn ready(&mut self) -> Result<(), Trouble> {
        if self.teams.is_some() {
            return Ok(());
        }
        if self.way != Way::Tcp && self.broker.is_none() {
            self.start_broker()?;
        }
        let start = |side| {
            let failures = self.failures.as_ref().filter(|_| self.is_under(side));
            Team::start(self.command(side), failures.map(|failures| Plan::new(failures, side)))
        };
        let mut teams = [start(Side::Client)?, start(Side::Server)?];
        let said = teams[Side::Server as usize].holder(0).ask(&Order::Listen)?.said;
        self.ports = said.map_or([0; 2], |said| [said.ret as u16, said.more[0] as u16]);
        self.teams = Some(teams);
        Ok(())
    }

    /// Runs a program: with calls made one after the other where `turns` says so, else within one another. After trouble all actors and the
    /// broker are made anew.
    pub fn run(&mut self, program: &[Op], turns: Option<Turns>) -> Result<Run, (usize, Trouble)> {
        self.serial = 0;
        // Whether a process is one that waits unseen is judged by all that it has done. On TCP, too: new processes are slower.
        // And the first calls of a process are those of which most can fail.
        let (is_fresh, is_marked) = (is_raw(program) || self.failures.is_some(), has_rings(program));
        if is_fresh {
            self.teams = None;
        }
        let mut model = Model::new();
        let mut run = Run::new();
        let result = self.ready().and_then(|()| self.run_with(program, turns, &mut model, &mut run));
        if is_fresh || is_marked && self.way != Way::Tcp {
            self.teams = None;
        }
        match result {
            Ok(()) => Ok(run),
            Err(trouble) => {
                self.teams = None;
                self.end_broker();
                Err((run.len(), trouble))
            }
        }
    }

    fn run_with(
        &mut self,
        program: &[Op],
        turns: Option<Turns>,
        model: &mut Model,
        run: &mut Run,
    ) -> Result<(), Trouble> {
        let (mut is_off, mut places) = (false, 0);
        while let Some(&op) = program.get(run.len()) {
            if let Some(&next) = program.get(run.len() + 1)
                && model.can_be_cut(op, next)
            {
                let order =
                    turns.map(|turns| if turns >> places & 1 == 1 { How::Swapped } else { How::InOrder });
                places += 1;
                let is_pair = next.side == op.side && !next.call.is_of_driver();
                let both = match order {
                    Some(how) if is_pair => self.pair(op, next, how, model)?,
                    Some(How::Swapped) => {
                        let second = self.one(next, model)?;
                        [self.one(op, model)?, second]
                    }
                    Some(_) => [self.one(op, model)?, self.one(next, model)?],
                    None => self.cut(op, next, model)?,
                };
                model.happened_at_once(op, next);
                is_off |= next.call == Call::Meddle(Meddle::Off);
                // How long they took says nothing.
                run.extend(both.map(|outcome| outcome.map(|one| Outcome { ns: 0, cpu_ns: 0, ..one })));
                continue;
            }
            if let Call::Meddle(meddle) = op.call {
                is_off = (is_off || meddle == Meddle::Off) && meddle != Meddle::On;
            }
            let outcome = self.one(op, model)?;
            run.push(outcome);
        }
        self.let_broker_go_on();
        if is_off {
            let _ = self.tool(&["device", "set", "active", "on"]).status();
        }
        self.end_of_program(model)
    }

    /// One call; nothing where it makes no sense.
    fn one(&mut self, op: Op, model: &mut Model) -> Result<Option<Outcome>, Trouble> {
        if !model.allows(op) {
            return Ok(None);
        }
        if op.call.is_of_driver() {
            self.drive(op)?;
            let mut outcome = Outcome::nothing();
            model.happened(op, &outcome.said);
            self.hear_waits(model, &mut outcome)?;
            return Ok(Some(outcome));
        }
        let mut outcome = self.make(op, model)?;
        model.happened(op, &outcome.said);
        self.hear_waits(model, &mut outcome)?;
        Ok(Some(outcome))
    }

    fn holder(&mut self, side: Side, conn: u8) -> &mut Actor {
        self.teams.as_mut().expect("ready")[side as usize].holder(conn)
    }

    /// Waits that are still under way end with their connections.
    fn end_of_program(&mut self, model: &Model) -> Result<(), Trouble> {
        let teams = self.teams.as_mut().expect("ready");
        for side in Side::BOTH.into_iter().filter(|&side| model.is_stopped(side)) {
            teams[side as usize].all().for_each(|actor| actor.signal(libc::SIGCONT));
        }
        let waits = !model.pending().is_empty();
        // On lanes a thread that waits holds its socket: the processes are cheaper to make anew than to untangle.
        if Side::BOTH.into_iter().any(|side| model.is_dead(side)) || waits && self.way != Way::Tcp {
            self.teams = None;
            return Ok(());
        }
        for team in teams {
            (team.holders, team.also) = Default::default();
            for actor in team.all().filter(|_| waits) {
                actor.ask(&Order::EndWaits)?;
            }
            // Who has forked one waits for its end.
            if let Some((mut branch, _)) = team.branch.take() {
                branch.ask(&Order::Reset)?;
                branch.tell(&Order::Quit);
            }
            for actor in &mut team.actors {
                if let Some(said) = actor.ask(&Order::Reset)?.said {
                    self.all_edges = self.all_edges.max(said.ret);
                    self.edges.extend(said.more.into_iter().map(|edge| edge as u32));
                }
            }
        }
        Ok(())
    }

    fn make(&mut self, op: Op, model: &mut Model) -> Result<Outcome, Trouble> {
        let conn = op.conn;
        let reply = match op.call {
            Call::Open { nonblock, nagle, family } => return self.open(conn, family, nonblock, nagle),
            Call::Echo { rounds, size } => {
                return self.both(op, |asks| Order::Echo { conn, rounds, size, asks });
            }
            Call::Exchange { by, rounds, size } => {
                return self.both(op, |asks| Order::Exchange { conn, by, rounds, size, asks });
            }
            Call::Pour { rounds, size } => return self.pour(op, rounds, size),
            Call::Flood { by, chunk, early, meanwhile } => {
                return self.flood(op, by, chunk, early, meanwhile);
            }
            Call::Torrent { threads, rounds, size } => {
                let both = self.both(op, |_| Order::Torrent { conn, threads, rounds, size })?;
                return Ok(Outcome { ns: 0, ..both });
            }
            Call::Corked { by, pieces, size } => return self.corked(op, by, pieces, size),
            Call::Lend { size, lent, meanwhile } => return self.lend(op, size, lent, meanwhile),
            Call::Hand | Call::Share => return self.give(op.side, conn, op.call == Call::Share),
            Call::Branch | Call::Swap => return self.share(op),
            Call::Wait(by) => {
                let team = &mut self.teams.as_mut().expect("ready")[op.side as usize];
                team.waiters[usize::from(conn)] = team.holders[usize::from(conn)];
                team.holder(conn).ask(&Order::Begin { conn, by })?
            }
            call => self.holder(op.side, conn).ask(&Order::Make { conn, call, cut: false })?,
        };
        if let Call::Finish(end) = op.call
            && end.is_close()
            && !model.has_twin(op.side, conn)
        {
            self.teams.as_mut().expect("ready")[op.side as usize].closed(conn);
        }
        if let Call::Wait(by) = op.call {
            model.begins_to_wait(op, by);
        }
        Ok(reply.into())
    }

    /// What both sides do at once.
    fn both(&mut self, op: Op, order: impl Fn(bool) -> Order) -> Result<Outcome, Trouble> {
        self.holder(op.side.other(), op.conn).tell(&order(false));
        let one = self.holder(op.side, op.conn).ask(&order(true));
        let other = self.holder(op.side.other(), op.conn).hear();
        let (one, other) = (one?, other?);
        Ok(Outcome {
            said: [&one, &other].map(|reply| reply.said.clone().unwrap_or_else(|| Said::of(-2))).to_vec(),
            // One that is held up holds up the other one.
            ns: one.ns.saturating_sub(other.held_up_ns).max(other.ns.saturating_sub(one.held_up_ns)),
            held_up_ns: 0,
            cpu_ns: 0,
            calls: [one.calls[0] + other.calls[0], one.calls[1] + other.calls[1]],
            state: one.state,
        })
    }

    fn open(&mut self, conn: u8, family: Family, nonblock: bool, nagle: bool) -> Result<Outcome, Trouble> {
        let [port, port_v6] = self.ports;
        let family = if port_v6 == 0 { Family::V4 } else { family };
        let port = if matches!(family, Family::V6 | Family::ServerV6) { port_v6 } else { port };
        self.serial += 1;
        let serial = self.serial * 2;
        // The listener is the first process's.
        for team in self.teams.as_mut().expect("ready") {
            (team.holders[conn as usize], team.also[conn as usize]) = (0, None);
        }
        let one = self.holder(Side::Client, conn).ask(&Order::Connect {
            conn,
            port,
            family,
            serial,
            nonblock,
            nagle,
        })?;
        let serial = serial + 1;
        let other =
            self.holder(Side::Server, conn).ask(&Order::Accept { conn, family, serial, nonblock, nagle })?;
        let opened =
            |reply: &Reply| Said::of(i64::from(reply.said.as_ref().is_some_and(|said| said.ret == 0)));
        let (said, ns) = (vec![opened(&one), opened(&other)], one.ns.max(other.ns));
        Ok(Outcome { said, ns, held_up_ns: 0, cpu_ns: 0, calls: [0; 2], state: None })
    }

    /// What waits ended with the call just made: those that must have are waited for.
    fn hear_waits(&mut self, model: &mut Model, outcome: &mut Outcome) -> Result<(), Trouble> {
        for (side, conn) in model.pending() {
            if model.is_stopped(side) {
                continue;
            }
            let (must, is_crowd) = (model.wakes(side, conn), model.is_crowd(side, conn));
            let ms = if must { 4000 } else { 0 };
            let asked = Instant::now();
            let team = &mut self.teams.as_mut().expect("ready")[side as usize];
            let reply = team.actor(team.waiters[usize::from(conn)]).ask(&Order::Ended { conn, ms })?;
            match reply.said {
                Some(said) => {
                    model.woke(side, conn, &said);
                    outcome.cpu_ns = outcome.cpu_ns.max(reply.cpu_ns);
                    // Of threads that have only just begun, a busy machine makes what it likes.
                    if must && !is_crowd {
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

    /// What is done to the processes of a side, or to Shunpike.
    fn drive(&mut self, op: Op) -> Result<(), Trouble> {
        let team = &mut self.teams.as_mut().expect("ready")[op.side as usize];
        match op.call {
            Call::Kill => {
                team.all().for_each(Actor::kill);
                if self.way != Way::Tcp {
                    self.let_broker_go_on();
                    // The broker may hold a copy of a connection that it was just offered: it answers behind that. And calls that need not wait
                    // ask TCP every 50 ms, where a set has the connection (COMPLIANCE.md).
                    let _ = self.tool(&["info"]).status();
                    std::thread::sleep(Duration::from_millis(60));
                }
            }
            Call::KillBranch => team.kill_branch()?,
            Call::Stop => team.all().for_each(|actor| actor.stop()),
            Call::Continue => team.all().for_each(|actor| actor.signal(libc::SIGCONT)),
            Call::Meddle(meddle) => self.meddle(op, meddle)?,
            _ => {}
        }
        Ok(())
    }

    fn meddle(&mut self, op: Op, meddle: Meddle) -> Result<(), Trouble> {
        if !matches!(meddle, Meddle::Wait(_) | Meddle::StopBroker) {
            self.let_broker_go_on();
        }
        match meddle {
            Meddle::Wait(ms) => std::thread::sleep(Duration::from_millis(ms.into())),
            _ if self.way == Way::Tcp => {}
            Meddle::StopBroker => {
                if let Some(broker) = &self.broker {
                    signal(broker, libc::SIGSTOP);
                    self.is_held = true;
                }
            }
            Meddle::ContinueBroker => {}
            Meddle::Off => drop(self.tool(&["device", "set", "active", "off"]).status()),
            Meddle::On => drop(self.tool(&["device", "set", "active", "on"]).status()),
            Meddle::Revoke => {
                let whom = self.holder(op.side, op.conn).pid.to_string();
                drop(self.tool(&["revoke", &whom]).status());
            }
            Meddle::KillBroker => {
                self.end_broker();
                self.start_broker()?;
            }
        }
        Ok(())
    }
}

fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: no memory is passed. A child that nobody has waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, signal) };
}

/// Where a build of the project has its artefacts.
pub fn built(directory: &Path) -> Artefacts {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    Artefacts { command: directory.join("shunpike"), library: directory.join("libshunpike.so") }
}
