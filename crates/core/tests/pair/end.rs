//! One end of a connection, with core called as the preload library's hooks call it. One that is not watched is plain TCP.

use shunpike_core::bufs::Bufs;
use shunpike_core::call::Outcome;
use shunpike_core::source::Source;
use shunpike_core::surface::{self, Does};
use shunpike_core::table::{self, Conn};
use shunpike_core::{Errno, conn, cork, keepalive, passthrough, poll, rx, seen, state, sys, tx, zerocopy};
use shunpike_shm::arena::mode;
use shunpike_shm::lifecycle::Phase;
use shunpike_wire::Reason;
use std::cell::Cell;
use std::net::TcpStream;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::atomic::Ordering;

/// What a call comes to.
pub type Res<T> = Result<T, Errno>;

/// An open descriptor of a connection.
pub struct End {
    pub fd: RawFd,
}

/// libc's own answer as a result.
pub fn libcs(n: isize) -> Res<usize> {
    usize::try_from(n).map_err(|_| {
        Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().expect("an errno"))
    })
}

/// A hook's answer as a result.
pub fn answer(outcome: Outcome) -> Res<usize> {
    match outcome {
        Outcome::Libc(n) => libcs(n),
        Outcome::Ours(result) => result,
    }
}

fn one(bytes: &[u8]) -> [libc::iovec; 1] {
    [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }]
}

impl End {
    pub fn new(socket: TcpStream) -> Self {
        Self { fd: socket.into_raw_fd() }
    }

    /// What core knows of it; nothing of plain TCP.
    pub fn known(&self) -> Option<Conn> {
        table::conn(self.fd)
    }

    pub fn conn(&self) -> Conn {
        self.known().expect("it is watched")
    }

    pub fn phase(&self) -> Phase {
        self.conn().block.life.phase()
    }

    /// Why it is not on a lane.
    pub fn reason(&self) -> Option<Reason> {
        Reason::from_code(self.conn().block.reason.load(Ordering::Relaxed))
    }

    /// Whether both of its directions are on a lane.
    pub fn is_on_lanes(&self) -> bool {
        self.known().is_some_and(|conn| state::modes(conn.block) == (mode::LANE, mode::LANE))
    }

    /// Whether both of its directions are TCP's.
    pub fn is_on_tcp(&self) -> bool {
        self.known().is_none_or(|conn| state::modes(conn.block) == (mode::PLAIN, mode::PLAIN))
    }

    /// Bytes that lanes have carried, read and written.
    pub fn carried(&self) -> u64 {
        self.known().map_or(0, |conn| conn.block.lane_bytes())
    }

    /// send(2) that does not wait.
    pub fn send(&self, bytes: &[u8]) -> Res<usize> {
        self.send_with(bytes, libc::MSG_DONTWAIT)
    }

    /// send(2), without SIGPIPE.
    pub fn send_with(&self, bytes: &[u8], flags: i32) -> Res<usize> {
        let (fd, flags) = (self.fd, flags | libc::MSG_NOSIGNAL);
        // SAFETY: the bytes are there.
        let real = |flags| unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
        let Some(conn) = self.known() else { return libcs(real(flags)) };
        let half = &conn.block.tx;
        if passthrough::begin(conn, half, flags) {
            let n = real(flags);
            let result = libcs(n);
            passthrough::end(conn, half, fd, n, bytes.len());
            return result;
        }
        // SAFETY: the bytes are there.
        match unsafe { tx::fast::send(conn, fd, bytes.as_ptr(), bytes.len(), flags) } {
            Some(n) => Ok(n),
            None => answer(tx::send(conn, fd, Source::Memory(Bufs::new(&one(bytes))), flags, real)),
        }
    }

    /// writev(2).
    pub fn writev(&self, parts: &[&[u8]]) -> Res<usize> {
        let iov: Vec<_> = parts.iter().flat_map(|part| one(part)).collect();
        // SAFETY: the vector and its bytes are there.
        let real = |_| unsafe { libc::writev(self.fd, iov.as_ptr(), iov.len() as i32) };
        match self.known() {
            Some(conn) => answer(tx::send(conn, self.fd, Source::Memory(Bufs::new(&iov)), 0, real)),
            None => libcs(real(0)),
        }
    }

    /// sendfile(2) of `count` bytes of a file from its beginning.
    pub fn sendfile(&self, file: RawFd, count: usize) -> Res<usize> {
        let at = Cell::new(0);
        // SAFETY: the offset is ours.
        let real = |_| unsafe { libc::sendfile(self.fd, file, at.as_ptr(), count) };
        let source = Source::File { fd: file, offset: 0, left: count, done: 0 };
        match self.known() {
            Some(conn) => answer(tx::send(conn, self.fd, source, 0, real)),
            None => libcs(real(0)),
        }
    }

    /// recv(2) that does not wait, of at most `size` bytes.
    pub fn recv(&self, size: usize) -> Res<Vec<u8>> {
        self.recv_with(size, libc::MSG_DONTWAIT)
    }

    /// recv(2).
    pub fn recv_with(&self, size: usize, flags: i32) -> Res<Vec<u8>> {
        let (fd, mut bytes) = (self.fd, vec![0; size]);
        let at = bytes.as_mut_ptr();
        // SAFETY: the buffer is ours.
        let real = || unsafe { libc::recv(fd, at.cast(), size, flags) };
        let n = match self.known() {
            None => libcs(real()),
            Some(conn) if passthrough::begin(conn, &conn.block.rx, flags) => {
                let n = real();
                let result = libcs(n);
                passthrough::end(conn, &conn.block.rx, fd, n, 0);
                result
            }
            // SAFETY: the buffer is ours.
            Some(conn) => match unsafe { rx::fast::receive(conn, fd, at, size, flags) } {
                Some(n) => Ok(n),
                None => {
                    let room = [libc::iovec { iov_base: at.cast(), iov_len: size }];
                    answer(rx::receive(conn, fd, &room, flags, real))
                }
            },
        }?;
        bytes.truncate(n);
        Ok(bytes)
    }

    /// All that can be read now, and what ended it: nothing more, the stream's end (an empty error) or an error.
    pub fn recv_all(&self) -> (Vec<u8>, Option<Errno>) {
        let mut all = Vec::new();
        loop {
            match self.recv(1 << 16) {
                Ok(bytes) if bytes.is_empty() => return (all, None),
                Ok(bytes) => all.extend(bytes),
                Err(errno) => return (all, Some(errno)),
            }
        }
    }

    /// poll(2) on this end alone.
    pub fn poll(&self, events: i16, limit: Option<u64>) -> i16 {
        let mut fds = [libc::pollfd { fd: self.fd, events, revents: 0 }];
        let told = if poll::concerns_us(&fds) {
            poll::poll(&mut fds, limit, core::ptr::null())
        } else {
            sys::poll(&mut fds, limit, core::ptr::null())
        };
        if let Ok(told @ 1..) = told {
            seen::told(&fds, told);
        }
        fds[0].revents
    }

    /// What poll shows now.
    pub fn shows(&self) -> i16 {
        self.poll(libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI, Some(0))
    }

    /// FIONREAD.
    pub fn unread(&self) -> usize {
        match self.known().filter(|&conn| state::on_lane(conn)) {
            Some(conn) => conn::readable_bytes(conn, self.fd),
            None => sys::queue(self.fd, sys::SIOCINQ).expect("a socket"),
        }
    }

    /// SIOCOUTQ.
    pub fn unsent(&self) -> usize {
        match self.known().filter(|&conn| state::on_lane(conn)) {
            Some(conn) => conn::unsent_bytes(conn, self.fd),
            None => sys::queue(self.fd, sys::SIOCOUTQ).expect("a socket"),
        }
    }

    /// setsockopt(2) of a number.
    pub fn set(&self, level: i32, name: i32, value: i32) -> Res<usize> {
        self.set_option(level, name, &value)
    }

    /// setsockopt(2).
    pub fn set_option<T>(&self, level: i32, name: i32, value: &T) -> Res<usize> {
        let real = || sys::set_option(self.fd, level, name, value);
        let keepalive = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
        if let Some(conn) = self.known()
            && ((level, name) == (libc::SOL_SOCKET, libc::SO_KEEPALIVE)
                || level == libc::IPPROTO_TCP && keepalive.contains(&name))
        {
            return keepalive::aside(conn, self.fd, real);
        }
        let does = surface::of_option(level, name);
        if let (Some(conn), Does::Back(reason, _)) = (self.known(), does) {
            conn::hand_over(conn, self.fd, reason);
        }
        let done = real()?;
        match (level, name) {
            _ if let Does::Tcp(unset) = does => conn::option_set(self.fd, level, name, unset),
            (libc::IPPROTO_TCP, libc::TCP_CORK | libc::TCP_NODELAY) => {
                // SAFETY: these options' values are numbers.
                let on = unsafe { *core::ptr::from_ref(value).cast::<i32>() };
                cork::option_set(self.fd, name, on != 0);
            }
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => {
                self.known().inspect(|&conn| zerocopy::option_changed(conn));
            }
            _ => {}
        }
        Ok(done)
    }

    /// getsockopt(2) of a number.
    pub fn get(&self, level: i32, name: i32) -> Res<i32> {
        let real = || sys::option(self.fd, level, name);
        match self.known() {
            Some(conn) => keepalive::aside(conn, self.fd, real),
            None => real(),
        }
    }

    /// shutdown(2).
    pub fn shutdown(&self, how: i32) -> Res<usize> {
        conn::shutdown(self.fd, how);
        // SAFETY: no pointers.
        let done = libcs(unsafe { libc::shutdown(self.fd, how) } as isize);
        conn::shut_down(self.fd, how);
        done
    }

    /// dup(2).
    pub fn dup(&self) -> Self {
        // SAFETY: no pointers.
        let fd = unsafe { libc::dup(self.fd) };
        assert!(fd >= 0);
        conn::duplicated(self.fd, fd);
        Self { fd }
    }

    /// close(2).
    pub fn close(self) {}
}

impl Drop for End {
    fn drop(&mut self) {
        if !table::is_none(self.fd) {
            conn::close(self.fd);
        }
        // SAFETY: it is ours.
        unsafe { libc::close(self.fd) };
    }
}
