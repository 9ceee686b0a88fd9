//! Patches what another process is about to execute, or a child that it is about to make: that one goes on by itself, and asks for this
//! before its call ([crates/preload/src/children.rs]).
//!
//! Who asks sleeps until it is traced, and is stopped by the time it wakes. From there on it may make only calls that lie between the
//! asking and the execution. With any other one it has come to something else (there was nothing to execute), and is let go at once. So
//! nobody has to say that an execution failed.
//!
//! [crates/preload/src/children.rs]: ../../preload/src/children.rs

use crate::cache::Cache;
use crate::inject::{Parts, inject};
use crate::library::Library;
use crate::program::Program;
use crate::reason::Reason;
use crate::remote::{Remote, Stop};
use crate::trace::sites_of;
use libc::{c_int, c_long, pid_t};
use std::fs::File;
use std::path::Path;

/// Who is to be patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The thread that asks, when it has executed the program. It is its process's first.
    Itself,
    /// The child that the thread which asks makes next.
    Child,
}

/// What is done before an execution: by the one that asks, by libc between names of a search, by a shell.
const BEFORE_EXEC: [c_long; 9] = [
    libc::SYS_wait4,
    libc::SYS_prctl,
    libc::SYS_rt_sigprocmask,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_execve,
    libc::SYS_execveat,
];

/// And before libc makes a child.
const BEFORE_CHILD: [c_long; 5] =
    [libc::SYS_clone, libc::SYS_clone3, libc::SYS_vfork, libc::SYS_pipe2, libc::SYS_futex];

/// Patches the program in `file`, when it is executed. `ready` is called as soon as `thread` is traced.
///
/// # Errors
/// It was not executed, or runs as it is.
pub fn attach(
    thread: pid_t,
    who: Who,
    file: &File,
    library: &Path,
    cache: Option<&Cache>,
    ready: impl FnOnce(),
) -> Result<(), Reason> {
    let program = Program::of(file)?;
    let of_child = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACECLONE;
    let asking = Remote::seize_for(thread, if who == Who::Child { of_child } else { 0 })?;
    asking.interrupt()?;
    ready();
    // What fails from here on ends this process, and so lets go of what it traces.
    let library = Library::read(library)?;
    let sites = sites_of(&program, cache)?;
    let mut remote = match who {
        Who::Itself => executes(asking)?,
        Who::Child => {
            let child = made(asking)?;
            child.bind(false)?;
            begins(child)?
        }
    };
    let done = inject(&mut remote, &program, &Parts { sites: &sites, counts: None, library: Some(&library) });
    remote.release();
    done
}

/// Waits until the thread executes a program.
fn executes(remote: Remote) -> Result<Remote, Reason> {
    follow(remote, |stop, call| match stop {
        Stop::Exec => Some(true),
        Stop::Child => Some(false),
        _ => (!call.is_none_or(|number| BEFORE_EXEC.contains(&number))).then_some(false),
    })
}

/// Waits until the thread has a child, lets go of it, and keeps that.
fn made(remote: Remote) -> Result<Remote, Reason> {
    let allowed = |number| BEFORE_EXEC.contains(&number) || BEFORE_CHILD.contains(&number);
    let parent = follow(remote, |stop, call| match stop {
        Stop::Child => Some(true),
        Stop::Exec => Some(false),
        _ => (!call.is_none_or(allowed)).then_some(false),
    })?;
    let child = parent.child();
    parent.release();
    let child = child?;
    match child.wait() {
        Stop::Gone => Err(Reason::Gone),
        _ => Ok(child),
    }
}

/// Lets a traced thread go on from call to call, until `judge` knows whether it has come to where it was to come.
fn follow(remote: Remote, judge: impl Fn(&Stop, Option<c_long>) -> Option<bool>) -> Result<Remote, Reason> {
    loop {
        let stop = remote.wait();
        let call = match stop {
            Stop::Call => Some(remote.registers()?.orig_rax as c_long),
            Stop::Gone => return Err(Reason::Gone),
            _ => None,
        };
        match (judge(&stop, call), stop) {
            (Some(true), _) => return Ok(remote),
            (Some(false), _) => {
                remote.release();
                return Err(Reason::OtherFile);
            }
            (None, Stop::Signal(signal)) => remote.go_on_to_call(signal),
            (None, Stop::Group) => remote.listen(),
            (None, _) => remote.go_on_to_call(0),
        }
    }
}

/// Waits until a child that has nothing else to do executes its program.
fn begins(remote: Remote) -> Result<Remote, Reason> {
    let mut signal: c_int = 0;
    loop {
        remote.go_on(signal);
        signal = 0;
        loop {
            match remote.wait() {
                Stop::Exec => return Ok(remote),
                Stop::Gone => return Err(Reason::Gone),
                Stop::Group => {
                    remote.listen();
                    continue;
                }
                Stop::Signal(number) => signal = number,
                Stop::Call | Stop::Child | Stop::Interrupted => {}
            }
            break;
        }
    }
}
