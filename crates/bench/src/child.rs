//! Programs that a measurement starts, and what became of them.

use crate::machine;
use crate::signals::is_interrupted;
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Why a measurement has no result: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed(pub String);

impl Failed {
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// The two CPUs that pinned programs run on.
#[derive(Copy, Clone, Debug)]
pub enum Pin {
    Server,
    Client,
}

impl Pin {
    fn cpu(self) -> CpuSet {
        let cpus = machine::cpus();
        let cpu = match self {
            Pin::Server => cpus.first(),
            Pin::Client => cpus.last(),
        };
        let mut only = CpuSet::new();
        cpu.into_iter().for_each(|cpu| only.set(*cpu));
        only
    }
}

/// A process that ends when we do.
pub struct Child(std::process::Child);

impl Child {
    /// Its output goes to the file `output`.
    pub fn start(mut command: Command, output: &Path, pin: Option<Pin>) -> Result<Self, Failed> {
        let file = File::create(output)?;
        command.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file);
        let cpu = pin.map(Pin::cpu);
        let prepare = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            // Here, not before: who spins at our own real-time priority would not let us away from its CPU.
            cpu.as_ref().map_or(Ok(()), |cpu| sched_setaffinity(None, cpu))?;
            Ok(())
        };
        // SAFETY: between fork and exec only two system calls are made, by rustix, which allocates nothing.
        unsafe { command.pre_exec(prepare) };
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| Failed::new(format!("cannot run {name}: {error}")))?;
        Ok(Self(child))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its exit status, once it has one.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Ends it: as asked for, or by force.
    pub fn stop(&mut self) {
        if self.ended().is_none() {
            let _ = rustix::process::kill_process(Pid::from_child(&self.0), Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(5);
            while self.ended().is_none() && Instant::now() < deadline {
                sleep(Duration::from_millis(2));
            }
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.stop();
    }
}

/// This thread on one CPU, until dropped.
pub struct Pinned(CpuSet);

impl Pinned {
    pub fn to(pin: Pin) -> Result<Self, Failed> {
        let before = sched_getaffinity(None).map_err(io::Error::from)?;
        sched_setaffinity(None, &pin.cpu()).map_err(io::Error::from)?;
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Asks again and again, every few milliseconds, until there is an answer or `patience` is over.
pub fn wait_for<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() > deadline || is_interrupted() {
            return None;
        }
        sleep(Duration::from_millis(5));
    }
}

/// What a program said last.
pub fn last_line(file: &Path) -> String {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it wrote nothing").to_owned()
}
