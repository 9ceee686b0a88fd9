//! Start-up and the process's turns: constructor, fork, exit, thread end.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use shunpike_core::{conn, enabled, process, session, sys, tls, user, wait};

use crate::{memory, readiness, signals};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = start;

/// The system-wide broker's socket, where a list says who is under Shunpike.
const SYSTEM: &[u8] = b"/run/shunpike/broker.sock";

static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// In this order; each line says why there.
extern "C" fn start() {
    // 1. Without a broker's path, and without a list that has this program on, nothing is watched: the library was loaded by accident.
    // An empty path is a word against the list.
    match variable(c"SHUNPIKE_SOCKET") {
        Some(b"") => return,
        Some(path) => session::configure(path, variable(c"SHUNPIKE_PREFER").unwrap_or(b"")),
        None => {
            if !enabled::by_list() {
                return;
            }
            session::configure(SYSTEM, b"");
        }
    }
    // 2. Signals are kept back in critical sections before the first of them exists; faults of copies, from the
    // first copy on.
    tls::on_deferred(signals::deliver);
    user::on_first_use(signals::guard);
    // 3. fork() must find the table and the locks in order.
    // SAFETY: handlers that live as long as the process.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    // 4. Threads give back their descriptors.
    let mut key = 0;
    // SAFETY: a destructor that lives as long as the process.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 {
        KEY.store(key, Ordering::Release);
        wait::on_first_sleep(mark_thread);
    }
    // 5. At exit, after the program's own handlers: registered first, run last.
    // SAFETY: as above.
    unsafe {
        libc::atexit(exit_handler);
        at_quick_exit(exit_handler);
    }
    // 6. A thread that sleeps for a lane can be cancelled as in libc's own wait.
    sys::sleep_by(readiness::waits());
    // 7. What of its memory is there for good.
    memory::start();
    // 8. From here on connections are watched.
    process::start(process::Options {
        eager: variable(c"SHUNPIKE_EAGER").is_some_and(|v| v == b"1"),
        profile: variable(c"SHUNPIKE_PROFILE").and_then(process::profile_named),
    });
}

// SAFETY: glibc's functions have these signatures (stdlib.h).
unsafe extern "C" {
    /// secure_getenv(3)
    fn secure_getenv(name: *const core::ffi::c_char) -> *const core::ffi::c_char;
    /// at_quick_exit(3)
    fn at_quick_exit(handler: extern "C" fn()) -> core::ffi::c_int;
}

/// A variable of the environment, without std (whose lock and allocation are not ours to take here). None in a program that has more
/// rights than who started it (setuid, setgid, file capabilities; the library is in it by /etc/ld.so.preload): the broker that it names
/// would be its caller's choice.
fn variable(name: &core::ffi::CStr) -> Option<&'static [u8]> {
    // SAFETY: at start-up no other thread changes the environment; the value is copied or compared at once.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: secure_getenv returns null or a NUL-terminated string.
    (!value.is_null()).then(|| unsafe { core::ffi::CStr::from_ptr(value) }.to_bytes())
}

extern "C" fn before_fork() {
    process::before_fork();
}

extern "C" fn in_parent() {
    process::after_fork_in_parent();
}

extern "C" fn in_child() {
    process::after_fork_in_child();
}

extern "C" fn exit_handler() {
    at_exit();
}

/// What a process gives back when it ends by itself.
pub fn at_exit() {
    if process::enabled() && !foreign_process() {
        conn::at_exit();
    }
}

/// A thread has something to give back: have its destructor run.
fn mark_thread() {
    // SAFETY: our key; any non-null value makes the destructor run.
    unsafe { libc::pthread_setspecific(KEY.load(Ordering::Acquire), core::ptr::without_provenance(1)) };
}

extern "C" fn thread_ends(_: *mut c_void) {
    wait::thread_ends();
}

/// Whether this is a vfork child, which shares our memory but has descriptors of its own: what it closes or
/// duplicates is not ours. (A forked child has been through `in_child`.) Costs a load on a thread that has not
/// called vfork since it last asked.
pub fn foreign_process() -> bool {
    let vforked = &tls::thread().vforked;
    if vforked.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let foreign = process::enabled() && process::pid() != shunpike_core::sys::pid();
    if !foreign {
        // The parent again.
        vforked.store(0, Ordering::Relaxed);
    }
    foreign
}
