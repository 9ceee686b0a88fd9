//! Sockets that are not connected, and have several names: duplicates, and those in other processes. Who reads by another name than the one
//! that connect() is given reads TCP alone, so such a connection has no lane.

use core::sync::atomic::Ordering;

use crate::table::{self, Entry};
use crate::{options, sys};

/// Another process gets the socket that is at `fd`, if one is. It may set options, which connections inherit.
pub fn give_socket(fd: i32) {
    if matches!(table::look(fd), Entry::Socket) {
        options::ask_the_kernel();
    }
    table::name_socket(fd, true);
}

/// A child of fork() gets all of them.
pub fn give_sockets() {
    for (fd, _) in table::all() {
        give_socket(fd);
    }
}

/// Whether the socket at `fd`, which is about to be connected, has another name. One that we did not see made may have.
#[inline(always)]
pub fn has_other_names(fd: i32) -> bool {
    !table::is_unmarked_socket(fd) && may_have_others(fd)
}

#[cold]
fn may_have_others(fd: i32) -> bool {
    let (is_duplicated, is_given) = table::socket_names(fd);
    is_given || table::is_none(fd) || is_duplicated && is_elsewhere(fd)
}

/// The connection at `fd` was made by a socket with another name. It has that still where it is dissolved, and the socket connected anew.
pub fn is_named(fd: i32) {
    if let Some(conn) = table::conn(fd) {
        conn.block.dups.store(1, Ordering::Relaxed);
    }
}

/// Whether it is at another number, too. The one that it was made with may be closed by now.
#[cold]
fn is_elsewhere(fd: i32) -> bool {
    let cookie = sys::cookie(fd);
    let is_it = |other| other != fd && table::socket_names(other).0 && sys::cookie(other) == cookie;
    table::all().any(|(other, _)| is_it(other))
}
