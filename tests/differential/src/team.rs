//! The processes of a side.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::calls::{GO, JOINT, hear_listener};
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
    pub child: Child,
    to: ChildStdin,
    pub replies: Receiver<String>,
    go: UnixStream,
}

/// What answers for the library's own system calls, where they are asked about.
pub type Asked = Option<Arc<Plan>>;

impl Actor {
    fn start(mut command: Command, joint: RawFd, asked: &Asked) -> Result<Self, Trouble> {
        let (go, its) = UnixStream::pair().expect("a pair of sockets");
        let numbers = [(joint, JOINT), (its.as_raw_fd(), GO)];
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
        let (tell, replies) = channel();
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let actor = Self { to: child.stdin.take().expect("piped"), child, replies, go };
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
                let status =
                    self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
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
    /// Lets the other thread of a pair of calls make its call, and waits until it has, or `most`.
    pub fn go(&mut self, most: Duration) {
        // One that has died says so elsewhere.
        let _ = self.go.set_read_timeout(Some(most));
        let _ = self.go.write_all(b"g");
        let _ = self.go.read(&mut [0]);
    }

    pub fn signal(&self, signal: libc::c_int) {
        let pid = self.child.id() as libc::pid_t;
        // SAFETY: no memory is passed. The main thread of a child that nobody has waited for.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, pid, signal) };
    }

    /// Stops it, and waits until it is.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        // SAFETY: an all-zero siginfo_t is one; its end is left for others to see.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let what = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.child.id(), &raw mut info, what);
        }
    }

    /// Kills it, and waits until its end is seen.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes of a side, joined by a UNIX socket; the second one is started when a connection is handed to it.
pub struct Team {
    pub actors: Vec<Actor>,
    joint: [UnixStream; 2],
    /// Which of them has each connection.
    pub holders: [usize; CONNS as usize],
    asked: Asked,
}

impl Team {
    pub fn start(command: Command, asked: Asked) -> Result<Self, Trouble> {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        let mut team = Self { actors: Vec::new(), joint: [one, other], holders: Default::default(), asked };
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
        &mut self.actors[self.holders[conn as usize]]
    }
}
