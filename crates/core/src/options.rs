//! Options that keep a connection on TCP, or that a lane must know of ([`surface`] says which).
//!
//! Set on a watched connection they take it back. Set on another socket (before connect(), on a listening socket or a duplicate, or by
//! whoever made the socket) they are found at the nomination, as the kernel knows what was inherited: it is asked then, but only in a
//! process that has seen such a socket.

use core::sync::atomic::{AtomicBool, Ordering};

use shunpike_shm::arena::Block;
use shunpike_wire::Reason;

use crate::surface::{self, Unset};
use crate::{sys, table};

/// There may be sockets in this process with options that bar a lane.
static MAY_BAR: AtomicBool = AtomicBool::new(false);

/// A socket that was made elsewhere, is treated by ways that we do not follow, or is a child's, too: from now on the kernel is asked.
pub fn ask_the_kernel() {
    MAY_BAR.store(true, Ordering::Relaxed);
}

/// setsockopt(TCP_INQ) has succeeded, or may be about to.
pub fn unread_told(fd: i32) {
    if let Some(conn) = table::conn(fd) {
        conn.block.tells_unread.store(1, Ordering::Relaxed);
    } else {
        // Connections inherit it.
        ask_the_kernel();
    }
}

/// Whether the program wants the control message of TCP_INQ.
pub(crate) fn tells(fd: i32) -> bool {
    sys::option::<i32>(fd, libc::IPPROTO_TCP, libc::TCP_INQ).is_ok_and(|on| on != 0)
}

/// Why the connection `block` at `fd` must not have a lane, by its socket's options.
pub(crate) fn barred(block: &Block, fd: i32) -> Option<Reason> {
    if !MAY_BAR.load(Ordering::Relaxed) {
        return None;
    }
    if tells(fd) {
        block.tells_unread.store(1, Ordering::Relaxed);
    }
    let raises_signals = || {
        rustix::fs::fcntl_getfl(sys::borrowed(fd)).is_ok_and(|flags| flags.bits() & libc::O_ASYNC as u32 != 0)
    };
    let is_barring = |(level, name, unset)| is_in_force(fd, level, name, unset);
    (surface::barring().any(is_barring) || raises_signals()).then_some(Reason::OptionUnsupported)
}

/// Whether the option has a value that does something.
pub(crate) fn is_in_force(fd: i32, level: i32, name: i32, unset: Unset) -> bool {
    match unset {
        Unset::UpTo(value) => sys::number_option(fd, level, name).is_ok_and(|now| now > value),
        // The length of a filter; of an eBPF program the kernel says nothing but EACCES.
        Unset::NoFilter => match sys::filter_len(fd) {
            Ok(len) => len != 0,
            Err(errno) => errno == rustix::io::Errno::ACCESS,
        },
    }
}
