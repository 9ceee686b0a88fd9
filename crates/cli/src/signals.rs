//! Signals to a broker, a tap or `top`: what ends it, or has it read its policy again.

use shunpike_broker::Order;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

/// What a broker listens to. SIGHUP has it read its policy again where somebody sends it, and ends it where its terminal is gone.
const HEEDED: [(i32, &str); 3] =
    [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT"), (libc::SIGHUP, "SIGHUP")];

/// A descriptor that is readable once the broker is told something.
pub fn stop_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset makes the set, which the following calls read; a null old mask is allowed. No
    // handler is installed, and the process has one thread, so that blocking here blocks everywhere.
    // SIGPIPE is ignored because our start-up, unlike std's, does not: a closed log must not end the broker.
    let fd = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for (signal, _) in HEEDED {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        // The starter's mask may block more, for instance where it is a program's worker thread.
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: signalfd has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A signal, and who sent it.
#[derive(Copy, Clone)]
pub struct Told {
    /// Its name.
    pub signal: &'static str,
    /// The sender's process,
    pub pid: u32,
    /// and user.
    pub uid: u32,
    /// Whether a process sent it, and not the kernel as the terminal went away.
    by_process: bool,
}

impl Told {
    /// What a broker does then.
    pub fn order(&self) -> Order {
        if self.signal == "SIGHUP" && self.by_process { Order::Reload } else { Order::End }
    }
}

/// Takes the signal that has come, if one has.
pub fn taken(stop: &OwnedFd) -> Option<Told> {
    // struct signalfd_siginfo: ssi_signo, ssi_errno, ssi_code, ssi_pid, ssi_uid, then what does not matter here.
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    rustix::io::read(stop, &mut info).ok()?;
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let (_, signal) = HEEDED.into_iter().find(|(number, _)| word(0) == *number as u32)?;
    // ssi_code: the kernel's own is positive (SI_KERNEL), a process's is not (SI_USER, SI_QUEUE, SI_TKILL).
    Some(Told { signal, pid: word(12), uid: word(16), by_process: word(8) as i32 <= 0 })
}
