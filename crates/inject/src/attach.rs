//! Patches what another process is about to execute, or a child that it is about to make: that one goes on by itself, and asks for this
//! before its call ([crates/preload/src/children.rs]).
//!
//! Who asks waits until it is traced. From there on it may make only calls that lie between the
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

/// What the one that asks does first: it waits for the child that has begun this process.
const FIRST: c_long = libc::SYS_wait4;
/// What it comes to, more than once where libc tries all names of a search.
const LAST: [c_long; 5] =
    [libc::SYS_execve, libc::SYS_execveat, libc::SYS_clone, libc::SYS_clone3, libc::SYS_vfork];
/// And what it, and libc, do before that: nothing that can take long.
const BETWEEN: [c_long; 7] = [
    libc::SYS_prctl,
    libc::SYS_rt_sigprocmask,
    libc::SYS_close,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_pipe2,
];

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
        Who::Itself => follow(asking, who)?,
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

/// Waits until the thread has a child, lets go of it, and keeps that.
fn made(remote: Remote) -> Result<Remote, Reason> {
    let parent = follow(remote, Who::Child)?;
    let child = parent.child();
    parent.release();
    let child = child?;
    match child.wait() {
        Stop::Gone => Err(Reason::Gone),
        _ => Ok(child),
    }
}

/// Lets a thread go on from call to call, until it has executed a program or has a child. If it comes to something else, it is let go.
fn follow(remote: Remote, who: Who) -> Result<Remote, Reason> {
    let mut is_near = false;
    loop {
        match remote.wait() {
            Stop::Exec if who == Who::Itself => return Ok(remote),
            Stop::Child if who == Who::Child => return Ok(remote),
            Stop::Exec | Stop::Child => break,
            Stop::Gone => return Err(Reason::Gone),
            Stop::Signal(signal) => remote.go_on_to_call(signal),
            Stop::Group => remote.listen(),
            Stop::Interrupted => remote.go_on_to_call(0),
            Stop::Call => {
                let call = remote.registers()?.orig_rax as c_long;
                is_near |= LAST.contains(&call);
                if !LAST.contains(&call) && !BETWEEN.contains(&call) && (is_near || call != FIRST) {
                    break;
                }
                remote.go_on_to_call(0);
            }
        }
    }
    remote.release();
    Err(Reason::OtherFile)
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
