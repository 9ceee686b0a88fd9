//! A call of an actor, cut between two instructions (ptrace(2)): what another process does just then falls into each window in turn.

use std::io;
use std::ptr::null_mut;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::team::Trouble;

/// `si_code` of a breakpoint instruction; that of a single step is TRAP_TRACE.
const SI_KERNEL: i32 = 0x80;

/// The main thread of a process, traced. It is let go when this is dropped.
pub struct Stepper {
    pid: libc::pid_t,
}

/// Where the traced thread has stopped.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Stop {
    /// At a mark of its own ([`crate::calls::mark`]).
    Mark,
    /// After one instruction.
    Step,
    /// For good: how is its parent's to find out.
    Ended,
}

impl Stepper {
    pub fn seize(pid: u32) -> io::Result<Self> {
        let pid = pid as libc::pid_t;
        ask(libc::PTRACE_SEIZE, pid, 0)?;
        Ok(Self { pid })
    }

    /// Waits until the call begins, and goes `steps` instructions into it. Says whether it is still under way. Errors: it took longer than
    /// `most`, and was killed.
    pub fn begin(&self, steps: u16, most: Duration) -> Result<bool, Trouble> {
        let watchdog = Watchdog::start(self.pid, most);
        let mut stop = self.stop(libc::PTRACE_CONT);
        for _ in 0..steps {
            if stop == Stop::Ended {
                return watchdog.in_time(false);
            }
            let _ = ask(libc::PTRACE_SINGLESTEP, self.pid, 0);
            stop = self.stop(libc::PTRACE_SINGLESTEP);
            if stop == Stop::Mark {
                return watchdog.in_time(false);
            }
        }
        watchdog.in_time(stop == Stop::Step)
    }

    /// Lets the call go on to its end. Errors: as above.
    pub fn end(&self, most: Duration) -> Result<(), Trouble> {
        let watchdog = Watchdog::start(self.pid, most);
        let _ = ask(libc::PTRACE_CONT, self.pid, 0);
        self.stop(libc::PTRACE_CONT);
        watchdog.in_time(())
    }

    /// Waits for a stop of its own. A signal is handed on, and `request` goes on.
    fn stop(&self, request: libc::c_uint) -> Stop {
        loop {
            // Its end is left for its parent to see.
            let seen = self.look(libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT);
            if !matches!(seen, Some((libc::CLD_TRAPPED | libc::CLD_STOPPED, _))) {
                return Stop::Ended;
            }
            let Some((_, status)) = self.look(libc::WSTOPPED | libc::WNOHANG) else { return Stop::Ended };
            if status == libc::SIGTRAP {
                return if self.is_mark() { Stop::Mark } else { Stop::Step };
            }
            // Above the signal stands what of ptrace's own stopped it.
            let signal = if status >> 8 == 0 { status } else { 0 };
            let _ = ask(request, self.pid, signal as usize);
        }
    }

    /// What waitid(2) tells of the thread: code and status.
    fn look(&self, options: libc::c_int) -> Option<(i32, i32)> {
        // SAFETY: an all-zero siginfo_t is one; the kernel fills it, or leaves it so where there is nothing to tell.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let rc = libc::waitid(libc::P_PID, self.pid as libc::id_t, &raw mut info, options | libc::__WALL);
            (rc == 0 && info.si_pid() != 0).then(|| (info.si_code, info.si_status()))
        }
    }

    fn is_mark(&self) -> bool {
        // SAFETY: an all-zero siginfo_t is one; the kernel fills it.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let rc =
                libc::ptrace(libc::PTRACE_GETSIGINFO, self.pid, null_mut::<libc::c_void>(), &raw mut info);
            rc == 0 && info.si_code == SI_KERNEL
        }
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        let _ = ask(libc::PTRACE_DETACH, self.pid, 0);
    }
}

/// Kills a process that takes too long, so that who waits for it hears of that.
struct Watchdog {
    over: Sender<()>,
    killed: JoinHandle<bool>,
}

impl Watchdog {
    fn start(pid: libc::pid_t, most: Duration) -> Self {
        let (over, heard) = channel();
        let killed = std::thread::spawn(move || {
            let is_late = heard.recv_timeout(most).is_err();
            if is_late {
                // SAFETY: no memory is passed. The process is a child that nobody has waited for.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            is_late
        });
        Self { over, killed }
    }

    /// What was waited for has come, if it was in time.
    fn in_time<T>(self, what: T) -> Result<T, Trouble> {
        // It has gone where it was late.
        let _ = self.over.send(());
        if self.killed.join().expect("it cannot panic") { Err(Trouble::Hangs) } else { Ok(what) }
    }
}

fn ask(request: libc::c_uint, pid: libc::pid_t, data: usize) -> io::Result<()> {
    // SAFETY: none of these requests takes memory of ours.
    let rc = unsafe { libc::ptrace(request, pid, null_mut::<libc::c_void>(), data) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
