//! Executes a program, patched: same process, no tracer and no child left.
//!
//! A process cannot trace itself. So it has a helper, which is nobody's child, seize it, and then executes the program. The helper patches
//! it when exec is done, and ends.

use crate::cache::Cache;
use crate::inject::{Parts, inject};
use crate::library::Library;
use crate::program::Program;
use crate::reason::Reason;
use crate::remote::{Remote, Stop};
use crate::sites::{self, Site};
use libc::{c_int, c_void, pid_t};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::{io, ptr};

/// What is executed, and how.
pub struct Execution<'a> {
    /// The program's file; no search is made.
    pub path: &'a CStr,
    /// The file that is looked at: the same, or a script's interpreter.
    pub program: &'a CStr,
    /// Its arguments, the first of which is its name.
    pub arguments: &'a [CString],
    /// Its environment, `NAME=value` each.
    pub environment: &'a [CString],
    /// Where the sites of programs are kept, so that each is looked at once.
    pub cache: Option<&'a Cache>,
    /// A file of [`COUNTED`](crate::blob::COUNTED) words that the program counts its calls in.
    pub counts: Option<&'a CStr>,
    /// What is loaded into it and answers its calls.
    pub library: Option<&'a Path>,
}

/// Executes a program. `report` is called in the helper, when it is patched or is known to stay as it is.
///
/// The process must have one thread, as for fork.
///
/// # Errors
/// Returns only if there is nothing that can be executed.
pub fn exec(execution: &Execution<'_>, report: &dyn Fn(Result<(), Reason>)) -> io::Error {
    let helper = helper(execution, report);
    let pointers = |strings: &[CString]| {
        let all = strings.iter().map(|string| string.as_ptr());
        all.chain(std::iter::once(ptr::null())).collect::<Vec<_>>()
    };
    let (arguments, environment) = (pointers(execution.arguments), pointers(execution.environment));
    // SAFETY: strings that end in a zero, in arrays that end in a null pointer.
    unsafe { libc::execve(execution.path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    let error = io::Error::last_os_error();
    if let Some(helper) = helper {
        let _ = pidfd_send_signal(helper, Signal::KILL);
    }
    error
}

/// Begins a helper and waits until it traces this process. `None`: it does not, and the program is executed as it is.
fn helper(execution: &Execution<'_>, report: &dyn Fn(Result<(), Reason>)) -> Option<OwnedFd> {
    let Ok((ready, tell)) = pipe_with(PipeFlags::CLOEXEC) else {
        report(Err(Reason::NotTraceable));
        return None;
    };
    // Where Yama is, only those may trace us that we name. Without it the call fails, and is not needed.
    let anybody = libc::c_ulong::MAX;
    // SAFETY: plain system calls.
    let (own, _) = unsafe { (libc::getpid(), libc::prctl(libc::PR_SET_PTRACER, anybody, 0, 0, 0)) };
    let mut orphan = Orphan { run: &mut || trace(own, execution, &tell, report) };
    let begun = orphan.begin();
    drop(tell);
    let mut pid = [0; 4];
    let said = begun.is_ok().then(|| rustix::io::read(&ready, &mut pid).ok()).flatten();
    // SAFETY: plain system call.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, 0, 0, 0, 0) };
    if begun.is_err() {
        report(Err(Reason::NotTraceable));
    }
    let pid =
        said.filter(|bytes| *bytes == pid.len()).and_then(|_| Pid::from_raw(i32::from_ne_bytes(pid)))?;
    pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// The helper's own life.
fn trace(pid: pid_t, execution: &Execution<'_>, tell: &OwnedFd, report: &dyn Fn(Result<(), Reason>)) {
    // What is meant for the program, as Ctrl-C is, must not end this process in the middle of its work.
    // SAFETY: plain system calls with a pointer to a local variable, which the first fills.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
    }
    let begun = look(execution).and_then(|program| Ok((Remote::seize(pid)?, program)));
    let (mut remote, program) = match begun {
        Ok(begun) => begun,
        Err(reason) => return report(Err(reason)),
    };
    if rustix::io::write(tell, &std::process::id().to_ne_bytes()).is_err() {
        return report(Err(Reason::Gone));
    }
    // Beside exec, which takes its time, too. When this process ends, what it traces goes on.
    let library = execution.library.map(Library::read).transpose();
    let (library, sites) =
        match library.and_then(|library| Ok((library, sites_of(&program, execution.cache)?))) {
            Ok(read) => read,
            Err(reason) => return report(Err(reason)),
        };
    loop {
        match remote.wait() {
            Stop::Exec => break,
            Stop::Signal(signal) => remote.go_on(signal),
            Stop::Group => remote.listen(),
            Stop::Interrupted | Stop::Call | Stop::Child => remote.go_on(0),
            Stop::Gone => return report(Err(Reason::Gone)),
        }
    }
    let parts = Parts { sites: &sites, counts: execution.counts, library: library.as_ref() };
    let done = inject(&mut remote, &program, &parts);
    report(done);
    remote.release();
}

fn look(execution: &Execution<'_>) -> Result<Program, Reason> {
    let path = OsStr::from_bytes(execution.program.to_bytes());
    Program::of(&File::open(path).map_err(|_| Reason::Unreadable)?)
}

pub(crate) fn sites_of(program: &Program, cache: Option<&Cache>) -> Result<Vec<Site>, Reason> {
    if let Some(known) = cache.and_then(|cache| cache.load(&program.identity)) {
        return Ok(known);
    }
    let found = sites::find(&program.image, &program.bytes)?;
    if let Some(cache) = cache {
        cache.store(&program.identity, &found);
    }
    Ok(found)
}

/// A process that is nobody's child: its parent ends at once, without a signal to ours.
struct Orphan<'a> {
    run: &'a mut dyn FnMut(),
}

impl Orphan<'_> {
    fn begin(&mut self) -> io::Result<()> {
        const STACK: usize = 256 << 10;
        let mut stack = vec![0u8; STACK];
        let top = stack.as_mut_ptr_range().end.map_addr(|address| address & !15);
        // SAFETY: the child has a stack of its own and shares our memory, and we sleep until it has ended.
        let child = unsafe {
            libc::clone(between, top.cast(), libc::CLONE_VM | libc::CLONE_VFORK, ptr::from_mut(self).cast())
        };
        if child == -1 {
            return Err(io::Error::last_os_error());
        }
        let mut status = 0;
        // SAFETY: plain system call with a pointer to a local variable.
        unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) };
        if status == 0 { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

/// Makes the orphan, and ends.
extern "C" fn between(orphan: *mut c_void) -> c_int {
    // SAFETY: fork by its number: libc's own would change what our parent, whose memory this is, believes of its thread.
    let forked = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if forked != 0 {
        return c_int::from(forked < 0);
    }
    // SAFETY: `begin` has given us this, and the memory is our own copy.
    let orphan = unsafe { &mut *orphan.cast::<Orphan<'_>>() };
    (orphan.run)();
    // SAFETY: plain system call. Nothing of our parent's is to be done a second time.
    unsafe { libc::_exit(0) }
}
