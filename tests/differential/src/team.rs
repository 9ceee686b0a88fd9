//! The processes of a side.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::calls::{GO, JOINT, give, hear_listener};
use crate::op::CONNS;
use crate::order::{Order, Reply};
use crate::warden::{self, Plan};

/// An answer that takes longer is a hang.
pub const HANG: Duration = Duration::from_secs(8);

/// Why a program could not be run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    Hangs,
    Died(String),
}

/// One of them, that takes orders.
pub struct Actor {
    /// Nothing of one that another actor has forked.
    child: Option<Child>,
    pub pid: libc::pid_t,
    to: Box<dyn Write>,
    pub replies: Receiver<String>,
    go: UnixStream,
}

/// The lines that come from an actor.
fn replies(from: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, replies) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    replies
}

/// What answers for the library's own system calls, where they are asked about.
pub type Asked = Option<Arc<Plan>>;

impl Actor {
    fn start(mut command: Command, joint: RawFd, asked: &Asked) -> Result<Self, Trouble> {
        let (go, its) = UnixStream::pair().expect("a pair of sockets");
        // Beyond both numbers: the driver has many descriptors, and a copy would take the place of the other one, or be none.
        let beyond = |fd: RawFd| {
            // SAFETY: no memory is passed; the number is owned from here on.
            let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, JOINT.max(GO) + 1) };
            assert!(copy >= 0, "a copy of a descriptor: {}", std::io::Error::last_os_error());
            // SAFETY: as above.
            unsafe { OwnedFd::from_raw_fd(copy) }
        };
        let copies = [beyond(joint), beyond(its.as_raw_fd())];
        let numbers = [(copies[0].as_raw_fd(), JOINT), (copies[1].as_raw_fd(), GO)];
        // SAFETY: prctl(2) and dup2(2) may be called between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // One that is stopped would outlive a driver that is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let done = numbers.iter().all(|&(from, to)| libc::dup2(from, to) >= 0);
                if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            })
        };
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("an actor starts");
        let replies = replies(child.stdout.take().expect("piped"));
        let to = Box::new(child.stdin.take().expect("piped"));
        let actor = Self { to, pid: child.id() as libc::pid_t, child: Some(child), replies, go };
        if let Some(plan) = asked.clone() {
            let _ = actor.go.set_read_timeout(Some(HANG));
            drop(its);
            let listener = hear_listener(&actor.go)
                .map_err(|said| Trouble::Died(format!("no system call is asked about: {said}")))?;
            std::thread::spawn(move || warden::serve(&listener, &plan));
        }
        Ok(actor)
    }

    pub fn tell(&mut self, order: &Order) {
        let mut line = serde_json::to_string(order).expect("an order");
        line.push('\n');
        // One that has died says so by not answering.
        let _ = self.to.write_all(line.as_bytes());
    }

    pub fn hear(&mut self) -> Result<Reply, Trouble> {
        match self.replies.recv_timeout(HANG) {
            Ok(line) => serde_json::from_str(&line).map_err(|_| Trouble::Died(line)),
            Err(RecvTimeoutError::Timeout) => Err(Trouble::Hangs),
            Err(RecvTimeoutError::Disconnected) => {
                let Some(child) = &mut self.child else {
                    return Err(Trouble::Died("a forked one".to_owned()));
                };
                let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(Trouble::Died(status))
            }
        }
    }

    pub fn ask(&mut self, order: &Order) -> Result<Reply, Trouble> {
        self.tell(order);
        self.hear()
    }
}

impl Actor {
    /// Has it fork one that lives on.
    fn branch(&mut self, conn: u8) -> Result<(Self, Reply), Trouble> {
        let (own, its) = UnixStream::pair().expect("a pair of sockets");
        self.tell(&Order::Branch { conn });
        let is_given = give(self.go.as_raw_fd(), its.as_raw_fd());
        drop(its);
        let reply = self.hear()?;
        let pid = reply.said.as_ref().map_or(-1, |said| said.ret) as libc::pid_t;
        if !is_given || pid <= 0 {
            return Err(Trouble::Died(format!("no fork: given {is_given}, {:?}", reply.said)));
        }
        let [from, go] = [(); 2].map(|()| own.try_clone().expect("a copy of a socket"));
        Ok((Self { child: None, pid, to: Box::new(own), replies: replies(from), go }, reply))
    }

    /// Lets the other thread of a pair of calls make its call, and waits until it has, or `most`.
    pub fn go(&mut self, most: Duration) {
        // One that has died says so elsewhere.
        let _ = self.go.set_read_timeout(Some(most));
        let _ = self.go.write_all(b"g");
        let _ = self.go.read(&mut [0]);
    }

    pub fn signal(&self, signal: libc::c_int) {
        let pid = self.pid;
        // SAFETY: no memory is passed. The main thread of a process that nobody has waited for.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, pid, signal) };
    }

    /// Stops it, and waits until it is.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        if self.child.is_none() {
            self.wait_while_it_runs();
            return;
        }
        // SAFETY: an all-zero siginfo_t is one; its end is left for others to see.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let what = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.pid as libc::id_t, &raw mut info, what);
        }
    }

    /// Waits until the kernel says that it is stopped, or has let go of all that it had: for one that is another's child.
    fn wait_while_it_runs(&self) {
        let stat = format!("/proc/{}/stat", self.pid);
        let is_running = || {
            let text = std::fs::read_to_string(&stat).unwrap_or_default();
            matches!(text.rsplit(") ").next().and_then(|rest| rest.chars().next()), Some('R' | 'S' | 'D'))
        };
        let begin = Instant::now();
        while is_running() && begin.elapsed() < HANG {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Kills it, and waits until its end is seen.
    pub fn kill(&mut self) {
        match &mut self.child {
            Some(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            None => {
                self.signal(libc::SIGKILL);
                // A line of its own may be closed before its connections are.
                self.wait_while_it_runs();
            }
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Which process of a side: the first one, a second one that is started when it is given a connection, or one that the first or the second
/// has forked.
pub type Who = usize;
pub const BRANCH: Who = 2;

/// The processes of a side, joined by a UNIX socket.
pub struct Team {
    /// The first one, and the second.
    pub actors: Vec<Actor>,
    /// The forked one, and who has forked it.
    pub branch: Option<(Actor, Who)>,
    joint: [UnixStream; 2],
    /// Which of them makes the calls on each connection,
    pub holders: [Who; CONNS as usize],
    /// who has it, too,
    pub also: [Option<Who>; CONNS as usize],
    /// and who waits for it.
    pub waiters: [Who; CONNS as usize],
    asked: Asked,
}

impl Team {
    pub fn start(command: Command, asked: Asked) -> Result<Self, Trouble> {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        let mut team = Self {
            actors: Vec::new(),
            branch: None,
            joint: [one, other],
            holders: Default::default(),
            also: Default::default(),
            waiters: Default::default(),
            asked,
        };
        team.add(command)?;
        Ok(team)
    }

    pub fn add(&mut self, command: Command) -> Result<(), Trouble> {
        let joint = self.joint[self.actors.len()].as_raw_fd();
        self.actors.push(Actor::start(command, joint, &self.asked)?);
        Ok(())
    }

    /// Who has a connection, or would open it.
    pub fn holder(&mut self, conn: u8) -> &mut Actor {
        self.actor(self.holders[conn as usize])
    }

    pub fn actor(&mut self, who: Who) -> &mut Actor {
        match &mut self.branch {
            Some((branch, _)) if who == BRANCH => branch,
            _ => &mut self.actors[who.min(BRANCH - 1)],
        }
    }

    /// All of them, the forked one first.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Actor> {
        self.branch.as_mut().map(|(branch, _)| branch).into_iter().chain(&mut self.actors)
    }

    /// Who has a connection forks a process that has all that it has.
    pub fn fork(&mut self, conn: u8) -> Result<Reply, Trouble> {
        let parent = self.holders[conn as usize];
        let (branch, reply) = self.actor(parent).branch(conn)?;
        self.branch = Some((branch, parent));
        for (holder, also) in self.holders.iter().zip(&mut self.also) {
            if *holder == parent {
                *also = Some(BRANCH);
            }
        }
        Ok(reply)
    }

    /// A process has closed a connection: who has it, too, goes on with it.
    pub fn closed(&mut self, conn: u8) {
        let conn = usize::from(conn);
        if let Some(other) = self.also[conn].take() {
            self.holders[conn] = other;
        }
    }

    pub fn swap(&mut self, conn: u8) {
        let conn = usize::from(conn);
        if let Some(other) = &mut self.also[conn] {
            std::mem::swap(other, &mut self.holders[conn]);
        }
    }

    /// The forked process is killed, and its parent has seen it.
    pub fn kill_branch(&mut self) -> Result<(), Trouble> {
        let Some((mut branch, parent)) = self.branch.take() else { return Ok(()) };
        branch.kill();
        for (holder, also) in self.holders.iter_mut().zip(&mut self.also) {
            *also = also.filter(|&who| who != BRANCH);
            // Of those that it had closed.
            if *holder == BRANCH {
                *holder = 0;
            }
        }
        self.actors[parent].ask(&Order::Reap)?;
        Ok(())
    }
}
