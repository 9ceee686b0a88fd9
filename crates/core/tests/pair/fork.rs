//! Children of the test's process.

use crate::Pair;
use crate::broker::Broker;
use crate::end::End;
use shunpike_core::{life, process};
use std::io::Read;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::MutexGuard;

/// A forked child, which does as it was told and ends.
pub struct Child {
    pid: i32,
}

/// How it ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// By itself, with this status; 101 where it panicked.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl Child {
    /// Forks one that does `what`; as a program's fork() does, by the hooks of it.
    pub fn fork(what: impl FnOnce()) -> Self {
        life::before_fork();
        // SAFETY: the child goes on with this thread only, in whose hands are core's locks and std's.
        match unsafe { libc::fork() } {
            0 => {
                life::after_fork_in_child();
                let outcome = catch_unwind(AssertUnwindSafe(what));
                // What coverage is measured by is written at exit.
                // SAFETY: the child's only thread.
                unsafe { libc::exit(if outcome.is_ok() { 0 } else { 101 }) }
            }
            pid => {
                life::after_fork_in_parent();
                assert!(pid > 0, "it cannot fork");
                process::after_fork(u32::try_from(pid).ok());
                Self { pid }
            }
        }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// Waits for its end.
    pub fn ended(self) -> Ended {
        let mut status = 0;
        // SAFETY: the status is ours.
        while unsafe { libc::waitpid(self.pid, &raw mut status, 0) } != self.pid {}
        if libc::WIFSIGNALED(status) {
            Ended::Killed(libc::WTERMSIG(status))
        } else {
            Ended::Exited(libc::WEXITSTATUS(status))
        }
    }
}

/// The calling process dies on the spot.
pub fn die() -> ! {
    // SAFETY: no pointers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!()
}

/// The client's end, with the server's in a child.
pub struct GivenAway {
    /// The client's end.
    pub client: End,
    /// Who has the server's.
    pub child: Child,
    /// Last, as in a pair.
    pub broker: MutexGuard<'static, Broker>,
}

/// The server's end goes to a child, which does `what` with it, and the client's stays here.
pub fn give_away(pair: Pair, what: impl FnOnce(&End)) -> GivenAway {
    let (mut has_let_go, lets_go) = std::io::pipe().expect("a pipe");
    let Pair { client, server, broker } = pair;
    let client = ManuallyDrop::new(client);
    let client_here = End { fd: client.fd };
    let child = Child::fork(|| {
        drop(ManuallyDrop::into_inner(client));
        drop(lets_go);
        what(&server);
        // It ends with its end open.
        std::mem::forget(server);
    });
    // The child has let go of ours, and we have of its.
    assert_eq!(has_let_go.read(&mut [0]).expect("a pipe"), 0);
    GivenAway { client: client_here, child, broker }
}
