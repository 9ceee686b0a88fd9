//! Start-up and the process's turns: constructor, fork, exit, thread end.

use core::ffi::{c_char, c_int, c_void};

use shunpike_arch::weak_function;
use shunpike_core::{conn, enabled, host, life, process, session, user};

use crate::host::HOST;
use crate::this_libc::is_musl;
use crate::vforked::foreign_process;
use crate::{cancel, children, memory, readiness, removed, thread};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = start;

/// The system-wide broker's socket, where a list says who is under Shunpike.
const SYSTEM: &[u8] = b"/run/shunpike/broker.sock";

/// In this order; each line says why there.
extern "C" fn start() {
    // Before anything else: what a caller of fewer rights says of brokers goes to no child either.
    forget_the_callers_words();
    // Also where the program is off: what it executes is told to load us all the same.
    removed::note(variable(c"LD_PRELOAD").unwrap_or(b""));
    // 0. In a libc that is neither glibc nor musl all hooks hand on: what a lane needs of it is not known.
    let Some(at_fork) = AtFork::of_libc() else { return };
    // Core is asked from here on, and asks its host: of the rights that the program has first of all. Signals are kept back in critical
    // sections before the first of them exists.
    host::start(&HOST);
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
    children::note(variable(c"SHUNPIKE_INJECT").unwrap_or(b""));
    // 2. Faults of copies are answered from the first copy on. A thread that sleeps for a lane can be cancelled as in libc's own wait.
    user::start();
    readiness::find_waits();
    // 3. fork() must find the table and the locks in order.
    let ours = (&raw const __dso_handle).cast_mut();
    at_fork.register(ours);
    // 4. Threads give back their descriptors.
    thread::start();
    // 5. At exit, after the program's own handlers: registered first, run last.
    // SAFETY: as above.
    unsafe {
        __cxa_atexit(exit_handler, core::ptr::null_mut(), ours);
        if let Some(at_quick_exit) = weak_function!("__cxa_at_quick_exit": CxaAtQuickExit) {
            at_quick_exit(exit_handler, ours);
        } else if let Some(at_quick_exit) = weak_function!("at_quick_exit": AtQuickExit) {
            at_quick_exit(quick_exit_handler);
        }
    }
    // 6. So can a thread that need not sleep.
    cancel::can_be_cancelled();
    // 7. What of its memory is there for good.
    memory::start();
    // 8. From here on connections are watched.
    life::start(life::Options {
        eager: variable(c"SHUNPIKE_EAGER").is_some_and(|v| v == b"1"),
        profile: variable(c"SHUNPIKE_PROFILE").and_then(process::profile_named),
    });
}

// SAFETY: the Itanium C++ ABI's function and variable.
unsafe extern "C" {
    /// atexit(3), which glibc has only in what is linked to a program.
    fn __cxa_atexit(
        handler: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        library: *mut c_void,
    ) -> c_int;
    /// Names this library.
    static __dso_handle: c_void;
}

/// at_quick_exit(3), which glibc has only in what is linked to a program: there it is this one.
type CxaAtQuickExit = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void) -> c_int;
type AtQuickExit = unsafe extern "C" fn(extern "C" fn()) -> c_int;

type Handler = Option<extern "C" fn()>;

/// libc's function that registers handlers of fork.
enum AtFork {
    /// `__register_atfork`: glibc has pthread_atfork(3) only in what is linked to a program.
    Glibc(unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int),
    /// pthread_atfork(3)
    Musl(unsafe extern "C" fn(Handler, Handler, Handler) -> c_int),
}

impl AtFork {
    fn of_libc() -> Option<Self> {
        // musl first: gcompat has glibc's name beside it.
        if is_musl() {
            weak_function!("pthread_atfork": unsafe extern "C" fn(Handler, Handler, Handler) -> c_int)
                .map(Self::Musl)
        } else {
            weak_function!("__register_atfork": unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int)
                .map(Self::Glibc)
        }
    }

    /// Registers ours, for the library that `library` names.
    fn register(self, library: *mut c_void) {
        let (before, parent, child): (Handler, Handler, Handler) =
            (Some(before_fork), Some(in_parent), Some(in_child));
        // SAFETY: handlers that live as long as the process.
        unsafe {
            match self {
                Self::Glibc(register) => register(before, parent, child, library),
                Self::Musl(register) => register(before, parent, child),
            };
        }
    }
}

/// A variable of the environment, without std (whose lock and allocation are not ours to take here). None in a program that has more
/// rights than who started it (setuid, setgid, file capabilities; the library is in it by /etc/ld.so.preload): the broker that it names
/// would be its caller's choice.
fn variable(name: &core::ffi::CStr) -> Option<&'static [u8]> {
    // SAFETY: at start-up no other thread changes the environment; the value is copied or compared at once.
    let value = unsafe {
        weak_function!("secure_getenv": unsafe extern "C" fn(*const c_char) -> *const c_char)?(name.as_ptr())
    };
    // SAFETY: secure_getenv returns null or a NUL-terminated string.
    (!value.is_null()).then(|| unsafe { core::ffi::CStr::from_ptr(value) }.to_bytes())
}

/// Takes our variables away where the program has more rights than who started it, as the loader does with LD_PRELOAD there: a program
/// that it starts with all of its rights does not know any more whose they were.
fn forget_the_callers_words() {
    // A loader may have loaded us into a program without any libc (a Go PIE).
    if weak_function!("secure_getenv": unsafe extern "C" fn(*const c_char) -> *const c_char).is_none() {
        return;
    }
    // SAFETY: no pointers.
    if unsafe { libc::getauxval(libc::AT_SECURE) } == 0 {
        return;
    }
    for name in
        [c"SHUNPIKE_SOCKET", c"SHUNPIKE_PREFER", c"SHUNPIKE_EAGER", c"SHUNPIKE_PROFILE", c"SHUNPIKE_INJECT"]
    {
        // SAFETY: a NUL-terminated name; at start-up no other thread uses the environment.
        unsafe { libc::unsetenv(name.as_ptr()) };
    }
}

extern "C" fn before_fork() {
    life::before_fork();
}

extern "C" fn in_parent() {
    life::after_fork_in_parent();
}

extern "C" fn in_child() {
    life::after_fork_in_child();
}

extern "C" fn exit_handler(_: *mut c_void) {
    at_exit();
}

extern "C" fn quick_exit_handler() {
    at_exit();
}

/// What a process gives back when it ends by itself.
pub fn at_exit() {
    if process::enabled() && !foreign_process() {
        conn::at_exit();
    }
}
