//! A child of an actor that lives on with its connections, and takes orders as it does.

use std::fs::File;
use std::io::BufReader;
use std::os::fd::FromRawFd;

use super::Actor;
use crate::calls::{self, Said};

/// What the child sends has a beginning of its own.
const OTHER_BYTES: u64 = 1000;

impl Actor {
    /// Forks it: the result is its process.
    pub(super) fn branch(&mut self) -> Said {
        let socket = calls::take(calls::GO);
        // SAFETY: no other thread of this process holds anything that the child needs: none waits, and the C library's own locks are free
        // in a child.
        let pid = unsafe { libc::fork() };
        if pid != 0 {
            let said = if pid < 0 { Said::failed() } else { Said::of(pid.into()) };
            calls::close(socket);
            self.branch = Some(pid).filter(|&pid| pid > 0);
            return said;
        }
        // SAFETY: no memory is passed but a string; the numbers are the orders' and the replies' of the parent.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            libc::dup2(nothing, 0);
            libc::dup2(nothing, 1);
            libc::close(nothing);
        }
        calls::close(self.set);
        self.set = calls::new_set();
        self.branch = None;
        self.timer = calls::Timer::new();
        for conn in self.conns.values_mut() {
            conn.registered = false;
            conn.serial += OTHER_BYTES;
        }
        // SAFETY: the socket is the child's alone.
        let orders = unsafe { File::from_raw_fd(socket) };
        if let Ok(replies) = orders.try_clone() {
            self.serve(BufReader::new(orders), replies);
        }
        std::process::exit(0)
    }

    /// Waits for its end, where there is one.
    pub(super) fn reap(&mut self) -> Said {
        let Some(pid) = self.branch.take() else { return Said::of(0) };
        // SAFETY: a child of ours; no status is asked for.
        Said::of(i64::from(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) } == pid))
    }
}
