//! What the libc of this process is, and has.

use core::ffi::c_int;
use core::sync::atomic::AtomicU8;

use shunpike_arch::weak_function;
use shunpike_shm::lock::Calls;

/// Whether the process's libc is musl: its dynamic loader's second stage has a name that no other libc has. (gcompat gives programs
/// many of glibc's names beside.)
pub fn is_musl() -> bool {
    weak_function!("__dls3": unsafe extern "C" fn()).is_some()
}

/// The CPU that the calling thread runs on.
pub fn cpu() -> u32 {
    // SAFETY: no preconditions; -1 where it cannot be said, which is a number like any other.
    unsafe { libc::sched_getcpu() }.cast_unsigned()
}

/// getauxval(3)
pub fn auxiliary(kind: u64) -> u64 {
    // SAFETY: no pointers.
    unsafe { libc::getauxval(kind) }
}

/// Not 0 while this thread is the only one, as far as libc knows: glibc's variable of this name (sys/single_threaded.h; from 2.32 on).
pub fn alone() -> Option<&'static AtomicU8> {
    let at = weak_function!("__libc_single_threaded": unsafe extern "C" fn())? as *const AtomicU8;
    // SAFETY: the name is a variable's, of one byte, which libc alone writes.
    Some(unsafe { &*at })
}

/// Its calls for mutexes. `None`: a process without them (glibc before 2.34, without its library of threads), or one with musl.
pub fn calls() -> Option<Calls> {
    type Plain = unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> c_int;
    type Timed = unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::timespec) -> c_int;
    if is_musl() {
        return None;
    }
    Some(Calls {
        destroy: weak_function!("pthread_mutex_destroy": Plain)?,
        lock: weak_function!("pthread_mutex_lock": Plain)?,
        timedlock: weak_function!("pthread_mutex_timedlock": Timed)?,
        trylock: weak_function!("pthread_mutex_trylock": Plain)?,
        unlock: weak_function!("pthread_mutex_unlock": Plain)?,
        consistent: weak_function!("pthread_mutex_consistent": Plain)?,
    })
}

/// musl shows a thread's list to the kernel late. It is made to: it takes and releases a mutex that may outlive its holder. Where it has no such mutex
/// there is no list of its own either.
pub fn show_list() {
    macro_rules! function {
        ($name:literal($($arg:ty),*)) => {
            match weak_function!($name: unsafe extern "C" fn($($arg),*) -> i32) {
                Some(function) => function,
                None => return,
            }
        };
    }
    type Attr = *mut libc::pthread_mutexattr_t;
    type Plain = *mut libc::pthread_mutex_t;
    let init_attr = function!("pthread_mutexattr_init"(Attr));
    let set_shared = function!("pthread_mutexattr_setpshared"(Attr, i32));
    let set_robust = function!("pthread_mutexattr_setrobust"(Attr, i32));
    let init = function!("pthread_mutex_init"(Plain, *const libc::pthread_mutexattr_t));
    let lock = function!("pthread_mutex_lock"(Plain));
    let unlock = function!("pthread_mutex_unlock"(Plain));
    let mut attr = core::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let mut mutex = core::mem::MaybeUninit::<libc::pthread_mutex_t>::uninit();
    // SAFETY: libc's functions of these names and types; both objects are initialised first and live through the calls.
    unsafe {
        init_attr(attr.as_mut_ptr());
        set_shared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
        set_robust(attr.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
        init(mutex.as_mut_ptr(), attr.as_ptr());
        if lock(mutex.as_mut_ptr()) == 0 {
            unlock(mutex.as_mut_ptr());
        }
    }
}
