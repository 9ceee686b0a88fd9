//! Lifecycle: sockets made, connected, accepted, named again, and closed; options that matter to a lane.

use core::ffi::{c_int, c_uint, c_ulong, c_void};
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use libc::{sockaddr, socklen_t};
use shunpike_core::host::is_alone;
use shunpike_core::surface::{self, Does};
use shunpike_core::table::{self, Conn, Entry};
use shunpike_core::wire::Reason;
use shunpike_core::{
    call, conn, cork, eager, keepalive, life, options, process, rx, state, sys, tls, user, zerocopy,
};

use crate::errno::{errno, set_errno};
use crate::streams::duplicated;
use crate::vforked::foreign_process;

/// UFFDIO_REGISTER of include/uapi/linux/userfaultfd.h.
const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;

/// Whether our own descriptor would be touched: to the program it does not exist.
#[inline(always)]
fn internal(fd: c_int) -> bool {
    !table::is_none(fd) && matches!(table::look(fd), Entry::Internal)
}

fn refuse(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// SO_PROTOCOL, as the kernel says.
fn protocol(fd: c_int) -> Option<c_int> {
    sys::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL).ok()
}

/// Whether `fd` is a TCP socket, asked of the kernel when we did not see it made.
fn is_tcp(fd: c_int) -> bool {
    match table::look(fd) {
        Entry::Socket => true,
        Entry::None => {
            let tcp = protocol(fd) == Some(libc::IPPROTO_TCP);
            if tcp {
                table::set(fd, Entry::Socket);
                options::ask_the_kernel();
            }
            tcp
        }
        _ => false,
    }
}

/// Whether `fd`, which `listener` has accepted, is a TCP socket. One that listens for MPTCP accepts both kinds: who
/// connects by plain TCP has a plain TCP socket at the other end, too.
fn is_tcp_accepted(listener: c_int, fd: c_int) -> bool {
    match table::look(listener) {
        Entry::Socket => true,
        Entry::None if protocol(fd) == Some(libc::IPPROTO_TCP) => {
            if !is_tcp(listener) {
                options::ask_the_kernel();
            }
            true
        }
        _ => false,
    }
}

fn accepted(listener: c_int, fd: c_int, flags: c_int) -> c_int {
    if fd >= 0 {
        conn::replaced(fd);
        if is_tcp_accepted(listener, fd) {
            conn::watch(fd, true, flags & libc::SOCK_NONBLOCK != 0, false);
        }
    }
    fd
}

/// Tells the broker what `fd` is about to be connected to. False: it is no TCP socket, or a connection already.
unsafe fn announce(fd: c_int, to: *const sockaddr, len: socklen_t) -> bool {
    if to.is_null() || !matches!(table::look(fd), Entry::Socket | Entry::None) || !is_tcp(fd) {
        return false;
    }
    // SAFETY: the program's address of `len` bytes, as it promises connect().
    let address = match unsafe { (c_int::from((*to).sa_family), len as usize) } {
        (libc::AF_INET, len) if len >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the family and the length are those of this structure; no alignment is asked for.
            let v4 = unsafe { to.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            SocketAddr::from((ip, u16::from_be(v4.sin_port)))
        }
        (libc::AF_INET6, len) if len >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above.
            let v6 = unsafe { to.cast::<libc::sockaddr_in6>().read_unaligned() };
            SocketAddr::from((Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port)))
        }
        _ => return false,
    };
    eager::connecting(fd, address);
    true
}

/// O_ASYNC was set: no lane raises signals.
fn leaves(fd: c_int) {
    match table::look(fd) {
        Entry::Conn(conn) => conn::revoke_for_good(conn, fd, Reason::OptionUnsupported),
        Entry::Socket => options::ask_the_kernel(),
        _ => {}
    }
}

/// ioctl() on something that is no connection.
unsafe fn ioctl_elsewhere(fd: c_int, request: c_ulong, arg: usize) -> c_int {
    /// SIOCKCMATTACH (linux/kcm.h): the kernel reads and writes the TCP socket that the argument begins with.
    const SIOCKCMATTACH: c_ulong = 0x89E0;
    if request == SIOCKCMATTACH
        // SAFETY: the program's, which need not be there.
        && let Some(socket) = unsafe { user::fetch(arg as *const c_int) }
    {
        hand_over(socket, Reason::HandedOver);
    }
    // SAFETY: the program's own call.
    let rc = unsafe { covered::ioctl(fd, request, arg) };
    if rc == 0 && request == libc::FIOASYNC as c_ulong {
        leaves(fd);
    }
    rc
}

/// Takes `fd` off its lane, unread bytes and all, for code that no hook sees: stdio reads and writes inside libc.
pub fn hand_over(fd: c_int, reason: Reason) {
    if !table::is_none(fd)
        && let Some(conn) = table::conn(fd)
    {
        conn::hand_over(conn, fd, reason);
    }
}

/// close() of a descriptor that we know something of.
#[inline(never)]
fn close_known(fd: c_int) -> c_int {
    if !let_go(fd) {
        return refuse(libc::EBADF);
    }
    // SAFETY: the program's own call.
    unsafe { covered::close(fd) }
}

/// What we know of `fd`, which is about to be closed, is forgotten. False: it is one of ours, not the program's to close.
pub fn let_go(fd: c_int) -> bool {
    // Inside a critical section it is a descriptor of ours that std closes, by this very name. Something may stand at its number all
    // the same, where the program's was closed behind our back; what to do then may need the lock that is held here.
    if table::is_none(fd) || foreign_process() || tls::is_critical() {
        return true;
    }
    if internal(fd) {
        return false;
    }
    conn::close(fd);
    true
}

/// Whether setsockopt() of such an option has to be looked at. What bars a lane counts also for a socket that we do not know (yet).
#[inline(always)]
fn matters(fd: c_int, level: c_int, name: c_int) -> bool {
    match surface::of_option(level, name) {
        Does::Tcp(_) => true,
        Does::Same(_) if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INQ) => true,
        // Which nearly every connection sets, when nothing is held back yet.
        Does::Same(_) if (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY) => cork::holds(fd),
        Does::Same(_) | Does::Back(..) => !table::is_none(fd),
        Does::Nothing | Does::Differs | Does::Unseen => false,
    }
}

/// Whether what is kept for notices of MSG_ZEROCOPY (`Fact`) depends on it.
#[inline]
fn is_of_notices(level: c_int, name: c_int) -> bool {
    /// SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPING_NEW (asm-generic/socket.h).
    const NEW: core::ops::RangeInclusive<c_int> = 63..=65;
    match level {
        libc::SOL_SOCKET => {
            use libc::{SO_TIMESTAMP, SO_TIMESTAMPING, SO_TIMESTAMPNS, SO_ZEROCOPY};
            matches!(name, SO_ZEROCOPY | SO_TIMESTAMP | SO_TIMESTAMPNS | SO_TIMESTAMPING)
                || NEW.contains(&name)
        }
        libc::IPPROTO_IPV6 => name == libc::IPV6_ADDRFORM,
        _ => false,
    }
}

/// Whether it is one that lanes need to have other than the program's.
#[inline(always)]
fn is_of_keepalive(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => name == libc::SO_KEEPALIVE,
        libc::IPPROTO_TCP => matches!(
            name,
            libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT | libc::TCP_USER_TIMEOUT
        ),
        _ => false,
    }
}

/// getsockopt(TCP_ZEROCOPY_RECEIVE), which takes bytes from TCP that no hook counts. What a lane still holds cannot be mapped: it is to be
/// read, as the kernel says it of what does not fill a page.
#[inline(never)]
unsafe fn map_bytes(conn: Conn, fd: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
    /// Most of `struct tcp_zerocopy_receive` (linux/tcp.h): what a caller may leave out comes after.
    #[repr(C)]
    #[derive(Copy, Clone)]
    struct Receive {
        address: u64,
        length: u32,
        recv_skip_hint: u32,
    }
    conn::revoke_for_good(conn, fd, Reason::OptionUnsupported);
    // Ends a lane that is empty.
    let _ = rx::readable(conn, fd);
    // SAFETY: the program's, which need not be there.
    let size = unsafe { user::fetch(len) };
    // SAFETY: as above.
    let receive = unsafe { user::fetch(value.cast::<Receive>()) };
    match (size, receive) {
        (Some(size), Some(receive)) if size as usize >= size_of::<Receive>() && !conn::reads_tcp(conn) => {
            let unread = conn::readable_bytes(conn, fd) as u32;
            let answer = Receive { length: 0, recv_skip_hint: unread, ..receive };
            // SAFETY: as above.
            if unsafe { user::store(value.cast(), answer) } { 0 } else { refuse(libc::EFAULT) }
        }
        // SAFETY: the program's own call.
        _ => unsafe { covered::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE, value, len) },
    }
}

/// setsockopt() of such an option.
#[inline(never)]
unsafe fn set_option(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    if internal(fd) {
        return refuse(libc::EBADF);
    }
    let does = surface::of_option(level, name);
    match (does, name) {
        (Does::Back(reason, _), _) => hand_over(fd, reason),
        (_, libc::TCP_DEFER_ACCEPT) if level == libc::IPPROTO_TCP && process::eager() => eager::deferring(fd),
        _ => {}
    }
    // SAFETY: the program's own call.
    let rc = unsafe { covered::setsockopt(fd, level, name, value, len) };
    if rc != 0 {
        return rc;
    }
    if is_of_notices(level, name)
        && let Some(conn) = table::conn(fd)
    {
        zerocopy::option_changed(conn);
    }
    match (level, name) {
        _ if let Does::Tcp(unset) = does => conn::option_set(fd, level, name, unset),
        (libc::IPPROTO_TCP, libc::TCP_INQ) => options::unread_told(fd),
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => {
            if let Some(conn) = table::conn(fd) {
                state::acknowledge_at_once(conn, fd);
            }
        }
        (libc::IPPROTO_TCP, libc::TCP_CORK | libc::TCP_NODELAY) => {
            // SAFETY: the kernel has read an int there.
            if let Some(on) = unsafe { user::fetch(value.cast::<c_int>()) } {
                cork::option_set(fd, name, on != 0);
            }
        }
        _ => {}
    }
    rc
}

hooks! {
    /// socket(2)
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = covered::socket(domain, kind, protocol);
        if fd >= 0 {
            conn::replaced(fd);
            let stream = kind & 0xf == libc::SOCK_STREAM;
            let inet = domain == libc::AF_INET || domain == libc::AF_INET6;
            if stream && inet && (protocol == 0 || protocol == libc::IPPROTO_TCP) {
                table::set(fd, Entry::Socket);
            }
        }
        fd
    }
    /// connect(2)
    fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
        let (before, is_named) = (table::look(fd), conn::has_other_names(fd));
        let announced = process::eager() && announce(fd, to, len);
        if matches!(before, Entry::Socket) { conn::prepare(); }
        let rc = covered::connect(fd, to, len);
        let errno = if rc == 0 { 0 } else { errno() };
        let under_way = errno == libc::EINPROGRESS;
        if (rc == 0 || under_way) && !to.is_null() && len as usize >= size_of::<libc::sa_family_t>() {
            let family = c_int::from((*to).sa_family);
            match before {
                Entry::Socket | Entry::None
                    if (family == libc::AF_INET || family == libc::AF_INET6) && is_tcp(fd) =>
                {
                    conn::watch(fd, false, under_way, announced);
                    if is_named {
                        conn::is_named(fd);
                        hand_over(fd, Reason::OtherNames);
                    }
                }
                // Dissolved: the socket may be connected anew.
                Entry::Conn(_) if family == libc::AF_UNSPEC => conn::dissolved(fd),
                _ => {}
            }
        } else if announced {
            eager::not_connected(fd);
        }
        if rc != 0 { set_errno(errno); }
        rc
    }
    /// connect(2), glibc's internal name
    fn __connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int { connect(fd, to, len) }
    /// listen(2)
    fn listen(fd: c_int, backlog: c_int) -> c_int {
        let rc = covered::listen(fd, backlog);
        if rc == 0 && process::eager() && is_tcp(fd) {
            let errno = errno();
            eager::listening(fd);
            set_errno(errno);
        }
        rc
    }
    /// accept(2)
    fn accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if process::eager() { eager::accepting(fd); }
        accepted(fd, covered::accept(fd, from, len), 0)
    }
    /// accept4(2)
    fn accept4(fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        if process::eager() { eager::accepting(fd); }
        accepted(fd, covered::accept4(fd, from, len, flags), flags)
    }
    /// shutdown(2)
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if table::is_none(fd) { return covered::shutdown(fd, how); }
        conn::shutdown(fd, how);
        let rc = covered::shutdown(fd, how);
        let errno = errno();
        conn::shut_down(fd, how);
        set_errno(errno);
        rc
    }
    /// close(2)
    fn close(fd: c_int) -> c_int {
        if table::is_none(fd) { covered::close(fd) } else { close_known(fd) }
    }
    /// close(2), glibc's internal name
    fn __close(fd: c_int) -> c_int { close(fd) }
    /// close_range(2), around our own descriptors
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        // Marks only, or nothing at all: the kernel refuses other flags before it closes.
        if foreign_process() || flags & !(libc::CLOSE_RANGE_UNSHARE as c_int) != 0 || first > last {
            return covered::close_range(first, last, flags);
        }
        close_around(first, last, flags)
    }
    /// closefrom(3)
    fn closefrom(first: c_int) -> () {
        if foreign_process() { return covered::closefrom(first); }
        close_around(first.max(0) as c_uint, c_uint::MAX, 0);
    }
    /// dup(2)
    fn dup(fd: c_int) -> c_int {
        if internal(fd) { return refuse(libc::EBADF); }
        if foreign_process() {
            conn::hand_over_from_child(fd);
            return covered::dup(fd);
        }
        let new = covered::dup(fd);
        if new >= 0 { duplicated(fd, new); }
        new
    }
    /// dup2(2)
    fn dup2(fd: c_int, new: c_int) -> c_int { duplicate_to(fd, new, || covered::dup2(fd, new)) }
    /// dup2(2), glibc's internal name
    fn __dup2(fd: c_int, new: c_int) -> c_int { duplicate_to(fd, new, || covered::__dup2(fd, new)) }
    /// dup3(2)
    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
        // Refused before anything is closed.
        if flags & !libc::O_CLOEXEC != 0 { return covered::dup3(fd, new, flags); }
        duplicate_to(fd, new, || covered::dup3(fd, new, flags))
    }
    /// fcntl(2); the third argument travels in a register whether given or not
    fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int {
        if table::is_none(fd) { return covered::fcntl(fd, command, arg); }
        controlled(fd, command, arg, covered::fcntl(fd, command, arg))
    }
    /// fcntl(2), 64-bit offsets
    fn fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int { fcntl(fd, command, arg) }
    /// fcntl(2), glibc's internal name
    fn __fcntl(fd: c_int, command: c_int, arg: usize) -> c_int { fcntl(fd, command, arg) }
    /// ioctl(2)
    fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
        // The kernel looks at 32 bits, and in musl's call there are no others: what is in the register besides is anything.
        let request = c_ulong::from(request as u32);
        // Memory that another thread or process delivers page by page: a reader of it would wait.
        if request == UFFDIO_REGISTER { zerocopy::lending::close(); }
        let Some(conn) = table::conn(fd) else { return ioctl_elsewhere(fd, request, arg) };
        let value = arg as *mut c_int;
        let lane = state::on_lane(conn);
        if request == libc::FIONBIO as c_ulong {
            let rc = covered::ioctl(fd, request, arg);
            if rc == 0 { call::set_nonblock(fd, *value != 0); }
            return rc;
        }
        let count = match request {
            _ if !lane => None,
            r if r == libc::FIONREAD as c_ulong => Some(conn::readable_bytes(conn, fd)),
            sys::SIOCOUTQ => Some(conn::unsent_bytes(conn, fd)),
            cork::SIOCOUTQNSD => Some(cork::unsent_bytes(conn)),
            _ => None,
        };
        if let Some(count) = count {
            return if user::store(value, count as c_int) { 0 } else { refuse(libc::EFAULT) };
        }
        let rc = covered::ioctl(fd, request, arg);
        if rc == 0 && request == libc::FIOASYNC as c_ulong && *value != 0 { leaves(fd); }
        rc
    }
    /// setsockopt(2); what a lane cannot honour takes the connection back to TCP
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        if is_of_keepalive(level, name)
            && let Some(conn) = table::conn(fd)
        {
            return set_keepalive(conn, fd, level, name, value, len);
        }
        if !matters(fd, level, name) {
            return covered::setsockopt(fd, level, name, value, len);
        }
        set_option(fd, level, name, value, len)
    }
    /// getsockopt(2): what lanes have set besides is not shown, and one option reads
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        if is_of_keepalive(level, name)
            && let Some(conn) = table::conn(fd)
        {
            return keepalive::aside(conn, fd, || covered::getsockopt(fd, level, name, value, len));
        }
        if level == libc::IPPROTO_TCP && name == libc::TCP_ZEROCOPY_RECEIVE
            && let Some(conn) = table::conn(fd)
        {
            return map_bytes(conn, fd, value, len);
        }
        covered::getsockopt(fd, level, name, value, len)
    }
}

/// In a frame of its own, so that other options have none.
#[inline(never)]
fn set_keepalive(
    conn: Conn,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the program's own call.
    keepalive::aside(conn, fd, || unsafe { covered::setsockopt(fd, level, name, value, len) })
}

fn duplicate_to(fd: c_int, new: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if internal(fd) {
        return refuse(libc::EBADF);
    }
    let ours = !foreign_process();
    if !ours {
        conn::hand_over_from_child(fd);
    }
    if ours && internal(new) {
        // The number is taken by one of ours; the kernel says the same when it races with open().
        return refuse(libc::EBUSY);
    }
    let same = fd == new;
    if ours && !same && !table::is_none(new) && sys::is_open(fd) {
        conn::close(new);
    }
    let rc = real();
    if rc >= 0 && ours && !same {
        duplicated(fd, rc);
    }
    rc
}

/// What fcntl has done, written down.
pub(crate) fn controlled(fd: c_int, command: c_int, arg: usize, rc: c_int) -> c_int {
    if rc < 0 {
        return rc;
    }
    match command {
        libc::F_SETFL => {
            call::set_nonblock(fd, arg as c_int & libc::O_NONBLOCK != 0);
            if arg as c_int & libc::O_ASYNC != 0 {
                leaves(fd);
            }
        }
        // The child may take the mark off that closes it at exec.
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if foreign_process() => conn::hand_over_from_child(fd),
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, rc),
        _ => {}
    }
    rc
}

/// close_range in pieces that leave our own descriptors open.
unsafe fn close_around(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let (mut from, mut rc) = (first, 0);
    // The other threads keep theirs.
    let is_for_one = flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 && !is_alone();
    if is_for_one {
        life::leave(Reason::PrivateDescriptors);
    }
    let within = |fd: c_int| (fd as c_uint) >= first && (fd as c_uint) <= last;
    for (fd, entry) in table::all().filter(|(fd, _)| within(*fd)) {
        match entry {
            Entry::Internal => {
                if (fd as c_uint) > from {
                    // SAFETY: the program's wish, less our own descriptor.
                    rc |= unsafe { covered::close_range(from, fd as c_uint - 1, flags) };
                }
                from = fd as c_uint + 1;
            }
            _ if is_for_one => {}
            _ => conn::close(fd),
        }
    }
    if from <= last {
        // SAFETY: as above.
        rc |= unsafe { covered::close_range(from, last, flags) };
    }
    rc
}
