//! What is behind a hook: the system call of that name.

use core::ffi::{c_int, c_long};

use crate::errno::as_libcs;
use crate::gate;

/// As in preload's.
pub type Arguments = [usize; 6];

/// syscall(2).
///
/// # Safety
/// As the call itself.
pub unsafe fn by_number(number: c_long, arguments: Arguments) -> c_long {
    // SAFETY: the caller's word.
    as_libcs(unsafe { gate::call(number, arguments) }) as c_long
}

/// The call of a libc's function of this name, whose arguments are the call's, with others behind them that are 0. -1: there is none.
pub const fn number(name: &str) -> c_long {
    const NAMES: [(&str, c_long); 39] = [
        ("read", libc::SYS_read),
        ("write", libc::SYS_write),
        ("readv", libc::SYS_readv),
        ("writev", libc::SYS_writev),
        ("preadv2", libc::SYS_preadv2),
        ("pwritev2", libc::SYS_pwritev2),
        ("recv", libc::SYS_recvfrom),
        ("recvfrom", libc::SYS_recvfrom),
        ("recvmsg", libc::SYS_recvmsg),
        ("recvmmsg", libc::SYS_recvmmsg),
        ("send", libc::SYS_sendto),
        ("sendto", libc::SYS_sendto),
        ("sendmsg", libc::SYS_sendmsg),
        ("sendmmsg", libc::SYS_sendmmsg),
        ("sendfile", libc::SYS_sendfile),
        ("splice", libc::SYS_splice),
        ("socket", libc::SYS_socket),
        ("connect", libc::SYS_connect),
        ("listen", libc::SYS_listen),
        ("accept", libc::SYS_accept),
        ("accept4", libc::SYS_accept4),
        ("shutdown", libc::SYS_shutdown),
        ("close", libc::SYS_close),
        ("close_range", libc::SYS_close_range),
        ("dup", libc::SYS_dup),
        ("dup2", libc::SYS_dup2),
        ("dup3", libc::SYS_dup3),
        ("fcntl", libc::SYS_fcntl),
        ("ioctl", libc::SYS_ioctl),
        ("setsockopt", libc::SYS_setsockopt),
        ("getsockopt", libc::SYS_getsockopt),
        ("poll", libc::SYS_poll),
        ("select", libc::SYS_select),
        ("epoll_create", libc::SYS_epoll_create),
        ("epoll_create1", libc::SYS_epoll_create1),
        ("epoll_ctl", libc::SYS_epoll_ctl),
        ("epoll_wait", libc::SYS_epoll_wait),
        ("mmap", libc::SYS_mmap),
        ("munmap", libc::SYS_munmap),
    ];
    let mut at = 0;
    while at < NAMES.len() {
        if is_same(NAMES[at].0.as_bytes(), name.as_bytes()) {
            return NAMES[at].1;
        }
        at += 1;
    }
    -1
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// What a hook returns, made of a call's result.
pub trait Returned {
    /// It.
    fn of(result: c_long) -> Self;
}

impl Returned for c_int {
    fn of(result: c_long) -> Self {
        result as Self
    }
}

impl Returned for isize {
    fn of(result: c_long) -> Self {
        result as Self
    }
}

impl Returned for () {
    fn of(_: c_long) -> Self {}
}

impl<T> Returned for *mut T {
    fn of(result: c_long) -> Self {
        core::ptr::with_exposed_provenance_mut(result as usize)
    }
}

/// What preload looks up beforehand.
pub struct Behind;

impl Behind {
    /// There is nothing to look up.
    #[allow(dead_code, reason = "preload's start-up asks")]
    pub fn address(&self) {}
}

/// Preload's hooks, as functions of their names; `covered::NAME`: the system call.
macro_rules! hooks {
    ($($(#[doc = $doc:expr])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block)*) => {
        #[allow(non_upper_case_globals, dead_code, reason = "libc's own names")]
        pub(crate) mod behind {
            $(pub(crate) static $name: $crate::real::Behind = $crate::real::Behind;)*
        }
        #[allow(clippy::too_many_arguments, dead_code, non_snake_case, reason = "libc's own names and signatures; not all are asked for")]
        pub(crate) mod covered {
            use super::*;
            $(
                #[inline(always)]
                pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                    const NUMBER: core::ffi::c_long = $crate::real::number(stringify!($name));
                    let mut arguments = [0; 6];
                    for (to, one) in arguments.iter_mut().zip([$($arg as usize),*]) {
                        *to = one;
                    }
                    if matches!(NUMBER, libc::SYS_preadv2 | libc::SYS_pwritev2) {
                        // The kernel's offset has two parts, and needs one.
                        arguments[5] = core::mem::take(&mut arguments[4]);
                    }
                    // SAFETY: the program's arguments, handed on unchanged. Without a number the kernel refuses.
                    $crate::real::Returned::of(unsafe { $crate::real::by_number(NUMBER, arguments) })
                }
            )*
        }
        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// As the system call of that name.
            #[allow(clippy::too_many_arguments, dead_code, non_snake_case, reason = "libc's own; not all are system calls")]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: what the program promises the kernel, it promises us.
                unsafe { $body }
            }
        )*
    };
}

/// Preload's looks before a function of libc's: there is none to hook.
macro_rules! stubs {
    ($look:ident: $($name:ident,)*) => {};
}
