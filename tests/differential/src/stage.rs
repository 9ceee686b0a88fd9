//! Actors on TCP or under Shunpike, two or more, and a program run by them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::actor::{Order, Reply};
use crate::calls::{JOINT, Said};
use crate::model::Model;
use crate::op::{CONNS, Call, Meddle, Op, Side};
use crate::stepper::Stepper;

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
    /// CPU time of the threads whose calls ended.
    pub cpu_ns: u64,
    /// Calls on the connection, and how many of them with a half on a lane.
    pub calls: [u64; 2],
    pub state: Option<[u16; 3]>,
}

impl Outcome {
    /// Of what is done to Shunpike.
    fn nothing() -> Self {
        Self { said: Vec::new(), ns: 0, cpu_ns: 0, calls: [0; 2], state: None }
    }
}

impl From<Reply> for Outcome {
    fn from(reply: Reply) -> Self {
        Self {
            said: reply.said.into_iter().collect(),
            ns: reply.ns,
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

/// The processes of a side, joined by a UNIX socket; the second one is started when a connection is handed to it.
struct Team {
    actors: Vec<Actor>,
    joint: [UnixStream; 2],
    /// Which of them has each connection.
    holders: [usize; CONNS as usize],
}

impl Team {
    fn start(command: Command) -> Self {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        let mut team = Self { actors: Vec::new(), joint: [one, other], holders: Default::default() };
        team.add(command);
        team
    }

    fn add(&mut self, mut command: Command) {
        let joint: RawFd = self.joint[self.actors.len()].as_raw_fd();
        // SAFETY: dup2(2) may be called between fork and exec.
        unsafe {
            command.pre_exec(move || {
                if libc::dup2(joint, JOINT) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            })
        };
        self.actors.push(Actor::start(command));
    }

    /// Who has a connection, or would open it.
    fn holder(&mut self, conn: u8) -> &mut Actor {
        &mut self.actors[self.holders[conn as usize]]
    }
}

pub struct Stage {
    way: Way,
    artefacts: Artefacts,
    directory: tempfile::TempDir,
    broker: Option<Child>,
    teams: Option<[Team; 2]>,
    port: u16,
    serial: u64,
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
            teams: None,
            port: 0,
            serial: 0,
            edges: BTreeSet::new(),
            all_edges: 0,
        }
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
        if self.teams.is_some() {
            return Ok(());
        }
        if self.way != Way::Tcp && self.broker.is_none() {
            self.start_broker();
        }
        let mut teams = Side::BOTH.map(|side| Team::start(self.command(side)));
        let port =
            teams[Side::Server as usize].holder(0).ask(&Order::Listen)?.said.map_or(0, |said| said.ret);
        self.port = port as u16;
        self.teams = Some(teams);
        Ok(())
    }

    /// Runs a program. After trouble all actors and the broker are made anew.
    pub fn run(&mut self, program: &[Op], turns: Turns) -> Result<Run, (usize, Trouble)> {
        self.serial = 0;
        let mut model = Model::new();
        let mut run = Run::new();
        let result = self.ready().and_then(|()| self.run_with(program, turns, &mut model, &mut run));
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
        turns: Turns,
        model: &mut Model,
        run: &mut Run,
    ) -> Result<(), Trouble> {
        let (mut is_off, mut places) = (false, 0);
        while let Some(&op) = program.get(run.len()) {
            if let Some(&next) = program.get(run.len() + 1)
                && model.can_be_cut(op, next)
            {
                let is_swapped = turns >> places & 1 == 1;
                places += 1;
                let both = match self.way {
                    Way::Tcp if is_swapped => {
                        let second = self.one(next, model)?;
                        [self.one(op, model)?, second]
                    }
                    Way::Tcp => [self.one(op, model)?, self.one(next, model)?],
                    _ => self.cut(op, next, model)?,
                };
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
        if let Call::Meddle(meddle) = op.call {
            self.meddle(op, meddle);
            return Ok(Some(Outcome::nothing()));
        }
        let mut outcome = self.make(op, model)?;
        model.happened(op, &outcome.said);
        self.hear_waits(model, &mut outcome)?;
        Ok(Some(outcome))
    }

    /// A call, and another one between two of its instructions. Who would wait for the first one's end waits for it, and no longer.
    fn cut(&mut self, op: Op, next: Op, model: &mut Model) -> Result<[Option<Outcome>; 2], Trouble> {
        const MOST: Duration = Duration::from_millis(300);
        let (conn, steps) = (op.conn, op.cut.unwrap_or(0));
        let order = |op: Op, cut| Order::Make { conn: op.conn, call: op.call, cut };
        let actor = self.holder(op.side, conn);
        let stepper = Stepper::seize(actor.child.id())
            .map_err(|error| Trouble::Died(format!("not traced: {error}")))?;
        actor.tell(&order(op, true));
        let is_within = stepper.begin(steps, HANG)?;
        let mut other = None;
        if let Call::Meddle(meddle) = next.call {
            self.meddle(next, meddle);
        } else if is_within {
            let peer = self.holder(next.side, conn);
            peer.tell(&order(next, false));
            other = peer.replies.recv_timeout(MOST).ok();
        }
        if is_within {
            stepper.end(HANG)?;
        }
        drop(stepper);
        let first = self.holder(op.side, conn).hear()?;
        let mut first = Outcome::from(first);
        model.happened(op, &first.said);
        if matches!(next.call, Call::Meddle(_)) {
            self.hear_waits(model, &mut first)?;
            return Ok([
                Some(first),
                Some(Outcome { said: Vec::new(), ns: 0, cpu_ns: 0, calls: [0; 2], state: None }),
            ]);
        }
        let peer = self.holder(next.side, conn);
        let second = match other {
            Some(line) => serde_json::from_str(&line).map_err(|_| Trouble::Died(line))?,
            None if is_within => peer.hear()?,
            None => peer.ask(&order(next, false))?,
        };
        let mut second = Outcome::from(second);
        model.happened(next, &second.said);
        self.hear_waits(model, &mut second)?;
        Ok([Some(first), Some(second)])
    }

    fn holder(&mut self, side: Side, conn: u8) -> &mut Actor {
        self.teams.as_mut().expect("ready")[side as usize].holder(conn)
    }

    /// Waits that are still under way end with their connections.
    fn end_of_program(&mut self, model: &Model) -> Result<(), Trouble> {
        if model.pending().is_empty() {
            for team in self.teams.as_mut().expect("ready") {
                team.holders = Default::default();
                for actor in &mut team.actors {
                    if let Some(said) = actor.ask(&Order::Reset)?.said {
                        self.all_edges = self.all_edges.max(said.ret);
                        self.edges.extend(said.more.into_iter().map(|edge| edge as u32));
                    }
                }
            }
        } else {
            // A thread that waits holds its socket: the processes are cheaper to make anew than to untangle.
            self.teams = None;
        }
        Ok(())
    }

    fn make(&mut self, op: Op, model: &mut Model) -> Result<Outcome, Trouble> {
        let (port, conn) = (self.port, op.conn);
        let reply = match op.call {
            Call::Open { nonblock, nagle } => return self.open(conn, port, nonblock, nagle),
            Call::Echo { rounds, size } => {
                let asks = |asks| Order::Echo { conn, rounds, size, asks };
                self.holder(op.side.other(), conn).tell(&asks(false));
                let one = self.holder(op.side, conn).ask(&asks(true));
                let other = self.holder(op.side.other(), conn).hear();
                let (one, other) = (one?, other?);
                return Ok(Outcome {
                    said: [&one, &other]
                        .map(|reply| reply.said.clone().unwrap_or_else(|| Said::of(-2)))
                        .to_vec(),
                    ns: one.ns.max(other.ns),
                    cpu_ns: 0,
                    calls: [one.calls[0] + other.calls[0], one.calls[1] + other.calls[1]],
                    state: one.state,
                });
            }
            Call::Hand => return self.hand(op.side, conn),
            Call::Wait(by) => self.holder(op.side, conn).ask(&Order::Begin { conn, by })?,
            call => self.holder(op.side, conn).ask(&Order::Make { conn, call, cut: false })?,
        };
        if let Call::Wait(by) = op.call {
            model.begins_to_wait(op, by);
        }
        Ok(reply.into())
    }

    fn open(&mut self, conn: u8, port: u16, nonblock: bool, nagle: bool) -> Result<Outcome, Trouble> {
        self.serial += 1;
        let serial = self.serial * 2;
        // The listener is the first process's.
        self.teams.as_mut().expect("ready").iter_mut().for_each(|team| team.holders[conn as usize] = 0);
        let one =
            self.holder(Side::Client, conn).ask(&Order::Connect { conn, port, serial, nonblock, nagle })?;
        let serial = serial + 1;
        let other = self.holder(Side::Server, conn).ask(&Order::Accept { conn, serial, nonblock, nagle })?;
        let opened =
            |reply: &Reply| Said::of(i64::from(reply.said.as_ref().is_some_and(|said| said.ret == 0)));
        let (said, ns) = (vec![opened(&one), opened(&other)], one.ns.max(other.ns));
        Ok(Outcome { said, ns, cpu_ns: 0, calls: [0; 2], state: None })
    }

    /// The connection goes to the side's other process.
    fn hand(&mut self, side: Side, conn: u8) -> Result<Outcome, Trouble> {
        let command = self.command(side);
        let team = &mut self.teams.as_mut().expect("ready")[side as usize];
        if team.actors.len() == 1 {
            team.add(command);
        }
        let given = team.holder(conn).ask(&Order::Give { conn })?;
        let (ns, state) = (given.ns, given.state);
        let said = given.said.unwrap_or_else(|| Said::of(-2));
        let &[sent, serial] = &said.more[..] else { return Err(Trouble::Died(format!("{said:?}"))) };
        let old = team.holders[conn as usize];
        team.holders[conn as usize] = 1 - old;
        let (sent, serial) = (sent as u64, serial as u64);
        let taken = team.holder(conn).ask(&Order::Take { conn, sent, serial })?;
        team.actors[old].ask(&Order::Forget { conn })?;
        let said = vec![Said::of(said.ret), taken.said.unwrap_or_else(|| Said::of(-2))];
        Ok(Outcome { said, ns: ns.max(taken.ns), cpu_ns: 0, calls: given.calls, state })
    }

    /// What waits ended with the call just made: those that must have are waited for.
    fn hear_waits(&mut self, model: &mut Model, outcome: &mut Outcome) -> Result<(), Trouble> {
        for (side, conn) in model.pending() {
            let must = model.wakes(side, conn);
            let ms = if must { 4000 } else { 0 };
            let asked = Instant::now();
            let reply = self.holder(side, conn).ask(&Order::Ended { conn, ms })?;
            match reply.said {
                Some(said) => {
                    model.woke(side, conn, &said);
                    outcome.cpu_ns = outcome.cpu_ns.max(reply.cpu_ns);
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
                let whom = self.holder(op.side, op.conn).child.id().to_string();
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
