//! exec, spawn and fork: what another program gets, it gets as plain TCP. system() and popen() start their
//! children inside libc; what those inherit they may use. None is told to load a library that is gone ([`removed`]).

use core::ffi::{c_char, c_int, c_long, c_void};

use libc::FILE;
use shunpike_core::wire::Reason;
use shunpike_core::{conn, life, process, table, tls, user};

use crate::real::{Arguments, by_number};
use crate::{children, removed, start, vforked};

/// Hands over what survives an exec.
fn before_exec() {
    if process::enabled() {
        conn::before_exec();
    }
}

/// Before a path, or a name that is searched for, is executed with an environment. Last of all what is to be near to the call.
fn before_exec_with(environment: usize, reach: impl FnOnce(usize)) {
    before_exec();
    removed::before_exec(core::ptr::with_exposed_provenance(environment));
    reach(environment);
}

/// Before a path is executed with the environment of this program. (That of execle lies where a look does not see it.)
fn before_exec_with_environ([path, ..]: Arguments) {
    before_exec_with(removed::environ(), |environ| {
        children::before_exec(libc::AT_FDCWD, path, 0, environ);
    });
}

fn before_search_with_environ([name, ..]: Arguments) {
    before_exec_with(removed::environ(), |environ| children::before_exec_of(name, environ, environ));
}

fn before_search_with_third([name, _, environment, ..]: Arguments) {
    before_exec_with(environment, |environment| {
        children::before_exec_of(name, removed::environ(), environment);
    });
}

pub fn before_exec_with_third([path, _, environment, ..]: Arguments) {
    before_exec_with(environment, |environment| {
        children::before_exec(libc::AT_FDCWD, path, 0, environment);
    });
}

fn before_exec_of_descriptor([fd, _, environment, ..]: Arguments) {
    before_exec_with(environment, |environment| {
        children::before_exec(fd as c_int, c"".as_ptr() as usize, libc::AT_EMPTY_PATH, environment);
    });
}

pub fn before_exec_with_fourth([directory, path, _, environment, flags, _]: Arguments) {
    before_exec_with(environment, |environment| {
        children::before_exec(directory as c_int, path, flags as c_int, environment);
    });
}

/// A shell that `start` begins inside libc: it, and what it begins, may use all that it inherits.
fn shell<T>(start: impl FnOnce() -> T) -> T {
    removed::before_exec(core::ptr::with_exposed_provenance(removed::environ()));
    let child = process::enabled().then(conn::before_shell);
    children::before_spawn(c"/bin/sh".as_ptr() as usize, removed::environ());
    let result = start();
    if child.is_some() {
        conn::spawned(child);
    }
    result
}

/// Whether the child of a clone() is as vfork()'s: its parent waits, in whose memory it runs, with descriptors of its own.
fn is_vfork(flags: usize) -> bool {
    const VFORK: usize = (libc::CLONE_VM | libc::CLONE_VFORK) as usize;
    const OTHERS: usize = (libc::CLONE_FILES | libc::CLONE_SETTLS) as usize;
    flags & (VFORK | OTHERS) == VFORK && process::enabled()
}

/// Before vfork(): the child runs on our memory, thread state included, until it execs.
fn before_vfork(_: Arguments) {
    // The child must not be the first to enter a critical section: this thread's would have its number.
    drop(tls::critical());
    vforked::begins();
}

stubs! { before_vfork:
    vfork,
}

stubs! { before_exec_with_environ:
    execv, execl, execle,
}

stubs! { before_search_with_environ:
    execvp, execlp,
}

stubs! { before_exec_with_third:
    execve,
}

stubs! { before_search_with_third:
    execvpe,
}

stubs! { before_exec_of_descriptor:
    fexecve,
}

stubs! { before_exec_with_fourth:
    execveat,
}

/// In both processes after a fork: the parent notes who the child is.
fn forked(pid: c_int) -> c_int {
    if pid != 0 && process::enabled() {
        process::after_fork(u32::try_from(pid).ok());
    }
    pid
}

/// Flags of clone() whose child is no fork: it shares memory, descriptors or its parent's time, or has thread-local variables of its own.
const OTHERS: usize =
    (libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK | libc::CLONE_SETTLS) as u32 as usize;

fn is_fork(flags: usize) -> bool {
    flags & OTHERS == 0 && process::enabled() && !vforked::foreign_process()
}

/// What a child of clone(2) runs.
#[derive(Clone, Copy)]
struct Begin {
    run: extern "C-unwind" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

/// In that child, before what it is to run.
extern "C-unwind" fn begin(child: *mut c_void) -> c_int {
    life::after_fork_in_child();
    // SAFETY: its copy of what the caller of clone() has on the stack, where nothing else of the child is.
    let Begin { run, argument } = unsafe { *child.cast::<Begin>() };
    run(argument)
}

/// Whether it is the clone(2) or clone3(2) of a child that is a fork, and comes back from the call as its parent does.
pub fn clones(number: c_long, [first, second, ..]: Arguments) -> bool {
    /// `struct clone_args` (linux/sched.h), as far as it always was.
    const WORDS: usize = 8;
    const STACK: usize = 5;
    match number {
        libc::SYS_clone => second == 0 && is_fork(first),
        libc::SYS_clone3 if second >= WORDS * size_of::<u64>() => {
            // SAFETY: the program's, which need not be there.
            let words = unsafe { user::fetch(first as *const [usize; WORDS]) };
            words.is_some_and(|words| words[STACK] == 0 && is_fork(words[0]))
        }
        _ => false,
    }
}

/// syscall(2) of that.
pub extern "C" fn clone_call(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    life::before_fork();
    // SAFETY: the program's arguments, handed on unchanged.
    let pid = unsafe { by_number(number, [a, b, c, d, e, f]) };
    if pid == 0 {
        life::after_fork_in_child()
    } else {
        life::after_fork_in_parent()
    }
    forked(pid as c_int);
    pid
}

/// posix_spawn() by `spawn`, to which the child's number matters: what the child inherits is its until it has let go of it.
unsafe fn spawned(
    pid: *mut libc::pid_t,
    actions: *const c_void,
    environment: *const *mut c_char,
    reach: impl FnOnce(usize),
    spawn: impl FnOnce(*mut libc::pid_t) -> c_int,
) -> c_int {
    removed::before_exec(environment.cast());
    if !process::enabled() {
        reach(environment.expose_provenance());
        return spawn(pid);
    }
    conn::before_spawn(actions.expose_provenance());
    let mut child = 0;
    reach(environment.expose_provenance());
    let rc = spawn(&raw mut child);
    conn::spawned((rc == 0).then_some(child as u32));
    if rc == 0 && !pid.is_null() {
        // SAFETY: the program's, where libc would have written.
        unsafe { *pid = child };
    }
    rc
}

hooks! {
    /// fork(2); the handlers that it runs, also when libc calls it, do the rest
    fn fork() -> c_int {
        // Looked up once for all children, rather than by each.
        behind::_exit.address();
        forked(covered::fork())
    }
    /// fork(2), glibc's internal name
    fn __fork() -> c_int { fork() }
    /// _Fork(3): fork without the handlers that fork() runs
    fn _Fork() -> c_int {
        life::before_fork();
        let pid = covered::_Fork();
        if pid == 0 { life::after_fork_in_child(); } else { life::after_fork_in_parent(); }
        forked(pid)
    }
    /// clone(2); what the program has not given is what happened to be there
    fn clone(
        run: Option<extern "C-unwind" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent: *mut c_void, tls: *mut c_void, child: *mut c_void,
    ) -> c_int {
        let Some(run) = run.filter(|_| !stack.is_null() && is_fork(flags as u32 as usize)) else {
            if is_vfork(flags as u32 as usize) {
                before_vfork([0; 6]);
            }
            return covered::clone(run, stack, flags, argument, parent, tls, child);
        };
        let mut begins = Begin { run, argument };
        life::before_fork();
        let pid = covered::clone(Some(begin), stack, flags, (&raw mut begins).cast(), parent, tls, child);
        life::after_fork_in_parent();
        forked(pid)
    }
    /// posix_spawn(3)
    fn posix_spawn(
        pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attr: *const c_void,
        argv: *const *mut c_char, envp: *const *mut c_char,
    ) -> c_int {
        // Looked up before: what is done from the look on is known to the helper.
        behind::posix_spawn.address();
        let reach = |environment| children::before_spawn(path.expose_provenance(), environment);
        spawned(pid, actions, envp, reach, |pid| covered::posix_spawn(pid, path, actions, attr, argv, envp))
    }
    /// posix_spawnp(3)
    fn posix_spawnp(
        pid: *mut libc::pid_t, file: *const c_char, actions: *const c_void, attr: *const c_void,
        argv: *const *mut c_char, envp: *const *mut c_char,
    ) -> c_int {
        behind::posix_spawnp.address();
        let reach = |environment| children::before_spawn_of(file.expose_provenance(), removed::environ(), environment);
        spawned(pid, actions, envp, reach, |pid| covered::posix_spawnp(pid, file, actions, attr, argv, envp))
    }
    /// posix_spawn_file_actions_init(3)
    fn posix_spawn_file_actions_init(actions: *mut c_void) -> c_int {
        conn::actions::none_yet(actions.expose_provenance());
        covered::posix_spawn_file_actions_init(actions)
    }
    /// posix_spawn_file_actions_destroy(3)
    fn posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int {
        conn::actions::none_yet(actions.expose_provenance());
        covered::posix_spawn_file_actions_destroy(actions)
    }
    /// posix_spawn_file_actions_adddup2(3): the program to be spawned gets this descriptor, close-on-exec or not
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
        if let Some(conn) = table::conn(fd) {
            conn::hand_over(conn, fd, Reason::HandedOver);
        }
        // They may be used later, and again: for what has this number then.
        conn::actions::give(actions.expose_provenance(), fd);
        covered::posix_spawn_file_actions_adddup2(actions, fd, new)
    }
    /// system(3)
    fn system(command: *const c_char) -> c_int {
        behind::system.address();
        // Null asks whether there is a shell.
        if command.is_null() { covered::system(command) } else { shell(|| covered::system(command)) }
    }
    /// popen(3)
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        behind::popen.address();
        shell(|| covered::popen(command, mode))
    }
    /// _Exit(3)
    fn _Exit(status: c_int) -> ! {
        start::at_exit();
        covered::_Exit(status)
    }
    /// _exit(2): connections shared with other processes are theirs alone now
    fn _exit(status: c_int) -> ! {
        start::at_exit();
        covered::_exit(status)
    }
}
