//! Control messages: what recvmsg tells beside bytes, and what sendmsg gives away.

use core::ffi::{c_int, c_uint};
use libc::{mmsghdr, msghdr};
use shunpike_core::table::{self, Conn, Entry};
use shunpike_core::wire::Reason;
use shunpike_core::{conn, sets, user};

use crate::this_libc::is_musl;

/// Most entries of a vector: UIO_MAXIOV.
pub const MOST_ENTRIES: usize = 1024;

/// The program's header of a message. In musl two of its lengths are half as wide as in the kernel, and what stands behind them is anything.
pub unsafe fn header(msg: *const msghdr) -> Option<msghdr> {
    // SAFETY: a C struct of pointers and integers, which need not be there.
    let mut header = unsafe { user::fetch(msg) }?;
    if is_musl() {
        header.msg_iovlen = header.msg_iovlen as u32 as usize;
        header.msg_controllen = header.msg_controllen as u32 as usize;
    }
    Some(header)
}

/// The control message of TCP_INQ, or none; put there as put_cmsg() does (net/core/scm.c).
pub unsafe fn tell_unread(conn: Conn, fd: c_int, header: &mut msghdr) {
    #[repr(C)]
    #[derive(Copy, Clone)]
    struct Message {
        about: libc::cmsghdr,
        unread: c_int,
    }
    let room = core::mem::replace(&mut header.msg_controllen, 0);
    let Some(unread) = conn::unread(conn, fd) else { return };
    // SAFETY: arithmetic.
    let (len, space) = unsafe { (libc::CMSG_LEN(4) as usize, libc::CMSG_SPACE(4) as usize) };
    let fits = room.min(len);
    if header.msg_control.is_null() || room < len {
        header.msg_flags |= libc::MSG_CTRUNC;
    }
    if header.msg_control.is_null() || room < size_of::<libc::cmsghdr>() {
        return;
    }
    let about = libc::cmsghdr { cmsg_len: fits, cmsg_level: libc::IPPROTO_TCP, cmsg_type: libc::TCP_CM_INQ };
    let message = Message { about, unread };
    // SAFETY: the program's room for control messages, of which no more than it said is written; it need not be there.
    if unsafe { user::copy(header.msg_control.cast(), (&raw const message).cast(), fits) }.is_ok() {
        header.msg_controllen = room.min(space);
    }
}

/// [`hand_over_rights`] for each of `count` messages.
pub unsafe fn hand_over_rights_of_all(vec: *const mmsghdr, count: c_uint) {
    for at in 0..count.min(MOST_ENTRIES as c_uint) as usize {
        // SAFETY: an address within the program's array, which need not be there.
        unsafe { hand_over_rights(&raw const (*vec.wrapping_add(at)).msg_hdr) };
    }
}

/// Connections and epoll sets among the descriptors of an SCM_RIGHTS message go to a program that may not be ours.
pub unsafe fn hand_over_rights(msg: *const msghdr) {
    if !table::any() {
        return;
    }
    // SAFETY: the program's, which need not be there.
    let Some(header) = (unsafe { header(msg) }) else { return };
    let size = header.msg_controllen;
    if header.msg_control.is_null() || size == 0 || !user::readable(header.msg_control.cast(), size) {
        return;
    }
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let is_musl = is_musl();
    let mut at = 0;
    while size - at >= HEADER {
        // SAFETY: within the program's control messages, which are there.
        let cmsg = unsafe { header.msg_control.byte_add(at).cast::<libc::cmsghdr>().read_unaligned() };
        // As in the header.
        let len = if is_musl { cmsg.cmsg_len as u32 as usize } else { cmsg.cmsg_len };
        // The kernel refuses a shorter one, and whatever comes with it.
        if len < HEADER {
            return;
        }
        let len = len.min(size - at);
        let bytes = len - HEADER;
        if (cmsg.cmsg_level, cmsg.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for i in 0..bytes / size_of::<c_int>() {
                // SAFETY: as above; x86-64 aligns what follows a header by 8, as it does the header.
                let fd = unsafe {
                    header.msg_control.byte_add(at + HEADER).cast::<c_int>().add(i).read_unaligned()
                };
                match table::look(fd) {
                    Entry::Conn(conn) => conn::hand_over(conn, fd, Reason::HandedOver),
                    Entry::Set(set) => sets::watch(set),
                    Entry::Socket => conn::give_socket(fd),
                    _ => {}
                }
            }
        }
        at = (at + len.next_multiple_of(align_of::<libc::cmsghdr>())).min(size);
    }
}
