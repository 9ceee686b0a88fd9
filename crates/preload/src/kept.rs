//! An error that recvmmsg(2) meets behind messages that it has read. The kernel keeps it in the socket, whose next call gets it
//! (do_recvmmsg, net/socket.c); nobody but the kernel can put it there, so that the next call that finds the end gets it from here.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use shunpike_core::table::Conn;

/// Keeps `errno` for the next call, whichever process makes it.
#[cold]
pub fn keep(conn: Conn, errno: c_int) {
    conn.block.kept.store(errno as u16, Ordering::Relaxed);
}

/// A read has found the end: what was kept of the connection, once.
#[inline]
pub fn take(conn: Conn) -> Option<c_int> {
    let kept = &conn.block.kept;
    if kept.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // Another thread may have taken it.
    Some(kept.swap(0, Ordering::Relaxed).into()).filter(|&errno| errno != 0)
}
