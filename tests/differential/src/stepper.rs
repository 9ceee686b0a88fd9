//! A call of an actor, cut between two instructions (ptrace(2)): what another process does just then falls into each window in turn.

use std::io;
use std::ptr::null_mut;

/// `si_code` of a breakpoint instruction; that of a single step is TRAP_TRACE.
const SI_KERNEL: i32 = 0x80;

/// The main thread of a process, traced. It is let go when this is dropped.
pub struct Stepper {
    pid: libc::pid_t,
}

/// Where the traced thread has stopped.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At a mark of its own ([`crate::calls::mark`]).
    Mark,
    /// After one instruction.
    Step,
    Ended,
}

impl Stepper {
    pub fn seize(pid: u32) -> io::Result<Self> {
        let pid = pid as libc::pid_t;
        ask(libc::PTRACE_SEIZE, pid, 0)?;
        Ok(Self { pid })
    }

    /// Waits until the call begins, and goes `steps` instructions into it. Says whether it is still under way.
    pub fn begin(&self, steps: u16) -> bool {
        let mut stop = self.stop();
        for _ in 0..steps {
            if stop == Stop::Ended {
                return false;
            }
            let _ = ask(libc::PTRACE_SINGLESTEP, self.pid, 0);
            stop = self.stop();
            if stop == Stop::Mark {
                return false;
            }
        }
        stop == Stop::Step
    }

    /// Lets the call go on to its end.
    pub fn end(&self) {
        let _ = ask(libc::PTRACE_CONT, self.pid, 0);
        self.stop();
    }

    /// Waits for a stop of its own; signals are handed on.
    fn stop(&self) -> Stop {
        loop {
            let mut status = 0;
            // SAFETY: an int of ours. The process's end is left for its parent to see.
            if unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) } != self.pid
                || !libc::WIFSTOPPED(status)
            {
                return Stop::Ended;
            }
            let signal = libc::WSTOPSIG(status);
            if signal == libc::SIGTRAP && status >> 16 == 0 {
                return if self.is_mark() { Stop::Mark } else { Stop::Step };
            }
            let hands_on = if status >> 16 == 0 { signal } else { 0 };
            let _ = ask(libc::PTRACE_CONT, self.pid, hands_on as usize);
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

fn ask(request: libc::c_uint, pid: libc::pid_t, data: usize) -> io::Result<()> {
    // SAFETY: none of these requests takes memory of ours.
    let rc = unsafe { libc::ptrace(request, pid, null_mut::<libc::c_void>(), data) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
