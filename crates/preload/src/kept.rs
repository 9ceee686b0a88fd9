//! An error that recvmmsg(2) meets behind messages that it has read. The kernel keeps it in the socket, whose next call gets it
//! (do_recvmmsg, net/socket.c); nobody but the kernel can put it there, so that the next call that finds the end gets it from here.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use shunpike_core::mutex::Mutex;
use shunpike_core::table::Conn;

/// Such errors are rare, and soon asked for: who is not the last of so many gets the end of the stream only.
static KEPT: Mutex<[Option<(Conn, c_int)>; 8]> = Mutex::new([None; 8]);
/// Whether there may be one.
static ANY: AtomicBool = AtomicBool::new(false);

/// Keeps `errno` for the next call.
#[cold]
pub fn keep(conn: Conn, errno: c_int) {
    let mut kept = KEPT.lock();
    kept.rotate_right(1);
    kept[0] = Some((conn, errno));
    ANY.store(true, Ordering::Relaxed);
}

/// A read has found the end: what was kept of the connection, once.
#[inline]
pub fn take(conn: Conn) -> Option<c_int> {
    if ANY.load(Ordering::Relaxed) { look(conn) } else { None }
}

#[cold]
fn look(conn: Conn) -> Option<c_int> {
    let mut kept = KEPT.lock();
    let errno =
        kept.iter_mut().find(|one| one.is_some_and(|(of, _)| of == conn))?.take().map(|(_, errno)| errno);
    ANY.store(kept.iter().any(Option::is_some), Ordering::Relaxed);
    errno
}
